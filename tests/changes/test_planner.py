"""What steps will do: in order, handlers last, against what earlier steps leave or may bring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterprep.changes.planner import ChangePlan, predict_changes
from clusterprep.changes.playbook.reading import load_playbook
from clusterprep.changes.playbook.steps import batches, own_facts
from clusterprep.changes.playbook.tags import select_steps
from clusterprep.changes.resources.service import Unit
from clusterprep.errors import InputError
from clusterprep.model import Absent, Fleet, Inventory, Node, NodeSnapshot
from clusterprep.model.files import FileState
from clusterprep.nccl.environment import Environment
from clusterprep.survey.selection import Selection

NODES = tuple(Node(f"n{n}", f"10.0.0.{n}", n - 1) for n in (1, 2))
INVENTORY = Inventory("test", NODES)
ON = Unit("loaded", "enabled", "active", False)
CONF = "/etc/a.conf"


def change_plan(folder: Path, text: str, **facts: Any) -> ChangePlan:
    """The steps of a playbook on two nodes that know the same; `n2` has facts that differ."""
    (folder / "book.yaml").write_text(text)
    steps = load_playbook(str(folder / "book.yaml"), INVENTORY).steps
    odd = facts.pop("n2", {})
    known = {"kernel.release": "6.1.0", "target:/etc/a.conf": FileState(CONF, None), **facts}
    snapshots = {
        node.name: NodeSnapshot(node.name, node.address, True, facts=known) for node in NODES
    }
    snapshots["n2"] = NodeSnapshot("n2", "10.0.0.2", True, facts={**known, **odd})
    return predict_changes(Fleet(INVENTORY, snapshots), steps, Environment((), {}))


def told(found: ChangePlan) -> list[str]:
    return [
        f"{','.join(row.nodes)} {row.resource} {row.action} {row.diff or row.target}"
        for row in found.rows()
    ]


BOOK = """
- name: again
  handler: true
  service: {name: a}
- name: never
  handler: true
  command: {run: b}
- command: {run: x, creates: /x}
  notify: [again]
"""


def test_handlers_come_last_where_something_changes_and_nowhere_else(tmp_path: Path) -> None:
    facts = {"exists:/x": False, "service:a.service": ON, "n2": {"exists:/x": True}}
    assert told(change_plan(tmp_path, BOOK, **facts)) == [
        "n1 command run x", "n2 command none x", "n1 service restart restarted"
    ]  # fmt: skip
    quiet = change_plan(tmp_path, BOOK, **{**facts, "exists:/x": True})
    assert (told(quiet), quiet.pending, quiet.nodes) == (["n1,n2 command none x"], False, ())


def test_a_file_that_changes_notifies_and_one_that_does_not_does_not(tmp_path: Path) -> None:
    file = f"- file: {{path: {CONF}, content: x}}\n  notify: [again]\n"
    book = file + "- name: again\n  handler: true\n  service: {name: a}\n"
    there = {f"target:{CONF}": FileState(CONF, b"x")}
    found = change_plan(tmp_path, book, **{"service:a.service": ON, "n2": there})
    assert [planned.key[1:] for planned in found.step_actions] == [("n1", "a.service")]


def test_what_an_earlier_step_may_bring_is_planned_as_if_it_were_there(tmp_path: Path) -> None:
    absent = Unit("not-found", "", "inactive", False)
    step = "- service: {name: a, enabled: true, running: true}\n"
    alone = change_plan(tmp_path, step, **{"service:a.service": absent})
    assert str(alone.gaps["n1"]).startswith("cannot: systemd has no unit a.service")
    brought = "- command: {run: x, creates: /x}\n" + step
    found = change_plan(tmp_path, brought, **{"exists:/x": False, "service:a.service": absent})
    assert told(found)[1] == "n1,n2 service update enabled, started"
    late = change_plan(
        tmp_path,
        step + "- command: {run: x, creates: /x}\n",
        **{"exists:/x": False, "service:a.service": absent},
    )
    assert sorted(late.gaps) == ["n1", "n2"]


def test_a_fact_that_is_not_known_is_a_gap_and_nothing_is_started(tmp_path: Path) -> None:
    found = change_plan(
        tmp_path,
        BOOK,
        **{"exists:/x": False, "service:a.service": ON, "n2": {"exists:/x": Absent("hung")}},
    )
    assert str(found.gaps["n2"]).startswith("hung: exists:/x")
    assert {row.outcome for row in found.none_started()} == {"not-started"}


INAPPLICABLE = Absent("not_applicable", "a machine that has none")


@pytest.mark.parametrize(
    ("step", "facts"),
    [
        ("governor: {name: performance}", ["governor:policies"]),
        ("driver_hold: {}", ["nv.packages"]),
        ("acs: {}", ["acs:words", "acs:tree"]),
    ],
)
def test_a_step_that_a_machine_has_no_use_for_is_done_there(
    tmp_path: Path, step: str, facts: list[str]
) -> None:
    """Else a shipped playbook would change nothing on any node, where one is a virtual machine."""
    files = (
        "/etc/tmpfiles.d/clusterprep-governor.conf",
        "/etc/udev/rules.d/90-clusterprep-acs.rules",
    )
    known: dict[str, Any] = {f"target:{path}": FileState(path, None) for path in files}
    known |= dict.fromkeys(facts, INAPPLICABLE)
    found = change_plan(tmp_path, f"- {step}\n", **known)
    assert found.gaps == {}
    assert {row.outcome for row in found.rows()} == {"unchanged"}
    late = change_plan(tmp_path, f"- {step}\n", **known | {facts[0]: Absent("timed_out")})
    assert sorted(late.gaps) == ["n1", "n2"]


def test_a_step_that_needs_its_fact_is_a_gap_where_it_does_not_apply(tmp_path: Path) -> None:
    found = change_plan(
        tmp_path, "- service: {name: a, running: true}\n", **{"service:a.service": INAPPLICABLE}
    )
    assert sorted(found.gaps) == ["n1", "n2"]


def test_what_became_of_a_node_stands_in_the_rows_of_its_files(tmp_path: Path) -> None:
    found = change_plan(tmp_path, f"- file: {{path: {CONF}, content: x}}\n")
    rows = found.rows({"n1": "done", "n2": "failed"}, {"n2": "no_space: /etc"})
    ends = [(row.nodes, row.outcome, row.detail) for row in rows]
    assert ends == [(("n1",), "done", ""), (("n2",), "failed", "no_space: /etc")]
    (row,) = found.none_started({"n1": "refused", "n2": "refused"})
    assert (row.nodes, row.outcome, row.detail) == (("n1", "n2"), "not-started", "refused")


def test_two_steps_about_one_thing_whose_conditions_both_hold_are_refused(tmp_path: Path) -> None:
    book = (
        "- when: kernel > 5\n  service: {name: a, running: true}\n"
        "- service: {name: a, running: false}\n"
    )
    with pytest.raises(InputError, match="done already by the step in line 1"):
        change_plan(tmp_path, book, **{"service:a.service": ON})


def test_batches() -> None:
    names = [f"n{n}" for n in range(1, 9)]
    assert [len(batch) for batch in batches(None, names, 8)] == [8]
    assert [len(batch) for batch in batches(3, names, 8)] == [3, 3, 2]
    assert [len(batch) for batch in batches("25%", names, 8)] == [2, 2, 2, 2]
    assert [len(batch) for batch in batches("25%", names[:3], 8)] == [2, 1]
    assert [len(batch) for batch in batches("1%", names[:2], 8)] == [1, 1]
    assert list(batches(None, [], 8)) == []


def test_what_a_step_asks_for_itself_is_asked_of_its_nodes_alone(tmp_path: Path) -> None:
    book = tmp_path / "book.yaml"
    book.write_text(
        "- nodes: n1\n  command: {run: x, creates: /x}\n"
        "- nodes: n2\n  command: {run: y, creates: /y}\n- command: {run: z, creates: /y}\n"
    )
    x, y = own_facts(load_playbook(str(book), INVENTORY).steps, INVENTORY)
    assert [bool(x.reads(node, INVENTORY)) for node in NODES] == [True, False]
    assert [bool(y.reads(node, INVENTORY)) for node in NODES] == [True, True]
    assert x.parse() is None


def test_a_handler_stays_with_the_steps_that_notify_it(tmp_path: Path) -> None:
    book = tmp_path / "book.yaml"
    book.write_text(BOOK.replace("- command: {run: x", "- tags: [t]\n  command: {run: x"))
    steps, _ = select_steps(load_playbook(str(book), INVENTORY), Selection(tags=("t",)), ())
    assert [step.name for step in steps] == ["again", "command"]
