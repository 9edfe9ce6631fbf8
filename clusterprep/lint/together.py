"""What only several lines show, or the place: settings that undo each other, doubles, and what was left behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterprep.lint import Entry, Remark, Text, Versions
from clusterprep.lint.values import nccl_integer
from clusterprep.model import Severity

MOST_SOCKETS = 64  # of one connection (NCCL, net_socket.cc, MAX_SOCKETS)

# What helps to find a fault and costs speed, or the job, where it stays. None: with any value.
_LEFT: Mapping[str, tuple[int | str | None, str]] = {
    "NCCL_P2P_DISABLE": (1, "GPUs of one node talk through the host's memory, several times slower"),
    "NCCL_SHM_DISABLE": (1, "ranks of one node talk over the network"),
    "NCCL_IB_DISABLE": (1, "RDMA is off: nodes talk over TCP, many times slower where there is InfiniBand or RoCE"),
    "NCCL_ALGO": (None, "one algorithm for every size: NCCL's own choice is off"),
    "NCCL_PROTO": (
        None,
        "one protocol for every size: NCCL's own choice is off, and LL128 where it is not safe corrupts",
    ),
    "NCCL_TOPO_DUMP_FILE": (None, "every start writes its topology there"),
    "NCCL_GRAPH_DUMP_FILE": (None, "every start writes its graphs there"),
    "NCCL_HOSTID": (None, "the same on two nodes, and NCCL takes them for one and tries shared memory between them"),
    "NCCL_COMM_ID": (
        None,
        "NCCL_SOCKET_IFNAME is ignored, and two jobs with the same value meet; torch needs no such id",
    ),
    "NCCL_CHECK_POINTERS": (1, "every pointer of every call is checked"),
    "NCCL_NVLS_ENABLE": (0, "NVLink SHARP is off: a fifth slower in a node that has it"),
    "NCCL_NET_GDR_LEVEL": ("LOC", "GPU Direct RDMA is off: all traffic goes through the host's memory"),
}
_NOISY = {"NCCL_DEBUG": "TRACE", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
_RDMA = ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT")
_PAIRS = (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"))


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    entries = [entry for entry in text.entries if not entry.lost]
    yield from _doubles(text.dialect, entries)
    held = effective(text.dialect, entries)
    yield from _sockets(held)
    yield from _contradictions(held)
    yield from _useless(held)
    yield from _gid_index(held, versions)
    for entry in held.values():
        yield from _left_behind(entry)


def effective(dialect: str, entries: list[Entry]) -> Mapping[str, Entry]:
    """What holds in the end: in nccl.conf the first setting of a name, elsewhere the last."""
    ordered = reversed(entries) if dialect == "nccl.conf" else entries
    return {entry.name: entry for entry in ordered}


def hints(text: Text) -> tuple[str, ...]:
    """What is worth knowing and no fault."""
    held = effective(text.dialect, list(text.entries))
    if "NCCL_IB_HCA" in held and "NCCL_NET" not in held and _integer(held.get("NCCL_IB_DISABLE")) != 1:
        return (
            "NCCL_NET=IB would turn a list of devices that matches nothing into an error; without it NCCL uses TCP",
        )
    return ()


def _doubles(dialect: str, entries: list[Entry]) -> Iterator[Remark]:
    """Only values that differ: a line written twice does no harm."""
    first_wins = dialect == "nccl.conf"
    before: dict[str, Entry] = {}
    for entry in entries:
        other = before.get(entry.name)
        if (
            other is not None
            and other.value != entry.value
            and entry.name.startswith(("NCCL_", "TORCH_", "OFI_", "GLOO_"))
        ):
            winner, loser = (other, entry) if first_wins else (entry, other)
            rule = "the first one wins in nccl.conf" if first_wins else "the last one wins"
            message = f"line {winner.line} sets it to {winner.value} and holds: {rule}"
            yield _remark(loser, message, "one line for each name", f"drop line {loser.line}")
        if other is None or not first_wins:
            before[entry.name] = entry


def _sockets(held: Mapping[str, Entry]) -> Iterator[Remark]:
    threads, sockets = held.get("NCCL_SOCKET_NTHREADS"), held.get("NCCL_NSOCKS_PERTHREAD")
    count, each = _integer(threads), _integer(sockets)
    if threads and sockets and count and each and min(count, 16) * each > MOST_SOCKETS:
        later = max(threads, sockets, key=lambda entry: entry.line)
        seen = f"NCCL_SOCKET_NTHREADS={threads.value} × NCCL_NSOCKS_PERTHREAD={sockets.value}"
        message = (
            f"more than {MOST_SOCKETS} sockets for one connection: NCCL cuts the sockets per thread, with a warning"
        )
        fewer = max(MOST_SOCKETS // min(count, 16), 1)
        remedy = f"write NCCL_NSOCKS_PERTHREAD={fewer}"
        wanted = f"a product of {MOST_SOCKETS} at most"
        yield Remark("env.no_effect", later.line, later.name, message, seen, wanted, remedy)


def _contradictions(held: Mapping[str, Entry]) -> Iterator[Remark]:
    for low, high in _PAIRS:
        least, most = _integer(held.get(low)), _integer(held.get(high))
        if least is not None and most is not None and least > most > 0:
            later = max(held[low], held[high], key=lambda entry: entry.line)
            message = f"{low}={least} and {high}={most} contradict each other: one of them does not hold"
            yield _remark(later, message, f"{low} ≤ {high}", f"drop {later.name}")
    net, off = held.get("NCCL_NET"), _integer(held.get("NCCL_IB_DISABLE"))
    if net is not None and net.value.upper() == "IB" and off:
        message = "NCCL_NET=IB wants what NCCL_IB_DISABLE switches off: no communicator can be made"
        yield _remark(net, message, "one of the two", "drop NCCL_IB_DISABLE", "error")


def _useless(held: Mapping[str, Entry]) -> Iterator[Remark]:
    net = held.get("NCCL_NET")
    why = ""
    if _integer(held.get("NCCL_IB_DISABLE")):
        why = f"NCCL_IB_DISABLE={held['NCCL_IB_DISABLE'].value}"
    elif net is not None and net.value.lower() == "socket":
        why = "NCCL_NET=Socket"
    for name in _RDMA if why else ():
        if name in held:
            yield _remark(held[name], f"{why} switches RDMA off, so this line has no effect", "one of the two", "")
    if _integer(held.get("NCCL_P2P_DISABLE")) == 1 and "NCCL_P2P_LEVEL" in held:
        message = "NCCL_P2P_DISABLE=1 switches peer access off, so this line has no effect"
        yield _remark(held["NCCL_P2P_LEVEL"], message, "one of the two", "drop one of them")
    debug = held.get("NCCL_DEBUG")
    if debug is not None and debug.value.upper() in ("WARN", "VERSION") and "NCCL_DEBUG_SUBSYS" in held:
        message = f"subsystems speak from INFO on: no effect with NCCL_DEBUG={debug.value}"
        yield _remark(held["NCCL_DEBUG_SUBSYS"], message, "NCCL_DEBUG=INFO", "write NCCL_DEBUG=INFO, or drop the line")


def _gid_index(held: Mapping[str, Entry], versions: Versions) -> Iterator[Remark]:
    entry = held.get("NCCL_IB_GID_INDEX")
    if entry is None or versions.nccl is None or versions.nccl < (2, 21) or _integer(entry) == -1:
        return
    message = "from 2.21 NCCL finds the index of each port by itself; a fixed one is wrong where the tables differ"
    seen = f"{entry.name}={entry.value}"
    yield Remark("env.deprecated", entry.line, entry.name, message, seen, "no such line", "drop the line")


def _left_behind(entry: Entry) -> Iterator[Remark]:
    value, why = _LEFT.get(entry.name, (None, ""))
    if entry.value.upper() == _NOISY.get(entry.name):
        why = "every call is logged or compared with other ranks: slow"
    elif not why or not entry.value or (value is not None and value not in (entry.value, _integer(entry))):
        return
    message = f"left behind from a search for a fault? {why}"
    seen = f"{entry.name}={entry.value}"
    remedy = "drop the line, or set it for one job: NAME=value torchrun …"
    yield Remark("env.nccl_debug", entry.line, entry.name, message, seen, "not in a permanent file", remedy)


def _integer(entry: Entry | None) -> int | None:
    read = nccl_integer(entry.value) if entry is not None and entry.known else None
    return None if read is None else read.value


def _remark(entry: Entry, message: str, wanted: str, remedy: str, severity: Severity = "warning") -> Remark:
    seen = f"{entry.name}={entry.value}"
    return Remark("env.no_effect", entry.line, entry.name, message, seen, wanted, remedy, severity)
