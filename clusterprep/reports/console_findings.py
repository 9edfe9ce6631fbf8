"""Write findings to the console: equal trouble once with its nodes, passes in a paragraph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from clusterprep.model import Finding
from clusterprep.model.history import Since
from clusterprep.model.units import format_duration, pluralize
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
from clusterprep.reports.page import GUTTER, Part, ReportPage
from clusterprep.reports.plain import fold_nodes, safe_text

VALUES = 4  # different values of one check shown without -v
GAPS = 12  # checks that one missing answer leaves open, by name
MESSAGES = 3  # different messages, and different remedies
NAMES = 40  # checks that pass, by name; of more only the areas are shown
COLUMN = 28  # columns of the names with -v
_REASON = 60  # characters of the reason of a skip

_LABELS: dict[tuple[str, str], Part] = {
    ("fail", "error"): ("FAIL", "bold red"),
    ("fail", "warning"): ("WARN", "bold yellow"),
    ("unknown", "error"): ("UNKNOWN", "bold magenta"),
    ("unknown", "warning"): ("UNKNOWN", "magenta"),
}

# Nodes on which a check was well in the earlier run, by check and verdict. Not by severity: a cause
# is shown with that of what follows from it.
NewNodes = Mapping[tuple[str, str], tuple[str, ...]]


def write_findings(
    page: ReportPage, findings: Sequence[Finding], since: Since | None = None
) -> None:
    """Write failures, unknowns, accepted and fixed findings, then passes and skips in short.

    Of equally grave findings, those that are new since the earlier run come first.
    """
    blocks = blocks_of(findings)
    trouble = troubles(findings)
    new = _new_by_check(since)
    gravest_first = sorted(trouble, key=lambda block: (gravity(block), not _new_nodes(block, new)))
    for group in group_gaps(gravest_first):
        mark = _new_mark(group[0], new)
        if len(group) == 1:
            _write_trouble(page, group[0], mark)
        else:
            _write_gap(page, group, mark)
    for block in accepted(blocks):
        _write_silenced(page, block)
    page.blank()
    for block in blocks:
        if block.fixed:
            _write_fixed(page, block)
    page.blank()
    _write_passes(page, findings, trouble)
    _write_skips(page, blocks)


def _new_by_check(since: Since | None) -> NewNodes:
    """Return the new findings of the comparison with the earlier run; none without one."""
    new: dict[tuple[str, str], tuple[str, ...]] = {}
    if since is None:
        return new
    for turn in since.new:
        key = (turn.check, turn.verdict)
        new[key] = (*new.get(key, ()), *turn.nodes)
    return new


def _new_nodes(block: Block, new: NewNodes) -> list[str]:
    """Return the block's nodes on which the check was well in the earlier run."""
    key = (block.check, block.verdict)
    fresh = frozenset(new.get(key, ()))
    return [node for node in block.nodes if node in fresh]


def _new_mark(block: Block, new: NewNodes) -> list[Part]:
    """Return `  new`, or `  new on n[1-2]` if only these nodes were well in the earlier run."""
    nodes = _new_nodes(block, new)
    if not nodes:
        return []
    text = "  new"
    if len(nodes) != len(block.nodes):
        text += f" on {fold_nodes(nodes)}"
    return [(text, "bold red")]


def _write_gap(page: ReportPage, group: Sequence[Block], mark: Sequence[Part]) -> None:
    """Write the checks that one missing answer leaves open, with the remedy for that answer."""
    first = group[0]
    number = len({block.check for block in group})
    count: Part = (f"{number} checks", "bold")
    nodes: Part = (page.nodes(first.nodes), "cyan")
    label = _LABELS["unknown", first.severity]
    page.blank()
    page.row(
        label,
        count,
        "  ",
        nodes,
        _aside(first),
        *mark,
    )
    _write_messages(page, first)
    page.under((f"left open: {_check_names(page, group)}", "dim"))
    _write_consequences(page, first)
    remedy = gap_remedy(first)
    page.fix(remedy, remedy.note, "green")


def _write_trouble(page: ReportPage, block: Block, mark: Sequence[Part]) -> None:
    label = _LABELS[block.verdict, block.severity]
    page.blank()
    page.row(label, *_head(page, block), _aside(block), *mark)
    _write_values(page, block)
    _write_messages(page, block)
    _write_consequences(page, block)
    _write_remedies(page, block)


def _write_consequences(page: ReportPage, block: Block) -> None:
    """Write what follows from a block in one line: `causes: eth.path_mtu; leaves open: …`."""
    following = follows_of(block)
    failures = [follower for follower in following if follower.verdict == "fail"]
    unknown = [follower for follower in following if follower.verdict == "unknown"]
    parts = []
    for title, followers in (("causes", failures), ("leaves open", unknown)):
        if followers:
            parts.append(f"{title}: {_check_names(page, followers)}")
    if parts:
        page.under(("; ".join(parts), "dim"))


def _check_names(page: ReportPage, blocks: Sequence[Block]) -> str:
    """Return the names of the checks, each once; without -v at most GAPS of them."""
    names = list(dict.fromkeys(safe_text(block.check) for block in blocks))
    shown = page.shown(names, GAPS)
    text = ", ".join(shown)
    remaining = len(names) - len(shown)
    if remaining:
        text += f" and {remaining} more (-v names them)"
    return text


def _write_silenced(page: ReportPage, block: Block) -> None:
    verdict: Part = (f"  {block.verdict}, {block.severity}", "dim")
    page.blank()
    page.row(("SILENCED", "dim"), *_head(page, block), verdict)
    _write_values(page, block)
    text = f"accepted: {safe_text(block.silenced or '')}"
    if block.until:
        text += f", until {block.until:%Y-%m-%d}"
    page.under((text, "dim"))


def _write_fixed(page: ReportPage, block: Block) -> None:
    page.row(("FIXED", "green"), *_head(page, block))
    _write_values(page, block)
    if page.verbose:
        _write_messages(page, block)


def _head(page: ReportPage, block: Block) -> list[Part]:
    """Return `time.offset  n[1-2]`."""
    check: Part = (safe_text(block.check), "bold")
    nodes: Part = (page.nodes(block.nodes), "cyan")
    return [check, "  ", nodes]


def _aside(block: Block) -> str:
    """Return why a check is unknown, whether that is only a warning, and how old the answer is."""
    parts = []
    if block.verdict == "unknown":
        if block.reason:
            parts.append(safe_text(block.reason))
        if block.severity == "warning":
            parts.append("warning")
    if block.age is not None:
        age = format_duration(round(block.age))
        parts.append(f"as of {age} ago")
    if not parts:
        return ""
    return f"  ({', '.join(parts)})"


def _write_values(page: ReportPage, block: Block) -> None:
    """Write what was seen and wanted; with the nodes if there is more than one value."""
    findings = block.valued
    shown = page.shown(findings, VALUES)
    for finding in shown:
        value = _value(finding)
        if len(findings) > 1:
            nodes = fold_nodes(finding.nodes)
            page.under((nodes, "cyan"), ": ", *value)
        else:
            page.under(*value)
    _write_rest(page, len(findings) - len(shown), "more value")


def _value(finding: Finding) -> list[Part]:
    """Return `3 s → wanted 1 s`, or the one of them that the finding has."""
    parts: list[Part] = []
    if finding.seen:
        parts.append(safe_text(finding.seen))
    if finding.seen and finding.wanted:
        parts.append((" → ", "dim"))
    if finding.wanted:
        parts.append(("wanted ", "dim"))
        parts.append(safe_text(finding.wanted))
    return parts


def _write_messages(page: ReportPage, block: Block) -> None:
    messages = block.messages
    shown = page.shown(messages, MESSAGES)
    for message in shown:
        page.under(safe_text(message))
    _write_rest(page, len(messages) - len(shown), "more message")


def _write_remedies(page: ReportPage, block: Block) -> None:
    remedies = block.remedies
    shown = page.shown(remedies, MESSAGES)
    for remedy in shown:
        page.fix(remedy, remedy.note, "green")
    _write_rest(page, len(remedies) - len(shown), "more fix", "more fixes")


def _write_rest(page: ReportPage, number: int, noun: str, nouns: str = "") -> None:
    """Write how many rows are not shown. `nouns` is the plural if it is not formed with an s."""
    if number <= 0:
        return
    count = pluralize(number, noun)
    if nouns and number > 1:
        count = f"{number:,} {nouns}"
    page.under((f"… {count} (-v shows all)", "dim"))


def _write_passes(page: ReportPage, findings: Sequence[Finding], trouble: Iterable[Block]) -> None:
    """Write the checks that pass; without -v only those that are not in trouble on other nodes."""
    troubled = {block.check for block in trouble}
    passes: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.verdict != "pass":
            continue
        if page.verbose or finding.check not in troubled:
            passes.setdefault(finding.check, []).append(finding)
    if not passes:
        return
    label: Part = ("PASS", "bold green")
    number = pluralize(len(passes), "check")
    if page.verbose:
        page.row(label, number)
        _write_pass_values(page, passes)
    elif len(passes) > NAMES:
        page.row(label, f"{number}: ", (_areas(passes), "dim"), ("; -v names them", "dim"))
    else:
        page.row(label, f"{number}: ", (_pass_names(passes, findings), "dim"))


def _areas(checks: Iterable[str]) -> str:
    """Return `env 3, eth 2`: how many checks of each area."""
    areas: Counter[str] = Counter()
    for check in checks:
        area = check.partition(".")[0]
        areas[area] += 1
    parts = []
    for area in sorted(areas)[:NAMES]:
        name = safe_text(area, 40)
        parts.append(f"{name} {areas[area]}")
    return ", ".join(parts)


def _pass_names(passes: Mapping[str, Sequence[Finding]], findings: Iterable[Finding]) -> str:
    """Return the names of the checks; a check that was skipped on some nodes says on how many."""
    judged: dict[str, set[str]] = {}
    for finding in findings:
        judged.setdefault(finding.check, set()).update(finding.nodes)
    parts = []
    for check in sorted(passes):
        name = safe_text(check)
        passed = set(nodes_of(passes[check]))
        if passed != judged[check]:
            name += f" ({len(passed)}/{len(judged[check])})"
        parts.append(name)
    return ", ".join(parts)


def _write_pass_values(page: ReportPage, passes: Mapping[str, Sequence[Finding]]) -> None:
    """Write a line for each check that passes: its name, and the values in a column of their own.

    `passes` has the findings by check.
    """
    all_nodes: set[str] = set()
    longest = 0
    for check, findings in passes.items():
        all_nodes.update(nodes_of(findings))
        longest = max(longest, len(check))
    indent = " " * GUTTER
    column = GUTTER + min(longest, COLUMN) + 2
    for check, findings in passes.items():
        values: Part = (_pass_values(page, findings, all_nodes), "dim")
        page.row(indent + safe_text(check), values, indent=column)


def _pass_values(page: ReportPage, findings: Sequence[Finding], all_nodes: set[str]) -> str:
    """Return the values seen, with their nodes unless all nodes show the same."""
    if len(findings) == 1 and set(findings[0].nodes) == all_nodes:
        return safe_text(findings[0].seen)
    shown = findings
    if page.verbose < 2:
        shown = findings[:VALUES]
    values = []
    for finding in shown:
        value = f"{safe_text(finding.seen)} ({fold_nodes(finding.nodes)})"
        values.append(value.strip())
    if len(shown) < len(findings):
        values.append(f"… {len(findings) - len(shown)} more values (-vv)")
    return ", ".join(values)


def _write_skips(page: ReportPage, blocks: Iterable[Block]) -> None:
    skipped = [block for block in blocks if block.verdict == "skip"]
    if not skipped:
        return
    text = _summarize_skips(skipped)
    if not page.verbose:
        text += "; -v lists them"
    page.row(("SKIP", "dim"), (text, "dim"))
    if not page.verbose:
        return
    for block in skipped:
        check = safe_text(block.check)
        reason = safe_text(block.reason or "")
        nodes = fold_nodes(block.nodes)
        page.under(f"{check}  ", (f"{reason}  {nodes}", "dim"))


def _summarize_skips(blocks: Iterable[Block]) -> str:
    """Return `3 checks not judged: 2 not_applicable, 1 at_rest`."""
    checks = set()
    reasons: Counter[str] = Counter()
    for block in blocks:
        checks.add(block.check)
        reason = safe_text(block.reason or "no reason", _REASON)
        reasons[reason] += 1
    parts = []
    for reason, number in reasons.most_common(VALUES):
        part = f"{number} {reason}"
        parts.append(part)
    number_of_checks = pluralize(len(checks), "check")
    return f"{number_of_checks} not judged: {', '.join(parts)}"
