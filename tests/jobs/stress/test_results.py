"""Which processes load a node, and what their reports mean."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.stress import FailedTest, StressResults
from clusterprep.history.packing import pack_facts
from clusterprep.jobs.stress.plan import plan_stress
from clusterprep.jobs.stress.results import results_of
from clusterprep.jobs.stress.stage import busy_nodes
from clusterprep.model import Finding, Node, NodeSnapshot

NODE = Node("n1", "10.0.0.1", 0, python="/opt/venv/bin/python", job_user="train")
TWO = plan_stress(NODE, (6, 7))


def reports(number: int, *said: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"rank": number, **one} for one in said]


def value(test: str, **values: Any) -> list[dict[str, Any]]:
    return [{"what": "begins", "test": test}, {"what": "value", "test": test, "values": values}]


IMPORTED = {"what": "imported", "torch": "2.6.0+cu124", "cuda": "12.4"}
BOUND = {"what": "bound", "kind": "cuda", "model": "NVIDIA L20"}
BINDS = {"what": "begins", "test": "bind"}
ENDED = {"what": "exit", "code": 0}
CRASH = {"what": "exit", "signal": 11, "name": "SIGSEGV"}
ALARM = {"what": "exit", "signal": 14, "name": "SIGALRM"}


def results(*said: dict[str, Any]) -> StressResults:
    """What the first process of two says; the others say nothing."""
    return results_of(TWO, reports(0, *said))


# ---------------------------------------------------------------- the plan


def test_each_process_sees_its_own_gpu_and_the_one_of_pairs_sees_all() -> None:
    body = TWO.request("source")
    assert (body["python"], body["user"]) == ("/opt/venv/bin/python", "train")
    seen = [rank["env"]["CUDA_VISIBLE_DEVICES"] for rank in body["ranks"]]
    assert seen == ["6", "7", "", "6,7"]
    assert {rank["env"]["CUDA_DEVICE_ORDER"] for rank in body["ranks"]} == {"PCI_BUS_ID"}


def test_gpus_compute_together_and_copy_one_after_the_other() -> None:
    rounds = [dict(part.tests) for part in TWO.rounds]
    together = ("liveness", "gemm", "copy", "chain")
    assert rounds == [
        {0: together, 1: together},
        {0: ("host_copy",)},
        {1: ("host_copy",)},
        {2: ("stream",)},
        {3: ("pairs",)},
    ]


def test_the_processor_has_no_pairs() -> None:
    plan = plan_stress(NODE, ())
    assert [seat.tests for seat in plan.seats] == ["device", "stream"]
    assert dict(plan.rounds[-1].tests) == {1: ("stream",)}
    assert {task["gpu"] for task in plan.tasks(plan.rounds[0])} == {False}


def test_a_process_whose_turn_it_is_not_gets_nothing_to_do() -> None:
    assert [task["tests"] for task in TWO.tasks(TWO.rounds[1])] == [["host_copy"], [], [], []]


# ---------------------------------------------------------------- reports


def test_values() -> None:
    said = [*value("gemm", gemm=58.0), *value("chain", checksum="aa", repeated=9, differing=0)]
    first, second = results(IMPORTED, BINDS, BOUND, *said).devices
    assert (first.index, first.model, dict(first.values)) == (6, "NVIDIA L20", {"gemm": 58.0})
    assert (first.checksum, first.repeated, first.differing) == ("aa", 9, 0)
    assert (second.index, second.model) == (7, "")


def test_values_of_the_host() -> None:
    host = reports(2, IMPORTED, BINDS, BOUND, *value("stream", stream=610.0, threads=96))
    pairs = value("pairs", pairs=[[0, 1, 24.5], [1, 0, 25.0]])
    found = results_of(TWO, [*host, *reports(3, IMPORTED, BINDS, BOUND, *pairs)])
    assert (found.stream, found.threads, found.torch) == (610.0, 96, "2.6.0+cu124")
    assert found.pairs == {"GPU 6 to GPU 7": 24.5, "GPU 7 to GPU 6": 25.0}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        pytest.param(
            [IMPORTED, BINDS, BOUND, {"what": "begins", "test": "gemm"}, ALARM],
            {"gemm": FailedTest("hung", "no answer within 45 s")},
            id="hangs-in-a-test",
        ),
        pytest.param(
            [IMPORTED, BINDS, ALARM],
            {"every test": FailedTest("hung", "no answer within 15 s")},
            id="hangs-while-it-is-bound",
        ),
        pytest.param(
            [ALARM],
            {"every test": FailedTest("missing", "torch was not imported in time")},
            id="slow-file-system",
        ),
        pytest.param(
            [IMPORTED, BINDS, {"what": "late"}],
            {"every test": FailedTest("hung", "no answer, and it could not be ended")},
            id="stuck-in-the-kernel",
        ),
        pytest.param(
            [
                IMPORTED,
                BINDS,
                BOUND,
                {"what": "begins", "test": "copy"},
                {"what": "failed", "test": "copy", "memory": True, "type": "OutOfMemoryError"},
            ],
            {"copy": FailedTest("room", "OutOfMemoryError: ")},
            id="no-room",
        ),
        pytest.param(
            [{"what": "no_torch", "text": "No module named 'torch'"}, {"what": "exit", "code": 0}],
            {"every test": FailedTest("missing", "No module named 'torch'")},
            id="no-torch",
        ),
        pytest.param(
            [IMPORTED, BINDS, {"what": "unbound", "text": "torch is a build for CPUs only"}],
            {"every test": FailedTest("missing", "torch is a build for CPUs only")},
            id="torch-without-cuda",
        ),
        pytest.param(
            [IMPORTED, BINDS, BOUND, {"what": "begins", "test": "chain"}, CRASH],
            {"chain": FailedTest("wrong", "its process was ended by SIGSEGV")},
            id="crash",
        ),
        pytest.param(
            [IMPORTED, BINDS, BOUND, *value("gemm", gemm=1.0), {"what": "done"}, ENDED],
            {},
            id="ended-in-order",
        ),
    ],
)
def test_failures(said: list[dict[str, Any]], expected: dict[str, FailedTest]) -> None:
    assert dict(results(*said).devices[0].failed) == expected


def test_a_gpu_that_lets_one_process_in_leaves_pairs_unknown_and_memory_known() -> None:
    """The message is that of CUDA, cudaErrorDevicesUnavailable."""
    text = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    host = reports(2, IMPORTED, BINDS, BOUND, *value("stream", stream=610.0, threads=96))
    found = results_of(
        TWO, [*host, *reports(3, IMPORTED, BINDS, {"what": "unbound", "text": text})]
    )
    assert dict(found.failed) == {"pairs": FailedTest("missing", text)}
    assert found.stream == 610.0


@pytest.mark.parametrize(
    "report",
    [
        {"rank": 9, "what": "done"},
        {"rank": "0", "what": "done"},
        {"rank": 0, "what": "value", "values": {"gemm": "fast"}},
        {"rank": 0, "what": "value", "values": {"checksum": "aa", "repeated": -1}},
        {"rank": 3, "what": "value", "values": {"pairs": [[0, 5, 1.0]]}},
        {"rank": 3, "what": "value", "values": {"pairs": [[0, 1, None]]}},
    ],
)
def test_what_no_process_of_ours_says_is_refused(report: dict[str, Any]) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        results_of(TWO, [report])


def test_results_can_be_kept_with_the_run() -> None:
    pairs = value("pairs", pairs=[[0, 1, 24.5]])
    said = [*reports(0, IMPORTED, BINDS, BOUND, *value("gemm", gemm=58.0)), *reports(3, *pairs)]
    found = results_of(TWO, said)
    snapshot = NodeSnapshot("n1", "10.0.0.1", True, facts={"stress.results": found})
    kept = pack_facts([snapshot], 1 << 20)
    assert "stress.results" in dict(kept)


# ---------------------------------------------------------------- nodes that are not loaded


@pytest.mark.parametrize(
    ("verdict", "busy"), [("fail", {"n1"}), ("unknown", {"n1"}), ("pass", set()), ("skip", set())]
)
def test_nodes_in_use_and_those_of_which_it_is_not_known(verdict: Any, busy: set[str]) -> None:
    assert busy_nodes([Finding("gpu.busy", verdict, "warning", ("n1",), "")]) == busy
