"""The values that travel between the stages of a command. Frozen, with small properties only.

Imports `errors` and `runtime`. Begin with `Inventory`, `Fleet`, `Finding` and `Report` below.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from datetime import date
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from clusterprep.model.extensions import NO_EXTENSIONS, Extensions, SiteCheck
from clusterprep.model.fixes import Fix
from clusterprep.model.history import Comparison, RecordedRun, Since
from clusterprep.model.known_bad import KnownBad
from clusterprep.model.node_facts import Rows
from clusterprep.remedies import NO_REMEDY, Remedy

Json = Any  # what json.loads gives: None, bool, int, float, str, list, dict
Verdict = Literal["pass", "fail", "unknown", "skip"]
Severity = Literal["error", "warning"]

# ---------------------------------------------------------------- the inventory

MASTER_PORT = 29500  # torch's own default
ENV_TARGETS = ("profile.d", "nccl.conf")


class SshSettings(Struct, frozen=True):
    """How to log in. None leaves it to ssh_config, and then to OpenSSH's default."""

    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    config: str = "~/.ssh/config"
    known_hosts: str | None = None
    host_keys: Literal["strict", "accept-new"] = "strict"
    connect_timeout: float = 10.0  # seconds for TCP, banner and login together
    become: bool = False
    options: tuple[tuple[str, str], ...] = ()  # of ssh_config, by name, such as ProxyJump


class Gpus(Struct, frozen=True):
    """GPUs declared for a node. `use` lists the device indices of this job, in order.

    `domain` names the NVLink domain that spans this node and others, "" is one without a name;
    False keeps the job's NVLink within nodes, None declares nothing.
    """

    count: int
    model: str | None = None
    use: tuple[int, ...] | None = None
    domain: str | Literal[False] | None = None

    @property
    def used(self) -> int:
        return self.count if self.use is None else len(self.use)


class Interfaces(Struct, frozen=True):
    """Declared interfaces; None means derived, an empty tuple of `rdma` means none."""

    nccl: str | None = None
    rdma: tuple[str, ...] | None = None


class EnvSetting(Struct, frozen=True):
    """A declared value and the layer that declared it: "env", "group rack1" or "node n3"."""

    value: str
    layer: str


class Container(Struct, frozen=True):
    """The container that a job runs in; the engine starts it with `options`, one word each."""

    engine: Literal["podman", "docker", "apptainer", "enroot"]
    image: str
    options: tuple[str, ...] = ()


class Runtime(Struct, frozen=True):
    """Where a job runs on a node: in a container, or in what a shell sets up in this order."""

    container: Container | None = None
    modules: tuple[str, ...] = ()
    activate: str | None = None  # file that a shell sources
    conda: str | None = None  # name or absolute path of an environment
    venv: str | None = None  # folder


class Node(Struct, frozen=True):
    """One node with every setting resolved by precedence (node > group > top > default)."""

    name: str
    address: str
    index: int  # position in the inventory, from 0; the first node is the rendezvous
    ssh: SshSettings = SshSettings()
    transport: Literal["ssh", "local", "slurm"] = "ssh"
    root: str = "/"
    job_user: str | None = None  # None: the user that logs in
    python: str = "/usr/bin/python3"  # of the job; inside its runtime, if it has one
    gpus: Gpus | None = None  # None: not declared
    nproc_per_node: int | None = None
    flight_recorder: str | None = None  # folder of torch's dumps; None: not switched on here
    interfaces: Interfaces = Interfaces()
    env: Mapping[str, EnvSetting] = field(default_factory=dict)
    # Name of a check -> what is wanted, as written.
    require: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()  # URLs that the job needs: https, http, tcp
    shared: tuple[str, ...] = ()  # folders that are the same on all nodes
    runtime: Runtime | None = None  # None: the job runs on the node itself

    @property
    def declares_rdma(self) -> bool:
        return bool(self.interfaces.rdma)


class Silence(Struct, frozen=True):
    """An accepted finding: shown as such, not counted until `until` (the last day it holds)."""

    check: str
    nodes: frozenset[str]
    reason: str
    until: date | None = None


class VerifySettings(Struct, frozen=True):
    """How to run a verify, as the inventory declares it."""

    backend: Literal["auto", "nccl", "gloo"] = "auto"
    sizes: tuple[int, ...] | None = None  # bytes; None: those of the backend
    timeout: float = 60.0  # seconds for one collective stage
    min_busbw: float | None = None  # GB/s
    same_files: tuple[str, ...] = ()  # compared on all ranks


class Inventory(Struct, frozen=True):
    """A whole inventory after ranges, groups and precedence."""

    cluster: str
    nodes: tuple[Node, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    master_port: int = MASTER_PORT
    env_targets: tuple[str, ...] = ENV_TARGETS
    env_units: tuple[str, ...] = ()  # units of systemd that the target systemd writes drop-ins for
    silences: tuple[Silence, ...] = ()
    verify: VerifySettings = VerifySettings()
    left_out: tuple[Node, ...] = ()  # nodes of the file that this command leaves alone
    warnings: tuple[str, ...] = ()  # unknown NCCL_* names and the like; shown, never fatal
    path: str = ""
    known_bad: tuple[KnownBad, ...] = ()  # the site's own entries of bad versions
    extensions: Extensions = NO_EXTENSIONS  # checks, facts and resources of the site


# ---------------------------------------------------------------- evidence and judgement


class Absent(Struct, frozen=True, rename={"reason": "absent"}):
    """Why something is not known. Never equal to any value. In JSON its reason is `absent`."""

    # denied, missing_tool, timed_out, hung, garbled, not_asked, … or a sentence.
    reason: str
    detail: str = ""


NOT_ASKED = Absent("not_asked")


class Read(Struct, frozen=True):
    """A question to a node: a reader of the agent, its arguments, a limit in seconds."""

    kind: str
    args: tuple[Json, ...] = ()
    limit: float = 5.0


class NodeSnapshot(Struct, frozen=True):
    """The result of looking at one node.

    Whether it was reached, and every fact that was asked for.
    """

    node: str
    address: str
    reached: bool
    reason: str | None = None
    detail: str = ""
    remedy: Remedy = NO_REMEDY
    answered: bool = True  # False: the node gave no answer at all
    facts: Mapping[str, Any] = field(default_factory=dict)  # fact name -> value or Absent
    seconds: float = 0.0
    login: float = 0.0  # how many of these seconds passed until the agent first answered


class Lasting(Struct, frozen=True):
    """A value that follows from the inventory, the nodes reached, and these facts alone."""

    value: Any
    facts: frozenset[str]


class Fleet(Struct, frozen=True, dict=True):
    """Everything known about the nodes at one moment."""

    inventory: Inventory
    snapshots: Mapping[str, NodeSnapshot]
    limited: bool = False  # only a part of the inventory was contacted

    @functools.cached_property
    def derived(self) -> dict[str, Any]:
        """Return the store for values that follow from this fleet (memoize.py); it starts empty."""
        return {}

    @functools.cached_property
    def lasting(self) -> dict[Hashable, Lasting]:
        """Return the store for those that a copy keeps while their facts are the same."""
        return {}

    @functools.cached_property
    def reached(self) -> tuple[Node, ...]:
        """Return the nodes that were reached, in the order of the inventory."""
        nodes = []
        for node in self.inventory.nodes:
            snapshot = self.snapshots.get(node.name)
            if snapshot is not None and snapshot.reached:
                nodes.append(node)
        return tuple(nodes)

    def fact(self, node: str, name: str) -> Any:
        """Return the value of a fact on a node, or the Absent that says why it is not known."""
        return self.snapshots[node].facts.get(name, NOT_ASKED)

    def with_facts(self, added: Mapping[str, Mapping[str, Any]]) -> Fleet:
        """Return a copy in which the nodes named in `added` have these facts besides their own.

        `added` maps a node's name to facts by name. A fact of the same name is replaced.
        """
        snapshots = dict(self.snapshots)
        rows = Rows()
        for name, facts in added.items():
            before = snapshots[name]
            snapshots[name] = replace(before, facts=rows.extended(before.facts, facts))
        fleet = replace(self, snapshots=snapshots)
        changed = set().union(*added.values())
        for key, lasting in self.lasting.items():
            if lasting.facts.isdisjoint(changed):
                fleet.lasting[key] = lasting
        return fleet


class Because(Struct, frozen=True):
    """A cause of a finding: the findings of this check on these nodes."""

    check: str
    nodes: tuple[str, ...]


class Finding(Struct, frozen=True):
    """One answer of one check about a set of nodes, as in the report."""

    check: str
    verdict: Verdict
    severity: Severity
    nodes: tuple[str, ...]
    message: str
    seen: str = ""
    wanted: str = ""
    remedy: Remedy = NO_REMEDY
    reason: str | None = None
    fixed: bool = False
    silenced: str | None = None  # the reason of the silence
    until: date | None = None  # the last day on which it holds
    age: float | None = None  # seconds since it was learned, where it was not now
    because: tuple[Because, ...] = ()  # what it follows from; it does not count then
    fix: Fix | None = None  # what `clusterprep fix` would do about it


# ---------------------------------------------------------------- wanted state


class EnvValue(Struct, frozen=True):
    """One variable as it will be written on `nodes`, and why it has this value."""

    name: str
    value: str
    nodes: tuple[str, ...]
    why: str
    declared: bool = False


class EnvPath(Struct, frozen=True):
    """The variables that one launch path gets on `nodes`.

    `add` says how it would get the others.
    """

    path: str
    reaches: tuple[str, ...]
    nodes: tuple[str, ...]
    add: str = ""


StepOutcome = Literal[
    "planned", "done", "unchanged", "failed", "rolled-back", "undone", "not-started", "unanswered"
]


class ChangeRow(Struct, frozen=True):
    """Equal changes of several nodes, as in the report."""

    nodes: tuple[str, ...]
    resource: str
    target: str
    action: str
    outcome: StepOutcome
    diff: str = ""
    detail: str = ""


class BatchRow(Struct, frozen=True):
    """One batch of an apply, and what became of it.

    `gate` is None where it was not asked, as the batch was not written or no gate was wanted.
    """

    name: str
    nodes: tuple[str, ...]
    outcome: StepOutcome
    gate: Verdict | None = None
    detail: str = ""


# ---------------------------------------------------------------- verify and launch


class Stage(Struct, frozen=True):
    """One stage of a verify. `arrived` and `missing` are ranks."""

    name: str
    seconds: float
    verdict: Verdict
    arrived: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    limit: float | None = None  # seconds; None: none of its own
    # When each of `arrived` did, in seconds since the stage began; empty if that was not seen.
    after: tuple[float, ...] = ()


class CollectiveResult(Struct, frozen=True):
    """One timed collective: `bytes` per rank, `seconds` of the median repetition.

    GB/s are those of nccl-tests (doc/PERFORMANCE.md).
    """

    op: str
    bytes: int
    seconds: float
    algbw_gbs: float
    busbw_gbs: float
    wrong: int
    dtype: str = "float32"


class RankGpu(Struct, frozen=True):
    uuid: str
    index: int | None  # as nvidia-smi counts; None if not known
    pci: str
    numa: int | None


class RankRow(Struct, frozen=True):
    rank: int
    local_rank: int
    node: str
    gpu: RankGpu | None
    last_event: str


class RankPlace(Struct, frozen=True):
    """A rank that a launcher would start, and the GPU that it would have; `why` there is none."""

    rank: int
    local_rank: int
    node: str
    gpu: RankGpu | None
    why: str = ""


class GpuSeat(Struct, frozen=True):
    """A GPU as `nodes` have it: where it is on the bus, and what is near.

    `nvlinks` are those that are up, None where NVML does not say; `near` are the RDMA ports of the
    training under one PCIe switch with it.
    """

    nodes: tuple[str, ...]
    index: int
    model: str
    pci: str
    numa: int | None
    nvlinks: int | None = None
    near: tuple[str, ...] = ()


class Culprit(Struct, frozen=True):
    kind: Literal["node", "link", "rank", "gpu", "interface"]
    nodes: tuple[str, ...]
    confidence: float
    cause: str
    evidence: tuple[str, ...] = ()
    rank: int | None = None
    source: str | None = None  # "from" in the report
    target: str | None = None  # "to" in the report


class Workaround(Struct, frozen=True):
    """The verify repeated with some settings on top of the environment; () repeats it unchanged."""

    settings: tuple[str, ...]  # NAME=value
    works: bool
    busbw_gbs: float | None = None  # of the largest message that all ranks exchanged, and its size
    bytes: int | None = None
    share: float | None = None  # of the fastest workaround
    why: str = ""


class PairSpeed(Struct, frozen=True):
    """One measured pair of nodes.

    GB/s in each direction, shortest round trip in seconds, by TCP.
    """

    nodes: tuple[str, str]
    word: str  # ok, or why it could not be measured
    there_gbs: float | None = None
    back_gbs: float | None = None
    rtt: float | None = None
    resent: int | None = None  # segments that had to be sent once more


class SpeedRange(Struct, frozen=True):
    """How fast an all-reduce of `bytes` was in repeated rounds: bus bandwidth in GB/s."""

    bytes: int
    slowest_gbs: float
    median_gbs: float
    fastest_gbs: float


class Acceptance(Struct, frozen=True):
    """The rounds of `verify --for`: how long they were to run and did, and what they measured.

    They are not `finished` if one did not end well, or something ended the command before.
    """

    wanted: float
    seconds: float
    rounds: int
    speeds: tuple[SpeedRange, ...] = ()
    finished: bool = True


class VerifyResult(Struct, frozen=True):
    verdict: Verdict
    backend: str
    world_size: int
    nproc_per_node: int
    rendezvous: str
    stages: tuple[Stage, ...] = ()
    collectives: tuple[CollectiveResult, ...] = ()
    ranks: tuple[RankRow, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    message: str = ""
    workarounds: tuple[Workaround, ...] = ()
    pairs: tuple[PairSpeed, ...] = ()
    acceptance: Acceptance | None = None  # of --for


class LaunchedRank(Struct, frozen=True):
    """One rank of a launch and how it ended: by itself, by a signal, or because others ended."""

    rank: int
    local_rank: int
    node: str
    ended: Literal["finished", "failed", "killed", "with-others", "lost", "hanging", "not-started"]
    code: int | None = None
    signal: str | None = None


class LaunchResult(Struct, frozen=True):
    verdict: Verdict
    mode: Literal["torchrun", "direct"]
    world_size: int
    nproc_per_node: int
    rendezvous: str
    folders: Mapping[str, str] = field(default_factory=dict)  # node -> where its processes worked
    logs: str = ""
    ranks: tuple[LaunchedRank, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    timed_out: bool = False
    # What `diagnose` says of the logs: cause, severity, culprit and so on.
    causes: tuple[Mapping[str, Json], ...] = ()
    message: str = ""


class BisectRun(Struct, frozen=True):
    """One run of the command of a bisect on some of the nodes; `cause` is its first failure."""

    number: int
    nodes: tuple[str, ...]
    ended: Literal["passed", "failed", "hung", "slow"]
    seconds: float
    cause: str = ""


class BisectResult(Struct, frozen=True):
    """What a bisect found. It fails if culprits are known, and passes if there are none."""

    verdict: Verdict
    command: tuple[str, ...]
    most_runs: int
    runs: tuple[BisectRun, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    message: str = ""
    logs: str = ""


class NodeLists(Struct, frozen=True):
    """Which nodes a job may use, each list in inventory order.

    `picked` are those that --pick chose, None without it, and `wanted` how many it wants, if fewer
    pass. `folder` has the lists as files, "" if they were not written.
    """

    passing: tuple[str, ...]
    failing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    picked: tuple[str, ...] | None = None
    folder: str = ""
    wanted: int | None = None


class CommandResult(Struct, frozen=True):
    """How a command of `exec` ended on some nodes, and what it printed there.

    `exit_code` is None if it is not known, or if the command ended without one; `reason` then says
    why.
    """

    nodes: tuple[str, ...]
    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float  # of the node that took longest
    reason: str | None = None
    left_out: int = 0  # bytes of output that were not kept


class FixRow(Struct, frozen=True):
    """What became of a failure that `fix` looked at; `reason` says why it is still there.

    `by hand` is what `fix` does not do by itself, `planned` and `not done` what it would have done.
    """

    check: str
    nodes: tuple[str, ...]
    outcome: Literal["cured", "not cured", "by hand", "planned", "not done"]
    reason: str = ""


class NodeGroup(Struct, frozen=True):
    """A group of the inventory."""

    name: str
    nodes: tuple[str, ...]


class Report(Struct, frozen=True):
    """Everything a command reports.

    A section that it does not produce is None, and not in the JSON.
    """

    command: str
    run: str
    cluster: str
    started: str  # RFC 3339, UTC
    seconds: float
    verdict: str  # pass, fail, unknown, error, refused, interrupted
    code: int
    nodes: tuple[NodeSnapshot, ...] | None = None
    findings: tuple[Finding, ...] | None = None
    env: tuple[EnvValue, ...] | None = None
    env_paths: tuple[EnvPath, ...] | None = None
    changes: tuple[ChangeRow, ...] | None = None
    verify: VerifyResult | None = None
    launch: LaunchResult | None = None
    bisect: BisectResult | None = None
    results: tuple[CommandResult, ...] | None = None  # of exec, equal ones folded
    error: Mapping[str, Json] | None = None
    notices: tuple[str, ...] = ()  # limited run, what was settled first, unknown variable names
    strict: bool = False  # warnings count too
    since: Since | None = None  # what turned since an earlier run
    runs: tuple[RecordedRun, ...] | None = None  # earlier runs
    comparison: Comparison | None = None  # of two earlier runs
    gpus: tuple[GpuSeat, ...] | None = None
    ranks: tuple[RankPlace, ...] | None = None  # as a launcher would number them
    batches: tuple[BatchRow, ...] | None = None  # of an apply in batches
    site_checks: tuple[SiteCheck, ...] | None = None  # those of the site that have findings
    lists: NodeLists | None = None
    inventory: str = ""  # path as it was given; empty where none was read
    fixes: tuple[FixRow, ...] | None = None  # of a fix: each failure that it looked at
    groups: tuple[NodeGroup, ...] | None = None  # of the inventory, with the nodes of this report
    held_by: tuple[str, ...] = ()  # not reached: without --partial nothing is written elsewhere
