"""Judges the memory that is free for the job, by what is required or what its peers have."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from clusterprep.checks import (
    NO_PEER,
    Check,
    CheckContext,
    Outcome,
    Proof,
    failed,
    kinds,
    passed,
)
from clusterprep.facts.memory import FreeMemory
from clusterprep.model import Absent, Node
from clusterprep.model.units import format_size, parse_size
from clusterprep.remedies import noted, shell_line

# Of all memory: a node with so much less than the median of its peers holds what they do not. The
# caches of file systems are not in it, so that peers at rest differ by one or two percent.
MARGIN = 0.1
CURE = shell_line("ps -eo rss,user,pid,args --sort=-rss | head")
BUDDIES = "mem.buddies"


def free(context: CheckContext) -> Iterable[Outcome]:
    """Judge what is required; compare the other nodes of a kind with their median."""
    for part in kinds(context):
        undeclared = []
        for node in part.nodes:
            found: FreeMemory = part.value(node, "mem.free_memory")
            wanted = part.wanted(node)
            if wanted is None:
                undeclared.append(node)
            else:
                yield _judge_required(part, node, found, wanted)
        if undeclared:
            yield from _compare(part, undeclared)


def _judge_required(context: CheckContext, node: Node, found: FreeMemory, wanted: str) -> Outcome:
    seen = f"{format_size(found.available)} available"
    if found.available >= parse_size(wanted):
        return passed(node, f"there is memory for the job{_blocks(context, [node])}", seen, wanted)
    return failed(node, "less memory is free than the job needs", seen, wanted, CURE)


def _compare(context: CheckContext, nodes: list[Node]) -> Iterable[Outcome]:
    """Compare each node's free part of its memory with the median of its kind."""
    names = tuple(node.name for node in nodes)
    if len(context.inventory.nodes) < 2:
        message = "free memory has nothing to be compared with"
        yield Outcome("skip", names, message, reason="not_applicable")
        return
    everything: dict[str, FreeMemory] = context.values("mem.free_memory")
    if len(everything) < 2:
        reason = NO_PEER
        yield Outcome("unknown", names, "free memory could not be compared", reason=reason)
        return
    median = statistics.median(found.available for found in everything.values())
    well = []
    for node in nodes:
        found = everything[node.name]
        if median - found.available > MARGIN * found.total:
            yield _too_little(context, node, found, median)
        else:
            well.append(node)
    if well:
        least = min(everything[node.name].available for node in well)
        seen = f"{format_size(least)} available or more"
        message = f"as much memory is free as on the peers{_blocks(context, well)}"
        yield Outcome("pass", tuple(node.name for node in well), message, seen)


def _too_little(context: CheckContext, node: Node, found: FreeMemory, median: float) -> Outcome:
    seen = f"{format_size(found.available)} of {format_size(found.total)} available"
    wanted = f"about {format_size(int(median))}, as on the peers"
    message = f"much less memory is free than on the peers{_blocks(context, [node])}"
    cure = noted(CURE, "and hugepages: grep Huge /proc/meminfo")
    return failed(node, message, seen, wanted, cure)


def _blocks(context: CheckContext, nodes: list[Node]) -> str:
    """Return « (35 % of it in blocks of 512 pages)» for the node that has the fewest, no fault.

    Nothing where no node says.
    """
    parts = []
    for node in nodes:
        part = context.value(node, BUDDIES)
        if not isinstance(part, Absent):
            parts.append(part)
    if not parts:
        return ""
    return f" ({min(parts):.0%} of it in blocks of 512 pages)"


CHECK = Check(
    "mem.free",
    facts=("mem.free_memory",),
    before_job=True,
    uses=(BUDDIES,),
    judge=free,
    severity="warning",
    follows=("mem.size",),
    title="Memory for the job",
    why="The memory of a forgotten process, of a RAM disk or of reserved huge pages is missing "
    "when the job's data loaders start: the kernel kills them.",
    how="MemAvailable of /proc/meminfo: what `require: {mem.free: 1500G}` says, else at most a "
    "tenth of all memory less than the median of the nodes of a kind. How much of it lies in "
    "blocks of 512 pages or more (/proc/buddyinfo) is information.",
    remedy=CURE,
    wants=parse_size,
    proof=Proof("mem.free_memory", lambda found: FreeMemory(found.total, found.available // 2)),
)
