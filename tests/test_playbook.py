"""Playbooks: what is shipped loads, what is wrong is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.errors import InputError
from clusterprep.playbook.reading import AROUND, load_playbook, shipped_playbooks
from clusterprep.playbook.steps import resources


@pytest.mark.parametrize("name", sorted(shipped_playbooks()))
def test_every_shipped_playbook_loads_by_its_name(name: str) -> None:
    assert load_playbook(name).steps


def test_the_built_in_playbook_holds_one_step() -> None:
    steps = load_playbook("site").steps
    assert [step.resource.name for step in steps] == ["env"]


def test_steps_keep_their_order_names_and_text_as_written(tmp_path: Path) -> None:
    book = tmp_path / "book.yaml"
    book.write_text("- name: greet\n  tags: [a]\n  file: {path: /etc/motd, content: 2.10}\n- env: {}\n")
    first, second = load_playbook(str(book)).steps
    assert (first.name, first.tags, first.params["content"]) == ("greet", ("a",), "2.10")
    assert second.name == "env"


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("env: {}\n", 1, "list of steps"),
        ("- envv: {}\n", 1, "env"),
        ("- env: {}\n- file: {path: /etc/x}\n", 2, "content"),
        ("- file: {path: etc/x, content: a}\n", 1, "absolute"),
        ("- file: {path: /etc/../root/x, content: a}\n", 1, "absolute"),
        ("- file: {path: /etc/x/, content: a}\n", 1, "absolute"),
        ("- file: {path: /etc/x, content: a, mode: 7777}\n", 1, "mode"),
        ("- name: nothing\n", 1, "one resource"),
        ("- {env: {}, file: {path: /etc/x, content: a}}\n", 1, "one resource"),
        ("- env: {}\n- env: {}\n", 2, "already"),
        ("- file: {path: /etc/x, content: a}\n- file: {path: /etc/x, content: b}\n", 2, "/etc/x"),
        ("", 1, "empty"),
        ("- [1]\n", 1, "step"),
        ("- &a [*a]\n", 1, ""),
        ("\t- env: {}\n", 1, "tab"),
    ],
)
def test_a_wrong_playbook_is_told_with_its_line(tmp_path: Path, text: str, line: int, told: str) -> None:
    book = tmp_path / "wrong.yaml"
    book.write_text(text)
    with pytest.raises(InputError) as raised:
        load_playbook(str(book))
    assert any(problem.line == line and told in str(problem) for problem in raised.value.problems), raised.value


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="site"):
        load_playbook("sites")


def test_every_resource_has_a_place_in_the_schema() -> None:
    from clusterprep.inventory.schema import load_schema

    known = set(load_schema("playbook")["items"]["properties"]) - {*AROUND, "include"}
    assert known == set(resources())
