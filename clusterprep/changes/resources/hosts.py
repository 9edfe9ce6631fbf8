"""The names of all nodes in /etc/hosts, so that they mean the same everywhere, whatever DNS or an installer says."""

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
_LINE = re.compile(rb"([ \t]*[^\s#]+)([^#\r\n]*)((?:#[^\r\n]*)?)(\r?\n?)")


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (PATH,)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return ((PATH, "clusterprep hosts"),)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    """Where each node was reached, for those whose address is a name."""
    return (PEER,) if any(_literal(node.address) is None for node in inventory.nodes) else ()


def _literal(text: object) -> str | None:
    try:
        return str(ipaddress.ip_address(str(text)))
    except ValueError:
        return None


@once_per_fleet
def table(fleet: Fleet) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Address by name of every node of the inventory's file, and the nodes whose address is not known.

    Nodes that this command leaves alone belong in it as well: their names are in everybody's file.
    """
    found: dict[str, str] = {}
    unknown = []
    for node in sorted(
        (*fleet.inventory.nodes, *fleet.inventory.left_out), key=lambda node: node.index
    ):
        address = _literal(node.address) or _reached_at(fleet, node)
        if address is None:
            unknown.append(node.name)
        else:
            found[node.name] = address
    return found, tuple(unknown)


def _reached_at(fleet: Fleet, node: Node) -> str | None:
    seen = node.name in fleet.snapshots and fleet.fact(node.name, PEER.name)
    return _literal(seen)


@once_per_fleet
def block(fleet: Fleet) -> bytes:
    """One line for each node, in the order of the inventory."""
    return "".join(f"{address}\t{name}\n" for name, address in table(fleet)[0].items()).encode()


@once_per_fleet
def meanings(fleet: Fleet) -> Mapping[bytes, bytes]:
    return {name.lower().encode(): address.encode() for name, address in table(fleet)[0].items()}


@once_per_fleet
def _worked_out(fleet: Fleet) -> dict[bytes, bytes]:
    """What a content becomes: in a large fleet thousands of nodes have the same lines, and thousands of them."""
    return {}


def with_names(fleet: Fleet, content: bytes) -> bytes:
    """The file as it is to be. ValueError where the marks of our block are no pair."""
    known = _worked_out(fleet)
    if content not in known:
        bare = with_block(content, MARKS, None)
        others = without_other_meanings(bare, meanings(fleet))
        # The block is left where it stands unless other lines change: then it comes to the top again.
        wanted = with_block(content if others == bare else others, MARKS, block(fleet), top=True)
        known[content] = known.setdefault(wanted, wanted)
    return known[content]


def without_other_meanings(content: bytes, names: Mapping[bytes, bytes]) -> bytes:
    """The lines of others without those names of ours to which they give another address.

    Resolvers take all lines of a name, so one such as «127.0.1.1 gpu01», which installers write, would stay in force.
    """
    return b"".join(_kept(line, names) for line in re.findall(rb"[^\n]*\n|[^\n]+", content))


def _kept(line: bytes, names: Mapping[bytes, bytes]) -> bytes:
    match = _LINE.fullmatch(line)
    if match is None:
        return line
    address, listed = match[1].strip(), match[2].split()
    left = [name for name in listed if names.get(name.lower(), address) == address]
    if left == listed:
        return line
    return (
        b""
        if not left
        else match[1] + b"\t" + b" ".join(left) + (b" " if match[3] else b"") + match[3] + match[4]
    )


def plan(params: Params, known: PlanContext) -> Iterable[FileChange]:
    unknown = table(known.fleet)[1]
    if unknown:
        cure = f"give it an `address:` in numbers; it is '{_address(known.fleet, unknown[0])}'"
        raise NoPlan("name_unknown", f"the address of {unknown[0]} is not known in numbers: {cure}")
    state = known.files[PATH]
    try:
        wanted = with_names(known.fleet, state.content or b"")
    except ValueError as error:
        raise NoPlan("broken_block", f"{PATH}: {error}; mend it by hand") from None
    yield file_change(known.node, "hosts", state, wanted, MODE)


def _address(fleet: Fleet, name: str) -> str:
    return next(
        n.address for n in (*fleet.inventory.nodes, *fleet.inventory.left_out) if n.name == name
    )


RESOURCE = Resource("hosts", paths, plan, facts=facts, parts=parts)
