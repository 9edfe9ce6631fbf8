"""Which of many ends was the first, who hangs, and what each rank is said to have done."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.jobs.launch.command import program_of
from clusterprep.jobs.launch.outcome import LaunchRecord, judge
from clusterprep.jobs.launch.plan import LaunchPlan, LaunchRequest, plan_launch
from clusterprep.jobs.launch.stacks import awaited_ranks, stack_of
from clusterprep.jobs.launch.stage import missing_scripts
from clusterprep.jobs.launch.torchrun_summary import exit_codes
from clusterprep.jobs.verify.events import Event
from clusterprep.model import LaunchResult, Node


def plan(*, direct: bool = True) -> LaunchPlan:
    nodes = [Node(f"n{at}", f"10.0.0.{at}", at - 1, nproc_per_node=2) for at in (1, 2)]
    return plan_launch(
        nodes, {}, {}, ("10.0.0.1", 29500), LaunchRequest(program_of(["train.py"]), direct=direct)
    )


def end(rank: int, at: float, **data: Any) -> Event:
    return Event(f"n{rank // 2 + 1}", "exit", at, rank, {"asked": False, **data})


def result_of(
    *events: Event, why: Any = "failed", printed: Any = None, **more: Any
) -> LaunchResult:
    return judge(plan(), LaunchRecord(events, printed or {}, why, **more))


def guilty(result: LaunchResult) -> list[int | str | None]:
    return [c.rank if c.kind == "rank" else c.nodes[0] for c in result.culprits]


RAISED, KILLED, TOLD = {"code": 1}, {"signal": 9}, {"signal": 15}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([end(2, 5.0, code=3)], [2]),
        ([end(0, 5.0, **RAISED), end(2, 6.5, code=3)], [0]),  # too late to be the cause
        ([end(0, 5.0, **RAISED), end(2, 5.4, code=3)], [2]),  # who raises has lost a peer
        ([end(0, 5.0, **RAISED), end(1, 5.1, **RAISED), end(3, 5.2, **KILLED)], [3]),
        ([end(0, 5.0, signal=6), end(1, 5.1, signal=11)], [1]),
        ([end(0, 5.0, **TOLD), end(1, 5.3, **RAISED)], [1]),
        ([end(0, 5.0, **TOLD)], [0]),  # the signal came from outside
        ([end(0, 5.0, code=0), end(1, 5.1, code=7)], [1]),
        ([end(0, 5.0, code=1, asked=True)], []),
    ],
)
def test_the_first_end_of_its_own_accord(events: list[Event], expected: list[int]) -> None:
    assert guilty(result_of(*events)) == expected


LOST = "/usr/bin/python3: can't open file '/root/train.py': [Errno 2] No such file or directory"


@pytest.mark.parametrize(
    ("lines", "events", "expected"),
    [
        (LOST, [end(rank, 5.0 + rank / 50, code=2) for rank in (2, 0, 3, 1)], []),
        # On one node alone it is that node's.
        (LOST, [end(rank, 5.0 + rank / 50, code=2) for rank in (2, 3)], [2]),
        # Another end among them is told from theirs.
        (LOST, [*(end(rank, 5.0, code=2) for rank in (0, 1)), end(2, 5.1, **KILLED)], [0]),
        ("", [end(rank, 5.0 + rank / 50, code=2) for rank in (0, 1, 2, 3)], [0]),
    ],
)
def test_no_rank_is_guilty_of_what_all_do_alike(
    lines: str, events: list[Event], expected: list[int]
) -> None:
    printed = {(f"n{rank // 2 + 1}", rank): ["", lines] for rank in range(4)}
    result = result_of(*events, printed=printed)
    assert guilty(result) == expected
    assert result.verdict == "fail"
    assert result.message.startswith("ranks 0-3 failed alike, with exit code 2") is (not expected)


def test_a_lost_node_explains_what_its_peers_said_after_its_last_word() -> None:
    lost = Event(
        "n2",
        "lost",
        12.0,
        None,
        {"reason": "hung", "detail": "no sign of life for 5.1 s", "heard": 6.9},
    )
    assert guilty(result_of(lost, end(0, 8.0, **RAISED))) == ["n2"]
    assert guilty(result_of(lost, end(0, 3.0, **KILLED))) == [0]
    result = result_of(lost, end(0, 8.0, **RAISED))
    assert [row.ended for row in result.ranks] == ["failed", "with-others", "lost", "lost"]


def test_how_each_rank_ended() -> None:
    result = result_of(end(0, 5.0, code=0), end(1, 5.1, code=3), end(2, 5.3, **TOLD))
    assert [(row.ended, row.code, row.signal) for row in result.ranks] == [
        ("finished", 0, None),
        ("failed", 3, None),
        ("with-others", None, "SIGTERM"),
        ("with-others", None, None),
    ]
    assert (result.verdict, result.message) == ("fail", "all other processes were ended")


def test_all_well() -> None:
    result = result_of(*(end(rank, 9.0, code=0) for rank in range(4)), why="done")
    assert (result.verdict, result.culprits, result.message) == ("pass", (), "")


def test_not_all_of_them_well_is_not_well() -> None:
    assert result_of(*(end(rank, 9.0, code=0) for rank in range(3)), why="done").verdict == "fail"


def test_a_node_that_could_not_start_is_told() -> None:
    result = result_of(
        Event("n1", "refused", 0.1, None, {"no": "no_user", "why": "there is no user bob"})
    )
    assert guilty(result) == ["n1"]
    assert [row.ended for row in result.ranks] == ["not-started"] * 2 + ["with-others"] * 2
    assert "there is no user bob" in result.culprits[0].cause


# ---------------------------------------------------------------- torchrun

SUMMARY = """\
E1121 22:20:52 10 torch/distributed/elastic/multiprocessing/api.py:1002] \
failed (exitcode: 3) local_rank: 1 (pid: 12) of
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_22:20:49
  host      : n2
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 11)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_22:20:49
  host      : n2
  rank      : 3 (local_rank: 1)
  exitcode  : 3 (pid: 12)
""".splitlines()


def test_torchruns_summary_has_the_codes() -> None:
    assert exit_codes(SUMMARY, 2) == {3: 3, 2: -15}
    assert exit_codes(SUMMARY[:1], 2) == {3: 3}
    assert exit_codes(["  exitcode  : 3 (pid: 12)", "rank 3 failed"], 2) == {}


def test_ranks_under_torchrun_have_their_own_ends() -> None:
    events = (
        Event("n2", "closed", 4.9, 3),
        Event("n2", "exit", 5.2, None, {"code": 1, "asked": False}),
    )
    result = judge(
        plan(direct=False),
        LaunchRecord(events, {("n2", None): SUMMARY, ("n2", 3): ["step 1", "", "oops "]}, "failed"),
    )
    assert guilty(result) == [3]
    assert (result.culprits[0].cause, result.culprits[0].evidence) == (
        "rank 3 on n2 ended with exit code 3",
        ("step 1", "oops"),
    )
    assert [row.ended for row in result.ranks] == ["with-others"] * 3 + ["failed"]


def test_a_torchrun_that_ends_by_itself_is_its_node() -> None:
    event = Event("n2", "exit", 5.2, None, {"code": 1, "asked": False})
    result = judge(
        plan(direct=False),
        LaunchRecord((event,), {("n2", None): ["No module named torch"]}, "failed"),
    )
    assert (guilty(result), result.culprits[0].evidence) == (["n2"], ("No module named torch",))


# ---------------------------------------------------------------- hangs

LIBRARY = "/opt/venv/lib/python3.11/site-packages/torch"
WAITING = f"""\
Fatal Python error: Aborted

Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f0000000000 (most recent call first):
  File "{LIBRARY}/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "/home/me/train.py", line 21 in step
  File "/home/me/train.py", line 30 in <module>

Extension modules: numpy (total: 1)
""".splitlines()
ELSEWHERE = [
    line.replace("line 21 in step", "line 12 in load")
    for line in WAITING
    if "all_reduce" not in line
]


def test_the_stack_is_that_of_the_main_thread() -> None:
    assert [str(frame) for frame in stack_of(["noise", *WAITING])][1:] == [
        "/home/me/train.py line 21 in step",
        "/home/me/train.py line 30 in <module>",
    ]
    assert stack_of(['  File "a.py", line 1 in f']) == ()  # a traceback, and no dump


def test_ranks_that_the_others_wait_for() -> None:
    waiting, elsewhere = stack_of(WAITING), stack_of(ELSEWHERE)
    assert awaited_ranks({0: waiting, 1: elsewhere, 2: waiting}) == (1,)
    assert awaited_ranks({0: waiting, 1: elsewhere}) == (1,)
    assert awaited_ranks({0: elsewhere, 1: elsewhere, 2: waiting}) == (0, 1)
    assert awaited_ranks({0: waiting, 1: waiting}) == ()
    assert awaited_ranks({0: waiting, 1: ()}) == ()
    assert awaited_ranks({}) == ()


def test_at_the_limit_who_hangs_is_named() -> None:
    printed = {("n1", 0): WAITING, ("n1", 1): WAITING, ("n2", 2): ELSEWHERE, ("n2", 3): WAITING}
    late = [end(rank, 60.2, signal=6) for rank in range(4)]  # of our own asking
    result = result_of(
        *late, why="timeout", printed=printed, states=dict.fromkeys(range(4), "S"), until=60.0
    )
    assert (guilty(result), result.timed_out, result.verdict) == ([2], True, "fail")
    assert (
        "/home/me/train.py line 12 in load, and ranks 0-1,3 are elsewhere"
        in result.culprits[0].cause
    )
    assert {row.ended for row in result.ranks} == {"hanging"}


def test_a_stopped_rank_needs_no_stack() -> None:
    result = result_of(why="timeout", states={0: "S", 1: "T", 2: "S", 3: "S"}, until=60.0)
    assert guilty(result) == [1]
    assert "SIGSTOP" in result.culprits[0].cause


def test_without_an_awaited_rank_no_culprit_is_named() -> None:
    printed = {(f"n{rank // 2 + 1}", rank): WAITING for rank in range(4)}
    result = result_of(
        why="timeout", printed=printed, states=dict.fromkeys(range(4), "S"), until=60.0
    )
    assert (result.culprits, result.verdict) == ((), "unknown")
    assert "no rank stands out" in result.message


@pytest.mark.parametrize(
    ("states", "verdict", "expected", "message"),
    [
        (["there", "there"], None, [], ""),
        (["", "there"], None, [], ""),  # it could not be learned, so launch tries
        (["missing", "missing"], "fail", [], "train.py does not exist in /root on n[1-2]"),
        (["there", "missing"], "fail", ["n2"], "train.py does not exist in /root on n2"),
        (
            ["unreadable", "missing"],
            "fail",
            [],
            (
                "train.py cannot be read by the job's user in /root on n1; "
                "train.py does not exist in /root on n2"
            ),
        ),
    ],
)
def test_a_script_that_is_missing_is_told_before_the_start(
    states: list[str], verdict: str | None, expected: list[str], message: str
) -> None:
    answers = {f"n{at}": {"script": state, "folder": "/root"} for at, state in enumerate(states, 1)}
    result = missing_scripts(plan(), answers)
    if verdict is None:
        assert result is None
        return
    assert result is not None
    assert (result.verdict, [name for c in result.culprits for name in c.nodes]) == (
        verdict,
        expected,
    )
    assert result.message == f"no process was started: {message}"
