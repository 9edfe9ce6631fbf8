"""A report that was packed comes back as it was.

Every section, every format, whatever nodes have said.
"""

from __future__ import annotations

import json
import tracemalloc
import zlib
from datetime import date
from typing import Any

import msgspec
import pytest

from clusterprep.facts.counters import EARLIER, Earlier, Sample
from clusterprep.history.packing import (
    Unreadable,
    column_of,
    nodes_knowing,
    pack,
    pack_facts,
    unpack,
    unpack_facts,
)
from clusterprep.model import Absent, Finding, NodeSnapshot, Report
from clusterprep.model.history import Since, Turn
from clusterprep.reports import SUFFIXES, render
from tests.reports.situations import SITUATIONS, report


def again(first: Report) -> Report:
    """Packed and unpacked, with its facts."""
    back = unpack(pack(first))
    if back.nodes is None:
        return back
    facts = unpack_facts(dict(pack_facts(first.nodes or ())), len(back.nodes))
    nodes = tuple(
        msgspec.structs.replace(node, facts=own)
        for node, own in zip(back.nodes, facts, strict=True)
    )
    return msgspec.structs.replace(back, nodes=nodes)


@pytest.mark.parametrize("name", SITUATIONS)
def test_all_but_the_facts_is_equal(name: str) -> None:
    first = SITUATIONS[name]()
    bare = (
        None
        if first.nodes is None
        else tuple(msgspec.structs.replace(node, facts={}) for node in first.nodes)
    )
    assert unpack(pack(first)) == msgspec.structs.replace(first, nodes=bare)


@pytest.mark.parametrize("fmt", SUFFIXES)
@pytest.mark.parametrize("name", SITUATIONS)
def test_an_unpacked_report_looks_the_same_in_every_format(name: str, fmt: str) -> None:
    first = SITUATIONS[name]()
    back = again(first)
    for verbose in (0,) if name == "many_nodes" else (0, 2):
        assert render(back, fmt, verbose=verbose) == render(first, fmt, verbose=verbose)


def test_sets_of_nodes_in_any_order_and_of_strangers() -> None:
    names = tuple(f"n{number}" for number in range(20))
    odd = (
        names,
        names[::-1],
        names[3:7],
        (*names[:6], "another"),
        (),
        names[::3],
        ("n1", "n1", "n1", "n1", "n1", "n2"),
    )
    findings = tuple(Finding("a.b", "fail", "error", nodes, "why", until=None) for nodes in odd)
    first = report(
        "check", nodes=tuple(NodeSnapshot(name, name, True) for name in names), findings=findings
    )
    assert unpack(pack(first)).findings == findings


def test_what_only_some_findings_have() -> None:
    finding = Finding(
        "a.b", "fail", "error", ("n1",), "m", silenced="why", until=date(2027, 1, 31), age=12.5
    )
    since = Since("r0", "2026-11-20T09:30:00Z", (Turn("a.b", "fail", "error", ("n1",)),))
    first = report("check", findings=(finding,), since=since)
    assert unpack(pack(first)) == first


FACTS: tuple[dict[str, Any], ...] = (
    {"a": {"x": [1, 2.5, None, True]}, "b": "\ud800\x1b[31m", "c": Absent("denied", "EACCES")},
    {"b": "two", "a": {"x": [1, 2.5, None, True]}},
    {},
    {"a": float("inf"), "c": {"absent": "of a node that lies", "detail": "x", "more": 1}},
)


def test_facts_come_back_in_their_order_with_their_reasons() -> None:
    nodes = tuple(
        NodeSnapshot(f"n{place}", "", True, facts=facts) for place, facts in enumerate(FACTS)
    )
    columns = dict(pack_facts(nodes))
    assert [list(facts.items()) for facts in unpack_facts(columns, 4)] == [
        list(facts.items()) for facts in FACTS
    ]
    assert nodes_knowing(columns[""], "c", ["n0", "n1", "n2", "n3"]) == ["n0", "n3"]
    assert column_of(columns["a"], 3)[:2] == [{"x": [1, 2.5, None, True]}] * 2


def test_a_fact_that_no_json_can_hold_costs_nothing_but_itself() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    columns = dict(pack_facts([NodeSnapshot("n1", "", True, facts={"a": deep, "b": 1})]))
    (facts,) = unpack_facts(columns, 1)
    assert facts["a"].reason == "garbled"
    assert facts["b"] == 1


def test_the_values_of_a_large_fleet_are_not_in_memory_together() -> None:
    """Apart from the first MiB, which decides how they are compressed."""
    nodes = []
    for number in range(24):
        text = f"{number} " * 200_000
        nodes.append(NodeSnapshot(f"n{number}", "", True, facts={"a": text}))
    tracemalloc.start()
    try:
        columns = dict(pack_facts(nodes))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20, "the texts of all have 14 MB"
    facts = unpack_facts(columns, len(nodes))
    assert [own["a"] for own in facts] == [node.facts["a"] for node in nodes]


def test_values_that_nodes_share_stand_once() -> None:
    large = ["x" * 400_000, "y" * 400_000, "z" * 400_000]
    values = [large[0], large[1], large[0], large[2], large[1]]
    nodes = [NodeSnapshot(str(n), "", True, facts={"a": [v]}) for n, v in enumerate(values)]
    (_, data) = list(pack_facts(nodes))[1]
    assert json.loads(zlib.decompress(data)) == [[[text] for text in large], [0, 1, 0, 2, 1]]


def test_equal_values_stand_once_also_beyond_the_texts_that_are_kept() -> None:
    """Apart by identity, as of nodes that answered alike in different words."""
    distinct = [f"{number} " * 200_000 for number in range(4)]
    values = [*distinct, *distinct]
    nodes = [NodeSnapshot(str(n), "", True, facts={"a": [v]}) for n, v in enumerate(values)]
    (_, data) = list(pack_facts(nodes))[1]
    places = [0, 1, 2, 3, 0, 1, 2, 3]
    assert json.loads(zlib.decompress(data)) == [[[text] for text in distinct], places]


def test_counters_of_earlier_runs_are_kept_with_these() -> None:
    earlier = Earlier(Sample(700.0, {}), Sample(700.0, {}))
    nodes = [NodeSnapshot("n1", "", True, facts={EARLIER.name: earlier, "a": 1})]
    assert unpack_facts(dict(pack_facts(nodes)), 1) == [{"a": 1}]


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-9], lambda data: b"", lambda data: data[:20] + b"x" + data[21:]]
)
def test_damaged_bytes_are_told(harm: Any) -> None:
    with pytest.raises(Unreadable):
        unpack(harm(pack(SITUATIONS["many_nodes"]())))
