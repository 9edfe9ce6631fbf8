"""A file with given content, and the states of files that all resources stand on."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from clusterprep.changes.resources import (
    NoPlan,
    PlanContext,
    known_states,
    parse_target,
    target_fact,
)
from clusterprep.changes.resources.file import RESOURCE
from clusterprep.facts.account import Account
from clusterprep.model import Absent, Fleet, Inventory, Node
from clusterprep.model.files import Access, FileChange, FileState
from clusterprep.nccl.environment import Environment
from clusterprep.survey.queries import plan_queries
from tests.support.asked import interpret, reads

NODE = Node("n1", "n1", 0, root="/srv/image")


def planned(state: FileState, **params: Any) -> Any:
    step = {"path": state.path, **params}
    assert RESOURCE.paths(step, Inventory("test", ())) == (state.path,)
    seen = PlanContext(
        Fleet(Inventory("test", (NODE,)), {}), NODE, {state.path: state}, {}, Environment((), {})
    )
    (change,) = RESOURCE.plan(step, seen)
    return change


@pytest.mark.parametrize(
    ("before", "content", "action"),
    [
        pytest.param(None, "hello\n", "create", id="new"),
        pytest.param(b"hello\n", "hello\n", "none", id="as-wanted"),
        pytest.param(b"hello", "hello\n", "update", id="without-newline"),
        pytest.param(b"", "", "none", id="empty-as-wanted"),
        pytest.param(None, "", "create", id="an-empty-file-is-a-file"),
        pytest.param("größer\n".encode(), "größer\n", "none", id="utf-8"),
    ],
)
def test_a_change_is_the_difference_from_what_is(
    before: bytes | None, content: str, action: str
) -> None:
    change = planned(FileState("/etc/motd", before), content=content)
    assert (change.node, change.path, change.action) == ("n1", "/etc/motd", action)
    assert change.after == content.encode()


@pytest.mark.parametrize(
    ("params", "before", "mode"),
    [
        pytest.param({}, None, 0o644, id="default"),
        pytest.param({"mode": "0755"}, None, 0o755, id="text"),
        pytest.param({"mode": "600"}, None, 0o600, id="without-zero"),
        pytest.param({}, b"old", 0o640, id="a-file-that-exists-keeps-its-own"),
    ],
)
def test_modes_are_octal_and_for_new_files(
    params: dict[str, Any], before: bytes | None, mode: int
) -> None:
    assert planned(FileState("/etc/motd", before, 0o640), content="x", **params).mode == mode


def changed(state: FileState, account: Account | None = None, **params: str) -> FileChange:
    step = {"path": state.path, "content": "x", **params}
    facts = {fact.name: account for fact in RESOURCE.facts(step, Inventory("test", ()))}
    context = PlanContext(
        Fleet(Inventory("test", (NODE,)), {}), NODE, {state.path: state}, facts, Environment((), {})
    )
    (change,) = RESOURCE.plan(step, context)
    return change


THERE = FileState("/etc/motd", b"x", 0o640, 7, 8)


@pytest.mark.parametrize(
    ("params", "account", "access", "action"),
    [
        pytest.param({}, None, None, "none", id="left-alone"),
        pytest.param(
            {"mode": "0600"}, None, Access(0o600, 7, 8), "update", id="another-mode-same-owner"
        ),
        pytest.param({"mode": "0640"}, None, Access(0o640, 7, 8), "none", id="the-mode-it-has"),
        pytest.param(
            {"owner": "job"},
            Account(5, 6),
            Access(0o640, 5, 6),
            "update",
            id="another-owner-same-mode",
        ),
        pytest.param(
            {"owner": "job", "mode": "0600"},
            Account(7, 8),
            Access(0o600, 7, 8),
            "update",
            id="both",
        ),
    ],
)
def test_owner_and_mode_are_changed_where_they_are_given(
    params: dict[str, str], account: Account | None, access: Access | None, action: str
) -> None:
    change = changed(THERE, account, **params)
    assert (change.access, change.action) == (access, action)


def test_a_new_file_belongs_to_the_owner_that_is_given() -> None:
    assert changed(FileState("/etc/motd", None), Account(5, 6), owner="job").access == Access(
        0o644, 5, 6
    )
    assert changed(FileState("/etc/motd", None), mode="0600").mode == 0o600


def test_a_user_that_the_node_does_not_know_is_a_gap() -> None:
    with pytest.raises(NoPlan, match="no user job") as raised:
        changed(THERE, None, owner="job")
    assert raised.value.absent.reason == "no_such_user"


@pytest.mark.parametrize("given", [{}, {"content": "x", "template": "y"}])
def test_a_file_has_one_source(given: dict[str, str]) -> None:
    assert [key for key, _ in RESOURCE.wrong({"path": "/x", **given})] == [""]


def test_owners_of_a_tree_that_is_not_running_are_refused() -> None:
    assert "leave out owner" in RESOURCE.live({"owner": "job"})
    assert RESOURCE.live({"mode": "0600"}) == ""


# ---------------------------------------------------------------- states


def looked(answer: Any) -> Any:
    inventory = Inventory("test", (NODE,))
    plan = plan_queries((), {}, [target_fact("/etc/nccl.conf")])
    (read,) = reads(plan, NODE, inventory)
    assert read.args == ("/srv/image/etc/nccl.conf", "/srv/image")
    return interpret(plan, NODE, inventory, {read: answer})["target:/etc/nccl.conf"]


def test_a_state_has_every_byte_and_its_owner() -> None:
    content = bytes(range(256))
    answer = {"data": base64.b64encode(content).decode(), "mode": 0o600, "uid": 1000, "gid": 100}
    assert looked(["ok", answer]) == FileState("/etc/nccl.conf", content, 0o600, 1000, 100)


def test_no_such_file_is_a_state() -> None:
    assert looked(["no", "missing", ""]) == FileState("/etc/nccl.conf", None)
    assert parse_target("/x", None).content is None


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"data": "no base64!", "mode": 420, "uid": 0, "gid": 0}, id="no-base64"),
        pytest.param({"data": "aGFsbG8", "mode": 420, "uid": 0, "gid": 0}, id="cut-off"),
        pytest.param({"data": "aGFsbG8="}, id="no-mode"),
        pytest.param([], id="a-list"),
    ],
)
def test_a_state_that_is_not_whole_is_garbled_and_never_an_empty_file(answer: object) -> None:
    assert looked(["ok", answer]).reason == "garbled"


@pytest.mark.parametrize("reason", ["denied", "not_a_file", "truncated", "hung"])
def test_a_reason_survives_with_the_path(reason: str) -> None:
    state = looked(["no", reason, "why"])
    assert state == Absent(reason, "why")
    there = FileState("/etc/b", b"x")
    assert known_states({"/etc/b": there, "/etc/nccl.conf": state}) == Absent(
        reason, "/etc/nccl.conf: why"
    )
    assert known_states({"/etc/b": there}) == {"/etc/b": there}


def test_a_reason_that_names_the_file_already_names_it_once() -> None:
    told = "/tmp/x is not touched: /tmp (mode 1777) can be written by all users"
    found = known_states({"/tmp/x": Absent("not_ours", told)})
    assert found == Absent("not_ours", told)
