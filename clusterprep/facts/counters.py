"""Error counters of RDMA ports, and what they were in earlier runs: a counter alone says nothing, its growth does."""

from __future__ import annotations

import re
from collections.abc import Mapping

from clusterprep.facts import Fact
from clusterprep.model import Read
from clusterprep.runtime.lazy_dataclass import dataclass

Counters = Mapping[
    str, Mapping[str, int]
]  # by port («mlx5_0:1») and by the kernel's name of the counter

# Documentation/ABI/stable/sysfs-class-infiniband has those of counters/, the driver's source those of hw_counters/.
PORT = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
HARDWARE = ("local_ack_timeout_err", "rnr_nak_retry_err", "roce_slow_restart")

_PATH = re.compile(r"/sys/class/infiniband/([^/]+)/ports/(\d+)/(?:hw_)?counters/([a-z_]+)")
_PATHS = (
    *(f"/sys/class/infiniband/*/ports/*/counters/{name}" for name in PORT),
    *(f"/sys/class/infiniband/*/ports/*/hw_counters/{name}" for name in HARDWARE),
)


@dataclass(frozen=True)
class Sample:
    """What the counters were, so many seconds before now, in the same boot."""

    seconds: float
    ib: Counters


@dataclass(frozen=True)
class Earlier:
    """Samples of earlier runs: the newest that is old enough to tell a rate, and the oldest of the last day."""

    recent: Sample
    long: Sample


def parse_counters(files: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Ports in the order of their names. A counter that the port does not have («N/A (no PMA)») is left out."""
    found: dict[str, dict[str, int]] = {}
    for path, text in sorted(files.items()):
        match = _PATH.fullmatch(path)
        if match is None:
            raise ValueError(f"{path} is no counter of a port")
        port = found.setdefault(f"{match[1]}:{match[2]}", {})
        if not text.startswith("N/A"):
            port[match[3]] = int(text)
    return found


IB = Fact("ib.counters", lambda node, inventory: (Read("files", _PATHS),), parse_counters)
EARLIER = Fact("counters.earlier", stage="history")  # None where there is no earlier sample
