"""Settings that undo each other, and names that are set twice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from clusterprep.nccl.interfaces import name_list
from clusterprep.nccl.lint import DROP, LintEntry, Remark, Text, Versions, no_effect
from clusterprep.nccl.lint.values import nccl_integer
from clusterprep.remedies import sentence

MOST_SOCKETS = 64  # of one connection (NCCL, net_socket.cc, MAX_SOCKETS)
MOST_THREADS = 16  # of sockets (NCCL, net_socket.cc, MAX_THREADS)
# From this NCCL on ranks compare how many network devices they have (src/init.cc).
_COUNTED = (2, 30)
# From this NCCL on each port has its own GID index.
_FINDS_GID = (2, 21)

_RDMA = (
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_TC",
    "NCCL_IB_SL",
    "NCCL_IB_TIMEOUT",
    "NCCL_IB_RETRY_CNT",
)
_PREFIXES = ("NCCL_", "TORCH_", "OFI_", "GLOO_")
_PAIRS = (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"))
_NUMBERED = re.compile(r"_[a-z]*[1-9]$")

Held = Mapping[str, LintEntry]  # settings by name


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    """Yield a remark for each setting that another one undoes."""
    yield from _doubles(text)
    held = text.held("file")  # two branches of a script never hold together
    yield from _sockets(held)
    yield from _contradictions(held)
    yield from _without_cumem(held)
    yield from _useless(held)
    yield from _gid_index(text.held(), versions)


def hints(text: Text, versions: Versions) -> tuple[str, ...]:
    """Return what is worth knowing about a list of RDMA devices and is no fault."""
    held = text.held()
    if "NCCL_IB_HCA" not in held or _integer(held, "NCCL_IB_DISABLE"):
        return ()
    texts = []
    if "NCCL_NET" not in held:
        texts.append(
            "NCCL_NET=IB would turn a list of devices that matches nothing into an error; "
            "without it NCCL uses TCP"
        )
    prefix = _first_prefix(held["NCCL_IB_HCA"])
    if prefix is not None:
        texts.append(
            f"NCCL matches devices by prefix: {prefix} takes {prefix}0 too, where there is one; "
            "a leading = asks for whole names"
        )
    counts_devices = versions.nccl is not None and versions.nccl >= _COUNTED
    if counts_devices and "NCCL_IGNORE_NET_MISMATCH" not in held:
        texts.append(
            "NCCL_IGNORE_NET_MISMATCH=0, for a run that verifies, would turn ranks with fewer "
            "network devices than others into an error; without it NCCL says so at INFO alone"
        )
    return tuple(texts)


def _first_prefix(entry: LintEntry) -> str | None:
    """Return the first name by which NCCL may take a device with one more digit, or None."""
    listed = name_list(entry.value)
    if not entry.known or listed.negated or listed.exact:
        return None
    for item in listed.items:
        name = item.partition(":")[0]
        if _NUMBERED.search(name):
            return name
    return None


def _doubles(text: Text) -> Iterator[Remark]:
    """Yield settings that another value of the same name overrides.

    A line written twice does no harm, and a value that a shell computes may add to the first.
    """
    first_wins = text.dialect == "nccl.conf"
    rule = "the first one wins in nccl.conf" if first_wins else "the last one wins"
    previous: dict[str, LintEntry] = {}
    for entry in text.entries:
        if entry.lost or entry.scope != "file" or not entry.name.startswith(_PREFIXES):
            continue
        other = previous.get(entry.name)
        if other is None:
            previous[entry.name] = entry
            continue
        winner, loser = (other, entry) if first_wins else (entry, other)
        if other.value != entry.value and (entry.known or first_wins):
            message = f"line {winner.line} sets it to {winner.value} and holds: {rule}"
            yield no_effect(
                loser,
                message,
                "one line for each name",
                sentence("drop line {number}", number=loser.line),
            )
        previous[entry.name] = winner


def _sockets(held: Held) -> Iterator[Remark]:
    """Yield a remark if threads and sockets per thread make more sockets than NCCL opens."""
    threads = _integer(held, "NCCL_SOCKET_NTHREADS")
    sockets = _integer(held, "NCCL_NSOCKS_PERTHREAD")
    if not threads or not sockets:
        return
    threads = min(threads, MOST_THREADS)
    if threads * sockets <= MOST_SOCKETS:
        return
    entries = held["NCCL_SOCKET_NTHREADS"], held["NCCL_NSOCKS_PERTHREAD"]
    seen = " × ".join(f"{entry.name}={entry.value}" for entry in entries)
    later = _later(*entries)
    message = (
        f"more than {MOST_SOCKETS} sockets for one connection: "
        "NCCL cuts the sockets per thread, with a warning"
    )
    wanted = f"a product of {MOST_SOCKETS} at most"
    fewer = max(MOST_SOCKETS // threads, 1)
    remedy = sentence("write NCCL_NSOCKS_PERTHREAD={fewer}", fewer=fewer)
    yield Remark(
        "env.no_effect",
        later.line,
        later.name,
        message,
        seen,
        wanted,
        remedy,
    )


def _later(first: LintEntry, second: LintEntry) -> LintEntry:
    return first if first.line >= second.line else second


def _contradictions(held: Held) -> Iterator[Remark]:
    """Yield a remark for each two settings that cannot both hold."""
    for low_name, high_name in _PAIRS:
        low, high = _integer(held, low_name), _integer(held, high_name)
        if low is None or high is None:
            continue
        if low > high > 0:
            later = _later(held[low_name], held[high_name])
            values = f"{low_name}={low} and {high_name}={high}"
            message = f"{values} contradict each other: one of them does not hold"
            yield no_effect(
                later,
                message,
                f"{low_name} ≤ {high_name}",
                sentence("drop {name}", name=later.name),
            )
    net = held.get("NCCL_NET")
    if net is not None and net.value.upper() == "IB" and _integer(held, "NCCL_IB_DISABLE"):
        message = "NCCL_NET=IB wants what NCCL_IB_DISABLE switches off: no communicator can be made"
        yield no_effect(
            net,
            message,
            "one of the two",
            sentence("drop NCCL_IB_DISABLE"),
        )


def _without_cumem(held: Held) -> Iterator[Remark]:
    """Yield a remark where NVLink between nodes is forced and the allocator that it needs is off.

    ncclMnnvlCheck of src/mnnvl.cc goes no further without cuMem.
    """
    forced = held.get("NCCL_MNNVL_ENABLE")
    if forced is None or _integer(held, "NCCL_MNNVL_ENABLE") != 1:
        return
    if "NCCL_CUMEM_ENABLE" in held and _integer(held, "NCCL_CUMEM_ENABLE") == 0:
        message = (
            "NCCL_CUMEM_ENABLE=0 switches off what NVLink between nodes needs, "
            "so NCCL_MNNVL_ENABLE=1 cannot be had"
        )
        remedy = sentence("drop NCCL_CUMEM_ENABLE")
        yield no_effect(forced, message, "one of the two", remedy)


def _useless(held: Held) -> Iterator[Remark]:
    """Yield a remark for each setting of something that another one switches off."""
    switch = _rdma_switch(held)
    if switch:
        message = f"{switch} switches RDMA off, so this line has no effect"
        for name in _RDMA:
            if name in held:
                yield no_effect(held[name], message, "one of the two")
    level = held.get("NCCL_P2P_LEVEL")
    if level is not None and _integer(held, "NCCL_P2P_DISABLE") == 1:
        message = "NCCL_P2P_DISABLE=1 switches peer access off, so this line has no effect"
        yield no_effect(level, message, "one of the two", sentence("drop one of them"))
    debug, subsystems = held.get("NCCL_DEBUG"), held.get("NCCL_DEBUG_SUBSYS")
    if debug is None or subsystems is None:
        return
    if debug.value.upper() in ("WARN", "VERSION"):
        message = f"subsystems speak from INFO on: no effect with NCCL_DEBUG={debug.value}"
        remedy = sentence("write NCCL_DEBUG=INFO, or drop the line")
        yield no_effect(subsystems, message, "NCCL_DEBUG=INFO", remedy)


def _rdma_switch(held: Held) -> str:
    """Return the setting that switches RDMA off; empty if there is none."""
    if _integer(held, "NCCL_IB_DISABLE"):
        return f"NCCL_IB_DISABLE={held['NCCL_IB_DISABLE'].value}"
    net = held.get("NCCL_NET")
    if net is not None and net.value.lower() == "socket":
        return "NCCL_NET=Socket"
    return ""


def _gid_index(held: Held, versions: Versions) -> Iterator[Remark]:
    """Yield a remark about a fixed index for an NCCL that finds it by itself."""
    entry = held.get("NCCL_IB_GID_INDEX")
    if entry is None or versions.nccl is None or versions.nccl < _FINDS_GID:
        return
    if _integer(held, "NCCL_IB_GID_INDEX") == -1:
        return
    message = (
        "from 2.21 NCCL finds the index of each port by itself; "
        "a fixed one is wrong where the tables differ"
    )
    seen = f"{entry.name}={entry.value}"
    wanted, remedy = "no such line", DROP
    yield Remark(
        "env.deprecated",
        entry.line,
        entry.name,
        message,
        seen,
        wanted,
        remedy,
    )


def _integer(held: Held, name: str) -> int | None:
    """Return the number that NCCL reads of a setting; None if it is not set or not known."""
    entry = held.get(name)
    if entry is None or not entry.known:
        return None
    number = nccl_integer(entry.value)
    return None if number is None else number.value
