"""Tasks in D that hang and those that do not, and load before the job."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.proc import parse_part
from clusterprep.facts.tasks import Load, StuckTask, Tasks, Zombie
from tests.support.fleet import absent, findings, fleet, told


def stuck(pid: int, comm: str, wchan: str = "", children: int = 0, **fields: Any) -> StuckTask:
    """A task that has waited for an hour."""
    return StuckTask(pid, comm, wchan, children, **{"age": 9000.0, "waited": 3600.0, **fields})


NFS = stuck(4711, "python3", "rpc_wait_bit_killable")
DRIVER = stuck(815, "nvidia-smi")
KERNEL = stuck(77, "nv_queue", "msleep", kernel=True)
VFORK = stuck(99, "make", "kernel_clone", children=1)
PARENT = stuck(98, "sh", children=2)


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        pytest.param((), "pass", id="none"),
        pytest.param((NFS,), "fail warning", id="a-file-server"),
        pytest.param((DRIVER,), "fail warning", id="a-driver-and-no-view-of-where"),
        pytest.param((KERNEL,), "pass", id="a-thread-of-the-kernel"),
        pytest.param((VFORK,), "pass", id="a-parent-after-vfork"),
        pytest.param(
            (stuck(99, "make", "wait_for_vfork_done", children=1),),
            "pass",
            id="by-its-newer-name",
        ),
        pytest.param(
            (stuck(99, "make", "kernel_clone", children=0),),
            "fail warning",
            id="vfork-without-a-child",
        ),
        pytest.param(
            (stuck(99, "make", "nfs_wait", children=4),),
            "fail warning",
            id="a-parent-that-hangs",
        ),
        pytest.param((PARENT,), "unknown warning denied", id="a-parent-and-no-view-of-where"),
        pytest.param((PARENT, NFS), "fail warning", id="one-is-sure"),
        pytest.param((KERNEL, VFORK), "pass", id="both-harmless"),
    ],
)
def test_what_hangs(tasks: tuple[StuckTask, ...], expected: str) -> None:
    assert told(fleet(n1={"proc.tasks": Tasks(0, 9, tasks, seconds=1.0)}), "proc.dstate") == {
        "n1": expected
    }


UNDATED = "unknown warning no /proc/PID/sched, or its CPU is not one of ours"


@pytest.mark.parametrize(
    ("age", "waited", "expected"),
    [
        pytest.param(9000.0, 301.0, "fail warning", id="long"),
        pytest.param(9000.0, 300.0, "pass", id="not-yet"),
        pytest.param(9000.0, 2.0, "pass", id="a-disk-that-works"),
        pytest.param(200.0, None, "pass", id="too-young-to-have-waited-long"),
        pytest.param(9000.0, None, UNDATED, id="not-shown"),
    ],
)
def test_what_has_waited_how_long(age: float, waited: float | None, expected: str) -> None:
    task = stuck(4711, "python3", "rpc_wait_bit_killable", age=age, waited=waited)
    assert told(fleet(n1={"proc.tasks": Tasks(0, 9, (task,), seconds=1.0)}), "proc.dstate") == {
        "n1": expected
    }
    left = Zombie(4712, "python3", 4711, "torchrun", age, waited)
    assert told(fleet(n1={"proc.tasks": Tasks(0, 9, zombies=(left,))}), "proc.zombie") == {
        "n1": expected
    }


def test_zombies_are_named_with_their_parents() -> None:
    left = tuple(
        Zombie(4712 + rank, "python3", 4711, "torchrun", 90000.0, 7200.0) for rank in range(8)
    )
    facts = {"proc.tasks": Tasks(0, 9, zombies=left, more_zombies=2)}
    (bad,) = findings(fleet(n1=facts), "proc.zombie")
    assert bad.seen.startswith("python3 (4712) of torchrun (4711) for 2 h, ")
    assert bad.seen.endswith(", 5 more")
    assert bad.remedy.startswith("ps -o pid,ppid,user,stat,etime,args -p 4711")


def test_a_zombie_of_a_parent_outside_the_container() -> None:
    """Its parent is shown as process 0, which no command on the node can look at."""
    left = Zombie(389, "python", 0, "", 90000.0, None)
    (open_,) = findings(fleet(n1={"proc.tasks": Tasks(0, 9, zombies=(left,))}), "proc.zombie")
    assert open_.seen.startswith("python (389) of a parent outside this container")
    assert open_.remedy.startswith("what started them from outside")


def test_a_zombie_that_ended_just_now_is_said() -> None:
    left = Zombie(4712, "python3", 4711, "torchrun", 9000.0, 3.0)
    (good,) = findings(fleet(n1={"proc.tasks": Tasks(0, 9, zombies=(left,))}), "proc.zombie")
    assert (good.verdict, good.seen) == ("pass", "1 that ended just now")


@pytest.mark.parametrize("reason", ["denied", "hung", "garbled", "timed_out", "not_reached"])
@pytest.mark.parametrize(
    ("check", "fact"),
    [
        ("proc.dstate", "proc.tasks"),
        ("proc.zombie", "proc.tasks"),
        ("proc.load", "proc.load"),
        ("proc.load", "proc.cores"),
    ],
)
def test_not_knowing(check: str, fact: str, reason: str) -> None:
    facts = {
        "proc.tasks": Tasks(0, 9),
        "proc.load": Load(0.1, 0.1, 0.1, 1, 90),
        "proc.cores": 8,
        fact: absent(reason),
    }
    assert told(fleet(n1=facts), check) == {"n1": f"unknown warning {reason}"}


def test_a_task_is_named_with_where_it_waits() -> None:
    (bad,) = findings(fleet(n1={"proc.tasks": Tasks(0, 9, (NFS,), seconds=1.0)}), "proc.dstate")
    assert bad.seen == "python3 (4711) in rpc_wait_bit_killable for 1 h"
    assert bad.remedy.startswith("head -n 50 /proc/4711/stack")


@pytest.mark.parametrize(
    ("one", "cores", "wanted", "expected"),
    [
        pytest.param(0.0, 224, None, "pass", id="idle"),
        pytest.param(1.4, 224, None, "pass", id="one-core-of-a-gpu-node"),
        pytest.param(44.8, 224, None, "pass", id="on-the-mark"),
        pytest.param(44.9, 224, None, "fail warning", id="just-over"),
        pytest.param(2.0, 4, None, "pass", id="a-small-machine-with-a-busy-core"),
        pytest.param(2.1, 4, None, "fail warning", id="and-with-more"),
        pytest.param(1.9, 1, None, "pass", id="one-core"),
        pytest.param(60.0, 224, "50%", "pass", id="more-is-allowed"),
        pytest.param(12.0, 224, "5%", "fail error", id="less-is-allowed"),
        pytest.param(1.0, 224, "0%", "fail error", id="nothing-is-allowed"),
        pytest.param(float("nan"), 224, None, "fail warning", id="no-number"),
    ],
)
def test_load_against_the_cores(one: float, cores: int, wanted: str | None, expected: str) -> None:
    each = {"require": {"proc.load": wanted}} if wanted else {}
    seen = fleet(each=each, n1={"proc.load": Load(one, 0.0, 0.0, 2, 900), "proc.cores": cores})
    assert told(seen, "proc.load") == {"n1": expected}


@pytest.mark.parametrize(("running", "words"), [(1, "tasks wait in the kernel"), (150, "")])
def test_load_of_which_nothing_runs_may_be_waiting(running: int, words: str) -> None:
    facts: dict[str, Any] = {"proc.load": Load(150.0, 90.0, 20.0, running, 900), "proc.cores": 224}
    (bad,) = findings(fleet(n1=facts), "proc.load")
    assert ("tasks wait in the kernel" in bad.message) is bool(words)


@pytest.mark.parametrize("text", ["", "20", "0.2", "-5%", "20 percent", "%"])
def test_a_part_is_written_in_percent(text: str) -> None:
    with pytest.raises(ValueError, match="expected a part of the cores such as 20%"):
        parse_part(text)
