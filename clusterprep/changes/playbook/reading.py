"""Playbook files to steps: what is included, and every mistake of all files at once, each with its file and line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import clusterprep
from clusterprep.changes.playbook import variables
from clusterprep.changes.playbook.conditions import Condition, ConditionError, groups_of, parse
from clusterprep.changes.playbook.names import UNDECLARED, everybody, undeclared
from clusterprep.changes.playbook.steps import Playbook, Step, doubles, resources
from clusterprep.changes.resources import Resource, StepResource
from clusterprep.errors import InputError, Problem
from clusterprep.inventory.document import Document, read_document, read_text
from clusterprep.inventory.schema import check
from clusterprep.inventory.yaml_tree import Place
from clusterprep.model import Inventory, Node
from clusterprep.model.nodeset import fold, nearest, select

AROUND = (
    "name",
    "tags",
    "when",
    "nodes",
    "serial",
    "notify",
    "handler",
)  # the keys of a step that are no resource
# Scalars below these keys are text as written: mode: 0644 stays "0644", and a value `on` stays "on".
_TEXTS = ("name", "tags", "when", "nodes", "include", "notify", "file", "line", "limits", "sysctl")
MAX_DEPTH, MAX_FILES = 10, 100  # playbooks within playbooks, and all that are included
MAX_TEMPLATE = 1 << 20  # bytes, as of any file that is written


@dataclass(frozen=True)
class Around:
    """What a step has besides its resource, some of it from the includes around its file."""

    tags: tuple[str, ...] = ()
    when: tuple[Condition, ...] = ()
    nodes: frozenset[str] | None = None


@dataclass
class PlaybookReader:
    """All that was read of one playbook with its includes; without an inventory only what the files say is judged."""

    inventory: Inventory | None
    files: int = 0
    steps: list[Step] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    handlers: set[str] = field(default_factory=set)
    notified: list[tuple[Document, Place, str]] = field(default_factory=list)

    def read(self, path: Path, around: Around, chain: tuple[Path, ...] = ()) -> None:
        """A file and what it includes. InputError where there is nothing to go on with."""
        self.files += 1
        document = read_document(path, as_written(), "a playbook", top="list")
        bad = {place[0] for place in check(document, "playbook", document.data) if place}
        document.problems = [_with_hint(problem) for problem in document.problems]
        at = len(self.problems)
        for number, entry in enumerate(document.data):
            if number not in bad and isinstance(entry, dict):
                self.entry(document, number, entry, around, (*chain, path.resolve()))
        # In the order of reading: a file's own problems come before those of what it includes.
        self.problems[at:at] = sorted(
            dict.fromkeys(document.problems), key=lambda found: found.line or 0
        )

    def entry(
        self,
        document: Document,
        number: int,
        entry: Mapping[str, Any],
        around: Around,
        chain: tuple[Path, ...],
    ) -> None:
        kinds = [key for key in entry if key not in AROUND]
        if len(kinds) != 1:
            seen = ", ".join(kinds) or "none"
            document.complain(
                (number,), f"a step has one resource, or one include; this one has {seen}"
            )
            return
        (kind,) = kinds
        around = _joined(around, self.around(document, number, entry))
        if kind == "include":
            self.include(document, number, entry, around, chain)
            return
        self.orders(document, number, entry, kind)
        params = self.params(document, number, kind, entry[kind])
        line = document.line((number,))
        name, own = entry.get("name", kind), resources()[kind]
        orders = (entry.get("serial"), tuple(entry.get("notify", ())), bool(entry.get("handler")))
        step = Step(
            name, own, params, around.tags, around.when, around.nodes, document.path, line, *orders
        )
        self.fits(document, number, kind, step)
        self.steps.append(step)

    def around(self, document: Document, number: int, entry: Mapping[str, Any]) -> Around:
        when = self.condition(document, number, entry["when"]) if "when" in entry else None
        nodes = self.chosen(document, number, entry["nodes"]) if "nodes" in entry else None
        return Around(tuple(entry.get("tags", ())), () if when is None else (when,), nodes)

    def condition(self, document: Document, number: int, text: str) -> Condition | None:
        try:
            found = parse(text)
        except ConditionError as error:
            document.complain((number, "when"), str(error), error.hint)
            return None
        known = self.inventory.groups if self.inventory else None
        for group in groups_of(found):
            if known is not None and group not in known:
                hint = nearest(group, known) or _listed("groups are", known)
                document.complain((number, "when"), f"the inventory has no group '{group}'", hint)
        return found

    def chosen(self, document: Document, number: int, text: str) -> frozenset[str] | None:
        if self.inventory is None:
            return None
        try:
            names = select(
                text, [node.name for node in everybody(self.inventory)], self.inventory.groups
            )
        except ValueError as error:
            document.complain((number, "nodes"), str(error))
            return None
        if not names:
            document.complain((number, "nodes"), f"'{text}' names no node")
        return frozenset(names)

    def include(
        self,
        document: Document,
        number: int,
        entry: Mapping[str, Any],
        around: Around,
        chain: tuple[Path, ...],
    ) -> None:
        place: Place = (number, "include")
        for key in ("serial", "notify", "handler"):
            if key in entry:
                document.complain((number, key), f"an include takes no {key}: give it to the steps")
        try:
            path = find(entry["include"], Path(document.path).parent)
        except InputError as error:
            document.complain(place, error.problems[0].message, error.problems[0].hint)
            return
        if path.resolve() in chain:
            circle = " → ".join(file.name for file in (*chain[chain.index(path.resolve()) :], path))
            document.complain(place, f"playbooks include each other: {circle}")
        elif len(chain) > MAX_DEPTH:
            document.complain(place, f"more than {MAX_DEPTH} playbooks within each other")
        elif self.files > MAX_FILES:
            document.complain(
                place, f"more than {MAX_FILES} playbooks are included, some of them again and again"
            )
        elif not path.exists():
            document.complain(
                place, f"there is no such file: {path}; it is looked for beside this one"
            )
        else:
            try:
                self.read(path, around, chain)
            except InputError as error:
                self.problems.extend(error.problems)

    def orders(self, document: Document, number: int, entry: Mapping[str, Any], kind: str) -> None:
        """`serial` and `handler`, which are about what is done step by step, and whom a step notifies."""
        own = resources()[kind]
        if "serial" in entry and isinstance(own, Resource):
            why = f"serial has no meaning for {kind}: it is written on all nodes or on none"
            document.complain(
                (number, "serial"), why, "leave it out; --limit takes some nodes only"
            )
        if entry.get("handler"):
            self.handler(document, number, str(entry.get("name", kind)), own)
        elif isinstance(own, StepResource) and (why := own.only_handles(entry[kind])):
            document.complain((number, kind), why)
        for at, name in enumerate(entry.get("notify", ())):
            self.notified.append((document, (number, "notify", at), name))

    def handler(
        self, document: Document, number: int, name: str, own: Resource | StepResource
    ) -> None:
        if name in self.handlers:
            document.complain(
                (number, "handler"),
                f"another handler is called '{name}': notify would not tell which",
            )
        self.handlers.add(name)
        if not (isinstance(own, StepResource) and own.handles):
            why = f"{own.name} is no handler: it is a state that is always wanted, not something to do after a change"
            hint = f"leave out handler and notify: it is {own.verb} where it is not so yet"
            document.complain((number, "handler"), why, hint)

    def params(
        self, document: Document, number: int, kind: str, given: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        resource = resources()[kind]
        for key, message in resource.wrong(given):
            document.complain((number, kind, key) if key else (number, kind), message)
        for place, text in variables.texts(given):
            if "{{" not in text or place[0] == "template":
                continue
            if not {"*", place[0]} & set(resource.variables):
                why = f"{place[0]} takes no variables: it has to be the same on all nodes"
                document.complain((number, kind, *place), why)
            else:
                _judge_variables(document, (number, kind, *place), text)
        if isinstance(resource, StepResource):
            return given if document.problems else resource.normal(given)
        return (
            self.with_template(document, (number, kind, "template"), given)
            if "template" in given
            else given
        )

    def with_template(
        self, document: Document, place: Place, given: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        path = Path(document.path).parent / str(given["template"])
        kept = {key: value for key, value in given.items() if key != "template"}
        try:
            text = read_text(str(path), "a template")
        except InputError as error:
            document.complain(place, f"{path}: {error.problems[0].message}")
            return {**kept, "content": ""}
        if len(text.encode()) > MAX_TEMPLATE:
            document.complain(place, f"{path} has more than {MAX_TEMPLATE >> 20} MiB")
        try:
            variables.parse(text)
        except variables.VariableError as error:
            self.problems.append(Problem(str(error), str(path), error.line + 1, None, error.hint))
        return {**kept, "content": text}

    def fits(self, document: Document, number: int, kind: str, step: Step) -> None:
        """What the inventory has to have for a step."""
        if self.inventory is None:
            return
        nodes = [n for n in everybody(self.inventory) if step.nodes is None or n.name in step.nodes]
        rooted = [node.name for node in nodes if node.root != "/"]
        if rooted and (why := step.resource.live(step.params)):
            document.complain(
                (number, kind),
                f"{fold(rooted)} has a root other than /, where this is refused: {why}",
            )
        for name in _names_of(step):
            if missing := undeclared(name, nodes, self.inventory):
                hint = _meant(name.name, nodes)
                document.complain((number,), f"{name.name} {UNDECLARED} for {fold(missing)}", hint)

    def settle(self) -> None:
        """What is wrong with all of it together, and then every problem at once."""
        for document, place, name in self.notified:
            if name not in self.handlers:
                hint = (
                    nearest(name, self.handlers)
                    or "a handler is a step with `handler: true` and this name"
                )
                message, line = f"no step is a handler called '{name}'", document.line(place)
                self.problems.append(Problem(message, document.path, line, "notify", hint))
        for later, first, where in doubles(self.steps, self.inventory or Inventory("", ())):
            step = f"the step in line {first.line}" + (
                "" if later.file == first.file else f" of {first.file}"
            )
            again = (later.file, later.line) == (first.file, first.line)
            message = f"{where} is {later.resource.verb} already by {'itself: it is included twice' if again else step}"
            self.problems.append(Problem(message, later.file, later.line))
        if self.problems:
            raise InputError(tuple(dict.fromkeys(self.problems)))


def as_written() -> list[dict[str, Any]]:
    """Where scalars of a playbook are text as written; resources that go step by step say it themselves."""
    own = {
        name: found.texts
        for name, found in resources().items()
        if isinstance(found, StepResource) and found.texts
    }
    return [{**dict.fromkeys(_TEXTS, True), **own}]


def _names_of(step: Step) -> list[Any]:
    try:
        return list({name.name: name for name in step.names()}.values())
    except variables.VariableError:  # that has been said
        return []


def _meant(name: str, nodes: list[Node]) -> str | None:
    return (
        nearest(name, {f"env.{variable}" for node in nodes for variable in node.env})
        if name[:4] == "env."
        else None
    )


def _judge_variables(document: Document, place: Place, text: str) -> None:
    try:
        variables.parse(text)
    except variables.VariableError as error:
        document.complain(place, str(error), error.hint)
        if "\n" in text:  # a block of lines begins below its key
            last = document.problems.pop()
            line = document.line(place) + 1 + error.line
            document.problems.append(dataclasses.replace(last, line=line))


def _with_hint(problem: Problem) -> Problem:
    if problem.message.startswith("a key has to be a word"):
        return dataclasses.replace(problem, hint="text that begins with {{ needs quotes")
    return problem


def _joined(outer: Around, inner: Around) -> Around:
    """The tags of both, the conditions of both, and the nodes that are in both."""
    nodes = (
        inner.nodes
        if outer.nodes is None
        else outer.nodes
        if inner.nodes is None
        else outer.nodes & inner.nodes
    )
    return Around(
        tuple(dict.fromkeys((*outer.tags, *inner.tags))), (*outer.when, *inner.when), nodes
    )


def _listed(what: str, words: Mapping[str, Any]) -> str:
    return f"{what} {', '.join(sorted(words))}" if words else "it has none"


def load_playbook(name: str, inventory: Inventory | None = None) -> Playbook:
    """A shipped playbook by its name, or any file by its path, for the whole of an inventory.

    Raises InputError with every mistake found.
    """
    path = find(name)
    reader = PlaybookReader(inventory)
    reader.read(path, Around())
    reader.settle()
    return Playbook(str(path), tuple(reader.steps))


def find(name: str, folder: Path = Path()) -> Path:
    """Where a playbook lies: a bare word is one that is shipped, anything else a path from the folder."""
    shipped = shipped_playbooks()
    if name in shipped:
        return shipped[name]
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        hint = (
            nearest(name, shipped)
            or f"shipped: {', '.join(sorted(shipped))}; a file of your own ends in .yaml"
        )
        raise InputError.of(f"there is no playbook {name!r}", key="--playbook", hint=hint)
    return folder / name


def shipped_playbooks() -> dict[str, Path]:
    """The playbooks that come with the package: inside it once installed, beside it in a checkout."""
    package = Path(clusterprep.__file__).parent
    inside = package / "playbooks"
    folder = inside if inside.is_dir() else package.parent / "playbooks"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
