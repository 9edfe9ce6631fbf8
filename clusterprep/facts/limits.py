"""Resource limits as the job's user gets them."""

from __future__ import annotations

import math
from typing import Any

from clusterprep.facts import JOB_USER, Fact, user_of_job
from clusterprep.model import Inventory, Node, Read


def parse_memlock(answer: dict[str, Any]) -> float:
    """Return the soft limit of locked memory in bytes, math.inf for unlimited."""
    limit = answer["memlock"]
    return math.inf if limit is None else float(limit)


def parse_number(answer: Any, name: str) -> float:
    """Return a soft limit as a number, math.inf for unlimited; the stack's is in bytes."""
    limit = answer[name]
    if limit is None:
        return math.inf
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ValueError(f"{limit!r} is no limit")
    return float(limit)


def limits(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("limits", (user_of_job(node),), limit=5.0),)


MEMLOCK = Fact("lim.memlock", limits, parse_memlock, needs=JOB_USER)
NOFILE = Fact("lim.nofile", limits, lambda answer: parse_number(answer, "nofile"), needs=JOB_USER)
STACK = Fact("lim.stack", limits, lambda answer: parse_number(answer, "stack"), needs=JOB_USER)
NPROC = Fact("lim.nproc", limits, lambda answer: parse_number(answer, "nproc"), needs=JOB_USER)
