"""The findings of the HTML report: cards of trouble with remedies and evidence, and tables."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import Check
from clusterprep.jobs.verify.pages import PAGES, TrialCheckPage
from clusterprep.model import Finding, NodeSnapshot, Report
from clusterprep.model.extensions import SiteCheck
from clusterprep.model.units import format_duration
from clusterprep.remedies import Remedy
from clusterprep.reports.blocks import LABELS as TROUBLE_LABELS
from clusterprep.reports.blocks import (
    Block,
    accepted,
    blocks_of,
    follows_of,
    gap_remedy,
    gravity,
    group_gaps,
    nodes_of,
    troubles,
)
from clusterprep.reports.html_nodes import KINDS, Roster
from clusterprep.reports.json_report import json_of
from clusterprep.reports.plain import distinct, safe_text
from clusterprep.survey import registry

BRANCHES, BRANCH_MESSAGES = 40, 2  # consequences of one card, and different messages of one
VALUES, MESSAGES = 40, 10  # of one card: different values, and different messages and remedies
FACT_NODES = 2  # nodes of a card whose facts are shown
FACT = 1200  # characters of one fact
PASSED = 3  # different values of a check that passed
PASSED_VALUE = 120  # characters of each of them


class CardValue(Struct, frozen=True):
    nodes: str
    seen: str
    wanted: str


class NodeFacts(Struct, frozen=True):
    """The facts that a check saw on one node, as JSON."""

    node: str
    facts: tuple[tuple[str, str], ...]


class Branch(Struct, frozen=True):
    """A consequence in the tree below its cause, with what follows from it in turn."""

    anchor: str
    word: str
    kind: str
    check: str
    nodes: str
    text: str
    branches: tuple[Branch, ...] = ()


class Card(Struct, frozen=True):
    """One thing that is wrong, accepted or fixed, with all its nodes."""

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
    branches: tuple[Branch, ...]
    more_branches: int
    remedies: tuple[Remedy, ...]
    evidence: tuple[NodeFacts, ...]


class CardLine(Struct, frozen=True):
    """A check in one of the tables: passed with these values, or not judged for this reason."""

    check: str
    text: str
    nodes: str
    size: int


def cards(report: Report, roster: Roster) -> list[Card]:
    """Return cards of trouble, the gravest first, then of accepted and then of fixed findings."""
    snapshots = {}
    for node in report.nodes or ():
        snapshots[node.node] = node
    pages = {page.name: page for page in report.site_checks or ()}
    anchors: set[str] = set()
    rows = []
    for group in _groups(report.findings or ()):
        # A link to a check leads to its first card.
        anchor = group[0].check
        if anchor in anchors:
            anchor = ""
        followers = follows_of(group[0])
        anchors.add(group[0].check)
        branches = _branches(followers[:BRANCHES], roster, anchors)
        card = _card(group, anchor, roster, snapshots, pages)
        more = max(0, len(followers) - BRANCHES)
        rows.append(replace(card, branches=branches, more_branches=more))
        anchors.update(card.checks)
    return rows


def _branches(followers: Sequence[Block], roster: Roster, anchors: set[str]) -> tuple[Branch, ...]:
    """Return what follows from a card as a tree; `anchors` has the checks that have a place."""
    checks = {block.check for block in followers}
    below: dict[str, list[Block]] = {}
    for block in followers:
        below.setdefault(_parent(block, checks), []).append(block)

    def grow(check: str) -> tuple[Branch, ...]:
        branches = []
        for block in below.pop(check, ()):
            anchor = "" if block.check in anchors else block.check
            anchors.add(block.check)
            word, kind = _state(block)
            text = ""
            if block.verdict == "fail":  # why another is unknown, the cause says
                text = "; ".join(block.messages[:BRANCH_MESSAGES])
            branch = Branch(
                anchor=anchor,
                word=word,
                kind=kind,
                check=block.check,
                nodes=roster.label(block.nodes),
                text=text,
                branches=grow(block.check),
            )
            branches.append(branch)
        return tuple(branches)

    branches = grow("")
    # Of checks that explain each other, on different nodes, none is below the card.
    for check in list(below):
        branches += grow(check)
    return branches


def _parent(block: Block, checks: Container[str]) -> str:
    """Return the check below which a consequence stands, "" for the card's own."""
    for cause in block.findings[0].because:
        if cause.check in checks and cause.check != block.check:
            return cause.check
    return ""


def _groups(findings: Sequence[Finding]) -> list[list[Block]]:
    """Return the blocks that have a card, in order, those of one card together."""
    groups = group_gaps(troubles(findings))
    blocks = blocks_of(findings)
    for block in accepted(blocks):
        groups.append([block])
    for block in blocks:
        if block.fixed:
            groups.append([block])
    return groups


def passed(findings: Iterable[Finding], roster: Roster) -> list[CardLine]:
    """Return a line for each check that passed on some nodes, with the values seen."""
    passes: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.verdict == "pass" and not finding.fixed:
            passes.setdefault(finding.check, []).append(finding)
    lines = []
    for check, rows in passes.items():
        line = _passed(check, rows, roster)
        lines.append(line)
    return lines


def skipped(findings: Iterable[Finding], roster: Roster) -> list[CardLine]:
    """Return a line for each check that was not judged."""
    lines = []
    for block in blocks_of(findings):
        if block.verdict != "skip" or block.fixed:
            continue
        nodes = block.nodes
        line = CardLine(
            check=block.check,
            text=block.reason or "",
            nodes=roster.label(nodes),
            size=len(nodes),
        )
        lines.append(line)
    return lines


def _passed(check: str, findings: Sequence[Finding], roster: Roster) -> CardLine:
    nodes = findings[0].nodes
    if len(findings) > 1:
        nodes = nodes_of(findings)
    values = distinct(finding.seen for finding in findings)
    text = "; ".join(safe_text(value, PASSED_VALUE) for value in values[:PASSED])
    remaining = len(values) - PASSED
    if remaining > 0:
        text += f"; … {remaining:,} more values"
    label = roster.label(nodes)
    return CardLine(
        check=check,
        text=text,
        nodes=label,
        size=len(nodes),
    )


# ---------------------------------------------------------------- a card


def _card(
    group: Sequence[Block],
    anchor: str,
    roster: Roster,
    snapshots: Mapping[str, NodeSnapshot],
    site_pages: Mapping[str, SiteCheck],
) -> Card:
    first = group[0]
    nodes = first.nodes
    label, kind = _state(first)
    title = why = how = ""
    evidence: list[NodeFacts] = []
    # Where one missing answer leaves several checks open, no check's page explains it.
    page: Check | TrialCheckPage | SiteCheck | None = None
    if len(group) == 1:
        page = site_pages.get(first.check) or about(first.check)
    if page is not None:
        title = page.title
        why = page.why
        how = page.how
        evidence = list(_evidence(first, snapshots, site_pages.get(first.check)))
    checks = []
    values: list[Finding] = []
    messages: list[str] = []
    for block in group:
        checks.append(block.check)
        values += block.valued
        messages += block.messages
    messages = list(distinct(messages))
    return Card(
        anchor=anchor,
        word=label,
        kind=kind,
        checks=tuple(checks),
        title=title,
        why=why,
        how=how,
        nodes=roster.label(nodes),
        size=len(nodes),
        ranges=roster.ranges(nodes),
        asides=_asides(first),
        values=_values(values[:VALUES], roster),
        more=max(0, len(values) - VALUES),
        messages=tuple(messages[:MESSAGES]),
        branches=(),
        more_branches=0,
        remedies=_remedies(group),
        evidence=tuple(evidence),
    )


def _values(findings: Iterable[Finding], roster: Roster) -> tuple[CardValue, ...]:
    values = []
    for finding in findings:
        nodes = roster.label(finding.nodes)
        value = CardValue(nodes, finding.seen, finding.wanted)
        values.append(value)
    return tuple(values)


def _remedies(group: Sequence[Block]) -> tuple[Remedy, ...]:
    """Return what to do; nothing where the finding is accepted or fixed."""
    first = group[0]
    if first.fixed or first.silenced is not None:
        return ()
    remedies = first.remedies
    if len(group) > 1:
        remedies = [gap_remedy(first)]
    return tuple(remedies[:MESSAGES])


def about(check: str) -> Check | TrialCheckPage | None:
    """Return the page that says what a check is for, or None if there is none."""
    return registry.checks().get(check) or PAGES.get(check)


def _state(block: Block) -> tuple[str, str]:
    """Return the label of a card and its CSS class."""
    if block.fixed:
        return "FIXED", "p"
    if block.silenced is not None:
        return "ACCEPTED", "a"
    trouble_label = TROUBLE_LABELS[block.verdict, block.severity]
    return trouble_label, KINDS[gravity(block)]


def _asides(block: Block) -> tuple[str, ...]:
    """Return what the label does not say: why it is unknown or accepted, and how old it is."""
    asides = []
    if block.reason:
        asides.append(block.reason)
    if block.verdict == "unknown" and block.severity == "warning":
        asides.append("a warning")
    if block.fixed:
        asides.append("cured by this run")
    elif block.silenced is not None:
        asides.append(f"accepted: {block.silenced}")
    if block.age is not None:
        age = format_duration(round(block.age))
        asides.append(f"as of {age} ago")
    return tuple(asides)


def _evidence(
    block: Block, snapshots: Mapping[str, NodeSnapshot], page: SiteCheck | None
) -> Iterator[NodeFacts]:
    """Yield the facts that the check used, for the first nodes of a block."""
    check = registry.checks().get(block.check)
    if page is not None:
        fact_names = dict.fromkeys(page.facts)
    elif check is not None:
        fact_names = dict.fromkeys((*check.facts, *check.uses))
    else:
        return
    for node in block.nodes[:FACT_NODES]:
        snapshot = snapshots.get(node)
        if snapshot is None:
            continue
        facts = []
        for name in fact_names:
            if name not in snapshot.facts:
                continue
            fact = snapshot.facts[name]
            facts.append((name, _fact_text(fact)))
        if facts:
            yield NodeFacts(node, tuple(facts))


def _fact_text(fact: object) -> str:
    text = json.dumps(json_of(fact), ensure_ascii=False)
    return safe_text(text, FACT)
