"""`diagnose` of what `launch` leaves in its folder: a crash, a segfault, a hang, and a success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterprep.jobs.diagnose.command import diagnose
from clusterprep.jobs.diagnose.model import Diagnosis
from clusterprep.jobs.launch.command import program_of
from clusterprep.jobs.launch.display import Source
from clusterprep.jobs.launch.logs import Logs
from clusterprep.jobs.launch.outcome import LaunchRecord, judge
from clusterprep.jobs.launch.plan import LaunchPlan, LaunchRequest, plan_launch
from clusterprep.jobs.launch.summary import summary_lines
from clusterprep.jobs.verify.events import Event
from clusterprep.model import Node
from clusterprep.reports.diagnosis import render

ENDED_TORCHRUN = """\
W1123 05:06:08.000000 12 torch/distributed/elastic/agent/server/api.py:719] Received 15 death \
signal, shutting down workers
Traceback (most recent call last):
  File "/opt/env/lib/python3.11/site-packages/torch/distributed/run.py", line 896, in <module>
    main()
torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 15"""
SEGFAULT = """\
E1123 05:06:07.000000 14 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: \
-11) local_rank: 0 (pid: 71) of binary: /opt/env/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"""
CRASH = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 40, in <module>
    main()
RuntimeError: my data is broken"""
GONE = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 44, in <module>
    dist.all_reduce(tensor)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer \
[10.77.0.3]:4711"""
STACK = """\
Fatal Python error: Aborted

Current thread 0x00007f21b1fff700 (most recent call first):
  File "{file}", line {line} in {name}
  File "/home/u/train.py", line 50 in <module>"""


def plan() -> LaunchPlan:
    nodes = [Node(f"n{at}", f"10.77.0.{at}", at - 1, nproc_per_node=2) for at in (1, 2)]
    wanted = LaunchRequest(program_of(["train.py"]), limit=60)
    return plan_launch(nodes, {}, {}, ("10.77.0.1", 29500), wanted)


def end(rank: int, at: float, **data: Any) -> Event:
    return Event(f"n{rank // 2 + 1}", "exit", at, rank, {"asked": False, **data})


def left(
    folder: Path,
    events: Sequence[Event],
    printed: Mapping[Source, str],
    why: Any = "failed",
    **more: Any,
) -> Diagnosis:
    """The diagnosis of all files that a launch of four ranks on two nodes leaves."""
    texts = {source: text.splitlines() for source, text in printed.items()}
    logs = Logs(folder)
    for source, lines in texts.items():
        logs.write(source, lines)
    logs.close()
    record = LaunchRecord(events, texts, why, **more)
    logs.write_summary(summary_lines(judge(plan(), record)))
    found, _ = diagnose([str(path) for path in sorted(folder.glob("*.log"))])
    return found


def top(found: Diagnosis) -> tuple[str, str | None, bool, int]:
    cause = found.causes[0]
    return cause.cause.name, cause.culprit, cause.confidence >= 0.5, found.code


def test_a_crash(tmp_path: Path) -> None:
    printed = {
        ("n1", 0): f"step 1\n{GONE}",
        ("n2", 2): f"step 1\n{CRASH}",
        ("n1", None): ENDED_TORCHRUN,
    }
    found = left(tmp_path, [end(2, 5.0, code=1), end(0, 5.1, code=1)], printed)
    assert top(found) == ("program", "rank 2", True, 1)
    assert "my data is broken" in found.causes[0].message
    assert "train.py:40" in found.causes[0].message
    assert [cause.cause.name for cause in found.causes] == ["program"]


def test_a_segfault(tmp_path: Path) -> None:
    printed = {("n1", 0): "step 1", ("n2", 2): "step 1", ("n1", None): ENDED_TORCHRUN}
    found = left(tmp_path, [end(2, 5.0, signal=11)], {**printed, ("n2", None): SEGFAULT})
    assert top(found) == ("program", "rank 2", True, 1)
    assert "SIGSEGV" in found.causes[0].message


def test_a_rank_that_was_killed(tmp_path: Path) -> None:
    found = left(tmp_path, [end(3, 5.0, signal=9)], {("n2", 3): "step 1"})
    assert top(found) == ("host_oom_kill", "rank 3", False, 1)


def test_an_exit_without_a_word(tmp_path: Path) -> None:
    found = left(tmp_path, [end(3, 5.0, code=3)], {("n2", 3): "step 1"})
    assert top(found) == ("program", "rank 3", True, 1)


def test_a_hang(tmp_path: Path) -> None:
    waits = STACK.format(
        file="/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
        line=2810,
        name="all_reduce",
    )
    other = STACK.format(file="/home/u/data.py", line=12, name="load")
    printed = {("n1", 0): waits, ("n1", 1): waits, ("n2", 2): other, ("n2", 3): waits}
    printed["n1", None] = ENDED_TORCHRUN
    states = dict.fromkeys(range(4), "S")
    found = left(tmp_path, [], printed, "timeout", states=states)
    assert top(found) == ("rank_desync_control_flow", "rank 2", True, 1)
    assert "data.py" in found.causes[0].message


def test_a_rank_that_is_stopped(tmp_path: Path) -> None:
    found = left(tmp_path, [], {("n1", 0): "step 1"}, "timeout", states={1: "T", 0: "S"})
    assert top(found) == ("slow_work_exceeds_timeout", "rank 1", True, 1)


def test_a_success(tmp_path: Path) -> None:
    events = [end(rank, 9.0, code=0) for rank in range(4)]
    printed = {("n1", rank): "step 1\nstep 2" for rank in range(2)}
    found = left(tmp_path, events, printed, "done")
    assert (found.causes, found.code) == ((), 0)
    shown = render(found, "console", color=False, verbose=0, width=100, ascii_only=False)
    assert "PASS" in shown
    assert "UNKNOWN" not in shown


def test_a_summary_tells_how_each_rank_ended() -> None:
    record = LaunchRecord([end(2, 5.0, signal=11), end(0, 5.4, signal=15)], {}, "failed")
    assert summary_lines(judge(plan(), record)) == [
        "clusterprep launch: first failure: rank 2 on n2 was killed by SIGSEGV",
        "clusterprep launch: all other processes were ended by launch",
        "clusterprep launch: rank 0 on n1 was ended with the others",
        "clusterprep launch: rank 1 on n1 was ended with the others",
        "clusterprep launch: rank 2 on n2 was killed by SIGSEGV",
        "clusterprep launch: rank 3 on n2 was ended with the others",
    ]
