"""The names of all nodes in /etc/hosts: the same on all nodes, whatever DNS or installers say."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, Resource, file_change
from clusterprep.changes.resources.file import MODE
from clusterprep.changes.resources.line import Marks, with_block
from clusterprep.facts import Fact
from clusterprep.facts.network import PEER
from clusterprep.model import Fleet, Inventory, Node
from clusterprep.model.files import FileChange
from clusterprep.model.memoize import once_per_fleet

PATH = "/etc/hosts"
MARKS = Marks.of("clusterprep hosts")
# Address, names, comment and end of a line.
_LINE = re.compile(rb"([ \t]*[^\s#]+)([^#\r\n]*)((?:#[^\r\n]*)?)(\r?\n?)")


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (PATH,)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return ((PATH, "clusterprep hosts"),)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    """Return the fact where each node was reached, if the address of one is a name."""
    for node in inventory.nodes:
        if _literal(node.address) is None:
            return (PEER,)
    return ()


def _literal(text: object) -> str | None:
    """Return an address in numbers in its short form, None for what is none."""
    try:
        return str(ipaddress.ip_address(str(text)))
    except ValueError:
        return None


def _all_nodes(fleet: Fleet) -> tuple[Node, ...]:
    """Return the nodes of the inventory's file, with those that this command leaves out."""
    return (*fleet.inventory.nodes, *fleet.inventory.left_out)


@once_per_fleet
def host_addresses(fleet: Fleet) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return address by name for every node of the inventory's file, and the nodes without one.

    Nodes that this command leaves out are included: their names are in every node's file.
    """
    addresses: dict[str, str] = {}
    unknown = []
    for node in sorted(_all_nodes(fleet), key=lambda node: node.index):
        address = _literal(node.address) or _reached_at(fleet, node)
        if address is None:
            unknown.append(node.name)
        else:
            addresses[node.name] = address
    return addresses, tuple(unknown)


def _reached_at(fleet: Fleet, node: Node) -> str | None:
    if node.name not in fleet.snapshots:
        return None
    return _literal(fleet.fact(node.name, PEER.name))


@once_per_fleet
def block(fleet: Fleet) -> bytes:
    """Return one line for each node, in the order of the inventory."""
    addresses, _ = host_addresses(fleet)
    lines = []
    for name, address in addresses.items():
        lines.append(f"{address}\t{name}\n")
    return "".join(lines).encode()


@once_per_fleet
def meanings(fleet: Fleet) -> Mapping[bytes, bytes]:
    """Return the address of each node by its name in small letters, both as they are in files."""
    addresses, _ = host_addresses(fleet)
    encoded = {}
    for name, address in addresses.items():
        encoded[name.lower().encode()] = address.encode()
    return encoded


@once_per_fleet
def _wanted_contents(fleet: Fleet) -> dict[bytes, bytes]:
    """Return a cache of the wanted content by the actual one.

    In a large fleet thousands of nodes have the same file, with thousands of lines.
    """
    return {}


def with_names(fleet: Fleet, content: bytes) -> bytes:
    """Return the wanted file. Raises ValueError where the marks of our block are no pair."""
    cache = _wanted_contents(fleet)
    if content in cache:
        return cache[content]
    bare = with_block(content, MARKS, None)
    others = without_other_meanings(bare, meanings(fleet))
    # The block stays at its place unless other lines change: then it moves to the top again.
    base = content if others == bare else others
    wanted = with_block(base, MARKS, block(fleet), top=True)
    cache[content] = cache.setdefault(wanted, wanted)
    return cache[content]


def without_other_meanings(content: bytes, names: Mapping[bytes, bytes]) -> bytes:
    """Return the lines without those names of ours to which they give another address.

    Resolvers use all lines of a name, so one such as «127.0.1.1 gpu01», which installers write,
    would stay in force.
    """
    lines = re.findall(rb"[^\n]*\n|[^\n]+", content)
    return b"".join(_without_other_names(line, names) for line in lines)


def _without_other_names(line: bytes, names: Mapping[bytes, bytes]) -> bytes:
    match = _LINE.fullmatch(line)
    if match is None:
        return line
    address = match[1].strip()
    listed = match[2].split()
    remaining = [name for name in listed if names.get(name.lower(), address) == address]
    if remaining == listed:
        return line
    if not remaining:
        return b""
    before_comment = b" " if match[3] else b""
    return match[1] + b"\t" + b" ".join(remaining) + before_comment + match[3] + match[4]


def plan(params: Params, context: PlanContext) -> Iterable[FileChange]:
    _, unknown = host_addresses(context.fleet)
    if unknown:
        raise NoPlan("name_unknown", _unknown_address(context.fleet, unknown[0]))
    state = context.files[PATH]
    try:
        wanted = with_names(context.fleet, state.content or b"")
    except ValueError as error:
        raise NoPlan("broken_block", f"{PATH}: {error}; mend it by hand") from None
    yield file_change(
        context.node,
        "hosts",
        state,
        wanted,
        MODE,
    )


def _unknown_address(fleet: Fleet, name: str) -> str:
    addresses = {node.name: node.address for node in _all_nodes(fleet)}
    cure = f"give it an `address:` in numbers; it is '{addresses[name]}'"
    return f"the address of {name} is not known in numbers: {cure}"


RESOURCE = Resource("hosts", paths, plan, facts=facts, parts=parts)
