"""Values of a look at running jobs: processes as nodes tell them, ranks, jobs, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from clusterprep.jobs.diagnose.model import Diagnosis

State = Literal["stuck", "moving", "unknown"]
End = tuple[str, int, str, int]  # address, port, and those of the peer


class Frame(Struct, frozen=True):
    """A function of a Python stack and its file; `line` is where it is, or where it is defined."""

    function: str
    path: str
    line: int


class Task(Struct, frozen=True):
    """What a thread does: its state of /proc, the call it waits in and the files of that call.

    `switches` counts how often it went to sleep, `ticks` its time on a processor. `kernel` has the
    kernel's functions in which it waits, innermost first, where root looks.
    """

    tid: int
    comm: str
    state: str
    ticks: int
    switches: int | None
    wchan: str
    call: str
    files: tuple[str, ...]
    kernel: tuple[str, ...]


class Look(Struct, frozen=True):
    """One look at a process. `stack` is that of the main thread, innermost first; () if unknown."""

    state: str
    ticks: int
    threads: int
    main: Task | None
    blocked: tuple[Task, ...]  # other threads in D or T
    io: tuple[int, int] | None  # bytes read and written
    children: tuple[Task, ...]  # main threads of what it started, such as data loaders
    stack: tuple[Frame, ...]
    no_stack: str  # why there is no stack


class Process(Struct, frozen=True):
    """A rank as its node tells it, looked at twice. A look is None once the process is gone.

    `started` is in ticks since boot. `above` are the pids of what started it, `below` those of what
    it started.
    """

    pid: int
    comm: str
    rank: int | None
    size: int | None
    local: int | None
    job: tuple[tuple[str, str], ...]  # variables that tell jobs apart
    gpus: tuple[int, ...]
    first: Look | None
    second: Look | None
    started: int
    above: tuple[int, ...]
    below: tuple[int, ...]


class Socket(Struct, frozen=True):
    """A TCP socket of a rank or of its launcher, as the second look saw it.

    `passed`: bytes in both directions between the looks; `received_ago`: milliseconds since data
    came; `resent` of `segments` were sent again since it exists. All are None where the kernel does
    not count. `old`: the first look saw it too; `held`: it had data to send then.
    """

    pid: int
    of_rank: bool
    state: int
    address: str
    port: int
    peer: str
    peer_port: int
    sendq: int
    recvq: int
    again: int  # times that data was sent again in a row
    probing: bool  # the peer has no room for more
    received_ago: int | None
    passed: int | None
    resent: int | None
    segments: int | None
    old: bool
    held: bool


class NodeLook(Struct, frozen=True):
    """What one node tells. `seconds` lie between the looks; `hz` ticks are a second."""

    seconds: float
    hz: int
    processes: tuple[Process, ...]
    sockets: tuple[Socket, ...]
    others: frozenset[End]  # of the sockets of all other processes
    hidden: int  # Python processes of others that may not be looked at
    more: int  # ranks that were left out
    cut: bool  # sockets were left out, or are those of another network
    ras: str | None  # what NCCL's RAS says


class Answers(Struct, frozen=True):
    """What nodes told: looks by node, why others gave none, and the node of each address."""

    looks: Mapping[str, NodeLook]
    lost: Mapping[str, str]
    addresses: Mapping[str, str]


class Rank(Struct, frozen=True):
    """A process of a job on a node."""

    node: str
    process: Process

    @property
    def name(self) -> str:
        """«rank 3 on n2», or «pid 4711 on n2» where its number is not known."""
        number = self.process.rank
        if number is None:
            return f"pid {self.process.pid} on {self.node}"
        return f"rank {number} on {self.node}"

    @property
    def place(self) -> str:
        return f"{self.node}:{self.process.pid}"


class Job(Struct, frozen=True):
    """The ranks of one job on all nodes, in their order. `port` is that of its rendezvous."""

    name: str
    size: int | None
    ranks: tuple[Rank, ...]
    port: int | None = None


class RankRow(Struct, frozen=True):
    """One row of the table of ranks: who it is, and what it does."""

    rank: int | None
    node: str
    pid: int
    does: str


class JobRow(Struct, frozen=True):
    """One job of the report."""

    name: str
    state: State
    size: int | None
    ranks: tuple[RankRow, ...]


class LiveDiagnosis(Struct, frozen=True):
    """What is known of all jobs: stuck if one is, and what holds it up as causes."""

    state: State
    jobs: tuple[JobRow, ...]
    diagnosis: Diagnosis
