"""What a run set, changed and measured, for people: the environment with its reasons, the changes, the trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from clusterprep.model import (
    ChangeRow,
    CollectiveResult,
    Culprit,
    EnvPath,
    EnvValue,
    RankRow,
    Stage,
    VerifyResult,
    Workaround,
)
from clusterprep.model.units import format_size
from clusterprep.reports.page import Part, ReportPage
from clusterprep.reports.plain import (
    counted,
    distinct,
    duration,
    elapsed,
    field,
    folded,
    folded_ranks,
)

VALUES = 5  # different values of one variable shown without -v
ROWS = 12  # changes
DIFF = 16  # lines of one diff
SET = 24  # columns of the nodes before a reason
INDENT = 2

_OUTCOMES = ("failed", "rolled-back", "undone", "not-started", "planned", "done", "unchanged")
_BAD = ("failed", "rolled-back", "not-started")
_STYLES = {"pass": "bold green", "fail": "bold red", "unknown": "bold magenta", "skip": "dim"}
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def write_env(page: ReportPage, env: Sequence[EnvValue] | None) -> None:
    """`NAME=value` and why, equal values of several nodes in one line; nodes are named where not all are meant."""
    if env is None:
        return
    by_name: dict[str, list[EnvValue]] = {}
    for value in _merged_env(env):
        by_name.setdefault(value.name, []).append(value)
    everyone = tuple(dict.fromkeys(node for value in env for node in value.nodes))
    on: list[Part] = [" on ", (folded(everyone), "cyan")] if everyone else []
    _title(page, "Environment", counted(len(by_name), "variable"), *on)
    column = _column(page, env)
    for same in by_name.values():
        shown = same if page.verbose else same[:VALUES]
        for value in shown:
            _write_value(page, value, column, _where(value, shown, everyone))
        _write_rest(page, len(same) - len(shown), "more value")


def _where(value: EnvValue, same: Sequence[EnvValue], everyone: Sequence[str]) -> str:
    """The nodes of one of several values, as wide as the widest of them."""
    if set(value.nodes) == set(everyone):
        return ""
    return (
        folded(value.nodes).ljust(min(max(len(folded(other.nodes)) for other in same), SET)) + "  "
    )


def _merged_env(env: Iterable[EnvValue]) -> list[EnvValue]:
    merged: dict[tuple[str, str, str], EnvValue] = {}
    for value in env:
        key = (value.name, value.value, value.why)
        before = merged[key].nodes if key in merged else ()
        merged[key] = replace(value, nodes=tuple(dict.fromkeys(before + value.nodes)))
    return list(merged.values())


def _column(page: ReportPage, env: Sequence[EnvValue]) -> int:
    """Where the reasons start: after the longest assignment, yet never past the middle of the page."""
    longest = max((len(value.name) + len(value.value) + 1 for value in env), default=0)
    return min(INDENT + longest + 2, page.width // 2)


def _write_value(page: ReportPage, value: EnvValue, column: int, where: str) -> None:
    reason: list[Part] = [(where, "cyan"), (field(value.why), "dim")]
    setting = f"{field(value.name)}={field(value.value)}"
    if INDENT + len(setting) + 2 <= column:
        page.row(" " * INDENT + setting, *reason, indent=column)
        return
    page.under(setting, indent=INDENT)
    page.under(*reason, indent=column)


def write_env_paths(page: ReportPage, rows: Sequence[EnvPath] | None) -> None:
    """How processes may be started that lack something, and what to add; -v tells what each has."""
    shown = [row for row in rows or () if row.add or page.verbose]
    if not shown:
        return
    _title(page, "Launch paths", "what each way to start a process gets")
    for row in shown:
        names = (
            ", ".join(field(name) for name in row.reaches)
            if page.verbose
            else counted(len(row.reaches), "variable")
        )
        page.row(
            f"{' ' * INDENT}{row.path.ljust(12)}",
            (folded(row.nodes), "cyan"),
            f"  {names or 'none'}",
            indent=16,
        )
        if row.add:
            page.under(f"lacks some; add {field(row.add)}", indent=16)


def write_changes(page: ReportPage, changes: Sequence[ChangeRow] | None) -> None:
    """One line per different change, those that went wrong first; what was well already is only counted."""
    if changes is None:
        return
    rows = _merged_changes(changes)
    still = [row for row in rows if row.outcome == "unchanged"]
    moving = rows if page.verbose else [row for row in rows if row.outcome != "unchanged"]
    _title(page, "Changes", _tally(rows) if moving else "none")
    shown = moving if page.verbose else moving[:ROWS]
    for row in shown:
        _write_change(page, row)
    _write_rest(page, len(moving) - len(shown), "more change")
    if still and not page.verbose:
        page.under((f"already as wanted: {_targets(still)}", "dim"), indent=INDENT)


def _merged_changes(changes: Iterable[ChangeRow]) -> list[ChangeRow]:
    merged: dict[ChangeRow, tuple[str, ...]] = {}
    for row in changes:
        key = replace(row, nodes=())
        merged[key] = tuple(dict.fromkeys(merged.get(key, ()) + row.nodes))
    rows = [replace(row, nodes=nodes) for row, nodes in merged.items()]
    return sorted(rows, key=lambda row: _OUTCOMES.index(row.outcome))


def _tally(rows: Sequence[ChangeRow]) -> str:
    counts = {outcome: sum(row.outcome == outcome for row in rows) for outcome in _OUTCOMES}
    return ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)


def _targets(rows: Sequence[ChangeRow]) -> str:
    targets = distinct(field(row.target, 80) for row in rows)
    rest = [f"… {len(targets) - VALUES} more (-v)"] if len(targets) > VALUES else []
    return ", ".join([*targets[:VALUES], *rest])


def _write_change(page: ReportPage, row: ChangeRow) -> None:
    style = "bold red" if row.outcome in _BAD else "green" if row.outcome == "done" else ""
    action = "" if row.action == "none" else f"{field(row.action)} "
    target: list[Part] = [f"{action}{field(row.resource)} ", (field(row.target), "bold"), "  "]
    page.row(
        (f"{' ' * INDENT}{row.outcome}", style),
        *target,
        (folded(row.nodes), "cyan"),
        indent=INDENT + 12,
    )
    if row.detail:
        page.under(field(row.detail), indent=INDENT + 12)
    _write_diff(page, row.diff)


def _write_diff(page: ReportPage, diff: str) -> None:
    lines = diff.rstrip().split("\n") if diff.strip() else []
    if not page.verbose and [line[:4] for line in lines[:2]] == ["--- ", "+++ "]:
        lines = lines[2:]  # the line above has named the file
    shown = lines if page.verbose else lines[:DIFF]
    for line in shown:
        style = "bold" if line.startswith(("--- ", "+++ ")) else _DIFF_STYLES.get(line[:1], "dim")
        page.under((field(line), style), indent=INDENT + 2)
    _write_rest(page, len(lines) - len(shown), "more line")


def write_verify(page: ReportPage, verify: VerifyResult | None) -> None:
    """The trial: where it ran, how far it came, how fast, and who spoiled it."""
    if verify is None:
        return
    ranks = f"{counted(verify.world_size, 'rank')} ({verify.nproc_per_node} per node)"
    told = f"  {field(verify.backend)}, {ranks}, rendezvous {field(verify.rendezvous)}"
    _title(page, "Verify", (verify.verdict.upper(), _STYLES[verify.verdict]), told)
    if verify.message:
        page.under(field(verify.message), indent=INDENT)
    _write_stages(page, verify)
    _write_ranks(page, verify)
    _write_collectives(page, verify.collectives)
    for culprit in verify.culprits:
        write_culprit(page, culprit)
    _write_workarounds(page, verify.workarounds)


def _write_workarounds(page: ReportPage, rows: Sequence[Workaround]) -> None:
    """Each setting that was tried, whether it helps, and what it costs."""
    if rows:
        page.blank()
    for row in rows:
        word: Part = ("works", "green") if row.works else ("fails", "red")
        rate = (
            ""
            if row.busbw_gbs is None or row.bytes is None
            else f"  {row.busbw_gbs:.3g} GB/s at {format_size(row.bytes)}"
        )
        share = "" if row.share is None else f", {row.share:.0%} of the fastest"
        names = " ".join(field(name) for name in row.settings) or "the same again"
        page.row("  tried", f"{names}  ", word, rate + share, indent=INDENT + 8)


def _write_stages(page: ReportPage, verify: VerifyResult) -> None:
    if verify.stages and all(stage.verdict in ("pass", "skip") for stage in verify.stages):
        told = ", ".join(f"{field(stage.name)} {elapsed(stage.seconds)}" for stage in verify.stages)
        page.row("  stages", told, indent=INDENT + 8)
        return
    for stage in verify.stages:
        word: Part = (stage.verdict.upper(), _STYLES[stage.verdict])
        told = f"{field(stage.name)}  {elapsed(stage.seconds)}  "
        page.row("  stage", told, word, _missing(verify, stage), indent=INDENT + 8)


def _missing(verify: VerifyResult, stage: Stage) -> str:
    """Ranks that never came, and where they live."""
    if not stage.missing:
        return ""
    homes = [row.node for row in verify.ranks if row.rank in stage.missing]
    where = f" on {folded(homes)}" if homes else ""
    return f"  missing: rank {folded_ranks(stage.missing)}{where}"


def _write_collectives(page: ReportPage, rows: Sequence[CollectiveResult]) -> None:
    if not rows:
        return
    names = [
        field(" ".join([row.op, *([row.dtype] if row.dtype != "float32" else [])]), 24)
        for row in rows
    ]
    width = max(map(len, names))
    page.blank()
    head = f"{'':{width}}  {'size':>10}  {'time':>9}  {'algbw GB/s':>11}  {'busbw GB/s':>11}  {'wrong':>6}"
    page.under((head, "dim"), indent=INDENT)
    for name, row in zip(names, rows, strict=True):
        cost = f"{format_size(row.bytes):>10}  {duration(row.seconds):>9}"
        rate = f"{row.algbw_gbs:>11.2f}  {row.busbw_gbs:>11.2f}"
        wrong: Part = (f"{row.wrong:>6}", "bold red" if row.wrong else "")
        page.under(f"{name:{width}}  {cost}  {rate}  ", wrong, indent=INDENT)


def _write_ranks(page: ReportPage, verify: VerifyResult) -> None:
    """Each rank with -v; without, when something went wrong, where the ranks got to."""
    if page.verbose:
        for row in verify.ranks:
            place = f"{field(row.node, 64)} local {row.local_rank}, {_device(row)}, {field(row.last_event)}"
            page.row(f"  rank {row.rank}", place, indent=INDENT + 12)
    elif verify.verdict != "pass":
        for event in distinct(row.last_event for row in verify.ranks)[:VALUES]:
            same = [row for row in verify.ranks if row.last_event == event]
            who = f"{folded_ranks(row.rank for row in same)} on {folded(row.node for row in same)}"
            page.row("  ranks", f"{who}: {field(event)}", indent=INDENT + 8)


def _device(row: RankRow) -> str:
    if row.gpu is None:
        return "CPU"
    numa = "" if row.gpu.numa is None else f" NUMA {row.gpu.numa}"
    return field(f"GPU {row.gpu.index} {row.gpu.pci}{numa} {row.gpu.uuid}")


def write_culprit(page: ReportPage, culprit: Culprit) -> None:
    page.blank()
    sure = f"  {culprit.confidence:.0%} sure"
    page.row(
        ("CULPRIT", "bold red"), (f"{culprit.kind} ", "bold"), (_who(culprit), "bold cyan"), sure
    )
    page.under(field(culprit.cause))
    shown = culprit.evidence if page.verbose else culprit.evidence[:VALUES]
    for evidence in shown:
        page.under((f"- {field(evidence)}", "dim"))
    _write_rest(page, len(culprit.evidence) - len(shown), "more line")


def _who(culprit: Culprit) -> str:
    if culprit.source and culprit.target:
        return f"{folded([culprit.source])} → {folded([culprit.target])}"
    rank = "" if culprit.rank is None else f"rank {culprit.rank} on "
    return rank + folded(culprit.nodes)


def _title(page: ReportPage, title: str, *parts: Part) -> None:
    page.blank()
    page.row((f"{title}  ", "bold"), *parts, indent=len(title) + 2)


def _write_rest(page: ReportPage, number: int, noun: str) -> None:
    if number > 0:
        page.under((f"… {counted(number, noun)} (-v shows all)", "dim"), indent=INDENT + 2)
