"""Settings that are one word, or a list of words, of those that their reader knows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.model import Severity
from clusterprep.nccl.lint import LintEntry, Remark, Text, Versions
from clusterprep.nccl.variables.variables import registry

_LEVELS = frozenset(["VERSION", "WARN", "INFO", "ABORT", "TRACE", "ATTN"])
_SILENT = frozenset({"0", "OFF", "NONE", "NO", "FALSE", ""})  # mean what they do: nothing is said
_DISTANCES = frozenset(
    [
        "LOC",
        "NVL",
        "NVB",
        "C2C",
        "PIX",
        "PXB",
        "P2C",
        "PXN",
        "PHB",
        "SYS",
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
    ]
)
_FAMILIES = frozenset({"AF_INET", "AF_INET6"})
_ALGORITHMS = frozenset(
    ["ring", "tree", "collnet", "collnetchain", "collnetdirect", "nvls", "nvlstree", "pat"]
)
_PROTOCOLS = frozenset(["ll", "ll128", "simple"])
_TORCH_LEVELS = frozenset({"OFF", "INFO", "DETAIL"})
_SWITCHED_ON = (2, 24)  # an unknown algorithm or protocol ends the start from here on


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    for entry in text.entries:
        rule = _RULES.get(entry.name)
        if rule is not None and entry.known and entry.value:
            yield from rule(entry)


def _debug(entry: LintEntry) -> Iterator[Remark]:
    word = entry.value.upper().strip()
    if word not in _LEVELS | _SILENT:
        yield _remark(
            entry,
            "not a level: NCCL says nothing at all with it, not even warnings",
            "WARN or INFO",
            "INFO",
        )


def _distance(entry: LintEntry) -> Iterator[Remark]:
    if entry.value[0].isdigit():
        if entry.value not in _DISTANCES:
            message = "the old numbers end at 5: NCCL reads the digits at the head, and more than 5 as 5, which is SYS"
            yield _remark(entry, message, "LOC, NVL, PIX, PXB, PXN, PHB or SYS", "")
    elif entry.value not in _DISTANCES:
        upper = entry.value.upper()
        message = "NCCL does not know this distance and ignores it (capital letters only)"
        cured = upper if upper in _DISTANCES else ""
        yield _remark(entry, message, "LOC, NVL, PIX, PXB, PXN, PHB or SYS", cured)


def _family(entry: LintEntry) -> Iterator[Remark]:
    if entry.value not in _FAMILIES:
        cured = entry.value.upper() if entry.value.upper() in _FAMILIES else ""
        yield _remark(
            entry, "not understood, and ignored without a word", "AF_INET or AF_INET6", cured
        )


def _choice(entry: LintEntry) -> Iterator[Remark]:
    """NCCL_ALGO and NCCL_PROTO: `^`, a function with a colon, groups with semicolons (from 2.24)."""
    valid = _ALGORITHMS if entry.name == "NCCL_ALGO" else _PROTOCOLS
    for group in entry.value.split(";"):
        words = group.rpartition(":")[2].removeprefix("^").split(",")
        wrong = [word for word in words if word and word.lower() not in valid]
        if wrong:
            message = f"{wrong[0]!r} is not known: ignored before NCCL 2.24, and the end of the job from then on"
            yield _remark(entry, message, ", ".join(sorted(valid)), "", "error")
            return


def _subsystems(entry: LintEntry) -> Iterator[Remark]:
    allowed = set(registry()["NCCL_DEBUG_SUBSYS"]["allowed_values"].removeprefix("[^]").split(","))
    words = re.split(r",", entry.value.removeprefix("^").upper())
    wrong = [word for word in words if word and word.strip() not in allowed]
    if wrong or " " in entry.value:
        what = f"{wrong[0]!r} is no subsystem" if wrong else "a blank in the list"
        yield _remark(
            entry, f"{what}: that word is ignored", "such as INIT,ENV,NET", "INIT,ENV,NET"
        )


def _torch_level(entry: LintEntry) -> Iterator[Remark]:
    if entry.value.upper() not in _TORCH_LEVELS:
        message = "torch refuses any other word: the import of torch.distributed ends with it"
        yield _remark(entry, message, "OFF, INFO or DETAIL", "INFO", "error")


_RULES = {
    "NCCL_DEBUG": _debug,
    "NCCL_P2P_LEVEL": _distance,
    "NCCL_NET_GDR_LEVEL": _distance,
    "NCCL_SOCKET_FAMILY": _family,
    "NCCL_IB_ADDR_FAMILY": _family,
    "NCCL_ALGO": _choice,
    "NCCL_PROTO": _choice,
    "NCCL_DEBUG_SUBSYS": _subsystems,
    "TORCH_DISTRIBUTED_DEBUG": _torch_level,
}


def _remark(
    entry: LintEntry, message: str, wanted: str, cured: str, severity: Severity = "warning"
) -> Remark:
    seen = f"{entry.name}={entry.value}"
    remedy = f"write {entry.name}={cured}" if cured else ""
    return Remark("env.no_effect", entry.line, entry.name, message, seen, wanted, remedy, severity)
