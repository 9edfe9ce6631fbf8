"""Facts are encoded quickly where that makes no difference, and come back the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from clusterprep import data
from clusterprep.cli.commands import selftest
from clusterprep.facts.storage import Mount
from clusterprep.history import encoding
from clusterprep.history.encoding import LEFT_OUT, encoded, encoded_facts
from clusterprep.model import Absent
from clusterprep.survey import registry

LONGEST = 1 << 20
FLEETS = sorted(path.stem for path in Path(data.__path__[0], "fleets").glob("*.yaml"))


class Plain(Struct, frozen=True):
    name: str
    rate: float | None
    addresses: tuple[IPv6Address, ...] = ()
    counts: Mapping[int, int] = {}


class Within(Struct, frozen=True):
    plain: Plain
    reason: str | Absent


MOUNT = Mount("/", "ext4", "/dev/sda", frozenset("zyxrw"), frozenset({"rw"}), "8:1")
VALUES = [
    None,
    -1.5e300,
    True,
    "\x7f\U0001f600 \u2028 ü",
    "half of a pair: \udcff",
    {"a": {1: [1, 1.0, True, None]}, "b": ()},
    10**19,
    10**25,
    float("inf"),
    Plain("x", float("inf")),
    Plain("x", 400.0, (IPv6Address("fe80::1"),), {3: 4}),
    Within(Plain("x", None), Absent("denied", "why")),
    {"a": Absent("denied")},
    (MOUNT, MOUNT),
    b"\xff text",
    {"a": frozenset("cba")},
]


def slowly(value: Any) -> Any:
    return json.loads(encoding._SLOW.encode(value))


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_the_quick_way_makes_no_difference(value: Any) -> None:
    assert repr(json.loads(encoded(value, LONGEST))) == repr(slowly(value))


@pytest.mark.parametrize("fleet", FLEETS)
def test_nor_for_any_fact_of_recorded_machines(fleet: str) -> None:
    recorded = selftest.recorded_fleet(fleet, tuple(registry.checks().values()))
    for snapshot in recorded.snapshots.values():
        for name, value in snapshot.facts.items():
            assert repr(json.loads(encoded(value, LONGEST))) == repr(slowly(value)), name


def test_facts_of_many_nodes_are_encoded_as_each_alone() -> None:
    """Also where one of them is of another kind than the others."""
    for facts in (VALUES, [MOUNT, (MOUNT,)], ["a", "half of a pair: \udcff"], [1.5, None]):
        assert list(encoded_facts(facts, LONGEST)) == [encoded(fact, LONGEST) for fact in facts]


def test_what_is_too_long_is_left_out() -> None:
    assert json.loads(encoded("x" * 100, 102)) == "x" * 100
    assert json.loads(encoded("x" * 101, 102)) == slowly(LEFT_OUT)
