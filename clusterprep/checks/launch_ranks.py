"""Variables that a launcher sets for each rank, left behind in a file that every process reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.checks.env import BASHRC, by_place, cure, holes, place, planted, said
from clusterprep.checks.launch_nproc import gpus_of
from clusterprep.facts.environment import Setting
from clusterprep.model import Node
from clusterprep.nccl.interfaces import choose
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Seat:
    """Where a node stands in the job of the inventory; `count` and `first` are None where GPUs cannot be counted."""

    position: int
    nodes: int
    count: int | None
    first: int | None
    world: int | None
    masters: frozenset[str]
    port: int


def leftovers(context: CheckContext) -> Iterable[Outcome]:
    yield from holes(context)
    seats = _seats(context)
    for node in context.nodes:
        well = True
        for setting, where in by_place(context.value(node, "env.paths")).items():
            rule = RULES.get(setting.name)
            if rule is None or where == ("nccl",):  # nobody but NCCL reads its conf files
                continue
            wanted = rule(seats[node.name])
            if wanted is not None and setting.value not in wanted:
                well = False
                yield _left(node, setting, where, wanted)
        if well:
            yield Outcome(
                "pass",
                (node.name,),
                "no launch path has ranks or a rendezvous other than the inventory's",
            )


def _left(node: Node, setting: Setting, where: tuple[str, ...], wanted: frozenset[str]) -> Outcome:
    message = f"{place(setting)} has left {setting.name} behind, and it contradicts the inventory"
    right = " or ".join(sorted(wanted)) or "different on each rank, so set by the launcher alone"
    return Outcome("fail", (node.name,), message, said(setting, where), right, cure(setting))


def _seats(context: CheckContext) -> dict[str, Seat]:
    """The table of ranks, in inventory order of the nodes."""
    nodes = context.inventory.nodes
    counts = [_count(context, node) for node in nodes]
    world = None if None in counts else sum(count or 0 for count in counts)
    masters = _masters(context)
    found: dict[str, Seat] = {}
    first: int | None = 0
    for position, (node, count) in enumerate(zip(nodes, counts, strict=True)):
        port = context.inventory.master_port
        found[node.name] = Seat(position, len(nodes), count, first, world, masters, port)
        first = None if first is None or count is None else first + count
    return found


def _count(context: CheckContext, node: Node) -> int | None:
    if node.nproc_per_node is not None:
        return node.nproc_per_node
    reached = node.name in context.fleet.snapshots and context.fleet.snapshots[node.name].reached
    gpus = gpus_of(context, node) if reached or node.gpus is not None else None
    return None if gpus is None else gpus or 1


def _masters(context: CheckContext) -> frozenset[str]:
    """Every name of the first node under which others may reach it."""
    first = context.inventory.nodes[0]
    pick = choose(context.fleet).picks.get(first.name)
    own = {"localhost", "127.0.0.1"} if len(context.inventory.nodes) == 1 else set[str]()
    return frozenset({first.name, first.address, *([pick.address] if pick else []), *own})


# ---------------------------------------------------------------- what each name may be

Wanted = Callable[
    [Seat], "frozenset[str] | None"
]  # None: not known, or nothing is wrong with any value
NONE: frozenset[str] = frozenset()


def _number(of: Callable[[Seat], int | None]) -> Wanted:
    def wanted(seat: Seat) -> frozenset[str] | None:
        number = of(seat)
        return None if number is None else frozenset({str(number)})

    return wanted


def _own(of: Callable[[Seat], int | None]) -> Wanted:
    """A number of one rank; in a file it is that of all, which is right only where a node has one."""

    def wanted(seat: Seat) -> frozenset[str] | None:
        if seat.count is None or (number := of(seat)) is None:
            return None
        return frozenset({str(number)}) if seat.count == 1 else NONE

    return wanted


def _master(seat: Seat) -> frozenset[str]:
    return seat.masters


def _endpoint(seat: Seat) -> frozenset[str]:
    return frozenset(
        f"{name}{port}" for name in seat.masters for port in ("", f":{seat.port}", ":29400")
    )


def _nodes(seat: Seat) -> frozenset[str]:
    return frozenset({str(seat.nodes), f"{seat.nodes}:{seat.nodes}"})


def _alone(seat: Seat) -> frozenset[str] | None:
    return None if seat.nodes == 1 else frozenset({"", "0"})


RANK, LOCAL = _own(lambda seat: seat.first), _own(lambda seat: 0)
POSITION, WORLD = _number(lambda seat: seat.position), _number(lambda seat: seat.world)
SIZE, PORT = _number(lambda seat: seat.count), _number(lambda seat: seat.port)
RULES: Mapping[str, Wanted] = {
    "RANK": RANK,
    "ROLE_RANK": RANK,
    "LOCAL_RANK": LOCAL,
    "NODE_RANK": POSITION,
    "GROUP_RANK": POSITION,
    "PET_NODE_RANK": POSITION,
    "WORLD_SIZE": WORLD,
    "ROLE_WORLD_SIZE": WORLD,
    "LOCAL_WORLD_SIZE": SIZE,
    "GROUP_WORLD_SIZE": _number(lambda seat: seat.nodes),
    "NNODES": _nodes,
    "PET_NNODES": _nodes,
    "MASTER_ADDR": _master,
    "PET_MASTER_ADDR": _master,
    "MASTER_PORT": PORT,
    "PET_MASTER_PORT": PORT,
    "PET_RDZV_ENDPOINT": _endpoint,
    "PET_STANDALONE": _alone,
}

RANKS = Check(
    "launch.ranks",
    facts=("env.paths",),
    uses=("gpu.nvml", "net.interfaces", "ssh.peer"),
    judge=leftovers,
    severity="error",
    title="Ranks and rendezvous that were left behind",
    why="What an earlier job left in ~/.bashrc or /etc/environment sends the ranks of this one elsewhere: «Invalid "
    "rank requested», or a wait of half an hour for a node that does not come.",
    how="RANK, LOCAL_RANK, NODE_RANK, WORLD_SIZE, MASTER_* and torchrun's PET_* in every launch path, against the "
    "ranks that follow from the inventory. What agrees with them is left alone. verify and launch read the table back.",
    remedy="clusterprep launch INVENTORY -- train.py   # or --print torchrun, after the lines that are named are gone",
    proof=Proof("env.paths", planted("login shell", Setting("NODE_RANK", "7", BASHRC, 3))),
)
