"""PCIe access control: which bits are cleared, what stays, and where nothing is to do."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.resources import NoPlan
from clusterprep.changes.resources.acs import BUS, FILE, HEAD, RESOURCE, WORDS
from clusterprep.facts.pci import PciTree
from clusterprep.model import Absent
from clusterprep.model.operations import RunCommand, StepAction, Write
from tests.changes.resources.planned import commands, step_actions

X86 = PciTree((), {}, False)
ARM = PciTree((), {}, False, ("smmu3.0x0000000005000000",))
ONE, TWO = "0000:17:00.0", "0000:17:01.0"
RULES = (
    HEAD
    + "".join(
        f'ACTION=="add", SUBSYSTEM=="pci", KERNEL=="{port}", '
        'RUN+="/usr/bin/setpci -s %k ECAP_ACS+0x6.w=0000:001c"\n'
        for port in (ONE, TWO)
    )
).encode()


def planned(words: Any, tree: Any = X86, content: bytes | None = None) -> StepAction:
    facts = {WORDS.name: words, BUS.name: tree}
    (action,) = step_actions(RESOURCE, {}, facts, {FILE: content})
    return action


def test_the_bits_that_redirect_are_cleared_and_the_others_stay() -> None:
    action = planned({ONE: 0x1D, TWO: 0x01})
    assert commands(action) == [f"/usr/bin/setpci -s {ONE} ECAP_ACS+0x6.w=0001"]
    run, write = action.operations
    assert isinstance(run, RunCommand)
    assert run.undo is not None
    assert run.undo[0].argv[-1] == "ECAP_ACS+0x6.w=001d"
    assert write == Write(FILE, None, RULES)
    assert action.diff == f"{ONE}: 0x001d → 0x0001\nat boot"


def test_what_is_so_already_is_left_alone() -> None:
    assert planned({ONE: 0, TWO: 1}, content=RULES).action == "none"
    assert planned({ONE: 0, TWO: 1}).diff == "at boot"
    assert planned({}).action == "none"


def test_machines_without_switches_and_on_arm_have_nothing_to_do() -> None:
    assert planned(Absent("not_applicable", "a virtual machine")).action == "none"
    assert planned({ONE: 0x1D}, ARM).action == "none"


@pytest.mark.parametrize(
    ("words", "tree", "why"),
    [
        ({ONE: None, TWO: 0}, X86, f"the access control of {ONE} cannot be read"),
        (Absent("denied", "root alone"), X86, "root alone"),
        ({ONE: 0x1D}, Absent("timed_out", "no answer"), "no answer"),
    ],
)
def test_what_is_not_known_is_refused(words: Any, tree: Any, why: str) -> None:
    with pytest.raises(NoPlan, match=why):
        planned(words, tree)
