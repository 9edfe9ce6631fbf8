"""Jobs in every state, as four nodes tell them: what is said of them, and what is left unsaid."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.cli.commands.explain import page
from clusterprep.jobs.diagnose.model import Cause
from clusterprep.jobs.live.causes import CAUSES
from clusterprep.jobs.live.command import explain_looks
from clusterprep.jobs.live.look import parse_look
from clusterprep.jobs.live.model import LiveDiagnosis
from clusterprep.survey import registry
from tests.jobs.live.looks import (
    ALL_REDUCE,
    IN_LOADER,
    PROGRAM,
    causes,
    four,
    in_collective,
    look,
    node,
    rank,
    ring,
    task,
)

ADDRESSES = {f"10.0.0.{number}": f"n{number}" for number in range(1, 5)}
STOPPED = look(state="T", main=task(state="T", wchan="do_signal_stop"))
BLOCKED = look(None, main=task("read", "/data/a", state="D", kernel=["nfs_wait_bit_killable"]))
LOADING = look(IN_LOADER, main=task("clock_nanosleep"))
SLEEPING = look(None, main=task("clock_nanosleep"))
PLAIN = look(None)
BARRIER = look(in_collective("barrier"))
LOST: dict[str, Any] = {"sendq": 96, "held": True, "again": 5}
RECENT = {f"r{one}_r{other}": {"received_ago": 2000} for one in range(4) for other in range(4)}


def busy(stack: list[list[Any]] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two looks at a rank that computes."""
    running = task("running", state="R", ticks=500)
    return look(stack, main=running), look(stack, main={**running, "ticks": 615})


def judged(*ranks: dict[str, Any] | None, **sockets: Any) -> LiveDiagnosis:
    return explain_looks(four(*ranks, **sockets), ADDRESSES)


def with_odd(number: int, *looks: dict[str, Any]) -> list[dict[str, Any] | None]:
    """Four ranks of which one differs, and the others wait in all_reduce."""
    return [rank(one, *(looks if one == number else ())) for one in range(4)]


@pytest.mark.parametrize(
    ("looks", "cause", "confidence"),
    [
        pytest.param([STOPPED], "rank_stopped", 0.95, id="stopped"),
        pytest.param([BLOCKED], "rank_blocked", 0.95, id="blocked"),
        pytest.param([look(), None], "rank_gone", 0.95, id="gone"),
        pytest.param([look(in_collective("broadcast"))], "rank_in_other_collective", 0.95, id="op"),
        pytest.param([look(in_collective("recv"))], "rank_in_other_collective", 0.45, id="pipe"),
        pytest.param([LOADING], "rank_elsewhere", 0.95, id="loading"),
        pytest.param([SLEEPING], "rank_elsewhere", 0.75, id="sleeping-without-stack"),
        pytest.param(
            [look([["wait", "/usr/lib/python3.11/threading.py", 320], PROGRAM])],
            "rank_elsewhere",
            0.95,
            id="lock-of-python",
        ),
        pytest.param(busy([PROGRAM]), "rank_busy", 0.75, id="busy"),
        pytest.param(busy(None), "rank_busy", 0.75, id="busy-without-stack"),
    ],
)
def test_the_odd_rank_is_named(looks: list[Any], cause: str, confidence: float) -> None:
    found = judged(*with_odd(2, *looks))
    assert causes(found) == [(cause, "rank 2 on n3")]
    assert found.diagnosis.causes[0].confidence == confidence
    assert found.state == ("stuck" if confidence > 0.5 else "unknown")


def test_a_blocked_data_loader_of_a_rank() -> None:
    worker = task("read", "/data/a", tid=900, comm="pt_data_worker", state="D", wchan="ceph_read")
    found = judged(*with_odd(1, look(children=[worker])))
    assert causes(found) == [("rank_blocked", "rank 1 on n2")]
    assert "its pt_data_worker (900) waits in the kernel" in found.diagnosis.causes[0].message
    assert "ceph_read" in found.diagnosis.causes[0].message


def test_half_the_ranks_in_one_collective_and_half_in_another_are_all_named() -> None:
    other = look(in_collective("broadcast"))
    found = judged(rank(0), rank(1), rank(2, other), rank(3, other))
    (cause,) = found.diagnosis.causes
    assert (cause.cause.name, cause.confidence) == ("rank_in_other_collective", 0.75)
    assert cause.culprit == "rank 0 on n1 and rank 1 on n2 and rank 2 on n3 and 1 more"


def test_a_rank_that_no_node_has_is_gone() -> None:
    found = judged(rank(0), rank(1), rank(2), None)
    assert causes(found) == [("rank_gone", "rank 3")]


def test_a_rank_on_a_node_that_gave_no_answer_is_no_culprit() -> None:
    looks = four(rank(0), rank(1), rank(2), None)
    del looks["n4"]
    found = explain_looks(looks, ADDRESSES, lost=["n4"])
    assert ("rank_gone", "rank 3") not in causes(found)
    assert any("rank 3 were not found: n4 gave no answer" in text for text in notices(found))


def notices(found: LiveDiagnosis) -> tuple[str, ...]:
    return found.diagnosis.notices


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_every_cause_is_explained_and_its_check_exists(cause: Cause) -> None:
    shown = page(cause.name)
    assert shown.startswith(f"{cause.name}: {cause.title}")
    assert cause.check is None or cause.check in registry.checks()


# ---------------------------------------------------------------- connections


@pytest.mark.parametrize(
    ("sockets", "culprit"),
    [
        pytest.param({"r1_r2": LOST}, "link n2 - n3", id="one-end"),
        pytest.param({"r1_r2": LOST, "r2_r1": LOST}, "link n2 - n3", id="both-ends"),
        pytest.param({"r1_r2": LOST, "r2_r3": LOST}, "host n3", id="a-host"),
        pytest.param({"r1_r2": {**LOST, "again": 0}}, "link n2 - n3", id="dropped-at-its-own-host"),
        pytest.param({"r1_r2": {**LOST, "passed": None}}, "link n2 - n3", id="without-counters"),
        pytest.param({"r1_r2": {"state": 2, "again": 3}}, "link n2 - n3", id="not-answered"),
        pytest.param(
            {"r1_r2": {**LOST, "again": 0, "probing": True}},
            "link n2 - n3",
            id="first-packet-dropped-at-its-own-host",
        ),
    ],
)
def test_a_link_that_loses_data_is_named(sockets: dict[str, Any], culprit: str) -> None:
    found = judged(*with_odd(0), **sockets)
    assert causes(found) == [("link_cut", culprit)]
    assert found.diagnosis.causes[0].confidence == 0.95 or "state" in sockets["r1_r2"]


PROBING = {**LOST, "probing": True}


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param({"r1_r2": PROBING, "r2_r1": {"recvq": 1 << 20}}, id="the-peer-has-no-room"),
        pytest.param({"r1_r2": PROBING, "r2_r1": None}, id="the-peer-may-have-no-room"),
        pytest.param({"r1_r2": {**LOST, "held": False, "again": 0}}, id="just-sent"),
        pytest.param({"r1_r2": {**LOST, "passed": 10, "again": 0}}, id="on-its-way"),
    ],
)
def test_data_that_waits_for_its_reader_is_no_lost_link(ends: dict[str, Any]) -> None:
    assert "link_cut" not in dict(causes(judged(*with_odd(0), **ends)))


def test_an_end_without_its_other_end_is_named() -> None:
    found = judged(*with_odd(0), r2_r1=None)
    assert causes(found) == [("connection_half_gone", "host n3")]


def test_all_ranks_in_one_collective_without_data_are_stuck_and_nobody_is_blamed() -> None:
    found = judged(*with_odd(0))
    assert causes(found) == [("all_ranks_wait", None)]
    assert (found.state, found.diagnosis.causes[0].confidence) == ("stuck", 0.75)


# ---------------------------------------------------------------- what moves


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(
            [rank(one, look(), look(in_collective("barrier"))) for one in range(4)], id="stacks"
        ),
        pytest.param(
            [rank(one, look(), look(main=task(switches=90))) for one in range(4)], id="switches"
        ),
        pytest.param([rank(one, *busy(None)) for one in range(4)], id="compute"),
    ],
)
def test_ranks_that_all_go_on_move(ranks: list[Any]) -> None:
    found = judged(*ranks)
    assert (found.state, causes(found)) == ("moving", [])


def test_data_between_ranks_moves_the_job() -> None:
    found = judged(*with_odd(0), r1_r2={"passed": 1 << 20})
    assert (found.state, causes(found)) == ("moving", [])


def test_heartbeats_at_the_rendezvous_move_nothing() -> None:
    found = judged(*with_odd(0), r1_r2={"passed": 1 << 20, "peer_port": 29500})
    assert found.state == "stuck"


def test_a_rank_that_has_computed_for_two_seconds_holds_nobody_up() -> None:
    found = judged(*with_odd(2, *busy([PROGRAM])), **RECENT)
    changing = look([["other", "/home/u/train.py", 9]])
    assert found.state in ("moving", "unknown")
    assert causes(found) == []
    found = judged(*with_odd(2, look([PROGRAM]), changing), **RECENT)
    assert (found.state, causes(found)) == ("moving", [])


def test_a_job_that_ended_between_the_looks_does_not_hang() -> None:
    found = judged(*[rank(one, look(), None) for one in range(4)])
    assert (found.state, causes(found)) == ("moving", [])


def test_ranks_of_which_nothing_is_known_are_unknown() -> None:
    found = judged(*[rank(one, PLAIN) for one in range(4)], **RECENT)
    assert (found.state, causes(found)) == ("unknown", [])
    assert any("ask as root (-b)" in text for text in notices(found))


# ---------------------------------------------------------------- GPUs


def test_with_gpus_most_ranks_that_spin_at_one_line_wait_for_the_one_in_its_loader() -> None:
    spinning = busy([["item", "/home/u/train.py", 60], PROGRAM])
    ranks = [rank(one, *spinning, gpus=[0]) for one in range(3)]
    found = judged(*ranks, rank(3, LOADING, gpus=[0]))
    assert causes(found) == [("rank_elsewhere", "rank 3 on n4")]
    assert found.diagnosis.causes[0].confidence == 0.75


def test_ranks_with_gpus_at_one_line_are_unknown_without_any_other_sign() -> None:
    spinning = busy([["item", "/home/u/train.py", 60], PROGRAM])
    found = judged(*[rank(one, *spinning, gpus=[0]) for one in range(4)])
    assert (found.state, causes(found)) == ("unknown", [])


RAS = """NCCL version 2.28.9 compiled with CUDA 13.0
Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 110
  Rank 2 has launched up to operation 109 -- GPU 0 managed by process 102 on node 10.0.0.3
"""


def test_what_nccl_counts_names_the_rank() -> None:
    looks = four(*[rank(one, PLAIN) for one in range(4)])
    raw = node(rank(0, PLAIN), sockets=ring()[0], ras=RAS)
    looks["n1"] = parse_look(raw)
    found = explain_looks(looks, ADDRESSES)
    assert causes(found) == [("rank_in_other_collective", "rank 2 on n3")]
    assert "operation 109" in found.diagnosis.causes[0].lines[0].text


# ---------------------------------------------------------------- jobs


def test_two_jobs_are_judged_each_by_itself() -> None:
    other = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501"}
    looks = four(*with_odd(2, STOPPED))
    for number in range(4):
        moving = rank(number, look(), look(in_collective("barrier")), pid=500 + number, job=other)
        mixed = node(with_odd(2, STOPPED)[number], moving, sockets=ring()[number])
        looks[f"n{number + 1}"] = parse_look(mixed)
    found = explain_looks(looks, ADDRESSES)
    assert [job.state for job in found.jobs] == ["stuck", "moving"]
    assert causes(found) == [("rank_stopped", "rank 2 on n3")]


def test_ranks_of_one_port_on_the_loopback_of_two_nodes_are_two_jobs() -> None:
    local = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    looks = {}
    for name in ("n1", "n2"):
        ranks = [rank(number, look(), size=2, job=local) for number in range(2)]
        looks[name] = parse_look(node(*ranks))
    assert len(explain_looks(looks, ADDRESSES).jobs) == 2


def test_processes_without_a_number_are_a_job_if_they_are_connected() -> None:
    found = judged(*[rank(None, pid=100 + one) for one in range(4)])
    (job,) = found.jobs
    assert (job.size, len(job.ranks)) == (None, 4)
    assert job.ranks[0].rank is None


def test_processes_that_nothing_connects_are_no_job() -> None:
    looks = {"n1": parse_look(node(rank(None, pid=7)))}
    found = explain_looks(looks, ADDRESSES)
    assert (found.state, found.jobs) == ("unknown", ())
    assert any("1 process with torch or NCCL belongs to no job" in text for text in notices(found))


def test_processes_of_others_are_said_to_be_hidden() -> None:
    looks = {"n1": parse_look(node(hidden=3))}
    found = explain_looks(looks, ADDRESSES)
    assert (found.state, found.diagnosis.code) == ("unknown", 3)
    assert any("3 Python processes of other users" in text for text in notices(found))


def test_stacks_of_all_ranks_are_quoted_with_their_lines() -> None:
    found = judged(*with_odd(2, LOADING))
    lines = [line.text for line in found.diagnosis.causes[0].lines]
    assert lines[0].startswith("rank 2 on n3 is in a data loader and sleeps, at data.py:12")
    assert "distributed_c10d.py:3252 in all_reduce" in lines[1]
    assert ALL_REDUCE[0][0] in lines[1]
