"""Settings that help to find a fault, and cost speed or the training job if they stay.

Used by lint and by the check env.nccl_debug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from clusterprep.nccl.lint import LintEntry, Remark, Text, Versions
from clusterprep.nccl.lint.values import nccl_integer
from clusterprep.remedies import sentence


def _is(*values: str) -> Callable[[str], bool]:
    return lambda value: value.strip().upper() in values


def _any(value: str) -> bool:
    return True


def _one(value: str) -> bool:
    """Return whether NCCL reads exactly 1.

    Two switches act at 1 and at no other number (src/graph/paths.cc, src/transport/shm.cc).
    """
    return _number(value) == 1


def _zero(value: str) -> bool:
    return _number(value) == 0


def _not_zero(value: str) -> bool:
    return _number(value) not in (None, 0)


def _number(value: str) -> int | None:
    number = nccl_integer(value)
    return None if number is None else number.value


# How the files and the block begin that apply writes (resources/env.py; a test compares the two).
_FILE, _BEGIN, _END = "# Written by clusterprep apply", "# BEGIN clusterprep", "# END clusterprep"
# The shortest of NCCL's distances, which nothing is within; 0 is its old number.
_NONE = _is("LOC", "0")
_SLOW_LOCAL = "GPUs of one node talk through the host's memory, several times slower"
_SLOW_LOG = "every call is logged or compared with other ranks: slow"
_ONE_PROTOCOL = (
    "one protocol for every size: NCCL's own choice is off, and LL128 where it is not safe corrupts"
)
_FIXED_ID = (
    "NCCL_SOCKET_IFNAME is ignored, and two jobs with the same value meet; torch needs no such id"
)
# Name of a variable -> whether a value costs something, and what it costs.
_COSTS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "NCCL_P2P_DISABLE": (_one, _SLOW_LOCAL),
    "NCCL_P2P_LEVEL": (_NONE, _SLOW_LOCAL),
    "NCCL_SHM_DISABLE": (_one, "ranks of one node talk over the network"),
    "NCCL_IB_DISABLE": (
        _not_zero,
        "RDMA is off: nodes talk over TCP, many times slower where there is InfiniBand or RoCE",
    ),
    "NCCL_ALGO": (_any, "one algorithm for every size: NCCL's own choice is off"),
    "NCCL_PROTO": (_any, _ONE_PROTOCOL),
    "NCCL_TOPO_DUMP_FILE": (_any, "every start writes its topology there"),
    "NCCL_GRAPH_DUMP_FILE": (_any, "every start writes its graphs there"),
    "NCCL_HOSTID": (
        _any,
        "the same on two nodes, and NCCL takes them for one and tries shared memory between them",
    ),
    "NCCL_COMM_ID": (_any, _FIXED_ID),
    "NCCL_CHECK_POINTERS": (_not_zero, "every pointer of every call is checked"),
    "NCCL_NVLS_ENABLE": (_zero, "NVLink SHARP is off: a fifth slower in a node that has it"),
    "NCCL_NET_GDR_LEVEL": (
        _NONE,
        "GPU Direct RDMA is off: all traffic goes through the host's memory",
    ),
    "NCCL_DEBUG": (_is("TRACE"), _SLOW_LOG),
    "TORCH_DISTRIBUTED_DEBUG": (_is("DETAIL"), _SLOW_LOG),
}


def cost_of_leftover(name: str, value: str) -> str:
    """Return what a setting costs; empty if it costs nothing.

    An empty value counts as unset, as its readers take it.
    """
    if name not in _COSTS or not value:
        return ""
    costs_something, cost = _COSTS[name]
    return cost if costs_something(value) else ""


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    """Yield costly settings among those that hold in the end.

    Settings for one command alone do not count: they do not stay.
    """
    written_by_apply = _lines_of_apply(text)
    for entry in text.held().values():
        cost = cost_of_leftover(entry.name, entry.value)
        if not cost or entry.line in written_by_apply or _differs_by_node(entry, text.dialect):
            continue
        message = f"left behind from a search for a fault? {cost}"
        seen = f"{entry.name}={entry.value}"
        wanted = "not in a permanent file"
        remedy = sentence("drop the line, or set it for one job: NAME=value torchrun …")
        yield Remark(
            "env.nccl_debug",
            entry.line,
            entry.name,
            message,
            seen,
            wanted,
            remedy,
        )


def _lines_of_apply(text: Text) -> set[int]:
    """Return the lines that apply wrote: their values were derived or declared, not forgotten."""
    if any(line.startswith(_FILE) for line in text.lines[:2]):
        return set(range(1, len(text.lines) + 1))
    numbers: set[int] = set()
    inside = False
    for number, line in enumerate(text.lines, 1):
        if inside and line.startswith(_END):
            inside = False
        elif not inside and line.startswith(_BEGIN):
            inside = True
        if inside:
            numbers.add(number)
    return numbers


def _differs_by_node(entry: LintEntry, dialect: str) -> bool:
    """Return whether a shell computes the value, as in NCCL_HOSTID=$(hostname)."""
    return not entry.known and dialect == "shell" and entry.name == "NCCL_HOSTID"
