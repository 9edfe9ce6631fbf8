"""Playbooks: a YAML list of steps, each one resource with its parameters; all mistakes reported at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clusterprep
from clusterprep.errors import InputError
from clusterprep.noderange import nearest
from clusterprep.plugins import modules
from clusterprep.resources import Resource

WRITTEN = [{"name": True, "tags": True, "file": True}]  # scalars below these keys are text as written
AROUND = ("name", "tags")  # the keys of a step that are no resource


@dataclass(frozen=True)
class Step:
    """One wanted state."""

    name: str
    resource: Resource
    params: Mapping[str, Any]
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Playbook:
    """Steps in the order written."""

    path: str
    steps: tuple[Step, ...]


def resources() -> dict[str, Resource]:
    """The kinds of wanted state that are built, by the name a step calls them."""
    found = (module.RESOURCE for module in modules("clusterprep.resources"))
    return {resource.name: resource for resource in found}


def load_playbook(name: str) -> Playbook:
    """A shipped playbook by its name, or any file by its path. Raises InputError with every mistake found."""
    from clusterprep.inventory.document import read_document
    from clusterprep.inventory.schema import check

    path = _find(name)
    document = read_document(path, WRITTEN, "a playbook", top="list")
    check(document, "playbook", document.data)
    document.settle()
    steps = []
    for number, entry in enumerate(document.data):
        kinds = [key for key in entry if key not in AROUND]
        if len(kinds) != 1:
            document.complain((number,), f"a step has one resource, this one has {len(kinds)}: {', '.join(kinds)}")
            continue
        tags = tuple(entry.get("tags", ()))
        steps.append(Step(entry.get("name", kinds[0]), resources()[kinds[0]], entry[kinds[0]], tags))
    _complain_of_doubles(document, steps)
    document.settle()
    return Playbook(str(path), tuple(steps))


def _complain_of_doubles(document: Any, steps: list[Step]) -> None:
    """Two steps that write one file would undo each other at every run."""
    paths: dict[str, int] = {}
    for number, step in enumerate(steps):
        path = step.params.get("path", f"the files of {step.resource.name}")
        if path in paths:
            document.complain((number,), f"{path} is written by step {paths[path] + 1} already")
        paths.setdefault(path, number)


def _find(name: str) -> Path:
    shipped = shipped_playbooks()
    if name in shipped:
        return shipped[name]
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        hint = nearest(name, shipped) or f"shipped: {', '.join(sorted(shipped))}; a file of your own ends in .yaml"
        raise InputError.of(f"there is no playbook {name!r}", key="--playbook", hint=hint)
    return Path(name)


def shipped_playbooks() -> dict[str, Path]:
    """The playbooks that come with the package: inside it once installed, beside it in a checkout."""
    package = Path(clusterprep.__file__).parent
    inside = package / "playbooks"
    folder = inside if inside.is_dir() else package.parent / "playbooks"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
