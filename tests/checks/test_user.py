"""The job's user by numbers: the same, another, missing, and declared."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.checks.user import parse_ids
from clusterprep.facts.account import Account
from clusterprep.model import SshSettings
from tests.support.fleet import absent, findings, fleet, same, told

ALICE, BOB = Account(1000, 1000), Account(1001, 1000)
OTHER_GROUP = Account(1000, 100)
FEW = "unknown warning fewer than two nodes have a value to compare"


@pytest.mark.parametrize(
    ("accounts", "expected"),
    [
        pytest.param([ALICE] * 3, ["pass"] * 3, id="equal"),
        pytest.param([ALICE, BOB, ALICE], ["pass", "fail warning", "pass"], id="another-user-id"),
        pytest.param(
            [ALICE, ALICE, OTHER_GROUP], ["pass", "pass", "fail warning"], id="another-group-id"
        ),
        pytest.param([ALICE, BOB], ["fail warning"] * 2, id="no-majority"),
        pytest.param(
            [ALICE, None, ALICE], ["pass", "fail warning", "pass"], id="no-such-user-on-one"
        ),
        pytest.param([None, None], ["fail warning"] * 2, id="no-such-user-anywhere"),
        pytest.param(
            [ALICE, None], ["skip not_applicable", "fail warning"], id="nothing-left-to-compare"
        ),
        pytest.param([ALICE], ["skip not_applicable"], id="one-node"),
        pytest.param([None], ["fail warning"], id="one-node-without-the-user"),
        pytest.param(
            [ALICE, absent("hung")], [FEW, "unknown warning hung"], id="directory-service-hangs"
        ),
        pytest.param(
            [ALICE, ALICE, absent("garbled")],
            ["pass", "pass", "unknown warning garbled"],
            id="garbled",
        ),
    ],
)
def test_a_shared_file_system_sees_numbers(accounts: list[Any], expected: list[str]) -> None:
    assert list(
        told(
            fleet(each={"job_user": "alice"}, **same("user.account", *accounts)), "user.uid"
        ).values()
    ) == (expected)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param("1000", ["pass", "fail error", "pass"], id="user"),
        pytest.param("1000:1000", ["pass", "fail error", "fail error"], id="user-and-group"),
        pytest.param("1001:1000", ["fail error", "pass", "fail error"], id="the-other"),
    ],
)
def test_what_is_required_is_compared_node_by_node(wanted: str, expected: list[str]) -> None:
    seen = fleet(
        each={"require": {"user.uid": wanted}}, **same("user.account", ALICE, BOB, OTHER_GROUP)
    )
    assert list(told(seen, "user.uid").values()) == expected


def test_nodes_with_another_user_are_not_compared() -> None:
    seen = fleet(
        each={"job_user": "alice"},
        some={"n3": {"job_user": "bob"}},
        **same("user.account", ALICE, ALICE, BOB),
    )
    assert told(seen, "user.uid") == {"n1": "pass", "n2": "pass", "n3": "skip not_applicable"}


def test_a_missing_user_is_named_with_the_id_it_has_elsewhere() -> None:
    seen = fleet(each={"ssh": SshSettings(user="alice")}, **same("user.account", BOB, None, BOB))
    (bad,) = [finding for finding in findings(seen, "user.uid") if finding.verdict == "fail"]
    assert "alice" in bad.message
    assert (bad.remedy, bad.remedy.note) == ("useradd --uid 1001 alice", "on n2")


@pytest.mark.parametrize("text", ["alice", "", "1000:", "1:2:3", "-1", "10²"])
def test_what_is_no_pair_of_ids_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a user id"):
        parse_ids(text)


def test_ids_are_one_or_two_numbers() -> None:
    assert (parse_ids("1000"), parse_ids("1000:100")) == ((1000,), (1000, 100))
