"""Which GPU, RDMA card or disk was where in a run, and which moved between two runs. Pure.

A GPU is known by its UUID, an RDMA card by the GUID of its first port, an NVMe disk by its serial
number. A slot is a PCI address; a disk has none, as its fact does not tell it. Memory modules are
left out: no fact has their serial numbers.

Facts are JSON that was kept, by this version or an older one, of what nodes said. A fact that is
absent or not as expected tells nothing of its node and changes nothing for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv6Address
from typing import Any

import msgspec
from msgspec import Struct

from clusterprep.model import Json
from clusterprep.model.history import FactChange, PartMove, PartPlace

LONGEST = 80  # characters of a serial number; a UUID of NVML has 40
_LOW = (1 << 64) - 1  # of an address: the half that is the interface's own
# An EUI-64 made of a MAC has ff:fe in its middle. Its bit «universal» is set if the MAC was given
# by the maker: one that software chose, as for virtual functions, may be another after a boot.
_UNIVERSAL = 0x02 << 56
_MIDDLE, _MADE_OF_MAC = 0xFFFF << 24, 0xFFFE << 24

Place = tuple[str | None, str]
"""What a part is known by, None where it does not tell it, and its slot."""
PartId = tuple[str, str]
"""The kind of a part, and what it is known by."""


class Parts(Struct, frozen=True):
    """Where the parts of a run were.

    `whole` has kind and node wherever the node told all parts of the kind: only there is a part
    that is not listed not there. `shared` has what is no name of one part: it was in two places.
    """

    places: Mapping[PartId, PartPlace]
    whole: frozenset[tuple[str, str]]
    shared: frozenset[PartId]


# ---------------------------------------------------------------- the facts, as far as they matter


class _Gpu(Struct):
    uuid: str
    pci: str


class _Nvml(Struct):
    gpus: tuple[_Gpu, ...]
    lost: tuple[str, ...]
    denied: tuple[int, ...]


class _Gid(Struct):
    index: int
    address: str


class _Port(Struct):
    link_layer: str
    gids: tuple[_Gid, ...]


class _Card(Struct):
    pci: str | None
    ports: tuple[_Port, ...]


class _Disk(Struct):
    serial: str


def _gpus(fact: Any) -> tuple[list[Place], bool]:
    """Return the places of GPUs, and whether these are all: a lost one does not say who it is."""
    nvml = msgspec.convert(fact, _Nvml)
    places: list[Place] = [(_name(gpu.uuid), slot_of(gpu.pci)) for gpu in nvml.gpus]
    return places, not nvml.lost and not nvml.denied


def _cards(fact: Any) -> tuple[list[Place], bool]:
    """Return the places of RDMA devices that are hardware."""
    places: list[Place] = []
    for card in msgspec.convert(fact, tuple[_Card, ...]):
        if card.pci is not None:
            places.append((_guid(card.ports), slot_of(card.pci)))
    return places, True


def _disks(fact: Any) -> tuple[list[Place], bool]:
    disks = msgspec.convert(fact, tuple[_Disk, ...])
    return [(_name(disk.serial), "") for disk in disks], True


_KINDS = {
    "gpu.nvml": ("gpu", _gpus),
    "rdma.devices": ("rdma", _cards),
    "disk.nvme": ("disk", _disks),
}
FACTS = tuple(_KINDS)


def slot_of(pci: str) -> str:
    """Return a PCI address as the kernel writes it; NVML's domain has eight digits."""
    domain, colon, rest = pci.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}{colon}{rest}"[:LONGEST]


def _name(text: str) -> str | None:
    """Return what a part says it is, None for what cannot be a serial number."""
    name = text.strip()
    return name if name.isprintable() and 0 < len(name) <= LONGEST else None


def _guid(ports: Sequence[_Port]) -> str | None:
    """Return the GUID of the first port as ibstat writes it; None if it is not known.

    On InfiniBand it is the lower half of the first GID, on Ethernet that of the link-local one.
    """
    if not ports:
        return None
    port = ports[0]
    for gid in port.gids:
        address = IPv6Address(gid.address)
        guid = int(address) & _LOW
        if port.link_layer == "InfiniBand" and gid.index == 0 and guid:
            return f"0x{guid:016x}"
        if port.link_layer == "Ethernet" and address.is_link_local and _is_of_maker(guid):
            return f"0x{guid:016x}"
    return None


def _is_of_maker(guid: int) -> bool:
    return bool(guid & _UNIVERSAL) and guid & _MIDDLE == _MADE_OF_MAC


# ---------------------------------------------------------------- a run, two runs


def parts_of(facts: Mapping[str, Mapping[str, Any]]) -> Parts:
    """Return where the parts of a run were; `facts` is fact → node → its value as JSON."""
    places: dict[PartId, PartPlace] = {}
    whole: set[tuple[str, str]] = set()
    shared: set[PartId] = set()
    for fact, (kind, read) in _KINDS.items():
        for node, value in facts.get(fact, {}).items():
            try:
                told, are_all = read(value)
            except ValueError:  # msgspec's error of a wrong type is one
                continue
            for name, slot in told:
                if name is None:
                    are_all = False
                    continue
                place = PartPlace(node, slot)
                if places.setdefault((kind, name), place) != place:
                    shared.add((kind, name))
            if are_all:
                whole.add((kind, node))
    for part in shared:
        del places[part]
    return Parts(places, frozenset(whole), frozenset(shared))


def moves(before: Parts, after: Parts) -> tuple[PartMove, ...]:
    """Return the parts that are elsewhere than before, came or went, by kind and place.

    One came or went only if the node told all of its parts in the other run.
    """
    shared = before.shared | after.shared
    found = []
    for part in {**before.places, **after.places}:
        old, new = before.places.get(part), after.places.get(part)
        if part in shared or old == new:
            continue
        kind, name = part
        came = old is None and new is not None and (kind, new.node) in before.whole
        went = new is None and old is not None and (kind, old.node) in after.whole
        has_moved = old is not None and new is not None
        if has_moved or came or went:
            found.append(PartMove(kind, name, old, new))
    return tuple(sorted(found, key=_order))


def _order(move: PartMove) -> tuple[str, str, str, str]:
    place = move.after or move.before or PartPlace("", "")
    return move.kind, place.node, place.slot, move.part


class _Moved(Struct, frozen=True):
    """The parts that moves tell, each with the node that it left or came to."""

    went: frozenset[tuple[PartId, str]]
    came: frozenset[tuple[PartId, str]]


def _sides(moved: Iterable[PartMove]) -> _Moved:
    went: set[tuple[PartId, str]] = set()
    came: set[tuple[PartId, str]] = set()
    for move in moved:
        part = (move.kind, move.part)
        if move.before is not None:
            went.add((part, move.before.node))
        if move.after is not None:
            came.add((part, move.after.node))
    return _Moved(frozenset(went), frozenset(came))


def without_swaps(changes: Iterable[FactChange], moved: Iterable[PartMove]) -> list[FactChange]:
    """Return the changed facts but those that only say which parts went and which came instead."""
    sides = _sides(moved)
    others = []
    for change in changes:
        old, new = _part_of(change.fact, change.before), _part_of(change.fact, change.after)
        is_swap = all(
            (old, node) in sides.went and (new, node) in sides.came for node in change.nodes
        )
        if not is_swap:
            others.append(change)
    return others


Column = Mapping[str, Any]
"""Node → the value of a fact as JSON."""


def with_common_parts(
    fact: str, before: Column, after: Column, moved: Iterable[PartMove]
) -> tuple[Column, Column]:
    """Return a fact of two runs where nodes that lost or got parts have those of both runs alone.

    That parts came or went is told by their moves, or by the GPUs that NVML says are lost: a list
    that is longer than the other would tell it again, with all that is in it.
    """
    if fact not in _KINDS:
        return before, after
    sides = _sides(moved)
    old_values, new_values = dict(before), dict(after)
    for node, new in after.items():
        old = before.get(node)
        if old is new or old is None:
            continue
        try:
            common = _common_parts(fact, node, (old, new), sides)
        except (ValueError, KeyError, TypeError):  # not as expected: shown as it is
            continue
        if common is not None:
            old_values[node], new_values[node] = common
    return old_values, new_values


def _common_parts(
    fact: str, node: str, values: tuple[Any, Any], sides: _Moved
) -> tuple[Json, Json] | None:
    """Return both values of a node without the parts that only one has, None to change nothing."""
    old, new = (_by_part(fact, value) for value in values)
    if old is None or new is None or len(old) == len(new):
        return None
    went = {(part, node) for part in old if part not in new}
    came = {(part, node) for part in new if part not in old}
    is_told = went <= sides.went and came <= sides.came
    if not is_told and not _are_lost(fact, values):
        return None
    both = [part for part in old if part in new]
    return (
        _with_parts(fact, values[0], [old[part] for part in both]),
        _with_parts(fact, values[1], [new[part] for part in both]),
    )


def _are_lost(fact: str, values: tuple[Any, Any]) -> bool:
    """Return whether NVML says that the GPUs which only one of the values has are lost."""
    if fact != "gpu.nvml":
        return False
    old, new = (len(value["gpus"]) + len(value["lost"]) for value in values)
    return bool(old == new)


def _by_part(fact: str, value: Any) -> dict[PartId, Any] | None:
    """Return the entries of a fact's list by their parts, None if one is not known or not alone."""
    kind, read = _KINDS[fact]
    entries = value["gpus"] if fact == "gpu.nvml" else value
    places, _ = read(value)
    by_part: dict[PartId, Any] = {}
    for (name, _), entry in zip(places, entries, strict=True):
        if name is None or (kind, name) in by_part:
            return None
        by_part[kind, name] = entry
    return by_part


def _with_parts(fact: str, value: Any, entries: list[Any]) -> Json:
    """Return a fact with these entries. NVML numbers GPUs anew where one is gone."""
    if fact != "gpu.nvml":
        return entries
    gpus = []
    for entry in entries:
        gpus.append({name: part for name, part in entry.items() if name != "index"})
    return {**value, "gpus": gpus}


def _part_of(fact: str, value: Json) -> PartId | None:
    """Return the part that a piece of a fact is the name of, None if it cannot be one."""
    if fact not in _KINDS or not isinstance(value, str):
        return None
    kind, _ = _KINDS[fact]
    name = _name(value)
    if kind == "rdma":
        name = _guid_in(value)
    return None if name is None else (kind, name)


def _guid_in(address: str) -> str | None:
    """Return the GUID in the lower half of an address, None if the text is no address."""
    try:
        return f"0x{int(IPv6Address(address)) & _LOW:016x}"
    except ValueError:
        return None
