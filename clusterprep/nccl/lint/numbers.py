"""Settings that are read as numbers: text that is none, suffixes, ranges. What is read is said, for it is no secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from clusterprep.model import Severity
from clusterprep.nccl.lint import LintEntry, Remark, Text, Versions
from clusterprep.nccl.lint.values import nccl_integer, range_of, torch_integer
from clusterprep.nccl.variables.variables import registry

_OFF = frozenset({"false", "no", "off", "f", "n", "none", "disable", "disabled", "never"})
_TORCH_WORDS = frozenset({"y", "yes", "1", "t", "true", "n", "no", "0", "f", "false"})
_OFI_WORDS = re.compile(r"(?i:true|false)|[+-]?\d+")
_SIZE = re.compile(r"[kmgt](?:i?b)?", re.IGNORECASE)
_EXACTLY_ONE = (
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
)  # src/graph/paths.cc and src/transport/shm.cc
_POWERS = {"k": 10, "m": 20, "g": 30, "t": 40}


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    for entry in text.entries:
        known = registry().get(entry.name)
        if known is None or not entry.known:
            continue
        for reads, rule in _READERS:
            if reads in _reader(known):
                yield from rule(entry, known)


def _reader(known: Mapping[str, Any]) -> str:
    if known["name"] == "NCCL_P2P_DISABLE":
        return "strtoll"
    if "int() is applied" in known["allowed_values"]:
        return "python int"
    return known["on_invalid"] or ""


def _nccl(entry: LintEntry, known: Mapping[str, Any]) -> Iterator[Remark]:
    read = nccl_integer(entry.value)
    allowed = known["allowed_values"]
    if known["name"] == "NCCL_CTA_POLICY" or not entry.value:
        return
    if read is None:
        yield _remark(entry, "a number of more than 64 bits: the default holds", allowed)
    elif not read.digits:
        if entry.value.strip().lower() not in _OFF:
            yield _remark(
                entry,
                "NCCL reads a number here, and text means 0",
                allowed,
                "error",
                remedy=_number_for(entry),
            )
    elif read.rest.strip():
        message = f"NCCL reads the digits and ignores what follows: this means {read.value}"
        yield _remark(
            entry,
            message,
            allowed,
            "error",
            remedy=_number_for(entry, read.value, read.rest if known["kind"] == "size" else ""),
        )
    elif read.octal:
        message = f"a leading 0 makes it octal: this means {read.value}"
        yield _remark(
            entry,
            message,
            allowed,
            remedy=f"write {entry.name}={entry.value.strip().lstrip('0') or '0'}",
        )
    elif not _sensible(known, read.value):
        yield _remark(entry, _outside(known, read.value), allowed)


def _sensible(known: Mapping[str, Any], value: int) -> bool:
    """On and off are any numbers, but for two."""
    if known["name"] in _EXACTLY_ONE:
        return value in (0, 1)
    if known["name"] in ("NCCL_NTHREADS", "NCCL_LL128_NTHREADS"):
        return value == -2 or (value % 32 == 0 and 64 <= value <= 640)
    if known["name"] == "NCCL_SOCKET_NTHREADS" and value == 0:
        return True  # what NCCL itself starts with on most networks: no thread of its own
    return known["kind"] == "bool" or range_of(known["allowed_values"]).holds(value)


def _outside(known: Mapping[str, Any], value: int) -> str:
    if known["name"] in _EXACTLY_ONE:
        return f"only exactly 1 switches it off: {value} does nothing"
    if known["name"] == "NCCL_SOCKET_NTHREADS" and value > 16:
        return "NCCL clamps it to 16, with a warning in every log"
    return "out of range: ignored, clamped or refused"


def _number_for(entry: LintEntry, value: int | None = None, rest: str = "") -> str:
    """What was meant, as the number that says it."""
    suffix = rest.strip()
    if value is not None and _SIZE.fullmatch(suffix):
        return f"write {entry.name}={value << _POWERS[suffix[0].lower()]}"
    if value is not None:
        return f"write {entry.name}={value}, if that is meant"
    return (
        f"write {entry.name}=1"
        if entry.value.strip().lower() in ("true", "yes", "on", "t", "y")
        else "write a number"
    )


def _torch_bool(entry: LintEntry, known: Mapping[str, Any]) -> Iterator[Remark]:
    if "only warns" in known["allowed_values"] or entry.value.lower() in _TORCH_WORDS:
        return
    message = "torch refuses any other word: RuntimeError when the process group is made"
    yield _remark(entry, message, "1 or 0", "error", f"write {entry.name}=1 or {entry.name}=0")


def _torch_integer(entry: LintEntry, known: Mapping[str, Any]) -> Iterator[Remark]:
    read = torch_integer(entry.value)
    wanted = "a number"
    if read is None:
        message = "torch wants a number: RuntimeError when the process group is made"
        yield _remark(entry, message, wanted, "error", remedy=_number_for(entry))
    elif read.rest.strip():
        message = f"torch reads the digits and ignores what follows: this means {read.value}"
        yield _remark(
            entry, message, wanted, remedy=f"write {entry.name}={read.value}, if that is meant"
        )


def _python(entry: LintEntry, known: Mapping[str, Any]) -> Iterator[Remark]:
    if entry.value.strip() not in ("0", "1"):
        message = "torchrun wants 0 or 1 here: ValueError at its start"
        yield _remark(entry, message, "0 or 1", "error", remedy=_number_for(entry))


def _plug_in(entry: LintEntry, known: Mapping[str, Any]) -> Iterator[Remark]:
    ends = "from 1.17 aws-ofi-nccl does not start with it, and NCCL falls back to TCP"
    allowed = known["allowed_values"].split(";")[0]
    if not entry.value:
        yield _remark(entry, f"an empty value: {ends}", allowed, "error", remedy="drop the line")
    elif known["kind"] == "bool" and not _OFI_WORDS.fullmatch(entry.value):
        yield _remark(
            entry, f"neither true nor false: {ends}", allowed, "error", f"write {entry.name}=1"
        )
    elif (
        known["kind"] in ("int", "size")
        and not re.fullmatch(r"[+-]?\d+", entry.value)
        and known["name"]
        not in (
            "OFI_NCCL_NET_LATENCY",
            "OFI_NCCL_TUNER_NET_LATENCY",
            "OFI_NCCL_TUNER_NET_COMP_OVERHEAD",
        )
    ):
        yield _remark(entry, f"no number: {ends}", allowed, "error", "write a number")


_READERS = (
    ("strtoll", _nccl),
    ("accepted words", _torch_bool),
    ("std::stoi", _torch_integer),
    ("python int", _python),
    ("from 1.17.0", _plug_in),
)


def _remark(
    entry: LintEntry, message: str, wanted: str, severity: Severity = "warning", remedy: str = ""
) -> Remark:
    seen = f"{entry.name}={entry.value}"
    return Remark("env.no_effect", entry.line, entry.name, message, seen, wanted, remedy, severity)
