"""Render the report as GitHub's Markdown, for a pull request or a ticket: trouble first.

Texts of nodes and files are shown in code spans and fenced blocks, or as plain text if no character
of them means anything in Markdown. So they are never markup or HTML, and never mention a user,
refer to an issue or become a link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from clusterprep.model import (
    BatchRow,
    BisectResult,
    ChangeRow,
    CollectiveResult,
    CommandResult,
    Culprit,
    EnvValue,
    Finding,
    FixRow,
    Json,
    LaunchResult,
    Report,
    Stage,
    VerifyResult,
)
from clusterprep.model.units import format_size, pluralize
from clusterprep.remedies import LONGEST_LINE, Remedy
from clusterprep.reports.advice import advice
from clusterprep.reports.blocks import (
    LABELS,
    Block,
    accepted,
    blocks_of,
    describe_ending,
    follows_of,
    gap_remedy,
    group_gaps,
    number_reached,
    summarize,
    troubles,
)
from clusterprep.reports.fixes import sorted_fixes
from clusterprep.reports.plain import (
    collective_name,
    diff_lines,
    distinct,
    fold_nodes,
    fold_ranks,
    format_elapsed,
    format_seconds,
    safe_text,
)

BLOCKS = 40  # of trouble told in full; GitHub refuses a comment of more than 65,536 characters
VALUES = 4  # different values of one check
MESSAGES = 3  # different messages, and different remedies, of one check
DIFFS, DIFF = 8, 40  # changes with their difference, and its lines
ROWS = 40  # of a table, and of a list
LARGEST = 60_000  # characters
FIELD = 300  # characters of a text

# Text that is safe outside a code span: letters, digits and punctuation that mean nothing in
# Markdown. It must not begin like a list item.
_HARMLESS = re.compile(
    r"(?!\d+[.)](?:\s|$))(?=[^\W_]|[('\"≤≥±]|$)(?:[^\W_]|[ ,.;()%'\"/+=:≤≥±→…·–-]|(?<=\w)_(?=\w))*"
)
# What GitHub turns into links and emoji by itself.
_LINKS = re.compile(r"://|www\.|\bGH-\d|:[\w+-]+:", re.IGNORECASE)


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """Return the report, cut where it is longer than a comment may be."""
    parts = [
        _head(report),
        _error(report),
        *_trouble(report),
        _not_counting(report.findings or ()),
        _verify(report.verify),
        _launch(report.launch),
        _bisect(report.bisect),
        _env(report.env),
        _batches(report.batches),
        _changes(report.changes),
        _fixes(report.fixes),
        _results(report.results or ()),
        _advice(report),
    ]
    text = ""
    for part in parts:
        if not part:
            continue
        if len(text) + len(part) > LARGEST:
            rest = "*The rest does not fit into a comment; `--output report.html` has it.*"
            return f"{text}\n{rest}\n"
        if text:
            text += "\n"
        text += part
    return text


# ---------------------------------------------------------------- texts of nodes and files


def inline(text: str, limit: int = FIELD) -> str:
    """Return the text as it is if every character is harmless, otherwise as a code span."""
    cleaned = safe_text(text, limit)
    if _HARMLESS.fullmatch(cleaned) and not _LINKS.search(cleaned):
        return cleaned
    return code(cleaned, limit)


def code(text: str, limit: int = FIELD) -> str:
    """Return a code span whose fence is longer than any run of backticks in it."""
    content = safe_text(text, limit) or " "
    fence = "`" * (_longest_backticks(content) + 1)
    # Markdown takes one space off at both ends, and a backtick there would lengthen the fence.
    if content[0] in "` " or content[-1] in "` ":
        content = f" {content} "
    return f"{fence}{content}{fence}"


def cell(text: str, limit: int = FIELD) -> str:
    """Return the text for a table, where a bar ends the cell even inside a code span.

    A backslash before it would spoil its escape, so both become HTML entities.
    """
    content = safe_text(text, limit)
    if not content:
        return ""
    if "|" not in content and "\\" not in content:
        return inline(content, limit)
    escaped = ""
    for char in content:
        if char.isalnum() or char == " ":
            escaped += char
        else:
            escaped += f"&#{ord(char)};"
    return f"<code>{escaped}</code>"


def block(
    lines: Iterable[str], language: str = "", indent: str = "", longest_line: int = FIELD
) -> str:
    """Return a fenced block whose fence is longer than any fence in it."""
    shown = [safe_text(line, longest_line) for line in lines]
    longest = max(map(_longest_backticks, shown), default=0)
    fence = "`" * max(3, longest + 1)
    text = ""
    for line in (f"{fence}{language}", *shown, fence):
        text += f"{indent}{line}\n"
    return text


def details(summary: str, body: str) -> str:
    """Return a folded section. `summary` is HTML and must hold no text of nodes or files."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n</details>\n"


def _longest_backticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


# ---------------------------------------------------------------- head


def _head(report: Report) -> str:
    title = "clusterprep"
    command = inline(report.command, 40)
    if command:
        title += f" {command}"
    if report.cluster:
        title += f" {code(report.cluster, 80)}"
    verdict = inline(report.verdict).upper()
    facts = [f"**{summarize(report)}**", *_run_facts(report)]
    lines = [f"## {verdict}: {title}", "", " · ".join(facts)]
    if report.notices:
        lines.append("")
    for notice in report.notices[:ROWS]:
        text = inline(notice)
        lines.append(f"> {text}  ")
    if report.findings is None:
        lines += _unreached(report)
    return "\n".join(lines) + "\n"


def _run_facts(report: Report) -> list[str]:
    """Return how many nodes were reached, the run's name and its time."""
    facts = []
    if report.nodes is not None:
        total = pluralize(len(report.nodes), "node")
        facts.append(f"{number_reached(report)}/{total} reached")
    if report.run:
        facts.append(f"run {code(report.run, 80)}")
    facts.append(format_elapsed(report.seconds))
    return facts


def _unreached(report: Report) -> list[str]:
    """Return a line per reason for which nodes were not reached."""
    nodes_by_reason: dict[str, list[str]] = {}
    for node in report.nodes or ():
        if not node.reached:
            nodes_by_reason.setdefault(node.reason or "unknown", []).append(node.node)
    lines = []
    for reason, nodes in nodes_by_reason.items():
        names = code(fold_nodes(nodes))
        lines.append(f"- **LOST** {names} not reached: {inline(reason)}")
    if lines:
        lines.insert(0, "")
    return lines


def _error(report: Report) -> str:
    if report.error is None:
        return ""
    message = str(report.error.get("message") or "")
    return block(_cut(message.split("\n"), ROWS), "text")


def _advice(report: Report) -> str:
    lines = []
    for label, text in advice(report):
        if label == "next":
            lines.append(f"{label}: {inline(text)}")
        else:
            lines.append(f"{label}: {code(text)}")
    if not lines:
        return ""
    return "  \n".join(lines) + "\n"


def _cut(lines: Sequence[str], limit: int) -> list[str]:
    """Return the first lines, and how many more there are."""
    shown = list(lines[:limit])
    if len(lines) > limit:
        more = pluralize(len(lines) - limit, "more line")
        shown.append(f"… {more}")
    return shown


# ---------------------------------------------------------------- findings


def _trouble(report: Report) -> list[str]:
    """Return the parts of the section «What is wrong»; none if all is well."""
    groups = group_gaps(troubles(report.findings or ()))
    if not groups:
        return []
    parts = ["### What is wrong\n"]
    for group in groups[:BLOCKS]:
        if len(group) == 1:
            parts.append(_block(group[0]))
        else:
            parts.append(_gap(group))
    rows = []
    for group in groups[BLOCKS:]:
        for entry in group:
            label = LABELS[entry.verdict, entry.severity]
            rows.append(f"- {label} {code(entry.check)} {_where(entry.nodes)}\n")
    if rows:
        parts.append(details(f"{len(rows)} more checks", "".join(rows)))
    return parts


def _gap(group: Sequence[Block]) -> str:
    """Return the checks that one missing answer leaves open."""
    first = group[0]
    reason = inline(first.reason or "")
    head = f"- **UNKNOWN** {len(group)} checks {_where(first.nodes)} ({reason})"
    if first.severity == "warning":
        head += ", warnings"
    names = [code(entry.check) for entry in group[:ROWS]]
    lines = [head, *_messages(first)]
    lines.append(f"  - left open: {', '.join(names)}")
    lines += _consequences(first)
    lines.append("")
    lines.append(_remedies([gap_remedy(first)]))
    return "\n".join(lines)


def _block(entry: Block) -> str:
    label = LABELS[entry.verdict, entry.severity]
    head = f"- **{label}** {code(entry.check)} {_where(entry.nodes)}"
    if entry.reason:
        head += f" ({inline(entry.reason)})"
    if entry.severity == "warning" and entry.verdict == "unknown":
        head += ", a warning"
    lines = [head, *_messages(entry), *_values(entry), *_consequences(entry)]
    text = "\n".join(lines) + "\n"
    remedies = entry.remedies[:MESSAGES]
    if remedies:
        text += "\n" + _remedies(remedies)
    return text


def _consequences(entry: Block) -> list[str]:
    """Return a line with the checks that follow from this one, or nothing."""
    names = distinct(code(follower.check) for follower in follows_of(entry))
    if not names:
        return []
    text = ", ".join(names[:ROWS])
    if len(names) > ROWS:
        text += f" and {len(names) - ROWS} more"
    return [f"  - from it follow: {text}"]


def _remedies(remedies: Sequence[Remedy]) -> str:
    """Return lines for a shell in a block, and sentences and notes below it."""
    commands = [remedy for remedy in remedies if remedy.is_command]
    sentences = []
    for remedy in remedies:
        if not remedy.is_command:
            sentences.append(str(remedy))
        elif remedy.note:
            sentences.append(remedy.note)
    parts = []
    if commands:
        parts.append(block(commands, "sh", "  ", LONGEST_LINE))
    for sentence in distinct(sentences):
        parts.append(f"  {inline(sentence)}\n")
    return "\n".join(parts)


def _messages(entry: Block) -> list[str]:
    lines = []
    for message in entry.messages[:MESSAGES]:
        text = inline(message)
        lines.append(f"  {text}")
    return lines


def _values(entry: Block) -> list[str]:
    """Return what was seen and wanted; with the nodes if there is more than one value."""
    findings = entry.valued
    lines = []
    for finding in findings[:VALUES]:
        values = []
        if finding.seen:
            values.append(f"seen {inline(finding.seen)}")
        if finding.wanted:
            values.append(f"wanted {inline(finding.wanted)}")
        nodes = ""
        if len(findings) > 1 and finding.nodes:
            nodes = f"{code(fold_nodes(finding.nodes))}: "
        lines.append(f"  - {nodes}{', '.join(values)}")
    if len(findings) > VALUES:
        more = pluralize(len(findings) - VALUES, "more value")
        lines.append(f"  - {more}")
    return lines


def _where(nodes: Sequence[str]) -> str:
    if not nodes:
        return ""
    return f"on {code(fold_nodes(nodes))}"


def _not_counting(findings: Sequence[Finding]) -> str:
    """Return folded lists of what does not count: accepted, fixed, passed, not judged."""
    blocks = blocks_of(findings)
    fixed = []
    passed = []
    skipped = []
    for entry in blocks:
        if entry.fixed:
            fixed.append(entry)
        elif entry.verdict == "pass":
            passed.append(code(entry.check))
        if entry.verdict == "skip":
            line = f"- {code(entry.check)} {inline(entry.reason or '')} {_where(entry.nodes)}"
            skipped.append(line)
    parts = [
        _folded_list(accepted(blocks), "accepted"),
        _folded_list(fixed, "fixed by this run"),
    ]
    if passed:
        names = distinct(passed)
        summary = f"{pluralize(len(names), 'check')} passed"
        parts.append(details(summary, ", ".join(names) + "\n"))
    if skipped:
        summary = f"{pluralize(len(skipped), 'check')} not judged"
        parts.append(details(summary, "\n".join(skipped) + "\n"))
    return "\n".join(part for part in parts if part)


def _folded_list(blocks: Sequence[Block], title: str) -> str:
    """Return findings as a folded list under `2 findings accepted`; "" if there are none."""
    if not blocks:
        return ""
    lines = []
    for entry in blocks:
        line = f"- {code(entry.check)} {_where(entry.nodes)} {inline(entry.silenced or '')}"
        lines.append(line.rstrip())
    summary = f"{pluralize(len(blocks), 'finding')} {title}"
    return details(summary, "\n".join(lines) + "\n")


# ---------------------------------------------------------------- environment and changes


def _env(env: Sequence[EnvValue] | None) -> str:
    if not env:
        return ""
    variables = set()
    all_nodes: set[str] = set()
    for value in env:
        variables.add(value.name)
        all_nodes.update(value.nodes)
    rows = ["| variable | value | nodes | why |", "|---|---|---|---|"]
    for value in env[:ROWS]:
        nodes = "all"
        if set(value.nodes) != all_nodes:
            nodes = fold_nodes(value.nodes)
        texts = (value.name, value.value, nodes, value.why)
        rows.append(_table_row(*map(cell, texts)))
    if len(env) > ROWS:
        rows += ["", pluralize(len(env) - ROWS, "more value")]
    summary = f"Environment: {pluralize(len(variables), 'variable')}"
    return details(summary, "\n".join(rows) + "\n")


def _table_row(*cells: str) -> str:
    content = " | ".join(cells)
    return f"| {content} |"


def _batches(batches: Sequence[BatchRow] | None) -> str:
    """Return a list of the batches, unfolded: it says which nodes have what."""
    if not batches:
        return ""
    lines = ["### Batches", ""]
    for row in batches[:ROWS]:
        text = f"- **{row.outcome}** {inline(row.name)} {_where(row.nodes)}"
        if row.gate:
            text += f", gate: {row.gate}"
        if row.detail:
            text += f": {inline(row.detail)}"
        lines.append(text)
    if len(batches) > ROWS:
        lines.append(f"- {len(batches) - ROWS} more")
    return "\n".join(lines) + "\n"


def _fixes(fixes: Sequence[FixRow] | None) -> str:
    """Return a list of what became of the failures that fix looked at."""
    if not fixes:
        return ""
    lines = ["### Fixes", ""]
    rows = sorted_fixes(fixes)
    for row in rows[:ROWS]:
        text = f"- **{row.outcome}** {inline(row.check)} {_where(row.nodes)}"
        if row.reason:
            text += f": {inline(row.reason)}"
        lines.append(text)
    if len(rows) > ROWS:
        lines.append(f"- {len(rows) - ROWS} more")
    return "\n".join(lines) + "\n"


def _changes(changes: Sequence[ChangeRow] | None) -> str:
    if not changes:
        return ""
    changed = [row for row in changes if row.outcome != "unchanged"]
    body = ""
    for number, row in enumerate(changed[:ROWS]):
        body += _change(row)
        lines = diff_lines(row.diff)
        if lines and number < DIFFS:
            body += "\n" + block(_cut(lines, DIFF), "diff", "  ")
    if len(changed) > ROWS:
        more = pluralize(len(changed) - ROWS, "more change")
        body += f"- {more}\n"
    unchanged = [row for row in changes if row.outcome == "unchanged"]
    if unchanged:
        nodes = dict.fromkeys(node for row in unchanged for node in row.nodes)
        count = pluralize(len(unchanged), "change")
        body += f"- {count} already as wanted {_where(tuple(nodes))}\n"
    summary = f"Changes: {pluralize(len(changed), 'change')}"
    return details(summary, body)


def _change(row: ChangeRow) -> str:
    text = f"- **{row.outcome}** {row.action} {code(row.target)} {_where(row.nodes)}"
    if row.detail:
        text += f": {inline(row.detail)}"
    return text + "\n"


def _results(results: Sequence[CommandResult]) -> str:
    """Return what a command of `exec` printed, each output once."""
    text = ""
    for result in results[:ROWS]:
        size = pluralize(len(result.nodes), "node")
        text += f"- **{describe_ending(result) or 'exit code 0'}** {_where(result.nodes)}, {size}\n"
        lines = [*result.stdout.rstrip().splitlines(), *result.stderr.rstrip().splitlines()]
        if lines:
            text += "\n" + block(_cut(lines, DIFF), indent="  ")
        if result.left_out:
            text += f"\n  … {result.left_out:,} more bytes were not kept\n"
    if len(results) > ROWS:
        text += f"- {pluralize(len(results) - ROWS, 'more result')}\n"
    return text


# ---------------------------------------------------------------- verify and launch


def _verify(result: VerifyResult | None) -> str:
    if result is None:
        return ""
    ranks = pluralize(result.world_size, "rank")
    size = f"{ranks}, {result.nproc_per_node} per node"
    head = f"{code(result.backend)}, {size}, {code(result.rendezvous)}"
    lines = [f"### Verify: {result.verdict}", "", head]
    if result.message:
        lines += ["", inline(result.message)]
    if result.culprits:
        lines.append("")
    for culprit in result.culprits[:ROWS]:
        lines += _culprit(culprit)
    tables = _stage_table(result.stages)
    if result.collectives:
        tables += ["", *_collective_table(result.collectives)]
    body = "\n".join(tables) + "\n"
    return "\n".join(lines) + "\n\n" + details("Stages and bandwidth", body)


def _stage_table(stages: Iterable[Stage]) -> list[str]:
    rows = ["| stage | took | verdict | missing |", "|---|---|---|---|"]
    for stage in stages:
        missing = ""
        if stage.missing:
            missing = f"rank {fold_ranks(stage.missing)}"
        name = cell(stage.name)
        took = format_elapsed(stage.seconds)
        rows.append(_table_row(name, took, stage.verdict, cell(missing)))
    return rows


def _collective_table(results: Sequence[CollectiveResult]) -> list[str]:
    rows = [
        "| collective | size | time | algbw GB/s | busbw GB/s | wrong |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in results[:ROWS]:
        name = cell(collective_name(row.op, row.dtype))
        size = format_size(row.bytes)
        took = format_seconds(row.seconds)
        rates = f"{row.algbw_gbs:.3g} | {row.busbw_gbs:.3g}"
        rows.append(
            _table_row(
                name,
                size,
                took,
                rates,
                str(row.wrong),
            )
        )
    return rows


def _culprit(culprit: Culprit) -> list[str]:
    place = code(fold_nodes(culprit.nodes))
    if culprit.source and culprit.target:
        place = f"{code(culprit.source)} → {code(culprit.target)}"
    kind: str = culprit.kind
    if culprit.rank is not None:
        number = f"rank {culprit.rank}"
        kind = number if kind == "rank" else f"{kind} {number}"
    sure = f"{culprit.confidence:.0%} sure"
    lines = [f"- **CULPRIT** {kind} {place}, {sure}: {inline(culprit.cause)}"]
    for evidence in culprit.evidence[:ROWS]:
        text = inline(evidence)
        lines.append(f"  - {text}")
    return lines


def _launch(result: LaunchResult | None) -> str:
    if result is None:
        return ""
    ranks = pluralize(result.world_size, "rank")
    size = f"{ranks}, {result.nproc_per_node} per node, {result.mode}"
    lines = [f"### Launch: {result.verdict}", "", f"{size}, {code(result.rendezvous)}"]
    if result.message:
        lines += ["", inline(result.message)]
    lines.append("")
    for culprit in result.culprits[:ROWS]:
        lines += _culprit(culprit)
    for cause in result.causes[:ROWS]:
        lines += _cause(cause)
    return "\n".join(lines) + "\n"


def _bisect(result: BisectResult | None) -> str:
    if result is None:
        return ""
    head = (
        f"{code(' '.join(result.command))}, {len(result.runs)} of at most {result.most_runs} runs"
    )
    lines = [f"### Bisect: {result.verdict}", "", head]
    if result.message:
        lines += ["", inline(result.message)]
    lines.append("")
    for culprit in result.culprits[:ROWS]:
        lines += _culprit(culprit)
    table = ["| run | nodes | ended | seconds |", "|--:|---|---|--:|"]
    for run in result.runs:
        nodes = cell(fold_nodes(run.nodes))
        table.append(_table_row(str(run.number), nodes, run.ended, f"{run.seconds:.1f}"))
    body = "\n".join(table) + "\n"
    return "\n".join(lines) + "\n\n" + details("Runs", body)


def _cause(cause: Mapping[str, Json]) -> list[str]:
    name = code(str(cause.get("cause")))
    message = inline(str(cause.get("message")))
    lines = [f"- **LOG SAYS** {name}: {message}"]
    remedy = cause.get("remedy")
    if remedy:
        lines += ["", block([str(remedy)], "sh", "  ").rstrip()]
    if cause.get("note"):
        lines += ["", f"  {inline(str(cause['note']))}"]
    return lines
