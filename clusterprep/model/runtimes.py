"""Runtimes of nodes as questions to agents carry them."""

from __future__ import annotations

import json
from typing import Any

from clusterprep.model import Node, Runtime


def to_agent(runtime: Runtime | None) -> dict[str, Any] | None:
    """Return what an agent is told of a runtime, as clusterprep.remote.agent.inside reads it."""
    if runtime is None:
        return None
    if runtime.container is not None:
        container = runtime.container
        return {
            "container": {
                "engine": container.engine,
                "image": container.image,
                "options": list(container.options),
            }
        }
    told: dict[str, Any] = {}
    if runtime.modules:
        told["modules"] = list(runtime.modules)
    for key in ("activate", "conda", "venv"):
        value = getattr(runtime, key)
        if value is not None:
            told[key] = value
    return told


def read_arguments(runtime: Runtime | None) -> tuple[str, ...]:
    """Return the last arguments of a read that is answered inside a runtime; none for the host.

    Reads are compared and hashed, so the runtime travels as text.
    """
    told = to_agent(runtime)
    return () if told is None else (json.dumps(told, sort_keys=True),)


def in_request(runtime: Runtime | None) -> dict[str, Any]:
    """Return what a request to start processes says of the runtime; nothing for the host."""
    told = to_agent(runtime)
    return {} if told is None else {"runtime": told}


def pasted_python(node: Node) -> str:
    """Return the job's interpreter as a line names it that is pasted into a shell of the node.

    A name alone would be the system's there: of an environment with a path it is that path, and of
    any other runtime PYTHON, as it has to be entered before a line is pasted.
    """
    runtime = node.runtime
    if runtime is None or ("/" in node.python and runtime.container is None):
        return node.python
    environment = runtime.venv or runtime.conda or ""
    if environment.startswith("/"):
        return f"{environment}/bin/{node.python}"
    return "PYTHON"
