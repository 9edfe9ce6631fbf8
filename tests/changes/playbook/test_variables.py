"""`{{ name }}`: strict, from the inventory and from facts alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterprep.changes.playbook.variables import VariableError, filled, names, parse, texts
from clusterprep.model import Absent


def fill(value: Any, **known: Any) -> Any:
    return filled(
        value, lambda name: known.get(name.name.replace(".", "_"), Absent("denied", name.name))
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on {{ node }}", "on n1"),
        ("{{node}}{{ node }}", "n1n1"),
        ("{{ gpus.count }} of {{ env.SIZE }}", "8 of big"),
        (r"\{{ node }}", "{{ node }}"),
        (r"a\{{b {{ node }}", "a{{b n1"),
        ("}} { node } {", "}} { node } {"),
        ("", ""),
        (5, 5),
        (["{{ node }}", {"a": "{{ node }}"}], ("n1", {"a": "n1"})),
    ],
)
def test_names_are_replaced_and_nothing_else(text: Any, expected: Any) -> None:
    assert fill(text, node="n1", gpus_count=8, env_SIZE="big") == expected


def test_a_value_is_never_read_again() -> None:
    assert fill("{{ node }}", node="{{ kernel }}") == "{{ kernel }}"


def test_what_is_not_known_makes_all_of_it_unknown() -> None:
    assert fill({"a": "x", "b": ["{{ node }} {{ driver }}"]}, node="n1") == Absent(
        "denied", "driver"
    )


@pytest.mark.parametrize(
    ("text", "told", "line"),
    [
        ("{{ nod }}", "unknown name 'nod'", 0),
        ("a\nb {{ kernel", "never closed", 1),
        ("{{ kernel | upper }}", "expected one name", 0),
        ("{{ node.name }}", "unknown name 'node.name'", 0),
        ("{{ 1 + 1 }}", "expected one name", 0),
        ("{{ }}", "expected one name", 0),
        ("a\n\n{{ node }} {{ env. }}", "unknown name 'env.'", 2),
        ("{{ {{ node }} }}", "expected one name", 0),
    ],
)
def test_anything_else_between_braces_is_told_with_its_line(
    text: str, told: str, line: int
) -> None:
    with pytest.raises(VariableError, match=told) as raised:
        parse(text)
    assert raised.value.line == line


@given(st.text().filter(lambda text: "{{" not in text))
def test_text_without_braces_is_itself(text: str) -> None:
    assert fill(text) == text


def test_every_text_of_a_step_is_looked_at() -> None:
    params = {"a": "{{ node }}", "b": {"c": ["{{ kernel }}", 5]}}
    assert {name.name for name in names(params)} == {"node", "kernel"}
    assert dict(texts(params)) == {("a",): "{{ node }}", ("b", "c", 0): "{{ kernel }}"}
