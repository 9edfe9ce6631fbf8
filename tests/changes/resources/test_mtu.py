"""The MTU of an interface: set, set back, and left alone where it is as wanted."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.resources import NoPlan
from clusterprep.changes.resources.mtu import RESOURCE, parse_mtu
from tests.changes.resources.planned import commands, step_actions

PARAMS = {"interface": "eth0", "size": "9000"}


def planned(present: int | None) -> Any:
    (action,) = step_actions(RESOURCE, PARAMS, {"mtu:eth0": present})
    return action


def test_it_is_set_and_set_back() -> None:
    action = planned(1500)
    assert commands(action) == ["ip link set dev eth0 mtu 9000"]
    (run,) = action.operations
    assert [undo.argv[-1] for undo in run.undo] == ["1500"]
    assert action.diff == "1500 → 9000, until the network is configured anew"
    assert (planned(9000).action, planned(9000).diff) == ("none", "")


def test_an_interface_that_is_not_there_is_refused() -> None:
    with pytest.raises(NoPlan, match="no interface eth0"):
        planned(None)


@pytest.mark.parametrize(("text", "mtu"), [("1500\n", 1500), (None, None)])
def test_what_the_kernel_says(text: str | None, mtu: int | None) -> None:
    assert parse_mtu(text) == mtu


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"interface": "-x", "size": "9000"}, "interface"),
        ({"interface": "../a", "size": "9000"}, "interface"),
        ({"interface": "eth0", "size": "67"}, "size"),
        ({"interface": "eth0", "size": "65536"}, "size"),
        ({"interface": "eth0", "size": "many"}, "size"),
    ],
)
def test_wrong_parameters(params: dict[str, str], key: str) -> None:
    assert [name for name, _ in RESOURCE.wrong(params)] == [key]
