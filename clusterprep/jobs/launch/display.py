"""What ranks print, as lines for a terminal: each behind the name of its rank, or equal lines of several ranks once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clusterprep.model.nodeset import fold

WAIT = 0.3  # seconds that a line waits for the same of other ranks

Source = tuple[str, "int | None"]  # node, and rank; no rank: the node's torchrun


def label(source: Source) -> str:
    node, rank = source
    return f"[{node} torchrun]" if rank is None else f"[{node} rank {rank}]"


@dataclass
class _Waiting:
    since: float
    sources: list[Source]


class Prefixed:
    """Every line at once."""

    def add(self, source: Source, text: str, now: float) -> list[str]:
        return [f"{label(source)} {text}"]

    def due(self, now: float, *, all_of_them: bool = False) -> list[str]:
        return []


class Folded:
    """Lines wait a moment for the same lines of other ranks; those of one rank keep their order."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._waiting: dict[
            tuple[str, int], _Waiting
        ] = {}  # text, and how often its source has it waiting already

    def add(self, source: Source, text: str, now: float) -> list[str]:
        often = sum(
            source in row.sources for (known, _), row in self._waiting.items() if known == text
        )
        row = self._waiting.setdefault((text, often), _Waiting(now, []))
        row.sources.append(source)
        return self.due(now)

    def due(self, now: float, *, all_of_them: bool = False) -> list[str]:
        """In the order in which they came first. Nothing overtakes a line that still waits."""
        shown = []
        for (text, often), row in list(self._waiting.items()):
            if not all_of_them and now - row.since < WAIT and len(row.sources) < self._ranks:
                break
            del self._waiting[text, often]
            shown.append(f"{_labels(row.sources, self._ranks)} {text}")
        return shown


def _labels(sources: Iterable[Source], world: int) -> str:
    ranks = sorted(rank for _, rank in sources if rank is not None)
    nodes = [node for node, rank in sources if rank is None]
    if (len(ranks) == 1 and not nodes) or (not ranks and len(nodes) == 1):
        return label(next(iter(sources)))
    said = []
    if ranks:
        said.append("all ranks" if len(ranks) == world else f"ranks {spans(ranks)}")
    if nodes:
        said.append(f"{fold(nodes)} torchrun")
    return f"[{', '.join(said)}]"


def spans(numbers: list[int]) -> str:
    """«0-3,7» of sorted numbers."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and number == rows[-1][1] + 1:
            rows[-1][1] = number
        else:
            rows.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in rows)


def visible(text: str) -> str:
    """What a terminal would show of a line: a progress bar has written over itself."""
    return text.rstrip("\r").rsplit("\r", 1)[-1]
