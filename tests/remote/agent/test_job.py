"""The part of the agent that runs a job: what it hears of each rank, and that it ends all of it."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.model import Node
from clusterprep.remote import bootstrap
from clusterprep.remote.agent import job
from clusterprep.remote.agent.processes import process_stat
from tests.jobs.verify.agents import gone, open_agent, processes_of
from tests.support.patience import LONG, eventually
from tests.support.surroundings import login_home

# What torchrun is for the agent: a process that starts others, whose streams are its own unless
# they say otherwise.
RUNNER = """
import os, subprocess, sys
print("runner", os.environ.get("NODE_RANK"), flush=True)
started = []
for rank in "45":
    env = dict(os.environ, RANK=rank)
    started.append(subprocess.Popen(sys.argv[1:], env=env, start_new_session=True))
sys.exit(max(process.wait() for process in started))
"""


class Heard:
    """An agent with all that it has said so far."""

    def __init__(self) -> None:
        self.link = open_agent(Node("n1", "127.0.0.1", 0), sys.executable)
        self.events: list[dict[str, Any]] = []
        self.link.request(
            "load", 10.0, modules=[list(module) for module in bootstrap.sources("job")]
        )

    def launch(self, *programs: str, **more: Any) -> dict[str, Any]:
        """Each program as a rank."""
        processes = [
            {"rank": rank, "argv": [sys.executable, "-u", "-c", text], "env": {"RANK": str(rank)}}
            for rank, text in enumerate(programs)
        ]
        return self._launch(processes, torchrun=False, **more)

    def run(self, program: str, **more: Any) -> dict[str, Any]:
        """Two ranks of the program under a runner."""
        begin = json.dumps([sys.executable, "-u", "-c"])
        argv = [sys.executable, "-c", RUNNER, sys.executable, f"-ISc{job.BEFORE}", program]
        env = {"NODE_RANK": "2", job.BEGIN: begin}
        return self._launch([{"rank": None, "argv": argv, "env": env}], torchrun=True, **more)

    def _launch(self, processes: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        body = {
            "python": sys.executable,
            "user": None,
            "folders": ["/"],
            "strict": False,
            "processes": processes,
        }
        return self.link.request("launch", LONG, **{**body, **more})

    def ask(self, op: str, limit: float = LONG, **body: Any) -> dict[str, Any]:
        answer = self.link.request(op, limit, **body)
        self.events += self.link.poll(0.0)
        return answer

    def until(self, what: str, count: int = 1, limit: float = LONG) -> list[dict[str, Any]]:
        end = time.monotonic() + limit
        while len(found := [event for event in self.events if event["what"] == what]) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} {what} among {self.events}"
            self.events += self.link.poll(0.2)
        return found

    def lines(self, rank: int | None, stream: str = "out") -> list[str]:
        mine = [
            e
            for e in self.events
            if e["what"] == "lines" and (e["rank"], e["stream"]) == (rank, stream)
        ]
        return [line for event in mine for line in event["lines"]]


@pytest.fixture
def agent() -> Iterator[Heard]:
    agent = Heard()
    yield agent
    agent.link.close()
    assert gone([agent.link], LONG)


def test_both_streams_and_the_end_of_each_rank(agent: Heard) -> None:
    agent.launch(
        "print('a'); import sys; print('b', file=sys.stderr); sys.exit(3)", "print('c', end='')"
    )
    ends = {event["rank"]: event["code"] for event in agent.until("exit", 2)}
    assert ends == {0: 3, 1: 0}
    assert (agent.lines(0), agent.lines(0, "err"), agent.lines(1)) == (["a"], ["b"], ["c"])
    assert agent.ask("finish") == {"id": agent.link._asked, "left": []}


def test_nothing_of_the_agents_own_reaches_a_rank(agent: Heard) -> None:
    agent.launch(
        "import os; print(sorted(os.environ)); "
        "print(os.readlink('/proc/self/fd/0'), os.listdir('/proc/self/fd'))"
    )
    agent.until("exit")
    names, streams = agent.lines(0)
    assert "PYTEST_CURRENT_TEST" not in names
    assert streams == "/dev/null ['0', '1', '2', '3']"  # the last is that of listdir


def test_ranks_of_a_runner_are_told_apart(agent: Heard) -> None:
    program = "import os, sys; print('out', os.environ['RANK']); "
    program += "print('err', os.environ['RANK'], file=sys.stderr)"
    agent.run(program + "; print([name for name in os.environ if 'CLUSTERPREP' in name])")
    agent.until("exit")
    agent.until("closed", 2)
    for rank in (4, 5):
        assert agent.lines(rank) == [f"out {rank}", "['CLUSTERPREP_TRIAL']"]
        assert agent.lines(rank, "err") == [f"err {rank}"]
    assert agent.lines(None) == ["runner 2"]
    assert {event["rank"] for event in agent.until("started", 2)} == {4, 5}


def test_ranks_end_with_a_runner_that_is_killed(agent: Heard) -> None:
    agent.run("import time; print('here'); time.sleep(600)")
    pids = [event["pid"] for event in agent.until("started", 2)]
    os.kill(agent.until("spawned")[0]["pid"], 9)
    assert agent.until("exit")[0]["signal"] == 9
    assert eventually(lambda: not any(b"sleep" in _argv(pid) for pid in pids)), "they outlive it"


def _argv(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as source:
            return source.read()
    except OSError:
        return b""


def test_a_connection_without_the_mark_is_not_heard(agent: Heard) -> None:
    agent.run("import time; time.sleep(600)")
    agent.until("started", 2)
    with open("/proc/net/unix") as source:
        (place,) = [
            line.split("@")[1].strip()
            for line in source
            if f"@clusterprep-{agent.link.hello['pid']}." in line
        ][:1]
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(f"\0{place}")
        other.sendall(b"wrong.mark 4 1 1\nI am rank 4\n")
        time.sleep(0.6)  # in which it would be heard; nothing is said to one that is not
    agent.ask("finish")
    assert agent.lines(4) == []


def test_a_flood_costs_lines_and_neither_memory_nor_the_job(agent: Heard) -> None:
    """What is printed as fast as that goes is not read for a while."""
    agent.launch("for number in range(200000): print('x' * 60, number)\nprint('last')")
    time.sleep(1.5)
    agent.until("exit", limit=100)
    left_out = sum(event.get("left_out", 0) for event in agent.events if event["what"] == "lines")
    assert len(agent.lines(0)) + left_out == 200001


def test_a_long_line_goes_on_in_pieces(agent: Heard) -> None:
    agent.launch("print('y' * 20000)")
    agent.until("exit")
    assert "".join(agent.lines(0)) == "y" * 20000
    assert max(map(len, agent.lines(0))) == 8192


def test_a_rank_that_ignores_sigterm_is_killed_with_children_elsewhere(agent: Heard) -> None:
    child = "import subprocess, sys; "
    child += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
    child += "start_new_session=True); "
    agent.launch(
        child
        + "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(600)"
    )
    agent.until("lines")
    began = time.monotonic()
    assert agent.ask("finish", grace=1.0)["left"] == []
    assert time.monotonic() - began >= 1.0
    assert agent.until("exit")[0]["asked"] is True
    assert processes_of([agent.link]) == []


def test_a_rank_that_handles_sigterm_may_print_a_last_line(agent: Heard) -> None:
    agent.launch(
        "import signal, sys, time; signal.signal(15, lambda *a: sys.exit(print('bye'))); "
        "print('up'); time.sleep(600)"
    )
    agent.until("lines")
    agent.ask("finish", grace=600.0)
    assert agent.lines(0) == ["up", "bye"]


def test_ranks_say_where_they_are(agent: Heard) -> None:
    env = "import faulthandler, time; faulthandler.enable(); print('up')\n"
    env += "def deep():\n time.sleep(600)\ndeep()"
    agent.launch(
        env, "import os, signal; print('up', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    agent.until("lines", 2)
    first, second = (
        event["pid"] for event in sorted(agent.until("spawned", 2), key=lambda event: event["rank"])
    )
    assert eventually(lambda: (process_stat(first)[0], process_stat(second)[0]) == ("S", "T"))
    assert agent.ask("stacks")["states"] == {"0": "S", "1": "T"}
    assert agent.until("exit")[0]["signal"] == 6
    assert '  File "<string>", line 3 in deep' in agent.lines(0, "err")
    agent.ask("finish")


def test_the_folder_is_told_and_home_is_the_way_out(agent: Heard) -> None:
    # The kernel tells the folder of a process that is there, so this one stays.
    stays = "import time; time.sleep(600)"
    assert agent.launch(stays, folders=["/usr"])["folder"] == "/usr"
    agent.ask("finish")
    answer = agent.launch(stays, folders=["/not/here"])
    home = login_home()
    # The home of some users, «nobody» for one, does not exist.
    assert answer["folder"] == (str(home.resolve()) if home.is_dir() else "/")
    agent.ask("finish")
    assert agent.launch(stays, folders=["/not/here"], strict=True)["no"] == "no_folder"


def test_the_folder_of_a_program_that_ends_at_once_is_known_all_the_same(agent: Heard) -> None:
    """The kernel knows it only as long as the program runs."""
    for _ in range(20):
        assert agent.launch("pass", folders=["/usr"], strict=True)["folder"] == "/usr"
        agent.until("exit", 1)
        agent.ask("finish")
        answer = agent._launch(
            [{"rank": 0, "argv": ["true"], "env": {}}], torchrun=False, folders=["/x"], strict=True
        )
        assert answer["no"] == "no_folder"
        agent.ask("finish")
        agent.events.clear()


def test_whether_a_script_is_there_is_known_before_the_start(agent: Heard, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "folder.py").mkdir()

    def found(path: str, folder: str = str(tmp_path), strict: bool = False) -> tuple[str, str]:
        body = {"user": None, "folders": [folder], "strict": strict, "path": path}
        answer = agent.ask("script", **body)
        return answer["script"], answer["folder"]

    here = str(tmp_path.resolve())
    assert found("train.py") == ("there", here)
    assert found(f"{here}/train.py", "/") == ("there", "/")
    assert found("eval.py") == ("missing", here)
    assert found("folder.py") == ("unreadable", here)
    assert found("$(touch x).py") == ("missing", here)
    assert found("train.py", "/not/here", strict=True)[0] == ""
    answer = agent.ask("script", user="no-such-user", folders=["/"], strict=False, path="x.py")
    assert answer["script"] == ""


def test_no_second_job_beside_the_first(agent: Heard) -> None:
    agent.launch("import time; time.sleep(600)")
    assert agent.launch("pass")["no"] == "busy"
    agent.ask("finish")
    assert "folder" in agent.launch("pass")


def test_a_program_that_is_not_there(agent: Heard) -> None:
    answer = agent._launch([{"rank": 0, "argv": ["/no/such"], "env": {}}], torchrun=False)
    assert (answer["no"], answer["why"]) == ("missing_tool", "/no/such: No such file or directory")


def test_ranks_end_without_a_keep_within_the_leash(agent: Heard) -> None:
    agent.launch("import time; time.sleep(600)", leash=0.5)
    agent.until("exit")
    assert processes_of([agent.link]) == []
