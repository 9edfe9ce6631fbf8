"""A trial and a launch for the HTML report: stages, ranks and how they ended, folded where there are thousands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterprep.model import LaunchedRank, RankGpu, RankRow, Stage
from clusterprep.reports.html_nodes import label
from clusterprep.reports.plain import NODES, elapsed, folded_ranks
from clusterprep.runtime.lazy_dataclass import dataclass

APART = 512  # ranks up to which each has a row; above, those with the same last word share one
ROWS = 400  # of ranks that share
BAR = 160  # width of a stage's bar


@dataclass(frozen=True)
class RankLine:
    ranks: str
    nodes: str
    device: str
    last: str
    kind: str


@dataclass(frozen=True)
class StageLine:
    name: str
    took: str
    limit: str
    width: int  # of its bar: the share of its limit, or of the longest stage
    verdict: str
    kind: str
    missing: str


def rank_lines(ranks: Sequence[RankRow], missing: frozenset[int]) -> tuple[list[RankLine], int]:
    """A line for each rank, or for all that said the same last; and how many lines are left out."""
    if len(ranks) <= APART:
        lines = [
            RankLine(str(r.rank), r.node, _device(r), r.last_event, _kind(r.rank in missing))
            for r in ranks
        ]
        return lines, 0
    alike: dict[tuple[bool, str], list[RankRow]] = {}
    for row in ranks:
        alike.setdefault((row.rank in missing, row.last_event), []).append(row)
    lines = [
        RankLine(
            _cut(folded_ranks(row.rank for row in same)),
            label(tuple(dict.fromkeys(row.node for row in same))),
            "CPU" if same[0].gpu is None else "GPU",
            last,
            _kind(late),
        )
        for (late, last), same in sorted(
            alike.items(), key=lambda item: (not item[0][0], len(item[1]))
        )
    ]
    return lines[:ROWS], max(0, len(lines) - ROWS)


def launched_lines(ranks: Iterable[LaunchedRank]) -> list[RankLine]:
    """Ranks of a job by how they ended."""
    alike: dict[str, list[LaunchedRank]] = {}
    for row in ranks:
        alike.setdefault(_ended(row), []).append(row)
    return [
        RankLine(
            _cut(folded_ranks(row.rank for row in same)),
            label(tuple(dict.fromkeys(row.node for row in same))),
            "",
            ended,
            _kind(same[0].ended in ("failed", "killed", "lost", "hanging")),
        )
        for ended, same in alike.items()
    ]


def stage_lines(stages: Sequence[Stage], ranks: Sequence[RankRow]) -> list[StageLine]:
    """The stages in order, each beside its limit."""
    longest = max((stage.limit or stage.seconds for stage in stages), default=0.0) or 1.0
    homes = {row.rank: row.node for row in ranks}
    return [
        StageLine(
            stage.name,
            elapsed(stage.seconds),
            elapsed(stage.limit) if stage.limit else "",
            max(1, min(BAR, round(stage.seconds / longest * BAR))),
            stage.verdict,
            {"fail": "f", "unknown": "u", "skip": "s"}.get(stage.verdict, "p"),
            _missing(stage, homes),
        )
        for stage in stages
    ]


def _missing(stage: Stage, homes: dict[int, str]) -> str:
    if not stage.missing:
        return ""
    nodes = tuple(dict.fromkeys(homes[rank] for rank in stage.missing if rank in homes))
    return f"rank {_cut(folded_ranks(stage.missing))}{' on ' + label(nodes) if nodes else ''}"


def _kind(bad: bool) -> str:
    return "f" if bad else "n"


def _cut(ranks: str) -> str:
    return ranks if len(ranks) <= NODES else f"{ranks[: ranks.rfind(',', 0, NODES)]},…"


def _device(row: RankRow) -> str:
    return "CPU" if row.gpu is None else _gpu(row.gpu)


def _gpu(gpu: RankGpu) -> str:
    numa = "" if gpu.numa is None else f", NUMA {gpu.numa}"
    return f"GPU {gpu.index}, {gpu.pci}{numa}"


def _ended(row: LaunchedRank) -> str:
    if row.ended == "failed":
        return f"failed with exit code {row.code}"
    return f"killed by {row.signal}" if row.ended == "killed" else row.ended.replace("-", " ")
