"""Wrong playbooks: every mistake with line, key and what was expected, and nothing is touched."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from clusterprep.changes.playbook.reading import load_playbook
from clusterprep.errors import InputError
from clusterprep.inventory.load import load_inventory
from tests.support.command import CLI, asked

HERE = Path(__file__).parent
INVENTORY = HERE / "inventory.yaml"
WRONG = sorted((HERE / "wrong").glob("*.yaml"))


def problems(path: Path) -> list[str]:
    """What is told of a playbook, without the folder of these files."""
    with pytest.raises(InputError) as raised:
        load_playbook(str(path), load_inventory(INVENTORY))
    assert raised.value.code == 2
    assert all(problem.line for problem in raised.value.problems)
    own = (
        dataclasses.replace(p, file=None if p.file == str(path) else Path(p.file).name)
        for p in raised.value.problems
    )
    return [str(problem).replace(f"{HERE}/", "") for problem in own]


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_a_wrong_playbook_says_all_that_is_wrong(path: Path) -> None:
    """The .txt beside the file holds its problems."""
    assert problems(path) == path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()


def test_every_wrong_playbook_has_its_expectation_and_there_are_enough() -> None:
    assert {path.stem for path in WRONG} == {path.stem for path in (HERE / "wrong").glob("*.txt")}
    assert len(WRONG) >= 40


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_wrong_playbooks_are_exit_2_before_any_node_is_asked(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The addresses lead nowhere: a command that asked a node would wait and end with 3."""
    code, out, err = asked(capsys, "apply", str(INVENTORY), "--no-verify", "--playbook", str(path))
    assert (code, out) == (2, "")
    assert re.search(r"\.(yaml|txt):[0-9]+: ", err)
    assert "Traceback" not in err


def test_the_command_line_says_it_as_it_is() -> None:
    path = HERE / "wrong" / "unknown_resource.yaml"
    done = subprocess.run(
        [*CLI, "plan", str(INVENTORY), "--playbook", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path}:2: [0].sysctrl: unknown key (did you mean 'sysctl'?)" in done.stderr
