"""The reader of tasks: counts in a described /proc, and a real task in uninterruptible sleep."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterprep.checks.proc import DSTATE
from clusterprep.facts.tasks import parse_tasks
from clusterprep.model import Inventory, Node, Read
from clusterprep.remote.agent import tasks as reader
from clusterprep.remote.agent.tasks import read_tasks
from tests.machines import Machine
from tests.machines.play import answers
from tests.support.fleet import fleet, told
from tests.support.patience import eventually

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
PASSWD = {"/etc/passwd": "root:x:0:0::/root:/bin/sh\n"}
KERNEL = 2129984  # flags of kthreadd
CPU = min(os.sched_getaffinity(0))
NO_CPU = 4096  # no machine has so many


def task(
    pid: int,
    comm: str,
    state: str = "S",
    parent: int = 1,
    threads: int = 1,
    flags: int = 4194560,
    cpu: int = CPU,
) -> dict[str, str]:
    rest = f"{pid} {pid} 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 {threads} 0 100 0 0"
    rest += f"{' 0' * 14} {cpu} 0 0 0"
    status = "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t1\n"
    files = {
        "stat": f"{pid} ({comm}) {state} {parent} {rest}\n",
        "status": status,
        "wchan": "nfs_wait_bit_killable",
    }
    return {f"/proc/{pid}/{name}": text for name, text in files.items()}


INIT = task(1, "systemd", parent=0)


def read(*tasks: dict[str, str], user: str | None = None) -> Any:
    files = {path: text for described in (PASSWD, *tasks) for path, text in described.items()}
    asked = Read("tasks", (user,))
    return answers(Machine("n1", "", files), [asked], Inventory("test", (Node("n1", "", 0),)))[
        asked
    ]


@pytest.mark.machine
@needs_root
def test_threads_of_the_user_are_counted_without_those_of_the_kernel() -> None:
    status, value = read(
        INIT, task(2, "kthreadd", flags=KERNEL), task(30, "python (3) x", threads=40), user="root"
    )
    assert status == "ok"
    assert (value["uid"], value["threads"], value["tasks"], value["stuck"], value["seconds"]) == (
        0,
        41,
        3,
        [],
        0,
    )


@pytest.mark.machine
@needs_root
def test_a_user_who_is_not_there_has_none() -> None:
    assert read(INIT, user="nobody-here")[1]["threads"] is None


@pytest.mark.machine
@needs_root
def test_a_proc_that_hides_others_is_denied() -> None:
    assert read(task(30, "python3"))[:2] == ["no", "denied"]


@pytest.mark.machine
@needs_root
def test_what_stays_in_d_is_named_with_its_children() -> None:
    sleeping = task(30, "a) D (b", "D")
    value = read(
        INIT, sleeping, task(31, "child", parent=30), task(40, "kworker/u8:3", "D", flags=KERNEL)
    )[1]
    assert value["stuck"] == [
        {
            "pid": 30,
            "comm": "a) D (b",
            "kernel": False,
            "wchan": "nfs_wait_bit_killable",
            "children": 1,
            "age": None,
            "waited": None,
        },
        {
            "pid": 40,
            "comm": "kworker/u8:3",
            "kernel": True,
            "wchan": "nfs_wait_bit_killable",
            "children": 0,
            "age": None,
            "waited": None,
        },
    ]
    assert value["seconds"] == 1.0


@pytest.mark.machine
@needs_root
def test_a_stat_that_is_cut_is_no_task() -> None:
    assert read(INIT, {"/proc/30/stat": "30 (python3) D 1 30"})[1]["tasks"] == 1


# posix_spawn is a vfork: the parent sleeps uninterruptibly until its child has started the program,
# and the child waits here until the other end of a pipe is opened.
SPAWN = """
import os, sys
actions = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
print("ready", flush=True)
os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions), 0)
"""


def test_a_real_parent_after_vfork_is_in_d_and_not_stuck(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(
        [sys.executable, "-c", SPAWN, str(pipe)], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        try:
            _until_in_d(parent.pid)
            tasks = parse_tasks(read_tasks(None))
        finally:
            pipe.open("w").close()
    mine = [stuck for stuck in tasks.stuck if stuck.pid == parent.pid]
    assert [stuck.children for stuck in mine] == [1]
    expected = "pass" if mine[0].wchan else "unknown warning denied"
    long = {**msgspec.structs.asdict(mine[0]), "age": 9000.0, "waited": 4000.0}
    seen = fleet(n1={"proc.tasks": parse_tasks({**EMPTY, "stuck": [long]})})
    assert told(seen, DSTATE.name) == {"n1": expected}


EMPTY = {
    "uid": 0,
    "threads": 1,
    "tasks": 1,
    "more": 0,
    "seconds": 1.0,
    "zombies": [],
    "more_zombies": 0,
}


SCHED = """\
python3 ({pid}, #threads: 1)
-------------------------------------------------------------------
se.exec_start                                :      {ran}
se.vruntime                                  :         12345.678901
"""  # kernel/sched/debug.c; a dump of Linux 6.18


@pytest.mark.machine
@needs_root
def test_the_scheduler_tells_since_when_a_task_waits() -> None:
    """Its clock has a beginning of its own: the time of the reader itself is what it is now."""
    boot = {"/proc/uptime": "9000.00 1.0\n"}
    own = {"/proc/self/sched": SCHED.format(pid=5, ran="8000000.250000")}
    sleeping = {
        **task(30, "python3", "D"),
        "/proc/30/sched": SCHED.format(pid=30, ran="7600000.250000"),
    }
    ended = {**task(31, "rank", "Z"), "/proc/31/sched": SCHED.format(pid=31, ran="7999000.250000")}
    value = read(INIT, boot, own, sleeping, ended)[1]
    assert [row["waited"] for row in value["stuck"]] == [400.0]
    (zombie,) = value["zombies"]
    assert (zombie["pid"], zombie["comm"], zombie["parent_comm"]) == (31, "rank", "systemd")
    assert zombie["waited"] == 1.0
    assert 0 < zombie["age"] <= 9000.0


@pytest.mark.machine
@needs_root
def test_a_cpu_that_is_not_ours_tells_no_time() -> None:
    """Each CPU has a clock of its own, and that of another one may be days off."""
    own = {"/proc/self/sched": SCHED.format(pid=5, ran="8000000.250000")}
    sleeping = {
        **task(30, "python3", "D", cpu=NO_CPU),
        "/proc/30/sched": SCHED.format(pid=30, ran="7600000.250000"),
    }
    value = read(INIT, own, sleeping)[1]
    assert [row["waited"] for row in value["stuck"]] == [None]


def test_a_look_at_clocks_leaves_the_process_where_it_may_run() -> None:
    before = os.sched_getaffinity(0)
    clocks = reader._Clocks()
    for cpu in before:
        waited = clocks.waited("self", {"cpu": cpu})
        assert waited is None or waited < 60
    assert os.sched_getaffinity(0) == before


@pytest.mark.machine
@needs_root
def test_a_first_thread_that_ended_before_the_others_is_no_zombie() -> None:
    assert read(INIT, task(31, "rank", "Z", threads=4))[1]["zombies"] == []


def test_a_zombie_that_is_collected_meanwhile_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel does not show when one ended, it may have been this moment."""
    monkeypatch.setattr(reader, "_last_ran", lambda name: None)
    monkeypatch.setattr(reader, "NAMED", 1 << 22)  # a machine may have many that are not ours
    with subprocess.Popen(["true"]) as collected, subprocess.Popen(["true"]) as left:
        for ended in (collected, left):
            os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(reader.time, "sleep", lambda seconds: collected.wait())
        pids = [zombie.pid for zombie in parse_tasks(read_tasks(None)).zombies]
    assert left.pid in pids
    assert collected.pid not in pids


# A parent that leaves a zombie to us as soon as it reads a line: its own parent is a subreaper.
ORPHANED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
middle = os.fork()
if not middle:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    print(child, flush=True)
    sys.stdin.readline()
    os._exit(0)
os.waitpid(middle, 0)
print("ended", flush=True)
sys.stdin.readline()
"""


def test_a_zombie_whose_parent_ends_meanwhile_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_last_ran", lambda name: None)
    monkeypatch.setattr(reader, "NAMED", 1 << 22)  # a machine may have many that are not ours
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANED], stdin=pipe, stdout=pipe, text=True
    ) as reaper:
        assert reaper.stdin is not None
        assert reaper.stdout is not None
        pid = int(reaper.stdout.readline())

        ends = iter(["the parent ends"])  # other tasks of the machine may be looked at again, too

        def orphan(seconds: float) -> None:
            if next(ends, None):
                print(file=reaper.stdin, flush=True)
                reaper.stdout.readline()

        monkeypatch.setattr(reader.time, "sleep", orphan)
        left = {zombie.pid: zombie for zombie in parse_tasks(read_tasks(None)).zombies}
        print(file=reaper.stdin, flush=True)
    assert left[pid].parent == reaper.pid


def test_a_real_zombie_is_found_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "NAMED", 1 << 22)  # a machine may have many that are not ours
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        time.sleep(1.0)
        zombies = parse_tasks(read_tasks(None)).zombies
    (mine,) = [zombie for zombie in zombies if zombie.pid == ended.pid]
    assert (mine.comm, mine.parent) == ("true", os.getpid())
    assert 0.9 <= mine.age < 60
    assert mine.waited is None or 0.5 <= mine.waited < 60


# As the agent does: it installs its parts, and reads in a child of its own, beside others.
AGENT = """
import os, sys
from clusterprep.remote.agent import readers, tasks
tasks.install(None)
if os.fork() == 0:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], sys.argv[2]])
os.read(0, 1)
source, sink = os.pipe()
if os.fork() == 0:
    found = readers.READERS["tasks"](None)
    pids = [task["pid"] for task in found["stuck"]]
    os.write(sink, ("%s\\n%s" % (pids, found["seconds"])).encode())
    os._exit(0)
print(os.read(source, 4096).decode(), flush=True)
"""


def test_what_the_agent_itself_has_started_is_no_stuck_task(tmp_path: Path) -> None:
    seen, told_by_agent, _ = _beside_own_task_in_d(tmp_path / "pipe")
    assert seen
    assert not told_by_agent


def test_what_the_agent_itself_has_started_is_not_waited_for(tmp_path: Path) -> None:
    numbers = itertools.count()
    # More than once, for any other task of the machine may be in D at that moment.
    assert eventually(lambda: _beside_own_task_in_d(tmp_path / str(next(numbers)))[2] == 0)


def _beside_own_task_in_d(pipe: Path) -> tuple[bool, bool, float]:
    """Have an agent read tasks while a process that it started is in D.

    Returns whether another reader and whether the agent name that process as stuck, and for how
    many seconds the agent looked at stuck ones.
    """
    os.mkfifo(pipe)
    argv = [sys.executable, "-c", AGENT, SPAWN, str(pipe)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdout.readline()
        parent = int(Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()[0])
        try:
            _until_in_d(parent)
            seen = [task["pid"] for task in read_tasks(None)["stuck"]]
            agent.stdin.write("x")
            agent.stdin.close()
            pids = agent.stdout.readline().strip("[]\n").split(", ")
            seconds = float(agent.stdout.readline())
        finally:
            pipe.open("w").close()
    return parent in seen, str(parent) in pids, seconds


def _until_in_d(pid: int) -> None:
    assert eventually(
        lambda: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "D"
    )


def test_this_machine_has_tasks() -> None:
    value = read_tasks(None)
    assert value["threads"] >= 1
    assert value["uid"] == os.geteuid()
