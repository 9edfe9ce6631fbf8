"""Settings of RoCE interfaces as the kernel and its files tell them."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from clusterprep.facts.roce_qos import RoceQos
from clusterprep.remote.agent.devices import _dcb, dcb_settings
from tests.support.fleet import learned


def row(**fields: Any) -> dict[str, Any]:
    every = {"pfc": 8, "dscp": [[26, 3]], "np": {"3": "1"}, "rp": {"3": "1", "4": "0"}}
    names = {"device": "mlx5_0", "name": "rail0", "trust": None, "tclass": None}
    return {**names, **every, **fields}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, RoceQos("mlx5_0", (3,), (3,), "dscp", {26: 3})),
        ({"pfc": 0, "dscp": []}, RoceQos("mlx5_0", (), (3,), "pcp", {})),
        ({"trust": "pcp"}, RoceQos("mlx5_0", (3,), (3,), "pcp", {26: 3})),
        ({"np": {"3": "0"}}, RoceQos("mlx5_0", (3,), (), "dscp", {26: 3})),
        ({"np": {}, "rp": {}}, RoceQos("mlx5_0", (3,), None, "dscp", {26: 3})),
        ({"tclass": "Global tclass=106"}, RoceQos("mlx5_0", (3,), (3,), "dscp", {26: 3}, 106)),
        ({"tclass": ""}, RoceQos("mlx5_0", (3,), (3,), "dscp", {26: 3})),
        (
            {"pfc": None, "dscp": None, "np": {}, "rp": {}},
            RoceQos("mlx5_0"),
        ),
    ],
)
def test_settings_of_an_interface(fields: dict[str, Any], expected: RoceQos) -> None:
    assert learned("roce.qos", ["ok", [row(**fields)]]) == {"rail0": expected}


@pytest.mark.parametrize(
    "fields", [{"pfc": 256}, {"dscp": [[26, 8]]}, {"rp": {"x": "1"}}, {"tclass": "Global tclass=x"}]
)
def test_what_is_no_priority_is_garbled(fields: dict[str, Any]) -> None:
    assert learned("roce.qos", ["ok", [row(**fields)]]).reason == "garbled"


def attribute(kind: int, value: bytes) -> bytes:
    padded = value + b"\0" * (-len(value) % 4)
    return struct.pack("=HH", 4 + len(value), kind) + padded


def test_the_answer_of_the_kernel() -> None:
    """Composed by linux/dcbnl.h: struct ieee_pfc, and struct dcb_app for each entry."""
    pfc = struct.pack("=BBBxHxx16Q", 8, 0b1000, 0, 0, *[0] * 16)
    apps = b"".join(
        attribute(1, struct.pack("=BBH", selector, priority, protocol))
        for selector, priority, protocol in ((5, 3, 26), (1, 4, 0x8906), (5, 6, 48))
    )
    ieee = attribute(1, b"\0" * 60) + attribute(2, pfc) + attribute(3, apps)
    body = struct.pack("=BBH", 0, 21, 0) + attribute(1, b"rail0\0") + attribute(13, ieee)
    answer = struct.pack("=IHHII", 16 + len(body), 78, 0, 1, 0) + body
    assert dcb_settings(answer) == {"pfc": 0b1000, "dscp": [[26, 3], [48, 6]]}


def test_an_interface_without_such_settings() -> None:
    """The kernel of this machine is asked about its loopback."""
    assert _dcb("lo") is None
    assert _dcb("no-such-name") is None
