"""Says which time limit fired: its value, its default, and where it is set.

A limit that a line only mentions has not fired: «Collective WorkNCCL(…, Timeout(ms)=600000) raised
the following async exception» and «initialization options: …, TIMEOUT(ms): 600000» are no events.
`clusterprep explain time-limits` has all limits with their sources (cli/commands/time_limits.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from clusterprep.jobs.diagnose.model import DiagnosedCause, LogFile, Place

NEEDLES = (
    "before timing out",
    "blocking wait",
    "waiting for clients",
    "client socket has timed out",
    "rendezvoustimeouterror",
    "watchdog got stuck",
    "timed out waiting",
    "wait timeout after",
    "failed to pass monitoredbarrier",
    "hccl fftsplus task timeout",
    "notify register times out",
    "exceeded error retry count",
    "pytorch version",
    "torch version",
)
_GROUP = re.compile(
    r"Work(?P<library>[A-Z]*C[CN]*L)\(.*?Timeout\(ms\)=(?P<ms>\d+)\)? ?"
    r"(?:ran for|timed out in blocking wait)",
    re.IGNORECASE,
)
_STORE_CLIENTS = re.compile(
    r"timed out after (?P<s>\d+) seconds waiting for clients", re.IGNORECASE
)
_STORE_SOCKET = re.compile(
    r"client socket has timed out after (?P<n>\d+) ?(?P<unit>ms|s)", re.IGNORECASE
)
_STORE_KEY = re.compile(r"wait timeout after (?P<ms>\d+)ms", re.IGNORECASE)
_TORCHRUN_JOIN = re.compile(r"RendezvousTimeoutError", re.IGNORECASE)
_WATCHDOG = re.compile(r"watchdog got stuck for (?P<s>\d+) seconds", re.IGNORECASE)
_MONITORED = re.compile(r"failed to pass monitoredBarrier in (?P<ms>\d+) ms", re.IGNORECASE)
_HCCL_TASK = re.compile(
    r"hccl fftsplus task timeout occurred.*timeout:(?P<limit>\w+)", re.IGNORECASE
)
_HCCL_NOTIFY = re.compile(r"Notify register times out", re.IGNORECASE)
_GLOO = re.compile(r"Timed out waiting (?P<ms>\d+)ms for", re.IGNORECASE)
_NCCL_CONNECT = re.compile(r"exceeded error retry count after (?P<n>\d+)", re.IGNORECASE)
_RDMA_COMPLETION = re.compile(
    r"Got completion.*(?:error 12|status=(?:\w+\()?12|RETRY_EXC)", re.IGNORECASE
)
_TORCH_VERSION = re.compile(
    r"\b(?:py)?torch(?:[ _]version)?[ =:v]+(?P<major>\d+)\.(?P<minor>\d+)", re.IGNORECASE
)

_FIRED = "limit that fired"  # words of every sentence here
_WHERE_SET = (
    "it is set by init_process_group(timeout=…), in Lightning by DDPStrategy(timeout=…), "
    "in Transformers by ddp_timeout"
)
_STORE_DEFAULTS = {  # seconds
    1800: "the default of Lightning, of gloo groups, and of torch before 2.2",
    600: "the default of an NCCL group since torch 2.2, and of torchrun's join",
    300: "the default of a bare TCPStore",
    900: "that of torchrun's own store",
}


def with_limits(causes: Sequence[DiagnosedCause], log: LogFile) -> list[DiagnosedCause]:
    """Return the causes, each with the limit that fired in one of its lines added to its message.

    If the first cause has no such line, the first limit of the log is added to it.
    """
    limits = _limits_by_line(log)
    rows: list[DiagnosedCause] = []
    for found in causes:
        places = [line.place for line in found.lines]
        own_limits = [limits[place] for place in places if place in limits]
        rows.append(_with_first(found, own_limits))
    if not rows or not limits:
        return rows
    top = rows[0]
    if top.severity != "benign" and _FIRED not in top.message:
        rows[0] = _with_first(top, list(limits.values()))
    return rows


def _with_first(found: DiagnosedCause, limits: Sequence[str]) -> DiagnosedCause:
    if not limits or limits[0] in found.message:
        return found
    return replace(found, message=f"{found.message} {limits[0]}")


_TorchVersion = tuple[int, int]


def _limits_by_line(log: LogFile) -> dict[Place, str]:
    """Return a sentence about the limit for each line that tells of one."""
    torch = _torch_version(log)
    limits: dict[Place, str] = {}
    for line in log.lines_with(*NEEDLES, "got completion"):
        sentence = _sentence(line.message, torch)
        if sentence:
            limits[line.place] = sentence
    return limits


def _torch_version(log: LogFile) -> _TorchVersion | None:
    for line in log.lines_with("torch"):
        match = _TORCH_VERSION.search(line.message)
        if match:
            return int(match["major"]), int(match["minor"])
    return None


# ---------------------------------------------------------------- one message


def _sentence(message: str, torch: _TorchVersion | None) -> str:
    """Return a sentence about the limit that a message tells of, or an empty one."""
    if match := _GROUP.search(message):
        seconds = int(match["ms"]) // 1000
        return _group(match["library"].upper(), seconds, torch)
    seconds_of_store = _seconds_of_store(message)
    if seconds_of_store is not None:
        return _store(seconds_of_store)
    if match := _GLOO.search(message):
        seconds = int(match["ms"]) // 1000
        return (
            f"The limit that fired is that of a gloo group: {seconds} s, by default 1800 s; "
            f"{_WHERE_SET}."
        )
    if match := _MONITORED.search(message):
        seconds = int(match["ms"]) // 1000
        return (
            f"The limit that fired is that of monitored_barrier: {seconds} s, by default that of "
            "its gloo group, 1800 s; monitored_barrier(timeout=…) sets it."
        )
    if match := _WATCHDOG.search(message):
        return _heartbeat(match["s"], torch)
    return _limit_outside_torch(message)


def _seconds_of_store(message: str) -> int | None:
    if match := _STORE_CLIENTS.search(message):
        return int(match["s"])
    if match := _STORE_SOCKET.search(message):
        per_second = 1000 if match["unit"] == "ms" else 1
        return int(match["n"]) // per_second
    if match := _STORE_KEY.search(message):
        return int(match["ms"]) // 1000
    return None


def _limit_outside_torch(message: str) -> str:
    if _TORCHRUN_JOIN.search(message):
        return (
            "The limit that fired is torchrun's for joining, by default 600 s; "
            "--rdzv-conf join_timeout=… sets it (timeout=… with the static back end)."
        )
    if match := _NCCL_CONNECT.search(message):
        attempts = match["n"]
        return (
            f"The limit that fired is NCCL's number of connection attempts: {attempts}, "
            "by default 34 with pauses of about a minute in all; "
            "NCCL_SOCKET_RETRY_CNT and NCCL_SOCKET_RETRY_SLEEP_MSEC set it."
        )
    if _HCCL_TASK.search(message) or _HCCL_NOTIFY.search(message):
        return "The limit that fired is HCCL's for one task; HCCL_EXEC_TIMEOUT sets it."
    if _RDMA_COMPLETION.search(message):
        return (
            "The limit that fired is the card's: NCCL_IB_TIMEOUT (by default 20, 18 before "
            "NCCL 2.23) with NCCL_IB_RETRY_CNT (7)."
        )
    return ""


def _heartbeat(seconds: str, torch: _TorchVersion | None) -> str:
    has_old_default = torch is not None and torch <= (2, 5)
    default = "600 s" if has_old_default else "480 s (600 s up to torch 2.5)"
    return (
        f"The limit that fired is the watchdog's heartbeat: {seconds} s, by default {default}; "
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC sets it."
    )


def _group(library: str, seconds: int, torch: _TorchVersion | None) -> str:
    """Return the sentence about the limit of a process group over NCCL or another library."""
    if library != "NCCL":
        return (
            f"The limit that fired is that of the {library} process group: {seconds} s; "
            f"{_WHERE_SET}."
        )
    has_old_default = torch is not None and torch < (2, 2)
    usual = 1800 if has_old_default else 600
    release = "since 2.2"
    if torch is not None:
        major, minor = torch
        release = f"{major}.{minor}"
    default = f"the default of torch {release}"
    if seconds != usual:
        default = f"not {default}, which is {usual} s"
    if torch is None and seconds == 1800:
        default += " (before 2.2 it was the default)"
    return (
        f"The limit that fired is the NCCL process group's: {seconds} s, {default}; {_WHERE_SET}."
    )


def _store(seconds: int) -> str:
    # The store says when it gave up, which is up to 2 s after the limit.
    for default in sorted(_STORE_DEFAULTS):
        if default <= seconds <= default + 2:
            seconds = default
    note = _STORE_DEFAULTS.get(seconds, "not a default, so the program sets it")
    return f"The limit that fired is the store's: {seconds} s, {note}; {_WHERE_SET}."
