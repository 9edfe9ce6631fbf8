"""The report for a pull request or a ticket: GitHub's Markdown, trouble first, the rest folded.

Words of nodes and files stand in code spans and fenced blocks alone, or are plain words without any character that
Markdown knows: then they are neither markup nor HTML, mention nobody, refer to no issue and link nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from clusterprep.model import (
    ChangeRow,
    Culprit,
    EnvValue,
    Finding,
    LaunchResult,
    Report,
    VerifyResult,
)
from clusterprep.model.units import format_size
from clusterprep.reports.advice import advice
from clusterprep.reports.blocks import WORDS, Block, blocks_of, counts, cure, gathered, troubles
from clusterprep.reports.plain import (
    counted,
    distinct,
    duration,
    elapsed,
    field,
    folded,
    folded_ranks,
)

BLOCKS = 40  # of trouble told in full; GitHub refuses a comment of more than 65,536 characters
SEEN, WORDS_SHOWN = 4, 3  # values, and different messages and remedies of one check
DIFFS, DIFF = 8, 40  # changes with their difference, and its lines
ROWS = 40  # of a table, and of a list
LARGEST = 60_000  # characters
FIELD = 300  # characters of a field

_HARMLESS = re.compile(
    r"(?!\d+[.)](?:\s|$))(?=[^\W_]|[('\"≤≥±]|$)(?:[^\W_]|[ ,.;()%'\"/+=:≤≥±→…·–-]|(?<=\w)_(?=\w))*"
)
_LINKS = re.compile(r"://|www\.|\bGH-\d|:[\w+-]+:", re.IGNORECASE)


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """The whole report, never longer than a comment may be."""
    parts = [
        _head(report),
        _error(report),
        *_trouble(report),
        _quiet(report.findings or ()),
        _verify(report.verify),
        _launch(report.launch),
        _env(report.env),
        _changes(report.changes),
        _advice(report),
    ]
    text = ""
    for place, part in enumerate(filter(None, parts)):
        if len(text) + len(part) > LARGEST:
            return (
                f"{text}\n*The rest does not fit into a comment; `--output report.html` has it.*\n"
            )
        text += ("\n" if place else "") + part
    return text


# ---------------------------------------------------------------- words of others


def said(text: str, limit: int = FIELD) -> str:
    """Plain where every character is harmless, else a code span."""
    words = field(text, limit)
    return words if _HARMLESS.fullmatch(words) and not _LINKS.search(words) else code(words, limit)


def code(text: str, limit: int = FIELD) -> str:
    """A code span whose fence is longer than any run of backticks inside."""
    words = field(text, limit) or " "
    ticks = "`" * (_longest(words) + 1)
    pad = " " if words[0] in "` " or words[-1] in "` " else ""
    return f"{ticks}{pad}{words}{pad}{ticks}"


def cell(text: str, limit: int = FIELD) -> str:
    """Of a table: there a bar ends the cell even inside a code span, and a backslash before it spoils its escape."""
    words = field(text, limit)
    if not set(words) & set("|\\"):
        return said(words, limit) if words else ""
    return (
        "<code>"
        + "".join(c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in words)
        + "</code>"
    )


def block(lines: Iterable[str], language: str = "", indent: str = "") -> str:
    """A fenced block; a line that looks like a fence is shorter than ours."""
    shown = [field(line) for line in lines]
    ticks = "`" * max(3, max(map(_longest, shown), default=0) + 1)
    return "".join(f"{indent}{line}\n" for line in (f"{ticks}{language}", *shown, ticks))


def details(summary: str, body: str) -> str:
    """Folded; `summary` is HTML, and holds our own words and numbers alone."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n</details>\n"


def _longest(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


# ---------------------------------------------------------------- head


def _head(report: Report) -> str:
    title = " ".join(
        filter(
            None,
            ["clusterprep", said(report.command, 40), report.cluster and code(report.cluster, 80)],
        )
    )
    told = []
    if report.nodes is not None:
        told.append(
            f"{sum(node.reached for node in report.nodes)}/{counted(len(report.nodes), 'node')} reached"
        )
    if report.run:
        told.append(f"run {code(report.run, 80)}")
    told.append(elapsed(report.seconds))
    lines = [
        f"## {said(report.verdict).upper()}: {title}",
        "",
        f"**{counts(report)}** · {' · '.join(told)}",
    ]
    lines += (
        ["", *(f"> {said(notice)}  " for notice in report.notices[:ROWS])] if report.notices else []
    )
    lost = [node for node in report.nodes or () if not node.reached]
    if report.findings is None and lost:
        lines.append("")
        for reason in distinct(node.reason or "unknown" for node in lost):
            same = [node.node for node in lost if (node.reason or "unknown") == reason]
            lines.append(f"- **LOST** {code(folded(same))} not reached: {said(reason)}")
    return "\n".join(lines) + "\n"


def _error(report: Report) -> str:
    if report.error is None:
        return ""
    lines = str(report.error.get("message") or "").split("\n")
    more = [f"… {counted(len(lines) - ROWS, 'more line')}"] if len(lines) > ROWS else []
    return block([*lines[:ROWS], *more], "text")


def _advice(report: Report) -> str:
    lines = [
        f"{label}: {code(text) if label != 'next' else said(text)}"
        for label, text in advice(report)
    ]
    return "  \n".join(lines) + "\n" if lines else ""


# ---------------------------------------------------------------- findings


def _trouble(report: Report) -> list[str]:
    groups = gathered(troubles(report.findings or ()))
    if not groups:
        return []
    told = [
        "### What is wrong\n",
        *(_block(alike[0]) if len(alike) == 1 else _gap(alike) for alike in groups[:BLOCKS]),
    ]
    if rest := [one for alike in groups[BLOCKS:] for one in alike]:
        rows = "".join(
            f"- {WORDS[one.verdict, one.severity]} {code(one.check)} {_where(one.nodes)}\n"
            for one in rest
        )
        told.append(details(f"{len(rest)} more checks", rows))
    return told


def _gap(alike: Sequence[Block]) -> str:
    """What one missing answer leaves open."""
    first = alike[0]
    mild = ", warnings" if first.severity == "warning" else ""
    lines = [
        f"- **UNKNOWN** {len(alike)} checks {_where(first.nodes)} ({said(first.reason or '')}){mild}"
    ]
    lines += [
        f"  {said(words)}" for words in distinct(f.message for f in first.findings)[:WORDS_SHOWN]
    ]
    lines.append(f"  - left open: {', '.join(code(one.check) for one in alike[:ROWS])}")
    return "\n".join(lines) + "\n\n" + block([cure(first)], "sh", "  ")


def _block(one: Block) -> str:
    reason = f" ({said(one.reason)})" if one.reason else ""
    mild = ", a warning" if one.severity == "warning" and one.verdict == "unknown" else ""
    lines = [
        f"- **{WORDS[one.verdict, one.severity]}** {code(one.check)} {_where(one.nodes)}{reason}{mild}"
    ]
    lines += [
        f"  {said(words)}" for words in distinct(f.message for f in one.findings)[:WORDS_SHOWN]
    ]
    told = [finding for finding in one.findings if finding.seen or finding.wanted]
    for finding in told[:SEEN]:
        where = f"{code(folded(finding.nodes))}: " if len(told) > 1 and finding.nodes else ""
        seen = f"seen {said(finding.seen)}" if finding.seen else ""
        wanted = f"wanted {said(finding.wanted)}" if finding.wanted else ""
        lines.append(f"  - {where}{', '.join(filter(None, [seen, wanted]))}")
    if len(told) > SEEN:
        lines.append(f"  - {counted(len(told) - SEEN, 'more value')}")
    remedies = distinct(finding.remedy for finding in one.findings)[:WORDS_SHOWN]
    return "\n".join(lines) + "\n" + ("\n" + block(remedies, "sh", "  ") if remedies else "")


def _where(nodes: Sequence[str]) -> str:
    return f"on {code(folded(nodes))}" if nodes else ""


def _quiet(findings: Sequence[Finding]) -> str:
    """What does not count: accepted, cured, passed, not judged."""
    rows = blocks_of(findings)
    accepted = [
        one for one in rows if one.silenced and not one.fixed and one.verdict in ("fail", "unknown")
    ]
    fixed = [one for one in rows if one.fixed]
    passed = [one for one in rows if one.verdict == "pass" and not one.fixed]
    skipped = [one for one in rows if one.verdict == "skip"]
    parts = []
    for title, some in (("accepted", accepted), ("fixed by this run", fixed)):
        if some:
            lines = (
                f"- {code(one.check)} {_where(one.nodes)} {said(one.silenced or '')}".rstrip()
                for one in some
            )
            parts.append(
                details(f"{counted(len(some), 'finding')} {title}", "\n".join(lines) + "\n")
            )
    if passed:
        names = ", ".join(code(name) for name in distinct(one.check for one in passed))
        parts.append(
            details(
                f"{counted(len(distinct(one.check for one in passed)), 'check')} passed",
                names + "\n",
            )
        )
    if skipped:
        lines = (
            f"- {code(one.check)} {said(one.reason or '')} {_where(one.nodes)}" for one in skipped
        )
        parts.append(
            details(f"{counted(len(skipped), 'check')} not judged", "\n".join(lines) + "\n")
        )
    return "\n".join(parts)


# ---------------------------------------------------------------- what was set, changed and measured


def _env(env: Sequence[EnvValue] | None) -> str:
    if not env:
        return ""
    everyone = {node for value in env for node in value.nodes}
    rows = ["| variable | value | nodes | why |", "|---|---|---|---|"]
    for value in env[:ROWS]:
        nodes = "all" if set(value.nodes) == everyone else folded(value.nodes)
        rows.append(
            f"| {cell(value.name)} | {cell(value.value)} | {cell(nodes)} | {cell(value.why)} |"
        )
    rows += ["", f"{counted(len(env) - ROWS, 'more value')}"] if len(env) > ROWS else []
    names = counted(len({value.name for value in env}), "variable")
    return details(f"Environment: {names}", "\n".join(rows) + "\n")


def _changes(changes: Sequence[ChangeRow] | None) -> str:
    if not changes:
        return ""
    moving = [row for row in changes if row.outcome != "unchanged"]
    parts = []
    for place, row in enumerate(moving[:ROWS]):
        why = f": {said(row.detail)}" if row.detail else ""
        parts.append(
            f"- **{row.outcome}** {row.action} {code(row.target)} {_where(row.nodes)}{why}\n"
        )
        lines = row.diff.rstrip().split("\n") if row.diff.strip() and place < DIFFS else []
        more = [f"… {counted(len(lines) - DIFF, 'more line')}"] if len(lines) > DIFF else []
        parts.append("\n" + block([*lines[:DIFF], *more], "diff", "  ") if lines else "")
    if len(moving) > ROWS:
        parts.append(f"- {counted(len(moving) - ROWS, 'more change')}\n")
    still = len(changes) - len(moving)
    parts.append(f"- {counted(still, 'change')} already as wanted\n" if still else "")
    return details(f"Changes: {counted(len(moving), 'change')}", "".join(parts))


def _verify(result: VerifyResult | None) -> str:
    if result is None:
        return ""
    ranks = f"{counted(result.world_size, 'rank')}, {result.nproc_per_node} per node"
    lines = [
        f"### Verify: {result.verdict}",
        "",
        f"{code(result.backend)}, {ranks}, {code(result.rendezvous)}",
    ]
    lines += ["", said(result.message)] if result.message else []
    lines += ["", *map(_culprit, result.culprits[:ROWS])] if result.culprits else []
    body = ["| stage | took | verdict | missing |", "|---|---|---|---|"]
    for stage in result.stages:
        late = f"rank {folded_ranks(stage.missing)}" if stage.missing else ""
        body.append(
            f"| {cell(stage.name)} | {elapsed(stage.seconds)} | {stage.verdict} | {cell(late)} |"
        )
    if result.collectives:
        body += [
            "",
            "| collective | size | time | algbw GB/s | busbw GB/s | wrong |",
            "|---|--:|--:|--:|--:|--:|",
        ]
    for row in result.collectives[:ROWS]:
        name = f"{row.op} {'' if row.dtype == 'float32' else row.dtype}".strip()
        rates = f"{row.algbw_gbs:.2f} | {row.busbw_gbs:.2f} | {row.wrong}"
        body.append(
            f"| {cell(name)} | {format_size(row.bytes)} | {duration(row.seconds)} | {rates} |"
        )
    return "\n".join(lines) + "\n\n" + details("Stages and bandwidth", "\n".join(body) + "\n")


def _culprit(one: Culprit) -> str:
    ends = (
        f"{code(one.source)} → {code(one.target)}"
        if one.source and one.target
        else code(folded(one.nodes))
    )
    rank = "" if one.rank is None else f" rank {one.rank}"
    head = f"- **CULPRIT** {one.kind}{rank} {ends}, {one.confidence:.0%} sure: {said(one.cause)}"
    return "\n".join([head, *(f"  - {said(words)}" for words in one.evidence[:ROWS])])


def _launch(result: LaunchResult | None) -> str:
    if result is None:
        return ""
    ranks = f"{counted(result.world_size, 'rank')}, {result.nproc_per_node} per node, {result.mode}"
    lines = [f"### Launch: {result.verdict}", "", f"{ranks}, {code(result.rendezvous)}"]
    lines += ["", said(result.message)] if result.message else []
    lines += ["", *map(_culprit, result.culprits[:ROWS])]
    for cause in result.causes[:ROWS]:
        lines.append(
            f"- **LOG SAYS** {code(str(cause.get('cause')))}: {said(str(cause.get('message')))}"
        )
        if cause.get("remedy"):
            lines.append(f"\n{block([str(cause['remedy'])], 'sh', '  ')}".rstrip())
    return "\n".join(lines) + "\n"
