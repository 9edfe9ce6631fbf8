"""Changes as people see them: whole lines, equal nodes together, and no secrets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from clusterprep.changes.file_plan import (
    change_rows,
    diff_text,
    gap_rows,
    plan_file_changes,
    state_after,
)
from clusterprep.changes.playbook.conditions import parse
from clusterprep.changes.playbook.steps import Step
from clusterprep.changes.resources import env, file
from clusterprep.changes.resources import line as line_
from clusterprep.changes.transaction import _changes_by_node
from clusterprep.errors import InputError
from clusterprep.model.files import Access, FileChange, FileState
from clusterprep.nccl.environment import Environment, render
from tests.support.fleet import absent, fleet, healthy, silent, with_facts


def change(
    before: bytes | None, after: bytes | None, node: str = "n1", path: str = "/etc/nccl.conf"
) -> FileChange:
    return FileChange(node, "env", path, before, after)


# ---------------------------------------------------------------- the text


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(b"a\n", b"a\n", "", id="nothing"),
        pytest.param(None, None, "", id="no-file-either-way"),
        pytest.param(None, b"a\n", "@@ -0,0 +1 @@\n+a\n", id="new"),
        pytest.param(b"a\n", None, "@@ -1 +0,0 @@\n-a\n", id="gone"),
        pytest.param(b"a\nb\n", b"a\nc\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n", id="a-line"),
        pytest.param(b"a", b"b", "@@ -1 +1 @@\n-a\n+b\n", id="without-newlines"),
        pytest.param(b"a\xff\n", b"a\n", "@@ -1 +1 @@\n-a\\xff\n+a\n", id="no-utf-8"),
        pytest.param("größer\n".encode(), None, "@@ -1 +0,0 @@\n-größer\n", id="utf-8"),
    ],
)
def test_a_diff_is_unified_with_the_path_on_top(
    before: bytes | None, after: bytes | None, expected: str
) -> None:
    head = "--- /etc/nccl.conf\n+++ /etc/nccl.conf\n" if expected else ""
    assert diff_text(change(before, after)) == head + expected


@settings(deadline=None)
@given(st.one_of(st.none(), st.binary(max_size=60)), st.one_of(st.none(), st.binary(max_size=60)))
def test_any_bytes_make_whole_lines_that_say_what_they_are(
    before: bytes | None, after: bytes | None
) -> None:
    assume(not any(b"PRIVATE KEY" in content for content in (before or b"", after or b"")))
    text = diff_text(change(before, after))
    assert text == "" or text.endswith("\n")
    assert all(line[:1] in ("+", "-", " ", "@") for line in text.split("\n")[:-1])


# ---------------------------------------------------------------- secrets

SECRET = "hunter2-s3cr3t"


@pytest.mark.parametrize(
    "line",
    [
        "API_KEY={}",
        "export WANDB_API_KEY={}",
        "  export  HF_TOKEN = {}",
        "aws_secret_access_key = {}",
        "MY_SECRET='{}'",
        "DB_PASSWORD={}",
        "PGPASS={}",
        "db.password={}",
        "my-api-key={}",
        'declare -x AWS_SECRET_ACCESS_KEY="{}"',
        "echo export WANDB_API_KEY={}",
        "printf '%s\\n' 'export HF_TOKEN={}'",
        "A=1; export TOKEN={}",
        '"token": "{}",',
        "password: {}",
        "# API_KEY={}",
        "API_KEY=x\r{}",
        "API_KEY=x\x0c{}",
        "API_KEY=x\x85{}",
        "API_KEY=x\u2028{}",
        "API_KEY= # {}",
    ],
)
def test_values_of_secret_names_are_blotted_out(line: str) -> None:
    secret = line.replace("{}", SECRET).encode()
    for before, after in (
        (secret, None),
        (None, secret),
        (secret + b"\nA=1\n", secret + b"\nA=2\n"),
        (b"A=1\n" + secret + b"\n", b"A=1\n"),
    ):
        text = diff_text(change(before, after))
        assert SECRET not in text
        assert "<redacted>" in text


@pytest.mark.parametrize(
    "line",
    [
        "NCCL_IB_HCA=mlx5_0",
        "# keys are kept elsewhere",
        "GLOO_SOCKET_IFNAME=eth0",
        "TOKENS",
        "PASS",
    ],
)
def test_other_lines_are_shown(line: str) -> None:
    assert f"+{line}\n" in diff_text(change(None, line.encode()))


# ---------------------------------------------------------------- rows


def test_equal_changes_are_one_row() -> None:
    planned = [change(None, b"a\n", node) for node in ("n1", "n2")] + [change(b"b\n", b"a\n", "n3")]
    found = change_rows(planned, {}, {})
    assert [(row.nodes, row.action, row.outcome) for row in found] == [
        (("n1", "n2"), "create", "planned"), (("n3",), "update", "planned")
    ]  # fmt: skip


def test_outcomes_and_details_keep_nodes_apart() -> None:
    planned = [change(None, b"a\n", node) for node in ("n1", "n2", "n3")]
    found = change_rows(
        planned, {"n1": "done", "n2": "failed", "n3": "done"}, {"n2": "no_space: /etc"}
    )
    assert [(row.nodes, row.outcome, row.detail) for row in found] == [
        (("n1", "n3"), "done", ""), (("n2",), "failed", "no_space: /etc")
    ]  # fmt: skip


def test_what_needs_no_change_is_unchanged_whatever_became_of_the_node() -> None:
    (row,) = change_rows([change(b"a", b"a")], {"n1": "failed"}, {})
    assert (row.action, row.outcome, row.diff) == ("none", "unchanged", "")


def test_nodes_that_differ_only_in_a_secret_are_one_row() -> None:
    planned = [change(f"TOKEN={node}\n".encode(), b"", node) for node in ("n1", "n2")]
    assert [row.nodes for row in change_rows(planned, {}, {})] == [("n1", "n2")]


# ---------------------------------------------------------------- planning

ENV = Step("environment", env.RESOURCE, {})
MOTD = Step("motd", file.RESOURCE, {"path": "/etc/motd", "content": "hello\n"})
PATHS = ("/etc/profile.d/clusterprep-nccl.sh", "/etc/nccl.conf")
NO_GAPS = Environment((), {})


def with_targets(*paths: str) -> Any:
    return {f"target:{path}": FileState(path, None) for path in paths}


def test_every_step_is_planned_on_every_node_reached() -> None:
    facts = with_targets(*PATHS, "/etc/motd")
    planned, gaps = plan_file_changes(
        fleet(n1=facts, n2=facts, n3=silent("n3")), [ENV, MOTD], NO_GAPS
    )
    assert gaps == {}
    assert [(c.node, c.path) for c in planned] == [
        (node, path) for node in ("n1", "n2") for path in (*PATHS, "/etc/motd")
    ]


def test_a_file_whose_state_is_not_known_is_a_gap_of_that_node() -> None:
    facts = with_targets(*PATHS)
    seen = fleet(
        n1=facts, n2={**facts, "target:/etc/nccl.conf": absent("not_a_file", "a link")}, n3={}
    )
    planned, gaps = plan_file_changes(seen, [ENV], NO_GAPS)
    assert {c.node for c in planned} == {"n1"}
    assert str(gaps["n2"]) == "not_a_file: /etc/nccl.conf: a link"
    assert str(gaps["n3"]).startswith("not_asked: /etc/profile.d")


def test_a_gap_of_the_environment_stops_only_what_is_made_of_it() -> None:
    facts = with_targets(*PATHS, "/etc/motd")
    environment = Environment((), {"n2": "NCCL_SOCKET_IFNAME: denied"})
    planned, gaps = plan_file_changes(fleet(n1=facts, n2=facts), [ENV, MOTD], environment)
    assert {node: str(gap) for node, gap in gaps.items()} == {"n2": "NCCL_SOCKET_IFNAME: denied"}
    assert [(c.node, c.path) for c in planned if c.node == "n2"] == [("n2", "/etc/motd")]
    assert plan_file_changes(fleet(n1=facts, n2=facts), [MOTD], environment)[1] == {}


def test_a_healthy_fleet_plans_the_same_on_all_nodes() -> None:
    seen = healthy()
    states = {
        (node.name, f"target:{path}"): FileState(path, None)
        for node in seen.reached
        for path in PATHS
    }
    seen = with_facts(seen, states)
    planned, gaps = plan_file_changes(seen, [ENV], render(seen))
    assert gaps == {}
    assert [(row.nodes, row.action) for row in change_rows(planned, {}, {})] == [
        (("n1", "n2", "n3", "n4"), "create")
    ] * 2


# ---------------------------------------------------------------- several steps, conditions


def line(marker: str, text: str, when: str = "", nodes: frozenset[str] | None = None) -> Step:
    params = {"path": "/etc/motd", "marker": marker, "block": text}
    return Step(
        marker,
        line_.RESOURCE,
        params,
        when=(parse(when),) if when else (),
        nodes=nodes,
        file="b",
        line=3,
    )


def test_a_step_is_planned_against_what_the_one_before_leaves() -> None:
    planned, _ = plan_file_changes(
        fleet(n1=with_targets("/etc/motd")), [line("a", "x"), line("b", "y")], NO_GAPS
    )
    first, second = planned
    assert (first.before, first.after, second.before) == (None, second.before, first.after)
    assert second.after.count(b"BEGIN") == 2
    (whole,) = _changes_by_node(planned)["n1"]
    assert (whole.before, whole.after, whole.resource) == (None, second.after, "line")


def test_a_step_is_for_its_nodes_and_where_its_conditions_hold() -> None:
    seen = fleet(
        each={"groups": ("g",)},
        **{
            n: {**with_targets("/etc/motd"), "kernel.release": v}
            for n, v in (("n1", "5.4"), ("n2", "6.1"), ("n3", "6.2"))
        },
    )
    steps = [line("a", "{{ kernel }}", "kernel > 6 and in group g", frozenset({"n1", "n2"}))]
    planned, gaps = plan_file_changes(seen, steps, NO_GAPS)
    assert ([c.node for c in planned], gaps) == (["n2"], {})
    assert b"6.1" in planned[0].after


def test_a_condition_or_a_value_that_is_not_known_is_a_gap_of_its_node() -> None:
    facts = with_targets("/etc/motd")
    seen = fleet(
        n1={**facts, "kernel.release": absent("denied", "why")},
        n2={**facts, "kernel.release": "6.1"},
    )
    planned, gaps = plan_file_changes(seen, [line("a", "x", "kernel > 5")], NO_GAPS)
    assert ([c.node for c in planned], str(gaps["n1"])) == (["n2"], "denied: when: kernel: why")
    (row,) = gap_rows(gaps)
    assert (row.nodes, row.resource, row.target) == (("n1",), "line", "a")
    assert row.outcome == "not-started"
    _, gaps = plan_file_changes(seen, [line("a", "{{ kernel }}")], NO_GAPS)
    assert str(gaps["n1"]) == "denied: kernel: why"


def test_a_name_with_a_control_character_is_written_nowhere() -> None:
    seen = fleet(n1={**with_targets("/etc/motd"), "host.name": "a\nroot::0:0::/:/bin/sh"})
    planned, gaps = plan_file_changes(seen, [line("a", "{{ hostname }}")], NO_GAPS)
    assert (planned, gaps["n1"].why.reason) == ((), "garbled")


def test_steps_whose_conditions_hold_both_are_refused_before_anything_is_written() -> None:
    seen = fleet(n1={**with_targets("/etc/motd"), "kernel.release": "6.1"})
    both = [line("a", "x", "kernel > 5"), line("a", "y", "kernel > 6")]
    with pytest.raises(InputError, match=r"b:3: on n1 /etc/motd \(a\) is written already"):
        plan_file_changes(seen, both, NO_GAPS)
    assert len(plan_file_changes(seen, [both[0], line("a", "y", "kernel > 7")], NO_GAPS)[0]) == 1


@pytest.mark.parametrize(
    ("wanted", "was", "after", "expected"),
    [
        pytest.param(
            Access(0o600, 7, 8), None, b"a", FileState("/x", b"a", 0o600, 7, 8), id="wanted"
        ),
        pytest.param(
            None, Access(0o640, 5, 6), b"a", FileState("/x", b"a", 0o640, 5, 6), id="kept"
        ),
        pytest.param(
            Access(0o600, 7, 8),
            Access(0o640, 5, 6),
            b"a",
            FileState("/x", b"a", 0o600, 7, 8),
            id="both",
        ),
        pytest.param(None, None, b"a", FileState("/x", b"a", 0o755), id="of-the-writer"),
        pytest.param(None, Access(0o640, 5, 6), None, FileState("/x", None, 0o755), id="gone"),
    ],
)
def test_a_later_step_sees_the_owner_and_mode_that_an_earlier_one_leaves(
    wanted: Access | None, was: Access | None, after: bytes | None, expected: FileState
) -> None:
    assert state_after(FileChange("n1", "file", "/x", b"b", after, 0o755, wanted, was)) == expected


def test_owner_and_mode_are_changes_of_their_own() -> None:
    was, wanted = Access(0o644, 0, 0), Access(0o600, 7, 7)
    found = FileChange("n1", "file", "/x", b"a", b"a", 0o644, wanted, was)
    assert (found.action, diff_text(found)) == (
        "update", "/x: mode 0644, user 0, group 0 → mode 0600, user 7, group 7\n"
    )  # fmt: skip
    assert FileChange("n1", "file", "/x", b"a", b"a", 0o644, was, was).action == "none"
