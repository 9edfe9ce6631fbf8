"""What nodes answer becomes values, and answers of another shape become none."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.jobs.live.look import RANKS, parse_look, spy_frames
from clusterprep.model import Absent
from clusterprep.survey.answers import parse_fact
from tests.jobs.live.looks import node, rank, ring

SPY = """Process 4711: python train.py
Python v3.14.0 (/usr/bin/python3.14)

Thread 4711 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2806)
    step (train.py:57)
    <module> (train.py:90)
Thread 4730 (idle): "Thread-1 (_monitor)"
    wait (threading.py:331)
"""


def test_an_answer_becomes_values() -> None:
    seen = parse_look(node(rank(2), sockets=ring()[2]))
    (process,) = seen.processes
    assert (process.rank, process.size, process.local) == (2, 4, 0)
    assert process.second is not None
    assert process.second.stack[0].function == "all_reduce"
    assert len(seen.sockets) == 2


def test_the_main_thread_of_py_spy_is_taken() -> None:
    frames = [(frame.function, frame.path, frame.line) for frame in spy_frames(SPY)]
    assert frames == [
        ("all_reduce", "torch/distributed/distributed_c10d.py", 2806),
        ("step", "train.py", 57),
        ("<module>", "train.py", 90),
    ]


def test_a_rank_without_a_number_has_none() -> None:
    (process,) = parse_look(node(rank(None))).processes
    assert (process.rank, process.size) == (None, None)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(None, id="nothing"),
        pytest.param([], id="a-list"),
        pytest.param({}, id="without-keys"),
        pytest.param(node(rank(1, {"state": "S"})), id="a-look-without-keys"),
        pytest.param(node(rank(1, pid=-1)), id="a-pid-below-one"),
        pytest.param(node(rank(1, pid="7")), id="a-pid-as-text"),
        pytest.param(node(rank(1, comm="x" * 400)), id="a-long-name"),
        pytest.param(node(rank(1, job={"MASTER_ADDR": 3})), id="a-number-as-address"),
        pytest.param(node(rank(1), sockets=({"pid": 1},)), id="a-socket-without-keys"),
        pytest.param(node(rank(1), seconds="soon"), id="seconds-as-text"),
        pytest.param(node(rank(1), hz=0), id="no-ticks"),
        pytest.param(node(rank(1), others=[["a", 1, "b"]]), id="half-an-end"),
    ],
)
def test_an_answer_of_another_shape_is_garbled(raw: Any) -> None:
    value = parse_fact(RANKS, [["ok", raw]])
    assert isinstance(value, Absent)
    assert value.reason == "garbled"


def test_more_ranks_than_an_agent_sends_are_left_out() -> None:
    assert len(parse_look(node(*[rank(1)] * 100)).processes) == 64
