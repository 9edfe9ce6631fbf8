"""Which processes each node starts, with which words and environment: decided before any node is asked."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from clusterprep.errors import InputError
from clusterprep.jobs.launch.command import Program
from clusterprep.jobs.verify.schedule import MEETING, TORCHRUN, rank_environment, shares_of
from clusterprep.model import Node
from clusterprep.remote.agent.job import BEFORE, BEGIN
from clusterprep.runtime.lazy_dataclass import dataclass

SEED = "CLUSTERPREP_SEED"  # what clusterprep.guard reads
MOST_SEED = (1 << 32) - 1  # what PYTHONHASHSEED takes
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOGGING = (
    "--log",
    "--tee",
    "--redirects",
    "-t",
    "-r",
)  # of torchrun, where the user wants its files
_ASSIGNED = frozenset((*TORCHRUN, *MEETING))


@dataclass(frozen=True)
class LaunchRequest:
    """What the user asked for, apart from the inventory."""

    program: Program
    direct: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None  # --chdir
    here: str = (
        "/"  # where the command was given, which is where it runs on nodes that have such a folder
    )
    seed: int | None = None
    preflight: bool = True
    limit: float | None = None  # seconds, for messages


@dataclass(frozen=True)
class Share:
    """The part of one node: `first` is the rank of the first of its `count` processes."""

    node: Node
    position: int
    first: int
    count: int
    env: Mapping[str, str]
    quiet: bool = False  # its torchrun can do without a folder for logs

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(frozen=True)
class LaunchPlan:
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
        return len({share.count for share in self.shares}) < 2

    @property
    def rendezvous(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )

    @functools.cached_property
    def homes(self) -> Mapping[int, Share]:
        """The share of each rank."""
        return {rank: share for share in self.shares for rank in share.ranks}

    def torchrun(self, share: Share) -> tuple[str, ...]:
        """torchrun's own words on one node: static, as c10d orders nodes by itself and picks its own port."""
        assigned = {
            "rdzv-backend": "static",
            "nnodes": len(self.shares),
            "node-rank": share.position,
            "nproc-per-node": share.count,
            "master-addr": self.address,
            "master-port": self.port,
        }
        return tuple(f"--{name}={value}" for name, value in assigned.items())

    def request(self, share: Share) -> dict[str, Any]:
        """The body of the agent's operation `launch` for one node."""
        node, wanted = share.node, self.wanted
        return {
            "python": node.python,
            "user": node.job_user,
            "folders": [wanted.folder or wanted.here],
            "strict": wanted.folder is not None,
            "torchrun": not wanted.direct,
            "processes": self._ranks(share) if wanted.direct else [self._torchrun(share)],
        }

    def _torchrun(self, share: Share) -> dict[str, Any]:
        python, program = share.node.python, self.wanted.program
        # Its logs are ours: without a place for them torchrun leaves an empty folder in /tmp.
        logging = any(word.startswith(_LOGGING) for word in program.options)
        place = ("--log-dir=/dev/null",) if share.quiet and not logging else ()
        words = (
            *self.torchrun(share),
            *place,
            *program.options,
            "--no-python",
            python,
            f"-ISc{BEFORE}",
            *program.words,
        )
        # torchrun itself sets GROUP_RANK alone.
        env = {
            **share.env,
            "NODE_RANK": str(share.position),
            BEGIN: json.dumps(program.begin(python)),
        }
        return {"rank": None, "argv": [python, "-m", "torch.distributed.run", *words], "env": env}

    def _ranks(self, share: Share) -> list[dict[str, Any]]:
        argv = list(self.wanted.program.argv(share.node.python))
        return [{"rank": rank, "argv": argv, "env": self.environment(rank)} for rank in share.ranks]

    def environment(self, rank: int) -> dict[str, str]:
        """What a rank is given that has no torchrun in between."""
        share, meet = self.homes[rank], (self.address, self.port)
        local = rank - share.first
        return rank_environment(
            share.env, meet, rank, local, self.world_size, share.count, share.position
        )


def plan_launch(
    nodes: Sequence[Node],
    env: Mapping[str, Mapping[str, str]],
    gpus: Mapping[str, int],
    meet: tuple[str, int],
    wanted: LaunchRequest,
    quiet: Iterable[str] = (),
) -> LaunchPlan:
    """Ranks are numbered in inventory order of their nodes; `env` is what apply writes, by node.

    `quiet` names the nodes whose torchrun takes /dev/null for a place of logs.
    """
    shares, first, still = list[Share](), 0, frozenset(quiet)
    for position, (node, count) in enumerate(zip(nodes, shares_of(nodes, gpus), strict=True)):
        given = {
            **_own(wanted, count),
            **env.get(node.name, {}),
            **_seeds(wanted.seed),
            **wanted.env,
        }
        shares.append(Share(node, position, first, count, given, node.name in still))
        first += count
    return LaunchPlan(tuple(shares), wanted, *meet)


def _own(wanted: LaunchRequest, count: int) -> dict[str, str]:
    """Under what is declared: stacks at a hang, and what torchrun sets for several ranks where nothing is set."""
    return {
        "PYTHONFAULTHANDLER": "1",
        **({"OMP_NUM_THREADS": "1"} if count > 1 or wanted.direct else {}),
    }


def _seeds(seed: int | None) -> dict[str, str]:
    return {} if seed is None else {"PYTHONHASHSEED": str(seed), SEED: str(seed)}


def given_env(words: Iterable[str], mine: Mapping[str, str]) -> dict[str, str]:
    """`--env NAME=VALUE`, or `--env NAME` for the value that it has here. InputError names all that are neither."""
    found: dict[str, str] = {}
    problems = []
    for word in words:
        name, given, value = word.partition("=")
        if not _NAME.fullmatch(name):
            problems.append(f"--env {name}: a variable has letters, digits and _ in its name")
        elif name in _ASSIGNED:
            problems.append(f"--env {name}: launch assigns it to each rank")
        elif not given and name not in mine:
            problems.append(f"--env {name}: it has no value here; give one as {name}=VALUE")
        elif "\0" in value:
            problems.append(f"--env {name}: a value cannot hold a zero byte")
        else:
            found[name] = value if given else mine[name]
    if problems:
        raise InputError.of("; ".join(problems))
    return found
