"""Write findings to the console: errors whole, all else in a line each; with -v all of it whole.

`console_brief` has these lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clusterprep.model import Finding
from clusterprep.model.history import Since
from clusterprep.model.units import format_duration, pluralize
from clusterprep.reports import console_brief as brief
from clusterprep.reports.blocks import (
    GRAVITY,
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
from clusterprep.reports.plain import FIELD, fold_nodes, safe_text

VALUES = 3  # lines for the different values of one check without -v
REMEDIES = 2  # lines for its different remedies
GAPS = 12  # checks that one missing answer leaves open, by name
MESSAGES = 3  # different messages
MESSAGE = 20_000  # characters of one with -v
COLUMN = 28  # columns of the names with -v

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
    page: ReportPage,
    findings: Sequence[Finding],
    since: Since | None = None,
    whole: bool = False,
) -> None:
    """Write errors, warnings, what is unknown, accepted and fixed findings, passes and skips.

    Of equally grave findings, those that are new since the earlier run come first. With `whole`
    warnings are shown as errors are.
    """
    blocks = blocks_of(findings)
    trouble = troubles(findings)
    new = _new_by_check(since)
    gravest_first = sorted(trouble, key=lambda block: (gravity(block), not _new_nodes(block, new)))
    silenced = accepted(blocks)
    fixed = [block for block in blocks if block.fixed]
    if page.verbose or whole:
        _write_whole(page, gravest_first, new)
    else:
        _write_by_importance(page, gravest_first, new)
    if page.verbose:
        _write_settled(page, silenced, fixed)
    else:
        brief.write_settled(page, silenced, fixed)
    page.blank()
    _write_rest_of_checks(page, findings, trouble, blocks)


def _write_by_importance(page: ReportPage, trouble: Iterable[Block], new: NewNodes) -> None:
    """Write errors whole, and warnings in a line each."""
    by_gravity: dict[tuple[str, str], list[Block]] = {grade: [] for grade in GRAVITY}
    for block in trouble:
        by_gravity[block.verdict, block.severity].append(block)
    _write_whole(page, by_gravity["fail", "error"], new)
    brief.write_warnings(page, by_gravity["fail", "warning"], lambda block: _new_mark(block, new))
    _write_whole(page, by_gravity["unknown", "error"], new)
    brief.write_open(page, by_gravity["unknown", "warning"])


def _write_whole(page: ReportPage, trouble: Iterable[Block], new: NewNodes) -> None:
    """Write trouble with its values, messages and remedies."""
    for group in group_gaps(trouble):
        mark = _new_mark(group[0], new)
        if len(group) == 1:
            _write_trouble(page, group[0], mark)
        else:
            _write_gap(page, group, mark)


def _write_settled(page: ReportPage, silenced: Iterable[Block], fixed: Iterable[Block]) -> None:
    """Write the findings that are accepted, and those that this run has cured."""
    for block in silenced:
        _write_silenced(page, block)
    page.blank()
    for block in fixed:
        _write_fixed(page, block)


def _write_rest_of_checks(
    page: ReportPage,
    findings: Sequence[Finding],
    trouble: Iterable[Block],
    blocks: Iterable[Block],
) -> None:
    """Write what passes and what is not judged."""
    skipped = [block for block in blocks if block.verdict == "skip"]
    if page.verbose:
        _write_passes(page, findings)
        _write_skips(page, skipped)
        return
    judged: dict[str, list[Finding]] = {}
    for finding in findings:
        judged.setdefault(finding.check, []).append(finding)
    troubled = {block.check for block in trouble}
    passes = _passes(findings)
    untroubled = {check: passes[check] for check in passes if check not in troubled}
    brief.write_passes(page, untroubled, skipped, judged)


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
    shown = page.fitting(findings, VALUES)
    wanted = None
    for finding in shown:
        # What is wanted of all alike is said once.
        is_new = bool(page.verbose) or finding.wanted != wanted
        value = _value(finding, says_wanted=is_new)
        wanted = finding.wanted
        if len(findings) > 1 and finding.nodes != block.nodes:
            nodes = fold_nodes(finding.nodes)
            page.under((nodes, "cyan"), ": ", *value)
        else:
            page.under(*value)
    _write_rest(page, len(findings) - len(shown), "more value")


def _value(finding: Finding, *, says_wanted: bool) -> list[Part]:
    """Return `3 s → wanted 1 s`, or the one of them that the finding has."""
    parts: list[Part] = []
    if finding.seen:
        parts.append(safe_text(finding.seen))
    if not finding.wanted or (finding.seen and not says_wanted):
        return parts
    if finding.seen:
        parts.append((" → ", "dim"))
    parts.append(("wanted ", "dim"))
    parts.append(safe_text(finding.wanted))
    return parts


def _write_messages(page: ReportPage, block: Block) -> None:
    messages = block.messages
    shown = page.shown(messages, MESSAGES)
    for message in shown:
        # It may say of many nodes what each has said.
        if page.verbose:
            page.under(safe_text(message, MESSAGE))
        else:
            page.under(safe_text(message))
            if len(message) > FIELD:
                page.under(("… -v shows all of it", "dim"))
    _write_rest(page, len(messages) - len(shown), "more message")


def _write_remedies(page: ReportPage, block: Block) -> None:
    remedies = block.remedies
    shown = page.fitting(remedies, REMEDIES)
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


def _passes(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Return the findings that pass, by check."""
    passes: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.verdict == "pass":
            passes.setdefault(finding.check, []).append(finding)
    return passes


def _write_passes(page: ReportPage, findings: Iterable[Finding]) -> None:
    """Write the checks that pass, with what was seen."""
    passes = _passes(findings)
    if passes:
        page.row(("PASS", "bold green"), pluralize(len(passes), "check"))
        _write_pass_values(page, passes)


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


def _write_skips(page: ReportPage, skipped: Sequence[Block]) -> None:
    """Write the checks that are not judged, with the reasons."""
    if not skipped:
        return
    page.row(("SKIP", "dim"), (brief.summarize_skips(skipped), "dim"))
    for block in skipped:
        check = safe_text(block.check)
        reason = safe_text(block.reason or "")
        nodes = fold_nodes(block.nodes)
        page.under(f"{check}  ", (f"{reason}  {nodes}", "dim"))
