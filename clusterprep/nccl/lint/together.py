"""What only several lines show: settings that undo each other, and doubles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from clusterprep.model import Severity
from clusterprep.nccl.interfaces import name_list
from clusterprep.nccl.lint import LintEntry, Remark, Text, Versions
from clusterprep.nccl.lint.values import nccl_integer

MOST_SOCKETS = 64  # of one connection (NCCL, net_socket.cc, MAX_SOCKETS)
_COUNTED = (2, 30)  # NCCL from which ranks compare how many network devices they have (src/init.cc)

_RDMA = (
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_TC",
    "NCCL_IB_SL",
    "NCCL_IB_TIMEOUT",
    "NCCL_IB_RETRY_CNT",
)
_PAIRS = (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"))


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    yield from _doubles(text)
    held = text.held("file")  # two branches of a script never hold together
    yield from _sockets(held)
    yield from _contradictions(held)
    yield from _useless(held)
    yield from _gid_index(text.held(), versions)


def hints(text: Text, versions: Versions) -> tuple[str, ...]:
    """What is worth knowing and no fault."""
    held = text.held()
    if "NCCL_IB_HCA" not in held or _integer(held.get("NCCL_IB_DISABLE")):
        return ()
    said = []
    if "NCCL_NET" not in held:
        said.append(
            "NCCL_NET=IB would turn a list of devices that matches nothing into an error; without it NCCL uses TCP"
        )
    if names := _prefixes(held["NCCL_IB_HCA"]):
        said.append(
            f"NCCL matches devices by prefix: {names[0]} takes {names[0]}0 too, where there is one; a leading = asks "
            "for whole names"
        )
    if (
        versions.nccl is not None
        and versions.nccl >= _COUNTED
        and "NCCL_IGNORE_NET_MISMATCH" not in held
    ):
        said.append(
            "NCCL_IGNORE_NET_MISMATCH=0, for a run that verifies, would turn ranks with fewer network devices than "
            "others into an error; without it NCCL says so at INFO alone"
        )
    return tuple(said)


def _prefixes(entry: LintEntry) -> list[str]:
    """Names of a list by which NCCL may take a device with one more digit, and that is not named itself."""
    listed = name_list(entry.value)
    if not entry.known or listed.negated or listed.exact:
        return []
    names = [item.partition(":")[0] for item in listed.items]
    return [name for name in names if re.search(r"_[a-z]*[1-9]$", name)]


def _doubles(text: Text) -> Iterator[Remark]:
    """Only values that differ: a line written twice does no harm, and one that a shell makes may add to the first."""
    first_wins = text.dialect == "nccl.conf"
    before: dict[str, LintEntry] = {}
    for entry in text.entries:
        if (
            entry.lost
            or entry.scope != "file"
            or not entry.name.startswith(("NCCL_", "TORCH_", "OFI_", "GLOO_"))
        ):
            continue
        other = before.get(entry.name)
        if other is not None and other.value != entry.value and (entry.known or first_wins):
            winner, loser = (other, entry) if first_wins else (entry, other)
            rule = "the first one wins in nccl.conf" if first_wins else "the last one wins"
            message = f"line {winner.line} sets it to {winner.value} and holds: {rule}"
            yield _remark(loser, message, "one line for each name", f"drop line {loser.line}")
        if other is None or not first_wins:
            before[entry.name] = entry


def _sockets(held: Mapping[str, LintEntry]) -> Iterator[Remark]:
    threads, sockets = held.get("NCCL_SOCKET_NTHREADS"), held.get("NCCL_NSOCKS_PERTHREAD")
    count, each = _integer(threads), _integer(sockets)
    if threads and sockets and count and each and min(count, 16) * each > MOST_SOCKETS:
        later = max(threads, sockets, key=lambda entry: entry.line)
        seen = f"NCCL_SOCKET_NTHREADS={threads.value} × NCCL_NSOCKS_PERTHREAD={sockets.value}"
        message = f"more than {MOST_SOCKETS} sockets for one connection: NCCL cuts the sockets per thread, with a warning"
        fewer = max(MOST_SOCKETS // min(count, 16), 1)
        remedy = f"write NCCL_NSOCKS_PERTHREAD={fewer}"
        wanted = f"a product of {MOST_SOCKETS} at most"
        yield Remark("env.no_effect", later.line, later.name, message, seen, wanted, remedy)


def _contradictions(held: Mapping[str, LintEntry]) -> Iterator[Remark]:
    for low, high in _PAIRS:
        least, most = _integer(held.get(low)), _integer(held.get(high))
        if least is not None and most is not None and least > most > 0:
            later = max(held[low], held[high], key=lambda entry: entry.line)
            message = (
                f"{low}={least} and {high}={most} contradict each other: one of them does not hold"
            )
            yield _remark(later, message, f"{low} ≤ {high}", f"drop {later.name}")
    net, off = held.get("NCCL_NET"), _integer(held.get("NCCL_IB_DISABLE"))
    if net is not None and net.value.upper() == "IB" and off:
        message = "NCCL_NET=IB wants what NCCL_IB_DISABLE switches off: no communicator can be made"
        yield _remark(net, message, "one of the two", "drop NCCL_IB_DISABLE", "error")


def _useless(held: Mapping[str, LintEntry]) -> Iterator[Remark]:
    net = held.get("NCCL_NET")
    why = ""
    if _integer(held.get("NCCL_IB_DISABLE")):
        why = f"NCCL_IB_DISABLE={held['NCCL_IB_DISABLE'].value}"
    elif net is not None and net.value.lower() == "socket":
        why = "NCCL_NET=Socket"
    for name in _RDMA if why else ():
        if name in held:
            yield _remark(
                held[name],
                f"{why} switches RDMA off, so this line has no effect",
                "one of the two",
                "",
            )
    if _integer(held.get("NCCL_P2P_DISABLE")) == 1 and "NCCL_P2P_LEVEL" in held:
        message = "NCCL_P2P_DISABLE=1 switches peer access off, so this line has no effect"
        yield _remark(held["NCCL_P2P_LEVEL"], message, "one of the two", "drop one of them")
    debug = held.get("NCCL_DEBUG")
    if (
        debug is not None
        and debug.value.upper() in ("WARN", "VERSION")
        and "NCCL_DEBUG_SUBSYS" in held
    ):
        message = f"subsystems speak from INFO on: no effect with NCCL_DEBUG={debug.value}"
        yield _remark(
            held["NCCL_DEBUG_SUBSYS"],
            message,
            "NCCL_DEBUG=INFO",
            "write NCCL_DEBUG=INFO, or drop the line",
        )


def _gid_index(held: Mapping[str, LintEntry], versions: Versions) -> Iterator[Remark]:
    entry = held.get("NCCL_IB_GID_INDEX")
    if entry is None or versions.nccl is None or versions.nccl < (2, 21) or _integer(entry) == -1:
        return
    message = "from 2.21 NCCL finds the index of each port by itself; a fixed one is wrong where the tables differ"
    seen = f"{entry.name}={entry.value}"
    yield Remark(
        "env.deprecated", entry.line, entry.name, message, seen, "no such line", "drop the line"
    )


def _integer(entry: LintEntry | None) -> int | None:
    read = nccl_integer(entry.value) if entry is not None and entry.known else None
    return None if read is None else read.value


def _remark(
    entry: LintEntry, message: str, wanted: str, remedy: str, severity: Severity = "warning"
) -> Remark:
    seen = f"{entry.name}={entry.value}"
    return Remark("env.no_effect", entry.line, entry.name, message, seen, wanted, remedy, severity)
