"""Finds the plug-ins: a fact, a check or a family of variables exists because its file exists."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TypeVar

from clusterprep.checks import Check
from clusterprep.facts import Fact
from clusterprep.runtime.plugins import modules

Plugin = TypeVar("Plugin", Fact, Check)


def collect(kind: type[Plugin], *packages: str) -> dict[str, Plugin]:
    """All plug-ins of one kind by name. Two that share a name are a mistake of ours, named with both owners."""
    found: dict[str, Plugin] = {}
    owner: dict[str, str] = {}
    for package in packages:
        for module in modules(package):
            for plugin in vars(module).values():
                if not isinstance(plugin, kind) or found.get(plugin.name) is plugin:
                    continue
                if plugin.name in found:
                    raise TypeError(
                        f"{plugin.name} is defined in {owner[plugin.name]} and in {module.__name__}"
                    )
                found[plugin.name], owner[plugin.name] = plugin, module.__name__
    return found


@functools.cache
def facts() -> Mapping[str, Fact]:
    """Facts by name; a check may define the fact it needs in its own file."""
    return collect(Fact, "clusterprep.facts", "clusterprep.checks")


@functools.cache
def checks() -> Mapping[str, Check]:
    """Checks by name, in alphabetical order of areas."""
    found = collect(Check, "clusterprep.checks")
    for check in found.values():
        for fact in (*check.facts, *check.uses):
            if fact not in facts():
                raise TypeError(f"check {check.name} needs the fact {fact}, which no file defines")
    return dict(sorted(found.items()))
