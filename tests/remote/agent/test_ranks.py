"""The part of the agent that runs ranks.

The user they run as, what is seen of them, and that none remains.
"""

from __future__ import annotations

import os
import pwd
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.errors import LinkLost
from clusterprep.model import Node
from clusterprep.remote import bootstrap
from clusterprep.remote.agent import nccl_lines, ranks, trial
from tests.jobs.verify.agents import gone, open_agent, processes_of
from tests.support.patience import LONG, eventually
from tests.support.surroundings import login_home

# A rank without torch: tells what it is asked to, then does what its config says.
SOURCE = """
import json, os, signal, subprocess, sys, time
def main(fd):
    config = json.loads(os.fdopen(os.dup(fd), "rb").readline().decode())
    facts = dict(env=dict(os.environ), uid=os.getuid(), groups=os.getgroups(), cwd=os.getcwd(),
                 path=sys.path, stdin=os.readlink("/proc/self/fd/0"), sid=os.getsid(0),
                 fds=os.listdir("/proc/self/fd"))
    os.write(fd, json.dumps(dict(what="facts", t=time.monotonic(), **facts)).encode() + b"\\n")
    exec(config["then"])
"""
SLEEP = "time.sleep(600)"
OLD_PYTHONS = sorted(login_home().glob(".pyenv/versions/3.6.*/bin/python"))
PYTHONS = [sys.executable, *map(str, OLD_PYTHONS[-1:])]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")


class Heard:
    """An agent with everything that it has said so far."""

    def __init__(self, python: str = sys.executable) -> None:
        self.link = open_agent(Node("n1", "127.0.0.1", 0), python)
        self.events: list[dict[str, Any]] = []

    def start(self, then: str = SLEEP, count: int = 1, **more: Any) -> dict[str, Any]:
        entries = [
            {"rank": rank, "env": {"RANK": str(rank), "NCCL_DEBUG": "WARN"}}
            for rank in range(count)
        ]
        body = {
            "python": sys.executable,
            "user": None,
            "source": SOURCE,
            "ranks": entries,
            "config": {"then": then},
        }
        return self.link.request("start", LONG, **{**body, **more})

    def ask(self, op: str, **body: Any) -> dict[str, Any]:
        return self.link.request(op, LONG, **body)

    def processes(self) -> list[int]:
        return processes_of([self.link])

    def gone(self, limit: float) -> bool:
        return gone([self.link], limit)

    def one(self, what: str, limit: float = LONG, **data: Any) -> dict[str, Any]:
        """The next event of this kind; those before it are kept for later questions."""
        end = time.monotonic() + limit
        while True:
            for event in self.events:
                if event["what"] == what and all(
                    event.get(key) == value for key, value in data.items()
                ):
                    self.events.remove(event)
                    return event
            assert time.monotonic() < end, f"no {what} {data} among {self.events}"
            self.events.extend(self.link.poll(0.2))


@pytest.fixture(params=PYTHONS, ids=[Path(p).parents[1].name for p in PYTHONS])
def agent(request: pytest.FixtureRequest) -> Iterator[Heard]:
    agent = Heard(request.param)
    yield agent
    agent.link.close()
    assert agent.gone(LONG)


def test_a_rank_starts_clean(agent: Heard) -> None:
    before = time.monotonic(), time.time()
    answer = agent.start()
    facts = agent.one("facts")
    after = time.monotonic(), time.time()
    env = facts["env"]
    assert answer["pids"] == [facts["sid"]]
    assert {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "RANK", "NCCL_DEBUG"} <= set(env)
    assert not {"PYTEST_CURRENT_TEST", "PWD", "OLDPWD"} & set(env)
    assert env["RANK"] == "0"
    assert "" not in facts["path"]
    assert facts["stdin"] == "/dev/null"
    assert len(facts["fds"]) == 5  # 0, 1, 2, the socket, and that of listdir
    assert before[0] <= facts["mono"] <= after[0]
    assert before[1] <= facts["wall"] <= after[1]
    assert agent.ask("stop")["left"] == []


def test_a_plan_of_any_length_reaches_a_rank_that_is_slow_to_read(agent: Heard) -> None:
    """A thousand collectives are more than a socket holds.

    The agent goes on while they are read.
    """
    told = "report = dict(what='read', t=0.0, steps=len(config['steps'])); "
    told += "os.write(fd, json.dumps(report).encode() + b'\\n'); "
    agent.start(told + SLEEP, 2, config={"then": told + SLEEP, "steps": ["x" * 100] * 20_000})
    assert [agent.one("read", rank=rank)["steps"] for rank in (0, 1)] == [20_000, 20_000]
    assert agent.ask("stop")["left"] == []


def test_ends_are_told_with_their_signal_and_last_words(agent: Heard) -> None:
    agent.start("print('x' * 20000 + 'last words', flush=True); os.kill(os.getpid(), 9)")
    end = agent.one("exit")
    assert (end["signal"], end["name"], end["asked"]) == (9, "SIGKILL", False)
    assert end["output"].endswith("last words\n")
    assert len(end["output"]) == nccl_lines.TAIL


def test_an_exit_code_is_told_and_its_moment(agent: Heard) -> None:
    agent.start(
        "report = dict(what='bye', t=time.monotonic()); "
        "os.write(fd, json.dumps(report).encode() + b'\\n'); os._exit(7)"
    )
    assert eventually(lambda: not agent.processes())
    # What has happened before the second answer is noted by then, and read afterwards: the first
    # one may be given in the turn in which the end is about to be noticed.
    for _ in range(2):
        agent.ask("ping")
    noted = time.monotonic()
    bye, end = agent.one("bye"), agent.one("exit")
    assert end["code"] == 7
    assert bye["mono"] <= end["mono"] <= noted


def test_a_shell_in_between_does_not_hide_the_signal(agent: Heard, tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    wrapper.chmod(0o755)
    agent.start("os.kill(os.getpid(), 9)", python=str(wrapper))
    assert agent.one("exit")["signal"] == 9


def test_a_stopped_rank_is_seen_and_killed(agent: Heard) -> None:
    (pid,) = agent.start()["pids"]
    agent.one("facts")
    os.kill(pid, signal.SIGSTOP)
    assert agent.one("state")["state"] == "stopped"
    os.kill(pid, signal.SIGCONT)
    assert agent.one("state", state="")
    os.kill(pid, signal.SIGSTOP)
    agent.one("state", state="stopped")
    assert agent.ask("stop")["left"] == []
    assert agent.gone(0)


def test_stop_ends_descendants_even_those_that_left_the_session(agent: Heard) -> None:
    children = "subprocess.Popen(['sleep', '600']); subprocess.Popen(['setsid', 'sleep', '600']); "
    children += "print('x', flush=True)"
    agent.start(f"{children}; {SLEEP}", count=2)
    assert eventually(lambda: len(agent.processes()) == 6)
    assert agent.ask("stop")["left"] == []
    assert agent.gone(0)
    assert agent.one("exit", rank=0)["asked"]
    assert agent.one("exit", rank=1)["asked"]


def test_ranks_that_are_let_go_can_end_by_themselves(agent: Heard) -> None:
    agent.start(
        "f = os.fdopen(fd, 'rb'); task = json.loads(f.readline().decode());"
        "assert task == {'rank': 7}; assert f.readline() == b'end\\n'; os._exit(0)"
    )
    agent.one("facts")
    assert agent.ask("go", tasks=[{"rank": 7}])["left"] == 1
    assert agent.ask("stop", grace=2.0)["left"] == []
    assert agent.one("exit")["code"] == 0


def test_a_trial_follows_another_but_not_at_once(agent: Heard) -> None:
    agent.start()
    assert agent.start()["no"] == "busy"
    agent.ask("stop")
    assert "pids" in agent.start()


def test_stop_without_a_trial_is_done(agent: Heard) -> None:
    assert agent.ask("stop")["left"] == []


@pytest.mark.parametrize(
    ("more", "reason", "words"),
    [
        ({"python": "/nowhere/python"}, "missing_tool", "/nowhere/python: No such file"),
        ({"python": "/etc/passwd"}, "denied", "/etc/passwd: Permission denied"),
        ({"user": "nobody-of-that-name"}, "no_user", "nobody-of-that-name"),
        ({"source": "#" * (ranks.MAX_SOURCE + 1)}, "agent_error", "bytes"),
    ],
    ids=["no such python", "not executable", "no such user", "too long"],
)
def test_what_cannot_be_started_is_refused_with_the_reason(
    agent: Heard, more: dict[str, Any], reason: str, words: str
) -> None:
    answer = agent.start(**more)
    assert answer["no"] == reason
    assert words in answer["why"]
    assert "pids" in start_again(agent)


def start_again(agent: Heard) -> dict[str, Any]:
    """A refused start leaves room for the next one as soon as its remains are gone."""
    answers: list[dict[str, Any]] = []

    def started() -> bool:
        answers.append(agent.start())
        return answers[-1].get("no") != "busy"

    assert eventually(started)
    return answers[-1]


@pytest.mark.machine
@pytest.mark.skipif(not OLD_PYTHONS, reason="no Python 3.6 here")
def test_the_program_of_the_ranks_runs_in_an_old_python_as_far_as_it_can(agent: Heard) -> None:
    config = {"backend": "gloo", "gpus": 0, "timeout": 5.0, "steps": [], "same_files": []}
    agent.start(python=PYTHONS[-1], source=bootstrap.rank_source(), config=config)
    assert agent.one("started")["python"].startswith("3.6")
    assert agent.one("no_torch")["text"] == "No module named 'torch'"
    assert agent.one("exit")["code"] == trial.EXIT_NO_TORCH


@pytest.mark.machine
@as_root
def test_ranks_run_as_the_user_of_the_job(agent: Heard) -> None:
    agent.start(user="nobody", python="/usr/bin/python3")
    facts, entry = agent.one("facts"), pwd.getpwnam("nobody")
    assert facts["uid"] == entry.pw_uid
    assert facts["groups"] == [entry.pw_gid]
    assert facts["env"]["HOME"] == entry.pw_dir
    assert facts["env"]["USER"] == "nobody"
    assert agent.ask("stop")["left"] == []


@pytest.mark.machine
@as_root
def test_a_killed_agent_leaves_nothing_of_another_user(agent: Heard) -> None:
    agent.start(user="nobody", python="/usr/bin/python3")
    (pid,) = agent.processes()
    os.kill(pid, signal.SIGSTOP)
    os.kill(agent.link.hello["pid"], signal.SIGKILL)
    assert agent.gone(LONG)


def test_the_ranks_end_with_the_channel(agent: Heard) -> None:
    agent.start(f"subprocess.Popen(['sleep', '600']); {SLEEP}")
    agent.one("facts")
    agent.link.close()
    assert agent.gone(LONG)
    with pytest.raises((LinkLost, ValueError)):
        agent.ask("stop")


def test_a_leash_ends_ranks_that_nobody_holds(agent: Heard) -> None:
    leash = 2.0  # seconds
    agent.start(leash=leash)
    end = time.monotonic() + 1.2 * leash
    while time.monotonic() < end:
        agent.ask("hold")
        time.sleep(0.05)
    assert agent.processes()
    assert agent.gone(LONG)
    assert agent.one("exit")["asked"]


def test_junk_on_the_reporting_socket_harms_nobody(agent: Heard) -> None:
    junk = r"b'no json\n[1]\n{}\n{\"what\": 1}\n' + b'x' * 50000"
    junk += r" + b'\n{\"what\": \"fine\", \"mono\": 5, \"rank\": 77}\n'"
    agent.start(f"os.write(fd, {junk}); {SLEEP}")
    fine = agent.one("fine")
    assert fine["rank"] == 0
    assert fine["mono"] != 5


def test_output_without_end_neither_blocks_nor_grows(agent: Heard) -> None:
    agent.start(
        "\nfor _ in range(200): print('y' * 65536)\nprint('the end', flush=True)\nos._exit(0)"
    )
    end = agent.one("exit")
    assert end["output"].endswith("the end\n")


def test_the_name_in_the_process_list_tells_what_it_is(agent: Heard) -> None:
    (pid,) = agent.start()["pids"]
    agent.one("facts")
    shown = Path(f"/proc/{pid}/cmdline").read_text()
    assert "clusterprep-rank 0" in shown[:80]
    assert len(shown) < 400


WORKING = """
while os.environ["RANK"] == "0":
    pass
time.sleep(600)
"""


def test_a_rank_that_is_not_ready_says_that_it_works_while_it_uses_the_processor() -> None:
    heard = Heard()
    try:
        heard.start(WORKING, count=2)
        event = heard.one("working", rank=0)
        assert set(event) == {"what", "rank", "mono", "wall"}
        heard.one("working", rank=0)
        # What it takes to start Python may count once on a busy machine.
        idle = [event for event in heard.events if event["what"] == "working"]
        assert len(idle) <= 1
    finally:
        heard.link.close()
        assert heard.gone(LONG)
