"""Write to the console what a run set, changed and measured: environment, changes, the trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from clusterprep.model import (
    Acceptance,
    BatchRow,
    ChangeRow,
    CollectiveResult,
    Culprit,
    EnvPath,
    EnvValue,
    LaunchedRank,
    RankRow,
    Stage,
    VerifyResult,
    Workaround,
)
from clusterprep.model.units import format_size, pluralize
from clusterprep.reports.page import Part, ReportPage
from clusterprep.reports.plain import (
    collective_name,
    diff_lines,
    distinct,
    fold_nodes,
    fold_ranks,
    format_elapsed,
    format_rate,
    format_seconds,
    has_diff_header,
    nonblank_lines,
    safe_text,
)

VALUES = 5  # different values of one variable shown without -v
ROWS = 12  # changes shown without -v
DIFF = 16  # lines of one difference shown without -v
DETAIL = 3  # last lines of what a failed command said
NODES_COLUMN = 24  # columns at most of the nodes before a reason
INDENT = 2

# In the order in which changes are shown.
_OUTCOMES = (
    "failed",
    "unanswered",
    "rolled-back",
    "undone",
    "not-started",
    "planned",
    "done",
    "unchanged",
)
_OUTCOME_STYLES = {
    "failed": "bold red",
    "unanswered": "bold red",
    "rolled-back": "bold red",
    "not-started": "bold red",
    "done": "green",
}
_STYLES = {"pass": "bold green", "fail": "bold red", "unknown": "bold magenta", "skip": "dim"}
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


# ---------------------------------------------------------------- environment


def write_env(page: ReportPage, env: Sequence[EnvValue] | None) -> None:
    """Write `NAME=value` and why, with the nodes of a value that not all nodes have.

    Equal values of several nodes share a line.
    """
    if env is None:
        return
    values_by_name: dict[str, list[EnvValue]] = {}
    for value in _merged_env(env):
        values_by_name.setdefault(value.name, []).append(value)
    all_nodes: dict[str, None] = {}
    for value in env:
        all_nodes.update(dict.fromkeys(value.nodes))
    title: list[Part] = [pluralize(len(values_by_name), "variable")]
    if all_nodes:
        title += [" on ", (fold_nodes(all_nodes), "cyan")]
    _write_title(page, "Environment", *title)
    column = _reason_column(page, env)
    for values in values_by_name.values():
        shown = page.shown(values, VALUES)
        for value in shown:
            nodes = ""
            if set(value.nodes) != set(all_nodes):
                nodes = _nodes_cell(value, shown)
            _write_value(page, value, column, nodes)
        _write_rest(page, len(values) - len(shown), "more value")


def _nodes_cell(value: EnvValue, values: Sequence[EnvValue]) -> str:
    """Return the nodes of one of several values, as wide as the widest of them."""
    width = 0
    for other in values:
        nodes = fold_nodes(other.nodes)
        width = max(width, len(nodes))
    width = min(width, NODES_COLUMN)
    return fold_nodes(value.nodes).ljust(width) + "  "


def _merged_env(env: Iterable[EnvValue]) -> list[EnvValue]:
    """Return the values, those that differ only in their nodes as one."""
    merged: dict[tuple[str, str, str], EnvValue] = {}
    for value in env:
        key = (value.name, value.value, value.why)
        nodes = value.nodes
        if key in merged:
            nodes = merged[key].nodes + value.nodes
        merged[key] = replace(value, nodes=_unique(nodes))
    return list(merged.values())


def _unique(nodes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(nodes))


def _reason_column(page: ReportPage, env: Iterable[EnvValue]) -> int:
    """Return where the reasons begin: after the longest setting, in the left half of the page."""
    longest = 0
    for value in env:
        longest = max(longest, len(f"{value.name}={value.value}"))
    return min(INDENT + longest + 2, page.width // 2)


def _write_value(page: ReportPage, value: EnvValue, column: int, nodes: str) -> None:
    """Write a setting with its reason at `column`; below it if the setting reaches that far."""
    reason: list[Part] = [(nodes, "cyan"), (safe_text(value.why), "dim")]
    setting = f"{safe_text(value.name)}={safe_text(value.value)}"
    if INDENT + len(setting) + 2 <= column:
        indent = " " * INDENT
        page.row(indent + setting, *reason, indent=column)
        return
    page.under(setting, indent=INDENT)
    page.under(*reason, indent=column)


def write_env_paths(page: ReportPage, rows: Sequence[EnvPath] | None) -> None:
    """Write the ways to start a process that lack variables, and what to add; with -v all ways."""
    shown = rows or ()
    if not page.verbose:
        shown = [row for row in shown if row.add]
    if not shown:
        return
    _write_title(page, "Launch paths", "what each way to start a process gets")
    for row in shown:
        label = " " * INDENT + row.path.ljust(12)
        nodes: Part = (fold_nodes(row.nodes), "cyan")
        page.row(label, nodes, f"  {_reached_variables(page, row)}", indent=16)
        if row.add:
            page.under(_remaining(safe_text(row.add)), indent=16)


def _remaining(add: str) -> str:
    """Return what a way lacks: a target or a setting to add, or a sentence that stands alone."""
    if add.startswith(("target ", "EnvironmentFile=")):
        return f"lacks some; add {add}"
    return add


def _reached_variables(page: ReportPage, row: EnvPath) -> str:
    if not page.verbose:
        return pluralize(len(row.reaches), "variable")
    names = [safe_text(name) for name in row.reaches]
    return ", ".join(names) or "none"


# ---------------------------------------------------------------- changes


def write_changes(page: ReportPage, changes: Sequence[ChangeRow] | None) -> None:
    """Write a line per different change, failed ones first; without -v unchanged ones in short."""
    if changes is None:
        return
    rows = _merged_changes(changes)
    unchanged = []
    changed = []
    for row in rows:
        if row.outcome == "unchanged":
            unchanged.append(row)
        else:
            changed.append(row)
    if not changed and not page.verbose:
        page.blank()
        page.line(("Changes", "bold"), "none", *_settled(unchanged, "; "))
        return
    listed = changed
    if page.verbose:
        listed = rows
    summary = "none"  # there are at most unchanged ones, and only -v lists these
    if listed:
        summary = _count_outcomes(rows)
    _write_title(page, "Changes", summary)
    shown = page.shown(listed, ROWS)
    for row in shown:
        _write_change(page, row)
    _write_rest(page, len(listed) - len(shown), "more change")
    if unchanged and not page.verbose:
        page.under(*_settled(unchanged), indent=INDENT)


def write_batches(page: ReportPage, batches: Sequence[BatchRow] | None) -> None:
    """Write a line per batch: its outcome, its nodes and what its gate said."""
    if not batches:
        return
    _write_title(page, "Batches", _count_outcomes(batches))
    shown = page.shown(batches, ROWS)
    column = INDENT + 12
    for row in shown:
        label: Part = (" " * INDENT + row.outcome, _OUTCOME_STYLES.get(row.outcome, ""))
        nodes: Part = (fold_nodes(row.nodes), "cyan")
        gate = f"  gate: {row.gate}" if row.gate else ""
        page.row(label, f"{safe_text(row.name)}  ", nodes, gate, indent=column)
        if row.detail:
            page.under(safe_text(row.detail), indent=column)
    if len(shown) < len(batches):
        page.under((f"… {len(batches) - len(shown)} more (-v shows all)", "dim"), indent=INDENT + 2)


def _merged_changes(changes: Iterable[ChangeRow]) -> list[ChangeRow]:
    """Return the changes, those that differ only in their nodes as one, failed ones first."""
    nodes_by_change: dict[ChangeRow, list[str]] = {}
    for row in changes:
        change = replace(row, nodes=(), detail=_detail_without_node(row))
        nodes = nodes_by_change.setdefault(change, [])
        nodes += row.nodes
    rows = []
    for change, nodes in nodes_by_change.items():
        row = replace(change, nodes=_unique(nodes))
        rows.append(row)
    # Of rows that were not started, those that say why come first.
    rows.sort(key=lambda row: (_OUTCOMES.index(row.outcome), not row.detail))
    return rows


def _detail_without_node(row: ChangeRow) -> str:
    """Return the detail without the node in front, which the row names anyway."""
    detail = row.detail
    for node in row.nodes:
        if len(row.nodes) == 1:
            detail = detail.removeprefix(f"{node}: ")
    return detail


def _count_outcomes(rows: Iterable[ChangeRow | BatchRow]) -> str:
    """Return `1 failed, 3 done`."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.outcome] += 1
    parts = []
    for outcome in _OUTCOMES:
        number = counts[outcome]
        if number:
            parts.append(f"{number} {outcome}")
    return ", ".join(parts)


def _settled(rows: Sequence[ChangeRow], before: str = "") -> list[Part]:
    """Return `already as wanted on n[1-2]: /etc/x`, after `before`; nothing without rows."""
    if not rows:
        return []
    nodes: dict[str, None] = {}
    for row in rows:
        nodes.update(dict.fromkeys(row.nodes))
    return [
        (f"{before}already as wanted on ", "dim"),
        (fold_nodes(nodes), "cyan"),
        (f": {_targets(rows)}", "dim"),
    ]


def _targets(rows: Iterable[ChangeRow]) -> str:
    """Return the files and settings of the changes, and how many more there are without -v."""
    targets = []
    for row in rows:
        target = safe_text(row.target, 80)
        targets.append(target)
    names = distinct(targets)
    text = ", ".join(names[:VALUES])
    remaining = len(names) - VALUES
    if remaining > 0:
        text += f", … {remaining} more (-v)"
    return text


def _write_change(page: ReportPage, row: ChangeRow) -> None:
    style = _OUTCOME_STYLES.get(row.outcome, "")
    label: Part = (" " * INDENT + row.outcome, style)
    action = f"{safe_text(row.resource)} "
    if row.action != "none":
        action = f"{safe_text(row.action)} {action}"
    target: Part = (safe_text(row.target), "bold")
    nodes: Part = (fold_nodes(row.nodes), "cyan")
    column = INDENT + 12
    page.row(
        label,
        action,
        target,
        "  ",
        nodes,
        indent=column,
    )
    for line in _detail_lines(page, row.detail):
        page.under(safe_text(line), indent=column)
    # Of what is not written, -v shows how it would be.
    if page.verbose or row.outcome != "not-started":
        _write_diff(page, row.diff)


def _detail_lines(page: ReportPage, detail: str) -> list[str]:
    """Return what happened and the last lines of what a command said; with -v all of them."""
    lines = nonblank_lines(detail)
    if page.verbose or len(lines) <= DETAIL + 1:
        return lines
    return [lines[0], "…", *lines[-DETAIL:]]


def _write_diff(page: ReportPage, diff: str) -> None:
    lines = diff_lines(diff)
    if not page.verbose and has_diff_header(lines):
        lines = lines[2:]  # the row above names the file
    shown = page.shown(lines, DIFF)
    for line in shown:
        style = _DIFF_STYLES.get(line[:1], "dim")
        if line.startswith(("--- ", "+++ ")):
            style = "bold"
        page.under((safe_text(line), style), indent=INDENT + 2)
    _write_rest(page, len(lines) - len(shown), "more line")


# ---------------------------------------------------------------- the trial


def write_verify(page: ReportPage, verify: VerifyResult | None, *, short: bool = False) -> None:
    """Write the trial: its stages and ranks, the bandwidth, the culprits.

    If `short`, a trial that went well is one line with the highest bandwidth.
    """
    if verify is None:
        return
    if short and verify.verdict == "pass" and not page.verbose:
        _write_success(page, verify)
        return
    verdict: Part = (verify.verdict.upper(), _STYLES[verify.verdict])
    ranks = f"{pluralize(verify.world_size, 'rank')} ({verify.nproc_per_node} per node)"
    rendezvous = safe_text(verify.rendezvous)
    settings = f"  {safe_text(verify.backend)}, {ranks}, rendezvous {rendezvous}"
    _write_title(page, "Verify", verdict, settings)
    if verify.message:
        page.under(safe_text(verify.message), indent=INDENT)
    _write_stages(page, verify)
    if page.verbose:
        _write_ranks(page, verify.ranks)
    elif verify.verdict != "pass":
        _write_last_events(page, verify.ranks)
    _write_collectives(page, verify.collectives)
    _write_acceptance(page, verify.acceptance)
    for culprit in verify.culprits:
        write_culprit(page, culprit)
    _write_workarounds(page, verify.workarounds)


def _write_success(page: ReportPage, verify: VerifyResult) -> None:
    ranks = pluralize(verify.world_size, "rank")
    text = f"{safe_text(verify.backend)}, {ranks}"
    if verify.collectives:
        fastest = max(verify.collectives, key=lambda row: row.busbw_gbs)
        speed = f"{format_rate(fastest.busbw_gbs)} GB/s at {format_size(fastest.bytes)}"
        text += f", {_collective_name(fastest)} {speed}"
    page.line(("Verify", "bold"), ("PASS", _STYLES["pass"]), f"  {text}")
    _write_acceptance(page, verify.acceptance)


def _write_acceptance(page: ReportPage, acceptance: Acceptance | None) -> None:
    """Write how long the trial was repeated, and the range of each size's speed."""
    if acceptance is None:
        return
    rounds = pluralize(acceptance.rounds, "round")
    time = format_elapsed(acceptance.seconds)
    if not acceptance.finished:
        time += f" of {format_elapsed(acceptance.wanted)}, not finished"
    page.under(f"repeated for {time}: {rounds}", indent=INDENT)
    for row in acceptance.speeds:
        speeds = [format_rate(row.slowest_gbs), format_rate(row.median_gbs)]
        speeds.append(format_rate(row.fastest_gbs))
        slowest, middle, fastest = speeds
        text = f"all_reduce {format_size(row.bytes)}: {slowest} to {fastest}, median {middle} GB/s"
        page.under(text, indent=INDENT)


def _write_workarounds(page: ReportPage, rows: Sequence[Workaround]) -> None:
    """Write each setting that was tried, whether it helps, and what it costs."""
    if rows:
        page.blank()
    for row in rows:
        outcome: Part = ("fails", "red")
        if row.works:
            outcome = ("works", "green")
        settings = " ".join(map(safe_text, row.settings))
        if not settings:
            settings = "the same again"
        speed = _workaround_speed(row)
        page.row(
            "  tried",
            f"{settings}  ",
            outcome,
            speed,
            indent=INDENT + 8,
        )


def _workaround_speed(row: Workaround) -> str:
    """Return `  12.5 GB/s at 64 MiB, 80% of the fastest`, or "" for what was not measured."""
    text = ""
    if row.busbw_gbs is not None and row.bytes is not None:
        text = f"  {row.busbw_gbs:.3g} GB/s at {format_size(row.bytes)}"
    if row.share is not None:
        text += f", {row.share:.0%} of the fastest"
    return text


def _write_stages(page: ReportPage, verify: VerifyResult) -> None:
    """Write a line per stage, or one line if all are well."""
    names = []
    is_well = True
    for stage in verify.stages:
        names.append(f"{safe_text(stage.name)} {format_elapsed(stage.seconds)}")
        if stage.verdict not in ("pass", "skip"):
            is_well = False
    if names and is_well:
        page.row("  stages", ", ".join(names), indent=INDENT + 8)
        return
    for stage in verify.stages:
        verdict: Part = (stage.verdict.upper(), _STYLES[stage.verdict])
        name = f"{safe_text(stage.name)}  {format_elapsed(stage.seconds)}  "
        page.row(
            "  stage",
            name,
            verdict,
            _missing(verify, stage),
            indent=INDENT + 8,
        )


def _missing(verify: VerifyResult, stage: Stage) -> str:
    """Return the ranks that did not arrive, and their nodes."""
    if not stage.missing:
        return ""
    text = f"  missing: rank {fold_ranks(stage.missing)}"
    nodes = [row.node for row in verify.ranks if row.rank in stage.missing]
    if nodes:
        text += f" on {fold_nodes(nodes)}"
    return text


def _write_collectives(page: ReportPage, rows: Sequence[CollectiveResult]) -> None:
    if not rows:
        return
    width = 0
    for row in rows:
        width = max(width, len(_collective_name(row)))
    columns = ["".ljust(width), "size".rjust(10), "time".rjust(9)]
    columns += ["algbw GB/s".rjust(11), "busbw GB/s".rjust(11), "wrong".rjust(6)]
    head = "  ".join(columns)
    page.blank()
    page.under((head, "dim"), indent=INDENT)
    for row in rows:
        name = _collective_name(row).ljust(width)
        size = format_size(row.bytes)
        took = format_seconds(row.seconds)
        rates = f"{format_rate(row.algbw_gbs):>11}  {format_rate(row.busbw_gbs):>11}"
        wrong: Part = f"{row.wrong:>6}"
        if row.wrong:
            wrong = (f"{row.wrong:>6}", "bold red")
        page.under(f"{name}  {size:>10}  {took:>9}  {rates}  ", wrong, indent=INDENT)


def _collective_name(row: CollectiveResult) -> str:
    name = collective_name(row.op, row.dtype)
    return safe_text(name, 24)


def _write_ranks(page: ReportPage, ranks: Iterable[RankRow]) -> None:
    for row in ranks:
        node = safe_text(row.node, 64)
        event = safe_text(row.last_event)
        text = f"{node} local {row.local_rank}, {_device(row)}, {event}"
        page.row(f"  rank {row.rank}", text, indent=INDENT + 12)


def _write_last_events(page: ReportPage, ranks: Iterable[RankRow]) -> None:
    """Write how far the ranks came, those with the same last event in one line."""
    rows_by_event: dict[str, list[RankRow]] = {}
    for row in ranks:
        if row.last_event:
            rows_by_event.setdefault(row.last_event, []).append(row)
    first_events = list(rows_by_event)[:VALUES]
    for event in first_events:
        place = describe_ranks(rows_by_event[event])
        page.row("  ranks", f"{place}: {safe_text(event)}", indent=INDENT + 8)


def describe_ranks(rows: Iterable[RankRow | LaunchedRank]) -> str:
    """Return `0-3 on n[1-2]`."""
    ranks = []
    nodes = []
    for row in rows:
        ranks.append(row.rank)
        nodes.append(row.node)
    return f"{fold_ranks(ranks)} on {fold_nodes(nodes)}"


def _device(row: RankRow) -> str:
    gpu = row.gpu
    if gpu is None:
        return "CPU"
    numa = ""
    if gpu.numa is not None:
        numa = f" NUMA {gpu.numa}"
    index = "" if gpu.index is None else f" {gpu.index}"
    return safe_text(f"GPU{index} {gpu.pci}{numa} {gpu.uuid}")


def write_culprit(page: ReportPage, culprit: Culprit) -> None:
    """Write a culprit, its cause and the evidence."""
    label: Part = ("CULPRIT", "bold red")
    kind: Part = ("", "")  # its place says that it is a rank
    if culprit.kind != "rank" or culprit.rank is None:
        kind = (f"{culprit.kind} ", "bold")
    place: Part = (_culprit_place(culprit), "bold cyan")
    page.blank()
    page.row(label, kind, place, f"  {culprit.confidence:.0%} sure")
    page.under(safe_text(culprit.cause))
    shown = page.shown(culprit.evidence, VALUES)
    for evidence in shown:
        page.under((f"- {safe_text(evidence)}", "dim"))
    _write_rest(page, len(culprit.evidence) - len(shown), "more line")


def _culprit_place(culprit: Culprit) -> str:
    """Return `n1 → n2` for a link, `rank 3 on n1` for a rank, or the nodes."""
    if culprit.source and culprit.target:
        source = fold_nodes([culprit.source])
        target = fold_nodes([culprit.target])
        return f"{source} → {target}"
    nodes = fold_nodes(culprit.nodes)
    if culprit.rank is None:
        return nodes
    return f"rank {culprit.rank} on {nodes}"


def _write_title(page: ReportPage, title: str, *parts: Part) -> None:
    page.blank()
    page.row((f"{title}  ", "bold"), *parts, indent=len(title) + 2)


def _write_rest(page: ReportPage, number: int, noun: str) -> None:
    """Write how many rows are not shown."""
    if number > 0:
        rest = pluralize(number, noun)
        page.under((f"… {rest} (-v shows all)", "dim"), indent=INDENT + 2)
