"""Settings of GPUs: one command for each GPU that differs, with the former value as its undo."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.resources import NoPlan
from clusterprep.changes.resources.gpu import RESOURCE, GpuSettings, parse_settings, parse_tool
from clusterprep.facts.gpu_state import Persistence, Power
from clusterprep.model import Absent, Gpus, Node
from clusterprep.model.operations import RunCommand, StepAction
from tests.changes.resources.planned import commands, earlier, step_actions

ALL = {"persistence": True, "compute_mode": "default", "power_limit": "default"}
UUIDS = {0: "GPU-a", 1: "GPU-b"}
GOOD = (Persistence(on=True, virtual=False), "default", Power(700.0, 700.0))


def settings(*each: tuple[Any, Any, Any], lost: tuple[str, ...] = ()) -> GpuSettings:
    columns = zip(ALL, zip(*each, strict=True), strict=True)
    return GpuSettings(
        dict(zip(range(len(each)), UUIDS.values(), strict=False)),
        lost,
        {k: dict(enumerate(v)) for k, v in columns},
    )


def planned(
    seen: GpuSettings | None, params: dict[str, Any] | None = None, tool: bool = True, **more: Any
) -> list[StepAction]:
    return step_actions(
        RESOURCE, params or ALL, {"gpu:settings": seen, "gpu:nvidia-smi": tool}, **more
    )


def test_each_gpu_that_differs_is_set_and_the_others_are_not() -> None:
    bad = (Persistence(on=False, virtual=False), "exclusive process", Power(450.5, 700.0))
    found = planned(settings(GOOD, bad))
    assert [(step_action.target, step_action.diff) for step_action in found] == [
        ("persistence mode", "GPU 1: off → on"),
        ("compute mode", "GPU 1: exclusive process → default"),
        ("power limit", "GPU 1: 450.5 W → 700 W"),
    ]
    assert [commands(step_action) for step_action in found] == [
        ["nvidia-smi -i GPU-b -pm 1"],
        ["nvidia-smi -i GPU-b -c 0"],
        ["nvidia-smi -i GPU-b -pl 700.00"],
    ]
    runs = [
        each
        for step_action in found
        for each in step_action.operations
        if isinstance(each, RunCommand)
    ]
    assert [" ".join(run.undo[0].argv[3:]) for run in runs if run.undo] == [
        "-pm 0",
        "-c 3",
        "-pl 450.50",
    ]


def test_what_is_so_already_is_left_alone() -> None:
    assert [step_action.action for step_action in planned(settings(GOOD, GOOD))] == ["none"] * 3
    assert [step_action.action for step_action in planned(settings(GOOD), tool=False)] == [
        "none"
    ] * 3
    assert [
        step_action.target
        for step_action in planned(settings(GOOD), {"compute_mode": "prohibited"})
    ] == ["compute mode"]


def test_equal_changes_of_several_gpus_are_one_line() -> None:
    (step_action,) = planned(settings(GOOD, GOOD), {"compute_mode": "exclusive_process"})
    assert (step_action.diff, len(step_action.operations)) == (
        "GPU 0, 1: default → exclusive process",
        2,
    )


@pytest.mark.parametrize(
    ("seen", "reason", "said"),
    [
        (settings(GOOD, lost=("GPU 1: gpu_lost",)), "gpu_lost", "not every GPU answers: GPU 1"),
        (
            settings((GOOD[0], Absent("not_applicable", "no such mode"), GOOD[2])),
            "cannot",
            "GPU 0: no such mode",
        ),
        (settings((GOOD[0], Absent("denied", "no"), GOOD[2])), "denied", "GPU 0: no"),
    ],
)
def test_what_is_not_known_or_not_there(seen: GpuSettings, reason: str, said: str) -> None:
    with pytest.raises(NoPlan, match=said) as refused:
        planned(seen)
    assert refused.value.absent.reason == reason


def test_a_node_without_gpus_has_nothing_to_set_unless_some_are_declared() -> None:
    assert planned(None) == []
    node = Node("n1", "n1", 0, gpus=Gpus(8))
    with pytest.raises(NoPlan, match="8 GPUs on n1, and no driver answers"):
        planned(None, node=node)
    assert planned(None, node=node, **earlier("package")) == []


def test_the_tool_has_to_be_there_or_to_come() -> None:
    seen = settings((Persistence(on=False, virtual=False), *GOOD[1:]))
    with pytest.raises(NoPlan, match="there is no nvidia-smi"):
        planned(seen, tool=False)
    assert planned(seen, tool=False, **earlier("package"))[0].operations


def test_whether_the_shell_found_the_tool() -> None:
    assert parse_tool({"code": 0}) is True
    assert parse_tool(Absent("missing_tool")) is False
    assert parse_tool(Absent("hung")) == Absent("hung")


def test_without_a_driver_there_is_no_gpu() -> None:
    assert parse_settings(None) is None
    assert parse_settings(Absent("no_driver")) is None
    assert parse_settings(Absent("hung")) == Absent("hung")
