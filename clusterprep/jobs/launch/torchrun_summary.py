"""Read the exit codes of ranks from the summary that torchrun prints when a worker has failed.

torchrun's own exit code is always 1 then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_RANK = re.compile(r"^\s*rank\s+:\s*(\d+) \(local_rank: \d+\)")
_CODE = re.compile(r"^\s*exitcode\s+:\s*(-?\d+)\b")
# The line before the summary, about the worker that failed first.
_FIRST_FAILURE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")


def exit_codes(lines: Iterable[str], first_rank: int) -> dict[int, int]:
    """Return the exit code of each rank that failed, negative for a signal.

    `first_rank` is the rank of local rank 0. The summary names all failed ranks; if it is cut off,
    the line before it still names the one that failed first.
    """
    codes: dict[int, int] = {}
    rank: int | None = None
    for line in lines:
        first_failure = _FIRST_FAILURE.search(line)
        if first_failure:
            code, local_rank = first_failure.groups()
            failed_rank = first_rank + int(local_rank)
            codes.setdefault(failed_rank, int(code))
            continue
        rank_row = _RANK.match(line)
        if rank_row:
            rank = int(rank_row[1])
            continue
        code_row = _CODE.match(line)
        if code_row and rank is not None:
            codes[rank] = int(code_row[1])
            rank = None
    return codes
