"""Nodes that keep their files in folders, with the agent's own code for everything that is written.

`WrittenAgents` stands for `Fanout`, as `FakeAgents` does. A `Fault` says what goes wrong at one
request to one node; `Cut` ends the controller there, so nothing of it runs any more.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from msgspec.structs import replace

import clusterprep.remote.agent as agent_package
from clusterprep.errors import LinkLost
from clusterprep.facts.journal import Journal, parse_journal
from clusterprep.model import Inventory
from clusterprep.remote.agent.journal import read_journal
from tests.support.fake_agents import Answer, FakeAgents, FakeLink, FakeNode

STATE = "var/lib/clusterprep"
CODE = Path(agent_package.__file__ or "").parent / "act.py"
# What goes wrong at one request to one node. The controller or the agent dies before or after the
# node did what it was asked to; an agent that is only cut off ends in its own order.
KINDS = (
    "controller-dies-before",
    "controller-dies-after",
    "cut-off-before",
    "cut-off-after",
    "agent-killed-before",
    "agent-killed-after",
    "refused",
)


class Cut(BaseException):
    """The controller is gone."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong at the request `op` to a node: one of KINDS."""

    op: str
    node: str
    kind: str


def fresh_agent(keep: int | None) -> ModuleType:
    """A new process of the agent: its writing part, which holds no lock and has staged nothing.

    `keep` is how many runs it remembers, if not as many as usual.
    """
    spec = importlib.util.spec_from_file_location("agent_act", CODE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if keep is not None:
        vars(module)["KEEP"] = keep
    return module


class WrittenNode(FakeNode):
    """One node below a folder of its own."""

    def __init__(self, name: str, root: Path, keep: int | None) -> None:
        super().__init__(name)
        self.root = root
        self.keep = keep
        self.begin()

    def begin(self) -> None:
        """Start an agent."""
        self._act = fresh_agent(self.keep)
        self._agent = SimpleNamespace(endings=[], ops={})
        self._act.install(self._agent)

    def end(self, killed: bool = False) -> None:
        """End the agent: in its own order, or killed."""
        if not killed:
            for ending in self._agent.endings:
                ending()
        for fd in self._act._locks.values():
            os.close(fd)
        self.begin()

    def answer(self, op: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if op in self._agent.ops:
            request = {**body, "root": str(self.root)}
            return dict(self._agent.ops[op](self._agent, request))
        if op == "take_back":
            return {"undone": [], "kept": []}
        if op == "deeds":
            return {"deeds": []}
        return super().answer(op, body)

    def read(self, path: str) -> bytes | None:
        place = self.root / path.lstrip("/")
        return place.read_bytes() if place.exists() else None

    def journal(self) -> Journal:
        found = read_journal(str(self.root / STATE))
        return parse_journal(found)


class WrittenAgents(FakeAgents):
    """The agents of a command on some of the nodes below a folder, `names`; others are left out."""

    def __init__(
        self,
        folder: Path,
        count: int,
        names: tuple[str, ...] = (),
        fault: Fault | None = None,
        keep: int | None = None,
    ) -> None:
        super().__init__(count)
        self.fault = fault
        self.dead = False
        self.written: dict[str, WrittenNode] = {}
        for name in list(self.nodes):
            self.written[name] = WrittenNode(name, folder / name, keep)
        self.nodes = dict(self.written)
        self.links = {name: FakeLink(node) for name, node in self.nodes.items()}
        if names:
            left_out = tuple(node for node in self._base.inventory.nodes if node.name not in names)
            nodes = tuple(node for node in self._base.inventory.nodes if node.name in names)
            limited = replace(self._base.inventory, nodes=nodes, left_out=left_out)
            self._base = replace(self._base, inventory=limited)

    @property
    def inventory(self) -> Inventory:
        return self._base.inventory

    def finish(self) -> None:
        """The command has ended, and so do the agents that are left."""
        for node in self.written.values():
            node.end()

    def _answer(self, op: str, name: str, body: Mapping[str, Any]) -> Answer:
        if self.dead:
            raise Cut
        node = self.written[name]
        kind = ""
        if self.fault is not None and (self.fault.op, self.fault.node) == (op, name):
            kind = self.fault.kind
        if kind == "controller-dies-before":
            self.dead = True
            raise Cut
        if kind == "refused":
            return {"no": "no_space", "why": "No space left on device"}
        answer: Answer = {}
        if not kind.endswith("-before"):
            answer = node.answer(op, body)
        if kind == "controller-dies-after":
            self.dead = True
            raise Cut
        if kind.startswith(("cut-off", "agent-killed")):
            node.end(killed=kind.startswith("agent-killed"))
            del self.links[name]
            return LinkLost("hung", "no sign of life for 5 s")
        return answer


# ---------------------------------------------------------------- states


Tree = tuple[tuple[str, bytes], ...]  # path below the root → bytes, of all files


def tree_of(root: Path) -> Tree:
    """All files of a node but the lock, which says when it was taken."""
    found = []
    for place in sorted(root.rglob("*")):
        if place.is_file() and place.name != "lock":
            found.append((str(place.relative_to(root)), place.read_bytes()))
    return tuple(found)


def put_tree(root: Path, tree: Tree) -> None:
    """Make the files of a node these. What was there is moved away, as to remove it is slow."""
    if root.exists():
        root.rename(tempfile.mkdtemp(dir=root.parent, prefix="old-"))
    (root / "etc").mkdir(parents=True)
    for name, data in tree:
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
