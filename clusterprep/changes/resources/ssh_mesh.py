"""SSH between the nodes for one user: a key that all have, and the host keys of all.

Four files in ~/.ssh: the private key, and a marked block each in authorized_keys, known_hosts and
config. The key opens nothing but this user on these nodes, from the addresses of these nodes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from clusterprep.changes.key_pair import KeyPair
from clusterprep.changes.resources import (
    NoPlan,
    Params,
    Part,
    PlanContext,
    Resource,
    file_change,
    misplaced,
)
from clusterprep.changes.resources.hosts import host_addresses
from clusterprep.changes.resources.line import Marks, with_block
from clusterprep.facts import Fact
from clusterprep.facts.network import PEER
from clusterprep.model import Absent, Fleet, Inventory, Node, Read
from clusterprep.model.files import FileChange
from clusterprep.model.memoize import once_per_fleet

NAME = "ssh_mesh"
MARKER = "clusterprep ssh_mesh"
MARKS = Marks.of(MARKER)
KEY = "clusterprep_mesh"
PAIR = "pair"  # the parameter in which the playbook's reader puts the key pair
MODE = 0o600
_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")
_FILES = ("ed25519", "ecdsa", "rsa")
_HOST_KEYS = "ssh.host_keys"


def parse_host_keys(*texts: str | None) -> tuple[str, ...]:
    """Return «type key» of each host key of a node. Raises ValueError if one is none.

    They come over a connection whose host key was verified, so the node says them of itself.
    """
    keys = []
    for text in texts:
        if not text:
            continue
        words = text.split()
        if len(words) < 2 or words[0] not in _TYPES:
            raise ValueError(f"this is no public key: {text!r:.40}")
        _check_blob(words[0], words[1])
        keys.append(f"{words[0]} {words[1]}")
    if not keys:
        raise ValueError("there is no host key in /etc/ssh")
    return tuple(keys)


def _check_blob(kind: str, text: str) -> None:
    """Raise ValueError if the key is not of the kind that its line names."""
    try:
        blob = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    name = kind.encode()
    if not blob.startswith(len(name).to_bytes(4, "big") + name):
        raise ValueError("the key is of another kind than it says")


def _reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return tuple(Read("file", (f"/etc/ssh/ssh_host_{kind}_key.pub",)) for kind in _FILES)


HOST_KEYS = Fact(_HOST_KEYS, _reads, parse_host_keys)


def _folder(params: Params) -> str:
    user = str(params["user"])
    home = "/root" if user == "root" else f"/home/{user}"
    return f"{params.get('home', home)}/.ssh"


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    folder = _folder(params)
    return tuple(f"{folder}/{name}" for name in (KEY, "authorized_keys", "known_hosts", "config"))


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    key, *others = paths(params, inventory)
    return ((key, ""), *((path, MARKER) for path in others))


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (HOST_KEYS, PEER)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    why = misplaced(_folder(params))
    if why:
        yield "home", why


def live(params: Params) -> str:
    return "nodes log in to each other on the running system alone"


@once_per_fleet
def _addresses(fleet: Fleet) -> tuple[tuple[str, str], ...]:
    """Return (name, address in numbers) of every node. Raises NoPlan where one is not known."""
    addresses, unknown = host_addresses(fleet)
    if unknown:
        raise NoPlan("name_unknown", f"the address of {unknown[0]} is not known in numbers")
    if fleet.inventory.left_out:
        name = fleet.inventory.left_out[0].name
        raise NoPlan("not_reached", f"the host key of {name} is not asked: leave out --limit")
    return tuple(addresses.items())


@once_per_fleet
def _known_hosts(fleet: Fleet) -> bytes:
    """Return one line for each host key, under the address and the name of its node."""
    names = {node.name: node.address for node in fleet.inventory.nodes}
    lines: list[str] = []
    for name, address in _addresses(fleet):
        keys = fleet.fact(name, _HOST_KEYS)
        if keys is None or isinstance(keys, Absent):
            raise NoPlan("not_reached", f"the host keys of {name} are not known")
        hosts = ",".join(dict.fromkeys((address, names[name], name)))
        lines.extend(f"{hosts} {key}\n" for key in keys)
    return "".join(lines).encode()


def _authorized(fleet: Fleet, pair: KeyPair) -> bytes:
    """Return the line of authorized_keys, which counts for logins from the nodes alone."""
    sources = ",".join(address for _, address in _addresses(fleet))
    return f'from="{sources}",no-agent-forwarding,no-X11-forwarding {pair.public}\n'.encode()


def _config(fleet: Fleet, key: str) -> bytes:
    """Return the lines of ssh's config, after which the file's own go on for all hosts."""
    hosts: dict[str, None] = {}
    names = {node.name: node.address for node in fleet.inventory.nodes}
    for name, address in _addresses(fleet):
        hosts.update(dict.fromkeys((address, names[name], name)))
    return f"Host {' '.join(hosts)}\n  IdentityFile {key}\nHost *\n".encode()


def plan(params: Params, context: PlanContext) -> Iterable[FileChange]:
    pair: KeyPair = params[PAIR]
    fleet = context.fleet
    key, authorized_keys, known_hosts, config = paths(params, fleet.inventory)
    state = context.files[key]
    yield file_change(context.node, NAME, state, pair.private, MODE)
    blocks = (
        (authorized_keys, _authorized(fleet, pair), False),
        (known_hosts, _known_hosts(fleet), False),
        (config, _config(fleet, key), True),
    )
    for path, block, top in blocks:
        state = context.files[path]
        try:
            wanted = with_block(state.content or b"", MARKS, block, top)
        except ValueError as error:
            raise NoPlan("broken_block", f"{path}: {error}; mend it by hand") from None
        yield file_change(context.node, NAME, state, wanted, MODE)


RESOURCE = Resource(NAME, paths, plan, facts=facts, parts=parts, wrong=wrong, live=live)
