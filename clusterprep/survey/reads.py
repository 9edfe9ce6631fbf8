"""Send reads to an agent in one request and return its raw answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterprep.errors import LinkLost
from clusterprep.model import Json, Read
from clusterprep.remote.transports.link import Link
from clusterprep.remote.untrusted import shortened
from clusterprep.runtime.budget import Budget

MARGIN = 5.0  # seconds beyond the sum of its limits that an answer may take
# Kinds of reads that an agent runs one after the other. All others run side by side.
SERIAL_KINDS = (
    ("file", "files", "target"),
    ("job_python", "environment", "nccl_address", "readable"),
)


def look_request(asked: Sequence[Read], budget: Budget | None = None) -> tuple[str, dict[str, Any]]:
    """Return the request that brings the answers to all these reads.

    With a budget, the agent answers when the time for reads is over.
    """
    rows: list[list[Json]] = []
    for read in asked:
        row = [read.kind, list(read.args), read.limit]
        rows.append(row)
    body: dict[str, Any] = {"reads": rows}
    if budget is not None:
        body["within"] = budget.left(budget.reads)
    return "look", body


def ask_reads(
    link: Link, asked: Sequence[Read], number: int | None = None, budget: Budget | None = None
) -> list[Json]:
    """Return the agent's answer to each read, as a piece that is not decoded. Raises LinkLost.

    `number` is that of a request that was sent before; without it the request is sent now.
    """
    limit = _longest_lane(asked) + MARGIN
    if budget is not None:
        limit = min(limit, budget.left())
    if number is None:
        (number,) = link.send_all(look_request(asked, budget))
    frame = link.receive_pieces(number, limit)
    answers = frame.get("answers")
    if not isinstance(answers, list) or len(answers) != len(asked):
        why = frame.get("why") or "the answer does not fit the question"
        raise LinkLost("garbled", shortened(why))
    return answers


def _longest_lane(asked: Sequence[Read]) -> float:
    """Return the seconds that the slowest read, or the slowest lane of serial reads, may take."""
    longest = max(read.limit for read in asked)
    for kinds in SERIAL_KINDS:
        lane = sum(read.limit for read in asked if read.kind in kinds)
        longest = max(longest, lane)
    return longest
