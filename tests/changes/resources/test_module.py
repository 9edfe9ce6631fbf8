"""Modules of the kernel: loaded now and at boot, and refused where they cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.resources import NoPlan
from clusterprep.changes.resources.module import HEAD, RESOURCE, conf_path, parse_module
from clusterprep.model import Absent
from clusterprep.model.operations import StepAction, Write
from tests.changes.resources.planned import commands, earlier, step_actions

NAME = "nvidia-peermem"
FILE = f"{HEAD}{NAME}\n".encode()


def planned(there: bool | str, content: bytes | None = None, **more: Any) -> StepAction:
    (step_action,) = step_actions(
        RESOURCE, {"name": NAME}, {f"module:{NAME}": there}, {conf_path(NAME): content}, **more
    )
    return step_action


def answer(out: str = "", err: str = "", code: int = 0) -> dict[str, Any]:
    return {"code": code, "out": out, "err": err}


def test_a_module_is_loaded_now_and_at_boot() -> None:
    step_action = planned(False)
    assert (commands(step_action), step_action.diff) == (
        [f"modprobe -- {NAME}"],
        "loaded, loaded at boot",
    )
    assert step_action.operations[1] == Write(
        f"/etc/modules-load.d/clusterprep-{NAME}.conf", None, FILE
    )
    assert planned(True).diff == "loaded at boot"
    assert planned(False, FILE).diff == "loaded"
    assert planned(True, FILE).action == "none"


def test_what_cannot_be_loaded_is_refused_unless_a_step_before_brings_it() -> None:
    with pytest.raises(NoPlan, match="FATAL: Module x not found"):
        planned("modprobe: FATAL: Module x not found")
    assert planned("FATAL", **earlier("package")).diff == "loaded, loaded at boot"
    with pytest.raises(NoPlan):
        planned("FATAL", **earlier("service"))


@pytest.mark.parametrize(
    ("state", "said", "there"),
    [
        ("live\n", answer(), True),
        ("live\n", Absent("missing_tool"), True),
        (None, answer("builtin ext4\n"), True),
        (None, answer(), True),
        (None, answer("insmod /lib/modules/6.1.0/x.ko \n"), False),
        (None, answer("install /sbin/x\n"), False),
        ("coming\n", answer("insmod /lib/modules/6.1.0/x.ko \n"), False),
        (
            None,
            answer(err="modprobe: FATAL: Module x not found\n", code=1),
            "modprobe: FATAL: Module x not found",
        ),
        (
            None,
            Absent("missing_tool", "modprobe is not there"),
            "missing_tool: modprobe is not there",
        ),
    ],
)
def test_what_the_node_says(state: str | None, said: Any, there: bool | str) -> None:
    assert parse_module(state, said) == there
