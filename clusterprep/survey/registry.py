"""Find the plug-ins: a fact or a check exists because its file exists.

registry.checks()          # ours, found once
registry.of(inventory)     # ours, and those that the site adds beside its inventory
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TypeVar

from msgspec import Struct

from clusterprep.checks import Check
from clusterprep.facts import Fact
from clusterprep.model import Inventory
from clusterprep.model.extensions import Extensions
from clusterprep.runtime.plugins import modules

Plugin = TypeVar("Plugin", Fact, Check)


class Registry(Struct, frozen=True):
    """Facts and checks by name, checks in alphabetical order."""

    facts: Mapping[str, Fact]
    checks: Mapping[str, Check]


def of(inventory: Inventory) -> Registry:
    """Return what is known about nodes of this inventory: our facts and checks and the site's."""
    return extended(inventory.extensions)


def extended(added: Extensions) -> Registry:
    """Return our facts and checks with those of a site."""
    if not added:
        return Registry(facts(), checks())
    all_checks = {**added.checks, **checks()}
    return Registry({**added.facts, **facts()}, dict(sorted(all_checks.items())))


def file_of(plugin: Fact | Check) -> str:
    """Return the file of one of our plug-ins, below the folder of the package."""
    for package in ("clusterprep.facts", "clusterprep.checks"):
        for module in modules(package):
            if any(value is plugin for value in vars(module).values()):
                return f"{module.__name__.replace('.', '/')}.py"
    return "clusterprep"


def collect(kind: type[Plugin], *packages: str) -> dict[str, Plugin]:
    """Return all plug-ins of a kind by name. Raises TypeError if two of them share a name."""
    plugins: dict[str, Plugin] = {}
    owners: dict[str, str] = {}
    for package in packages:
        for module in modules(package):
            for plugin in _plugins_in(module, kind):
                name = plugin.name
                if plugins.get(name) is plugin:
                    continue  # a module imports the plug-in of another one
                if name in plugins:
                    raise TypeError(f"{name} is defined in {owners[name]} and in {module.__name__}")
                plugins[name] = plugin
                owners[name] = module.__name__
    return plugins


def _plugins_in(module: ModuleType, kind: type[Plugin]) -> Iterator[Plugin]:
    for value in vars(module).values():
        if isinstance(value, kind):
            yield value


@functools.cache
def facts() -> Mapping[str, Fact]:
    """Return facts by name. A check may define the fact that it needs in its own file."""
    return collect(Fact, "clusterprep.facts", "clusterprep.checks")


@functools.cache
def checks() -> Mapping[str, Check]:
    """Return checks by name, in alphabetical order.

    Raises TypeError for a fact that does not exist.
    """
    by_name = collect(Check, "clusterprep.checks")
    for check in by_name.values():
        for fact in (*check.facts, *check.uses):
            if fact not in facts():
                raise TypeError(f"check {check.name} needs the fact {fact}, which no file defines")
    return dict(sorted(by_name.items()))
