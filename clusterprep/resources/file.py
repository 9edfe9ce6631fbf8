"""One file with given content, the same on all nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.model import FileChange, FileState, Inventory, Node
from clusterprep.render import Environment
from clusterprep.resources import Params, Resource, file_change


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (str(params["path"]),)


def plan(node: Node, params: Params, files: Mapping[str, FileState], environment: Environment) -> Iterable[FileChange]:
    state = files[str(params["path"])]
    mode = int(str(params.get("mode", "0644")), 8)
    yield file_change(node, "file", state, str(params["content"]).encode(), mode)


RESOURCE = Resource("file", paths, plan)
