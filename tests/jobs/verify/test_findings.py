"""What a trial says besides hangs.

Whose data are wrong, how long the start took, who is slow, who differs.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.jobs.verify.blame import findings, judge
from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.schedule import ScheduledTest, TrialPlan, other_steps, plan_trial
from clusterprep.jobs.verify.speed_records import comparable
from clusterprep.jobs.verify.straggler import MARGIN_ON_CPUS, slow
from clusterprep.jobs.verify.timeline import Timeline, ordered_timeline
from clusterprep.model import EnvSetting, Finding, Node, VerifySettings
from clusterprep.remote.agent.belongings import PIECE, cut, packages, variables
from tests.support.operations import operations

OPS = [
    ScheduledTest("all_reduce", 1 << 20),
    ScheduledTest("broadcast", 1 << 20),
    ScheduledTest("all_gather", 1 << 20),
]
Blame = dict[int, list[list[Any]]]


def plan(
    nodes: int = 4, nproc: int = 2, same_files: tuple[str, ...] = (), **more: Any
) -> TrialPlan:
    of = [
        Node(f"n{i + 1}", f"10.0.0.{i + 1}", i, nproc_per_node=nproc, **more) for i in range(nodes)
    ]
    settings = VerifySettings(sizes=(1 << 20,), same_files=same_files)
    env = {node.name: {"NCCL_SOCKET_IFNAME": f"eth{node.name[1:]}"} for node in of}
    return plan_trial(of, env, ("10.0.0.1", 29500), settings, {}, OPS[1:])


def told(
    wrong: dict[str, Blame] | None = None,
    own: dict[int, float] | None = None,
    holds: dict[int, dict[str, dict[str, Any]]] | None = None,
    refused: str = "",
    met: float = 8.0,
    of: TrialPlan | None = None,
) -> Timeline:
    """A trial that finished.

    `wrong` has by collective what ranks with wrong results accuse others of.
    """
    of = of or plan()
    events = [Event("", "go", 5.0)]
    for rank in of.ranks:

        def add(
            what: str, at: float, number: int = rank.rank, node: str = rank.node, **data: Any
        ) -> None:
            events.append(Event(node, what, at, number, data))

        add("ready", 4.0 + rank.rank / 10)
        mine = {"interpreter": {"CPython": "3.11.7"}, "packages": {"torch": "2.6.0"}, "files": {}}
        mine |= {
            "environment": {"NCCL_SOCKET_IFNAME": f"eth{rank.node[1:]}"},
            **(holds or {}).get(rank.rank, {}),
        }
        for part, items in mine.items():
            add("holds", 3.0, part=part, items=items)
        add("joined", min(met, 7.0))
        add("met", met)
        for number, step in enumerate(of.steps):
            step_told = {"op": step.op, "bytes": step.bytes, "dtype": step.dtype}
            add("entered", 10.0 + number, **step_told)
            blame = (wrong or {}).get(step.op, {}).get(rank.rank)
            result = {"wrong": 0 if blame is None else 7, "first": None, "blame": blame or []}
            if step.op == refused:
                result["refused"] = f"{step.op} is not supported"
            seconds = (own or {}).get(rank.rank, 0.05)
            add("left", 10.5 + number, seconds=0.01, own=seconds, **result, **step_told)
        add("finished", 20.0)
    return ordered_timeline(of, [*events, Event("", "stopping", 30.0)])


def found(timeline: Timeline, check: str) -> list[Finding]:
    return [finding for finding in findings(judge(timeline)) if finding.check == check]


def one(timeline: Timeline, check: str) -> Finding:
    (finding,) = found(timeline, check)
    return finding


def named(timeline: Timeline) -> list[tuple[str, tuple[str, ...], int | None]]:
    return [(culprit.kind, culprit.nodes, culprit.rank) for culprit in judge(timeline).culprits]


# ---------------------------------------------------------------- wrong data


def accused_by_all(rank: int, how: str, but: tuple[int, ...] = ()) -> Blame:
    return {number: [[rank, how]] for number in range(8) if number not in but}


def test_a_sound_trial_passes_every_check() -> None:
    timeline = told()
    verdicts = {finding.check: finding.verdict for finding in findings(judge(timeline))}
    assert set(verdicts.values()) == {"pass"}
    assert {
        "nccl.correct",
        "nccl.broadcast",
        "nccl.allgather",
        "nccl.init_time",
        "nccl.straggler",
    } < set(verdicts)
    assert named(timeline) == []


SHARE = {
    "missing": "what this rank gives is missing",
    "doubled": "what this rank gives is there twice",
    "wrong": "what this rank gives is wrong on all others",
}


@pytest.mark.parametrize("how", SHARE)
def test_a_rank_that_all_others_accuse_is_the_culprit(how: str) -> None:
    timeline = told({"all_reduce": accused_by_all(5, how)})
    assert named(timeline) == [("rank", ("n3",), 5)]
    (culprit,) = judge(timeline).culprits
    assert (culprit.confidence, culprit.cause) == (0.9, f"{SHARE[how]} in all_reduce 1 MiB")
    assert culprit.evidence
    assert one(timeline, "nccl.correct").nodes == ("n3",)
    assert one(timeline, "nccl.broadcast").verdict == "pass"


def test_a_rank_that_finds_its_own_share_right_is_the_culprit_all_the_same() -> None:
    assert named(told({"broadcast": accused_by_all(5, "wrong", but=(5,))})) == [
        ("rank", ("n3",), 5)
    ]


def test_one_culprit_fails_each_check_that_it_spoils() -> None:
    timeline = told(
        {
            "all_reduce": accused_by_all(5, "wrong"),
            "broadcast": accused_by_all(5, "wrong", but=(5,)),
        }
    )
    assert named(timeline) == [("rank", ("n3",), 5)]
    assert one(timeline, "nccl.correct").nodes == one(timeline, "nccl.broadcast").nodes == ("n3",)
    assert "because of n3" in one(timeline, "nccl.broadcast").message


def test_what_only_some_ranks_say_accuses_nobody() -> None:
    """Where a ring carries a piece on.

    What one hop spoils is wrong behind it and right before it.
    """
    timeline = told({"all_gather": accused_by_all(5, "wrong", but=(5, 6, 7))})
    assert named(timeline) == []
    assert one(timeline, "nccl.allgather").nodes == ("n1", "n2", "n3")


def test_when_most_ranks_are_accused_it_is_somebody_elses_doing() -> None:
    wrong = {number: [[other, "wrong"] for other in range(8)] for number in range(8)}
    timeline = told({"all_gather": wrong})
    assert named(timeline) == []
    assert one(timeline, "nccl.allgather").verdict == "fail"


def test_a_rank_that_alone_has_wrong_results_is_named_by_them() -> None:
    wrong = {4: [[other, "wrong"] for other in (1, 2)]}
    timeline = told({"all_gather": wrong})
    assert named(timeline) == [("rank", ("n3",), 4)]
    assert "wrong here and right elsewhere" in judge(timeline).culprits[0].cause


def test_between_two_ranks_a_wrong_piece_accuses_its_receiver_at_most() -> None:
    timeline = told({"all_gather": {1: [[0, "wrong"]]}}, of=plan(2, 1))
    assert named(timeline) == [("rank", ("n2",), 1)]
    assert judge(timeline).culprits[0].confidence < 0.8


@pytest.mark.parametrize(
    "blame", [None, "x", [[99, "wrong"]], [[3, "late"]], [["n1"]], [7], [[[], "wrong"]]]
)
def test_what_a_rank_says_is_not_trusted_blindly(blame: Any) -> None:
    assert named(told({"all_reduce": dict.fromkeys(range(8), blame or [])})) == []


def test_what_the_backend_refuses_is_left_out_and_said() -> None:
    timeline = told(refused="all_gather")
    result, skipped = judge(timeline), one(timeline, "nccl.allgather")
    assert (result.verdict, skipped.verdict) == ("pass", "skip")
    assert result.message == "left out, as gloo does not know it: all_gather 1 MiB"
    assert [row.op for row in result.collectives] == ["all_reduce", "broadcast"]
    assert result.stages[-1].verdict == "pass"
    assert one(timeline, "nccl.correct").verdict == "pass"


def test_the_others_are_tried_once_at_no_more_than_the_largest_size() -> None:
    steps = other_steps(VerifySettings(sizes=(8, 1000)))
    assert {step.bytes for step in steps} == {0, 1000}
    assert all(step.repetitions == 1 for step in steps)
    assert {step.bytes for step in other_steps(VerifySettings(sizes=(1 << 30,)))} == {0, 1 << 20}


A_NODE = 8_500  # operations at most, for eight ranks; 4,200 when this was written


def all_miss_one(nodes: int) -> Timeline:
    of = plan(nodes, 8)
    return told({"all_reduce": {rank.rank: [[64, "missing"]] for rank in of.ranks}}, of=of)


def test_thousands_of_ranks_are_judged() -> None:
    timeline = all_miss_one(512)
    assert named(timeline) == [("rank", ("n9",), 64)]
    assert one(timeline, "nccl.correct").nodes == ("n9",)


def test_the_work_of_judging_grows_with_the_ranks() -> None:
    few, many = all_miss_one(32), all_miss_one(64)
    named(all_miss_one(16))  # what is imported and computed once
    work = operations(lambda: named(few))
    assert work < A_NODE * 32
    assert operations(lambda: named(many)) < 2.2 * work


# ---------------------------------------------------------------- time


@pytest.mark.parametrize(("met", "verdict"), [(59.0, "pass"), (61.0, "fail")])
def test_the_start_may_take_a_minute(met: float, verdict: str) -> None:
    row = one(told(met=met), "nccl.init_time")
    assert (row.verdict, row.severity, row.seen) == (verdict, "warning", f"{met} s")
    assert "start 5.0 s" in row.message
    assert ("ready last: rank 7 on n4 after 4.7 s" in row.message) == (verdict == "fail")


def test_what_is_required_of_the_start_is_an_error() -> None:
    row = one(told(of=plan(require={"nccl.init_time": "5s"})), "nccl.init_time")
    assert (row.verdict, row.severity, row.wanted) == ("fail", "error", "< 5 s")


def test_a_start_without_a_meeting_is_not_known() -> None:
    timeline = ordered_timeline(plan(), [event for event in told().events if event.what != "met"])
    assert one(timeline, "nccl.init_time").verdict == "unknown"


@pytest.mark.parametrize(
    ("own", "late"),
    [
        pytest.param({5: 1.0}, (5,), id="one"),
        pytest.param({4: 1.0, 5: 1.2}, (4, 5), id="a-node"),
        pytest.param({5: 0.5}, (), id="half-a-second"),
        pytest.param(dict.fromkeys(range(5), 2.0), (), id="most-of-them"),
    ],
)
def test_a_straggler_is_far_slower_than_most(own: dict[int, float], late: tuple[int, ...]) -> None:
    row = one(told(own=own), "nccl.straggler")
    assert row.verdict == ("fail" if late else "pass")
    assert row.severity == "warning"
    if late:
        assert row.nodes == ("n3",)
        assert judge(told(own=own)).verdict == "pass"


def on_one_gpu(nodes: int) -> TrialPlan:
    """Every node is this machine and has its only GPU."""
    ids = {
        f"n{number}": {"NCCL_HOSTID": EnvSetting(f"n{number}", "node")}
        for number in range(1, nodes + 1)
    }
    of = [Node(name, "127.0.0.1", 0, transport="local", env=env) for name, env in ids.items()]
    return plan_trial(
        of, {}, ("10.0.0.1", 29500), VerifySettings(sizes=(1 << 20,)), dict.fromkeys(ids, 1)
    )


def test_ranks_that_take_turns_on_a_gpu_have_the_time_that_processors_have() -> None:
    own = {0: 0.05, 1: 0.05, 2: 0.05, 3: 0.3}
    assert one(
        told(own=own, of=replace(on_one_gpu(4), most_sharing=1)), "nccl.straggler"
    ).nodes == ("n4",)
    assert one(told(own=own, of=on_one_gpu(4)), "nccl.straggler").verdict == "pass"


def test_the_report_says_that_nodes_shared_a_gpu() -> None:
    words = "2 nodes share one GPU: their ranks took turns on it, with NCCL_MAX_CTAS=1"
    assert judge(told(of=on_one_gpu(2))).message == words
    assert judge(told()).message == ""


def test_how_fast_they_were_is_no_yardstick_for_later_runs() -> None:
    for made, kept in ((plan(2, 1), True), (on_one_gpu(2), False)):
        assert (comparable(made, judge(told(of=made))) is not None) == kept


def test_noise_makes_no_straggler() -> None:
    """Three repetitions of 50 ms.

    Each held up by other processes for 100 ms on the average and often for much more.
    """
    random.seed(3)
    for _ in range(4000):
        own = {rank: 0.05 + min(random.expovariate(10) for _ in range(3)) for rank in range(8)}
        assert slow(own, MARGIN_ON_CPUS) == ()
    assert slow({**own, 5: 0.75}, MARGIN_ON_CPUS) == (5,)


def test_among_few_ranks_nobody_is_slow() -> None:
    assert one(told(own={1: 5.0}, of=plan(2, 1)), "nccl.straggler").verdict == "skip"


# ---------------------------------------------------------------- what ranks have


def test_the_minority_is_named_with_its_values() -> None:
    row = one(
        told(holds={rank: {"packages": {"torch": "2.6.0", "numpy": "2.1"}} for rank in (4, 5)}),
        "rank.consistency",
    )
    assert (row.verdict, row.severity, row.nodes) == ("fail", "warning", ("n3",))
    assert row.seen == "numpy: none on rank [0-3,6-7], 2.1 on rank [4-5]"


def test_what_is_equal_hides_nothing_that_comes_behind_it() -> None:
    holds = {rank: {"packages": {"torch": "2.6.0", "zlib": "1"}} for rank in (4, 5)}
    row = one(told(holds=holds), "rank.consistency")
    assert (row.nodes, row.seen) == (("n3",), "zlib: none on rank [0-3,6-7], 1 on rank [4-5]")


def test_without_a_majority_all_are_named() -> None:
    holds = {rank: {"packages": {"torch": "2.5.0"}} for rank in range(4)}
    assert one(told(holds=holds), "rank.consistency").nodes == ("n1", "n2", "n3", "n4")


def test_many_differences_on_the_same_node_are_one_finding() -> None:
    holds = {rank: {"packages": {f"p{number}": "1" for number in range(20)}} for rank in (6, 7)}
    row = one(told(holds=holds), "rank.consistency")
    assert row.nodes == ("n4",)
    assert "and 13 more" in row.message


def test_what_was_given_differently_is_no_difference_and_what_was_changed_on_the_way_is() -> None:
    row = one(told(), "rank.consistency")
    assert (row.verdict, row.nodes, row.severity) == ("pass", ("n1", "n2", "n3", "n4"), "warning")
    holds = {rank: {"environment": {"NCCL_SOCKET_IFNAME": "lo"}} for rank in (0, 1)}
    row = one(told(holds=holds), "rank.consistency")
    assert row.nodes == ("n1",)
    assert "NCCL_SOCKET_IFNAME: none on rank [2-7], lo on rank [0-1]" in row.seen
    assert one(told(holds={5: {"environment": {}}}), "rank.consistency").nodes == ("n3",)


def test_files_are_compared_and_what_nobody_can_read_is_not_known() -> None:
    of = plan(same_files=("/data",))
    same = {rank: {"files": {"/data": "sha256 aa, 2 bytes"}} for rank in range(8)}
    assert one(told(holds=same, of=of), "rank.consistency").verdict == "pass"
    other = same | {3: {"files": {"/data": "sha256 ab, 2 bytes"}}}
    assert one(told(holds=other, of=of), "rank.consistency").nodes == ("n2",)
    locked = same | {3: {"files": {"/data": ["Permission denied"]}}}
    row = one(told(holds=locked, of=of), "rank.consistency")
    assert (row.verdict, row.nodes) == ("unknown", ("n2",))
    nowhere = {rank: {"files": {"/data": "there is no such file"}} for rank in range(8)}
    assert one(told(holds=nowhere, of=of), "rank.consistency").verdict == "unknown"


def test_a_rank_that_says_nothing_is_unknown_and_the_others_are_compared() -> None:
    events = [
        e
        for e in told(holds={7: {"packages": {}}}).events
        if not (e.what == "holds" and e.rank == 0)
    ]
    rows = found(ordered_timeline(plan(), events), "rank.consistency")
    assert {(row.verdict, row.nodes) for row in rows} == {("unknown", ("n1",)), ("fail", ("n4",))}


def test_what_is_required_is_an_error() -> None:
    of = plan(require={"rank.consistency": "yes"})
    assert one(told(holds={0: {"packages": {}}}, of=of), "rank.consistency").severity == "error"


def test_packages_are_read_off_their_folders(tmp_path: Any) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for place in (
        first / "Torch_Vision-0.1.dist-info",
        second / "torch.vision-0.2.dist-info",
        second / "x-1.egg-info",
    ):
        place.mkdir(parents=True)
    assert packages([str(first), str(tmp_path / "none"), str(second)]) == {
        "torch-vision": "0.1",
        "x": "1",
    }


def test_of_the_environment_secrets_and_strangers_are_not_told() -> None:
    given = {
        "NCCL_DEBUG": "INFO",
        "HF_TOKEN": "x",
        "NCCL_API_KEY": "y",
        "HOME": "/root",
        "LD_PRELOAD": "z",
    }
    assert variables(given) == {"NCCL_DEBUG": "INFO", "LD_PRELOAD": "z"}


def test_what_is_told_fits_into_reports() -> None:
    items = {f"package-{number}": "1.0" for number in range(2000)} | {"long": "x" * 100_000}
    pieces = list(cut(items))
    assert sum(len(piece) for piece in pieces) == 2001
    assert all(len(str(piece)) < PIECE * 1.5 for piece in pieces)
    assert list(cut({})) == [{}]
