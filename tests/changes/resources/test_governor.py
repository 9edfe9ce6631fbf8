"""Governors: what is set, what is put back, and machines that set no clocks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterprep.changes.resources import NoPlan
from clusterprep.changes.resources.governor import (
    FILE,
    GOVERNORS,
    HEAD,
    POLICIES,
    RESOURCE,
    SET,
    Governors,
    parse_governors,
)
from clusterprep.model import Absent
from clusterprep.model.operations import RunCommand, StepAction, Write
from tests.changes.resources.planned import step_actions

BOOT = f"{HEAD}w {POLICIES}/policy*/scaling_governor - - - - performance\n".encode()
KNOWN = frozenset({"performance", "powersave"})


def planned(seen: Governors | Absent, content: bytes | None = None) -> StepAction:
    (action,) = step_actions(
        RESOURCE, {"name": "performance"}, {GOVERNORS.name: seen}, {FILE: content}
    )
    return action


def policies(**names: str) -> Governors:
    return Governors({f"{POLICIES}/{policy}": name for policy, name in names.items()}, KNOWN)


def test_every_policy_is_set_and_each_gets_back_what_it_had() -> None:
    action = planned(policies(policy0="powersave", policy1="performance", policy2="schedutil"))
    run, write = action.operations
    assert isinstance(run, RunCommand)
    assert run.argv[4:] == (
        "performance",
        f"{POLICIES}/policy0/scaling_governor",
        f"{POLICIES}/policy2/scaling_governor",
    )
    assert run.undo is not None
    assert [undo.argv[4:] for undo in run.undo] == [
        ("powersave", f"{POLICIES}/policy0/scaling_governor"),
        ("schedutil", f"{POLICIES}/policy2/scaling_governor"),
    ]
    assert write == Write(FILE, None, BOOT)
    assert action.diff == (
        "powersave of 1 policies, schedutil of 1 policies → performance, performance at boot"
    )


def test_what_is_so_already_is_left_alone() -> None:
    assert planned(policies(policy0="performance"), BOOT).action == "none"
    assert planned(policies(policy0="performance")).diff == "performance at boot"


def test_a_machine_that_sets_no_clocks_has_nothing_to_do() -> None:
    assert planned(Absent("not_applicable", "no cpufreq")).action == "none"
    with pytest.raises(NoPlan, match="no answer"):
        planned(Absent("timed_out", "no answer"))


def test_a_governor_that_the_kernel_lacks_is_refused() -> None:
    seen = Governors({f"{POLICIES}/policy0": "powersave"}, frozenset({"powersave"}))
    with pytest.raises(NoPlan, match="no governor performance; it has powersave"):
        planned(seen)


def test_what_the_kernel_says() -> None:
    folder = f"{POLICIES}/policy0"
    files = {
        f"{folder}/scaling_governor": "powersave\n",
        f"{folder}/scaling_available_governors": "performance powersave \n",
    }
    assert parse_governors(files) == Governors({folder: "powersave"}, KNOWN)
    assert isinstance(parse_governors({}), Absent)


def test_the_command_stops_at_the_first_file_that_refuses(tmp_path: Path) -> None:
    one, folder, other = tmp_path / "one", tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    done = subprocess.run(
        ["sh", "-c", SET, "sh", "it's $HOME", one, folder, other],
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0
    assert one.read_text() == "it's $HOME\n"
    assert not other.exists()
