"""Kinds of machines: a healthy fleet of each, described from public sources and asked as real nodes are.

A folder is a kind. Its YAML files are merged; texts may hold ${node}, ${index} and ${address}:

    source:     where these facts come from, a list of sentences
    inventory:  what the user writes; nodes are n1, n2, … at 10.0.0.1, … unless it names its own
    files:      {path: text}: what /proc, /sys, /etc and /dev hold
    links:      {path: target}
    pci:        [{at, class, vendor, device, parent, …}]: see tests/fleets/tree.py
    rdma:       {device: {pci, ports: …}}: likewise
    net:        {interface: {…}}: likewise
    gpus:       [{…}]: what the management library says, as tests/nvml describes GPUs; `system: {…}` of one entry
                is what it says of the whole
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


def names() -> list[str]:
    return sorted(path.name for path in HERE.iterdir() if path.is_dir() and any(path.glob("*.yaml")))


@functools.cache
def load(name: str) -> Kind:
    """The kind that a folder describes. Raises KeyError for one without a source."""
    text: dict[str, Any] = {}
    for path in sorted((HERE / name).glob("*.yaml")):
        text = merged(text, yaml.safe_load(path.read_text()) or {})
    inventory = {"cluster": name, **text.get("inventory", {})}
    inventory.setdefault("nodes", [{"name": f"n[1-{COUNT}]", "address": f"10.0.0.[1-{COUNT}]"}])
    machines = tuple(_machine(text, number) for number in range(1, text.get("count", COUNT) + 1))
    return Kind(name, tuple(text["source"]), inventory, machines)


def _machine(text: Mapping[str, Any], number: int) -> Machine:
    from tests.fleets.tree import grown

    name = f"n{number}"
    mine = merged(text, text.get("nodes", {}).get(name, {}))
    words = {"node": name, "index": str(number), "address": f"10.0.0.{number}"}
    mine = _filled({key: mine.get(key) for key in _GROWN if mine.get(key)}, words)
    files, links, answers = grown(mine)
    return Machine(
        name,
        words["address"],
        {**files, **mine.get("files", {})},
        {**links, **mine.get("links", {})},
        tuple(mine.get("gpus", ())),
        mine.get("commands", {}),
        {**answers, **mine.get("answers", {})},
    )


_GROWN = ("files", "links", "pci", "rdma", "net", "gpus", "commands", "answers")


def merged(first: Any, second: Any) -> Any:
    """Mappings are merged, lists are joined, anything else is replaced."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        both = {key: merged(first[key], value) if key in first else value for key, value in second.items()}
        return {**first, **both}
    if isinstance(first, list) and isinstance(second, list):
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
