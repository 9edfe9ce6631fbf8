"""Put together what a site adds: checks.d, folders of plug-ins, and installed packages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterprep.checks import Check, CheckContext, Outcome
from clusterprep.facts import Fact
from clusterprep.inventory.demands import ALIASES, check_names
from clusterprep.inventory.schema import load_schema
from clusterprep.inventory.site.declarations import Declared, read_declarations
from clusterprep.inventory.site.names import name_of_file
from clusterprep.inventory.site.plugins import (
    Plugin,
    guarded_fact,
    name_problem,
    read_folder,
    read_packages,
)
from clusterprep.inventory.site.presence import FOLDER
from clusterprep.model import Severity
from clusterprep.model.extensions import NO_EXTENSIONS, Broken, Extensions
from clusterprep.remedies import sentence
from clusterprep.survey import registry

_RESOURCE_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)


class _Collected:
    """What was found so far. A name that is taken makes the later one broken."""

    def __init__(self) -> None:
        self.checks: dict[str, Check] = {}
        self.facts: dict[str, Fact] = {}
        self.resources: dict[str, tuple[str, Any]] = {}
        self.groups: dict[str, str] = {}
        self.broken: list[Broken] = []
        self.places: dict[str, str] = {}  # by the name of a check
        self.fact_places: dict[str, str] = {}
        self.imported: set[int] = set()  # facts of plug-ins, which others may import

    def add_check(self, check: Check, place: str) -> bool:
        """Add a check, unless its name is none, or taken. Return whether it was added."""
        problem = name_problem(check.name) or self._taken(check.name)
        if problem:
            self.broken.append(Broken(str(check.name), place, problem))
            return False
        self.checks[check.name] = check
        self.places[check.name] = place
        return True

    def add_declared(self, declared: Declared) -> None:
        """Add a check of checks.d, and its fact, unless its name is taken."""
        check, fact = declared.check, declared.fact
        if check is None or fact is None or not self.add_check(check, declared.place):
            return
        self.add_fact(fact, declared.place)
        if declared.group:
            self.groups[check.name] = declared.group

    def _taken(self, name: str) -> str | None:
        """Return who has the name of a check already, or None."""
        rename = "give it another name"
        if name in self.places:
            return f"{name} is also declared in {self.places[name]}; {rename}"
        if name in check_names() or name in ALIASES:
            ours = _file_of(name)
            return f"{name} is a check of clusterprep ({ours}); {rename}"
        return None

    def add_fact(self, fact: Fact, place: str) -> None:
        problem = name_problem(fact.name)
        if fact.name in self.fact_places:
            problem = f"the fact {fact.name} is also in {self.fact_places[fact.name]}"
        elif fact.name in registry.facts():
            problem = f"the fact {fact.name} is one of clusterprep ({_fact_file(fact.name)})"
        if problem:
            self.broken.append(Broken(f"{fact.name}", place, f"{problem}; give it another name"))
            return
        self.facts[fact.name] = fact
        self.fact_places[fact.name] = place

    def add_plugin(self, plugin: Plugin) -> None:
        """Add what a file has, but for what it only imports from clusterprep."""
        self.broken.extend(plugin.broken)
        ours = registry.facts()
        imported = self.imported
        for fact in plugin.facts:
            if ours.get(fact.name) is not fact and id(fact) not in imported:
                self.add_fact(guarded_fact(fact), plugin.place)
                imported.add(id(fact))
        for check in plugin.checks:
            if not _is_ours(check):
                self.add_check(check, plugin.place)
        if plugin.resource is not None:
            self.add_resource(plugin.resource, plugin.place)

    def add_resource(self, resource: Any, place: str) -> None:
        """Add a kind of wanted state, unless its name is none, or taken."""
        name: Any = getattr(resource, "name", None)
        problem = ""
        if not isinstance(name, str) or not _RESOURCE_NAME.fullmatch(name):
            problem = f"expected a resource with a name such as fan_speed; seen {resource!r:.80}"
        elif name in load_schema("playbook")["items"]["properties"]:
            problem = f"the resource {name} is one of clusterprep; give it another name"
        elif name in self.resources:
            problem = f"the resource {name} is also in {self.resources[name][0]}"
        if problem:
            self.broken.append(Broken(name_of_file(Path(place)), place, problem))
        else:
            self.resources[name] = (place, resource)

    def refuse_unknown_facts(self) -> None:
        """Take out the checks that need a fact which no file defines."""
        for name, check in list(self.checks.items()):
            for fact in (*check.facts, *check.uses):
                if fact not in self.facts and fact not in registry.facts():
                    why = f"it needs the fact {fact}, which no file defines"
                    self.broken.append(Broken(name, self.places[name], why))
                    self.checks.pop(name, None)

    def extensions(self) -> Extensions:
        """Return everything; a broken check is unknown on all nodes."""
        if not (self.checks or self.facts or self.resources or self.broken):
            return NO_EXTENSIONS
        return _with_broken(
            Extensions(
                self.checks,
                self.facts,
                self.resources,
                groups=self.groups,
            ),
            self.broken,
        )


def load_extensions(inventory: str | None, folders: Sequence[Path] = ()) -> Extensions:
    """Return what the site adds beside an inventory file; without one only installed packages.

    Nothing that is wrong with it is raised: it is among `broken`.
    """
    collected = _Collected()
    if inventory is not None:
        for declared in read_declarations(Path(inventory).parent / FOLDER):
            if declared.broken is not None:
                collected.broken.append(declared.broken)
            else:
                collected.add_declared(declared)
    for folder in folders:
        for plugin in read_folder(folder):
            collected.add_plugin(plugin)
    for plugin in read_packages():
        collected.add_plugin(plugin)
    collected.refuse_unknown_facts()
    return collected.extensions()


def without_unknown_groups(extensions: Extensions, groups: Iterable[str]) -> Extensions:
    """Return the extensions, a check of a group that the inventory does not have as broken."""
    known = set(groups)
    broken = []
    for name, group in extensions.groups.items():
        if group not in known:
            place = extensions.checks[name].source
            why = f"when.group: the inventory has no group '{group}'"
            broken.append(Broken(name, place, why))
    if not broken:
        return extensions
    kept = dict(extensions.checks)
    for one in broken:
        del kept[one.check]
    return _with_broken(
        Extensions(kept, extensions.facts, extensions.resources, extensions.broken),
        broken,
    )


# ---------------------------------------------------------------- what is broken


def _with_broken(extensions: Extensions, broken: Iterable[Broken]) -> Extensions:
    """Return the extensions with more that is broken, each under a name that is free."""
    checks: dict[str, Any] = dict(extensions.checks)
    listed = list(extensions.broken)
    for one in broken:
        free = _free_name(one.check, checks)
        named = Broken(free, one.place, one.why)
        listed.append(named)
        checks[free] = _unknown_check(named)
    return Extensions(
        checks,
        extensions.facts,
        extensions.resources,
        tuple(listed),
        extensions.groups,
    )


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    """Return the name, or one below `site.` that no check has."""
    if name_problem(name):
        name = "site.unnamed"
    if name not in taken and name not in check_names():
        return name
    stem = f"site.{name.partition('.')[2]}"
    number = 2
    free = stem
    while free in taken or free in check_names():
        free = f"{stem}_{number}"
        number += 1
    return free


def _unknown_check(broken: Broken) -> Check:
    """Return the check that stands for what is broken: unknown on every node."""
    severity: Severity = "error"

    def judge(context: CheckContext) -> Iterable[Outcome]:
        if context.names:
            message = f"this site check cannot be used: {broken.why}"
            yield Outcome("unknown", context.names, message, broken.place, reason="broken")

    return Check(
        broken.check,
        facts=(),
        judge=judge,
        severity=severity,
        title="A site check that cannot be used",
        why=f"{broken.place}: {broken.why}.",
        how="It is not measured until its file is mended.",
        remedy=sentence("mend {place}", place=broken.place),
        tags=("site",),
        source=broken.place,
    )


def _is_ours(check: Check) -> bool:
    """Return whether a plug-in only imported this check."""
    ours = registry.checks().get(check.name)
    return ours is not None and ours.judge is check.judge


def _file_of(name: str) -> str:
    """Return the file of one of our checks."""
    ours = registry.checks().get(ALIASES.get(name, name))
    if ours is None:
        return "a name of its catalogue"
    return registry.file_of(ours)


def _fact_file(name: str) -> str:
    return registry.file_of(registry.facts()[name])
