"""The NVLink domain of each GPU: the machines that its NVLink reaches (GB200 NVL72 and its like).

NCCL takes GPUs as joined over NVLink where both the UUID of the cluster and the clique are equal
(src/mnnvl.cc). A clique alone says nothing: all racks have 32766 (0x7ffe) unless they were divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from clusterprep.facts.gpu import absence, per_gpu, refusal, require_number
from clusterprep.facts.nvlink import COMPLETED
from clusterprep.model import Absent

DIGITS = 32
# Beginnings and ends of the parts of a UUID of 32 digits.
_PARTS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))


class Domain(Struct, frozen=True):
    """UUID of the cluster and the clique within it; "" where NVLink does not leave the machine.

    `fabric`: whether NVSwitches join the GPU to others at all. `joined`: whether it has joined them
    by now; gpu.fabricmanager judges that.
    """

    cluster: str
    clique: int = 0
    fabric: bool = True
    joined: bool = True

    def __str__(self) -> str:
        """Return «clique 32766 of 9c6f5af3-53bf-49b5-a436-b66766c413c3»."""
        if not self.cluster:
            return "no NVLink domain of several machines"
        return f"clique {self.clique} of {self.cluster}"


ALONE = Domain("")
NO_FABRIC = Domain("", fabric=False)
NOT_JOINED = Domain("", joined=False)


def parse_domain(row: Mapping[str, Any]) -> Domain | Absent:
    """Parse [state, status, clique, …] of the fabric and the 32 digits of the cluster.

    On HGX boards the cluster is all zeros: NVLink does not leave the machine. Nor does it with a
    driver that is too old to be asked.
    """
    fabric = row["fabric"]
    reason = refusal(fabric)
    if reason is not None:
        if reason[1] == "missing_tool":
            return ALONE
        return NO_FABRIC if reason[1] == "not_applicable" else absence("fabric", reason)
    state, status, clique = (require_number(value) for value in fabric[:3])
    if not state:
        return NO_FABRIC
    if state != COMPLETED or status:
        return NOT_JOINED
    cluster = row["cluster"]
    if not isinstance(cluster, str) or len(cluster) != DIGITS:
        raise ValueError(f"{cluster!r} is no UUID")
    if not int(cluster, 16):
        return ALONE
    parts = [cluster[start:end].lower() for start, end in _PARTS]
    return Domain("-".join(parts), clique)


DOMAIN = per_gpu("nvlink.domain", parse_domain, besides=("fabric", "cluster"))
