"""From timelines to verdicts: recorded ones, and told ones for every rule and for its limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterprep.jobs.verify.blame import findings, judge
from clusterprep.jobs.verify.culprits import Fault
from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.schedule import TrialPlan
from clusterprep.jobs.verify.timeline import Timeline, ordered_timeline
from clusterprep.model import Finding, VerifyResult
from tests.jobs.verify.stories import (
    SITUATIONS,
    at_node,
    failed,
    killed,
    make_plan,
    on,
    recorded,
    story,
)

IN_COLLECTIVE = "entered 1"
CASCADE = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:4711."
Named = tuple[str, tuple[str, ...], int | None]


def named(result: VerifyResult) -> list[Named]:
    return [(culprit.kind, culprit.nodes, culprit.rank) for culprit in result.culprits]


def rank(number: int) -> Named:
    return "rank", (f"n{number // 2 + 1}",), number


def node(name: str) -> Named:
    return "node", (name,), None


def finding(timeline: Timeline, check: str) -> Finding:
    found = [finding for finding in findings(judge(timeline)) if finding.check == check]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("path", SITUATIONS, ids=lambda path: path.stem)
def test_recorded_situations(path: Path) -> None:
    told, timeline = recorded(path)
    result, wanted = judge(timeline), told["expect"]
    assert result.verdict == wanted["verdict"]
    assert named(result) == [(kind, tuple(nodes), who) for kind, nodes, who in wanted["culprits"]]
    assert {f.check: f.verdict for f in findings(result)} == wanted["findings"]
    assert len(result.ranks) == result.world_size == 4
    assert all(culprit.evidence and 0 < culprit.confidence < 1 for culprit in result.culprits)


# ---------------------------------------------------------------- who is named

TOLD: dict[str, tuple[Timeline, list[Named]]] = {
    "a killed rank, and peers that err": (
        story(killed(3), *failed((0, 1, 2), CASCADE, "all_reduce"), until=IN_COLLECTIVE),
        [rank(3)],
    ),
    "a killed rank, and peers that abort": (
        story(
            killed(3, at=20.0),
            killed(0, "SIGABRT", 20.1),
            killed(1, "SIGABRT", 19.9),
            until=IN_COLLECTIVE,
        ),
        [rank(3)],
    ),
    "two ranks killed at different times": (
        story(killed(3, at=20.0), killed(0, at=20.9), until=IN_COLLECTIVE),
        [rank(3), rank(0)],
    ),
    "a rank killed while torch is imported": (
        story(killed(1, at=2.0), until="ready", but={1: "started"}),
        [rank(1)],
    ),
    "a crash before others abort": (
        story(killed(2, "SIGSEGV", 20.0), killed(0, "SIGABRT", 20.4), until=IN_COLLECTIVE),
        [rank(2)],
    ),
    "an end without a word": (
        story(
            on(2, "exit", code=1, asked=False, output="boom"),
            *failed((0, 1), CASCADE, "all_reduce"),
            until=IN_COLLECTIVE,
        ),
        [rank(2)],
    ),
    "ends that we brought about": (story(killed(2, asked=True, at=31.0), until=IN_COLLECTIVE), []),
    "ranks whose agent is gone": (
        story(
            at_node("n2", "lost", heard=15.0, detail="no sign of life"),
            on(2, "exit", code=5, asked=False),
            until=IN_COLLECTIVE,
        ),
        [node("n2")],
    ),
    "a silent node, and peers that abort": (
        story(
            at_node("n2", "lost", 25.0, heard=19.0, detail="x"),
            killed(0, "SIGABRT", 24.0),
            until=IN_COLLECTIVE,
        ),
        [node("n2")],
    ),
    "a stopped rank": (story(on(1, "state", state="stopped"), until=IN_COLLECTIVE), [rank(1)]),
    "a rank under a debugger": (
        story(on(1, "state", state="traced"), until=IN_COLLECTIVE),
        [rank(1)],
    ),
    "a rank that was stopped and went on": (
        story(
            on(1, "state", 20, state="stopped"),
            on(1, "state", 21, state=""),
            until=IN_COLLECTIVE,
            end="overdue",
        ),
        [],
    ),
    "a stopped rank, and peers that time out": (
        story(
            on(1, "state", 11.0, state="stopped"),
            *failed((0, 2, 3), "Timed out waiting", "all_reduce"),
            until=IN_COLLECTIVE,
        ),
        [rank(1)],
    ),
    "a rank stuck in the kernel": (
        story(on(1, "state", state="stuck", where="nv_wait"), until=IN_COLLECTIVE, end="overdue"),
        [rank(1)],
    ),
    "stuck while another was killed": (
        story(on(1, "state", state="stuck", where="nv_wait"), killed(2), until=IN_COLLECTIVE),
        [rank(2)],
    ),
    "no torch on a node": (
        story(
            on(2, "no_torch", 1.5, text="No module"),
            on(3, "no_torch", 1.4, text="No module"),
            until="ready",
            but={2: "started", 3: "started"},
        ),
        [node("n2")],
    ),
    "a torch for CPUs where GPUs are": (
        story(
            on(2, "no_cuda", 3.0, torch="2.6.0+cpu", text="x"), until="ready", but={2: "imported"}
        ),
        [node("n2")],
    ),
    "a node that cannot start ranks": (
        story(
            at_node("n1", "refused", 0.1, no="missing_tool", why="/x: No such file"),
            until="ready",
            but={0: "", 1: ""},
        ),
        [node("n1")],
    ),
    "an import that raises": (
        story(
            *failed((3,), "libcudart.so.12: cannot open", "import", 2.0),
            until="ready",
            but={3: "started"},
        ),
        [rank(3)],
    ),
    "a device that cannot be bound": (
        story(
            *failed((0,), "CUDA error: out of memory", "device", 3.0),
            until="ready",
            but={0: "imported"},
        ),
        [rank(0)],
    ),
    "an import that never ends": (
        story(until="ready", but={2: "started"}, end="overdue"),
        [rank(2)],
    ),
    "a device that never comes up": (
        story(until="ready", but={2: "imported"}, end="overdue"),
        [rank(2)],
    ),
    "the port of the store in use": (
        story(
            *failed(
                (0,), "code: -98, name: EADDRINUSE, message: address already in use", "store", 5.0
            ),
            until="store",
            but=dict.fromkeys(range(4), "ready"),
        ),
        [node("n1")],
    ),
    "words about a port from another rank": (
        story(
            *failed((1,), "EADDRINUSE", "store", 5.0),
            until="met",
            but=dict.fromkeys(range(4), "store"),
            end="overdue",
        ),
        [],
    ),
    "a store that could not be opened": (
        story(
            *failed((0,), "getaddrinfo failed", "store", 5.0),
            until="store",
            but=dict.fromkeys(range(4), "ready"),
        ),
        [node("n1")],
    ),
    "one of three nodes never reaches the store": (
        story(plan=make_plan(3), until="store", but={2: "ready", 3: "ready"}, end="overdue"),
        [node("n2")],
    ),
    "one rank of a node never reaches the store": (
        story(plan=make_plan(3), until="store", but={5: "ready"}, end="overdue"),
        [rank(5)],
    ),
    "only the host reaches the store": (
        story(
            plan=make_plan(3), until="store", but=dict.fromkeys(range(2, 6), "ready"), end="overdue"
        ),
        [node("n1")],
    ),
    "the only other node never reaches the store": (
        story(until="store", but={2: "ready", 3: "ready"}, end="overdue"),
        [("link", ("n2", "n1"), None)],
    ),
    "stuck between the store and the others": (
        story(
            *failed((0,), "Gloo connectFullMesh failed with [10.0.0.3]", "rendezvous"),
            until="store",
            end="overdue",
        ),
        [],
    ),
    "a collective that just does not end": (
        story(
            *failed(range(4), "Timed out waiting 10000ms for recv", "all_reduce"),
            until=IN_COLLECTIVE,
        ),
        [],
    ),
    "wrong sums on one rank": (story(wrong={3: 17}), [rank(3)]),
    "wrong sums on one node": (story(wrong={2: 17, 3: 17}), [node("n2")]),
    "wrong sums on two nodes": (story(plan=make_plan(3), wrong={2: 17, 5: 17}), []),
    "wrong sums everywhere": (story(wrong=dict.fromkeys(range(4), 1)), []),
    "a node that falls silent when all is done": (
        story(at_node("n2", "lost", 31.0, heard=30.0, detail="x")),
        [],
    ),
}


@pytest.mark.parametrize(("timeline", "culprits"), TOLD.values(), ids=TOLD.keys())
def test_the_culprits_of_a_timeline(timeline: Timeline, culprits: list[Named]) -> None:
    result = judge(timeline)
    assert named(result) == culprits
    for finding in findings(result):
        assert finding.verdict == "pass" or finding.reason or finding.remedy
        assert finding.nodes == tuple(
            n.name for n in timeline.plan.nodes if n.name in finding.nodes
        )


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param(
            [at_node("n2", "lost", 25.0, heard=20.0)],
            "n2 fell silent after its ranks had finished",
            id="silent",
        ),
        pytest.param(
            [at_node("n1", "left_over", 25.0, left=[7, 9])],
            "n1: processes [7, 9] could not be ended",
            id="left-over",
        ),
    ],
)
def test_what_follows_a_finished_trial_is_said(extra: list[Event], words: str) -> None:
    result = judge(story(*extra))
    assert (result.verdict, result.message) == ("pass", words)


def test_a_declared_bandwidth_that_was_not_measured_is_a_grave_unknown() -> None:
    row = finding(
        story(plan=make_plan(min_busbw=0.3), until=IN_COLLECTIVE, end="overdue"), "nccl.busbw_multi"
    )
    assert (row.verdict, row.severity, row.nodes) == ("unknown", "error", ("n1", "n2"))


def test_order_of_arrival_is_not_order_of_events() -> None:
    """n2 is heard late; the time of its own clock puts its rank's crash first."""
    late = [
        Event("n2", "exit", 21.5, 3, {"signal": 11, "name": "SIGSEGV", "asked": False}, mono=500.0)
    ]
    steady = [
        Event("n2", "state", 11.0, 3, {"state": ""}, mono=490.0),
        Event("n1", "state", 1.0, 0, {"state": ""}, mono=71.0),
    ]
    prompt = [
        Event("n1", "exit", 21.2, 0, {"signal": 6, "name": "SIGABRT", "asked": False}, mono=91.2)
    ]
    timeline = ordered_timeline(
        make_plan(), [*story(until=IN_COLLECTIVE).events, *prompt, *late, *steady]
    )
    assert named(judge(timeline)) == [rank(3)]


def test_evidence_is_quoted_with_times_and_last_lines() -> None:
    result = judge(
        story(killed(3, output="one\n\ntwo\nthree\nout of memory\n"), until=IN_COLLECTIVE)
    )
    assert result.culprits[0].evidence == (
        "rank 3 ended with SIGKILL at +20.00 s, last heard of: entered all_reduce 1 MiB",
        "«two»",
        "«three»",
        "«out of memory»",
    )
    wrong = judge(story(wrong={3: 17})).culprits[0]
    assert wrong.evidence == (
        "rank 3: 17 wrong elements in all_reduce 1 MiB, first at element 5: 9.0 instead of 10",
    )


def test_a_link_has_two_ends_and_a_direction() -> None:
    (culprit,) = judge(TOLD["the only other node never reaches the store"][0]).culprits
    assert (culprit.source, culprit.target) == ("n2", "n1")


# ---------------------------------------------------------------- what is said of them


@dataclass(frozen=True)
class Why:
    """What stands in the report beside a name.

    How sure, for which check, since when, and what to do.
    """

    confidence: float
    check: str
    at: float
    cause: str
    remedy: str
    evidence: str


# The first culprit of a story, a story for each rule.
WHY = {
    "a killed rank, and peers that err": Why(
        0.97,
        "nccl.hang",
        20.0,
        "the process was killed by SIGKILL",
        "see dmesg -T for the kernel's out-of-memory killer",
        "rank 3 ended with SIGKILL at +20.00 s, last heard of: entered all_reduce 1 MiB",
    ),
    "a crash before others abort": Why(
        0.6,
        "nccl.hang",
        20.0,
        "the process ended with SIGSEGV",
        "read the last lines that it printed",
        "rank 2 ended with SIGSEGV at +20.00 s, last heard of: entered all_reduce 1 MiB",
    ),
    "an end without a word": Why(
        0.85,
        "nccl.hang",
        20.0,
        "the process ended with exit code 1",
        "read the last lines that it printed",
        "rank 2 ended with exit code 1 at +20.00 s, last heard of: entered all_reduce 1 MiB",
    ),
    "ranks whose agent is gone": Why(
        0.95,
        "nccl.hang",
        15.0,
        "the node fell silent",
        "look at the node's console: is it up, is its network, does sshd run?",
        "last sign of life at +15.00 s, given up at +20.00 s: «no sign of life»",
    ),
    "a silent node, and peers that abort": Why(
        0.95,
        "nccl.hang",
        19.0,
        "the node fell silent",
        "look at the node's console: is it up, is its network, does sshd run?",
        "last sign of life at +19.00 s, given up at +25.00 s: «x»",
    ),
    "a stopped rank": Why(
        0.97,
        "nccl.hang",
        20.0,
        "the process is stopped by a signal (state T)",
        "let the process go on (kill -CONT), and find who stops it",
        "rank 1 is stopped since +20.00 s, last heard of: entered all_reduce 1 MiB",
    ),
    "a rank under a debugger": Why(
        0.97,
        "nccl.hang",
        20.0,
        "the process is stopped by a debugger (state t)",
        "let the process go on (kill -CONT), and find who stops it",
        "rank 1 is traced since +20.00 s, last heard of: entered all_reduce 1 MiB",
    ),
    "a rank stuck in the kernel": Why(
        0.75,
        "nccl.hang",
        20.0,
        "the process is stuck in the kernel (state D)",
        "see dmesg -T for the driver or file system that it waits for",
        "rank 1 waits in nv_wait since +20.00 s, last heard of: entered all_reduce 1 MiB",
    ),
    "no torch on a node": Why(
        0.99,
        "torch.version",
        1.4,
        "/usr/bin/python3 has no torch",
        "install the job's torch for /usr/bin/python3, or correct python in the inventory",
        "rank 3: «No module»",
    ),
    "a torch for CPUs where GPUs are": Why(
        0.99,
        "torch.version",
        3.0,
        "torch 2.6.0+cpu of /usr/bin/python3 is a build without CUDA",
        "install the job's torch for /usr/bin/python3, or correct python in the inventory",
        "rank 2: «x»",
    ),
    "a node that cannot start ranks": Why(
        0.99,
        "nccl.hang",
        0.1,
        "no rank can be started: /x: No such file",
        "correct python and job_user of this node in the inventory",
        "n1 answered missing_tool: «/x: No such file»",
    ),
    "an import that raises": Why(
        0.95,
        "nccl.hang",
        2.0,
        "RuntimeError while importing torch",
        "do the same with this python as job_user on this node",
        "rank 3: «libcudart.so.12: cannot open»",
    ),
    "a device that cannot be bound": Why(
        0.95,
        "nccl.hang",
        3.0,
        "RuntimeError while binding its device",
        "do the same with this python as job_user on this node",
        "rank 0: «CUDA error: out of memory»",
    ),
    "an import that never ends": Why(
        0.8,
        "nccl.hang",
        30.0,
        "torch was not imported in time",
        "time the import of torch on this node; a slow file system is the usual reason",
        "rank 2: last heard of: started",
    ),
    "a device that never comes up": Why(
        0.8,
        "nccl.hang",
        30.0,
        "torch was imported, and the device did not come up in time",
        "look whether nvidia-smi answers on this node and how long it takes; without persistence "
        "mode the driver wakes the GPUs each time",
        "rank 2: last heard of: imported",
    ),
    "the port of the store in use": Why(
        0.98,
        "net.ports",
        5.0,
        "port 29500 is already in use",
        "ss -ltnp 'sport = :29500'",
        "rank 0: «code: -98, name: EADDRINUSE, message: address already in use»",
    ),
    "a store that could not be opened": Why(
        0.8,
        "nccl.hang",
        30.0,
        "the store at 10.0.0.1:29500 could not be opened",
        "check that 10.0.0.1 is an address of n1 and resolves there",
        "rank 0: «getaddrinfo failed»",
    ),
    "one of three nodes never reaches the store": Why(
        0.8,
        "nccl.hang",
        30.0,
        "the store at 10.0.0.1:29500 was not reached, though others reached it",
        "check the way from this node to 10.0.0.1:29500",
        "rank 2: last heard of: ready",
    ),
    "only the host reaches the store": Why(
        0.8,
        "nccl.hang",
        30.0,
        "the store at 10.0.0.1:29500 was reached from no other node",
        "open port 29500 on n1, and check that 10.0.0.1 is its address",
        "rank 2: last heard of: ready",
    ),
    "the only other node never reaches the store": Why(
        0.7,
        "nccl.hang",
        30.0,
        "the store at 10.0.0.1:29500 was reached from no other node",
        "open port 29500 on n1, and check that 10.0.0.1 is its address",
        "rank 2: last heard of: ready",
    ),
    "wrong sums on one rank": Why(
        0.7,
        "nccl.correct",
        12.003,
        "results are wrong here and right elsewhere",
        "test the device and its memory, PCIe link and network card; look at their error counters",
        "rank 3: 17 wrong elements in all_reduce 1 MiB, first at element 5: 9.0 instead of 10",
    ),
    "wrong sums on one node": Why(
        0.7,
        "nccl.correct",
        12.002,
        "results are wrong here and right elsewhere",
        "test the device and its memory, PCIe link and network card; look at their error counters",
        "rank 2: 17 wrong elements in all_reduce 1 MiB, first at element 5: 9.0 instead of 10",
    ),
}


@pytest.mark.parametrize(("name", "why"), WHY.items(), ids=WHY.keys())
def test_the_reason_why_a_culprit_is_named(name: str, why: Why) -> None:
    first = judge(TOLD[name][0]).culprits[0]
    assert isinstance(first, Fault)
    assert round(first.at, 3) == why.at
    told = (first.confidence, first.check, first.cause, first.remedy, first.evidence[0])
    assert told == (why.confidence, why.check, why.cause, why.remedy, why.evidence)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("SIGKILL", "see dmesg -T for the kernel's out-of-memory killer"),
        ("SIGTERM", "find who sends SIGTERM"),
    ],
)
def test_only_a_sigkill_may_be_that_of_the_kernel(name: str, remedy: str) -> None:
    (first,) = judge(story(killed(3, name), until=IN_COLLECTIVE)).culprits
    assert isinstance(first, Fault)
    assert (first.cause, first.remedy) == (f"the process was killed by {name}", remedy)


def test_a_crash_that_others_follow_is_less_certain_than_one_alone() -> None:
    follows, alone = (killed(0, "SIGABRT", at) for at in (21.0, 21.01))
    both = (
        judge(story(killed(2, "SIGSEGV", 20.0), late, until=IN_COLLECTIVE))
        for late in (follows, alone)
    )
    assert [result.culprits[0].confidence for result in both] == [0.6, 0.85]


# ---------------------------------------------------------------- what the report holds


def test_a_stage_lists_who_had_arrived_and_who_is_missing() -> None:
    result = judge(
        story(plan=make_plan(3), until="store", but={2: "ready", 3: "ready"}, end="overdue")
    )
    start, rendezvous = result.stages
    assert (start.name, start.verdict, start.missing) == ("start", "pass", ())
    assert (rendezvous.name, rendezvous.verdict) == ("rendezvous", "fail")
    assert (rendezvous.arrived, rendezvous.missing) == ((0, 1, 4, 5), (2, 3))
    assert rendezvous.seconds == pytest.approx(26.5)
    assert "4 of 6 ranks had arrived, rank [2-3] on n2 had not" in result.message


def test_what_proves_nothing_is_said_so_and_lists_everybody() -> None:
    timeline = TOLD["a collective that just does not end"][0]
    result = judge(timeline)
    assert result.message.endswith("no evidence names a culprit")
    assert result.stages[-1].arrived == (0, 1, 2, 3)
    assert finding(timeline, "nccl.hang").nodes == ("n1", "n2")
    assert [row.last_event for row in result.ranks] == ["error in all_reduce"] * 4


def test_collectives_take_the_slowest_rank_and_the_formulas_of_nccl_tests() -> None:
    small, large = judge(story()).collectives
    assert (small.bytes, large.bytes) == (8, 1 << 20)
    assert large.seconds == 0.004
    assert large.algbw_gbs == pytest.approx(2**20 / 0.004 / 1e9)
    assert large.busbw_gbs == pytest.approx(large.algbw_gbs * 2 * 3 / 4)


def test_a_collective_that_not_all_left_has_no_time() -> None:
    result = judge(story(until="left 1", but={2: "warmed 1"}, end="overdue"))
    assert [row.bytes for row in result.collectives] == [8]
    assert result.stages[-1].verdict == "fail"


def test_one_rank_alone_moves_nothing_over_a_bus() -> None:
    result = judge(story(plan=make_plan(1, 1)))
    assert result.verdict == "pass"
    assert result.collectives[-1].busbw_gbs == 0


def test_wrong_data_fails_its_stage_and_the_verdict() -> None:
    timeline = story(wrong={3: 17, 2: 4})
    result = judge(timeline)
    assert result.verdict == "fail"
    failed = [stage.name for stage in result.stages if stage.verdict == "fail"]
    assert failed == ["correctness"]  # how fast wrong sums came is known all the same
    assert result.collectives[-1].wrong == 21
    assert result.message == "wrong results on ranks [2-3]"
    assert finding(timeline, "nccl.hang").verdict == "pass"
    assert (finding(timeline, "nccl.correct").verdict, finding(timeline, "nccl.correct").nodes) == (
        "fail",
        ("n2",),
    )


def test_wrong_data_that_cannot_be_placed_still_fails() -> None:
    wrong = finding(TOLD["wrong sums on two nodes"][0], "nccl.correct")
    assert (wrong.verdict, wrong.nodes) == ("fail", ("n2", "n3"))


@pytest.mark.parametrize(("least", "verdict"), [(0.3, "pass"), (0.5, "fail")])
def test_the_declared_bandwidth_is_a_limit(least: float, verdict: str) -> None:
    timeline = story(plan=make_plan(min_busbw=least))  # 0.393 GB/s
    speed = finding(timeline, "nccl.busbw_multi")
    assert (speed.verdict, speed.severity, speed.wanted) == (verdict, "error", f"≥ {least} GB/s")
    assert judge(timeline).verdict == verdict


def test_bandwidth_is_unknown_when_the_largest_size_was_not_reached() -> None:
    timeline = story(plan=make_plan(min_busbw=1.0), until=IN_COLLECTIVE, end="overdue")
    assert finding(timeline, "nccl.busbw_multi").verdict == "unknown"


def test_same_faults_of_several_ranks_are_one_finding() -> None:
    hang = finding(story(killed(0), killed(3), until=IN_COLLECTIVE), "nccl.hang")
    assert hang.nodes == ("n1", "n2")
    assert hang.message == "rank [0,3] on n[1-2]: the process was killed by SIGKILL"
    assert "out-of-memory" in hang.remedy


def test_no_torch_at_all_is_unknown_and_not_a_failure() -> None:
    bare = [on(rank, "no_torch", 1.5, text="No module named 'torch'") for rank in range(4)]
    timeline = story(*bare, until="started")
    assert judge(timeline).verdict == "unknown"
    torch = finding(timeline, "torch.version")
    assert (torch.verdict, torch.severity, torch.reason, torch.nodes) == (
        "unknown",
        "error",
        "missing_tool",
        ("n1", "n2"),
    )


def test_processes_that_did_not_die_are_told() -> None:
    result = judge(
        story(killed(3), at_node("n2", "left_over", 32.0, left=[4711]), until=IN_COLLECTIVE)
    )
    assert "n2: processes [4711] could not be ended" in result.message


def test_a_gpu_is_told_with_its_rank() -> None:
    gpu = {"uuid": "GPU-1", "index": 3, "pci": "0000:17:00.0", "numa": None}
    timeline = story(on(0, "ready", 2.9, gpu=gpu))
    row = judge(timeline).ranks[0]
    assert row.gpu is not None
    assert (row.gpu.uuid, row.gpu.index, row.gpu.pci, row.gpu.numa) == (
        "GPU-1",
        3,
        "0000:17:00.0",
        None,
    )


def test_a_result_from_elsewhere_has_no_findings() -> None:
    plain: dict[str, Any] = {
        "verdict": "pass",
        "backend": "gloo",
        "world_size": 1,
        "nproc_per_node": 1,
    }
    with pytest.raises(TypeError):
        findings(VerifyResult(**plain, rendezvous="h:1"))


def test_thousands_of_ranks_are_judged_in_no_time() -> None:
    plan: TrialPlan = make_plan(512, 8)
    result = judge(
        story(
            Event("n9", "exit", 20.0, 64, {"signal": 9, "name": "SIGKILL"}),
            plan=plan,
            until=IN_COLLECTIVE,
        )
    )
    assert named(result) == [("rank", ("n9",), 64)]
