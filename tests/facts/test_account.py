"""Whose rights the agent has, and the numbers of the job's user."""

from __future__ import annotations

import pytest

from clusterprep.facts.account import Account, Rights
from clusterprep.model import Absent, Inventory, Node, SshSettings
from clusterprep.survey import registry
from tests.support.fleet import learned


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param({"uid": 0, "user": "root", "sudo": None}, Rights(0, "root"), id="root"),
        pytest.param(
            {"uid": 1000, "user": "alice", "sudo": 0}, Rights(1000, "alice", 0), id="sudo-works"
        ),
        pytest.param(
            {"uid": 1000, "user": "alice", "sudo": 1}, Rights(1000, "alice", 1), id="sudo-asks"
        ),
        pytest.param(
            {"uid": 1000, "user": "#1000", "sudo": None},
            Rights(1000, "#1000"),
            id="no-sudo-and-no-name",
        ),
    ],
)
def test_rights_are_a_user_and_what_sudo_says(answer: object, expected: Rights) -> None:
    assert learned("ssh.rights", ["ok", answer]) == expected


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"uid": 0},
        {"uid": "0", "user": "root", "sudo": None},
        {"uid": 1, "user": None, "sudo": 0},
        [0, "root"],
    ],
)
def test_rights_of_another_shape_are_garbled(answer: object) -> None:
    assert learned("ssh.rights", ["ok", answer]).reason == "garbled"


def test_an_account_is_two_numbers_and_a_missing_one_is_an_answer() -> None:
    assert learned("user.account", ["ok", {"uid": 1000, "gid": 100}]) == Account(1000, 100)
    assert learned("user.account", ["ok", None]) is None


@pytest.mark.parametrize(
    "answer", [{}, {"uid": 1000}, {"uid": "1000", "gid": 100}, {"uid": 1, "gid": None}, "alice", []]
)
def test_an_account_without_numbers_is_garbled(answer: object) -> None:
    assert learned("user.account", ["ok", answer]).reason == "garbled"


@pytest.mark.parametrize("fact", ["ssh.rights", "user.account"])
def test_a_reason_survives(fact: str) -> None:
    assert learned(fact, ["no", "hung", "no answer within 5 s"]) == Absent(
        "hung", "no answer within 5 s"
    )


@pytest.mark.parametrize(
    ("node", "user"),
    [
        pytest.param(
            Node("n1", "n1", 0, job_user="alice", ssh=SshSettings(user="root")),
            "alice",
            id="job-user",
        ),
        pytest.param(Node("n1", "n1", 0, ssh=SshSettings(user="bob")), "bob", id="login-user"),
        pytest.param(Node("n1", "n1", 0), None, id="the-login-user"),
    ],
)
def test_the_account_is_that_of_the_jobs_user(node: Node, user: str | None) -> None:
    (read,) = registry.facts()["user.account"].reads(node, Inventory("test", (node,)))
    assert read.args == (user,)
