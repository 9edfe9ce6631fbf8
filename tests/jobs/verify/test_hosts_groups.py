"""Group tests on real hosts.

What makes collectives slow is named although no socket of ours shows it.

The fault polices what the job's user sends, as switches do with classes of traffic: the links
stage, whose streams belong to the agent, is as fast as ever.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator

import pytest

from tests.jobs.verify.moments import ranks
from tests.support.command import Answer, clusterprep
from tests.support.lab import Host, Lab, faults

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
TRAINER = "trainer"
PACKETS = 400  # a second
FEW = {
    "sizes": ["256K"],
    "timeout": 20,
    "min_busbw": 0.1,
}  # GB/s; four healthy hosts on two cores make more


@pytest.fixture(autouse=True)
def no_rank_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "lab4" in request.fixturenames:
        for host in request.getfixturevalue("lab4").hosts:
            assert ranks(host) == []


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    with contextlib.ExitStack() as users:
        for host in lab4.hosts:
            users.enter_context(faults.add_user(host, TRAINER))
        yield lab4


def verify(lab: Lab, **settings: object) -> Answer:
    inventory = lab.inventory(job_user=TRAINER, verify={**FEW, **settings})
    answer = clusterprep(lab, "verify", inventory=inventory, timeout=400)
    print(json.dumps(answer.report["verify"], indent=1))  # shown where a test fails
    return answer


def culprits(answer: Answer) -> list[tuple[str, list[str]]]:
    return [(one["kind"], one["nodes"]) for one in answer.report["verify"]["culprits"]]


def stages(answer: Answer) -> dict[str, str]:
    return {stage["name"]: stage["verdict"] for stage in answer.report["verify"]["stages"]}


@pytest.mark.timeout(300)
def test_a_node_that_is_slow_for_the_job_alone_is_named(lab: Lab) -> None:
    with faults.slow_user(lab.host("n3"), TRAINER, PACKETS):
        answer = verify(lab)
    assert (answer.code, culprits(answer)) == (1, [("node", ["n3"])])
    found = stages(answer)
    assert (found["bandwidth"], found["links"], found["groups"]) == ("fail", "pass", "fail")
    (culprit,) = answer.report["verify"]["culprits"]
    assert any("pairs with n3" in words for words in culprit["evidence"])
    # Of two busy cores a healthy pair may stay undecided, which is said; what names n3 are the
    # three pairs with it.
    assert re.search(r"[3-6] of 6 pairs exercised", answer.report["verify"]["message"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pair_that_is_slow_for_the_job_alone_is_named_as_a_pair(lab: Lab) -> None:
    with faults.slow_user(lab.host("n2"), TRAINER, PACKETS, lab.host("n3")):
        answer = verify(lab)
    assert (answer.code, culprits(answer)) == (1, [("link", ["n2", "n3"])])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_that_is_slow_alike_blames_nobody(lab: Lab) -> None:
    answer = verify(lab, min_busbw=1000)
    assert (answer.code, culprits(answer)) == (1, [])
    assert "no node is slower than others" in answer.report["verify"]["message"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guilty", [["n5"], ["n2", "n7"]])
def test_of_eight_hosts_groups_find_the_suspects_first(
    make_lab: Callable[..., Lab], guilty: list[str]
) -> None:
    lab = make_lab(8)
    with contextlib.ExitStack() as undo:
        users = [undo.enter_context(faults.add_user(host, TRAINER)) for host in lab.hosts]
        assert len(users) == 8
        for name in guilty:
            host: Host = lab.host(name)
            undo.enter_context(faults.slow_user(host, TRAINER, PACKETS))
        answer = verify(lab)
    assert (answer.code, sorted(culprits(answer))) == (1, [("node", [name]) for name in guilty])
    (told,) = re.findall(r"(\d+) group tests", answer.report["verify"]["message"])
    assert int(told) >= 4
