"""Which task runs on which node: Slurm says it, whatever a task says of itself.

A shell script stands in for srun. It prints what srun would print for hostile tasks.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence

import pytest

from clusterprep.errors import Unreached
from clusterprep.remote.transports.slurm_step import JobStep
from tests.support.patience import eventually

NONCE = "ab" * 8
HOSTS = ("n1", "n2", "n3")
SRUN = 'cat >/dev/null & for line in "$@"; do echo "$line"; sleep 0.05; done; sleep 600'


def at(task: int, host: str) -> str:
    """The shell of a task says where it is."""
    return f"{task}: {NONCE} at {host}"


def listens(task: int, host: str) -> str:
    """The relay of a task says that it listens on a host."""
    text = base64.b64encode(b"h 0 " + host.encode()).decode()
    return f"{task}: {NONCE} 0 {text};"


Begin = Callable[..., JobStep]


@pytest.fixture
def begin() -> Begin:  # type: ignore[misc]
    steps: list[JobStep] = []

    def start(*lines: str, layout: Callable[[], Sequence[str]] = lambda: HOSTS) -> JobStep:
        argv = ["bash", "-c", SRUN, "srun", *lines]
        step = JobStep(argv, {"PATH": "/usr/bin:/bin"}, HOSTS, NONCE, layout)
        steps.append(step)
        return step

    yield start
    for step in steps:
        step.kill()


def test_the_host_of_a_task_is_the_one_that_slurm_gave_it(begin: Begin) -> None:
    lines = [at(2, "n3"), at(0, "n1"), at(1, "n2")]
    lines += [listens(1, "n2"), listens(2, "n3"), listens(0, "n1")]
    step = begin(*lines)
    step.wait(time.monotonic() + 10)
    assert (step.started, step.ready) == ({"n1": 0, "n2": 1, "n3": 2},) * 2
    assert [step.open(host, "true").task for host in HOSTS] == [0, 1, 2]


@pytest.mark.parametrize(
    "lies",
    [
        pytest.param([at(0, "n2"), listens(0, "n2")], id="in-all-that-it-says"),
        pytest.param([at(0, "n1"), listens(0, "n2")], id="once-it-is-started"),
        pytest.param([at(0, "n2"), listens(0, "n1")], id="only-at-first"),
        pytest.param([at(0, "n1"), at(0, "n2"), listens(0, "n1")], id="the-second-time"),
        pytest.param([at(0, "nowhere")], id="as-a-stranger"),
    ],
)
def test_a_task_that_claims_another_host_takes_nobody_s_place(
    begin: Begin, lies: list[str]
) -> None:
    """The liar is first; the others are slow."""
    others = [at(1, "n2"), at(2, "n3"), listens(1, "n2"), listens(2, "n3")]
    step = begin(*lies, *others)
    assert eventually(lambda: {"n2", "n3"} <= step.ready.keys())
    assert step.open("n2", "true").task == 1
    assert "n1" not in step.ready
    assert "says that it runs on" in step.contradictions["n1"]
    assert step.settled()


def test_a_task_that_claims_two_hosts_after_it_was_ready_is_lost(begin: Begin) -> None:
    lines = [line(task, host) for task, host in enumerate(HOSTS) for line in (at, listens)]
    step = begin(*lines, at(0, "n2"))
    step.wait(time.monotonic() + 10)
    channel = step.open("n1", "true")
    assert eventually(lambda: not channel.alive)
    assert "n1" not in step.ready


@pytest.mark.parametrize(
    "layout",
    [("n1", "n2"), ("n1", "n2", "n4"), ("n1", "n1", "n2"), ()],
    ids=["fewer", "another", "twice", "none"],
)
def test_a_step_on_other_nodes_than_asked_for_is_none_of_ours(
    begin: Begin, layout: Sequence[str]
) -> None:
    step = begin(at(0, "n1"), layout=lambda: layout)
    step.wait(time.monotonic() + 10)
    assert (step.started, step.ready) == ({}, {})
    assert "one task on each of n[1-3]" in str(step.trouble)


def test_without_slurm_s_word_no_task_is_believed(begin: Begin) -> None:
    def silent() -> Sequence[str]:
        raise Unreached("timed_out", "Slurm gave no answer to `squeue` in 2 s")

    step = begin(at(0, "n1"), listens(0, "n1"), layout=silent)
    step.wait(time.monotonic() + 10)
    assert step.started == {}
    assert "no answer to `squeue`" in str(step.trouble)


def test_a_task_that_slurm_did_not_start_is_not_heard(begin: Begin) -> None:
    step = begin(at(7, "n1"), at(0, "n1"))
    assert eventually(lambda: step.started)
    assert step.started == {"n1": 0}
