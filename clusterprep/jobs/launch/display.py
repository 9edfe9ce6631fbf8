"""Format the lines that ranks print for a terminal.

Each line stands behind the name of its rank. Equal lines of several ranks can be folded into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterprep.model.nodeset import fold

WAIT = 0.3  # seconds that a line waits for equal lines of other ranks

Source = tuple[str, "int | None"]  # node, and rank; no rank: the node's torchrun


def label(source: Source) -> str:
    node, rank = source
    if rank is None:
        return f"[{node} torchrun]"
    return f"[{node} rank {rank}]"


@dataclass
class _WaitingLine:
    since: float
    sources: list[Source]


class Prefixed:
    """Shows every line at once, behind its own label."""

    def add(self, source: Source, text: str, now: float) -> list[str]:
        return [f"{label(source)} {text}"]

    def due(self, now: float, *, flush: bool = False) -> list[str]:
        return []


class Folded:
    """Holds lines for a moment until the same lines of other ranks arrive, and shows them once.

    Lines of one rank keep their order.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        # By text, and by how many equal lines of the same source were waiting before this one.
        self._waiting: dict[tuple[str, int], _WaitingLine] = {}

    def add(self, source: Source, text: str, now: float) -> list[str]:
        key = (text, self._count_waiting(source, text))
        if key not in self._waiting:
            self._waiting[key] = _WaitingLine(now, [])
        self._waiting[key].sources.append(source)
        return self.due(now)

    def _count_waiting(self, source: Source, text: str) -> int:
        count = 0
        for (waiting_text, _), waiting in self._waiting.items():
            if waiting_text == text and source in waiting.sources:
                count += 1
        return count

    def due(self, now: float, *, flush: bool = False) -> list[str]:
        """Return the lines to show now, in the order in which they first came.

        No line overtakes one that still waits. `flush` shows all of them.
        """
        shown: list[str] = []
        for key, waiting in list(self._waiting.items()):
            is_complete = len(waiting.sources) >= self._ranks
            is_old = now - waiting.since >= WAIT
            if not (flush or is_complete or is_old):
                break
            del self._waiting[key]
            text, _ = key
            labels = _common_label(waiting.sources, self._ranks)
            shown.append(f"{labels} {text}")
        return shown


def _common_label(sources: Sequence[Source], world_size: int) -> str:
    if len(sources) == 1:
        return label(sources[0])
    ranks: list[int] = []
    torchrun_nodes: list[str] = []
    for node, rank in sources:
        if rank is None:
            torchrun_nodes.append(node)
        else:
            ranks.append(rank)
    parts: list[str] = []
    if len(ranks) == world_size:
        parts.append("all ranks")
    elif ranks:
        parts.append(f"ranks {spans(sorted(ranks))}")
    if torchrun_nodes:
        parts.append(f"{fold(torchrun_nodes)} torchrun")
    joined = ", ".join(parts)
    return f"[{joined}]"


def spans(numbers: list[int]) -> str:
    """Return sorted numbers with ranges: [0, 1, 2, 3, 7] is "0-3,7"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    parts: list[str] = []
    for first, last in ranges:
        if first == last:
            parts.append(str(first))
        else:
            parts.append(f"{first}-{last}")
    return ",".join(parts)


def visible(text: str) -> str:
    """Return what a terminal shows of a line that has written over itself, as progress bars do."""
    line = text.rstrip("\r")
    return line.rsplit("\r", 1)[-1]
