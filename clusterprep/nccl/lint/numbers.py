"""Settings that are read as numbers: text that is none, suffixes, ranges.

The remarks show what is read, for these values are no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from clusterprep.nccl.lint import DROP, LintEntry, Remark, Text, Versions, no_effect, write
from clusterprep.nccl.lint.values import Number, nccl_integer, range_of, torch_integer
from clusterprep.nccl.variables.variables import registry
from clusterprep.remedies import Remedy, sentence

_OFF = frozenset({"false", "no", "off", "f", "n", "none", "disable", "disabled", "never"})
_ON = frozenset({"true", "yes", "on", "t", "y"})
_TORCH_WORDS = frozenset({"y", "yes", "1", "t", "true", "n", "no", "0", "f", "false"})
_OFI_WORDS = re.compile(r"(?i:true|false)|[+-]?\d+")
_OFI_INTEGER = re.compile(r"[+-]?\d+")
# Numbers of aws-ofi-nccl that may have a fraction.
_OFI_FRACTIONS = frozenset(
    {
        "OFI_NCCL_NET_LATENCY",
        "OFI_NCCL_TUNER_NET_LATENCY",
        "OFI_NCCL_TUNER_NET_COMP_OVERHEAD",
    }
)
_SIZE = re.compile(r"[kmgt](?:i?b)?", re.IGNORECASE)
# Switches that act at exactly 1 (src/graph/paths.cc and src/transport/shm.cc).
_EXACTLY_ONE = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
_POWERS = {"k": 10, "m": 20, "g": 30, "t": 40}  # of two, by suffix

Variable = Mapping[str, Any]  # an entry of the registry


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    """Yield a remark for each number that its reader takes otherwise than it was meant."""
    for entry in text.entries:
        variable = registry().get(entry.name)
        if variable is None or not entry.known:
            continue
        how = _how_read(variable)
        for reader, rule in _RULES:
            if reader not in how:
                continue
            remark = rule(entry, variable)
            if remark is not None:
                yield remark


def _how_read(variable: Variable) -> str:
    """Return the registry's words on how a value is read, which name the reader."""
    if variable["name"] == "NCCL_P2P_DISABLE":
        return "strtoll"
    if "int() is applied" in variable["allowed_values"]:
        return "python int"
    return variable["on_invalid"] or ""


def _nccl(entry: LintEntry, variable: Variable) -> Remark | None:
    if variable["name"] == "NCCL_CTA_POLICY" or not entry.value:
        return None
    number = nccl_integer(entry.value)
    if number is None:
        message = "a number of more than 64 bits: the default holds"
        return no_effect(entry, message, variable["allowed_values"])
    return _nccl_number(entry, variable, number)


def _nccl_number(entry: LintEntry, variable: Variable, number: Number) -> Remark | None:
    """Return a remark about a number that NCCL takes otherwise than it was meant, or None."""
    allowed = variable["allowed_values"]
    if not number.digits:
        if entry.value.strip().lower() in _OFF:
            return None
        message = "NCCL reads a number here, and text means 0"
        return no_effect(
            entry,
            message,
            allowed,
            _number_for_text(entry),
        )
    if number.rest.strip():
        message = f"NCCL reads the digits and ignores what follows: this means {number.value}"
        remedy = _without_rest(entry, number, is_size=variable["kind"] == "size")
        return no_effect(
            entry,
            message,
            allowed,
            remedy,
        )
    if number.octal:
        message = f"a leading 0 makes it octal: this means {number.value}"
        decimal = entry.value.strip().lstrip("0") or "0"
        return no_effect(entry, message, allowed, write(entry, decimal))
    if not _makes_sense(variable, number.value):
        return no_effect(entry, _out_of_range(variable, number.value), allowed)
    return None


def _makes_sense(variable: Variable, value: int) -> bool:
    """Return whether NCCL takes a number as it is. Switches take any number, but for two."""
    name = variable["name"]
    if name in _EXACTLY_ONE:
        return value in (0, 1)
    if name in ("NCCL_NTHREADS", "NCCL_LL128_NTHREADS"):
        return value == -2 or (value % 32 == 0 and 64 <= value <= 640)
    if name == "NCCL_SOCKET_NTHREADS" and value == 0:
        return True  # what NCCL itself starts with on most networks: no thread of its own
    if variable["kind"] == "bool":
        return True
    return range_of(variable["allowed_values"]).holds(value)


def _out_of_range(variable: Variable, value: int) -> str:
    if variable["name"] in _EXACTLY_ONE:
        return f"only exactly 1 switches it off: {value} does nothing"
    if variable["name"] == "NCCL_SOCKET_NTHREADS" and value > 16:
        return "NCCL clamps it to 16, with a warning in every log"
    return "out of range: ignored, clamped or refused"


def _number_for_text(entry: LintEntry) -> Remedy:
    """Return the remedy for a text that is no number."""
    if entry.value.strip().lower() in _ON:
        return write(entry, "1")
    return sentence("write a number")


def _without_rest(entry: LintEntry, number: Number, *, is_size: bool) -> Remedy:
    """Return the remedy for text behind a number: without it, or multiplied by its suffix."""
    suffix = number.rest.strip()
    if is_size and _SIZE.fullmatch(suffix):
        size = number.value << _POWERS[suffix[0].lower()]
        return write(entry, str(size))
    return sentence("write {name}={number}, if that is meant", name=entry.name, number=number.value)


def _torch_bool(entry: LintEntry, variable: Variable) -> Remark | None:
    if "only warns" in variable["allowed_values"] or entry.value.lower() in _TORCH_WORDS:
        return None
    message = "torch refuses any other word: RuntimeError when the process group is made"
    remedy = sentence("write {name}=1 or {name}=0", name=entry.name)
    return no_effect(
        entry,
        message,
        "1 or 0",
        remedy,
    )


def _torch_integer(entry: LintEntry, variable: Variable) -> Remark | None:
    number = torch_integer(entry.value)
    if number is None:
        message = "torch wants a number: RuntimeError when the process group is made"
        return no_effect(
            entry,
            message,
            "a number",
            _number_for_text(entry),
        )
    if number.rest.strip():
        message = f"torch reads the digits and ignores what follows: this means {number.value}"
        remedy = _without_rest(entry, number, is_size=False)
        return no_effect(entry, message, "a number", remedy)
    return None


def _python(entry: LintEntry, variable: Variable) -> Remark | None:
    if entry.value.strip() in ("0", "1"):
        return None
    message = "torchrun wants 0 or 1 here: ValueError at its start"
    return no_effect(
        entry,
        message,
        "0 or 1",
        _number_for_text(entry),
    )


def _plug_in(entry: LintEntry, variable: Variable) -> Remark | None:
    """Return a remark about a value with which aws-ofi-nccl does not start, or None."""
    consequence = "from 1.17 aws-ofi-nccl does not start with it, and NCCL falls back to TCP"
    allowed = variable["allowed_values"].split(";")[0]
    if not entry.value:
        message = f"an empty value: {consequence}"
        return no_effect(
            entry,
            message,
            allowed,
            DROP,
        )
    kind = variable["kind"]
    if kind == "bool" and not _OFI_WORDS.fullmatch(entry.value):
        message = f"neither true nor false: {consequence}"
        return no_effect(
            entry,
            message,
            allowed,
            write(entry, "1"),
        )
    if kind not in ("int", "size") or variable["name"] in _OFI_FRACTIONS:
        return None
    if not _OFI_INTEGER.fullmatch(entry.value):
        message = f"no number: {consequence}"
        return no_effect(
            entry,
            message,
            allowed,
            sentence("write a number"),
        )
    return None


# What `_how_read` says, and the rule for it.
_RULES: tuple[tuple[str, Callable[[LintEntry, Variable], Remark | None]], ...] = (
    ("strtoll", _nccl),
    ("accepted words", _torch_bool),
    ("std::stoi", _torch_integer),
    ("python int", _python),
    ("from 1.17.0", _plug_in),
)
