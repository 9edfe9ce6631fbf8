"""Settings that are one word, or a list of words, of those that their reader knows."""

from __future__ import annotations

from collections.abc import Iterator

from clusterprep.nccl.lint import LintEntry, Remark, Text, Versions, no_effect, write
from clusterprep.nccl.variables.variables import registry
from clusterprep.remedies import NO_REMEDY, Remedy

_LEVELS = frozenset(["VERSION", "WARN", "INFO", "ABORT", "TRACE", "ATTN"])
_SILENT = frozenset({"0", "OFF", "NONE", "NO", "FALSE", ""})  # mean what they do: no output
_DISTANCES = frozenset({
    "LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS",
    "0", "1", "2", "3", "4", "5",
})  # fmt: skip
_USUAL_DISTANCES = "LOC, NVL, PIX, PXB, PXN, PHB or SYS"
_FAMILIES = frozenset({"AF_INET", "AF_INET6"})
_ALGORITHMS = frozenset(
    ["ring", "tree", "collnet", "collnetchain", "collnetdirect", "nvls", "nvlstree", "pat"]
)
_PROTOCOLS = frozenset(["ll", "ll128", "simple"])
_TORCH_LEVELS = frozenset({"OFF", "INFO", "DETAIL"})


def judge(text: Text, versions: Versions) -> Iterator[Remark]:
    """Yield a remark for each word that its reader does not know."""
    for entry in text.entries:
        rule = _RULES.get(entry.name)
        if rule is None or not entry.known or not entry.value:
            continue
        remark = rule(entry)
        if remark is not None:
            yield remark


def _debug(entry: LintEntry) -> Remark | None:
    level = entry.value.upper().strip()
    if level in _LEVELS or level in _SILENT:
        return None
    message = "not a level: NCCL says nothing at all with it, not even warnings"
    return no_effect(entry, message, "WARN or INFO", write(entry, "INFO"))


def _distance(entry: LintEntry) -> Remark | None:
    """Return a remark about a word or number that is no distance between GPUs, or None."""
    if entry.value in _DISTANCES:
        return None
    if entry.value[0].isdigit():
        message = (
            "the old numbers end at 5: NCCL reads the digits at the head, "
            "and more than 5 as 5, which is SYS"
        )
        return no_effect(entry, message, _USUAL_DISTANCES)
    message = "NCCL does not know this distance and ignores it (capital letters only)"
    return no_effect(entry, message, _USUAL_DISTANCES, _in_capitals(entry, _DISTANCES))


def _in_capitals(entry: LintEntry, known: frozenset[str]) -> Remedy:
    """Return the remedy to write the value in capital letters, if that is a known word."""
    capitals = entry.value.upper()
    return write(entry, capitals) if capitals in known else NO_REMEDY


def _family(entry: LintEntry) -> Remark | None:
    if entry.value in _FAMILIES:
        return None
    message = "not understood, and ignored without a word"
    return no_effect(entry, message, "AF_INET or AF_INET6", _in_capitals(entry, _FAMILIES))


def _choice(entry: LintEntry) -> Remark | None:
    """Judge NCCL_ALGO and NCCL_PROTO.

    They have `^`, a function with a colon, and from NCCL 2.24 groups with semicolons.
    """
    valid = _ALGORITHMS if entry.name == "NCCL_ALGO" else _PROTOCOLS
    for group in entry.value.split(";"):
        choices = group.rpartition(":")[2].removeprefix("^")
        for choice in choices.split(","):
            if choice and choice.lower() not in valid:
                message = (
                    f"{choice!r} is not known: ignored before NCCL 2.24, "
                    "and the end of the job from then on"
                )
                return no_effect(entry, message, ", ".join(sorted(valid)))
    return None


def _subsystems(entry: LintEntry) -> Remark | None:
    """Return a remark about the first word of a list that is no subsystem of NCCL's log."""
    problem = "a blank in the list" if " " in entry.value else ""
    allowed = registry()["NCCL_DEBUG_SUBSYS"]["allowed_values"].removeprefix("[^]")
    known = set(allowed.split(","))
    for subsystem in entry.value.removeprefix("^").upper().split(","):
        if subsystem and subsystem.strip() not in known:
            problem = f"{subsystem!r} is no subsystem"
            break
    if not problem:
        return None
    message = f"{problem}: that word is ignored"
    return no_effect(entry, message, "such as INIT,ENV,NET", write(entry, "INIT,ENV,NET"))


def _torch_level(entry: LintEntry) -> Remark | None:
    if entry.value.upper() in _TORCH_LEVELS:
        return None
    message = "torch refuses any other word: the import of torch.distributed ends with it"
    return no_effect(
        entry,
        message,
        "OFF, INFO or DETAIL",
        write(entry, "INFO"),
    )


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
