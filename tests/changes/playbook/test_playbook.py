"""Playbooks: what is shipped loads, what is wrong is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.changes.playbook.names import NAMES
from clusterprep.changes.playbook.reading import AROUND, load_playbook, shipped_playbooks
from clusterprep.changes.playbook.steps import Playbook, Step, fact_names, resources
from clusterprep.changes.playbook.tags import select_steps
from clusterprep.errors import InputError
from clusterprep.model import Inventory, Node
from clusterprep.survey.selection import Selection


@pytest.mark.parametrize("name", sorted(shipped_playbooks()))
def test_every_shipped_playbook_loads_by_its_name(name: str) -> None:
    assert load_playbook(name).steps


def test_the_built_in_playbook_holds_one_step() -> None:
    steps = load_playbook("site").steps
    assert [step.resource.name for step in steps] == ["env"]


def test_steps_keep_their_order_names_and_text_as_written(tmp_path: Path) -> None:
    book = tmp_path / "book.yaml"
    book.write_text(
        "- name: greet\n  tags: [a]\n  file: {path: /etc/motd, content: 2.10}\n- env: {}\n"
    )
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
def test_a_wrong_playbook_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, told: str
) -> None:
    book = tmp_path / "wrong.yaml"
    book.write_text(text)
    with pytest.raises(InputError) as raised:
        load_playbook(str(book))
    assert any(
        problem.line == line and told in str(problem) for problem in raised.value.problems
    ), raised.value


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="site"):
        load_playbook("sites")


def test_every_resource_has_a_place_in_the_schema() -> None:
    from clusterprep.inventory.schema import load_schema

    known = set(load_schema("playbook")["items"]["properties"]) - {*AROUND, "include"}
    assert known == set(resources())


# ---------------------------------------------------------------- the language

INVENTORY = Inventory(
    "test",
    tuple(
        Node(f"n{n}", f"10.0.0.{n}", n - 1, groups=("front",) if n < 3 else ()) for n in range(1, 5)
    ),
    {"front": ("n1", "n2")},
)


def loaded(folder: Path, **books: str) -> tuple[Step, ...]:
    """The steps of the first book; the others lie beside it."""
    for name, text in books.items():
        (folder / f"{name}.yaml").write_text(text)
    return load_playbook(str(folder / f"{next(iter(books))}.yaml"), INVENTORY).steps


def test_an_include_gives_its_steps_tags_conditions_and_nodes(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "text.txt").write_text("of {{ node }}\n")
    (tmp_path / "more" / "inner.yaml").write_text(
        "- tags: [b]\n  when: gpus.count > 0\n  nodes: n[2-3]\n"
        "  file: {path: /etc/a, template: text.txt}\n"
        "- hosts: {}\n"
    )
    around = "- tags: [a]\n  nodes: front\n  when: kernel > 5\n  include: more/inner.yaml\n"
    outer = f"- env: {{}}\n{around}- limits: {{nofile: 1}}\n"
    env, file, hosts, limits = loaded(tmp_path, outer=outer)
    assert [step.resource.name for step in (env, file, hosts, limits)] == [
        "env",
        "file",
        "hosts",
        "limits",
    ]
    assert (file.tags, len(file.when), file.nodes) == (("a", "b"), 2, {"n2"})
    assert (hosts.tags, len(hosts.when), hosts.nodes) == (("a",), 1, {"n1", "n2"})
    assert file.params == {"path": "/etc/a", "content": "of {{ node }}\n"}
    assert (env.nodes, limits.nodes) == (None, None)
    assert fact_names((env, file, hosts, limits)) == ("kernel.release", "gpu.nvml")


def test_a_shipped_playbook_is_included_by_its_name(tmp_path: Path) -> None:
    steps = loaded(tmp_path, outer="- include: limits\n- include: hosts\n")
    assert [step.resource.name for step in steps] == [
        "limits", "hosts"
    ]  # fmt: skip


def test_playbooks_that_include_each_other_end(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a.yaml → b.yaml → a.yaml"):
        loaded(tmp_path, a="- include: b.yaml\n", b="- include: a.yaml\n")
    deep = {f"b{n}": f"- include: b{n + 1}.yaml\n" for n in range(20)}
    with pytest.raises(InputError, match="more than 10 playbooks within each other"):
        loaded(tmp_path, **deep, b20="- env: {}\n")


def test_playbooks_that_multiply_end(tmp_path: Path) -> None:
    twice = {f"b{n}": f"- include: b{n + 1}.yaml\n" * 4 for n in range(9)}
    with pytest.raises(InputError, match="more than 100 playbooks are included"):
        loaded(tmp_path, **twice, b9="- env: {}\n")


def test_the_same_file_for_other_nodes_is_no_double(tmp_path: Path) -> None:
    step = "- nodes: {}\n  file: {{path: /etc/x, content: {}}}\n"
    assert len(loaded(tmp_path, book=step.format("n1", "a") + step.format("n2", "b"))) == 2
    with pytest.raises(InputError, match="/etc/x is written already by the step in line 1"):
        loaded(tmp_path, book=step.format("front", "a") + step.format("n2", "b"))


def test_blocks_of_a_file_live_side_by_side(tmp_path: Path) -> None:
    line = "- line: {{path: /etc/hosts, marker: {}, block: x}}\n"
    assert len(loaded(tmp_path, book=line.format("a") + line.format("b") + "- hosts: {}\n")) == 3
    with pytest.raises(InputError, match=r"/etc/nccl\.conf"):
        loaded(tmp_path, book="- env: {}\n- file: {path: /etc/nccl.conf, content: x}\n")
    assert (
        len(
            loaded(
                tmp_path,
                book="- env: {}\n- line: {path: /etc/nccl.conf, marker: mine, block: A=1}\n",
            )
        )
        == 2
    )


# ---------------------------------------------------------------- tags

TAGGED = "- {tags: [a, time], env: {}}\n- {tags: [b], hosts: {}}\n- limits: {nofile: 1}\n"
CHECKS = {"time", "gpu"}


@pytest.mark.parametrize(
    ("tags", "skip", "steps", "left"),
    [
        ((), (), "env hosts limits", ((), ())),
        (("a",), (), "env", ((), ())),
        (("a", "b"), (), "env hosts", ((), ())),
        (("gpu",), (), "env hosts limits", (("gpu",), ())),
        (("b", "gpu"), (), "hosts", (("gpu",), ())),
        ((), ("a",), "hosts limits", ((), ())),
        ((), ("time",), "hosts limits", ((), ("time",))),
        (("time",), (), "env", ((), ())),
        (("a",), ("b",), "env", ((), ())),
    ],
)
def test_a_tag_of_steps_selects_steps_and_any_other_checks(
    tmp_path: Path,
    tags: tuple[str, ...],
    skip: tuple[str, ...],
    steps: str,
    left: tuple[tuple[str, ...], ...],
) -> None:
    playbook = Playbook("book", loaded(tmp_path, book=TAGGED))
    kept, selection = select_steps(playbook, Selection(("x",), (), tags, skip), CHECKS)
    assert " ".join(step.resource.name for step in kept) == steps
    assert (selection.tags, selection.skip_tags) == left
    assert selection.only == ("x",)


def test_a_tag_that_nothing_has_and_a_selection_of_nothing_are_told(tmp_path: Path) -> None:
    playbook = Playbook("book", loaded(tmp_path, book=TAGGED))
    with pytest.raises(
        InputError, match=r"--tags: neither .* has the tag 'gpus' \(did you mean 'gpu'\?\)"
    ):
        select_steps(playbook, Selection(tags=("gpus",)), CHECKS)
    with pytest.raises(InputError, match="no step of book is left"):
        select_steps(playbook, Selection(tags=("a",), skip_tags=("a",)), CHECKS)


# ---------------------------------------------------------------- what docs say

DOCS = (Path(__file__).parents[3] / "docs" / "howto" / "playbooks.md").read_text()


def test_the_docs_have_every_name_every_resource_and_every_shipped_playbook() -> None:
    for word in (*NAMES, *resources(), *shipped_playbooks()):
        assert f"`{word}`" in DOCS, word


def test_the_example_of_the_docs_is_a_playbook(tmp_path: Path) -> None:
    text = (
        DOCS.split("```yaml\n")[1]
        .split("```")[0]
        .replace("gpu[01-16]", "n[1-4]")
        .replace("rack1", "front")
    )
    assert [step.resource.name for step in loaded(tmp_path, book=text)] == [
        "env",
        "limits",
        "file",
        "sysctl",
    ]


@pytest.mark.parametrize("name", sorted(shipped_playbooks()))
def test_a_shipped_playbook_begins_with_what_it_changes(name: str) -> None:
    assert shipped_playbooks()[name].read_text().startswith("# ")
    assert load_playbook(name, INVENTORY).steps
