"""Lists of interfaces and devices, whose grammar is NCCL's own (its socket.cc and linux.cc; gloo's device.cc)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_interface

from clusterprep.model import Severity
from clusterprep.nccl.interfaces import NameList, name_list
from clusterprep.nccl.lint import LintEntry, Remark, Text, Versions

_MOST = {"NCCL_SOCKET_IFNAME": 16, "NCCL_IB_HCA": 32, "NCCL_OOB_NET_IFNAME": 32}
_EXACT = {"GLOO_SOCKET_IFNAME": True, "TP_SOCKET_IFNAME": False}  # whether it may be a list
_LONGEST = 15  # characters of an interface's name (Linux, IFNAMSIZ)
_WILD = re.compile(r"[*?\[\]{}|$()\\+]")

Flaw = tuple[str, str, str]  # what is wrong, what is wanted, what to write


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    for entry in text.entries:
        if not entry.known or not entry.value:
            continue
        flaw = None
        if entry.name in _MOST:
            flaw = _list(entry.name, entry.value)
        elif entry.name in _EXACT:
            flaw = _exact(entry.value, many=_EXACT[entry.name])
        if flaw is not None:
            yield _remark(entry, *flaw)
        elif _only_loopback(entry):
            message = "loopback reaches no other node: right for a job on one node alone"
            yield _remark(entry, message, "the interface that reaches all nodes", "", "warning")


def _list(name: str, value: str) -> Flaw | None:
    """The first thing in a list that NCCL reads otherwise than it is meant."""
    wrong = _characters(value) or _separators(value)
    if wrong is not None:
        return wrong
    listed = name_list(value)
    items = list(listed.items)
    marks = "^" * listed.negated + "=" * listed.exact
    if any(item[0] in "^=" for item in items):
        cured = marks + ",".join(item.lstrip("^=") for item in items)
        return (
            "^ and = are read once, at the very start, and hold for the whole list",
            "one mark in front",
            cured,
        )
    if name == "NCCL_SOCKET_IFNAME" and len(value) == 1:
        return "a value of one character is ignored", "a longer name or prefix", ""
    if len(items) > _MOST[name]:
        return f"only the first {_MOST[name]} names are read", f"at most {_MOST[name]}", ""
    if name == "NCCL_SOCKET_IFNAME":
        return _interfaces(items, listed)
    return None


def _characters(value: str) -> Flaw | None:
    items = [item.strip(" \t^=") for item in value.split(",")]
    if re.search(r"\s", value):
        return (
            "a blank is taken for a part of the name, which matches nothing",
            "no blanks",
            re.sub(r"\s+", "", value),
        )
    if "'" in value or '"' in value:
        return "quotes are taken for a part of the name", "no quotes", re.sub("[\"']", "", value)
    if value.startswith("!"):
        return "! is not understood: ^ leaves names out", "^ in front", "^" + value[1:]
    if any(_address(item) for item in items):
        return "names of interfaces are wanted, not addresses", "names", ""
    if _WILD.search(value):
        cured = re.sub(r"[*?]+", "", value)
        plain = "" if _WILD.search(cured) else cured
        return (
            "wildcards and patterns match nothing: a name stands for all that start with it",
            "plain names",
            plain,
        )
    return None


def _address(text: str) -> bool:
    try:
        ip_interface(text.strip("[]"))
    except ValueError:
        return False
    return True


def _separators(value: str) -> Flaw | None:
    if not value.isascii():
        return (
            "a character that no name has, as word processors put in",
            "letters, digits and marks of ASCII",
            "",
        )
    if ";" in value:
        return "the names of a list are parted by commas", "commas", value.replace(";", ",")
    if strange := [item for item in value.split(",") if not re.fullmatch(r"[^:]*(:\d+)*", item)]:
        return (
            f"{strange[0]}: what follows a colon is read as the number of a port",
            "commas between names",
            "",
        )
    return None


def _interfaces(items: list[str], listed: NameList) -> Flaw | None:
    if listed.negated and listed.takes("lo"):
        message = "a ^ list replaces what NCCL leaves out by itself, so loopback comes first and is chosen: 127.0.0.1"
        return (
            message,
            "lo in the list",
            f"^{'=' if listed.exact else ''}{','.join(['lo', *items])}",
        )
    if long := [item for item in items if len(item.split(":")[0]) > _LONGEST]:
        return (
            f"{long[0][:40]} is longer than a name can be ({_LONGEST} characters)",
            "names of interfaces",
            "",
        )
    return None


def _exact(value: str, *, many: bool) -> Flaw | None:
    reader = "gloo" if many else "TensorPipe"
    if value[0] in "^=":
        return (
            f"{reader} knows neither ^ nor =, only whole names",
            "the whole name of one interface",
            "",
        )
    if not many and "," in value:
        return "TensorPipe takes one name", "one name", value.split(",", maxsplit=1)[0]
    if re.search(r"\s", value):
        return "a blank is taken for a part of the name", "no blanks", re.sub(r"\s+", "", value)
    if _WILD.search(value) or _address(value):
        return f"{reader} wants the whole name of an interface", "the whole name", ""
    return None


def _only_loopback(entry: LintEntry) -> bool:
    return entry.name in ("NCCL_SOCKET_IFNAME", *_EXACT) and entry.value.removeprefix("=") == "lo"


def _remark(
    entry: LintEntry, message: str, wanted: str, cured: str, severity: Severity = "error"
) -> Remark:
    seen = f"{entry.name}={entry.value}"
    remedy = f"write {entry.name}={cured}" if cured else ""
    return Remark("env.no_effect", entry.line, entry.name, message, seen, wanted, remedy, severity)
