"""Stored results: their age by the node's own clocks, and what we would not have written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterprep.facts.results import LONGEST_TEXT, Results, rows_of
from clusterprep.model import Finding, Node
from clusterprep.remedies import shell_line
from clusterprep.remote.agent.readers import MAX_TEXT
from tests.support.fleet import learned

NODE = Node("n1", "10.0.0.1", 0)
FOUND = Finding(
    "torch.version",
    "fail",
    "error",
    ("n1", "n2"),
    "torch differs",
    "2.5",
    "2.6",
    shell_line("pip install torch"),
)
LACKING = Finding("nccl.iface", "unknown", "error", ("n1",), "no answer", reason="hung")
STORED = {
    "schema": 1,
    "about": "x",
    "boot": "b",
    "uptime": 1000.0,
    "now": 5.0,
    "checks": ["torch.version", "nccl.iface"],
}
DEEP = "[" * 100_000


def answer(uptime_now: float = 1060.0, boot_now: str = "b", **changes: Any) -> list[Any]:
    kept = {**STORED, "findings": rows_of((FOUND, LACKING), NODE), **changes}
    return ["ok", {"text": json.dumps(kept), "boot": boot_now, "uptime": uptime_now, "now": 1e9}]


def test_findings_come_back_as_they_were_with_their_age() -> None:
    results = learned("store.results", answer())
    assert results.age == 60.0
    for before, after in zip((FOUND, LACKING), results.findings, strict=True):
        assert (after.check, after.verdict, after.severity) == (
            before.check,
            before.verdict,
            before.severity,
        )
        assert (after.message, after.seen, after.wanted) == (
            before.message,
            before.seen,
            before.wanted,
        )
        assert (after.reason, after.remedy) == (before.reason, "")  # users paste remedies


def test_a_clock_that_was_set_changes_no_age() -> None:
    assert learned("store.results", answer(now=2e9)).age == 60.0


def test_another_boot_has_no_age() -> None:
    assert learned("store.results", answer(boot_now="c")).age is None
    assert learned("store.results", answer(boot_now="c", uptime=1e6)).age is None


def test_no_file_is_knowledge() -> None:
    assert learned("store.results", ["no", "missing", "/var/lib/clusterprep/deep.json"]) is None


def test_long_texts_are_cut_before_they_are_kept() -> None:
    (row,) = rows_of((Finding("a.b", "fail", "error", ("n1",), "x" * 10 * LONGEST_TEXT),), NODE)
    assert len(row["message"]) == LONGEST_TEXT
    assert rows_of((Finding("a.b", "fail", "error", ("n2",), ""),), NODE) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "7",
        "{",
        DEEP,
        '{"schema": 2}',
        '{"schema": 1}',
        "\x00\xff",
        '{"schema": 1, "a": "\\ud800"}',
    ],
    ids=lambda text: text[:20],
)
def test_a_text_that_is_none_of_ours_is_garbled(text: str) -> None:
    said = learned("store.results", ["ok", {"text": text, "boot": "b", "uptime": 1.0, "now": 1.0}])
    assert said.reason == "garbled"


@pytest.mark.parametrize(
    "changes",
    [
        {"uptime": 2000.0},
        {"boot": 7},
        {"uptime": float("nan")},
        {"uptime": "soon"},
        {"uptime": None},
        {"about": None},
        {"checks": "torch.version"},
        {"checks": [1]},
        {"findings": {}},
        {"findings": ["x"]},
        {"findings": [{}]},
        {"findings": [{**rows_of((FOUND,), NODE)[0], "verdict": "great"}]},
        {"findings": [{**rows_of((FOUND,), NODE)[0], "severity": None}]},
        {"findings": [{**rows_of((FOUND,), NODE)[0], "message": "x" * (LONGEST_TEXT + 1)}]},
        {"findings": [{**rows_of((FOUND,), NODE)[0], "seen": ["x"]}]},
        {"findings": rows_of((FOUND,), NODE) * 3000},
        {"uptime": "1000"},
        {"uptime": True},
        {"uptime": -1.0},
        {"uptime": -1e300},
        {"uptime": 10**400},
        {"uptime": float("-inf")},
        {"checks": ["torch.version"] * 3000},
        {"checks": {"torch.version": 1}},
        {"checks": [["torch.version"]]},
        {"schema": [1]},
        {"findings": [*rows_of((FOUND,), NODE), {**rows_of((FOUND,), NODE)[0], "verdict": "pass"}]},
        {
            "findings": [
                *rows_of((LACKING,), NODE),
                {**rows_of((LACKING,), NODE)[0], "verdict": "pass"},
            ]
        },
        {"findings": [{**rows_of((LACKING,), NODE)[0], "reason": ["x"]}]},
        {"findings": [{**rows_of((FOUND,), NODE)[0], "verdict": ["pass"]}]},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_what_we_would_not_have_written_is_garbled(changes: dict[str, Any]) -> None:
    said = learned("store.results", answer(**changes))
    is_too_long = len(json.dumps(changes)) > MAX_TEXT
    assert said.reason == ("truncated" if is_too_long else "garbled")


SAID = json.dumps({**STORED, "findings": rows_of((FOUND,), NODE)})
NOW: dict[str, Any] = {"boot": "b", "uptime": 1060.0, "now": 1e9}


@pytest.mark.parametrize(
    "text",
    [
        SAID.replace('"verdict": "fail"', '"verdict": "fail", "verdict": "pass"'),
        SAID.replace('"checks":', '"checks": [], "checks":'),
        SAID.replace("1000.0", "9" * 5000),
        SAID.replace("1000.0", "1e999"),
        SAID.replace("5.0", "NaN"),
        SAID.replace("5.0", "-Infinity"),
        SAID.replace("5.0", "[" * 50_000 + "]" * 50_000),
        SAID + SAID,
        SAID + "\x00",
        SAID[:-1],
        "\ufeff" + SAID,
        SAID + " " * MAX_TEXT,
        f'{{"schema": 1, "x": "{"y" * (64 << 20)}"}}',
    ],
    ids=[
        "a-key-twice",
        "checks-twice",
        "digits",
        "infinite",
        "nan",
        "minus-infinity",
        "nested",
        "twice",
        "null-behind",
        "cut-off",
        "byte-order-mark",
        "longer-than-a-node-sends",
        "64-MB",
    ],
)
def test_a_text_that_we_would_not_have_written_is_garbled(text: str) -> None:
    said = learned("store.results", ["ok", {"text": text, **NOW}])
    assert said.reason == ("garbled" if len(text) <= MAX_TEXT else "truncated")
    assert len(said.detail) < 400
    assert said.detail.isprintable()


@pytest.mark.parametrize(
    "answered",
    [
        None,
        7,
        "text",
        [],
        {},
        {"text": SAID},
        {"text": None, **NOW},
        {"text": [SAID], **NOW},
        {"text": {"schema": 1}, **NOW},
        {"text": SAID, "boot": "b"},
        {"text": SAID, "boot": "b", "uptime": None},
        {"text": SAID, "boot": "b", "uptime": "1060"},
        {"text": SAID, "boot": "b", "uptime": 1e308},
        {"text": SAID, "boot": "b", "uptime": -5.0},
        {"text": SAID, "boot": "b", "uptime": 10**400},
        {"text": SAID, "boot": "b", "uptime": True},
    ],
    ids=lambda answered: str(answered)[-50:],
)
def test_an_answer_of_another_shape_is_garbled(answered: Any) -> None:
    said = learned("store.results", ["ok", answered])
    assert said is None if answered is None else said.reason == "garbled"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(key=st.sampled_from(sorted({*STORED, "findings"})), value=json_values)
def test_one_value_of_any_other_kind_is_garbled_or_means_nothing(key: str, value: Any) -> None:
    said = learned("store.results", answer(**{key: value}))
    if isinstance(said, Results):
        assert said.age is None or 0 <= said.age < 1e19
        assert {one.verdict for one in said.findings} <= {"fail", "unknown"}
    else:
        assert said.reason == "garbled"


@given(place=st.integers(0, len(SAID)), length=st.integers(0, 40), put=st.text(max_size=10))
def test_a_text_with_a_part_replaced_makes_no_pass(place: int, length: int, put: str) -> None:
    text = SAID[:place] + put + SAID[place + length :]
    said = learned("store.results", ["ok", {"text": text, **NOW}])
    if isinstance(said, Results):
        assert [one.verdict for one in said.findings] in (["fail"], [])
    else:
        assert said.reason == "garbled"


def test_an_unknown_without_a_reason_gets_one() -> None:
    row = {**rows_of((LACKING,), NODE)[0], "reason": ""}
    results = learned("store.results", answer(findings=[row]))
    assert isinstance(results, Results)
    assert results.findings[0].reason == "not said"
