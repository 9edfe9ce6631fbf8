"""Judges which part of a node's CPUs and memory a job may use, against its part of the GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    each,
    failed,
    parse_count,
    passed,
    skipped,
)
from clusterprep.checks.lim_launches import JOBS, session_of
from clusterprep.facts.gpu import WITHOUT_UUIDS, Function, Nvml
from clusterprep.facts.launch_limits import DAEMON_CPUS, SHARE, Share, format_cpus, parse_cpus
from clusterprep.facts.visible_gpus import numa_nodes
from clusterprep.model import Absent, Node
from clusterprep.model.fact_columns import Part
from clusterprep.model.units import format_size, parse_size
from clusterprep.remedies import Remedy, sentence, shell_line

# Of what is this session's part by its GPUs. Sites keep a few cores from jobs for the system
# (isolcpus, CoreSpecCount, CPUAffinity=), never half of them.
LEAST = 0.5
# Daemons that leave their CPUs to the processes they start. Container engines do not: the cpuset of
# the container takes the place of what the engine has.
INHERITED = ("slurmd", "cron", "crond")
SLURM = "what a task of Slurm has is what its job asked for"


def cpus(
    context: CheckContext, node: Node, share: Share, functions: tuple[Function, ...]
) -> Iterable[Outcome]:
    """Judge the CPUs of sessions and of what daemons start."""
    if share.slurm or node.transport == "slurm":
        yield skipped(node, SLURM)
        return
    required = context.wanted(node)
    least = len(share.online) * LEAST * _part(context, node, functions)
    if required is not None:
        least = parse_count(required, minimum=1)
    count = f"{math.ceil(least)} of {len(share.online)}"
    wanted = required or f"at least {count}, and some beside each GPU"
    wrong = []
    who = session_of(node)
    seen = f"CPUs {format_cpus(share.cpus)}: {len(share.cpus)} of {len(share.online)}"
    if len(share.cpus) < least:
        source = share.source("cpus") or "the affinity that the session was given"
        wrong.append(
            failed(
                node,
                f"{who} may run on few of the CPUs",
                f"{seen} ({source})",
                wanted,
                _cpuset_remedy(share),
            )
        )
    if share.quota is not None and share.quota < least:
        message = f"{who} gets the time of few of the CPUs"
        seen_quota = f"{share.quota:g} CPUs of {len(share.online)} ({share.source('quota')})"
        remedy = sentence("raise or remove CPUQuota= of {cgroup}", cgroup=share.source("quota"))
        wrong.append(failed(node, message, seen_quota, wanted, remedy))
    wrong += _far_from_gpus(context, node, share, functions, wanted)
    wrong += _daemons(context, node, share, least, wanted)
    yield from wrong or [passed(node, "the CPUs may be used", seen, wanted)]


def _part(context: CheckContext, node: Node, functions: tuple[Function, ...]) -> float:
    """Return which part of the machine's GPUs is visible here: a pod may have one of eight.

    1 where that is not known or there is none.
    """
    nvml = context.fleet.fact(node.name, "gpu.nvml")
    gpus = sum(1 for function in functions if not function.switch)
    if not isinstance(nvml, Nvml) or not nvml.gpus or gpus < len(nvml.gpus):
        return 1.0
    return len(nvml.gpus) / gpus


def _cpuset_remedy(share: Share) -> Remedy:
    source = share.source("cpus")
    if source:
        return sentence("raise or remove AllowedCPUs= (the cpuset) of {cgroup}", cgroup=source)
    return shell_line(
        "systemctl show -p CPUAffinity ssh.service sshd.service; grep -r CPUAffinity "
        "/etc/systemd/system.conf /etc/systemd/system.conf.d   # and taskset or numactl in profiles"
    )


def _far_from_gpus(
    context: CheckContext,
    node: Node,
    share: Share,
    functions: tuple[Function, ...],
    wanted: str,
) -> list[Outcome]:
    """Return a failure for each NUMA node with visible GPUs of which no CPU may be used."""
    nvml = context.fleet.fact(node.name, "gpu.nvml")
    nodes = context.fleet.fact(node.name, "numa.nodes")
    if not isinstance(nvml, Nvml) or isinstance(nodes, Absent):
        return []
    places = numa_nodes(nvml, {function.pci: function.numa for function in functions})
    outcomes = []
    for numa in nodes:
        gpus = [str(index) for index, place in sorted(places.items()) if place == numa.number]
        if not gpus or not numa.cpus:
            continue
        near = parse_cpus(numa.cpus) & share.online
        if near and not near & share.cpus:
            names = ",".join(gpus)
            message = f"{session_of(node)} may run on no CPU beside GPU {names}"
            seen = f"CPUs {format_cpus(share.cpus)}; NUMA {numa.number} has {numa.cpus}"
            outcomes.append(failed(node, message, seen, wanted, _cpuset_remedy(share)))
    return outcomes


def _daemons(
    context: CheckContext, node: Node, share: Share, least: float, wanted: str
) -> list[Outcome]:
    """Return a failure for each daemon whose CPUs are few; its jobs have no others."""
    daemons = context.value(node, DAEMON_CPUS.name)
    if isinstance(daemons, Absent):
        return []
    outcomes = []
    for name, allowed in daemons:
        usable = allowed & share.online
        if name not in INHERITED or len(usable) >= least:
            continue
        message = f"{JOBS.get(name, JOBS['cron'])} may run on few of the CPUs"
        seen = f"{name}: CPUs {format_cpus(usable)}: {len(usable)} of {len(share.online)}"
        remedy = sentence("raise or remove CPUAffinity= and AllowedCPUs= of {name}", name=name)
        outcomes.append(failed(node, message, seen, wanted, remedy))
    return outcomes


def memory(
    context: CheckContext,
    node: Node,
    share: Share,
    total: int,
    functions: tuple[Function, ...],
) -> Outcome:
    """Judge the memory that the cgroups of a session allow."""
    if share.slurm or node.transport == "slurm":
        return skipped(node, SLURM)
    required = context.wanted(node)
    least = total * LEAST * _part(context, node, functions)
    if required is not None:
        least = parse_size(required)
    wanted = required or f"at least {format_size(int(least))}"
    allowed = min(total, share.memory or total) if share.memory != 0 else 0
    seen = f"{format_size(allowed)} of {format_size(total)}"
    if allowed >= least:
        return passed(node, "the memory may be used", seen, wanted)
    group = share.source("memory")
    if not group:
        return failed(node, "the machine has too little memory", seen, wanted)
    return failed(
        node,
        f"{session_of(node)} may use little of the memory",
        f"{seen} ({group})",
        wanted,
        sentence("raise or remove MemoryMax= and MemoryHigh= of {cgroup}", cgroup=group),
    )


def _cpu_count(text: str) -> int:
    return parse_count(text, "a number of CPUs, such as 64", minimum=1)


def _one_cpu(share: Share) -> Share:
    return replace(share, cpus=frozenset([min(share.cpus)]))


# The total is one number on all nodes of a kind, and not one object.
_PARTS = (WITHOUT_UUIDS, Part("mem.total", int))

CPUS = Check(
    "lim.cpus",
    facts=(SHARE.name, "gpu.functions"),
    uses=(DAEMON_CPUS.name, "gpu.nvml", "numa.nodes"),
    judge=each(cpus, SHARE.name, "gpu.functions", parts=(WITHOUT_UUIDS,)),
    severity="warning",
    title="The CPUs a job may use",
    why="A cpuset, a CPU affinity or a quota that was meant for something else leaves all ranks on "
    "a few cores: data loaders starve the GPUs and NCCL's threads wait for their turn. Where all "
    "of them are on one socket, the GPUs of the other one are fed through the link between them.",
    how="Affinity of this process, cpuset and cpu.max of its cgroup and of those above, the same "
    "of the slice of the job's user, and the affinity of slurmd and cron; against the CPUs that "
    "are online, and the NUMA nodes of the visible GPUs. At least half of them, of a machine of "
    "which a part of the GPUs is visible half of that part; or as `require: {lim.cpus: …}` says.",
    remedy=sentence("raise or remove AllowedCPUs=, CPUAffinity= or CPUQuota= of what is named"),
    wants=_cpu_count,
    proof=Proof(SHARE.name, _one_cpu),
)
MEMORY = Check(
    "lim.memory",
    facts=(SHARE.name, "mem.total", "gpu.functions"),
    uses=("gpu.nvml",),
    judge=each(memory, SHARE.name, "mem.total", "gpu.functions", parts=_PARTS),
    severity="warning",
    title="The memory a job may use",
    why="A session whose cgroup has a limit is killed in the middle of a run although the machine "
    "has free memory; what NCCL and data loaders keep in /dev/shm counts too.",
    how="memory.max and memory.high (memory.limit_in_bytes) of the session's cgroup, of those "
    "above, and of the slice of the job's user; against half of the machine's memory, of a "
    "machine of which a part of the GPUs is visible half of that part; or as `require: "
    "{lim.memory: 900G}` says.",
    remedy=sentence("raise or remove MemoryMax= and MemoryHigh= of the cgroup that is named"),
    wants=parse_size,
    proof=Proof(
        SHARE.name,
        lambda share: replace(
            share, memory=4 << 30, sources=(("memory", "/sys/fs/cgroup/user.slice"),)
        ),
    ),
)
