"""Resources: one file per kind of wanted state, each a pure comparison of what is with what is wanted."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clusterprep.facts import Fact, under
from clusterprep.frozen import dataclass
from clusterprep.model import Absent, Fleet, Inventory, Node, Read
from clusterprep.render import Environment
from clusterprep.wanted import Access, FileChange, FileState

Params = Mapping[str, Any]
Part = tuple[str, str]  # a path, and the part of that file that a step owns: "" for all of it


class NoPlan(Exception):
    """What stands on a node cannot be compared; `absent` says why. Nothing is then written anywhere."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.absent = Absent(reason, detail)


@dataclass(frozen=True)
class Known:
    """What a resource compares on one node: `files` as the steps before it leave them, and no fact is absent."""

    fleet: Fleet
    node: Node
    files: Mapping[str, FileState]
    facts: Mapping[str, Any]
    environment: Environment


def _nothing(*_: Any) -> tuple[Any, ...]:
    return ()


@dataclass(frozen=True)
class Resource:
    """A kind of wanted state that is files, or values of the kernel: all are written on all nodes or on none.

    `paths(params, inventory)` names the files that it looks at and may touch, `facts` what else has to be known;
    `plan(params, known)` gives the changes for one node, or raises NoPlan. Where a path or a fact is not known, plan is
    not called. `parts` says what of these files is one step's alone: all of them, unless told otherwise.
    `wrong(params)` yields a key and what is wrong with it, beyond what the schema can say; `variables` are the
    parameters that may hold `{{ name }}`; `live(params)` says why a node whose root is not / cannot have it.
    """

    name: str
    paths: Callable[[Params, Inventory], tuple[str, ...]]
    plan: Callable[[Params, Known], Iterable[FileChange]]
    facts: Callable[[Params, Inventory], tuple[Fact, ...]] = _nothing
    parts: Callable[[Params, Inventory], tuple[Part, ...]] | None = None
    wrong: Callable[[Params], Iterable[tuple[str, str]]] = _nothing
    variables: tuple[str, ...] = ()
    live: Callable[[Params], str] = lambda params: ""

    def owned(self, params: Params, inventory: Inventory) -> tuple[Part, ...]:
        """The parts of files that belong to a step with these parameters."""
        if self.parts is not None:
            return self.parts(params, inventory)
        return tuple((path, "") for path in self.paths(params, inventory))


def target(path: str) -> Fact:
    """The state of a file that may be rewritten, as a fact named after its path."""
    return Fact(
        f"target:{path}",
        lambda node, inventory: (Read("target", (under(node, path),)),),
        lambda answer: parse_target(path, answer),
    )


def parse_target(path: str, answer: dict[str, Any] | None) -> FileState:
    """None (no such file) and the agent's answer as one kind of value."""
    if answer is None:
        return FileState(path, None)
    content = base64.b64decode(answer["data"], validate=True)
    return FileState(path, content, int(answer["mode"]), int(answer["uid"]), int(answer["gid"]))


def file_change(
    node: Node, resource: str, state: FileState, wanted: bytes | None, mode: int, access: Access | None = None
) -> FileChange:
    """The change from a state to wanted bytes. A file that exists keeps its mode, unless `access` says otherwise."""
    kept = mode if state.content is None else state.mode
    return FileChange(node.name, resource, state.path, state.content, wanted, kept, access, state.access)


def known(states: Mapping[str, FileState | Absent]) -> dict[str, FileState] | Absent:
    """The states, or the first reason why one is not known."""
    found = {}
    for path, state in states.items():
        if isinstance(state, Absent):
            return Absent(state.reason, f"{path}: {state.detail}")
        found[path] = state
    return found
