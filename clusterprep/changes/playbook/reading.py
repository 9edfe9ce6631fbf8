"""Reads playbook files with their includes into steps.

All mistakes of all files are reported at once, each with its file and line.

The whole inventory is known here, so unknown nodes, groups, names and values are reported before
any node is asked. `when` and `{{ name }}` are closed languages: nothing is run as code, and a
substituted value is not read again. What of a file belongs to one step is compared over all steps
here; where a `when` decides, on the node, before anything is written.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

import clusterprep
from clusterprep.changes.key_pair import key_pair
from clusterprep.changes.playbook import variables
from clusterprep.changes.playbook.conditions import Condition, ConditionError, groups_of, parse
from clusterprep.changes.playbook.names import UNDECLARED, Name, all_nodes, undeclared
from clusterprep.changes.playbook.steps import Playbook, Step, conflicts, resources, site_resources
from clusterprep.changes.resources import Resource, StepResource, ssh_mesh
from clusterprep.errors import InputError, Problem
from clusterprep.inventory.document import Document, read_document, read_text
from clusterprep.inventory.schema import check_against_schema
from clusterprep.inventory.yaml_tree import Place
from clusterprep.model import Inventory, Node
from clusterprep.model.nodeset import fold, nearest, select

# The keys of a step that are no resource.
AROUND = ("name", "tags", "when", "nodes", "serial", "notify", "handler")
# Scalars below these keys are text as written: mode: 0644 stays "0644", a value `on` stays "on".
_TEXTS = (
    "name",
    "tags",
    "when",
    "nodes",
    "include",
    "notify",
    "file",
    "line",
    "limits",
    "sysctl",
    "unset",
)
MAX_DEPTH = 10  # playbooks within playbooks
MAX_FILES = 100  # playbooks that are included, counting those that are included again
MAX_TEMPLATE = 1 << 20  # bytes, as of any file that is written

Params = Mapping[str, Any]
AnyResource = Resource | StepResource


class Around(Struct, frozen=True):
    """What a step has besides its resource, some of it from the includes around its file."""

    tags: tuple[str, ...] = ()
    when: tuple[Condition, ...] = ()
    nodes: frozenset[str] | None = None

    def within(self, outer: Around) -> Around:
        """Return the tags of both, the conditions of both, and the nodes that are in both."""
        tags = dict.fromkeys((*outer.tags, *self.tags))
        when = (*outer.when, *self.when)
        nodes = _common(outer.nodes, self.nodes)
        return Around(tuple(tags), when, nodes)


def _common(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return the nodes that are in both; None means all nodes."""
    if one is None:
        return other
    if other is None:
        return one
    return one & other


class Entry(Struct, frozen=True):
    """One entry of a playbook's list: a step or an include, before it is understood."""

    document: Document
    number: int
    data: Mapping[str, Any]

    def complain(self, place: Place, message: str, hint: str | None = None) -> None:
        """Add a problem; `place` has the keys inside the entry that lead to it."""
        self.document.complain((self.number, *place), message, hint)


class PlaybookReader(Struct, dict=True):
    """Reads one playbook with its includes.

    Without an inventory only the files themselves are judged. `finish` raises all problems.
    """

    inventory: Inventory | None
    files: int = 0
    steps: list[Step] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    handlers: set[str] = field(default_factory=set)
    notified: list[tuple[Document, Place, str]] = field(default_factory=list)

    def read(self, path: Path, around: Around, chain: tuple[Path, ...] = ()) -> None:
        """Read a file and what it includes; `chain` has the files that include it.

        Raises InputError if the file cannot be read at all.
        """
        self.files += 1
        known = self.resources
        document = read_document(path, as_written(known), "a list of steps", top="list")
        entries = _valid_entries(document, self.site)
        position = len(self.problems)
        chain = (*chain, path.resolve())
        for entry in entries:
            self._read_entry(entry, around, chain)
        # In the order of reading: a file's own problems come before those of what it includes.
        own = dict.fromkeys(document.problems)
        self.problems[position:position] = sorted(own, key=_line_of)

    @functools.cached_property
    def site(self) -> dict[str, AnyResource]:
        """Return the resources of the site."""
        return site_resources(self.inventory.extensions) if self.inventory else {}

    @functools.cached_property
    def resources(self) -> dict[str, AnyResource]:
        """Return all resources that a step may have."""
        return {**resources(), **self.site}

    def finish(self) -> None:
        """Judge all steps together, and raise InputError with every problem."""
        problems = self.problems
        for document, place, name in self.notified:
            if name not in self.handlers:
                problem = self._unknown_handler(document, place, name)
                problems.append(problem)
        inventory = self.inventory or Inventory("", ())
        for later, first, part in conflicts(self.steps, inventory):
            problem = _conflict_problem(later, first, part)
            problems.append(problem)
        if problems:
            distinct = dict.fromkeys(problems)
            raise InputError(tuple(distinct))

    def _unknown_handler(self, document: Document, place: Place, name: str) -> Problem:
        hint = nearest(name, self.handlers)
        if not hint:
            hint = "a handler is a step with `handler: true` and this name"
        message = f"no step is a handler called '{name}'"
        return Problem(
            message,
            document.path,
            document.line(place),
            "notify",
            hint,
        )

    # ------------------------------------------------------------ one entry

    def _read_entry(self, entry: Entry, outer: Around, chain: tuple[Path, ...]) -> None:
        kinds = [key for key in entry.data if key not in AROUND]
        if len(kinds) != 1:
            seen = ", ".join(kinds) or "none"
            message = f"a step has one resource, or one include; this one has {seen}"
            entry.complain((), message)
            return
        kind = kinds[0]
        around = self._read_around(entry).within(outer)
        if kind == "include":
            self._include(entry, around, chain)
        else:
            self._read_step(entry, kind, around)

    def _read_step(self, entry: Entry, kind: str, around: Around) -> None:
        document = entry.document
        data = entry.data
        resource = self.resources[kind]
        self._read_order(entry, kind, resource)
        params = self._read_params(entry, kind, resource)
        name = data.get("name", kind)
        line = document.line((entry.number,))
        serial = data.get("serial")
        notify = tuple(data.get("notify", ()))
        handler = bool(data.get("handler"))
        step = Step(
            name=name,
            resource=resource,
            params=params,
            tags=around.tags,
            when=around.when,
            nodes=around.nodes,
            file=document.path,
            line=line,
            serial=serial,
            notify=notify,
            handler=handler,
        )
        self._check_inventory(entry, kind, step)
        self.steps.append(step)

    def _read_around(self, entry: Entry) -> Around:
        """Read tags, condition and nodes of an entry."""
        data = entry.data
        conditions = []
        if "when" in data:
            condition = self._read_condition(entry, data["when"])
            if condition is not None:
                conditions.append(condition)
        nodes = None
        if "nodes" in data:
            nodes = self._read_nodes(entry, data["nodes"])
        return Around(tuple(data.get("tags", ())), tuple(conditions), nodes)

    def _read_condition(self, entry: Entry, text: str) -> Condition | None:
        """Return the condition of `when`, None if it cannot be read; note what is wrong with it."""
        place = ("when",)
        try:
            condition = parse(text)
        except ConditionError as error:
            entry.complain(place, str(error), error.hint)
            return None
        if self.inventory is None:
            return condition
        known = self.inventory.groups
        for group in groups_of(condition):
            if group not in known:
                hint = nearest(group, known) or _listed("groups are", known)
                entry.complain(place, f"the inventory has no group '{group}'", hint)
        return condition

    def _read_nodes(self, entry: Entry, text: str) -> frozenset[str] | None:
        """Return the names that `nodes` selects; None if it is wrong or there is no inventory."""
        if self.inventory is None:
            return None
        known = [node.name for node in all_nodes(self.inventory)]
        try:
            names = select(text, known, self.inventory.groups)
        except ValueError as error:
            entry.complain(("nodes",), str(error))
            return None
        if not names:
            entry.complain(("nodes",), f"'{text}' names no node")
        return frozenset(names)

    # ------------------------------------------------------------ includes

    def _include(self, entry: Entry, around: Around, chain: tuple[Path, ...]) -> None:
        """Read the steps of the included playbook; `chain` are the playbooks around it."""
        for key in ("serial", "notify", "handler"):
            if key in entry.data:
                entry.complain((key,), f"an include takes no {key}: give it to the steps")
        place = ("include",)
        try:
            path = find(entry.data["include"], Path(entry.document.path).parent)
        except InputError as error:
            problem = error.problems[0]
            entry.complain(place, problem.message, problem.hint)
            return
        obstacle = self._obstacle_to_include(path, chain)
        if obstacle:
            entry.complain(place, obstacle)
            return
        try:
            self.read(path, around, chain)
        except InputError as error:
            self.problems.extend(error.problems)

    def _obstacle_to_include(self, path: Path, chain: tuple[Path, ...]) -> str:
        """Return why a file cannot be included, empty if it can."""
        resolved = path.resolve()
        if resolved in chain:
            cycle = (*chain[chain.index(resolved) :], path)
            names = " → ".join(file.name for file in cycle)
            return f"playbooks include each other: {names}"
        if len(chain) > MAX_DEPTH:
            return f"more than {MAX_DEPTH} playbooks within each other"
        if self.files > MAX_FILES:
            return f"more than {MAX_FILES} playbooks are included, some of them again and again"
        if not path.exists():
            return f"there is no such file: {path}; it is looked for beside this one"
        return ""

    # ------------------------------------------------------------ serial, handler, notify

    def _read_order(self, entry: Entry, kind: str, resource: AnyResource) -> None:
        """Read `serial` and `handler`, which only step resources have, and `notify`."""
        data = entry.data
        if "serial" in data and isinstance(resource, Resource):
            why = f"serial has no meaning for {kind}: it is written on all nodes or on none"
            entry.complain(("serial",), why, "leave it out; --limit takes some nodes only")
        if data.get("handler"):
            self._read_handler(entry, str(data.get("name", kind)), resource)
        elif isinstance(resource, StepResource):
            why = resource.only_handles(data[kind])
            if why:
                entry.complain((kind,), why)
        for index, name in enumerate(data.get("notify", ())):
            place: Place = (entry.number, "notify", index)
            self.notified.append((entry.document, place, name))

    def _read_handler(self, entry: Entry, name: str, resource: AnyResource) -> None:
        place = ("handler",)
        if name in self.handlers:
            message = f"another handler is called '{name}': notify would not tell which"
            entry.complain(place, message)
        self.handlers.add(name)
        if isinstance(resource, StepResource) and resource.handles:
            return
        why = (
            f"{resource.name} is no handler: it is a state that is always wanted, not something to "
            "do after a change"
        )
        hint = f"leave out handler and notify: it is {resource.verb} where it is not so yet"
        entry.complain(place, why, hint)

    # ------------------------------------------------------------ parameters

    def _read_params(self, entry: Entry, kind: str, resource: AnyResource) -> Params:
        given: Params = entry.data[kind]
        for key, message in resource.wrong(given):
            entry.complain((kind, key) if key else (kind,), message)
        for path, text in variables.texts(given):
            if "{{" in text and path[0] != "template":
                self._check_variables(entry, (kind, *path), text, resource)
        if isinstance(resource, StepResource):
            # Parameters with mistakes may have a shape that `normal` does not expect.
            return given if entry.document.problems else resource.normal(given)
        if "template" in given:
            return self._with_template(entry, kind, given)
        if kind == ssh_mesh.NAME and self.inventory is not None:
            return {**given, ssh_mesh.PAIR: key_pair(self.inventory.cluster)}
        return given

    def _check_variables(
        self, entry: Entry, place: Place, text: str, resource: AnyResource
    ) -> None:
        """Complain about variables that are not allowed in a parameter, or cannot be read."""
        param = place[1]
        if param in resource.variables or "*" in resource.variables:
            _check_text(entry.document, (entry.number, *place), text)
        else:
            why = f"{param} takes no variables: it has to be the same on all nodes"
            entry.complain(place, why)

    def _with_template(self, entry: Entry, kind: str, given: Params) -> Params:
        """Return the parameters with the template's text as their content."""
        place = (kind, "template")
        folder = Path(entry.document.path).parent
        path = folder / str(given["template"])
        others = dict(given)
        del others["template"]
        try:
            text = read_text(str(path), "a template")
        except InputError as error:
            problem = error.problems[0]
            entry.complain(place, f"{path}: {problem.message}")
            return {
                **others,
                "content": "",
            }
        if len(text.encode()) > MAX_TEMPLATE:
            entry.complain(place, f"{path} has more than {MAX_TEMPLATE >> 20} MiB")
        try:
            variables.parse(text)
        except variables.VariableError as error:
            line = error.line + 1
            self.problems.append(
                Problem(
                    str(error),
                    str(path),
                    line,
                    None,
                    error.hint,
                )
            )
        return {
            **others,
            "content": text,
        }

    # ------------------------------------------------------------ the inventory

    def _check_inventory(self, entry: Entry, kind: str, step: Step) -> None:
        """Complain if the inventory lacks what a step needs, or has nodes that cannot have it."""
        if self.inventory is None:
            return
        nodes = all_nodes(self.inventory)
        if step.nodes is not None:
            nodes = tuple(node for node in nodes if node.name in step.nodes)
        other_roots = [node.name for node in nodes if node.root != "/"]
        why = step.resource.live(step.params) if other_roots else ""
        if why:
            names = fold(other_roots)
            message = f"{names} has a root other than /, where this is refused: {why}"
            entry.complain((kind,), message)
        for name in _names_of(step):
            missing = undeclared(name, nodes, self.inventory)
            if missing:
                message = f"{name.name} {UNDECLARED} for {fold(missing)}"
                entry.complain((), message, _nearest_variable(name.name, nodes))


def _valid_entries(document: Document, site: Collection[str] = ()) -> list[Entry]:
    """Return the entries that have the shape of the schema; the others become problems.

    The schema says nothing of the resources of a `site`, whose parameters are a mapping.
    """
    judged = []
    for number, data in enumerate(document.data):
        rest = data
        if isinstance(data, dict):
            rest = {key: value for key, value in data.items() if key not in site}
            for key in site:
                if not isinstance(data.get(key, {}), dict):
                    document.complain((number, key), "expected a mapping of parameters")
        judged.append(rest)
    invalid_places = check_against_schema(document, "playbook", judged)
    invalid = {place[0] for place in invalid_places if place}
    document.problems = [_with_hint(problem) for problem in document.problems]
    entries = []
    for number, data in enumerate(document.data):
        is_fit = isinstance(data, dict) and all(isinstance(data.get(k, {}), dict) for k in site)
        if number not in invalid and is_fit:
            entry = Entry(document, number, data)
            entries.append(entry)
    return entries


# ---------------------------------------------------------------- problems


def _line_of(problem: Problem) -> int:
    return problem.line or 0


def _with_hint(problem: Problem) -> Problem:
    if problem.message.startswith("a key has to be a word"):
        return dataclasses.replace(problem, hint="text that begins with {{ needs quotes")
    return problem


def _conflict_problem(later: Step, first: Step, part: str) -> Problem:
    """Return the problem of two steps that want the same part of a file."""
    by = f"the step in line {first.line}"
    if later.file != first.file:
        by += f" of {first.file}"
    if (later.file, later.line) == (first.file, first.line):
        by = "itself: it is included twice"
    message = f"{part} is {later.resource.verb} already by {by}"
    return Problem(message, later.file, later.line)


def _check_text(document: Document, place: Place, text: str) -> None:
    """Complain about a text whose variables cannot be read."""
    try:
        variables.parse(text)
    except variables.VariableError as error:
        document.complain(place, str(error), error.hint)
        if "\n" in text:
            # A block of lines begins below its key, so the mistake has a line of its own.
            problem = document.problems.pop()
            line = document.line(place) + 1 + error.line
            document.problems.append(dataclasses.replace(problem, line=line))


def _names_of(step: Step) -> list[Name]:
    """Return the names that a step uses, each once; none if its variables cannot be read."""
    by_name: dict[str, Name] = {}
    try:
        for name in step.names():
            by_name[name.name] = name
    except variables.VariableError:  # this was reported when its parameters were read
        return []
    return list(by_name.values())


def _nearest_variable(name: str, nodes: tuple[Node, ...]) -> str | None:
    if not name.startswith("env."):
        return None
    known: set[str] = set()
    for node in nodes:
        known.update(f"env.{variable}" for variable in node.env)
    return nearest(name, known)


def _listed(what: str, names: Mapping[str, Any]) -> str:
    if not names:
        return "it has none"
    return f"{what} {', '.join(sorted(names))}"


# ---------------------------------------------------------------- files


def as_written(known: Mapping[str, AnyResource] | None = None) -> list[dict[str, Any]]:
    """Return where scalars of a playbook are text as written; step resources say it themselves."""
    texts: dict[str, Any] = dict.fromkeys(_TEXTS, True)
    for name, resource in (known or resources()).items():
        if isinstance(resource, StepResource) and resource.texts:
            texts[name] = resource.texts
    return [texts]


def load_playbook(name: str, inventory: Inventory | None = None) -> Playbook:
    """Return a shipped playbook by its name, or any file by its path, for a whole inventory.

    Raises InputError with every mistake found.
    """
    path = find(name)
    reader = PlaybookReader(inventory)
    reader.read(path, Around())
    reader.finish()
    return Playbook(str(path), tuple(reader.steps))


def find(name: str, folder: Path = Path()) -> Path:
    """Return the path of a playbook: a word names a shipped one, all else is a path from `folder`.

    Raises InputError for a word that names none.
    """
    shipped = shipped_playbooks()
    if name in shipped:
        return shipped[name]
    if "/" in name or name.endswith((".yaml", ".yml")):
        return folder / name
    hint = nearest(name, shipped)
    if not hint:
        names = ", ".join(sorted(shipped))
        hint = f"shipped: {names}; a file of your own ends in .yaml"
    raise InputError.of(f"there is no playbook {name!r}", key="--playbook", hint=hint)


def shipped_playbooks() -> dict[str, Path]:
    """Return the playbooks that come with the package, by name.

    They are inside it once it is installed, and beside it in a checkout.
    """
    package = Path(clusterprep.__file__).parent
    folder = package / "playbooks"
    if not folder.is_dir():
        folder = package.parent / "playbooks"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
