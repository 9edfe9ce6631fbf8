"""`runtime:` of the inventory: where the job runs on a node."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from clusterprep.inventory.document import Document
from clusterprep.inventory.yaml_tree import Place
from clusterprep.model import Container, Runtime

# The job's interpreter where `runtime:` is declared and `python:` is not: the one that is found
# inside by its name, as a job script does.
PYTHON_INSIDE = "python3"


# Pairs of which only one can be declared: a container begins anew, and an environment is one.
EXCLUDING = (
    ("container", "modules"),
    ("container", "activate"),
    ("container", "conda"),
    ("container", "venv"),
    ("conda", "venv"),
)


def read_runtime(document: Document, source: Mapping[str, Any], place: Place) -> Runtime:
    """Return what `runtime:` declares, without what the schema has complained of."""
    for one, other in EXCLUDING:
        if one in source and other in source:
            document.complain((*place, other), f"{one} and {other} exclude each other; keep one")
    container = None
    declared = source.get("container") or {}
    if declared.get("engine") and declared.get("image"):
        container = Container(
            declared["engine"],
            declared["image"],
            tuple(option for option in declared.get("options", ()) if option is not None),
        )
    conda = source.get("conda")
    if conda is not None and conda.startswith("/"):
        conda = _path(conda)
    return Runtime(
        container=container,
        modules=tuple(name for name in source.get("modules", ()) if name is not None),
        activate=_path(source.get("activate")),
        conda=conda,
        venv=_path(source.get("venv")),
    )


def _path(path: str | None) -> str | None:
    """Return a path without repeated slashes; posixpath.normpath keeps two leading ones."""
    return None if path is None else posixpath.normpath("/" + path.lstrip("/"))
