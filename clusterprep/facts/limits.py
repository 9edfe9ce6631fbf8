"""Resource limits as the job's user gets them."""

from __future__ import annotations

import math
from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Read


def parse_memlock(answer: dict[str, Any]) -> float:
    """Soft limit of locked memory in bytes, math.inf for unlimited."""
    return math.inf if answer["memlock"] is None else float(answer["memlock"])


MEMLOCK = Fact(
    "lim.memlock",
    lambda node, inventory: (Read("limits", (node.job_user or node.ssh.user,), limit=5.0),),
    parse_memlock,
)
