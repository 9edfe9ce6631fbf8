"""Findings for the HTML report: cards of trouble with what to paste and the evidence, and tables of what is well."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from clusterprep.checks import Check
from clusterprep.jobs.verify.pages import PAGES, BlamePage
from clusterprep.model import Finding, NodeSnapshot, Report
from clusterprep.model.units import format_duration
from clusterprep.reports.blocks import RANK, Block, blocks_of, cure, gathered, troubles
from clusterprep.reports.blocks import WORDS as VERDICTS
from clusterprep.reports.html_nodes import KINDS, Roster
from clusterprep.reports.json_report import json_of
from clusterprep.reports.plain import distinct, field
from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.survey import registry

VALUES, MESSAGES = 40, 10  # of one card: different values, and different messages and remedies
WITNESSES = 2  # nodes of a card whose facts are shown
EVIDENCE = 1200  # characters of one fact
PASSED = 3  # different values of a check that passed
LONG = 2000  # characters of a remedy, which is to be pasted whole


@dataclass(frozen=True)
class CardValue:
    nodes: str
    seen: str
    wanted: str


@dataclass(frozen=True)
class Witness:
    """The facts that a check saw on one node, as JSON."""

    node: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Card:
    """One thing that is wrong, accepted or cured, wherever it is."""

    anchor: str  # empty where an earlier card of this check has it
    word: str
    kind: str
    checks: tuple[str, ...]
    title: str
    why: str
    how: str
    nodes: str
    size: int
    ranges: str
    asides: tuple[str, ...]
    values: tuple[CardValue, ...]
    more: int
    messages: tuple[str, ...]
    remedies: tuple[str, ...]
    evidence: tuple[Witness, ...]


@dataclass(frozen=True)
class CardLine:
    """A check in one of the tables: passed, or not judged and why."""

    check: str
    said: str
    nodes: str
    size: int


def cards(report: Report, roster: Roster) -> list[Card]:
    """Trouble, the gravest first; then what is accepted, then what this run cured."""
    findings = report.findings or ()
    seen = {node.node: node for node in report.nodes or ()}
    rows = blocks_of(findings)
    groups = gathered(troubles(findings))
    groups += [
        [one]
        for one in rows
        if one.silenced and not one.fixed and one.verdict in ("fail", "unknown")
    ]
    groups += [[one] for one in rows if one.fixed]
    taken: set[str] = set()
    return [_card(group, roster, seen, taken) for group in groups]


def passed(findings: Iterable[Finding], roster: Roster) -> list[CardLine]:
    """Each check that passed somewhere, with what was seen."""
    found: dict[str, list[Finding]] = {}
    for one in findings:
        if one.verdict == "pass" and not one.fixed:
            found.setdefault(one.check, []).append(one)
    return [_passed(check, same, roster) for check, same in found.items()]


def skipped(findings: Iterable[Finding], roster: Roster) -> list[CardLine]:
    """Each check that was not judged."""
    return [
        CardLine(one.check, one.reason or "", roster.label(one.nodes), len(one.nodes))
        for one in blocks_of(findings)
        if one.verdict == "skip" and not one.fixed
    ]


def _passed(check: str, same: Sequence[Finding], roster: Roster) -> CardLine:
    nodes = (
        same[0].nodes
        if len(same) == 1
        else tuple(dict.fromkeys(name for one in same for name in one.nodes))
    )
    values = distinct(one.seen for one in same)
    more = [f"… {len(values) - PASSED:,} more values"] if len(values) > PASSED else []
    said = "; ".join([*(field(value, 120) for value in values[:PASSED]), *more])
    return CardLine(check, said, roster.label(nodes), len(nodes))


# ---------------------------------------------------------------- a card


def _card(
    group: Sequence[Block], roster: Roster, seen: Mapping[str, NodeSnapshot], taken: set[str]
) -> Card:
    first = group[0]
    page = about(first.check) if len(group) == 1 else None
    word, kind = _state(first)
    told = [one for block in group for one in block.findings if one.seen or one.wanted]
    messages = distinct(one.message for block in group for one in block.findings)
    remedies = distinct(one.remedy for one in first.findings) if len(group) == 1 else [cure(first)]
    anchor = "" if first.check in taken else first.check
    taken.update(block.check for block in group)
    return Card(
        anchor=anchor,
        word=word,
        kind=kind,
        checks=tuple(block.check for block in group),
        title=page.title if page else "",
        why=page.why if page else "",
        how=page.how if page else "",
        nodes=roster.label(first.nodes),
        size=len(first.nodes),
        ranges=roster.ranges(first.nodes),
        asides=_asides(first),
        values=tuple(
            CardValue(roster.label(one.nodes), one.seen, one.wanted) for one in told[:VALUES]
        ),
        more=max(0, len(told) - VALUES),
        messages=tuple(messages[:MESSAGES]),
        remedies=tuple(field(remedy, LONG) for remedy in remedies[:MESSAGES])
        if kind not in "ap"
        else (),
        evidence=tuple(_witnesses(first, seen)) if page else (),
    )


def about(check: str) -> Check | BlamePage | None:
    """The page of a check: what it is for."""
    return registry.checks().get(check) or PAGES.get(check)


def _state(block: Block) -> tuple[str, str]:
    if block.fixed:
        return "FIXED", "p"
    if block.silenced is not None:
        return "ACCEPTED", "a"
    key = (block.verdict, block.severity)
    return VERDICTS[key], KINDS[RANK[key]]


def _asides(block: Block) -> tuple[str, ...]:
    """Why it is unknown, for what it is accepted, how old it is, and of what gravity where the word does not say."""
    ages = [one.age for one in block.findings if one.age is not None]
    told = [block.reason or ""]
    told.append("a warning" if block.verdict == "unknown" and block.severity == "warning" else "")
    told.append(
        f"accepted: {block.silenced}" if block.silenced is not None and not block.fixed else ""
    )
    told.append("cured by this run" if block.fixed else "")
    told.append(f"as of {format_duration(round(max(ages)))} ago" if ages else "")
    return tuple(filter(None, told))


def _witnesses(block: Block, seen: Mapping[str, NodeSnapshot]) -> Iterable[Witness]:
    check = registry.checks().get(block.check)
    for node in block.nodes[:WITNESSES] if check else ():
        snapshot = seen.get(node)
        if check is None or snapshot is None:
            continue
        names = dict.fromkeys((*check.facts, *check.uses))
        facts = [
            (name, _evidence(snapshot.facts[name])) for name in names if name in snapshot.facts
        ]
        if facts:
            yield Witness(node, tuple(facts))


def _evidence(value: object) -> str:
    return field(json.dumps(json_of(value), ensure_ascii=False), EVIDENCE)
