"""A trial and a launch in the HTML report: stages and ranks. Of many ranks several share a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from clusterprep.model import LaunchedRank, RankRow, Stage
from clusterprep.reports.html_nodes import label
from clusterprep.reports.plain import NODES, fold_ranks, format_elapsed

# Ranks up to which each has a row; of more ranks, those with the same last event share one.
APART = 512
ROWS = 400  # of ranks that share rows
BAR = 160  # pixels of a stage's bar

_BAD_ENDS = ("failed", "killed", "lost", "hanging")
_STAGE_KINDS = {"fail": "f", "unknown": "u", "skip": "s"}


class RankLine(Struct, frozen=True):
    """One rank, or several that are alike. `kind` is a CSS class: f for failed, n for none."""

    ranks: str
    nodes: str
    device: str
    last: str
    kind: str


class StageLine(Struct, frozen=True):
    name: str
    took: str
    limit: str
    width: int  # of its bar: the share of its limit, or of the longest stage
    verdict: str
    kind: str
    missing: str


def rank_lines(ranks: Sequence[RankRow], missing: frozenset[int]) -> tuple[list[RankLine], int]:
    """Return a line per rank, or per last event of many ranks, and how many lines are left out."""
    if len(ranks) > APART:
        lines = _folded_rank_lines(ranks, missing)
        return lines[:ROWS], max(0, len(lines) - ROWS)
    lines = []
    for row in ranks:
        kind = _kind(row.rank in missing)
        lines.append(
            RankLine(
                ranks=str(row.rank),
                nodes=row.node,
                device=_device(row),
                last=row.last_event,
                kind=kind,
            )
        )
    return lines, 0


def _folded_rank_lines(ranks: Iterable[RankRow], missing: frozenset[int]) -> list[RankLine]:
    """Return a line for all ranks with the same last event, missing ranks and few ranks first."""
    alike: dict[tuple[bool, str], list[RankRow]] = {}
    for row in ranks:
        key = (row.rank in missing, row.last_event)
        alike.setdefault(key, []).append(row)
    order = sorted(alike, key=lambda key: (not key[0], len(alike[key])))
    lines = []
    for is_missing, event in order:
        rows = alike[is_missing, event]
        numbers, nodes = _places(rows)
        device = "GPU"
        if rows[0].gpu is None:
            device = "CPU"
        line = RankLine(
            ranks=numbers,
            nodes=nodes,
            device=device,
            last=event,
            kind=_kind(is_missing),
        )
        lines.append(line)
    return lines


def launched_lines(ranks: Iterable[LaunchedRank]) -> list[RankLine]:
    """Return a line for all ranks of a job that ended alike."""
    alike: dict[str, list[LaunchedRank]] = {}
    for row in ranks:
        alike.setdefault(_describe_end(row), []).append(row)
    lines = []
    for end, rows in alike.items():
        numbers, nodes = _places(rows)
        kind = _kind(rows[0].ended in _BAD_ENDS)
        line = RankLine(
            ranks=numbers,
            nodes=nodes,
            device="",
            last=end,
            kind=kind,
        )
        lines.append(line)
    return lines


def _places(rows: Iterable[RankRow | LaunchedRank]) -> tuple[str, str]:
    """Return the ranks as `0-3`, and their nodes as `n[1-2]`."""
    ranks = []
    nodes = []
    for row in rows:
        ranks.append(row.rank)
        nodes.append(row.node)
    return _cut(fold_ranks(ranks)), _label(nodes)


def stage_lines(stages: Sequence[Stage], ranks: Iterable[RankRow]) -> list[StageLine]:
    """Return the stages in order, each with its limit."""
    node_of = {}
    for row in ranks:
        node_of[row.rank] = row.node
    # Bars are drawn to one scale, on which the longest limit fills a bar.
    longest = 0.0
    for stage in stages:
        longest = max(longest, stage.limit or stage.seconds)
    lines = []
    for stage in stages:
        limit = ""
        if stage.limit:
            limit = format_elapsed(stage.limit)
        share = stage.seconds / (longest or 1.0)
        width = min(BAR, round(share * BAR))
        line = StageLine(
            name=stage.name,
            took=format_elapsed(stage.seconds),
            limit=limit,
            width=max(1, width),
            verdict=stage.verdict,
            kind=_STAGE_KINDS.get(stage.verdict, "p"),
            missing=_missing(stage, node_of),
        )
        lines.append(line)
    return lines


def _missing(stage: Stage, node_of: Mapping[int, str]) -> str:
    """Return the ranks that did not arrive, and their nodes."""
    if not stage.missing:
        return ""
    text = f"rank {_cut(fold_ranks(stage.missing))}"
    nodes = []
    for rank in stage.missing:
        node = node_of.get(rank)
        if node is not None:
            nodes.append(node)
    if nodes:
        text += f" on {_label(nodes)}"
    return text


def _label(nodes: Iterable[str]) -> str:
    return label(tuple(dict.fromkeys(nodes)))


def _kind(bad: bool) -> str:
    return "f" if bad else "n"


def _cut(ranks: str) -> str:
    """Cut a set of ranks after a whole number."""
    if len(ranks) <= NODES:
        return ranks
    end = ranks.rfind(",", 0, NODES)
    return f"{ranks[:end]},…"


def _device(row: RankRow) -> str:
    gpu = row.gpu
    if gpu is None:
        return "CPU"
    text = f"GPU {gpu.pci}"
    if gpu.index is not None:
        text = f"GPU {gpu.index}, {gpu.pci}"
    if gpu.numa is not None:
        text += f", NUMA {gpu.numa}"
    return text


def _describe_end(row: LaunchedRank) -> str:
    if row.ended == "failed":
        return f"failed with exit code {row.code}"
    if row.ended == "killed":
        return f"killed by {row.signal}"
    return row.ended.replace("-", " ")
