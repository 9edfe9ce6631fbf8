"""Findings for people: equal trouble is told once with the nodes it sits on, and what is well takes a paragraph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from clusterprep.model import Finding
from clusterprep.model.history import Since
from clusterprep.model.units import format_duration
from clusterprep.reports.blocks import RANK, Block, blocks_of, cure, gathered, troubles
from clusterprep.reports.page import GUTTER, Part, ReportPage
from clusterprep.reports.plain import counted, distinct, field, folded

SEEN = 4  # different values shown for one check without -v
GAPS = 12  # checks that one missing answer leaves open, by name
WORDS = 3  # different messages, and different remedies
NAMES = 40  # checks that pass, by name; more are told by area
COLUMN = 28  # of the names with -v

_WORDS: dict[tuple[str, str], Part] = {
    ("fail", "error"): ("FAIL", "bold red"),
    ("fail", "warning"): ("WARN", "bold yellow"),
    ("unknown", "error"): ("UNKNOWN", "bold magenta"),
    ("unknown", "warning"): ("UNKNOWN", "magenta"),
}


def write_findings(
    page: ReportPage, findings: Sequence[Finding], since: Since | None = None
) -> None:
    """Failures, unknowns, accepted ones, cured ones, then passes and skips in short; of equal ones new ones first."""
    blocks = blocks_of(findings)
    trouble = troubles(findings)
    new = {
        (turn.check, turn.verdict, turn.severity): turn.nodes
        for turn in (since.new if since else ())
    }
    ranked = sorted(
        trouble, key=lambda block: (RANK[block.verdict, block.severity], not _new(block, new))
    )
    for alike in gathered(ranked):
        mark = [part for block in alike[:1] for part in _mark(block, new)]
        _write_trouble(page, alike[0], mark) if len(alike) == 1 else _write_gap(page, alike, mark)
    for block in blocks:
        if block.silenced and not block.fixed and block.verdict in ("fail", "unknown"):
            _write_silenced(page, block)
    page.blank()
    for block in blocks:
        if block.fixed:
            _write_fixed(page, block)
    page.blank()
    _write_passes(page, findings, {block.check for block in trouble})
    _write_skips(page, [block for block in blocks if block.verdict == "skip"])


def _new(block: Block, new: Mapping[tuple[str, str, str], tuple[str, ...]]) -> list[str]:
    """The nodes on which it was well in the earlier run."""
    fresh = frozenset(new.get((block.check, block.verdict, block.severity), ()))
    return [node for node in block.nodes if node in fresh]


def _mark(block: Block, new: Mapping[tuple[str, str, str], tuple[str, ...]]) -> list[Part]:
    nodes = _new(block, new)
    where = "" if len(nodes) == len(block.nodes) else f" on {folded(nodes)}"
    return [(f"  new{where}", "bold red")] if nodes else []


def _write_gap(page: ReportPage, blocks: Sequence[Block], mark: Sequence[Part]) -> None:
    """What one missing answer leaves open; the checks' own fixes are for what they would have found."""
    page.blank()
    first, names = blocks[0], [field(block.check) for block in blocks]
    nodes = folded(first.nodes, None) if page.verbose else folded(first.nodes)
    head: list[Part] = [(f"{len(names)} checks", "bold"), "  ", (nodes, "cyan")]
    page.row(_WORDS["unknown", first.severity], *head, *_aside(first), *mark)
    _write_messages(page, first)
    shown = names if page.verbose else names[:GAPS]
    more = f" and {len(names) - len(shown)} more (-v names them)" if len(shown) < len(names) else ""
    page.under((f"left open: {', '.join(shown)}{more}", "dim"))
    page.row(("    fix:", "dim"), (cure(first), "green"), keep=True)


def _write_trouble(page: ReportPage, block: Block, mark: Sequence[Part]) -> None:
    page.blank()
    page.row(_WORDS[block.verdict, block.severity], *_head(page, block), *_aside(block), *mark)
    _write_seen(page, block)
    _write_messages(page, block)
    _write_remedies(page, block)


def _write_silenced(page: ReportPage, block: Block) -> None:
    page.blank()
    page.row(
        ("SILENCED", "dim"), *_head(page, block), (f"  {block.verdict}, {block.severity}", "dim")
    )
    _write_seen(page, block)
    until = f", until {block.until:%Y-%m-%d}" if block.until else ""
    page.under((f"accepted: {field(block.silenced or '')}{until}", "dim"))


def _write_fixed(page: ReportPage, block: Block) -> None:
    page.row(("FIXED", "green"), *_head(page, block))
    _write_seen(page, block)
    if page.verbose:
        _write_messages(page, block)


def _head(page: ReportPage, block: Block) -> list[Part]:
    nodes = folded(block.nodes, None) if page.verbose else folded(block.nodes)
    return [(field(block.check), "bold"), "  ", (nodes, "cyan")]


def _aside(block: Block) -> list[Part]:
    """An unknown says why, and that it is a mild one; what was not learned now says when."""
    ages = [one.age for one in block.findings if one.age is not None]
    said = [f"as of {format_duration(round(max(ages)))} ago"] if ages else []
    if block.verdict == "unknown":
        mild = ["warning"] if block.severity == "warning" else []
        said = ([field(block.reason)] if block.reason else []) + mild + said
    return [f"  ({', '.join(said)})"] if said else []


def _write_seen(page: ReportPage, block: Block) -> None:
    told = [one for one in block.findings if one.seen or one.wanted]
    shown = told if page.verbose else told[:SEEN]
    for one in shown:
        where: list[Part] = [(folded(one.nodes), "cyan"), ": "] if len(told) > 1 else []
        page.under(*where, *_seen(one))
    _write_rest(page, len(told) - len(shown), "more value")


def _seen(one: Finding) -> list[Part]:
    seen: list[Part] = [field(one.seen)] if one.seen else []
    wanted: list[Part] = [("wanted ", "dim"), field(one.wanted)] if one.wanted else []
    return [*seen, (" → ", "dim"), *wanted] if seen and wanted else [*seen, *wanted]


def _write_messages(page: ReportPage, block: Block) -> None:
    messages = distinct(one.message for one in block.findings)
    shown = messages if page.verbose else messages[:WORDS]
    for message in shown:
        page.under(field(message))
    _write_rest(page, len(messages) - len(shown), "more message")


def _write_remedies(page: ReportPage, block: Block) -> None:
    remedies = distinct(one.remedy for one in block.findings)
    shown = remedies if page.verbose else remedies[:WORDS]
    for remedy in shown:
        page.row(("    fix:", "dim"), (field(remedy), "green"), keep=True)
    _write_rest(page, len(remedies) - len(shown), "more fix", "more fixes")


def _write_rest(page: ReportPage, number: int, noun: str, nouns: str = "") -> None:
    if number > 0:
        said = f"{number:,} {nouns}" if nouns and number > 1 else counted(number, noun)
        page.under((f"… {said} (-v shows all)", "dim"))


def _write_passes(page: ReportPage, findings: Sequence[Finding], troubled: set[str]) -> None:
    """Names of the checks; a check that stands above as trouble is not named again as well on the other nodes."""
    passes: dict[str, list[Finding]] = {}
    for one in findings:
        if one.verdict == "pass" and (page.verbose or one.check not in troubled):
            passes.setdefault(one.check, []).append(one)
    if not passes:
        return
    label, number = ("PASS", "bold green"), counted(len(passes), "check")
    if page.verbose:
        page.row(label, number)
        _write_pass_values(page, passes)
    elif len(passes) > NAMES:
        page.row(label, f"{number}: ", (_areas(passes), "dim"), ("; -v names them", "dim"))
    else:
        judged = _nodes_by_check(findings)
        names = ", ".join(
            _pass_name(check, same, judged[check]) for check, same in sorted(passes.items())
        )
        page.row(label, f"{number}: ", (names, "dim"))


def _areas(checks: Iterable[str]) -> str:
    """`env 3, eth 2`: how many checks of each area."""
    areas = Counter(check.partition(".")[0] for check in checks)
    return ", ".join(
        f"{field(area, 40)} {number}" for area, number in sorted(areas.items())[:NAMES]
    )


def _pass_name(check: str, same: Sequence[Finding], judged: set[str]) -> str:
    """A check that passes on some nodes and was skipped on others says on how many."""
    well = {node for one in same for node in one.nodes}
    return field(check) if well == judged else f"{field(check)} ({len(well)}/{len(judged)})"


def _write_pass_values(page: ReportPage, passes: Mapping[str, Sequence[Finding]]) -> None:
    everyone = {node for same in passes.values() for one in same for node in one.nodes}
    column = GUTTER + min(max(len(check) for check in passes), COLUMN) + 2
    for check, same in passes.items():
        page.row(
            " " * GUTTER + field(check), (_pass_values(page, same, everyone), "dim"), indent=column
        )


def _pass_values(page: ReportPage, same: Sequence[Finding], everyone: set[str]) -> str:
    """The values seen, with their nodes where not all nodes show the same."""
    if len(same) == 1 and set(same[0].nodes) == everyone:
        return field(same[0].seen)
    shown = same if page.verbose > 1 else same[:SEEN]
    said = [f"{field(one.seen)} ({folded(one.nodes)})".strip() for one in shown]
    rest = [f"… {len(same) - len(shown)} more values (-vv)"] if len(shown) < len(same) else []
    return ", ".join(said + rest)


def _nodes_by_check(findings: Sequence[Finding]) -> dict[str, set[str]]:
    judged: dict[str, set[str]] = {}
    for one in findings:
        judged.setdefault(one.check, set()).update(one.nodes)
    return judged


def _write_skips(page: ReportPage, blocks: Sequence[Block]) -> None:
    if not blocks:
        return
    reasons = Counter(field(block.reason or "no reason", 60) for block in blocks)
    said = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common(SEEN))
    checks = counted(len({block.check for block in blocks}), "check")
    page.row(
        ("SKIP", "dim"),
        (f"{checks} not judged: {said}{'' if page.verbose else '; -v lists them'}", "dim"),
    )
    for block in blocks if page.verbose else ():
        page.under(
            f"{field(block.check)}  ",
            (f"{field(block.reason or '')}  {folded(block.nodes)}", "dim"),
        )
