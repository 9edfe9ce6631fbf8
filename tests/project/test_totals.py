"""The totals of several runs, and the rule that tests on lab hosts carry their marker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.support.totals import VARIABLE, summed

ROOT = Path(__file__).resolve().parents[2]


def item(fixtures: tuple[str, ...], marked: bool) -> Any:
    marker = pytest.mark.hosts if marked else None
    return SimpleNamespace(
        nodeid="tests/test_x.py::test_it",
        fixturenames=fixtures,
        get_closest_marker=lambda name: marker if name == "hosts" else None,
    )


def test_totals_are_added_up() -> None:
    runs = [
        {"passed": 11000, "failed": 0, "skipped": 2},
        {"passed": 900, "failed": 1, "skipped": 0},
    ]
    text = "".join(json.dumps(run) + "\n" for run in runs)
    assert summed(text) == "11900 passed, 1 failed, 2 skipped"


def test_a_run_inside_a_test_is_no_run_of_its_own(tmp_path: Path) -> None:
    """As pytest-xdist's processes are none. What they print is the outer run's own business."""
    inner = (
        f"[{sys.executable!r}, '-m', 'pytest', '-q', '-p', 'tests.support.totals', "
        f"{str(tmp_path / 'inner_test.py')!r}]"
    )
    (tmp_path / "inner_test.py").write_text("def test_inner(): pass\n")
    outer = tmp_path / "outer_test.py"
    outer.write_text(
        f"import subprocess\n\ndef test_outer():\n    subprocess.run({inner}, check=True)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    totals = tmp_path / "totals"
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.support.totals",
        "-n",
        "2",
        str(outer),
    ]
    environment = {**os.environ, VARIABLE: str(totals)}
    subprocess.run(argv, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert [json.loads(line) for line in totals.read_text().splitlines()] == [
        {"passed": 1, "failed": 0, "skipped": 0}
    ]


def test_a_test_that_uses_hosts_without_the_marker_is_refused() -> None:
    with pytest.raises(
        pytest.UsageError, match=r"pytest\.mark\.hosts:\n  tests/test_x\.py::test_it"
    ):
        pytest_collection_modifyitems([item(("lab4",), marked=False)])


@pytest.mark.parametrize(("fixtures", "marked"), [(("lab4",), True), (("tmp_path",), False)])
def test_other_tests_are_not(fixtures: tuple[str, ...], marked: bool) -> None:
    pytest_collection_modifyitems([item(fixtures, marked)])
