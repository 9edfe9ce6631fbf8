"""Flow control and priorities of RoCE ports: alike, unlike, and NCCL's traffic class in them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.environment import Setting
from clusterprep.facts.roce_qos import RoceQos
from tests.support.fleet import absent, env, findings, fleet, told
from tests.support.rails import node, roce

# `mlnx_qos -i` of public dumps shows this table by default: the upper three bits of the DSCP.
BY_UPPER_BITS = {dscp: dscp >> 3 for dscp in range(64)}
LOSSLESS = RoceQos("mlx5_0", (3,), (3,), "dscp", BY_UPPER_BITS)
LOSSY = replace(LOSSLESS, pfc=())


def settings(first: RoceQos = LOSSLESS, others: RoceQos = LOSSLESS) -> dict[str, RoceQos]:
    """The settings of four rails."""
    return {f"rail{n}": replace(first if n == 0 else others, device=f"mlx5_{n}") for n in range(4)}


def seen(*known: Any, tc: str | None = "106", each: Any = None) -> Any:
    own = () if tc is None else (Setting("NCCL_IB_TC", tc),)
    paths = {"ssh command": own, "nccl": ()}
    nodes = {
        f"n{number}": {**roce(number), "roce.qos": one, "env.paths": paths}
        for number, one in enumerate(known, 1)
    }
    return fleet(each=each, **nodes)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param(settings(), "pass", id="alike"),
        pytest.param(settings(LOSSY), "fail warning", id="a-port-without-pfc"),
        pytest.param(settings(replace(LOSSLESS, trust="pcp")), "fail warning", id="trust"),
        pytest.param(settings(replace(LOSSLESS, ecn=())), "fail warning", id="ecn"),
        pytest.param(settings(RoceQos("mlx5_0")), "fail warning", id="one-that-tells-nothing"),
        pytest.param(
            settings(RoceQos("mlx5_0"), RoceQos("mlx5_0")), "skip not_applicable", id="virtual"
        ),
        pytest.param(absent("hung"), "unknown warning hung", id="not-known"),
    ],
)
def test_one_node_of_three(known: Any, expected: str) -> None:
    assert told(seen(settings(), known, settings()), "roce.qos") == {
        "n1": "pass",
        "n2": expected,
        "n3": "pass",
    }


@pytest.mark.parametrize(
    ("own", "tc", "expected"),
    [
        # DSCP 26, which many networks keep for RoCE: traffic class 106 with the marks of ECN.
        pytest.param(LOSSLESS, "106", "pass", id="dscp-26-is-priority-3"),
        pytest.param(LOSSLESS, "96", "pass", id="dscp-24-is-priority-3"),
        pytest.param(LOSSLESS, None, "fail warning", id="class-0-by-default"),
        pytest.param(LOSSLESS, "160", "fail warning", id="dscp-40-is-priority-5"),
        pytest.param(replace(LOSSLESS, pfc=(5,)), "160", "pass", id="priority-5-is-lossless"),
        pytest.param(
            replace(LOSSLESS, mapped={**BY_UPPER_BITS, 30: 6}), "120", "fail warning", id="mapped"
        ),
        pytest.param(replace(LOSSLESS, tclass=106), None, "pass", id="forced-by-the-driver"),
        pytest.param(LOSSY, None, "pass", id="a-lossy-network"),
        pytest.param(replace(LOSSLESS, trust="pcp"), None, "pass", id="by-vlan"),
        pytest.param(LOSSLESS, "high", "pass", id="no-number"),
    ],
)
def test_the_traffic_class_of_nccl(own: RoceQos, tc: str | None, expected: str) -> None:
    known = settings(own, own)
    assert told(seen(known, known, tc=tc), "roce.qos") == {"n1": expected, "n2": expected}


def test_a_declared_class_counts_before_that_of_the_node() -> None:
    known = settings()
    declared = {"env": env(NCCL_IB_TC="106")}
    assert told(seen(known, tc=None, each=declared), "roce.qos") == {"n1": "pass"}
    (found,) = findings(seen(known, tc=None), "roce.qos")
    assert "priority 0, flow control on 3" in found.seen
    assert "NCCL_IB_TC: 96" in found.remedy


def test_ports_that_are_no_roce() -> None:
    facts = {**node(), "roce.qos": {}, "env.paths": {}}
    assert told(fleet(n1=facts), "roce.qos") == {"n1": "skip not_applicable"}
