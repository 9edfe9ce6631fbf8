"""Resources: one file per kind of wanted state, each a pure comparison of what is with what is wanted."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from clusterprep.facts import Fact, under
from clusterprep.model import Absent, FileChange, FileState, Inventory, Node, Read
from clusterprep.render import Environment

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Resource:
    """A kind of wanted state that is files: all of them are written on all nodes or on none.

    `paths(params, inventory)` names the files it may touch; `plan(node, params, files, environment)` gives the
    changes for one node, from the files as they are. A path that is not known has an Absent in `files`; `plan`
    is then not called.
    """

    name: str
    paths: Callable[[Params, Inventory], tuple[str, ...]]
    plan: Callable[[Node, Params, Mapping[str, FileState], Environment], Iterable[FileChange]]


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


def file_change(node: Node, resource: str, state: FileState, wanted: bytes | None, mode: int) -> FileChange:
    """The change from a state to wanted bytes. A file that exists keeps its mode."""
    kept = mode if state.content is None else state.mode
    return FileChange(node.name, resource, state.path, state.content, wanted, kept)


def known(states: Mapping[str, FileState | Absent]) -> dict[str, FileState] | Absent:
    """The states, or the first reason why one is not known."""
    found = {}
    for path, state in states.items():
        if isinstance(state, Absent):
            return Absent(state.reason, f"{path}: {state.detail}")
        found[path] = state
    return found
