"""Makes docs/reference/resources.md: every playbook resource, from schema and code."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from clusterprep.changes.playbook.steps import resources
from clusterprep.changes.resources import StepResource
from clusterprep.inventory.schema import load_schema

HEAD = """# Every resource

Written by `make format` from the schema of playbooks and the resources themselves.
[playbooks.md](../howto/playbooks.md) says how to write steps, and has notes on each resource.
Parameters in bold are required; those marked {{ }} may contain variables.
"""
KINDS = {
    False: "Written on all nodes or on none; a rollback restores every byte.",
    True: "Runs step by step on each node; a failed step is rolled back there, as far as possible.",
}


def page() -> str:
    """Return the page: a section for each resource, by name."""
    steps = load_schema("playbook")["items"]["properties"]
    return HEAD + "".join(_entry(name, steps[name]) for name in sorted(resources()))


def _entry(name: str, schema: Mapping[str, Any]) -> str:
    resource = resources()[name]
    about = (sys.modules[resource.plan.__module__].__doc__ or "").split("\n", 1)[0]
    stepwise = isinstance(resource, StepResource)
    handles = (
        " May be a handler." if isinstance(resource, StepResource) and resource.handles else ""
    )
    rows = "".join(_rows(schema, resource.variables))
    table = (
        f"\n| parameter | is | |\n|---|---|---|\n{rows}"
        if rows
        else "\nIt takes no parameters: `{}`.\n"
    )
    text = textwrap.fill(f"{about} {KINDS[stepwise]}{handles}", 118)
    return f"\n## `{name}`\n\n{text}\n{table}"


def _rows(schema: Mapping[str, Any], variables: tuple[str, ...]) -> Iterator[str]:
    anything = schema.get("additionalProperties")
    if anything:
        yield _row("any name", anything, required=False, filled="*" in variables)
    for key, about in schema.get("properties", {}).items():
        yield _row(f"`{key}`", about, key in schema.get("required", ()), key in variables)


def _row(key: str, about: Mapping[str, Any], required: bool, filled: bool) -> str:
    words = about.get("title", "")
    if choice := about.get("enum"):
        words += ": " + ", ".join(f"`{word}`" for word in choice)
    if "default" in about:
        words += f" ({about['default']})"
    name = f"**{key}**" if required else key
    if filled:
        name += " {{ }}"
    row = f"| {name} | {words} | {about.get('description', '')} |\n"
    return row.replace("  |", " |")
