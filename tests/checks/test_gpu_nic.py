"""GPUs near their cards, far from them by accident, and far by design."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.pci import PciTree
from tests.support.fleet import absent, findings, fleet, told
from tests.support.rails import DOWN, card, flat, gpu_at, hca, hcas, nic_at, node, tree

CARD = card("0000:f1:00.0", numa=0)
ONE = (hca("mlx5_0", CARD.at),)


def gpus_on(*numa: int | None) -> PciTree:
    """GPUs on root ports, with one card on NUMA node 0: a server without PCIe switches."""
    boxed = tree(len(numa))
    gpus = (
        replace(gpu, above=gpu.above[:1], numa=n) for gpu, n in zip(boxed.gpus, numa, strict=True)
    )
    return replace(boxed, devices=(*gpus, CARD))


def moved(number: int, numa: int) -> PciTree:
    """One GPU in a slot of its own, beside no card."""
    seen = tree()
    root = "0000:f8:01.0"
    return replace(
        seen,
        devices=tuple(
            replace(d, above=(root,), numa=numa) if d.at == gpu_at(number) else d
            for d in seen.devices
        ),
        bridges={**seen.bridges, root: seen.bridges[seen.devices[0].above[0]]},
    )


def without(number: int) -> dict[str, Any]:
    """A node whose card beside one GPU is gone."""
    seen = tree()
    left = tuple(device for device in seen.devices if device.at != nic_at(number))
    return node(tuple(d for d in hcas() if d.pci != nic_at(number)), replace(seen, devices=left))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param([node()], ["pass"], id="one-each"),
        pytest.param(
            [node(), node(pci=moved(0, 0)), node()],
            ["pass", "fail warning", "pass"],
            id="worse-than-its-peers",
        ),
        pytest.param(
            [node(pci=moved(0, 0))], ["skip not_applicable"], id="same-socket-and-none-to-compare"
        ),
        pytest.param(
            [node(hcas(2), moved(0, 1))],
            ["fail warning"],
            id="across-sockets-while-others-are-near",
        ),
        pytest.param(
            [without(0), node(), node()], ["fail warning", "pass", "pass"], id="card-gone"
        ),
        pytest.param(
            [node(ONE, gpus_on(0, 0, 1, 1))] * 3, ["pass"] * 3, id="one-card-for-all-by-design"
        ),
        pytest.param(
            [node(ONE, gpus_on(0, 0, 1, 1))], ["skip not_applicable"], id="one-card-and-one-node"
        ),
        pytest.param(
            [
                node(ONE, gpus_on(0, 0, 1, 1)),
                node(ONE, gpus_on(1, 0, 1, 1)),
                node(ONE, gpus_on(0, 0, 1, 1)),
            ],
            ["pass", "fail warning", "pass"],
            id="one-gpu-in-another-slot",
        ),
        pytest.param(
            [
                node(ONE, gpus_on(0, 0, 1, 1)),
                node(ONE, gpus_on(0, 0, 1, 0)),
                node(ONE, gpus_on(0, 0, 1, 1)),
            ],
            ["pass"] * 3,
            id="nearer-than-its-peers",
        ),
        pytest.param(
            [node(hcas(2), flat())] * 2, ["skip not_applicable"] * 2, id="virtual-machine"
        ),
        pytest.param(
            [node(ONE, gpus_on(None, None))], ["skip not_applicable"], id="no-numa-nodes-said"
        ),
        pytest.param([node((), tree())], ["skip not_applicable"], id="no-rdma"),
        pytest.param(
            [node((hca("mlx5_2", None),), tree())], ["skip not_applicable"], id="rdma-in-software"
        ),
        pytest.param(
            [node(hcas(1), tree(0, card(nic_at(0))))], ["skip not_applicable"], id="no-gpu"
        ),
        pytest.param(
            [node(), node(hcas(4, mlx5_0=DOWN)), node()],
            ["pass"] * 3,
            id="a-port-down-is-for-ib.state",
        ),
        pytest.param(
            [node(), node(absent("hung")), node()],
            ["pass", "unknown warning hung", "pass"],
            id="hung",
        ),
        pytest.param(
            [node(), node(pci=absent("denied")), node()],
            ["pass", "unknown warning denied", "pass"],
            id="denied",
        ),
    ],
)
def test_distance(nodes: list[Any], expected: list[str]) -> None:
    assert (
        list(
            told(
                fleet(**{f"n{n}": facts for n, facts in enumerate(nodes, 1)}), "numa.gpu_nic"
            ).values()
        )
        == expected
    )


def test_the_gpu_is_named_with_its_distance() -> None:
    seen = fleet(n1=node(), n2=node(pci=moved(0, 0)), n3=node())
    (bad,) = [finding for finding in findings(seen, "numa.gpu_nic") if finding.verdict == "fail"]
    assert (bad.nodes, bad.seen, bad.wanted) == (
        ("n2",),
        "GPU 0000:13:00.0 NODE",
        "PXB, as on the other nodes",
    )
