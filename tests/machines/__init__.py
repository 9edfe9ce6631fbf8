"""Kinds of machines: a healthy fleet of each, described from public sources, asked as real nodes.

A folder is a kind. Its YAML files are merged; texts may hold ${node}, ${index} and ${address}:

    source:     where these facts come from, a list of sentences: title, place, what was taken,
                what is inferred
    like:       [server, hgx-h100-ib/host]: files below tests/machines that are merged first,
                folders as a whole; a file that is null here is not there, a folder (ends in /)
                neither
    machines:   [l40s-pcie, l40s-pcie, cpu-only]: the kind is a cluster of machines of these kinds
    words:      {kernel: 5.15.0-91-generic}: more words that texts may hold, as ${kernel}
    unknown:    {check: reason}: what check cannot know of healthy machines of this kind, and why
    inventory:  what the user writes; nodes are n1, n2, … at 10.0.0.1, … unless it names its own
    files:      {path: text}: what /proc, /sys, /etc and /dev hold
    links:      {path: target}
    slots:      [{numa, switch, holds}]: what hangs where, see tests/machines/parts.py
    host:       {model, sockets, cores, …}: processors and memory, see tests/machines/hosts.py
    exit:       what check ends with: 3 where something grave among these cannot be known
    pci:        [{at, class, vendor, device, parent, …}]: see tests/machines/tree.py
    rdma:       {device: {pci, ports: …}}: likewise
    net:        {interface: {…}}: likewise
    gpus:       [{…}]: what the management library says, as tests/support/nvml describes GPUs;
                `system: {…}` of one entry is what it says of the whole
    commands:   {"chronyc -c tracking": "text on stdout" or {code, out, err}}
    answers:    {kind of read: answer}: for what only a whole machine can answer, such as statvfs
    nodes:      {n2: {files: …}}: what one node has besides
"""

from __future__ import annotations

import functools
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clusterprep.survey import registry

HERE = Path(__file__).parent
COUNT = 4


@dataclass(frozen=True)
class Machine:
    """One node as described, with every text filled in."""

    name: str
    address: str
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[Mapping[str, Any], ...] = ()
    commands: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of machine: an inventory as a user would write it, and its machines."""

    name: str
    source: tuple[str, ...]
    inventory: Mapping[str, Any]
    machines: tuple[Machine, ...]
    unknown: Mapping[str, str] = field(default_factory=dict)  # check -> why it is not known here
    exit: int = 0  # what check ends with


def names() -> list[str]:
    return sorted(
        path.name for path in HERE.iterdir() if path.is_dir() and any(path.glob("*.yaml"))
    )


@functools.cache
def load(name: str) -> Kind:
    """The kind that a folder describes. Raises KeyError for one without a source."""
    text = _text(HERE / name)
    inventory = {"cluster": name, **text.get("inventory", {})}
    count = text.get("count", len(text.get("machines", ())) or COUNT)
    inventory.setdefault("nodes", [{"name": f"n[1-{count}]", "address": f"10.0.0.[1-{count}]"}])
    own = {"nodes": text.get("nodes", {})}
    kinds = [merged(_text(HERE / other), own) for other in text.get("machines", ())] or [
        text
    ] * count
    machines = tuple(_machine(one, number) for number, one in enumerate(kinds, 1))
    return Kind(
        name,
        tuple(text["source"]),
        inventory,
        machines,
        text.get("unknown", {}),
        text.get("exit", 0),
    )


def pair(name: str, more: Mapping[str, Any], inventory: Mapping[str, Any] | None = None) -> Kind:
    """Return two machines of a kind, n1 and n2, with what `more` says of each besides.

    `inventory` is merged over the kind's; what is null there is not in it.
    """
    text = merged(_text(HERE / name), {"inventory": dict(inventory or {}), "nodes": dict(more)})
    given = {key: value for key, value in text["inventory"].items() if value is not None}
    given.update(cluster=name, nodes=[{"name": "n[1-2]", "address": "10.0.0.[1-2]"}])
    machines = (_machine(text, 1), _machine(text, 2))
    return Kind(name, tuple(text["source"]), given, machines)


def _text(place: Path) -> dict[str, Any]:
    """All that a file or a folder of files says, over what it is like."""
    paths = (
        sorted(place.glob("*.yaml")) if place.is_dir() else [place.with_name(f"{place.name}.yaml")]
    )
    own: dict[str, Any] = {}
    for path in paths:
        own = merged(own, _parsed(path))
    base: dict[str, Any] = {}
    for other in own.pop("like", ()):
        base = merged(base, _text(HERE / other))
    for kind in ("files", "links"):
        gone = tuple(
            path for path, text in own.get(kind, {}).items() if text is None and path.endswith("/")
        )
        base[kind] = {
            path: text
            for path, text in base.get(kind, {}).items()
            if not path.startswith(gone or "//")
        }
    return dict(merged(base, own))


@functools.cache
def _parsed(path: Path) -> Mapping[str, Any]:
    return yaml.safe_load(path.read_text()) or {}


@functools.cache
def of_proofs() -> dict[str, Any]:
    """Return what every machine has because a check's proof says so, if not described here."""
    common: dict[str, Any] = {}
    for check in registry.checks().values():
        if check.proof is not None:
            common = merged(common, check.proof.machine)
    return common


def _machine(text: Mapping[str, Any], number: int) -> Machine:
    from tests.machines.parts import assembled
    from tests.machines.tree import grown

    name = f"n{number}"
    mine = merged(of_proofs(), merged(text, text.get("nodes", {}).get(name, {})))
    words = {
        "node": name,
        "index": str(number),
        "address": f"10.0.0.{number}",
        "hex": f"{number:02x}",
    }
    words = {
        **{key: str(_filled(str(value), words)) for key, value in mine.get("words", {}).items()},
        **words,
    }
    mine = assembled(_filled({key: mine[key] for key in _GROWN if mine.get(key)}, words), number)
    files, links, answers = grown(mine)
    return Machine(
        name,
        words["address"],
        _there({**files, **mine.get("files", {})}),
        _there({**links, **mine.get("links", {})}),
        tuple(mine.get("gpus", ())),
        mine.get("commands", {}),
        {**answers, **mine.get("answers", {})},
    )


def _there(files: Mapping[str, str | None]) -> dict[str, str]:
    return {path: text for path, text in files.items() if text is not None}


_GROWN = (
    "files",
    "links",
    "host",
    "iommu",
    "nvlinks",
    "slots",
    "pci",
    "rdma",
    "net",
    "gpus",
    "commands",
    "answers",
)


def merged(first: Any, second: Any) -> Any:
    """Return mappings merged and lists joined; anything else is replaced.

    An answer, a list that begins with "ok" or "no", is replaced too.
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        both = {
            key: merged(first[key], value) if key in first else value
            for key, value in second.items()
        }
        return {**first, **both}
    if isinstance(first, list) and isinstance(second, list) and second[:1] not in (["ok"], ["no"]):
        return [*first, *second]
    return second


def _filled(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return string.Template(value).safe_substitute(words)
    if isinstance(value, Mapping):
        return {_filled(key, words): _filled(item, words) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, words) for item in value]
    return value
