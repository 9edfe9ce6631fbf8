"""Exit codes of ranks, from what torchrun says when a worker has failed: its own code is always 1."""

from __future__ import annotations

import re
from collections.abc import Iterable

_RANK = re.compile(r"^\s*rank\s+:\s*(\d+) \(local_rank: \d+\)")
_CODE = re.compile(r"^\s*exitcode\s+:\s*(-?\d+)\b")
_SHORT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")


def codes(lines: Iterable[str], first: int) -> dict[int, int]:
    """Rank → exit code, negative for a signal, of the ranks that failed; `first` is the rank of local rank 0.

    The summary has all of them. Where it is cut off, the line before it has the one that failed first.
    """
    found: dict[int, int] = {}
    rank: int | None = None
    for line in lines:
        if short := _SHORT.search(line):
            found.setdefault(first + int(short[2]), int(short[1]))
        elif told := _RANK.match(line):
            rank = int(told[1])
        elif (code := _CODE.match(line)) and rank is not None:
            found[rank] = int(code[1])
            rank = None
    return found
