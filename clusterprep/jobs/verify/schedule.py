"""The plan of a trial: which node runs which rank, with which environment and which collectives."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from clusterprep.jobs.verify.hardware_model import VALID_FROM
from clusterprep.model import Node, VerifySettings
from clusterprep.model.colocation import largest_group, neighbours
from clusterprep.model.runtimes import in_request

# Set for the trial alone, and over what is declared: NCCL logs how it connects, and that is
# compared with what was written. BOOTSTRAP is where NCCL 2.23 and later log the interface. The
# empty file name keeps the lines on stdout even if an nccl.conf of the node sends them to a file: a
# variable that is set wins over the conf file, and an empty name means stdout.
NCCL_LOGGING = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET,BOOTSTRAP",
    "NCCL_DEBUG_FILE": "",
}

# With device_id torch 2.7.0 lets NCCL connect without blocking, in which NCCL 2.26 may hang
# (pytorch issues 152623 and 153960). Nothing is lost by it with other releases. What is declared
# goes before.
NCCL_SETTINGS = {"TORCH_NCCL_USE_COMM_NONBLOCKING": "0"}

# Ranks that share a GPU take turns on it, and their kernels have to fit. What is declared goes
# before.
SHARED_GPU_SETTINGS = {"NCCL_MAX_CTAS": "1"}

# Bytes of the all-reduces where the inventory declares none. Over NCCL there is one more, of the
# size from which on the hardware model holds.
SIZES = (8, 1024, 1 << 20, 64 << 20)
# Seconds in which NCCL connects ranks: it took close to a minute on eight B200 (NVIDIA/nccl issue
# 1646), and loads its kernels from a shared file system first. Of a subset, whose tests are many,
# less is waited for.
NCCL_MEETING = 180.0
SUBSET_MEETING = 60.0
# A size is cut short if one run of it would take so many times longer than over the usual link,
# judged by the size before it. No size is cut whose run takes less than SHORT seconds: little time
# is to be gained, and busy processors make small messages slow.
SLOWER_THAN_LINKS = 20
SHORT = 5.0

# From collectives that use a ring of pairs to the one that uses all pairs: if a pair is cut, the
# results of those before it are known.
OTHER_COLLECTIVES = ("all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all")
OTHER_TYPES = ("bfloat16", "int32")
MEDIUM_SIZE = 1 << 20  # bytes
# Numbers of float32 elements with which jobs of users hung: what each rank gave to an all-gather
# (at the end of a llama-recipes run, NumelIn in the line of the watchdog), and what was broadcast
# (AutoTrain, at "creating trainer").
INCIDENT_ALL_GATHER, INCIDENT_BROADCAST = 262_675_456, 253_440_000
FLOAT32_BYTES = 4


class ScheduledTest(Struct, frozen=True):
    """One collective of one size; `bytes` is the larger buffer of a rank, as nccl-tests counts."""

    op: str
    bytes: int
    dtype: str = "float32"
    repetitions: int | None = None  # None: as many as fit into the ranks' own budget
    fit: bool = False  # the ranks may make it smaller, so that memory and time suffice
    among: int = 1  # nodes that have this memory together
    # Seconds that one run may take by the speed of the size before; one that would take longer is
    # cut short.
    longest: float | None = None


class PlannedRank(Struct, frozen=True):
    """One process of the trial and its whole environment."""

    rank: int
    local_rank: int
    node: str
    env: Mapping[str, str]


class TrialPlan(Struct, frozen=True, dict=True):
    """All that a trial needs to know; ranks are numbered in inventory order of their nodes."""

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
    meeting: float = 0.0  # seconds until ranks are connected; at least `timeout`

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def rendezvous(self) -> str:
        """Host and port of the store, with an IPv6 address in brackets."""
        if ":" in self.address:
            return f"[{self.address}]:{self.port}"
        return f"{self.address}:{self.port}"

    @functools.cached_property
    def ranks_by_node(self) -> Mapping[str, tuple[PlannedRank, ...]]:
        grouped: dict[str, list[PlannedRank]] = {}
        for node in self.nodes:
            grouped[node.name] = []
        for rank in self.ranks:
            grouped[rank.node].append(rank)
        return {name: tuple(ranks) for name, ranks in grouped.items()}

    @property
    def nproc_per_node(self) -> int:
        """The most ranks of one node; in a sound inventory all have as many (launch.nproc)."""
        counts = map(len, self.ranks_by_node.values())
        return max(counts, default=0)

    def request(self, node: Node, source: str) -> dict[str, Any]:
        """Return the body of the agent's operation `start` for one node.

        `source` is the program of the ranks.
        """
        ranks: list[dict[str, Any]] = []
        for rank in self.ranks_by_node[node.name]:
            env = dict(rank.env)
            ranks.append(
                {
                    "rank": rank.rank,
                    "env": env,
                }
            )
        config: dict[str, Any] = {"backend": self.backend}
        config["gpus"] = self.gpus.get(node.name, 0)
        config["same_files"] = list(self.same_files)
        body: dict[str, Any] = {"python": node.python}
        body["user"] = node.job_user
        body["source"] = source
        body["ranks"] = ranks
        body["config"] = config
        body.update(in_request(node.runtime))
        return body

    def tasks(self, node: Node) -> list[dict[str, Any]]:
        """Return what the ranks of one node do with all others, in the order of `request`."""
        steps = [asdict(step) for step in self.steps]
        tasks: list[dict[str, Any]] = []
        for rank in self.ranks_by_node[node.name]:
            task: dict[str, Any] = {
                "rank": rank.rank,
                "world": self.world_size,
            }
            task["address"] = self.address
            task["port"] = self.port
            task["timeout"] = self.timeout
            task["meeting"] = self.meeting
            task["steps"] = steps
            tasks.append(task)
        return tasks


def plan_trial(
    nodes: Sequence[Node],
    env: Mapping[str, Mapping[str, str]],
    rendezvous: tuple[str, int],
    settings: VerifySettings,
    gpus: Mapping[str, int],
    further: Sequence[ScheduledTest] = (),
) -> TrialPlan:
    """Plan a trial with one rank per GPU in use, or `nproc_per_node` ranks on each CPU node.

    `env` is the job's environment per node, `gpus` the number of GPUs in use per node (absent:
    none). The sizes of `settings` are those of all_reduce in float32; `further` collectives come
    after them.
    """
    shares = ranks_per_node(nodes, gpus)
    backend: str = settings.backend
    if backend == "auto":
        backend = _backend(nodes, shares, gpus)
    logging: Mapping[str, str] = {}
    defaults: Mapping[str, str] = {}
    meeting = settings.timeout
    most_sharing = 1
    if backend == "nccl":
        logging = NCCL_LOGGING
        defaults = NCCL_SETTINGS
        meeting = max(meeting, NCCL_MEETING)
        most_sharing = largest_group(nodes, gpus, env)
    if most_sharing > 1:
        defaults = {**defaults, **SHARED_GPU_SETTINGS}
    world = sum(shares)
    ranks: list[PlannedRank] = []
    for position, node in enumerate(nodes):
        share = shares[position]
        declared = env.get(node.name, {})
        given = {
            "OMP_NUM_THREADS": "1",  # so that a trial is the same whatever the number of ranks
            **defaults,
            **declared,
            **logging,
        }
        for local in range(share):
            rank = len(ranks)
            values = rank_environment(
                given,
                rendezvous,
                rank,
                local,
                world,
                share,
                position,
            )
            ranks.append(PlannedRank(rank, local, node.name, values))
    largest = VALID_FROM if backend == "nccl" and most_sharing == 1 else None
    sweep = sweep_steps(settings, largest)
    address, port = rendezvous
    return TrialPlan(
        nodes=tuple(nodes),
        ranks=tuple(ranks),
        backend=backend,
        address=address,
        port=port,
        steps=(*sweep, *further),
        timeout=settings.timeout,
        gpus=dict(gpus),
        min_busbw=settings.min_busbw,
        same_files=settings.same_files,
        most_sharing=most_sharing,
        meeting=max(meeting, settings.timeout),
    )


def sweep_steps(settings: VerifySettings, largest: int | None) -> list[ScheduledTest]:
    """Return the all-reduces whose speed is judged.

    Where no sizes are declared, one of `largest` bytes is the last, made smaller where it does not
    fit into memory or time limit.
    """
    declared = settings.sizes
    steps = [ScheduledTest("all_reduce", size) for size in declared or SIZES]
    if declared is None and largest is not None:
        steps.append(ScheduledTest("all_reduce", largest, fit=True))
    return steps


def with_link_speed(plan: TrialPlan, usual: float) -> TrialPlan:
    """Return the plan in which sizes are cut short that are far slower than the links.

    `usual` is the speed of most links in bytes per second, 0 if none was measured.
    """
    if not usual:
        return plan
    world = plan.world_size
    steps: list[ScheduledTest] = []
    for step in plan.steps:
        is_timed = step.op == "all_reduce" and step.repetitions is None
        if is_timed:
            carried = step.bytes * 2 * (world - 1) / world
            longest = max(SHORT, SLOWER_THAN_LINKS * carried / usual)
            step = replace(step, longest=longest)  # noqa: PLW2901
        steps.append(step)
    return replace(plan, steps=tuple(steps))


def ranks_per_node(nodes: Sequence[Node], gpus: Mapping[str, int]) -> list[int]:
    """Return how many ranks each node runs: as declared, else one per GPU in use, else one."""
    shares: list[int] = []
    for node in nodes:
        in_use = gpus.get(node.name, 0)
        shares.append(node.nproc_per_node or in_use or 1)
    return shares


def other_steps(settings: VerifySettings) -> tuple[ScheduledTest, ...]:
    """Return every other collective and every other type once, at a medium size.

    They show whether a collective works, not how fast it is.
    """
    largest = max(settings.sizes or SIZES)
    size = min(MEDIUM_SIZE, largest)
    steps = [ScheduledTest("all_reduce", size, dtype, repetitions=1) for dtype in OTHER_TYPES]
    for op in OTHER_COLLECTIVES:
        size_of_op = 0 if op == "barrier" else size
        steps.append(ScheduledTest(op, size_of_op, repetitions=1))
    return tuple(steps)


def with_incident_sizes(plan: TrialPlan) -> TrialPlan:
    """Return the plan with the sizes of known incidents after all other collectives."""
    among = plan.most_sharing
    if plan.backend != "nccl":
        among = max(1, len(neighbours(plan.nodes)))
    gathered_bytes = FLOAT32_BYTES * INCIDENT_ALL_GATHER * plan.world_size
    broadcast_bytes = FLOAT32_BYTES * INCIDENT_BROADCAST
    gathered = ScheduledTest(
        "all_gather",
        gathered_bytes,
        repetitions=1,
        fit=True,
        among=among,
    )
    broadcast = ScheduledTest(
        "broadcast",
        broadcast_bytes,
        repetitions=1,
        fit=True,
        among=among,
    )
    steps = (*plan.steps, gathered, broadcast)
    return replace(plan, steps=steps)


TORCHRUN_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
)
RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")


def without_launcher_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a rank without the variables that a launcher sets."""
    remaining = dict(env)
    for name in (*TORCHRUN_VARIABLES, *RENDEZVOUS_VARIABLES):
        remaining.pop(name, None)
    return remaining


def plan_subset(
    plan: TrialPlan,
    names: Sequence[str],
    rendezvous: tuple[str, int],
    steps: Sequence[ScheduledTest],
    timeout: float,
    **env: str,
) -> TrialPlan:
    """Return a trial of some nodes of a plan, in the order of `names`.

    `rendezvous` is an address of the first of them. `env` goes over the environment of the ranks in
    `plan`.
    """
    world = 0
    for name in names:
        world += len(plan.ranks_by_node[name])
    ranks: list[PlannedRank] = []
    for position, name in enumerate(names):
        node_ranks = plan.ranks_by_node[name]
        share = len(node_ranks)
        for old in node_ranks:
            number = len(ranks)
            given = without_launcher_variables(old.env)
            given.update(env)
            values = rank_environment(
                given, rendezvous, number, old.local_rank, world, share, position
            )
            ranks.append(replace(old, rank=number, env=values))
    node_by_name = {node.name: node for node in plan.nodes}
    nodes = tuple(node_by_name[name] for name in names)
    address, port = rendezvous
    return replace(
        plan,
        nodes=nodes,
        ranks=tuple(ranks),
        address=address,
        port=port,
        steps=tuple(steps),
        timeout=timeout,
        meeting=max(timeout, min(plan.meeting, SUBSET_MEETING)),
    )


def _backend(nodes: Sequence[Node], shares: Sequence[int], gpus: Mapping[str, int]) -> str:
    """Return nccl if every rank has a GPU of its own, else gloo.

    NCCL refuses two ranks on one GPU.
    """
    if not nodes:
        return "gloo"
    for node, share in zip(nodes, shares, strict=True):
        if gpus.get(node.name, 0) < share:
            return "gloo"
    return "nccl"


def rank_environment(
    given: Mapping[str, str],
    rendezvous: tuple[str, int],
    rank: int,
    local: int,
    world: int,
    share: int,
    position: int,
) -> dict[str, str]:
    """Return the variables that torchrun would set, over those that the job is given."""
    address, port = rendezvous
    env = dict(given)
    env["RANK"] = str(rank)
    env["LOCAL_RANK"] = _number_text(local)
    env["WORLD_SIZE"] = _number_text(world)
    env["LOCAL_WORLD_SIZE"] = _number_text(share)
    env["NODE_RANK"] = _number_text(position)
    env["GROUP_RANK"] = _number_text(position)
    env["MASTER_ADDR"] = address
    env["MASTER_PORT"] = _number_text(port)
    return env


@functools.lru_cache(maxsize=256)
def _number_text(number: int) -> str:
    """Return a number as text, as one object for the ranks that follow each other."""
    return str(number)
