"""Processors: the same in all machines of a kind, and at full clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, as_wanted, each, kinds
from clusterprep.facts.cpu import Governor
from clusterprep.model import Node

# Drivers under which the processor itself chooses its clock and `powersave` is no lid on it: what it is told to
# prefer then decides (Linux, Documentation/admin-guide/pm/intel_pstate.rst and amd-pstate.rst, active mode).
SELF_GOVERNED = ("intel_pstate", "amd-pstate-epp")
GREEDY = (
    "performance",
    "0",
)  # preferences that leave no clock unused; 0 is the number behind the word
PERFORMANCE = (
    "cpupower frequency-set -g performance   # for good: tuned-adm profile throughput-performance"
)


def model(context: CheckContext) -> Iterable[Outcome]:
    for part in kinds(context):
        seen = {name: str(cpus) for name, cpus in part.values("cpu.processors").items()}
        yield from as_wanted(part, seen, _names, "the processor")


def _names(seen: str, wanted: str) -> bool:
    """Whether what is wanted are words of the processor's name: «8480C» is enough."""
    words, asked = seen.lower().replace(",", " ").split(), wanted.lower().split()
    return any(words[at : at + len(asked)] == asked for at in range(len(words)))


def governor(context: CheckContext, node: Node, governors: tuple[Governor, ...]) -> Outcome:
    wanted = context.wanted(node)
    odd = [seen for seen in governors if not _full(seen, wanted)]
    text = wanted or "performance"
    if not odd:
        return Outcome(
            "pass", (node.name,), "nothing holds the processors' clock back", _said(governors), text
        )
    part = (
        f" on {sum(seen.count for seen in odd)} of {sum(seen.count for seen in governors)} policies"
    )
    message = (
        "the governor is not what the inventory requires"
        if wanted
        else "the processors' clock follows the load"
    )
    cure = f"cpupower frequency-set -g {wanted}" if wanted else PERFORMANCE
    return Outcome(
        "fail",
        (node.name,),
        message,
        _said(odd) + (part if len(odd) < len(governors) else ""),
        text,
        cure,
    )


def _full(seen: Governor, wanted: str | None) -> bool:
    if wanted is not None:
        return seen.name == wanted
    told = seen.driver in SELF_GOVERNED and seen.preference in GREEDY
    return seen.name == "performance" or told


def _said(governors: Iterable[Governor]) -> str:
    """«powersave (intel_pstate, prefers balance_performance)»."""
    said = (
        f"{g.name} ({g.driver}{f', prefers {g.preference}' if g.preference else ''})"
        for g in governors
    )
    return ", ".join(dict.fromkeys(said))


def parse_governor(text: str) -> str:
    """A governor's name, one word as the kernel writes it."""
    if not (text.isascii() and text.replace("_", "").isalpha() and text == text.lower()):
        raise ValueError(f"expected a governor such as performance or powersave; seen '{text}'")
    return text


MODEL = Check(
    "cpu.model",
    facts=("cpu.processors",),
    judge=model,
    severity="warning",
    title="The processors",
    why="A node with another processor, a dead socket or its hyper-threads off has other NUMA nodes and PCIe lanes and "
    "loads data more slowly; the slowest node sets the pace of all.",
    how="Model, sockets, cores and processors that are online, from /proc/cpuinfo and /sys; equal in machines of a "
    "kind, or of the model that `require: {cpu.model: …}` names.",
    remedy="lscpu; dmesg | grep -i smpboot   # firmware set-up: sockets, SMT; else an inventory of their own",
    proof=Proof("cpu.processors", lambda cpus: replace(cpus, cpus=cpus.cores)),
)
GOVERNOR = Check(
    "cpu.governor",
    facts=("cpu.governors",),
    judge=each(governor, "cpu.governors"),
    severity="warning",
    title="The processors run at full clock",
    why="NCCL's proxy threads and the data loader work in bursts; a clock that follows the load is low when a burst "
    "begins, so messages leave late, on another node each time.",
    how="scaling_governor of all frequency policies: performance. Under intel_pstate and amd-pstate-epp powersave is "
    "as good when energy_performance_preference says performance. `require: {cpu.governor: …}` names another.",
    remedy=PERFORMANCE,
    wants=parse_governor,
    proof=Proof(
        "cpu.governors", lambda seen: (Governor("acpi-cpufreq", "ondemand", None, seen[0].count),)
    ),
)
