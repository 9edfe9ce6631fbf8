"""Makes jobs of the processes of all nodes. Pure.

Ranks with a number belong together if their launcher gave them the same job. Processes without one,
as those of Ray or of torch's `spawn`, belong to what they are connected with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.jobs.live.connections import Connection
from clusterprep.jobs.live.model import Job, NodeLook, Rank
from clusterprep.model.units import pluralize

LOOPBACK = ("localhost", "127.", "::1")
# Files of torchrun's own process, which is no rank.
_LAUNCHERS = ("/torch/distributed/elastic/", "/torch/distributed/run.py")
Key = tuple[str, ...]


def jobs_of(
    looks: Mapping[str, NodeLook], connections: Iterable[Connection]
) -> tuple[tuple[Job, ...], int]:
    """Return the jobs, and how many processes belong to none because they are connected to none."""
    by_key: dict[Key, list[Rank]] = {}
    unnumbered: list[Rank] = []
    for node, look in looks.items():
        for process in look.processes:
            rank = Rank(node, process)
            if process.rank is None or process.size is None:
                if not _is_launcher(rank):
                    unnumbered.append(rank)
                continue
            by_key.setdefault(_key(rank), []).append(rank)
    alone = _attach(unnumbered, by_key, connections)
    jobs = [_job(ranks) for ranks in by_key.values()]
    return tuple(job for job in jobs if _has_others(job)), alone


def _is_launcher(rank: Rank) -> bool:
    look = rank.process.second or rank.process.first
    if look is None:
        return False
    return any(part in frame.path for frame in look.stack for part in _LAUNCHERS)


def _key(rank: Rank) -> Key:
    variables = dict(rank.process.job)
    address = variables.get("MASTER_ADDR", "")
    where = rank.node if address.startswith(LOOPBACK) else ""
    names = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")
    parts = [variables.get(name, "") for name in (*names, "PMIX_NAMESPACE")]
    return (str(rank.process.size), where, address, *parts)


def _attach(
    unnumbered: Iterable[Rank], by_key: dict[Key, list[Rank]], connections: Iterable[Connection]
) -> int:
    """Add processes without a number to what they are connected with; return how many are alone."""
    neighbours: dict[str, set[str]] = {}
    for connection in connections:
        one, other = connection.places
        if one != other:
            neighbours.setdefault(one, set()).add(other)
            neighbours.setdefault(other, set()).add(one)
    remaining = {rank.place: rank for rank in unnumbered}
    for ranks in by_key.values():
        ranks.extend(_reached([rank.place for rank in ranks], neighbours, remaining))
    alone = 0
    while remaining:
        place, rank = remaining.popitem()
        group = [rank, *_reached([place], neighbours, remaining)]
        if len(group) == 1:
            alone += 1
        else:
            by_key["connected", place] = group
    return alone


def _reached(
    starts: Iterable[str], neighbours: Mapping[str, set[str]], remaining: dict[str, Rank]
) -> list[Rank]:
    """Return the processes of `remaining` that are connected to these; they remain no longer."""
    found: list[Rank] = []
    waiting = list(starts)
    while waiting:
        for place in sorted(neighbours.get(waiting.pop(), ())):
            rank = remaining.pop(place, None)
            if rank is not None:
                found.append(rank)
                waiting.append(place)
    return found


def _has_others(job: Job) -> bool:
    return job.size is None or job.size > 1


def _job(ranks: list[Rank]) -> Job:
    ordered = sorted(ranks, key=_order)
    first = ordered[0].process
    variables = dict(first.job)
    count = pluralize(len(ordered) if first.size is None else first.size, "rank")
    name = f"job of {count}"
    address, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT", "")
    if "SLURM_JOB_ID" in variables:
        name += f", Slurm job {variables['SLURM_JOB_ID']}"
    if address:
        host = f"[{address}]" if ":" in address else address  # IPv6
        name += f", rendezvous {host}:{port}"
    number = int(port) if port.isdecimal() else None
    return Job(name, first.size, tuple(ordered), number)


def _order(rank: Rank) -> tuple[bool, int, str, int]:
    number = rank.process.rank
    return (number is None, number or 0, rank.node, rank.process.pid)
