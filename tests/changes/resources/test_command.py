"""Commands: split before values are filled in, run where needed, and never through a shell."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.changes.resources import PlanContext
from clusterprep.changes.resources.command import RESOURCE, split_command, succeeded
from clusterprep.model import Absent, Fleet, Inventory, Node
from clusterprep.model.operations import RunCommand, StepAction
from clusterprep.nccl.environment import Environment

EMPTY = Inventory("test", ())


def planned(params: dict[str, Any], *answers: bool, notified: bool = False) -> StepAction:
    node = Node("n1", "n1", 0)
    facts = dict(zip((fact.name for fact in RESOURCE.facts(params, EMPTY)), answers, strict=True))
    context = PlanContext(Fleet(EMPTY, {}), node, {}, facts, Environment((), {}), notified=notified)
    (step_action,) = RESOURCE.plan(RESOURCE.normal(params), context)
    return step_action


def test_a_command_runs_where_the_file_that_it_creates_is_missing() -> None:
    params = {
        "run": "touch '/etc/a b'",
        "creates": "/etc/a b",
        "undo": ["rm", "/etc/a b"],
        "limit": "2m",
    }
    step_action = planned(params, False)
    assert step_action.operations == (
        RunCommand(
            ("touch", "/etc/a b"),
            120.0,
            undo=(RunCommand(("rm", "/etc/a b"), 120.0),),
            halfway=False,
        ),
    )
    assert (step_action.target, step_action.action) == ("touch '/etc/a b'", "run")
    assert planned(params, True).action == "none"


@pytest.mark.parametrize(
    ("creates", "unless", "runs"), [(0, 0, True), (1, 0, False), (0, 1, False), (1, 1, False)]
)
def test_either_condition_is_enough(creates: int, unless: int, runs: bool) -> None:
    step_action = planned({"run": "x", "creates": "/a", "unless": "y"}, bool(creates), bool(unless))
    assert bool(step_action.operations) is runs


def test_without_conditions_it_runs_when_notified_and_never_by_itself() -> None:
    assert planned({"run": "x"}, notified=True).operations
    assert not planned({"run": "x"}).operations
    assert "creates or unless" in RESOURCE.only_handles({"run": "x"})
    assert RESOURCE.only_handles({"run": "x", "unless": "y"}) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("echo a  'b c'", ("echo", "a", "b c")),
        ("echo {{ node }}/x '{{node}} y'", ("echo", "{{node}}/x", "{{node}} y")),
        (r"echo \{{ x", ("echo", r"\{{", "x")),
        (["echo", "a b"], ("echo", "a b")),
        ("a; b | c > $d", ("a;", "b", "|", "c", ">", "$d")),
    ],
)
def test_a_text_is_split_before_values_are_put_in(text: Any, expected: tuple[str, ...]) -> None:
    assert split_command(text) == expected


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"run": "echo 'a"}, "run"),
        ({"run": ""}, "run"),
        ({"run": ["sh", "-c", "echo {{ node }}"]}, "run"),
        ({"run": "/bin/bash -ec 'echo {{ node }}'"}, "run"),
        ({"run": ["env", "A=1", "sh", "-c", "{{ node }}"]}, "run"),
        ({"run": "x", "undo": "sh -c {{node}}"}, "undo"),
        ({"run": "x", "limit": "10"}, "limit"),
    ],
)
def test_what_cannot_be_meant_or_would_be_code(params: dict[str, Any], key: str) -> None:
    assert [where for where, _ in RESOURCE.wrong(params)] == [key]


def test_a_value_as_a_word_of_its_own_is_fine() -> None:
    assert not list(RESOURCE.wrong({"run": ["sh", "-c", 'echo "$1"', "sh", "{{ node }}"]}))


def test_how_the_question_ended() -> None:
    assert succeeded({"code": 0}) is True
    assert succeeded({"code": 3}) is False
    assert succeeded(Absent("missing_tool")) is False
    assert succeeded(Absent("hung")) == Absent("hung")
