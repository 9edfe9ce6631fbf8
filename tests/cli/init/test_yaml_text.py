"""Commented YAML that we write is read back as it was meant, by our reader and by PyYAML."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from clusterprep.cli.init.rows import fold_rows
from clusterprep.cli.init.yaml_text import Note, YamlBlock, YamlEntry, document, flow, plain, scalar
from clusterprep.inventory.yaml_tree import Construction, compose
from clusterprep.model.nodeset import expand

# What a file may hold: YAML has lone surrogates and control characters as escapes only.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(10**17), 10**17) | st.floats(-1e9, 1e9, allow_nan=False).filter(
    lambda n: "e" not in repr(n)
)
scalars = st.none() | st.booleans() | numbers | texts
flows = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
comments = st.lists(texts, max_size=2).map(tuple)


def blocks(values: st.SearchStrategy[Any]) -> st.SearchStrategy[YamlBlock]:
    entries = st.builds(YamlEntry, texts, values, comments, texts)
    parts = st.lists(
        st.builds(Note, comments) | entries,
        max_size=4,
        unique_by=lambda p: getattr(p, "key", id(p)),
    )
    return parts.map(lambda found: YamlBlock(tuple(found)))


def read(text: str) -> Any:
    tree = compose(text)
    assert tree is not None
    problems: list[Any] = []
    found = Construction(lambda *problem: problems.append(problem)).build(tree, None)
    assert not problems
    return found


@given(blocks(flows | blocks(flows | blocks(flows))))
def test_a_document_is_read_as_it_was_meant(block: YamlBlock) -> None:
    text = document(
        (
            YamlEntry("first", 1),
            *(part for part in block.parts if getattr(part, "key", "") != "first"),
        )
    )
    meant = {"first": 1, **{k: v for k, v in plain(block).items() if k != "first"}}
    assert read(text) == meant


@given(texts)
def test_text_stays_text_for_old_readers_too(text: str) -> None:
    assert yaml.safe_load(f"key: {scalar(text)}") == {"key": text}
    assert yaml.safe_load(flow({"a": [text]})) == {"a": [text]}


@pytest.mark.parametrize(
    "word",
    ["on", "No", "1.10", "0x1", "1e3", "null", "", "2026-11-21", "12:30:00", "=", "<<", "0o7"],
)
def test_words_that_look_like_something_else_are_quoted(word: str) -> None:
    assert scalar(word).startswith('"')
    assert yaml.safe_load(f"- {scalar(word)}") == [word]
    assert read(f"- {scalar(word)}") == [word]


def test_comments_of_strangers_stay_comments() -> None:
    text = document(
        [
            Note(("a\nroot: /evil",)),
            YamlEntry("a", 1, ("b\r\nc: 2",), "d\ne: 3"),
            YamlEntry("f", YamlBlock(())),
        ]
    )
    assert read(text) == {"a": 1, "f": {}}


def test_a_document_has_comments_blocks_and_flow_values() -> None:
    nodes = [{"name": "n[1-2]", "address": "10.0.0.[1-2]"}]
    ssh = YamlBlock((YamlEntry("user", "root", beside="who logs in"), Note(("port: 22",))))
    assert document(
        [Note(("Written by a test.", "")), YamlEntry("ssh", ssh), YamlEntry("nodes", nodes)]
    ) == (
        "# Written by a test.\n\nssh:\n  user: root  # who logs in\n  # port: 22\n"
        'nodes:\n  - {name: "n[1-2]", address: "10.0.0.[1-2]"}\n'
    )


names = st.one_of(
    st.integers(0, 120).map(lambda n: f"gpu{n}"),
    st.integers(0, 120).map(lambda n: f"gpu{n:03}"),
    st.integers(0, 20).map(lambda n: f"r{n % 3}n{n}-ib"),
    st.sampled_from(["login", "a", "b.example.net", "fe80::1", "fe80::2", "10.0.0.5"]),
)
rows = st.lists(
    st.tuples(names, names | st.integers(1, 250).map(lambda n: f"10.0.{n % 2}.{n}")), max_size=40
)


@given(rows)
def test_folded_rows_expand_to_the_rows(rows: list[tuple[str, str]]) -> None:
    found = [
        pair
        for name, address in fold_rows(rows)
        for pair in zip(expand(name), expand(address), strict=True)
    ]
    assert found == rows


def test_rows_are_folded() -> None:
    rows = [(f"gpu{n:02}", f"10.0.0.{n + 4}") for n in range(1, 17)]
    assert fold_rows(rows) == [("gpu[01-16]", "10.0.0.[5-20]")]
    assert fold_rows([(f"n{n}", f"n{n}") for n in (3, 1, 2, 7)]) == [("n[3,1-2,7]", "n[3,1-2,7]")]
    assert fold_rows([("a1", "10.0.0.1"), ("b1", "10.0.0.2")]) == [
        ("a1", "10.0.0.1"),
        ("b1", "10.0.0.2"),
    ]
    assert len(fold_rows((f"gpu{n}", f"10.0.{n // 200}.{n % 200}") for n in range(1, 401))) < 6
