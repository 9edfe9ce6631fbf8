"""Error counters of RDMA ports, now and in earlier runs: only their growth tells of errors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.model import Read

# By port («mlx5_0:1») and by the kernel's name of the counter.
Counters = Mapping[str, Mapping[str, int]]

# Documentation/ABI/stable/sysfs-class-infiniband describes the files in counters/, the driver's
# source those in hw_counters/.
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


class Sample(Struct, frozen=True):
    """The counters of an earlier run in the same boot, `seconds` before now.

    `pcie` has the errors of PCI functions (the fact pci.errors), and `gpu` those of GPUs by UUID
    (the fact gpu.counters): None where that run did not ask.
    """

    seconds: float
    ib: Counters
    pcie: Counters | None = None
    gpu: Counters | None = None


class Earlier(Struct, frozen=True):
    """Samples of earlier runs.

    `recent` is the newest that is old enough to tell a rate, `long` the oldest of the last day.
    """

    recent: Sample
    long: Sample


def parse_counters(files: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Return the counters by port, in the order of the names.

    A counter that the port does not have («N/A (no PMA)») is left out.
    """
    counters: dict[str, dict[str, int]] = {}
    for path, text in sorted(files.items()):
        match = _PATH.fullmatch(path)
        if match is None:
            raise ValueError(f"{path} is no counter of a port")
        device, port, name = match.groups()
        port_counters = counters.setdefault(f"{device}:{port}", {})
        if not text.startswith("N/A"):
            port_counters[name] = int(text)
    return counters


IB = Fact(
    "ib.counters", lambda node, inventory: (Read("files", _PATHS),), parse_counters, moves=True
)
EARLIER = Fact(
    "counters.earlier", stage="history", moves=True
)  # None where there is no earlier sample
