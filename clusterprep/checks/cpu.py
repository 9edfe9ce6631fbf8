"""Processors: the same in all machines of a kind, and at full clock."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    as_wanted,
    each,
    failed,
    kinds,
    passed,
)
from clusterprep.facts.cpu import Governor
from clusterprep.model import Node
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.remedies import shell_line

# Drivers under which the processor itself chooses its clock, and the governor `powersave` does not
# limit it: the energy preference decides instead. Linux, Documentation/admin-guide/pm/
# intel_pstate.rst and amd-pstate.rst, active mode.
SELF_GOVERNED = ("intel_pstate", "amd-pstate-epp")
# Energy preferences that leave no clock unused; 0 is the number behind the word.
FULL_CLOCK = ("performance", "0")
PERFORMANCE = shell_line(
    "cpupower frequency-set -g performance   # for good: tuned-adm profile throughput-performance"
)


def model(context: CheckContext) -> Iterable[Outcome]:
    """Judge that machines of a kind have equal processors, or those that are required."""
    for part in kinds(context):
        processors = part.values("cpu.processors")
        seen = {name: str(cpus) for name, cpus in processors.items()}
        yield from as_wanted(part, seen, _has_name, "the processor")


def _has_name(seen: str, wanted: str) -> bool:
    """Return whether `wanted` is a run of words of the processor's name: «8480C» is enough."""
    name = seen.lower().replace(",", " ").split()
    required = wanted.lower().split()
    length = len(required)
    return any(name[start : start + length] == required for start in range(len(name)))


def governor(context: CheckContext, node: Node, governors: tuple[Governor, ...]) -> Outcome:
    """Judge that all frequency policies of a node run at full clock, or as required."""
    required = context.wanted(node)
    wanted = required or "performance"
    slow = [policy for policy in governors if not _is_full_clock(policy, required)]
    if not slow:
        message = "nothing holds the processors' clock back"
        return passed(node, message, _describe_governors(governors), wanted)
    seen = _describe_governors(slow)
    if len(slow) < len(governors):
        seen += f" on {_policies(slow)} of {_policies(governors)} policies"
    if required:
        message = "the governor is not what the inventory requires"
        remedy = shell_line("cpupower frequency-set -g {required}", required=required)
    else:
        message = "the processors' clock follows the load"
        remedy = PERFORMANCE
    return failed(
        node,
        message,
        seen,
        wanted,
        remedy,
        fix=fix_of(wanted_state("governor", name=required or "performance")),
    )


def _policies(governors: Iterable[Governor]) -> int:
    return sum(governor.count for governor in governors)


def _is_full_clock(policy: Governor, required: str | None) -> bool:
    if required is not None:
        return policy.name == required
    if policy.name == "performance":
        return True
    return policy.driver in SELF_GOVERNED and policy.preference in FULL_CLOCK


def _describe_governors(governors: Iterable[Governor]) -> str:
    """Return «powersave (intel_pstate, prefers balance_performance)», each text once."""
    texts: dict[str, None] = {}  # an ordered set
    for policy in governors:
        details = policy.driver
        if policy.preference:
            details += f", prefers {policy.preference}"
        texts[f"{policy.name} ({details})"] = None
    return ", ".join(texts)


def parse_governor(text: str) -> str:
    """Return the name of a governor: one word of lower case letters, as the kernel writes it.

    Raises ValueError for other text.
    """
    is_word = text.isascii() and text.replace("_", "").isalpha()
    if not is_word or text != text.lower():
        raise ValueError(f"expected a governor such as performance or powersave; seen '{text}'")
    return text


MODEL = Check(
    "cpu.model",
    facts=("cpu.processors",),
    judge=model,
    severity="warning",
    title="The processors",
    why="A node with another processor, a dead socket or its hyper-threads off has other NUMA "
    "nodes and PCIe lanes and loads data more slowly; the slowest node sets the pace of all.",
    how="Model, sockets, cores and processors that are online, from /proc/cpuinfo and /sys; equal "
    "in machines of a kind, or of the model that `require: {cpu.model: …}` names.",
    remedy=shell_line(
        "lscpu; dmesg | grep -i smpboot   # firmware set-up: sockets, SMT; else an inventory "
        "of their own"
    ),
    # A fleet without Slurm, whose files would no longer fit the machine either.
    proof=Proof(
        "cpu.processors",
        lambda cpus: replace(cpus, cpus=cpus.cores),
        fleet="hgx-h100-roce",
    ),
)
GOVERNOR = Check(
    "cpu.governor",
    facts=("cpu.governors",),
    judge=each(governor, "cpu.governors"),
    severity="warning",
    title="The processors run at full clock",
    why="NCCL's proxy threads and the data loader work in bursts; a clock that follows the load "
    "is low when a burst begins, so messages leave late, on another node each time.",
    how="scaling_governor of all frequency policies: performance. Under intel_pstate and "
    "amd-pstate-epp powersave is as good when energy_performance_preference says performance. "
    "`require: {cpu.governor: …}` names another.",
    remedy=PERFORMANCE,
    wants=parse_governor,
    proof=Proof(
        "cpu.governors", lambda seen: (Governor("acpi-cpufreq", "ondemand", None, seen[0].count),)
    ),
)
