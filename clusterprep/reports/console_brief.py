"""Write what is no error to the console in one line each: warnings, what is unknown, passes.

`-v` shows all of it whole (`console_findings`), and `explain --run last CHECK` one check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from clusterprep.model import Finding
from clusterprep.model.units import format_duration, pluralize
from clusterprep.reports.blocks import Block, nodes_of, way_to_know
from clusterprep.reports.page import GUTTER, Part, ReportPage
from clusterprep.reports.plain import fold_nodes, safe_text

NODES = 32  # characters of a node set: what was seen has to fit beside it
OPEN = 3  # checks that the same thing would make known, by name
REASONS = 3  # different reasons of checks that are not judged
_REASON = 40  # characters of one of them

Mark = Callable[[Block], Sequence[Part]]  # what is new in a block


def write_warnings(page: ReportPage, blocks: Iterable[Block], mark: Mark) -> None:
    """Write a line for each warning: check, nodes, what was seen and wanted."""
    page.blank()
    for block in blocks:
        page.line(
            ("WARN", "bold yellow"),
            *_head(block),
            describe_age(block),
            *mark(block),
            "  ",
            _gist(block),
        )


def write_open(page: ReportPage, blocks: Iterable[Block]) -> None:
    """Write a line for all unknown checks that the same thing would make known."""
    groups: dict[str, list[Block]] = {}
    for block in blocks:
        groups.setdefault(way_to_know(block), []).append(block)
    page.blank()
    for way, group in groups.items():
        page.line(("UNKNOWN", "magenta"), *_open_line(way, group))


def _open_line(way: str, group: Sequence[Block]) -> list[Part]:
    """Return `env.shadow, lim.nproc, ssh.mesh and 9 others  n[1-4]  with --become`."""
    nodes: dict[str, None] = {}
    checks: dict[str, None] = {}
    for block in group:
        nodes.update(dict.fromkeys(block.nodes))
        checks[safe_text(block.check)] = None
    oldest = max(group, key=lambda block: block.age or 0.0)
    return [
        (_first_names(list(checks)), "bold"),
        describe_age(oldest),
        "  ",
        (fold_nodes(nodes, NODES), "cyan"),
        "  ",
        way,
    ]


def _first_names(names: Sequence[str]) -> str:
    """Return all names, or the first of many and how many others there are."""
    others = len(names) - OPEN
    if others <= 1:  # a name is no longer than the words that stand for it
        return ", ".join(names)
    return f"{', '.join(names[:OPEN])} and {others} others"


def write_settled(page: ReportPage, silenced: Iterable[Block], fixed: Iterable[Block]) -> None:
    """Write a line for each finding that is accepted, and for each that this run has cured."""
    page.blank()
    for block in silenced:
        accepted = f"accepted: {safe_text(block.silenced or '')}"
        if block.until:
            accepted += f", until {block.until:%Y-%m-%d}"
        verdict = f"{block.verdict}, {block.severity}"
        rest: Part = (f"{verdict}, {accepted}; {_gist(block)}", "dim")
        page.line(("SILENCED", "dim"), *_head(block), "  ", rest)
    for block in fixed:
        page.line(("FIXED", "green"), *_head(block), "  ", _gist(block))


def _head(block: Block) -> list[Part]:
    """Return `lim.nofile  n[1-2]`."""
    check: Part = (safe_text(block.check), "bold")
    nodes: Part = (fold_nodes(block.nodes, NODES), "cyan")
    return [check, "  ", nodes]


def describe_age(block: Block) -> str:
    """Return `  (as of 12 min ago)` for answers of an earlier time; empty for those of this run."""
    if block.age is None:
        return ""
    return f"  (as of {format_duration(round(block.age))} ago)"


def _gist(block: Block) -> str:
    """Return `1024 → wanted at least 65536`, with the number of other values; else the message."""
    values = block.valued
    if not values:
        return safe_text(next(iter(block.messages), ""))
    first = values[0]
    text = safe_text(first.seen)
    if first.wanted:
        arrow = " → " if first.seen else ""
        text += f"{arrow}wanted {safe_text(first.wanted)}"
    if len(values) > 1:
        others = pluralize(len(values) - 1, "other value")
        text = f"{fold_nodes(first.nodes, NODES)}: {text}; {others}"
    return text


# ---------------------------------------------------------------- passes and skips


def write_passes(
    page: ReportPage,
    passes: Mapping[str, Sequence[Finding]],
    skipped: Sequence[Block],
    judged: Mapping[str, Sequence[Finding]],
) -> None:
    """Write one line: the checks that pass, by name if they fit, and how many are not judged.

    `passes` has the findings that pass by check, `judged` all findings.
    """
    label: Part = ("PASS", "bold green")
    not_judged = summarize_skips(skipped)
    if not passes:
        if not_judged:
            page.line(("SKIP", "dim"), (f"{not_judged}; -v lists them", "dim"))
        return
    number = pluralize(len(passes), "check")
    names = ", ".join(_pass_name(check, passes[check], judged[check]) for check in sorted(passes))
    if not_judged:
        not_judged = f"; {not_judged}"
    if GUTTER + len(f"{number}: {names}{not_judged}") <= page.width:
        page.line(label, f"{number}: ", (f"{names}{not_judged}", "dim"))
    else:
        page.line(label, number, (f"; -v names them{not_judged}", "dim"))


def _pass_name(check: str, passed: Sequence[Finding], judged: Sequence[Finding]) -> str:
    """Return the name of a check; one that was skipped on some nodes says on how many it passes.

    `judged` are all findings of the check.
    """
    name = safe_text(check)
    # Sets of one check at a time: those of all checks have a million names on a large fleet.
    good_nodes = set(nodes_of(passed))
    all_nodes = set(nodes_of(judged))
    if good_nodes != all_nodes:
        name += f" ({len(good_nodes)}/{len(all_nodes)})"
    return name


def summarize_skips(blocks: Iterable[Block]) -> str:
    """Return `3 not judged (2 not_applicable, 1 at_rest)`; empty without any."""
    checks = set()
    reasons: Counter[str] = Counter()
    for block in blocks:
        checks.add(block.check)
        reasons[safe_text(block.reason or "no reason", _REASON)] += 1
    if not checks:
        return ""
    parts = [f"{number} {reason}" for reason, number in reasons.most_common(REASONS)]
    return f"{len(checks):,} not judged ({', '.join(parts)})"
