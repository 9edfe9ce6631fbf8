"""What spoilt answers make of remedies: no shell runs words of nodes, no page holds escapes.

The faults that `selftest` makes are made on recorded machines. Then every text of every fact that
the check reads becomes one that a shell or a terminal would act upon.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from typing import Any

import pytest

from clusterprep.checks import Check
from clusterprep.cli.commands.selftest import recorded_fleet, turned_bad
from clusterprep.model import Absent, Finding, Fleet
from clusterprep.model.records import field_names
from clusterprep.reports import SUFFIXES, render
from clusterprep.survey import registry
from clusterprep.survey.judge import judge
from tests.project.test_architecture import none
from tests.reports.situations import report
from tests.support.pasting import not_parsed, not_shown_safely, run_words
from tests.support.records import changed_copy, is_record

# All words of all fleets take a minute of a quiet core, and three on a busy machine.
pytestmark = pytest.mark.timeout(400)

CHECKS = tuple(check for check in registry.checks().values() if check.proof is not None)
TODAY = date(2026, 11, 21)
VICTIM = 1  # neither the first node, nor a majority
ALIKE = 1  # texts of one place that are spoilt, such as the name of one of eight interfaces
# Texts that a shell or a terminal would act upon; tests/remedies has more, for every template.
WORDS = (
    "$(x)",
    "';x;'",
    '"`x`"',
    "a\nx\n\x1b[2J\u202e",
)
SPOILINGS: tuple[Callable[[str], str], ...] = (
    *(functools.partial(lambda word, text: word, word) for word in WORDS),
    *(functools.partial(lambda word, text: f"{text}{word}", word) for word in WORDS),
)


@functools.cache
def recorded(kind: str) -> tuple[Fleet, str]:
    """Return the fleet of a recording, and the node whose answers are spoilt."""
    fleet = recorded_fleet(kind, tuple(registry.checks().values()))
    names = [node.name for node in fleet.reached]
    return fleet, names[min(VICTIM, len(names) - 1)]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each text in a fact: names of fields, keys and positions."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, Absent):
        return
    elif names := field_names(type(value)):
        for name in names:
            yield from places(getattr(value, name), (*path, name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str):
                yield (*path, "key", key)
            yield from places(item, (*path, "at", key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from places(item, (*path, "item", number))
    elif isinstance(value, frozenset | set):
        for item in value:
            yield from places(item, (*path, "member", item))


def changed(value: Any, path: tuple[Any, ...], turn: Callable[[str], str]) -> Any:
    """Return the fact with the text at this place turned."""
    if not path:
        return turn(value)
    first, rest = path[0], path[1:]
    if is_record(value):
        return changed_copy(value, **{first: changed(getattr(value, first), rest, turn)})
    if first == "key":
        return {turn(key) if key == rest[0] else key: item for key, item in value.items()}
    if first == "at":
        return {**value, rest[0]: changed(value[rest[0]], rest[1:], turn)}
    if first == "member":
        return type(value)(
            changed(item, rest[1:], turn) if item == rest[0] else item for item in value
        )
    items = list(value)
    items[rest[0]] = changed(items[rest[0]], rest[1:], turn)
    return type(value)(items)


def kinds_of_places(value: Any) -> list[tuple[Any, ...]]:
    """Return some of the places that differ only in a position, and all others."""
    seen: dict[tuple[Any, ...], int] = {}
    chosen = []
    for path in places(value):
        kind = tuple(part for part in path if not isinstance(part, int))
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= ALIKE:
            chosen.append(path)
    return chosen


@functools.cache
def spoilt_findings() -> dict[str, tuple[Finding, ...]]:
    """Return, by check, what is said of a node with a fault and one spoilt text."""
    findings = {}
    for check in CHECKS:
        distinct = {}
        for finding in _findings_of(check):
            distinct[finding.remedy, finding.remedy.note, finding.message] = finding
        findings[check.name] = tuple(distinct.values())
    return findings


def _findings_of(check: Check) -> Iterator[Finding]:
    assert check.proof is not None
    fleet, victim = recorded(check.proof.fleet)
    bad = turned_bad(fleet, victim, check.proof)
    assert isinstance(bad, Fleet)
    yield from judge(bad, [check], TODAY)
    for fact in filter(None, dict.fromkeys((*check.facts, *check.uses, check.proof.fact))):
        value = bad.fact(victim, fact)
        for path in kinds_of_places(value):
            for turn in SPOILINGS:
                try:
                    spoilt = changed(value, path, turn)
                except (ValueError, TypeError):
                    continue  # this class refuses such a text
                yield from judge(bad.with_facts({victim: {fact: spoilt}}), [check], TODAY)


def remedies() -> list[str]:
    texts = []
    for findings in spoilt_findings().values():
        for finding in findings:
            texts += [str(finding.remedy), finding.remedy.note]
    return list(dict.fromkeys(texts))


def test_words_of_nodes_reach_remedies() -> None:
    """Without this the tests below would find nothing in nothing."""
    spoilt = [remedy for remedy in remedies() if "x" in remedy and "$(" in remedy]
    assert len(spoilt) >= 20


def test_no_shell_runs_what_a_node_said() -> None:
    none(run_words(remedies()), "a shell runs what a node said:")


def test_every_line_is_parsed_to_its_end() -> None:
    lines = [
        str(finding.remedy)
        for findings in spoilt_findings().values()
        for finding in findings
        if finding.remedy.is_command
    ]
    none(not_parsed(lines), "no shell takes this line as it is:")


def test_remedies_hold_no_control_letter() -> None:
    none(not_shown_safely(remedies()), "controls the terminal that shows it:")


@pytest.mark.parametrize("fmt", [fmt for fmt in SUFFIXES if fmt != "json"])
def test_pages_hold_no_control_letter(fmt: str) -> None:
    findings = tuple(
        finding for findings in spoilt_findings().values() for finding in findings[-40:]
    )
    text = render(report("check", findings=findings), fmt, verbose=1)
    bad = {letter for letter in text if not letter.isprintable()} - {"\n"}
    assert not bad, f"{fmt} holds {sorted(bad)}"


def test_json_is_ascii_and_its_remedies_hold_no_control_letter() -> None:
    findings = tuple(
        finding for findings in spoilt_findings().values() for finding in findings[-40:]
    )
    text = render(report("check", findings=findings), "json")
    assert text.replace("\n", "").isascii()
    assert text.replace("\n", "").isprintable()
    for row in json.loads(text)["findings"]:
        assert row["remedy"].isprintable()
        assert row.get("note", "").isprintable()
