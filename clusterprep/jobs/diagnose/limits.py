"""Which time limit fired: its value, its default, and where it is set."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from clusterprep.jobs.diagnose.model import Found, LogFile, LogLine

NEEDLES = (
    "timeout(ms)",
    "waiting for clients",
    "client socket has timed out",
    "rendezvoustimeouterror",
    "watchdog got stuck",
    "timed out waiting",
    "wait timeout after",
    "exceeded error retry count",
    "pytorch version",
    "torch version",
)
_GROUP = re.compile(r"Timeout\(ms\)=(?P<ms>\d+)", re.IGNORECASE)
_CLIENTS = re.compile(r"timed out after (?P<s>\d+) seconds waiting for clients", re.IGNORECASE)
_SOCKET = re.compile(r"client socket has timed out after (?P<n>\d+) ?(?P<unit>ms|s)", re.IGNORECASE)
_JOIN = re.compile(r"RendezvousTimeoutError", re.IGNORECASE)
_STUCK = re.compile(r"watchdog got stuck for (?P<s>\d+) seconds", re.IGNORECASE)
_GLOO = re.compile(r"Timed out waiting (?P<ms>\d+)ms for", re.IGNORECASE)
_KEY = re.compile(r"wait timeout after (?P<ms>\d+)ms", re.IGNORECASE)
_RETRIES = re.compile(r"exceeded error retry count after (?P<n>\d+)", re.IGNORECASE)
_COMPLETION = re.compile(
    r"Got completion.*(?:error 12|status=(?:\w+\()?12|RETRY_EXC)", re.IGNORECASE
)
_TORCH = re.compile(
    r"\b(?:py)?torch(?:[ _]version)?[ =:v]+(?P<major>\d+)\.(?P<minor>\d+)", re.IGNORECASE
)

_SET = "it is set by init_process_group(timeout=…), in Lightning by DDPStrategy(timeout=…), in Transformers by ddp_timeout"


def told(found: Sequence[Found], log: LogFile) -> list[Found]:
    """The causes, each with the limit that fired in one of its lines; else the first one with the log's limit."""
    torch = _torch(log)
    fired = {(line.file, line.number): said for line, said in _fired(log, torch)}
    rows = [
        _with(one, [fired[at] for line in one.lines if (at := (line.file, line.number)) in fired])
        for one in found
    ]
    if rows and fired and rows[0].severity != "benign" and "limit" not in rows[0].message:
        rows[0] = _with(rows[0], list(fired.values()))
    return rows


def _with(one: Found, said: list[str]) -> Found:
    return (
        replace(one, message=f"{one.message} {said[0]}")
        if said and said[0] not in one.message
        else one
    )


def _torch(log: LogFile) -> tuple[int, int] | None:
    for line in log.lines:
        if found := _TORCH.search(line.said):
            return int(found["major"]), int(found["minor"])
    return None


def _fired(log: LogFile, torch: tuple[int, int] | None) -> Iterator[tuple[LogLine, str]]:
    for line in log.lines:
        said = _sentence(line.said, torch)
        if said:
            yield line, said


def _sentence(said: str, torch: tuple[int, int] | None) -> str:
    if found := _GROUP.search(said):
        return _group(int(found["ms"]) // 1000, torch)
    if found := _CLIENTS.search(said):
        return _store(int(found["s"]))
    if found := _SOCKET.search(said):
        seconds = int(found["n"]) // (1000 if found["unit"] == "ms" else 1)
        return _store(seconds)
    if found := _KEY.search(said):
        return _store(int(found["ms"]) // 1000)
    if found := _GLOO.search(said):
        return f"The limit that fired is that of a gloo group: {int(found['ms']) // 1000} s, by default 1800 s; {_SET}."
    if found := _STUCK.search(said):
        default = "600 s" if torch and torch <= (2, 5) else "480 s (600 s up to torch 2.5)"
        name = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"
        return f"The limit that fired is the watchdog's heartbeat: {found['s']} s, by default {default}; {name} sets it."
    return _others(said)


def _others(said: str) -> str:
    if _JOIN.search(said):
        return (
            "The limit that fired is torchrun's for joining, by default 600 s; --rdzv-conf join_timeout=… sets it "
            "(timeout=… "
            "with the static back end)."
        )
    if found := _RETRIES.search(said):
        return (
            f"The limit that fired is NCCL's number of connection attempts: {found['n']}, by default 34 with pauses of "
            f"about a "
            "minute in all; NCCL_SOCKET_RETRY_CNT and NCCL_SOCKET_RETRY_SLEEP_MSEC set it."
        )
    if _COMPLETION.search(said):
        return (
            "The limit that fired is the card's: NCCL_IB_TIMEOUT (by default 20, 18 before NCCL 2.23) with "
            "NCCL_IB_RETRY_CNT (7)."
        )
    return ""


def _group(seconds: int, torch: tuple[int, int] | None) -> str:
    usual = 1800 if torch is not None and torch < (2, 2) else 600
    of = f"of torch {torch[0]}.{torch[1]}" if torch else "of torch since 2.2"
    default = (
        f"the default {of}" if seconds == usual else f"not the default {of}, which is {usual} s"
    )
    older = " (before 2.2 it was the default)" if seconds == 1800 and torch is None else ""
    return (
        f"The limit that fired is the NCCL process group's: {seconds} s, {default}{older}; {_SET}."
    )


def _store(seconds: int) -> str:
    seconds = next(
        (usual for usual in (300, 600, 900, 1800) if 0 <= seconds - usual <= 2), seconds
    )  # 601 is 600 and a bit
    known = {
        1800: "the default of Lightning, of gloo groups, and of torch before 2.2",
        600: "the default of an NCCL group since torch 2.2, and of torchrun's join",
        300: "the default of a bare TCPStore",
        900: "that of torchrun's own store",
    }
    note = known.get(seconds, "not a default, so the program sets it")
    return f"The limit that fired is the store's: {seconds} s, {note}; {_SET}."
