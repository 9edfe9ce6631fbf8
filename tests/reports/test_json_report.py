"""Facts of every shape become JSON that strict readers accept, and absence keeps its reason."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError
from msgspec.structs import replace

from clusterprep.cli.commands.selftest import recorded_fleet
from clusterprep.facts.counters import EARLIER, Earlier, Sample
from clusterprep.facts.storage import Mount
from clusterprep.model import (
    Absent,
    CollectiveResult,
    Culprit,
    Finding,
    NodeSnapshot,
    RankGpu,
    VerifyResult,
    Workaround,
)
from clusterprep.reports import render
from clusterprep.reports.json_report import MOST_KNOWN, document, fact_text, json_of
from clusterprep.survey import registry

from .situations import FOUR, report, trial, unreachable
from .test_golden import SCHEMA

FINDING_KEYS = [
    *("check", "verdict", "severity", "nodes", "reason", "fixed", "silenced"),
    *("seen", "wanted", "message", "remedy"),
]

MOUNTS = (Mount("/", "ext4", "/dev/sda", frozenset(("rw", "nodev")), frozenset(), "8:1"),)


def nested(levels: int) -> list[Any]:
    """A list in a list, so many levels deep."""
    deep: list[Any] = []
    for _ in range(levels - 1):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Absent("denied", "/proc/x"), {"absent": "denied", "detail": "/proc/x"}),
        (RankGpu("u", 0, "p", None), {"uuid": "u", "index": 0, "pci": "p", "numa": None}),
        ((1, (2.5, True), None), [1, [2.5, True], None]),
        (b"a\xff", "a\N{REPLACEMENT CHARACTER}"),
        ({1: Absent("hung")}, {"1": {"absent": "hung", "detail": ""}}),
        (MappingProxyType({"a": frozenset({2, 1})}), {"a": [1, 2]}),
        (float("nan"), None),
        (float("inf"), None),
        (Path("/etc"), "/etc"),
        ("\udcff", "\N{REPLACEMENT CHARACTER}"),
        ("\N{GRINNING FACE}", "\N{GRINNING FACE}"),
    ],
)
def test_json_of(value: Any, wanted: Any) -> None:
    assert json_of(value) == wanted
    assert json.loads(fact_text(value)) == wanted


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\udcff\x7f")
FACTS = st.recursive(
    LEAVES | st.builds(Absent, st.text(), st.text()),
    lambda part: (
        st.lists(part)
        | st.tuples(part, part)
        | st.dictionaries(st.text() | st.integers(), part)
        | st.builds(RankGpu, part, part, part, part)
    ),
)


@given(FACTS)
def test_the_text_of_a_fact_is_its_json_in_ascii(fact: Any) -> None:
    plain = json_of(fact, 4)
    text = fact_text(fact)
    assert text.isascii()
    assert repr(json.loads(text)) == repr(plain)
    assert fact_text(plain) == text, "a fact of the history is JSON, and looks the same"


@pytest.mark.parametrize("levels", [2, 60, 61, 62, 63, 64, 65, 900])
def test_the_text_of_a_fact_is_cut_where_its_json_is(levels: int) -> None:
    for fact in (nested(levels), {"a": nested(levels)}, [1, "[" * 99, {"b": [nested(levels)]}]):
        assert json.loads(fact_text(fact)) == json_of(fact, 4)


@pytest.mark.parametrize("name", ["hgx-h100-ib", "l20-mixed-box"])
def test_the_text_of_recorded_facts_is_their_json(name: str) -> None:
    fleet = recorded_fleet(name, tuple(registry.checks().values()))
    one = report("check", nodes=tuple(fleet.snapshots.values()))
    assert repr(json.loads(render(one, "json"))) == repr(document(one))


@settings(max_examples=20)
@given(st.lists(st.dictionaries(st.sampled_from("aé\udcff"), FACTS, max_size=3), max_size=3))
def test_facts_of_nodes_are_their_json_whoever_shares_them(facts: list[dict[str, Any]]) -> None:
    """Also where there are so many values of a fact that their text is not kept."""
    alike = [{"same": MOUNTS, "number": number} for number in range(MOST_KNOWN + 3)]
    nodes = [NodeSnapshot("n", "a", True, facts=own) for own in (*facts, *alike, *facts)]
    one = report("check", nodes=tuple(nodes))
    assert repr(json.loads(render(one, "json"))) == repr(document(one))


def test_what_earlier_runs_said_is_no_fact_of_this_one() -> None:
    facts = {"kernel.version": "6.8", EARLIER.name: Earlier(Sample(700.0, {}), Sample(700.0, {}))}
    one = report("check", nodes=(NodeSnapshot("n", "a", True, facts=facts),))
    assert document(one)["nodes"][0]["facts"] == {"kernel.version": "6.8"}
    assert json.loads(render(one, "json"))["nodes"][0]["facts"] == {"kernel.version": "6.8"}


def test_rows_have_a_line_each_and_spaces_for_grep() -> None:
    culprit = Culprit("link", ("a", "b"), 0.5, "lost \N{RIGHTWARDS ARROW} é")
    one = report("verify", verify=VerifyResult("fail", "gloo", 2, 1, "a:1", culprits=(culprit,)))
    lines = render(one, "json").splitlines()
    (row,) = [line for line in lines if '"kind": "link"' in line]
    assert row.startswith('      {"kind": "link", "nodes": ["a", "b"], ')
    assert "lost \\u2192 \\u00e9" in row


def test_keys_and_their_order_are_the_contract_s() -> None:
    whole = document(unreachable())
    assert list(whole)[:7] == [
        "schema",
        "command",
        "run",
        "cluster",
        "started",
        "seconds",
        "verdict",
    ]
    assert list(whole)[7:] == ["notices", "nodes", "findings", "env", "changes"]
    assert list(whole["nodes"][0]) == ["name", "address", "reached", "reason", "facts"]
    assert list(whole["findings"][0]) == FINDING_KEYS
    assert list(whole["env"][0]) == ["name", "value", "nodes", "why"]
    keys = ["nodes", "resource", "target", "action", "outcome", "diff"]
    assert [list(change)[:6] for change in whole["changes"]] == [keys] * len(whole["changes"])
    assert {key for change in whole["changes"] for key in change} <= {*keys, "detail"}


def test_workarounds_are_there_only_where_some_were_tried() -> None:
    tried = (
        Workaround((), False, why="it hung"),
        Workaround(("NCCL_IB_DISABLE=1",), True, 4.0, 1024, 1.0),
    )
    without = VerifyResult("fail", "nccl", 2, 1, "a:1")
    assert "workarounds" not in document(report("verify", verify=without))["verify"]
    rows = document(report("verify", verify=replace(without, workarounds=tried)))["verify"][
        "workarounds"
    ]
    assert [row["settings"] for row in rows] == [[], ["NCCL_IB_DISABLE=1"]]
    assert rows[1] == {
        "settings": ["NCCL_IB_DISABLE=1"],
        "works": True,
        "busbw_gbs": 4.0,
        "bytes": 1024,
        "share": 1.0,
        "why": "",
    }


def test_a_culprit_has_from_and_to() -> None:
    culprit = Culprit("link", ("a", "b"), 0.5, "lost", source="a", target="b")
    whole = document(
        report("verify", verify=VerifyResult("fail", "gloo", 2, 1, "a:1", culprits=(culprit,)))
    )
    keys = ["kind", "nodes", "rank", "from", "to", "confidence", "cause", "evidence"]
    assert list(whole["verify"]["culprits"][0]) == keys
    assert (whole["verify"]["culprits"][0]["from"], whole["verify"]["culprits"][0]["to"]) == (
        "a",
        "b",
    )


def test_sections_not_produced_are_absent_and_empty_ones_are_there() -> None:
    assert set(document(report("check"))) == {
        "schema",
        "command",
        "run",
        "cluster",
        "started",
        "seconds",
        "verdict",
    }
    assert document(report("check", findings=()))["findings"] == []


def test_an_error_has_all_its_keys() -> None:
    whole = document(
        report("check", verdict="error", code=2, error={"code": 2, "message": "m", "extra": 1})
    )
    assert whole["error"] == {"code": 2, "message": "m", "file": None, "line": None, "key": None}


def test_the_text_is_the_document() -> None:
    for verify in (None, trial(FOUR, 8), VerifyResult("unknown", "gloo", 0, 0, "")):
        one = report("verify", verify=verify, findings=(), nodes=())
        assert json.loads(render(one, "json")) == document(one)


def test_figures_that_are_not_finite_validate() -> None:
    row = CollectiveResult("all_reduce", 8, 0.0, float("inf"), float("nan"), 0)
    one = report("verify", verify=VerifyResult("pass", "gloo", 2, 1, "a:1", collectives=(row,)))
    Draft202012Validator(SCHEMA).validate(json.loads(render(one, "json")))
    assert "inf" in render(one, "console")


def test_a_fact_nested_without_end_is_cut() -> None:
    text = json.dumps(json_of(nested(900)))
    assert "nested deeper" in text


def test_the_schema_itself_is_valid_and_closed() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    validator = Draft202012Validator(SCHEMA)
    good = document(unreachable())
    for section in ("nodes", "findings", "env", "changes"):
        row = {**good[section][0], "surprise": 1}
        with pytest.raises(ValidationError):
            validator.validate({**good, section: [row]})
    with pytest.raises(ValidationError):
        validator.validate({**good, "surprise": 1})
    with pytest.raises(ValidationError):
        validator.validate({**good, "verdict": "error"})


def test_the_schema_wants_a_reason_from_an_unknown() -> None:
    silent = report("check", findings=(Finding("time.offset", "unknown", "error", ("n1",), "?"),))
    with pytest.raises(ValidationError):
        Draft202012Validator(SCHEMA).validate(document(silent))
