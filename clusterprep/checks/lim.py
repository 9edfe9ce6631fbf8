"""Resource limits that break RDMA and large jobs."""

from __future__ import annotations

import math

from clusterprep.checks import Check, Outcome, Proof, Scene, each
from clusterprep.model import Node, Severity
from clusterprep.network import has_rdma, may_have_rdma
from clusterprep.units import format_size, parse_size

FLOOR = 32 << 30  # bytes; what RDMA registration of a large model's buffers takes


def memlock(scene: Scene, node: Node, limit: float) -> Outcome:
    wanted = scene.wanted(node)
    least = parse_size(wanted) if wanted is not None else FLOOR
    seen = "unlimited" if math.isinf(limit) else format_size(limit)
    text = wanted or f"unlimited or at least {format_size(FLOOR)}"
    if limit >= least:
        return Outcome("pass", (node.name,), "enough memory may be locked", seen, text)
    severity: Severity = "error" if has_rdma(scene.fleet, node) else "warning"
    return Outcome("fail", (node.name,), "too little memory may be locked", seen, text, severity=severity)


MEMLOCK = Check(
    "lim.memlock",
    facts=("lim.memlock", "rdma.ports"),
    judge=each(memlock, "lim.memlock"),
    severity="warning",
    title="Locked memory",
    why="RDMA registers its buffers as locked memory; with the usual 8 MiB ibv_reg_mr fails, and NCCL says «unhandled "
    "system error».",
    how="The soft limit of a session of the job's user. An error where an RDMA device is present or declared.",
    remedy="echo '* - memlock unlimited' > /etc/security/limits.d/90-memlock.conf   # services: LimitMEMLOCK=infinity",
    grave=may_have_rdma,
    wants=parse_size,
    proof=Proof("lim.memlock", lambda _: float(8 << 20)),
)
