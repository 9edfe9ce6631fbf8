"""Every example of docs/howto/python.md, as a program of its own on hosts of the lab."""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support.command import report_schema
from tests.support.lab import Lab, faults

pytestmark = pytest.mark.hosts

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "howto" / "python.md"
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What each example prints, in the order of the page.
PRINTED = (
    r"pass 0\ntime\.daemon n1, n2, n3, n4 [^\n]+\n",
    r"\['/etc/[^\n]*\]\npass \{'done'\}\n",
    r"eth\.mtu n2 planned\npass \['cured'\]\npass \{'undone'\}\n",
    r"(?s).*rank 3 of 4: good morning\n.*pass \['finished', 'finished', 'finished', 'finished'\]\n",
    r"--limit [^\n]*no-such-node[^\n]*\n",
    r"pass pass\n",
)
WITH_FAULT = 2  # the example that cures a fault and puts it back
EXAMPLES = tuple(FENCED.findall(PAGE.read_text(encoding="utf-8")))


def test_each_example_has_its_output() -> None:
    assert len(EXAMPLES) == len(PRINTED)


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_an_example_prints_what_it_should(lab4: Lab, tmp_path: Path, number: int) -> None:
    for name in ("inventory.yaml", "other.yaml"):
        lab4.inventory(tmp_path / name)
    program = tmp_path / "example.py"
    program.write_text(EXAMPLES[number], encoding="utf-8")
    planted = faults.mtu(lab4.host("n2"), 1400) if number == WITH_FAULT else nullcontext()
    with planted:
        done = lab4.controller.run(
            [sys.executable, "-W", "error", str(program)],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            timeout=100,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(PRINTED[number], done.stdout), done.stdout


@pytest.mark.slow
def test_verify_returns_the_all_reduce(lab4: Lab, tmp_path: Path) -> None:
    program = "from clusterprep import api; print(api.verify('inventory.yaml').to_json())"
    lab4.inventory(tmp_path / "inventory.yaml")
    done = lab4.controller.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        timeout=100,
    )
    report = json.loads(done.stdout)
    report_schema().validate(report)
    assert (report["command"], report["verify"]["verdict"]) == ("verify", "pass")
