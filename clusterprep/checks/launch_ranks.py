"""Judges variables of a single rank that a file still sets for every process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv6Address

from msgspec import Struct

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    names_of,
    passed,
)
from clusterprep.checks.env import (
    BASHRC,
    describe_setting,
    place,
    removal_command,
    removal_fix,
    settings_by_place,
    unread_paths,
    with_settings,
)
from clusterprep.checks.launch_nproc import gpus_of
from clusterprep.facts.environment import Setting
from clusterprep.model import Absent, Node
from clusterprep.nccl.interfaces import choose, plain
from clusterprep.remedies import shell_line


class Seat(Struct, frozen=True):
    """The place of a node in the job of the inventory.

    `count` is the number of its ranks and `first` the lowest of them; both are None where GPUs
    cannot be counted, and so is `world`, the number of all ranks.
    """

    position: int
    nodes: int
    count: int | None
    first: int | None
    world: int | None
    masters: frozenset[str]
    port: int


Settings = tuple[tuple[Setting, tuple[str, ...]], ...]
"""Settings, each with the launch paths that have it."""


def leftovers(context: CheckContext) -> Iterable[Outcome]:
    """Compare the variables in the launch paths of each node with its seat."""
    yield from unread_paths(context)
    settings = _settings_with_rules(context)
    seats = _assign_seats(context) if any(settings.values()) else {}

    def apart(node: Node) -> str:
        """Return the name of a node whose settings are compared with its seat, else ""."""
        return node.name if settings[node.name] else ""

    for nodes in context.alike_by(apart):
        node = nodes[0]
        agrees = True
        for setting, path_names in settings[node.name]:
            allowed = RULES[setting.name](seats[node.name])
            if allowed is not None and not _is_allowed(setting.value, allowed):
                agrees = False
                yield _contradiction(context, node, setting, path_names, allowed)
        if agrees:
            message = "no launch path has ranks or a rendezvous other than the inventory's"
            yield from about_all(nodes, [passed(node, message)])


def _settings_with_rules(context: CheckContext) -> dict[str, Settings]:
    """Return for each node the settings that a rule is about, with the paths that have them."""
    settings: dict[str, Settings] = {}
    for nodes in context.alike("env.paths"):
        ruled = []
        for setting, path_names in settings_by_place(context.value(nodes[0], "env.paths")).items():
            # Only NCCL reads its conf files.
            if setting.name in RULES and path_names != ("nccl",):
                ruled.append((setting, path_names))
        settings.update(dict.fromkeys(names_of(nodes), tuple(ruled)))
    return settings


def _is_allowed(value: str, allowed: frozenset[str]) -> bool:
    return value in allowed or _with_plain_address(value) in allowed


def _with_plain_address(value: str) -> str:
    """Return «[fd00::1]:29500» for «[FD00:0::1]:29500»; what is no IPv6 address stays as it is."""
    host, bracket, rest = value.partition("]")
    try:
        address = IPv6Address(host.removeprefix("["))
    except ValueError:
        return value
    return f"[{address}]{rest}" if bracket else str(address)


def _contradiction(
    context: CheckContext,
    node: Node,
    setting: Setting,
    path_names: tuple[str, ...],
    allowed: frozenset[str],
) -> Outcome:
    message = f"{place(setting)} has left {setting.name} behind, and it contradicts the inventory"
    seen = describe_setting(setting, path_names)
    wanted = " or ".join(sorted(allowed)) or "different on each rank, so set by the launcher alone"
    return failed(
        node,
        message,
        seen,
        wanted,
        removal_command(setting, context.inventory),
        fix=removal_fix(setting, context.inventory),
    )


def _assign_seats(context: CheckContext) -> dict[str, Seat]:
    """Return the seat of each node; ranks are numbered in the order of the inventory."""
    nodes = context.inventory.nodes
    port = context.inventory.master_port
    masters = _first_node_names(context)
    counts = [_count_ranks(context, node) for node in nodes]
    world: int | None = 0
    for count in counts:
        world = _add(world, count)
    seats: dict[str, Seat] = {}
    first: int | None = 0
    for position, node in enumerate(nodes):
        count = counts[position]
        seats[node.name] = Seat(
            position,
            len(nodes),
            count,
            first,
            world,
            masters,
            port,
        )
        first = _add(first, count)
    return seats


def _add(total: int | None, count: int | None) -> int | None:
    """Return the sum, or None where a number is not known."""
    if total is None or count is None:
        return None
    return total + count


def _count_ranks(context: CheckContext, node: Node) -> int | None:
    """Return how many ranks a node starts, None where that is not known."""
    if node.nproc_per_node is not None:
        return node.nproc_per_node
    snapshot = context.fleet.snapshots.get(node.name)
    reached = snapshot is not None and snapshot.reached
    if not reached and node.gpus is None:
        return None
    gpus = gpus_of(context, node)
    if gpus is None:
        return None
    return gpus or 1


def _first_node_names(context: CheckContext) -> frozenset[str]:
    """Return every name and address by which ranks may reach the first node."""
    nodes = context.inventory.nodes
    first = nodes[0]
    names = {first.name, first.address}
    pick = choose(context.fleet).picks.get(first.name)
    if pick is not None:
        names.add(pick.address)
    # The family of addresses is the launcher's choice.
    names.update(_ipv6_addresses(context, first))
    if len(nodes) == 1:
        names |= {"localhost", "127.0.0.1", "::1"}
    names.update(list(map(_with_plain_address, names)))
    return frozenset(names)


def _ipv6_addresses(context: CheckContext, node: Node) -> set[str]:
    """Return the IPv6 addresses of a node's interfaces; none if they are not known."""
    addresses: set[str] = set()
    if node.name in context.fleet.snapshots:
        interfaces = context.fleet.fact(node.name, "net.interfaces")
        if not isinstance(interfaces, Absent):
            for interface in interfaces:
                addresses.update(map(plain, interface.ipv6))
    return addresses


# ---------------------------------------------------------------- values that a variable may have

# None: the right value is not known, or no value is wrong.
Rule = Callable[[Seat], "frozenset[str] | None"]
NONE: frozenset[str] = frozenset()


def _node_number(select: Callable[[Seat], int | None]) -> Rule:
    """Return the rule for a number that all ranks of a node share."""

    def rule(seat: Seat) -> frozenset[str] | None:
        number = select(seat)
        return None if number is None else frozenset({str(number)})

    return rule


def _rank_number(select: Callable[[Seat], int | None]) -> Rule:
    """Return the rule for a number of one rank.

    A file gives it to all ranks of the node, which is right only where the node has one rank.
    """

    def rule(seat: Seat) -> frozenset[str] | None:
        number = select(seat)
        if seat.count is None or number is None:
            return None
        return frozenset({str(number)}) if seat.count == 1 else NONE

    return rule


def _master(seat: Seat) -> frozenset[str]:
    return seat.masters


def _endpoint(seat: Seat) -> frozenset[str]:
    """Return the first node without a port, with the job's port, and with torchrun's default."""
    endpoints = set()
    for name in seat.masters:
        host = f"[{name}]" if ":" in name else name  # IPv6
        endpoints |= {name, host, f"{host}:{seat.port}", f"{host}:29400"}
    return frozenset(endpoints)


def _nodes(seat: Seat) -> frozenset[str]:
    """Return the number of nodes, also as torchrun's range from the least to the most."""
    return frozenset({str(seat.nodes), f"{seat.nodes}:{seat.nodes}"})


def _standalone(seat: Seat) -> frozenset[str] | None:
    return None if seat.nodes == 1 else frozenset({"", "0"})


RANK = _rank_number(lambda seat: seat.first)
LOCAL = _rank_number(lambda seat: 0)
POSITION = _node_number(lambda seat: seat.position)
WORLD = _node_number(lambda seat: seat.world)
SIZE = _node_number(lambda seat: seat.count)
PORT = _node_number(lambda seat: seat.port)
RULES: Mapping[str, Rule] = {
    "RANK": RANK,
    "ROLE_RANK": RANK,
    "LOCAL_RANK": LOCAL,
    "NODE_RANK": POSITION,
    "GROUP_RANK": POSITION,
    "PET_NODE_RANK": POSITION,
    "WORLD_SIZE": WORLD,
    "ROLE_WORLD_SIZE": WORLD,
    "LOCAL_WORLD_SIZE": SIZE,
    "GROUP_WORLD_SIZE": _node_number(lambda seat: seat.nodes),
    "NNODES": _nodes,
    "PET_NNODES": _nodes,
    "MASTER_ADDR": _master,
    "PET_MASTER_ADDR": _master,
    "MASTER_PORT": PORT,
    "PET_MASTER_PORT": PORT,
    "PET_RDZV_ENDPOINT": _endpoint,
    "PET_STANDALONE": _standalone,
}


RANKS = Check(
    "launch.ranks",
    facts=("env.paths",),
    uses=("gpu.nvml", "net.interfaces", "ssh.peer"),
    judge=leftovers,
    severity="error",
    title="Ranks and rendezvous that were left behind",
    why="What an earlier job left in ~/.bashrc or /etc/environment sends the ranks of this one "
    "elsewhere: «Invalid rank requested», or a wait of half an hour for a node that does not come.",
    how="RANK, LOCAL_RANK, NODE_RANK, WORLD_SIZE, MASTER_* and torchrun's PET_* in every launch "
    "path, against the ranks that follow from the inventory. What agrees with them is left alone. "
    "verify and launch read the table back.",
    remedy=shell_line(
        "clusterprep launch INVENTORY -- train.py   # or --print torchrun, after the lines that "
        "are named are gone"
    ),
    proof=Proof("env.paths", with_settings("login shell", Setting("NODE_RANK", "7", BASHRC, 3))),
)
