"""What helps to find a fault and costs speed, or the job, where it stays, for lint and the check env.nccl_debug."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from clusterprep.nccl.lint import LintEntry, Remark, Text, Versions
from clusterprep.nccl.lint.values import nccl_integer


def _is(*words: str) -> Callable[[str], bool]:
    return lambda value: value.strip().upper() in words


def _any(value: str) -> bool:
    return True


def _one(value: str) -> bool:
    """Two switches act at exactly 1 and at no other number (NCCL, src/graph/paths.cc and src/transport/shm.cc)."""
    return _number(value) == 1


def _zero(value: str) -> bool:
    return _number(value) == 0


def _not_zero(value: str) -> bool:
    return _number(value) not in (None, 0)


def _number(value: str) -> int | None:
    read = nccl_integer(value)
    return None if read is None else read.value


# How the files and the block begin that apply writes (resources/env.py; a test holds the two together).
_FILE, _BEGIN, _END = "# Written by clusterprep apply", "# BEGIN clusterprep", "# END clusterprep"
_NONE = _is(
    "LOC", "0"
)  # the shortest of NCCL's distances, which nothing is within; 0 is its old number
_SLOW = "every call is logged or compared with other ranks: slow"
_LEFT: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "NCCL_P2P_DISABLE": (
        _one,
        "GPUs of one node talk through the host's memory, several times slower",
    ),
    "NCCL_P2P_LEVEL": (
        _NONE,
        "GPUs of one node talk through the host's memory, several times slower",
    ),
    "NCCL_SHM_DISABLE": (_one, "ranks of one node talk over the network"),
    "NCCL_IB_DISABLE": (
        _not_zero,
        "RDMA is off: nodes talk over TCP, many times slower where there is InfiniBand or RoCE",
    ),
    "NCCL_ALGO": (_any, "one algorithm for every size: NCCL's own choice is off"),
    "NCCL_PROTO": (
        _any,
        "one protocol for every size: NCCL's own choice is off, and LL128 where it is not safe corrupts",
    ),
    "NCCL_TOPO_DUMP_FILE": (_any, "every start writes its topology there"),
    "NCCL_GRAPH_DUMP_FILE": (_any, "every start writes its graphs there"),
    "NCCL_HOSTID": (
        _any,
        "the same on two nodes, and NCCL takes them for one and tries shared memory between them",
    ),
    "NCCL_COMM_ID": (
        _any,
        "NCCL_SOCKET_IFNAME is ignored, and two jobs with the same value meet; torch needs no such id",
    ),
    "NCCL_CHECK_POINTERS": (_not_zero, "every pointer of every call is checked"),
    "NCCL_NVLS_ENABLE": (_zero, "NVLink SHARP is off: a fifth slower in a node that has it"),
    "NCCL_NET_GDR_LEVEL": (
        _NONE,
        "GPU Direct RDMA is off: all traffic goes through the host's memory",
    ),
    "NCCL_DEBUG": (_is("TRACE"), _SLOW),
    "TORCH_DISTRIBUTED_DEBUG": (_is("DETAIL"), _SLOW),
}


def left_behind(name: str, value: str) -> str:
    """What the setting costs; empty where it is none of those. An empty value is none at all to its readers."""
    costs, why = _LEFT.get(name, (None, ""))
    return why if costs is not None and value and costs(value) else ""


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    """Of each name the setting that holds in the end; what one command alone is given stays with it."""
    ours = _written(text)
    for entry in text.held().values():
        why = left_behind(entry.name, entry.value)
        if why and entry.line not in ours and not _made(entry, text.dialect):
            message = f"left behind from a search for a fault? {why}"
            seen = f"{entry.name}={entry.value}"
            remedy = "drop the line, or set it for one job: NAME=value torchrun …"
            yield Remark(
                "env.nccl_debug",
                entry.line,
                entry.name,
                message,
                seen,
                "not in a permanent file",
                remedy,
            )


def _written(text: Text) -> set[int]:
    """Lines that apply wrote: their values were worked out over the fleet, or declared, and nobody forgot them."""
    if any(line.startswith(_FILE) for line in text.lines[:2]):
        return set(range(1, len(text.lines) + 1))
    found: set[int] = set()
    inside = False
    for number, line in enumerate(text.lines, 1):
        inside = not line.startswith(_END) if inside else line.startswith(_BEGIN)
        found |= {number} if inside else set()
    return found


def _made(entry: LintEntry, dialect: str) -> bool:
    """Whether a shell makes the value, and another on each node: NCCL_HOSTID=$(hostname) is no constant."""
    return not entry.known and dialect == "shell" and entry.name == "NCCL_HOSTID"
