"""Limits as those read them who set them: PAM at login, systemd for services."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.resources import PlanContext
from clusterprep.changes.resources.limits import (
    FILES,
    ITEMS,
    KEEP,
    LOGINS,
    OTHERS,
    RESOURCE,
    SERVICES,
    USER_SERVICES,
    amount,
)
from clusterprep.model import Fleet, Inventory, Node
from clusterprep.model.files import FileState
from clusterprep.nccl.environment import Environment


def planned(params: dict[str, str], content: bytes | None = None) -> dict[str, Any]:
    node = Node("n1", "n1", 0)
    files = {
        path: FileState(path, content) for path in RESOURCE.paths(params, Inventory("test", ()))
    }
    context = PlanContext(
        Fleet(Inventory("test", (node,)), {}), node, files, {}, Environment((), {})
    )
    return {change.path: change for change in RESOURCE.plan(params, context)}


def test_logins_and_services_get_the_same_limits_each_in_its_units() -> None:
    found = planned({"memlock": "unlimited", "stack": "16M", "nofile": "65536"})
    assert list(found) == [LOGINS, SERVICES, USER_SERVICES]
    assert found[LOGINS].after.decode().splitlines()[1:] == [
        "* - memlock unlimited", "* - stack 16384", "* - nofile 65536",
        "root - memlock unlimited", "root - stack 16384", "root - nofile 65536",
    ]  # fmt: skip
    services = [
        "[Manager]",
        "DefaultLimitMEMLOCK=infinity",
        "DefaultLimitSTACK=16777216",
        "DefaultLimitNOFILE=65536",
    ]
    for path in (SERVICES, USER_SERVICES):
        assert found[path].after.decode().splitlines()[1:] == services
    assert {change.action for change in found.values()} == {"create"}


def test_a_second_time_changes_nothing() -> None:
    params = {"memlock": "64M"}
    for path, change in planned(params).items():
        assert planned(params, change.after)[path].action == "none"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("memlock", "unlimited", None), ("memlock", "8GiB", 8 << 30), ("core", "4096", 4096),
        ("nproc", "unlimited", None), ("nofile", "1048576", 1 << 20), ("msgqueue", "1000", 1000),
    ],
)  # fmt: skip
def test_amounts(name: str, text: str, value: int | None) -> None:
    assert amount(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memlock", "100"), ("memlock", "0"), ("memlock", "-1"), ("memlock", "much"),
        ("nofile", "unlimited"), ("nofile", "64K"), ("nofile", "0"), ("nproc", "-1"),
        ("nproc", "\u0663"), ("nproc", "1e6"), ("core", ""),
    ],
)  # fmt: skip
def test_what_is_no_amount_is_told(name: str, text: str) -> None:
    ((key, message),) = RESOURCE.wrong({name: text})
    assert key == name
    assert message.startswith("expected ")


def test_every_limit_of_the_schema_is_one_here() -> None:
    from clusterprep.inventory.schema import load_schema

    assert set(load_schema("playbook")["items"]["properties"]["limits"]["properties"]) == {
        *ITEMS,
        OTHERS,
    }
    assert len(FILES) == 3


def test_limits_of_an_earlier_run_stay_if_the_step_says_so() -> None:
    earlier = planned({"memlock": "64M", "nofile": "65536", "sigpending": "unlimited"})
    for path, change in earlier.items():
        kept = planned({"nofile": "1048576", OTHERS: KEEP}, change.after)[path]
        both = planned({"memlock": "64M", "nofile": "1048576", "sigpending": "unlimited"})[path]
        assert kept.after == both.after
        gone = planned({"nofile": "1048576"}, change.after)[path]
        assert gone.after == planned({"nofile": "1048576"})[path].after
