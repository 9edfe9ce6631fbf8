"""Services: from what systemd says of a unit to the words that are told to it, and back."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.resources import NoPlan
from clusterprep.changes.resources.service import RESOURCE, Unit, parse_unit, unit_name
from clusterprep.model import Absent
from clusterprep.model.files import FileState
from clusterprep.model.operations import RunCommand, StepAction
from tests.changes.resources.planned import commands, earlier, step_actions

OFF, ON = Unit("loaded", "disabled", "inactive", False), Unit("loaded", "enabled", "active", False)
ABSENT = Unit("not-found", "", "inactive", False)
BOTH = {"name": "chrony", "enabled": True, "running": True}


def planned(params: dict[str, Any], unit: Unit, **more: Any) -> StepAction:
    (step_action,) = step_actions(RESOURCE, params, {f"service:{unit_name(params)}": unit}, **more)
    return step_action


@pytest.mark.parametrize(
    ("params", "unit", "told", "words"),
    [
        (BOTH, OFF, ["enable", "start"], "enabled, started"),
        (BOTH, ON, [], ""),
        (BOTH, Unit("loaded", "static", "activating", False), [], ""),
        (
            BOTH,
            Unit("loaded", "enabled-runtime", "failed", False),
            ["enable", "start"],
            "enabled, started",
        ),
        (
            {"name": "x", "enabled": False, "running": False},
            ON,
            ["disable", "stop"],
            "disabled, stopped",
        ),
        ({"name": "x", "enabled": False, "running": False}, OFF, [], ""),
        ({"name": "x", "enabled": False, "running": False}, ABSENT, [], ""),
        ({"name": "x", "running": True}, OFF, ["start"], "started"),
    ],
)
def test_only_what_differs_is_told(
    params: dict[str, Any], unit: Unit, told: list[str], words: str
) -> None:
    step_action = planned(params, unit)
    assert commands(step_action) == [f"systemctl {verb} -- {unit_name(params)}" for verb in told]
    assert (step_action.diff, step_action.action) == (words, "update" if told else "none")


def test_every_word_has_its_way_back() -> None:
    undo = [each.undo for each in planned(BOTH, OFF).operations if isinstance(each, RunCommand)]
    assert [run.argv[1] for runs in undo if runs for run in runs] == ["disable", "stop"]


def test_a_handler_restarts_what_runs_and_again_after_an_undo() -> None:
    step_action = planned({"name": "chrony"}, ON, notified=True)
    assert (commands(step_action), step_action.action) == (
        ["systemctl restart -- chrony.service"],
        "restart",
    )
    (restart,) = step_action.operations
    assert isinstance(restart, RunCommand)
    assert [run.argv[1] for run in restart.again] == ["try-restart"]
    assert (
        commands(planned({"name": "chrony", "reload": True}, ON, notified=True))[0].split()[1]
        == "reload-or-restart"
    )
    assert not planned({"name": "chrony"}, ON).operations
    assert planned({**BOTH}, OFF, notified=True).diff == "enabled, started"


def test_files_that_systemd_has_not_read_yet_are_read_first() -> None:
    step_action = planned(BOTH, Unit("loaded", "disabled", "inactive", True))
    assert commands(step_action)[0] == "systemctl daemon-reload"
    assert not planned(BOTH, Unit("loaded", "enabled", "active", True)).operations


def test_a_unit_that_is_not_there_may_come_by_a_step_before() -> None:
    with pytest.raises(NoPlan, match=r"no unit chrony\.service") as raised:
        planned(BOTH, ABSENT)
    assert raised.value.absent.reason == "cannot"
    with pytest.raises(NoPlan):
        planned({"name": "chrony"}, ABSENT, notified=True)
    assert planned(BOTH, ABSENT, **earlier("package")).diff == "enabled, started"
    path = "/etc/systemd/system/chrony.service"
    assert (
        planned(BOTH, ABSENT, written={path: FileState(path, b"[Unit]\n")}).diff
        == "enabled, started"
    )
    with pytest.raises(NoPlan):
        planned(BOTH, ABSENT, **earlier("module"))


def test_a_masked_unit_is_refused() -> None:
    with pytest.raises(NoPlan, match="systemctl unmask"):
        planned(BOTH, Unit("masked", "masked", "inactive", False))
    assert not planned(
        {"name": "x", "running": False}, Unit("masked", "masked", "inactive", False)
    ).operations


def test_without_systemd_no_service_is_planned() -> None:
    err = "System has not been booted with systemd as init system (PID 1). Can't operate.\n"
    unit = parse_unit({"code": 1, "out": "", "err": err})
    assert unit == Absent("cannot", "services are told to systemd, and no systemd runs here")


def test_what_systemctl_says() -> None:
    out = "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nNeedDaemonReload=yes\n"
    assert parse_unit({"code": 0, "out": out, "err": ""}) == Unit(
        "loaded", "enabled", "active", True
    )
    with pytest.raises(ValueError, match="systemctl ended with 1: Access denied"):
        parse_unit({"code": 1, "out": "", "err": "Access denied"})
    assert unit_name({"name": "fstrim.timer"}) == "fstrim.timer"
    assert RESOURCE.only_handles({"name": "x"})
    assert [key for key, _ in RESOURCE.wrong({"name": "x", "running": False, "reload": True})] == [
        "reload"
    ]
