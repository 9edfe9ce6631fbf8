"""Who runs which rank with which environment: the plan of a trial, decided before any node is asked."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from clusterprep.model import Node, VerifySettings
from clusterprep.model.colocation import largest_group, neighbours
from clusterprep.runtime.lazy_dataclass import dataclass

# Over what is declared, and for the trial alone: NCCL says how it connects, and that is compared with what was written.
# BOOTSTRAP is where 2.23 and later tell the interface. The empty name of a file keeps the lines on stdout, also where
# an nccl.conf of the node sends them to a file: a name that is set wins over the conf file, and an empty one is none.
TELLING = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,BOOTSTRAP",
    "NCCL_DEBUG_FILE": "",
}

# Where several ranks share a GPU their kernels take turns on it, and have to fit; under what is declared.
SPARING = {"NCCL_MAX_CTAS": "1"}

# From those that need a ring of pairs to the one that needs all: where a pair is cut, what comes before is known.
OTHERS = ("all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all")
OTHER_TYPES = ("bfloat16", "int32")
MIDDLE = 1 << 20  # bytes
# Elements in float32 of collectives in which jobs of users hung: what each rank gave to an all-gather (the end of a
# llama-recipes run, NumelIn of the watchdog's line), and what was broadcast (AutoTrain, at «creating trainer»).
GATHERED, SENT = 262_675_456, 253_440_000


@dataclass(frozen=True)
class ScheduledTest:
    """One collective of one size; `bytes` is the larger buffer of one rank, as nccl-tests counts."""

    op: str
    bytes: int
    dtype: str = "float32"
    repetitions: int | None = None  # None: as many as fit into the ranks' own budget
    fit: bool = False  # the ranks may make it smaller, so that memory and time suffice
    among: int = 1  # nodes that have this memory together


@dataclass(frozen=True)
class PlannedRank:
    rank: int
    local_rank: int
    node: str
    env: Mapping[str, str]


@dataclass(frozen=True)
class TrialPlan:
    """Everything that a trial needs to know; ranks are numbered in inventory order of their nodes."""

    nodes: tuple[Node, ...]
    ranks: tuple[PlannedRank, ...]
    backend: str
    address: str
    port: int
    steps: tuple[ScheduledTest, ...]
    timeout: float  # seconds for one collective stage
    gpus: Mapping[str, int]
    min_busbw: float | None = None  # GB/s
    same_files: tuple[str, ...] = ()
    most_sharing: int = 1  # nodes that share one GPU

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def rendezvous(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    @functools.cached_property
    def ranks_by_node(self) -> Mapping[str, tuple[PlannedRank, ...]]:
        grouped: dict[str, list[PlannedRank]] = {node.name: [] for node in self.nodes}
        for rank in self.ranks:
            grouped[rank.node].append(rank)
        return {name: tuple(ranks) for name, ranks in grouped.items()}

    @property
    def nproc_per_node(self) -> int:
        """The same on all nodes of a sound inventory (launch.nproc); else the most that a node has."""
        return max((len(ranks) for ranks in self.ranks_by_node.values()), default=0)

    def request(self, node: Node, source: str) -> dict[str, Any]:
        """The body of the agent's operation `start` for one node; `source` is the program of the ranks."""
        return {
            "python": node.python,
            "user": node.job_user,
            "source": source,
            "ranks": [
                {"rank": rank.rank, "env": dict(rank.env)} for rank in self.ranks_by_node[node.name]
            ],
            "config": {
                "backend": self.backend,
                "gpus": self.gpus.get(node.name, 0),
                "same_files": list(self.same_files),
            },
        }

    def tasks(self, node: Node) -> list[dict[str, Any]]:
        """What the ranks of one node do together with all others, in the order of `request`."""
        alike = {
            "world": self.world_size,
            "address": self.address,
            "port": self.port,
            "timeout": self.timeout,
            "steps": [asdict(step) for step in self.steps],
        }
        return [{"rank": rank.rank, **alike} for rank in self.ranks_by_node[node.name]]


def plan_trial(
    nodes: Sequence[Node],
    env: Mapping[str, Mapping[str, str]],
    rendezvous: tuple[str, int],
    settings: VerifySettings,
    gpus: Mapping[str, int],
    further: Sequence[ScheduledTest] = (),
) -> TrialPlan:
    """One rank per GPU in use, or `nproc_per_node` of them on CPU nodes.

    `env` is the job's environment per node, `gpus` the number of GPUs in use per node (absent: none). The sizes of
    `settings` are those of all_reduce in float32; `further` collectives come after them.
    """
    shares = shares_of(nodes, gpus)
    backend = settings.backend if settings.backend != "auto" else _backend(nodes, shares, gpus)
    telling = TELLING if backend == "nccl" else {}
    sharing = largest_group(nodes, gpus, env) if backend == "nccl" else 1
    world, ranks = sum(shares), list[PlannedRank]()
    for position, (node, share) in enumerate(zip(nodes, shares, strict=True)):
        given = {**(SPARING if sharing > 1 else {}), **env.get(node.name, {}), **telling}
        for local in range(share):
            values = rank_environment(given, rendezvous, len(ranks), local, world, share, position)
            ranks.append(PlannedRank(len(ranks), local, node.name, values))
    return TrialPlan(
        nodes=tuple(nodes),
        ranks=tuple(ranks),
        backend=backend,
        address=rendezvous[0],
        port=rendezvous[1],
        steps=(*(ScheduledTest("all_reduce", size) for size in settings.sizes), *further),
        timeout=settings.timeout,
        gpus=dict(gpus),
        min_busbw=settings.min_busbw,
        same_files=settings.same_files,
        most_sharing=sharing,
    )


def shares_of(nodes: Sequence[Node], gpus: Mapping[str, int]) -> list[int]:
    """How many ranks each node runs: as declared, else one per GPU in use, else one."""
    return [node.nproc_per_node or gpus.get(node.name, 0) or 1 for node in nodes]


def other_steps(settings: VerifySettings) -> tuple[ScheduledTest, ...]:
    """Every other collective and every other type once, at a middle size: whether they work, not how fast they are."""
    size = min(MIDDLE, max(settings.sizes, default=MIDDLE))
    kinds = [("all_reduce", dtype) for dtype in OTHER_TYPES] + [(op, "float32") for op in OTHERS]
    return tuple(ScheduledTest(op, 0 if op == "barrier" else size, dtype, 1) for op, dtype in kinds)


def with_incidents(plan: TrialPlan) -> TrialPlan:
    """The plan with the sizes of known incidents after all others."""
    among = plan.most_sharing if plan.backend == "nccl" else max(1, len(neighbours(plan.nodes)))
    gathered = ScheduledTest(
        "all_gather", 4 * GATHERED * plan.world_size, repetitions=1, fit=True, among=among
    )
    sent = ScheduledTest("broadcast", 4 * SENT, repetitions=1, fit=True, among=among)
    return replace(plan, steps=(*plan.steps, gathered, sent))


TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
MEETING = ("MASTER_ADDR", "MASTER_PORT")


def own_part(env: Mapping[str, str]) -> dict[str, str]:
    """An environment of a rank without what a launcher sets."""
    return {name: value for name, value in env.items() if name not in (*TORCHRUN, *MEETING)}


def of_some(
    plan: TrialPlan,
    names: Sequence[str],
    meet: tuple[str, int],
    steps: Sequence[ScheduledTest],
    limit: float,
    **env: str,
) -> TrialPlan:
    """A trial of a few of the nodes of a plan, in the order of `names`, the first of them at `meet`.

    `env` comes over what the ranks are given there.
    """
    homes = {node.name: node for node in plan.nodes}
    parts = [plan.ranks_by_node[name] for name in names]
    world, ranks = sum(map(len, parts)), list[PlannedRank]()
    for position, mine in enumerate(parts):
        for rank in mine:
            given = {**own_part(rank.env), **env}
            values = rank_environment(
                given, meet, len(ranks), rank.local_rank, world, len(mine), position
            )
            ranks.append(replace(rank, rank=len(ranks), env=values))
    nodes = tuple(homes[name] for name in names)
    address, port = meet
    return replace(
        plan,
        nodes=nodes,
        ranks=tuple(ranks),
        address=address,
        port=port,
        steps=tuple(steps),
        timeout=limit,
    )


def _backend(nodes: Sequence[Node], shares: Sequence[int], gpus: Mapping[str, int]) -> str:
    """NCCL only where every rank has a GPU of its own: two ranks on one GPU are refused by NCCL."""
    enough = all(gpus.get(node.name, 0) >= share for node, share in zip(nodes, shares, strict=True))
    return "nccl" if enough and nodes else "gloo"


def rank_environment(
    given: Mapping[str, str],
    rendezvous: tuple[str, int],
    rank: int,
    local: int,
    world: int,
    share: int,
    position: int,
) -> dict[str, str]:
    """What torchrun would set, over what the job is given."""
    return {
        "OMP_NUM_THREADS": "1",
        **given,
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(share),
        "NODE_RANK": str(position),
        "GROUP_RANK": str(position),
        "MASTER_ADDR": rendezvous[0],
        "MASTER_PORT": str(rendezvous[1]),
    }
