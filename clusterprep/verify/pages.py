"""The pages of the checks that only a trial can judge, for `explain` and the list of checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Page:
    """What a check of the trial is for; its verdict comes from blame.py."""

    name: str
    severity: Literal["error", "warning"]
    title: str
    why: str
    how: str
    remedy: str


REMEDY_OF_LINKS = "ip -s link; ethtool -S IFACE   # errors and drops of the nodes named; then cable and switch port"

_PAGES = (
    Page(
        "nccl.busbw_multi",
        "error",
        "The speed of the all-reduce",
        "A slow link, interface or GPU slows every step of every rank, and no error says so.",
        "Bus bandwidth as nccl-tests defines it, of the largest size that `verify: {sizes: …}` has, by the slowest "
        "rank's median. Judged only where `verify: {min_busbw: …}` declares the least.",
        "clusterprep verify INVENTORY --limit HALF   # halve the nodes until the slow one is left",
    ),
    Page(
        "nccl.correct",
        "error",
        "Sums that are exact",
        "A faulty link, driver or memory that changes data lets a training diverge, and no error says so.",
        "Every rank contributes whole numbers whose sum is known and exact in float32, and compares every element of "
        "the result; a piece in the wrong place shows too.",
        "clusterprep verify INVENTORY --limit HALF   # halve the nodes until the wrong one is left",
    ),
    Page(
        "nccl.hang",
        "error",
        "Every rank finishes",
        "One rank that is missing lets all others wait until the time-out of a job that costs by the minute.",
        "An all-reduce over all ranks in the job's interpreter, as the job's user, with the environment that apply "
        "writes. Ends, signals and stopped or stuck processes, as the kernel tells them, name who is to blame; "
        "where all only wait, TCP connections of the ranks that nobody answers do.",
        "clusterprep check INVENTORY   # firewalls, interfaces, names; verify names the node or rank at fault",
    ),
    Page(
        "nccl.transport",
        "warning",
        "Transports between ranks",
        "NCCL falls back without an error: sockets instead of RDMA are 20 to 150 times slower, and a missing HCA takes "
        "its share of the bandwidth.",
        "Where NCCL runs the all-reduce: interface, devices, and the transport of every pair of ranks that connect, as "
        "NCCL_DEBUG=INFO tells them on each rank (subsystems INIT, ENV, NET, BOOTSTRAP), against NCCL_SOCKET_IFNAME, "
        "NCCL_IB_HCA, NCCL_IB_DISABLE and NCCL_NET as the ranks were given them. Sockets fail only where RDMA was "
        "written; GPUDirect RDMA is told and not judged. A rank that said nothing is unknown.",
        "clusterprep check INVENTORY --only ib.,roce.,rdma.,env.,nccl.",
    ),
    Page(
        "net.tcp_bw",
        "error",
        "Links between nodes",
        "A link that is slow, loses packets or lost its way makes the whole job slow or hangs it. An all-reduce that "
        "passes has not used every link, and one that fails accuses everybody.",
        "After the all-reduce pairs of nodes exchange 200 small messages and 4 MiB each way over TCP, in rounds in "
        "which nobody is twice: all pairs up to 64 nodes, 64 partners for each beyond that. Bad is a direction at "
        "less than a fifth of what most nodes reach, two segments of the small messages that the kernel had to send "
        "again, a second to connect, or no connection; whatever looks bad is measured once more, what is only slow up "
        "to five times. A node is named where at least two of its pairs are bad, and half; other pairs are links. It "
        "is the network of sockets: RDMA is not measured by it.",
        REMEDY_OF_LINKS,
    ),
)
PAGES = {page.name: page for page in _PAGES}
