"""Plan which processes each node starts, with which arguments and environment.

It is decided before any node is asked to start one.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field

from clusterprep.errors import InputError
from clusterprep.jobs.launch.command import Program
from clusterprep.jobs.verify.schedule import (
    RENDEZVOUS_VARIABLES,
    TORCHRUN_VARIABLES,
    rank_environment,
    ranks_per_node,
)
from clusterprep.model import Node
from clusterprep.model.runtimes import in_request
from clusterprep.remote.agent.job import BEFORE, BEGIN

SEED = "CLUSTERPREP_SEED"  # what clusterprep.guard reads
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Options of torchrun with which users choose where its log files go.
_LOGGING = ("--log", "--tee", "--redirects", "-t", "-r")
_ASSIGNED = frozenset((*TORCHRUN_VARIABLES, *RENDEZVOUS_VARIABLES))


class LaunchRequest(Struct, frozen=True):
    """What the user asked for, apart from the inventory."""

    program: Program
    direct: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None  # --chdir
    here: str = "/"  # current directory of the command; processes start there on nodes that have it
    seed: int | None = None
    preflight: bool = True
    limit: float | None = None  # seconds, for messages
    image: str = ""  # of the job's container, for forms that need one

    @property
    def mode(self) -> Literal["torchrun", "direct"]:
        if self.direct:
            return "direct"
        return "torchrun"


class Share(Struct, frozen=True):
    """The part of one node: `first` is the rank of the first of its `count` processes."""

    node: Node
    position: int
    first: int
    count: int
    env: Mapping[str, str]
    quiet: bool = False  # its torchrun can do without a folder for logs
    gpus: int = 0  # in use by the job

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.count)


class LaunchPlan(Struct, frozen=True, dict=True):
    shares: tuple[Share, ...]
    wanted: LaunchRequest
    address: str
    port: int

    @property
    def world_size(self) -> int:
        return sum(share.count for share in self.shares)

    @property
    def nproc_per_node(self) -> int:
        return max((share.count for share in self.shares), default=0)

    @property
    def even(self) -> bool:
        """Return True if all nodes start the same number of processes."""
        counts = {share.count for share in self.shares}
        return len(counts) < 2

    @property
    def rendezvous(self) -> str:
        if ":" in self.address:  # IPv6
            return f"[{self.address}]:{self.port}"
        return f"{self.address}:{self.port}"

    @functools.cached_property
    def homes(self) -> Mapping[int, Share]:
        """The share of each rank."""
        homes: dict[int, Share] = {}
        for share in self.shares:
            for rank in share.ranks:
                homes[rank] = share
        return homes

    def torchrun_options(self, share: Share) -> tuple[str, ...]:
        """Return the options of torchrun that launch assigns on one node.

        The rendezvous is static, as c10d orders nodes by itself and picks a port of its own.
        """
        return (
            "--rdzv-backend=static",
            f"--nnodes={len(self.shares)}",
            f"--node-rank={share.position}",
            f"--nproc-per-node={share.count}",
            f"--master-addr={self.address}",
            f"--master-port={self.port}",
        )

    def agent_request(self, share: Share) -> dict[str, Any]:
        """Return the body of the agent's operation `launch` for one node."""
        wanted = self.wanted
        if wanted.direct:
            processes = self._rank_processes(share)
        else:
            processes = [self._torchrun_process(share)]
        return {
            "python": share.node.python,
            "user": share.node.job_user,
            "folders": [wanted.folder or wanted.here],
            "strict": wanted.folder is not None,
            "torchrun": not wanted.direct,
            "processes": processes,
            **in_request(share.node.runtime),
        }

    def script_request(self, share: Share) -> dict[str, Any]:
        """Return the body of the agent's operation `script`: where the node will look for it."""
        request = self.agent_request(share)
        body = {key: request[key] for key in ("user", "folders", "strict")}
        body["path"] = self.wanted.program.command[0]
        return body

    def _torchrun_process(self, share: Share) -> dict[str, Any]:
        """Return the torchrun of a node as the agent takes it: rank (None), argv, env.

        It starts each rank by `BEFORE`, which connects the rank's streams to the agent and then
        becomes the program that `BEGIN` and argv name.
        """
        python = share.node.python
        program = self.wanted.program
        argv = [python, "-m", "torch.distributed.run"]
        argv.extend(self.torchrun_options(share))
        sets_logging = any(option.startswith(_LOGGING) for option in program.options)
        if share.quiet and not sets_logging:
            # Launch keeps the logs. Without a place for its own torchrun leaves an empty folder in
            # /tmp.
            argv.append("--log-dir=/dev/null")
        argv.extend(program.options)
        argv.extend(["--no-python", python, f"-ISc{BEFORE}"])
        argv.extend(program.command)
        env = dict(share.env)
        env["NODE_RANK"] = str(share.position)  # torchrun itself sets GROUP_RANK alone
        env[BEGIN] = json.dumps(program.interpreter(python))
        return {
            "rank": None,
            "argv": argv,
            "env": env,
        }

    def _rank_processes(self, share: Share) -> list[dict[str, Any]]:
        """Return the ranks of a node as the agent takes them, without torchrun: rank, argv, env."""
        processes: list[dict[str, Any]] = []
        for rank in share.ranks:
            local_rank = rank - share.first
            argv = list(self.wanted.program.argv_of_rank(share.node.python, local_rank))
            env = self.environment(rank)
            processes.append(
                {
                    "rank": rank,
                    "argv": argv,
                    "env": env,
                }
            )
        return processes

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment of a rank that is started without torchrun."""
        share = self.homes[rank]
        rendezvous = (self.address, self.port)
        local_rank = rank - share.first
        return rank_environment(
            share.env,
            rendezvous,
            rank,
            local_rank,
            self.world_size,
            share.count,
            share.position,
        )


def plan_launch(
    nodes: Sequence[Node],
    env: Mapping[str, Mapping[str, str]],
    gpus: Mapping[str, int],
    rendezvous: tuple[str, int],
    wanted: LaunchRequest,
    quiet: Iterable[str] = (),
) -> LaunchPlan:
    """Return the plan, with ranks in the order of the nodes.

    `env` has the variables that apply writes, by node. `quiet` names the nodes whose torchrun takes
    /dev/null as the place of its logs.
    """
    quiet_nodes = frozenset(quiet)
    shares: list[Share] = []
    first_rank = 0
    counts = ranks_per_node(nodes, gpus)
    for position, (node, count) in enumerate(zip(nodes, counts, strict=True)):
        node_env = _defaults(count)
        node_env.update(env.get(node.name, {}))
        node_env.update(_seeds(wanted.seed))
        node_env.update(wanted.env)
        is_quiet = node.name in quiet_nodes
        shares.append(
            Share(
                node,
                position,
                first_rank,
                count,
                node_env,
                is_quiet,
                gpus.get(node.name, 0),
            )
        )
        first_rank += count
    address, port = rendezvous
    return LaunchPlan(tuple(shares), wanted, address, port)


def _defaults(count: int) -> dict[str, str]:
    """Return variables that everything declared overrides."""
    env = {"PYTHONFAULTHANDLER": "1"}  # prints stacks at a hang
    if count > 1:
        env["OMP_NUM_THREADS"] = "1"  # as torchrun sets it for several ranks
    return env


def _seeds(seed: int | None) -> dict[str, str]:
    if seed is None:
        return {}
    return {
        "PYTHONHASHSEED": str(seed),
        SEED: str(seed),
    }


def parse_env_options(assignments: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Parse the values of `--env`: `NAME=VALUE`, or `NAME` for its value in `environ`.

    Raises InputError that names all wrong ones.
    """
    env: dict[str, str] = {}
    problems: list[str] = []
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        has_value = bool(equals)
        problem = _problem_of(name, value, has_value or name in environ)
        if problem:
            problems.append(f"--env {name}: {problem}")
        elif has_value:
            env[name] = value
        else:
            env[name] = environ[name]
    if problems:
        raise InputError.of("; ".join(problems))
    return env


def _problem_of(name: str, value: str, is_known: bool) -> str:
    """Return what is wrong with a variable of `--env`; empty if it is right."""
    if not _NAME.fullmatch(name):
        return "a variable has letters, digits and _ in its name"
    if name in _ASSIGNED:
        return "launch assigns it to each rank"
    if not is_known:
        return f"it has no value here; give one as {name}=VALUE"
    if "\0" in value:
        return "a value cannot hold a zero byte"
    return ""
