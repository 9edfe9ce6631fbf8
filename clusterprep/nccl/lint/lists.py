"""Lists of interfaces and devices.

Their grammar is that of NCCL's socket.cc and linux.cc, and of gloo's device.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_interface

from clusterprep.nccl.interfaces import NameList, name_list
from clusterprep.nccl.lint import LintEntry, Remark, Text, Versions, no_effect, write

# How many names NCCL reads of a list.
_MOST = {"NCCL_SOCKET_IFNAME": 16, "NCCL_IB_HCA": 32, "NCCL_OOB_NET_IFNAME": 32}
# Variables with whole names, not prefixes, and whether they may be a list.
_EXACT = {"GLOO_SOCKET_IFNAME": True, "TP_SOCKET_IFNAME": False}
_LONGEST = 15  # characters of an interface's name (Linux, IFNAMSIZ)
_WILD = re.compile(r"[*?\[\]{}|$()\\+]")
_NAME_AND_PORTS = re.compile(r"[^:]*(:\d+)*")

Flaw = tuple[str, str, str]  # what is wrong, what is wanted, what to write


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    """Yield what NCCL, gloo and TensorPipe read otherwise than it was meant in a list."""
    for entry in text.entries:
        if not entry.known or not entry.value:
            continue
        flaw = _flaw(entry)
        if flaw is not None:
            message, wanted, cured = flaw
            yield no_effect(
                entry,
                message,
                wanted,
                write(entry, cured),
            )
        elif _is_only_loopback(entry):
            message = "loopback reaches no other node: right for a job on one node alone"
            yield no_effect(entry, message, "the interface that reaches all nodes")


def _flaw(entry: LintEntry) -> Flaw | None:
    if entry.name in _MOST:
        return _list_flaw(entry.name, entry.value)
    if entry.name in _EXACT:
        return _exact_flaw(entry.value, many=_EXACT[entry.name])
    return None


def _list_flaw(name: str, value: str) -> Flaw | None:
    """Return the first thing in a list that NCCL reads otherwise than it is meant."""
    flaw = _wrong_characters(value) or _wrong_separators(value)
    if flaw is not None:
        return flaw
    listed = name_list(value)
    if any(item[0] in "^=" for item in listed.items):
        marks = "^" * listed.negated + "=" * listed.exact
        cured = marks + ",".join(item.lstrip("^=") for item in listed.items)
        message = "^ and = are read once, at the very start, and hold for the whole list"
        return message, "one mark in front", cured
    if name == "NCCL_SOCKET_IFNAME" and len(value) == 1:
        return "a value of one character is ignored", "a longer name or prefix", ""
    most = _MOST[name]
    if len(listed.items) > most:
        return f"only the first {most} names are read", f"at most {most}", ""
    if name == "NCCL_SOCKET_IFNAME":
        return _interfaces_flaw(listed)
    return None


def _wrong_characters(value: str) -> Flaw | None:
    """Return the flaw of a list with a character that no name has, or None."""
    if re.search(r"\s", value):
        message = "a blank is taken for a part of the name, which matches nothing"
        return message, "no blanks", _without_blanks(value)
    if "'" in value or '"' in value:
        cured = re.sub("[\"']", "", value)
        return "quotes are taken for a part of the name", "no quotes", cured
    if value.startswith("!"):
        return "! is not understood: ^ leaves names out", "^ in front", f"^{value[1:]}"
    if any(_is_address(item.strip(" \t^=")) for item in value.split(",")):
        return "names of interfaces are wanted, not addresses", "names", ""
    if _WILD.search(value):
        cured = re.sub(r"[*?]+", "", value)
        if _WILD.search(cured):
            cured = ""
        message = "wildcards and patterns match nothing: a name stands for all that start with it"
        return message, "plain names", cured
    return None


def _without_blanks(value: str) -> str:
    return re.sub(r"\s+", "", value)


def _is_address(text: str) -> bool:
    try:
        ip_interface(text.strip("[]"))
    except ValueError:
        return False
    return True


def _wrong_separators(value: str) -> Flaw | None:
    """Return the flaw of a list that is parted by something else than commas, or None."""
    if not value.isascii():
        message = "a character that no name has, as word processors put in"
        return message, "letters, digits and marks of ASCII", ""
    if ";" in value:
        return "the names of a list are parted by commas", "commas", value.replace(";", ",")
    for item in value.split(","):
        if not _NAME_AND_PORTS.fullmatch(item):
            message = f"{item}: what follows a colon is read as the number of a port"
            return message, "commas between names", ""
    return None


def _interfaces_flaw(listed: NameList) -> Flaw | None:
    """Return the flaw of a list of interfaces whose characters are right, or None."""
    if listed.negated and listed.takes("lo"):
        message = (
            "a ^ list replaces what NCCL leaves out by itself, "
            "so loopback comes first and is chosen: 127.0.0.1"
        )
        names = ",".join(["lo", *listed.items])
        mark = "^=" if listed.exact else "^"
        return message, "lo in the list", mark + names
    for item in listed.items:
        name = item.partition(":")[0]
        if len(name) > _LONGEST:
            message = f"{item[:40]} is longer than a name can be ({_LONGEST} characters)"
            return message, "names of interfaces", ""
    return None


def _exact_flaw(value: str, *, many: bool) -> Flaw | None:
    """Return the flaw of a variable that takes one whole name, or with `many` several."""
    reader = "gloo" if many else "TensorPipe"
    if value[0] in "^=":
        message = f"{reader} knows neither ^ nor =, only whole names"
        return message, "the whole name of one interface", ""
    if not many and "," in value:
        return "TensorPipe takes one name", "one name", value.partition(",")[0]
    if re.search(r"\s", value):
        message = "a blank is taken for a part of the name"
        return message, "no blanks", _without_blanks(value)
    if _WILD.search(value) or _is_address(value):
        return f"{reader} wants the whole name of an interface", "the whole name", ""
    return None


def _is_only_loopback(entry: LintEntry) -> bool:
    if entry.name != "NCCL_SOCKET_IFNAME" and entry.name not in _EXACT:
        return False
    return entry.value.removeprefix("=") == "lo"
