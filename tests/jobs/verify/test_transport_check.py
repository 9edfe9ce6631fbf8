"""nccl.transport: what NCCL said of its connections against what the ranks were given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.jobs.verify.blame import findings, judge
from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.evidence import last_words
from clusterprep.jobs.verify.schedule import TrialPlan, plan_trial
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Finding, Node, VerifySettings
from tests.jobs.verify import nccl_logs
from tests.jobs.verify.stories import killed, make_plan, on, story

NAME = "nccl.transport"
RDMA = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "mlx5_0,mlx5_1"}
NO_RDMA = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_DISABLE": "1"}
TWO = "[0]mlx5_0:1/IB [1]mlx5_1:1/IB"
ALL = ("n1", "n2")
Said = Mapping[int, list[str]]


def plan(env: Mapping[str, str] = RDMA, nodes: int = 2, backend: str = "nccl") -> TrialPlan:
    """Two ranks on each node, all with the same environment."""
    of = [Node(f"n{i + 1}", f"10.0.0.{i + 1}", i, nproc_per_node=2) for i in range(nodes)]
    given = VerifySettings(sizes=(8, 1 << 20), timeout=10.0, backend=backend)  # type: ignore[arg-type]
    return plan_trial(
        of, {node.name: env for node in of}, ("10.0.0.1", 29500), given, {n.name: 2 for n in of}
    )


def speaks(
    rank: int, network: str = "IB", devices: str | None = TWO, iface: str = "eth0", world: int = 4
) -> list[str]:
    """A ring, whose next rank is on the other node for odd ones."""
    lines = [f"Bootstrap: Using {iface}:10.0.0.{rank // 2 + 1}<0>"]
    if devices is not None:
        lines.append(
            f"NET/IB : Using {devices} [RO]; OOB eth0:10.0.0.1<0>"
            if devices
            else "NET/IB : No device found."
        )
    lines.append(f"Using network {network}")
    after, direct = (rank + 1) % world, "" if network == "Socket" else "/GDRDMA"
    how = f"[send] via NET/{network}/0{direct}" if rank % 2 else "via P2P/CUMEM"
    return [*lines, f"Channel 00/0 : {rank}[{rank % 2}] -> {after}[{after % 2}] {how}"]


def said(**how: Any) -> dict[int, list[str]]:
    return {rank: speaks(rank, **how) for rank in range(4)}


def told(
    lines: Mapping[int, Any], of: TrialPlan | None = None, *extra: Event, **more: Any
) -> list[Finding]:
    of = of or plan()
    events = [on(rank, "nccl", 25.0, lines=heard, cut=0) for rank, heard in lines.items()]
    timeline = story(*events, *extra, plan=of, **more)
    return [finding for finding in findings(judge(timeline)) if finding.check == NAME]


def one(
    lines: Mapping[int, Any], of: TrialPlan | None = None, *extra: Event, **more: Any
) -> Finding:
    (found,) = told(lines, of, *extra, **more)
    return found


# ---------------------------------------------------------------- as written


def test_rdma_as_written_passes_and_says_how_it_goes() -> None:
    found = one(said())
    assert (found.verdict, found.severity, found.nodes) == ("pass", "warning", ALL)
    assert found.seen == "NET/IB"
    assert (
        found.message
        == "NET/IB between nodes; GPUDirect RDMA on 2 of 2 connections; P2P/CUMEM within nodes"
    )


def test_sockets_pass_where_no_rdma_was_written() -> None:
    found = one(said(network="Socket", devices=None), plan(NO_RDMA))
    assert (found.verdict, found.seen) == ("pass", "NET/Socket")
    assert found.message == "NET/Socket between nodes; P2P/CUMEM within nodes; RDMA was not written"


def test_ranks_of_two_networks_fail_though_nothing_was_written() -> None:
    lines = {**said(), **{rank: speaks(rank, "Socket", "") for rank in (0, 1)}}
    found = told(lines, plan(NO_RDMA))
    assert {finding.verdict for finding in found} == {"fail"}
    assert sorted(finding.seen for finding in found) == ["NET/IB", "NET/Socket"]
    most = {**said(), 0: speaks(0, "Socket", "")}
    (odd,) = [finding for finding in told(most, plan(NO_RDMA)) if finding.verdict == "fail"]
    assert (odd.nodes, odd.seen) == (("n1",), "NET/Socket")
    assert "cannot connect" in odd.message


def test_without_gpudirect_is_told_and_passes() -> None:
    lines = {
        rank: [line.replace("/GDRDMA", "") for line in heard] for rank, heard in said().items()
    }
    found = one(lines)
    assert found.verdict == "pass"
    assert "GPUDirect RDMA on 0 of 2 connections" in found.message


@pytest.mark.parametrize(
    ("env", "how"),
    [
        pytest.param({**RDMA, "NCCL_IB_HCA": "mlx5"}, {}, id="a prefix"),
        pytest.param({**RDMA, "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}, {}, id="ports"),
        pytest.param({**RDMA, "NCCL_IB_HCA": "^mlx5_bond"}, {}, id="all but one"),
        pytest.param(
            {**RDMA, "NCCL_IB_HCA": "^=mlx5_1"},
            {"devices": "[0]mlx5_0:1/IB [1]mlx5_10:1/IB"},
            id="^=",
        ),
        pytest.param(RDMA, {"devices": "[0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB}"}, id="made one of"),
        pytest.param({**RDMA, "NCCL_IB_HCA": "=mlx5_0,mlx5_1,"}, {}, id="a comma too many"),
        pytest.param(
            {**RDMA, "NCCL_IB_HCA": "=mlx5_0"}, {"devices": "[0]mlx5_0_dma:1/IB"}, id="data direct"
        ),
        pytest.param(RDMA, {"network": "IBext_v8"}, id="a plug-in made of IB"),
        pytest.param(RDMA, {"network": "AWS Libfabric", "devices": None}, id="another plug-in"),
        pytest.param({**RDMA, "NCCL_SOCKET_IFNAME": "en,et"}, {}, id="a list of prefixes"),
        pytest.param({**RDMA, "NCCL_SOCKET_IFNAME": "^docker,lo"}, {}, id="what is left out"),
        pytest.param(
            {**RDMA, "NCCL_SOCKET_IFNAME": "e"}, {"iface": "br0"}, id="one letter is none"
        ),
        pytest.param(
            {**RDMA, "NCCL_COMM_ID": "10.0.0.1:1"}, {"iface": "br0"}, id="NCCL_COMM_ID goes before"
        ),
        pytest.param(
            {**RDMA, "NCCL_IB_DISABLE": "1"}, {"network": "Socket", "devices": None}, id="disabled"
        ),
        pytest.param(
            {**RDMA, "NCCL_NET": "socket"},
            {"network": "Socket", "devices": None},
            id="sockets were asked for",
        ),
        pytest.param(
            {}, {"network": "Socket", "devices": "", "iface": "br0"}, id="nothing was written"
        ),
    ],
)
def test_what_nccl_may_do_with_what_was_written(env: dict[str, str], how: dict[str, Any]) -> None:
    assert one(said(**how), plan(env)).verdict == "pass"


def joined_nodes(network: str) -> dict[int, list[str]]:
    """Ranks of two trays of GB200: every hop is NVLink, within a tray too."""
    hop = nccl_logs.MULTI_NODE.splitlines()[1].partition("NCCL INFO ")[2]
    assert hop == "Channel 00/0 : 0[0] -> 1[0] via P2P/MNNVL"
    lines = {}
    for rank in range(4):
        after = (rank + 1) % 4
        of_rank = hop.replace("0[0] -> 1[0]", f"{rank}[{rank % 2}] -> {after}[{after % 2}]")
        lines[rank] = [*speaks(rank, network)[:3], of_rank]
    return lines


def test_nvlink_that_joins_nodes_is_what_goes_between_them() -> None:
    found = one(joined_nodes("IB"))
    assert (found.verdict, found.seen) == ("pass", "P2P/MNNVL")
    assert found.message == "P2P/MNNVL between nodes; P2P/MNNVL within nodes"


def test_sockets_that_carry_nothing_between_joined_nodes_are_no_fault() -> None:
    found = one(joined_nodes("Socket"))
    assert (found.verdict, found.seen) == ("pass", "P2P/MNNVL")


def test_nvls_that_nccl_went_on_without_is_not_told_as_available() -> None:
    lines = {}
    for rank in range(2):
        refused = [line.partition("NCCL INFO ")[2] for line in nccl_logs.NVLS_REFUSED.splitlines()]
        lines[rank] = [*speaks(rank, "Socket", "", world=2)[:3], *refused[1:3]]
    found = one(lines, plan(nodes=1))
    assert "NVLS available" not in found.message
    assert "without NVLS: NCCL says «Failed to bind NVLink SHARP (NVLS) Multicast" in found.message


def test_within_one_node_no_network_is_wanted() -> None:
    lines = {}
    for rank in range(2):
        lines[rank] = [
            *speaks(rank, "Socket", "", world=2)[:3],
            f"Channel 00 : {rank}[0] -> {1 - rank}[1] via SHM/direct",
            "NVLS multicast support is available on dev 0",
        ]
    found = one(lines, plan(nodes=1))
    assert (found.verdict, found.message, found.seen) == (
        "pass",
        *["SHM within nodes, NVLS available"] * 2,
    )


# ---------------------------------------------------------------- not as written


def test_sockets_instead_of_rdma_fail_with_the_pair() -> None:
    found = one(said(network="Socket", devices=""))
    assert (found.verdict, found.severity, found.nodes) == ("fail", "warning", ALL)
    assert (found.seen, found.wanted) == ("NET/Socket between nodes", "RDMA between nodes")
    who = (
        "rank [0-3] on n[1-2]: sockets carry the data between nodes (rank 1 on n1 to rank 2 on n2)"
    )
    assert found.message.startswith(
        f"{who}, though NCCL_IB_HCA=mlx5_0,mlx5_1 was written; NCCL says «NET/IB : No dev"
    )
    assert found.remedy.startswith("clusterprep check INVENTORY --only")


def test_one_slow_connection_among_others_is_enough() -> None:
    lines = said()
    lines[1] = [*lines[1], "Channel 01/0 : 1[1] -> 3[1] [send] via NET/Socket/0"]
    failed = max(told(lines), key=lambda finding: finding.verdict == "fail")
    assert (failed.verdict, failed.nodes) == ("fail", ("n1",))
    assert "(rank 1 on n1 to rank 3 on n2)" in failed.message


@pytest.mark.parametrize("name", ["NCCL_IB_HCA", "NCCL_NET"])
def test_either_variable_asks_for_rdma(name: str) -> None:
    assert (
        one(
            said(network="Socket", devices=""),
            plan({name: "IB" if name == "NCCL_NET" else "mlx5_0"}),
        ).verdict
        == "fail"
    )


def test_a_trial_that_ended_before_it_connected_is_judged_by_its_network() -> None:
    lines = {rank: heard[:-1] for rank, heard in said(network="Socket", devices="").items()}
    assert one(lines, until="store", end="overdue").verdict == "fail"


def test_nodes_without_devices_are_blamed_for_the_sockets_of_all() -> None:
    lines = {rank: speaks(rank, "Socket", TWO if rank < 2 else "") for rank in range(4)}
    failed, unknown = told(lines)
    assert (failed.verdict, failed.nodes) == ("fail", ("n2",))
    assert (unknown.verdict, unknown.nodes) == ("unknown", ("n1",))
    assert "because of nodes without RDMA" in unknown.message


def test_two_letters_of_an_interface_are_a_prefix_that_is_held_to() -> None:
    env = {**RDMA, "NCCL_SOCKET_IFNAME": "et"}
    assert {finding.verdict for finding in told(said(iface="br0"), plan(env))} == {"fail"}


def test_another_interface_than_the_one_written() -> None:
    lines = {rank: speaks(rank, iface="docker0" if rank > 1 else "eth0") for rank in range(4)}
    passed, failed = sorted(told(lines), key=lambda finding: finding.verdict, reverse=True)
    assert (passed.verdict, passed.nodes, failed.verdict, failed.nodes) == (
        "pass",
        ("n1",),
        "fail",
        ("n2",),
    )
    assert (failed.seen, failed.wanted) == ("docker0", "NCCL_SOCKET_IFNAME=eth0")
    assert failed.message.startswith(
        "rank [2-3] on n2: NCCL meets the others through docker0 10.0.0.2"
    )


@pytest.mark.parametrize(
    ("written", "devices", "words"),
    [
        ("mlx5_0,mlx5_1", "[0]mlx5_0:1/IB", "none for mlx5_1"),
        (
            "=mlx5_0,mlx5_1",
            "[0]mlx5_0:1/IB [1]mlx5_10:1/IB",
            "none for mlx5_1; mlx5_10:1, not written",
        ),
        ("mlx5_0:2", "[0]mlx5_0:1/IB", "none for mlx5_0:2; mlx5_0:1, not written"),
        ("^mlx5_1", "[0]mlx5_0:1/IB [1]mlx5_1:1/IB", "mlx5_1:1, not written"),
        ("mlx5_0:1:0:0", "[0]mlx5_1:1:0:0/IB", "none for mlx5_0:1:0:0; mlx5_1:1, not written"),
    ],
)
def test_other_devices_than_those_written(written: str, devices: str, words: str) -> None:
    found = one(said(devices=devices), plan({**RDMA, "NCCL_IB_HCA": written}))
    assert (found.verdict, found.nodes, found.wanted) == ("fail", ALL, f"NCCL_IB_HCA={written}")
    assert found.message.endswith(f"NCCL's RDMA devices are not those written: {words}")


def test_a_variable_that_somebody_else_sets() -> None:
    lines = said()
    lines[3] = ["NCCL_IB_HCA set to mlx5_4", *lines[3]]
    passed, failed = sorted(told(lines), key=lambda finding: finding.verdict, reverse=True)
    assert (passed.nodes, failed.nodes) == (("n1",), ("n2",))
    assert (failed.seen, failed.wanted) == ("NCCL_IB_HCA=mlx5_4", "NCCL_IB_HCA=mlx5_0,mlx5_1")


def test_what_nccl_read_as_written_is_none() -> None:
    lines = {rank: ["NCCL_IB_HCA set to mlx5_0,mlx5_1", *heard] for rank, heard in said().items()}
    assert one(lines).verdict == "pass"


def test_equal_faults_are_one_finding_and_different_ones_are_two() -> None:
    lines = said(iface="docker0", devices="[0]mlx5_0:1/IB")
    assert [(f.verdict, f.nodes, f.seen) for f in told(lines)] == [
        ("fail", ALL, "docker0"),
        ("fail", ALL, "mlx5_0:1"),
    ]


def test_what_a_node_requires_is_an_error_there() -> None:
    of = plan()
    asking = tuple(
        replace(node, require={NAME: "any"}) if node.name == "n2" else node for node in of.nodes
    )
    found = told(said(network="Socket", devices=""), replace(of, nodes=asking))
    assert {finding.nodes: (finding.verdict, finding.severity) for finding in found} == {
        ("n1",): ("fail", "warning"),
        ("n2",): ("fail", "error"),
    }


# ---------------------------------------------------------------- not known


def test_a_rank_without_lines_is_not_known() -> None:
    lines = said()
    del lines[2]
    passed, unknown = sorted(told(lines), key=lambda finding: finding.verdict)
    assert (passed.verdict, passed.nodes) == ("pass", ("n1",))
    assert (unknown.verdict, unknown.nodes, unknown.severity) == ("unknown", ("n2",), "warning")
    assert unknown.reason == "NCCL said nothing of its connections"
    assert unknown.message == f"rank 2 on n2: {unknown.reason}; rank 2 was last heard of: finished"


def test_a_trial_that_did_not_begin_is_not_known() -> None:
    found = one({}, plan(), killed(0, at=2.0), until="ready", but={0: "started"})
    assert (found.verdict, found.nodes) == ("unknown", ALL)


@pytest.mark.parametrize(
    ("drop", "reason"),
    [
        ("Using network", "NCCL did not come to say how it connects"),
        ("Bootstrap", "NCCL did not say which interface it uses"),
        ("; OOB", "NCCL did not list its RDMA devices to the end"),
        ("NET/IB : ", "NCCL did not list its RDMA devices to the end"),
    ],
)
def test_half_of_what_matters_is_not_known(drop: str, reason: str) -> None:
    """Rank 0 has no neighbour on another node, so that its network is known by name alone."""
    lines = said()
    kept = [line.partition("; OOB")[0] for line in lines[0]]
    lines[0] = [line for line in kept if drop == "; OOB" or not line.startswith(drop)]
    if drop == "Using network":
        lines[0].append("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:10.0.0.1<0>")
    if drop == "Bootstrap":
        lines[0] = [line for line in lines[0] if not line.startswith("NET/IB")]
    unknown = max(told(lines), key=lambda finding: finding.verdict)
    assert (unknown.verdict, unknown.nodes, unknown.reason) == ("unknown", ("n1",), reason)


def test_lines_that_found_no_room_are_not_known() -> None:
    events = [on(rank, "nccl", 25.0, lines=heard, cut=rank // 3) for rank, heard in said().items()]
    rows = [f for f in findings(judge(story(*events, plan=plan()))) if f.check == NAME]
    assert {f.nodes: f.verdict for f in rows} == {("n1",): "pass", ("n2",): "unknown"}


def test_a_failure_of_a_node_says_more_than_what_is_not_known_of_it() -> None:
    lines = said(network="Socket", devices="")
    del lines[0]
    assert [finding.verdict for finding in told(lines)] == ["fail"]


@pytest.mark.parametrize(
    "lines", [None, "text", [None, 5, [], {}], ["Channel 00/0 : 0[0] -> 99999[0] via NET/Socket/0"]]
)
def test_strange_events_are_not_known(lines: Any) -> None:
    assert one(dict.fromkeys(range(4), lines)).verdict == "unknown"


def test_hops_to_ranks_that_are_not_there_are_not_looked_at() -> None:
    lines = {
        rank: [*heard, f"Channel 00/0 : {rank}[0] -> 77777[0] [send] via NET/Socket/0"]
        for rank, heard in said().items()
    }
    assert one(lines).verdict == "pass"


# ---------------------------------------------------------------- its place


def test_gloo_says_nothing_of_nccl() -> None:
    assert told(said(), plan(backend="gloo")) == []
    assert told({}, make_plan()) == []


def test_a_required_transport_is_skipped_under_gloo() -> None:
    of = plan(backend="gloo")
    asking = tuple(
        replace(node, require={NAME: "any"}) if node.name == "n2" else node for node in of.nodes
    )
    found = one({}, replace(of, nodes=asking))
    assert (found.verdict, found.nodes, found.reason) == ("skip", ("n2",), "not_applicable")


def test_what_nccl_says_is_not_how_far_a_rank_came() -> None:
    timeline: Timeline = story(on(0, "nccl", 25.0, lines=[], cut=0), plan=plan())
    assert judge(timeline).ranks[0].last_event == "finished"
    assert last_words(timeline, 0) == "last heard of: finished"


def test_a_log_of_real_sockets_fails_where_rdma_was_written() -> None:
    """NVIDIA/nccl issue 952: IPoIB instead of InfiniBand, on two nodes with eight GPUs each."""
    of = [Node(name, name, i, nproc_per_node=8) for i, name in enumerate(("a", "b"))]
    env = {"NCCL_SOCKET_IFNAME": "ib", "NCCL_IB_HCA": "mlx5"}
    made = plan_trial(
        of, {node.name: env for node in of}, ("a", 1), VerifySettings(backend="nccl"), {}
    )
    lines = [line.partition("NCCL INFO ")[2] for line in nccl_logs.SOCKETS.splitlines()]
    event = Event("b", "nccl", 25.0, 15, {"lines": lines, "cut": 0})
    rows = [f for f in findings(judge(story(event, plan=made, until="store"))) if f.check == NAME]
    assert [(f.verdict, f.nodes) for f in rows] == [("fail", ("b",)), ("unknown", ("a",))]
    assert "(rank 15 on b to rank 6 on a)" in rows[0].message
