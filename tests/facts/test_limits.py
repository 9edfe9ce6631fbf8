"""Locked memory as the agent reports it, in bytes or without limit."""

from __future__ import annotations

import math

import pytest

from clusterprep.model import Absent, Inventory, Node, SshSettings
from clusterprep.survey import registry
from tests.support.fleet import learned


@pytest.mark.parametrize(
    ("memlock", "expected"),
    [
        pytest.param(None, math.inf, id="unlimited"),
        (8388608, 8388608.0),
        (0, 0.0),
        (65536, 65536.0),
    ],
)
def test_a_limit_is_bytes(memlock: int | None, expected: float) -> None:
    assert learned("lim.memlock", ["ok", {"memlock": memlock, "by": "this session"}]) == expected


@pytest.mark.parametrize(
    "answer", [None, {}, [], {"memlock": "much"}, {"memlock": [1]}, "unlimited"]
)
def test_what_is_no_limit_is_garbled_and_not_unlimited(answer: object) -> None:
    assert learned("lim.memlock", ["ok", answer]).reason == "garbled"


def test_a_session_that_was_denied_stays_denied() -> None:
    answer = ["no", "denied", "a session of alice could not be opened"]
    assert learned("lim.memlock", answer) == Absent("denied", answer[2])


@pytest.mark.parametrize(
    ("node", "user"),
    [
        pytest.param(
            Node("n1", "n1", 0, job_user="alice", ssh=SshSettings(user="root")),
            "alice",
            id="job-user",
        ),
        pytest.param(Node("n1", "n1", 0, ssh=SshSettings(user="root")), "root", id="login-user"),
        pytest.param(Node("n1", "n1", 0), None, id="the-login-user"),
    ],
)
def test_the_limit_is_that_of_the_jobs_user(node: Node, user: str | None) -> None:
    (read,) = registry.facts()["lim.memlock"].reads(node, Inventory("test", (node,)))
    assert read.args == (user,)


@pytest.mark.parametrize(
    ("fact", "answer", "expected"),
    [
        ("lim.nofile", {"nofile": 1048576}, 1048576.0),
        ("lim.nofile", {"nofile": None}, math.inf),
        ("lim.nofile", {"nofile": 0}, 0.0),
        ("lim.stack", {"stack": 8388608}, 8388608.0),
        ("lim.stack", {"stack": None}, math.inf),
        ("lim.nproc", {"nproc": 96365}, 96365.0),
    ],
)
def test_one_answer_holds_all_limits(
    fact: str, answer: dict[str, int | None], expected: float
) -> None:
    whole = {"memlock": 1, "nofile": 2, "stack": 3, "nproc": 4, "by": "su alice", **answer}
    assert learned(fact, ["ok", whole]) == expected


@pytest.mark.parametrize("fact", ["lim.nofile", "lim.stack", "lim.nproc"])
@pytest.mark.parametrize("limit", ["1024", -1, True, 1.5, [], {}, "unlimited"])
def test_what_is_no_number_is_garbled(fact: str, limit: object) -> None:
    name = fact.removeprefix("lim.")
    assert learned(fact, ["ok", {name: limit}]).reason == "garbled"
    assert learned(fact, ["ok", {"memlock": None}]).reason == "garbled"
    assert learned(fact, ["no", "hung", "no answer within 5 s"]).reason == "hung"
