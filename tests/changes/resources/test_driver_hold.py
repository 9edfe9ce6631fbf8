"""The driver's packages on hold: only those that are not yet, and nothing without packages."""

from __future__ import annotations

import pytest

from clusterprep.changes.resources import NoPlan
from clusterprep.changes.resources.driver_hold import RESOURCE
from clusterprep.facts.packages import DRIVER, DriverPackages
from clusterprep.model import Absent
from clusterprep.model.operations import RunCommand, StepAction
from tests.changes.resources.planned import step_actions

LOOSE = ("libnvidia-compute-550", "nvidia-driver-550")


def planned(seen: DriverPackages | Absent) -> StepAction:
    (action,) = step_actions(RESOURCE, {}, {DRIVER.name: seen})
    return action


@pytest.mark.parametrize("automatic", [True, False])
def test_loose_packages_are_held_and_let_go_again(automatic: bool) -> None:
    action = planned(DriverPackages("apt", ("nvidia-utils-550",), LOOSE, automatic))
    (run,) = action.operations
    assert isinstance(run, RunCommand)
    assert run.argv[-3:] == ("hold", *LOOSE)
    assert run.undo is not None
    assert run.undo[0].argv[-3:] == ("unhold", *LOOSE)
    assert action.diff == "hold libnvidia-compute-550\nhold nvidia-driver-550"


def test_what_is_held_stays_and_a_machine_without_driver_packages_has_nothing_to_do() -> None:
    assert planned(DriverPackages("apt", LOOSE, (), True)).action == "none"
    assert planned(Absent("not_applicable", "the driver is of no package")).action == "none"


def test_what_cannot_be_done_or_known_is_said() -> None:
    with pytest.raises(NoPlan, match="dnf versionlock add nvidia-driver"):
        planned(DriverPackages("dnf", (), ("nvidia-driver",), True))
    with pytest.raises(NoPlan, match="no answer"):
        planned(Absent("timed_out", "no answer"))
