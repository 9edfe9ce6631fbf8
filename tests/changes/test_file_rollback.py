"""Rollback: the old bytes of the last run, and never over later work of others."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.changes.file_rollback import (
    OldFile,
    OldRun,
    OtherNodes,
    last_run,
    other_nodes,
    parse_runs,
    plan_rollback,
    standing_before,
)
from clusterprep.errors import InputError, Refused
from clusterprep.model.files import Access

PATH = "/etc/nccl.conf"
R1, R2, R3 = "20261121-093000-4f2a", "20261121-101500-0001", "20261122-080000-ffff"
KEPT: Any = object()


def touched(
    before: bytes | None, after: bytes | None, now: Any = KEPT, path: str = PATH, mode: int = 0o644
) -> OldFile:
    return OldFile(path, mode, before, after, after if now is KEPT else now)


def run(
    name: str,
    *files: OldFile,
    state: str = "done",
    cluster: str = "demo",
    undoes: str | None = None,
) -> OldRun:
    return OldRun(name, cluster, state, undoes, files)


# ---------------------------------------------------------------- which run

FILE = touched(b"old\n", b"new\n")


@pytest.mark.parametrize(
    ("memories", "expected"),
    [
        pytest.param({"n1": [], "n2": []}, None, id="nothing-was-ever-done"),
        pytest.param({"n1": [run(R1, FILE)], "n2": [run(R1, FILE)]}, R1, id="the-only-one"),
        pytest.param(
            {"n1": [run(R1, FILE), run(R2, FILE)], "n2": [run(R1, FILE)]},
            R2,
            id="the-last-on-any-node",
        ),
        pytest.param(
            {"n1": [run(R1, FILE), run(R2, FILE, cluster="other")]},
            R1,
            id="the-last-of-this-cluster",
        ),
        pytest.param(
            {"n1": [run(R1, FILE), run(R2, FILE, state="undone"), run(R3, FILE, undoes=R2)]},
            R2,
            id="already-undone",
        ),
        pytest.param(
            {"n1": [run(R1, FILE), run(R2, FILE, state="undone")]},
            R1,
            id="a-run-that-put-everything-back-itself",
        ),
        pytest.param({"n1": [run(R1, FILE, state="undone")]}, None, id="only-a-run-that-failed"),
        pytest.param(
            {"n1": [run(R1, FILE), run(R2, FILE, state="staged")]},
            R1,
            id="one-that-was-never-committed",
        ),
        pytest.param(
            {"n1": [run(R1, FILE), run(R2, FILE, state="committed")]},
            R1,
            id="one-that-is-not-settled",
        ),
        pytest.param(
            {"n1": [run(R1, FILE), replace(run(R2, FILE, state="undone"), by=R3)]},
            R2,
            id="cut-off-and-rolled-back",
        ),
        pytest.param(
            {"n1": [run(R1, FILE), replace(run(R2), reversible=False)]},
            R1,
            id="a-later-one-that-changed-nothing",
        ),
        pytest.param(
            {"n1": [replace(run(R3, FILE), number=1), replace(run(R1, FILE), number=2)]},
            R1,
            id="by-number-whatever-the-clock-of-a-controller-said",
        ),
        pytest.param(
            {"n1": [run(R1, FILE), run(R2, FILE)], "n2": [run(R1, FILE), run(R2, FILE)], "n3": []},
            R2,
            id="a-node-that-remembers-nothing",
        ),
    ],
)
def test_the_last_run_that_changed_something(
    memories: dict[str, list[OldRun]], expected: str | None
) -> None:
    assert last_run(memories, "demo", None) == expected


def test_of_runs_that_share_no_node_the_one_with_the_higher_number_is_the_last() -> None:
    earlier, later = replace(run(R3, FILE), number=5), replace(run(R1, FILE), number=6)
    assert last_run({"n1": [earlier], "n2": [later]}, "demo", None) == R1


def test_the_other_nodes_of_a_run_are_known_by_the_names_that_they_had() -> None:
    both = replace(run(R1, FILE), nodes=("a1", "a2", "a3"))
    memories = {"n1": [replace(both, node="a1")], "a2": [], "n9": [run(R2, FILE)]}
    assert other_nodes(memories, R1) == OtherNodes(("a2",), ("a3",))
    assert other_nodes({"n1": [run(R1, FILE)], "n2": []}, R1) == OtherNodes(), "an old release's"


def test_a_node_that_could_not_stage_its_batch_has_nothing_to_remember() -> None:
    """Its disk was full, say: its batch was taken back, and the batches before it stand."""
    batches = (("n1",), ("n2", "n3"))
    first = replace(run(R1, FILE), nodes=("n1",), batch=1, batches=batches)
    second = replace(first, nodes=("n2", "n3"), batch=2, state="undone")
    of_others = other_nodes({"n1": [first], "n2": [], "n3": [second]}, R1)
    assert of_others == OtherNodes(taken_back=("n2",))
    standing = replace(second, state="done")
    assert other_nodes({"n1": [first], "n2": [], "n3": [standing]}, R1).forgetful == ("n2",)
    later = [second, run(R2, FILE, undoes=R1)]  # it stood until that rollback
    assert other_nodes({"n1": [first], "n2": [], "n3": later}, R1).forgetful == ("n2",)


def test_a_run_asked_for_must_be_one_of_this_cluster() -> None:
    memories = {"n1": [run(R1, FILE), run(R2, FILE, cluster="other"), run(R3, FILE, undoes=R1)]}
    assert last_run(memories, "demo", R1) == R1
    for strange in (R2, R3, "20260101-000000-0000"):
        with pytest.raises(InputError) as raised:
            last_run(memories, "demo", strange)
        assert raised.value.code == 2
        assert raised.value.problems[0].key == "--run"
        assert raised.value.problems[0].hint == f"they remember {R1}"


UNDONE = (run(R2, FILE, state="undone"), run(R3, FILE, undoes=R2))


@pytest.mark.parametrize(
    ("memories", "earlier"),
    [
        pytest.param({"n1": [run(R1, FILE), *UNDONE]}, R1, id="one-before-it-stands"),
        pytest.param({"n1": [run(R1, FILE, cluster="other"), *UNDONE]}, None, id="of-another"),
        pytest.param({"n1": [*UNDONE]}, None, id="the-only-one"),
        pytest.param(
            {"n1": [replace(run(R1), reversible=False), *UNDONE]}, None, id="changed-nothing"
        ),
        pytest.param({"n1": [run(R1, FILE), *UNDONE], "n2": []}, R1, id="a-node-without-memory"),
    ],
)
def test_of_a_run_that_is_undone_the_one_before_it_is_known(
    memories: dict[str, list[OldRun]], earlier: str | None
) -> None:
    assert standing_before(memories, "demo", R2) == earlier


# ---------------------------------------------------------------- what it would write


@pytest.mark.parametrize(
    ("file", "action"),
    [
        pytest.param(touched(b"old\n", b"new\n"), "update", id="changed"),
        pytest.param(touched(None, b"new\n"), "delete", id="created"),
        pytest.param(touched(b"old\n", None), "create", id="removed"),
        pytest.param(touched(b"\x00\xff\r\n", b"new\n"), "update", id="any-bytes"),
    ],
)
def test_the_old_bytes_come_back_from_what_is_there_now(file: OldFile, action: str) -> None:
    (change,) = plan_rollback({"n1": [run(R1, file)]}, R1, force=False)
    assert (change.node, change.path, change.action) == ("n1", PATH, action)
    assert (change.before, change.after, change.mode) == (file.now, file.before, file.mode)


def test_only_nodes_of_that_run_are_written() -> None:
    memories = {"n1": [run(R1, FILE), run(R2, FILE)], "n2": [run(R1, FILE)], "n3": []}
    assert [change.node for change in plan_rollback(memories, R2, force=False)] == ["n1"]


@pytest.mark.parametrize("state", ["undone", "staged", "committed"])
def test_what_is_already_undone_needs_nothing(state: str) -> None:
    memories = {"n1": [run(R1, touched(b"old\n", b"new\n", now=b"edited\n"), state=state)]}
    assert plan_rollback(memories, R1, force=False) == ()


def test_a_node_that_is_already_undone_does_not_stop_the_other() -> None:
    memories = {"n1": [run(R1, FILE, state="undone")], "n2": [run(R1, FILE)]}
    assert [change.node for change in plan_rollback(memories, R1, force=False)] == ["n2"]


# ---------------------------------------------------------------- what would be destroyed


@pytest.mark.parametrize(
    ("now", "line"),
    [
        pytest.param(b"new\nmine\n", "+mine\n", id="edited"),
        pytest.param(None, "-new\n", id="deleted"),
        pytest.param(b"", "-new\n", id="emptied"),
        pytest.param(b"new", "-new\n", id="a-byte-less"),
    ],
)
def test_a_file_that_was_edited_since_is_refused_with_the_edit(
    now: bytes | None, line: str
) -> None:
    memories = {"n1": [run(R1, FILE)], "n2": [run(R1, touched(b"old\n", b"new\n", now=now))]}
    with pytest.raises(Refused) as raised:
        plan_rollback(memories, R1, force=False)
    assert raised.value.code == 4
    assert f"n2: {PATH} was edited after run {R1}" in raised.value.message
    assert "--force" in raised.value.message
    assert line in raised.value.diff


def test_what_is_no_longer_a_file_is_refused_even_by_force() -> None:
    linked = replace(
        touched(b"old\n", b"new\n", now=None),
        strange=f"{PATH} is a symbolic link; it is not followed",
    )
    with pytest.raises(Refused, match=r"n1: .* is a symbolic link"):
        plan_rollback({"n1": [run(R1, linked)]}, R1, force=True)


def test_secrets_in_an_edit_are_not_shown() -> None:
    memories = {"n1": [run(R1, touched(b"", b"new\n", now=b"new\nAPI_KEY=hunter2\n"))]}
    with pytest.raises(Refused) as raised:
        plan_rollback(memories, R1, force=False)
    assert "hunter2" not in raised.value.diff


@pytest.mark.parametrize("cluster", ["demo", "other"])
def test_a_newer_run_on_the_same_file_is_refused(cluster: str) -> None:
    newer = run(R2, touched(b"new\n", b"newer\n"), cluster=cluster)
    memories = {"n1": [run(R1, touched(b"old\n", b"new\n", now=b"newer\n")), newer]}
    with pytest.raises(Refused, match=f"n1: run {R2} changed {PATH} after run {R1}"):
        plan_rollback(memories, R1, force=False)


@pytest.mark.parametrize(
    "newer",
    [
        pytest.param(run(R2, touched(b"", b"x", path="/etc/motd")), id="another-file"),
        pytest.param(run(R2, FILE, state="undone"), id="undone-again"),
        pytest.param(run(R2, FILE, undoes="20261120-000000-0000"), id="a-rollback-of-another-run"),
    ],
)
def test_a_newer_run_that_left_no_trace_on_the_file_is_no_obstacle(newer: OldRun) -> None:
    (change,) = plan_rollback({"n1": [run(R1, FILE), newer]}, R1, force=False)
    assert change.after == b"old\n"


def test_all_that_stands_in_the_way_is_counted() -> None:
    edited = touched(b"old\n", b"new\n", now=b"mine\n")
    memories = {node: [run(R1, edited)] for node in ("n1", "n2", "n3")}
    with pytest.raises(Refused, match=r"n1: .* and 2 more"):
        plan_rollback(memories, R1, force=False)


def test_force_puts_the_old_bytes_back_over_anything() -> None:
    edited = touched(b"old\n", b"new\n", now=b"mine\n")
    newer = run(R2, touched(b"new\n", b"newer\n"))
    memories = {
        "n1": [run(R1, edited)],
        "n2": [run(R1, touched(b"old\n", b"new\n", now=b"newer\n")), newer],
    }
    planned = plan_rollback(memories, R1, force=True)
    assert [(c.node, c.before, c.after) for c in planned] == [
        ("n1", b"mine\n", b"old\n"),
        ("n2", b"newer\n", b"old\n"),
    ]


# ---------------------------------------------------------------- the agent's answer


def encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def answer(**fields: Any) -> dict[str, Any]:
    row = {
        "path": PATH,
        "mode": 420,
        "before": encoded(None),
        "after": encoded(b"\x00\xff"),
        "now": encoded(b""),
        "strange": None,
    }
    return {
        "run": R1,
        "cluster": "demo",
        "state": "done",
        "undoes": None,
        "by": None,
        "number": 0,
        "node": "",
        "nodes": "",
        "reversible": True,
        "files": [row],
        **fields,
    }


def test_an_answer_is_runs_with_their_bytes() -> None:
    assert parse_runs({"runs": [answer(), answer(run=R2, undoes=R1, files=[])]}) == (
        run(R1, OldFile(PATH, 420, None, b"\x00\xff", b"")),
        run(R2, undoes=R1),
    )


def test_all_that_a_node_remembers_of_a_file_is_kept() -> None:
    row = {
        "path": "/proc/sys/x",
        "mode": 0o600,
        "before": encoded(b"1"),
        "after": encoded(b"2"),
        "now": encoded(b"3"),
        "strange": "is a link",
        "resource": "sysctl",
        "running": True,
        "was": [0o644, 1, 2],
        "access": [0o600, 3, 4],
    }
    (found,) = parse_runs({"runs": [answer(files=[row], by=R3)]})
    assert found.by == R3
    assert found.files == (
        OldFile(
            "/proc/sys/x",
            0o600,
            b"1",
            b"2",
            b"3",
            strange="is a link",
            resource="sysctl",
            running=True,
            was=Access(0o644, 1, 2),
            access=Access(0o600, 3, 4),
        ),
    )


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(None, id="nothing"),
        pytest.param({}, id="no-list"),
        pytest.param([{}], id="no-files"),
        pytest.param([answer(files=None)], id="files-of-another-kind"),
        pytest.param([answer(files={})], id="files-by-name"),
        pytest.param([answer(files=[{"path": PATH}])], id="half-a-file"),
        pytest.param(
            [answer(files=[{**answer()["files"][0], "before": "no base64!"}])], id="no-base64"
        ),
        pytest.param(
            [answer(files=[{**answer()["files"][0], "mode": "rw"}])], id="a-mode-in-letters"
        ),
        pytest.param(["run"], id="names-only"),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_never_an_empty_past(runs: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse_runs({"runs": runs})
    with pytest.raises(KeyError):
        parse_runs({"no": "failed", "why": "EIO"})


def test_owner_mode_and_running_values_come_back_as_what_they_are() -> None:
    was, now = Access(0o644, 0, 0), Access(0o600, 7, 7)
    chmod = OldFile("/x", 0o644, b"a", b"a", b"a", resource="file", was=was, access=now)
    value = OldFile("/proc/sys/x", 0o644, b"1", b"2", b"2", resource="sysctl", running=True)
    first, second = plan_rollback({"n1": [run(R1, chmod, value)]}, R1, force=False)
    assert (first.access, first.was, first.action, first.resource) == (was, now, "update", "file")
    assert (second.after, second.running, second.resource) == (b"1", True, "sysctl")
    with pytest.raises(Refused, match="/proc/sys/x was edited"):
        plan_rollback({"n1": [run(R1, chmod, replace(value, now=b"3"))]}, R1, force=False)
