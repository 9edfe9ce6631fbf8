"""Looks into containers and at hosts: what is understood of them."""

from __future__ import annotations

import json
import math

import pytest

from clusterprep.facts.container import Inside, parse_inside
from clusterprep.model import Absent
from clusterprep.remote.agent.surroundings import look


def test_a_look_is_understood() -> None:
    row = json.loads(json.dumps(look()))
    found = parse_inside(row, {"surroundings": row})
    assert isinstance(found, Inside)
    assert found.inside == found.host
    assert found.host.limits["stack"] > 0
    assert found.host.interfaces["lo"] == "127.0.0.1"


def test_the_addresses_of_ipv6_are_those_of_global_scope() -> None:
    row = json.loads(json.dumps(look()))
    row["ipv6"] = ["fd000077000000000000000000000001"]
    found = parse_inside(row, {"surroundings": row})
    assert isinstance(found, Inside)
    assert found.host.ipv6 == ("fd00:77::1",)


def test_no_limit_is_infinite() -> None:
    row = json.loads(json.dumps(look()))
    row["limits"]["memlock"] = [-1, -1]
    found = parse_inside(row, {"surroundings": row})
    assert isinstance(found, Inside)
    assert found.host.limits["memlock"] == math.inf


def test_a_container_that_does_not_start_is_an_answer() -> None:
    row = json.loads(json.dumps(look()))
    found = parse_inside(row, Absent("no_image", "image not known"))
    assert isinstance(found, Inside)
    assert (found.inside, found.reason, found.why) == (None, "no_image", "image not known")


def test_a_host_that_is_not_known_is_absent() -> None:
    assert parse_inside(Absent("hung"), {"surroundings": {}}) == Absent("hung")
    assert parse_inside() is None


@pytest.mark.parametrize("broken", [{}, {"limits": {"memlock": 1}}])
def test_what_no_look_returns_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse_inside(json.loads(json.dumps(look())), {"surroundings": broken})
