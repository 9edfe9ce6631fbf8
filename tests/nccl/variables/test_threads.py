"""Threads and sockets: for fast networks without RDMA, on all nodes or on none."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.pci import PciTree
from clusterprep.nccl.interfaces import choose
from clusterprep.nccl.variables import Basis
from clusterprep.nccl.variables.threads import COUNTS, derive
from tests.support import rails
from tests.support.fleet import absent, env, eth, fleet, rdma_device
from tests.support.rails import UP, card

EFA = rails.hca("rdmap0s6", None, replace(UP, link_layer="Unspecified"))


def node(
    number: int, speed: int | None = 100_000, vendor: str = "0x8086", **facts: Any
) -> dict[str, Any]:
    return {
        "net.interfaces": (eth("eth0", f"10.0.0.{number}/24", speed=speed),),
        "rdma.devices": (),
        "pci.tree": PciTree((card("0000:61:00.0", vendor=vendor),), {}),
        **facts,
    }


def derived(
    *nodes: dict[str, Any], **options: Any
) -> dict[str, tuple[str | None, tuple[str, ...]]]:
    seen = fleet(**options, **{f"n{number}": facts for number, facts in enumerate(nodes, 1)})
    return {d.name: (d.value, d.nodes) for d in derive(Basis(seen, choose(seen)))}


BOTH = dict.fromkeys(("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"), ("4", ("n1", "n2")))


def test_the_counts_are_within_what_nccl_takes() -> None:
    threads, sockets = (
        int(COUNTS[name]) for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    )
    assert threads <= 16
    assert threads * sockets <= 64


@pytest.mark.parametrize("speed", [100_000, 200_000])
def test_a_fast_network_without_rdma_gets_more_streams(speed: int) -> None:
    assert derived(node(1, speed), node(2, 100_000)) == BOTH


def test_the_reason_names_the_slowest_link() -> None:
    seen = fleet(n1=node(1, 200_000), n2=node(2, 100_000))
    reasons = {d.why for d in derive(Basis(seen, choose(seen)))}
    assert reasons == {
        (
            "sockets carry the training over 100 Gbit/s, "
            "which one stream for each connection does not fill"
        )
    }


def test_rdma_that_the_inventory_switches_on_is_believed_where_none_was_found() -> None:
    assert derived(node(1), node(2), each={"env": env(NCCL_IB_DISABLE="0")}) == {}


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(node(2, 99_999), id="slower"),
        pytest.param(node(2, 25_000), id="slow"),
        pytest.param(node(2, None), id="a-driver-that-does-not-say"),
        pytest.param(node(2, vendor="0x1ae0"), id="gvnic-has-its-own"),
        pytest.param(node(2, vendor="0x1d0f"), id="ena-has-its-own"),
        pytest.param(node(2, **{"rdma.devices": (rdma_device(),)}), id="rdma"),
        pytest.param(node(2, **{"rdma.devices": (EFA,)}), id="rdma-of-a-plug-in"),
        pytest.param(node(2, **{"rdma.devices": absent("hung")}), id="rdma-not-known"),
        pytest.param(node(2, **{"pci.tree": absent("hung")}), id="cards-not-known"),
        pytest.param(node(2, **{"net.interfaces": absent("hung")}), id="interfaces-not-known"),
    ],
)
def test_otherwise_nccls_default_is_right_on_all_nodes(second: dict[str, Any]) -> None:
    assert derived(node(1), second) == {}


@pytest.mark.parametrize("variables", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}], ids=str)
def test_rdma_that_the_inventory_switches_off_on_all_nodes_leaves_sockets(
    variables: dict[str, str],
) -> None:
    fast = {"rdma.devices": (rdma_device(),)}
    off = {"env": env(**variables)}
    assert derived(node(1, **fast), node(2, **fast), each=off) == BOTH
    assert derived(node(1, **fast), node(2, **fast), some={"n1": off}) == {}


def test_a_single_node_needs_no_sockets() -> None:
    assert derived(node(1)) == {}


@pytest.mark.parametrize("name", COUNTS)
def test_declaring_one_thread_variable_decides_both_as_their_product_has_a_limit(name: str) -> None:
    assert derived(node(1), node(2), some={"n2": {"env": env(**{name: "16"})}}) == {}
