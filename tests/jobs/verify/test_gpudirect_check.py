"""rdma.gdr_effective: what ranks receive over RDMA, against cards under the switch of their GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.gpu import Model
from clusterprep.facts.pci import PciDevice, PciLink, PciTree
from clusterprep.facts.rdma import Port, RdmaDevice
from clusterprep.jobs.verify.gpudirect_check import gpudirect_findings
from clusterprep.jobs.verify.schedule import TrialPlan, plan_trial
from clusterprep.model import Finding, Fleet, Node, VerifySettings
from clusterprep.remote.agent.nccl_lines import Output
from tests.jobs.verify import nccl_logs
from tests.jobs.verify.stories import on_node, story
from tests.machines import play
from tests.support.fleet import absent, eth, fleet

SLOT = PciLink(16, 16, 32.0, 32.0)
PORT = Port(1, "ACTIVE", "LinkUp", "InfiniBand", 400, 7)
Lines = Mapping[int, list[str]]


def gpu(number: int) -> str:
    return f"0000:{number:02x}:00.0"


def card(number: int) -> str:
    return f"0000:{number + 16:02x}:00.0"


def cluster(near: bool = True, model: str = "NVIDIA H100 80GB HBM3", **facts: Any) -> Fleet:
    """Two nodes with two GPUs and two cards; the first GPU has a card under its switch if `near`.

    The second GPU and the second card hang on root ports of their own.
    """
    bridge = {"0000:aa:00.0": SLOT, "0000:ab:00.0": SLOT, "0000:ac:00.0": SLOT}
    below = "0000:aa:00.0"
    devices = (
        PciDevice(gpu(0), True, "0x10de", SLOT, (below,), 0),
        PciDevice(gpu(1), True, "0x10de", SLOT, ("0000:ab:00.0",), 0),
        PciDevice(card(0), False, "0x15b3", SLOT, (below,) if near else (), 0),
        PciDevice(card(1), False, "0x15b3", SLOT, ("0000:ac:00.0",), 0),
    )
    one = {
        "gpu.model": {number: Model(model, 80 << 30, "9.0") for number in range(2)},
        "pci.tree": PciTree(devices, bridge),
        "rdma.devices": tuple(
            RdmaDevice(f"mlx5_{n}", card(n), None, None, None, (), (PORT,)) for n in range(2)
        ),
        "net.interfaces": (eth("eth0", "10.0.0.1/16"),),
        **facts,
    }
    return fleet(n1=dict(one), n2=dict(one))


def plan(seen: Fleet, env: Mapping[str, str] | None = None, **more: Any) -> TrialPlan:
    of = [
        Node(name, "10.0.0.1", index, nproc_per_node=2, **more)
        for index, name in enumerate(seen.snapshots)
    ]
    settings = VerifySettings(backend="nccl", sizes=(8, 1 << 20), timeout=10.0)
    given = {node.name: dict(env or {}) for node in of}
    return plan_trial(of, given, ("10.0.0.1", 29500), settings, {n.name: 2 for n in of})


def told(seen: Fleet, lines: Lines, of: TrialPlan | None = None, cut: int = 0) -> list[Finding]:
    made = of or plan(seen)
    events = []
    for rank, heard in lines.items():
        identity = {"uuid": "GPU-1", "index": rank % 2, "pci": gpu(rank % 2), "numa": 0}
        events.append(on_node(made, rank, "ready", 1.0, gpu=identity))
        events.append(on_node(made, rank, "nccl", 25.0, lines=heard, cut=cut))
    return list(gpudirect_findings(story(*events, plan=made), seen))


def one(seen: Fleet, lines: Lines, of: TrialPlan | None = None, cut: int = 0) -> Finding:
    (found,) = told(seen, lines, of, cut)
    return found


def hop(source: int, target: int, way: str) -> str:
    return f"Channel 00/0 : {source}[{source % 2}] -> {target}[{target % 2}] {way}"


def ring(direct: str = "/GDRDMA", net: str = "IB") -> dict[int, list[str]]:
    """Two rings, so that both ranks of a node receive from the other one."""
    lines: dict[int, list[str]] = {}
    for rank in range(4):
        before = (rank + 2) % 4
        lines[rank] = [
            f"Using network {net}",
            hop(before, rank, f"[receive] via NET/{net}/0{direct}"),
            hop(rank, before, f"[send] via NET/{net}/0"),
        ]
    return lines


def test_gpudirect_into_near_gpus_passes_however_they_send() -> None:
    found = one(cluster(), ring())
    assert (found.verdict, found.severity, found.nodes) == ("pass", "warning", ("n1", "n2"))
    assert found.message == (
        "GPUDirect RDMA on 1 of 1 connections into GPUs with a card under their switch"
    )


@pytest.mark.parametrize("way", ["", "/Shared"])
def test_through_the_memory_of_the_host_fails_for_the_gpu_that_has_a_card(way: str) -> None:
    found = one(cluster(), ring(way))
    assert (found.verdict, found.nodes) == ("fail", ("n1", "n2"))
    assert found.message.startswith("local rank 0 receives through the host's memory")
    assert found.seen == "GPUDirect RDMA on 0 of 1 connections"
    assert "check INVENTORY --only rdma." in found.remedy


def test_the_gpu_without_a_near_card_is_not_judged() -> None:
    lines = ring()
    for rank in (1, 3):
        lines[rank] = ring("")[rank]
    assert one(cluster(), lines).verdict == "pass"
    found = one(cluster(near=False), ring(""))
    assert (found.verdict, found.reason) == ("skip", "not_applicable")


def test_one_node_of_two_is_named() -> None:
    lines = ring()
    lines[2] = ring("")[2]
    rows = {finding.nodes: finding.verdict for finding in told(cluster(), lines)}
    assert rows == {("n1",): "pass", ("n2",): "fail"}


def test_through_another_ranks_card_counts_as_well() -> None:
    """«NET/IB/0(8)» is PXN: the data leave by the card of another GPU, in NCCL's own words."""
    lines = ring()
    lines[0] = [hop(2, 0, "[receive] via NET/IB/0(1)/GDRDMA/Shared")]
    assert one(cluster(), lines).verdict == "pass"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"NCCL_NET_GDR_LEVEL": "LOC"}, "skip"),
        ({"NCCL_NET_GDR_LEVEL": "0"}, "skip"),
        ({"NCCL_NET_GDR_LEVEL": "PIX"}, "fail"),
    ],
)
def test_what_is_switched_off_is_not_missed(env: dict[str, str], expected: str) -> None:
    seen = cluster()
    assert one(seen, ring(""), plan(seen, env)).verdict == expected


def test_geforce_has_none() -> None:
    found = one(cluster(model="NVIDIA GeForce RTX 4090"), ring(""))
    assert (found.verdict, found.reason) == ("skip", "not_applicable")


@pytest.mark.parametrize("way", ["[receive] via NET/Socket/0", "via P2P/MNNVL"])
def test_other_networks_are_not_judged_here(way: str) -> None:
    lines = {rank: [hop((rank + 2) % 4, rank, way)] for rank in range(4)}
    found = one(cluster(), lines)
    assert (found.verdict, found.reason) == ("skip", "not_applicable")


def test_what_nccl_did_not_say_is_not_known() -> None:
    nothing = one(cluster(), {})
    assert (nothing.verdict, nothing.reason) == ("unknown", "which GPU a rank uses is not known")
    silent = one(cluster(), {rank: ["Using network IB"] for rank in range(4)})
    assert (silent.verdict, silent.severity) == ("unknown", "warning")
    assert one(cluster(), ring(), cut=3).verdict == "unknown"
    assert one(cluster(), ring(""), cut=3).verdict == "fail"


def test_what_is_not_known_of_the_cards_is_not_known_here() -> None:
    found = one(cluster(**{"rdma.devices": absent("denied")}), ring())
    assert (found.verdict, found.reason) == ("unknown", "denied")


def test_a_published_log_with_gpudirect() -> None:
    """NVIDIA/nccl issue 1189: of two nodes with two GPUs each, rank 1's receiving connection."""
    output = Output()
    output.hear(nccl_logs.GPUDIRECT.encode())
    seen = cluster()
    made = plan(seen)
    identity = {"uuid": "GPU-1", "index": 0, "pci": gpu(0), "numa": 0}
    lines = [line.replace("1[1]", "0[0]", 1) for line in output.lines[:1]]
    assert lines == ["Channel 00/0 : 0[0] -> 3[1] [receive] via NET/IB/2/GDRDMA"]
    events = [
        on_node(made, 3, "ready", 1.0, gpu=identity),
        on_node(made, 3, "nccl", 25.0, lines=lines, cut=0),
    ]
    rows = list(gpudirect_findings(story(*events, plan=made), seen))
    assert {finding.nodes: finding.verdict for finding in rows}["n2",] == "pass"


def test_one_node_alone_has_no_network_between() -> None:
    seen = fleet(n1={})
    made = plan(seen)
    assert list(gpudirect_findings(story(plan=made), seen)) == []


def test_a_node_that_requires_it_has_an_error() -> None:
    seen = cluster()
    found = one(seen, ring(""), plan(seen, require={"rdma.gdr_effective": "any"}))
    assert (found.verdict, found.severity) == ("fail", "error")


@pytest.mark.machine
@play.needs_chroot
@pytest.mark.parametrize(
    "kind",
    [
        "hgx-h100-ib",
        "hgx-h100-roce",
        "dgx-h200",
        "hgx-b200",
        "a100-4hdr",
        "h800",
        "azure-nd-h100",
        "p5-efa-vm",
        "gcp-a3-vm",
        "l40s-pcie",
        "v100-dgx1",
        "gh200",
    ],
)
def test_healthy_machines_pass_or_have_no_card_near_a_gpu(kind: str) -> None:
    seen = play.world(kind).fleet
    trees = {node.name: seen.fact(node.name, "pci.tree") for node in seen.reached}
    counts = {name: len(tree.gpus) for name, tree in trees.items()}
    of = [replace(node, nproc_per_node=counts[node.name]) for node in seen.reached]
    settings = VerifySettings(backend="nccl", sizes=(8, 1 << 20), timeout=10.0)
    made = plan_trial(of, {}, ("10.0.0.1", 29500), settings, counts)
    world = made.world_size
    events = []
    for rank in made.ranks:
        address = trees[rank.node].gpus[rank.local_rank].at
        identity = {"uuid": "GPU-1", "index": rank.local_rank, "pci": address, "numa": 0}
        before = (rank.rank - counts[rank.node]) % world
        lines = ["Using network IB", hop(before, rank.rank, "[receive] via NET/IB/0/GDRDMA")]
        events.append(on_node(made, rank.rank, "ready", 1.0, gpu=identity))
        events.append(on_node(made, rank.rank, "nccl", 25.0, lines=lines, cut=0))
    verdicts = {finding.verdict for finding in gpudirect_findings(story(*events, plan=made), seen)}
    assert verdicts in ({"pass"}, {"skip"})
    if kind in ("hgx-h100-ib", "hgx-h100-roce", "dgx-h200", "hgx-b200", "a100-4hdr", "h800"):
        assert verdicts == {"pass"}
