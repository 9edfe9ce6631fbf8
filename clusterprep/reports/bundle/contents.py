"""Choose what is in a bundle, clean it, and say what is not in it. Pure.

contents_of(material, SecretCleaner()) returns the files, and what the index page says of each.

Files come in the order of their weight: the report, logs, then nodes with findings before others.
What is beyond MOST bytes is left out, and the index says so. Texts are kept as zlib packs them, so
memory holds a small part of what the archive has when it is unpacked.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import PurePath

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.fabric.printed import unchanged
from clusterprep.model import Inventory, Json, Report
from clusterprep.reports import json_report, render
from clusterprep.reports.bundle.anonymous import Anonymizer
from clusterprep.reports.bundle.cleaning import (
    Cleaner,
    SecretCleaner,
    cleaned_json,
    cleaned_report,
)
from clusterprep.reports.bundle.node_answers import Evidence, rough_size, text_of
from clusterprep.reports.bundle.sources import NAMES

MOST = 256 << 20  # bytes of all files together
MOST_REPORT = 64 << 20  # bytes of report.json; a larger one is without the facts of the nodes
MOST_NODES = 256  # nodes that are asked for evidence
WIDTH = 100  # columns of report.txt
UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST_NAME = 80  # characters of a file's name
_SUFFIXES = (".yaml", ".yml", ".json", ".ini", ".cfg")


class Text(Struct, frozen=True):
    """A file of this machine: an inventory or a log. `note` says what is missing of it."""

    name: str
    content: str
    note: str = ""


class NodeEvidence(Struct, frozen=True):
    """What one node answered."""

    node: str
    answers: tuple[Evidence, ...]


class Material(Struct, frozen=True):
    """What a bundle is made of.

    `inventory` is None where it cannot be read, and `inventory_note` says why. `not_asked` are
    nodes beyond MOST_NODES. `evidence` is None for an earlier run, which asks no node.
    `without_password` takes sudo's password out of what nodes say.
    """

    report: Report
    tool: str  # the version of clusterprep that made the report
    inventory: Inventory | None = None
    inventory_text: Text | None = None
    inventory_note: str = ""
    logs: tuple[Text, ...] = ()
    logs_note: str = ""
    evidence: tuple[NodeEvidence, ...] | None = None
    not_asked: tuple[str, ...] = ()
    without_password: Callable[[str], str] = unchanged


class Member(Struct, frozen=True):
    """A file of the archive, packed by zlib, and how long it is unpacked."""

    path: str
    packed: bytes
    size: int


class Row(Struct, frozen=True):
    """What the index says of a file, or of one that is not there: its path is empty then."""

    title: str
    path: str
    state: str
    note: str = ""
    size: int = 0


class NodePart(Struct, frozen=True):
    """What the index says of a node."""

    node: str
    rows: tuple[Row, ...]


class Contents(Struct, frozen=True):
    """The files of a bundle without its index, and what the index says."""

    name: str  # of the folder in the archive
    report: Report  # without what readers are not to have, and without facts
    tool: str
    has_names: bool
    members: tuple[Member, ...]
    rows: tuple[Row, ...]
    nodes: tuple[NodePart, ...]
    asks_nodes: bool
    not_asked: tuple[str, ...]


def contents_of(material: Material, *, redact: bool, most: int = MOST) -> Contents:
    """Return the files of a bundle. With `redact` names are replaced in all of them."""
    cleaner = _anonymizer(material) if redact else SecretCleaner()
    return _Collector(material, cleaner, most).contents()


def _anonymizer(material: Material) -> Anonymizer:
    """Return what replaces names, once it knows those of the whole bundle."""
    anonymizer = Anonymizer()
    if material.inventory is not None:
        anonymizer.know_inventory(material.inventory)
    anonymizer.know_report(material.report)
    for evidence in material.evidence or ():
        for answer in evidence.answers:
            text, _ = text_of(answer)
            if answer.source.name == NAMES.name:
                anonymizer.know_node(text)
            anonymizer.learn(text)
    for log in material.logs:
        anonymizer.learn(log.content)
    return anonymizer


def archive_name(cluster: str, run: str) -> str:
    """Return the name of a bundle, without a suffix."""
    return safe_name("-".join(part for part in ("clusterprep-bundle", cluster, run) if part))


def safe_name(text: str) -> str:
    """Return a name of a file that no system reads in another way: letters, digits, . _ and -."""
    name = UNSAFE.sub("_", text)[:LONGEST_NAME].strip(".-")
    return name or "_"


class _Collector:
    """Collects files until there is no more room."""

    def __init__(self, material: Material, cleaner: Cleaner, most: int) -> None:
        self._material = material
        self._cleaner = cleaner
        self._room = most
        self._members: dict[str, Member] = {}  # by path
        report = cleaned_report(material.report, cleaner)
        if not cleaner.has_names:
            report = replace(report, inventory="")
        self._report = report

    def contents(self) -> Contents:
        """Return all that there is room for."""
        material = self._material
        rows = [*self._report_rows(), self._inventory_row(), *self._log_rows()]
        nodes = []
        for evidence in material.evidence or ():
            nodes.append(self._node(evidence))
        return Contents(
            name=archive_name(self._report.cluster, self._report.run),
            report=self._report,
            tool=material.tool,
            has_names=self._cleaner.has_names,
            members=tuple(self._members.values()),
            rows=tuple(rows),
            nodes=tuple(nodes),
            asks_nodes=material.evidence is not None,
            not_asked=tuple(self._cleaner.value(name) for name in material.not_asked),
        )

    # ------------------------------------------------------------ the report

    def _report_rows(self) -> Iterator[Row]:
        page = render(self._report, "html")
        yield self._added("report.html", "the report, for a browser", page)
        page = render(self._report, "console", verbose=1, width=WIDTH)
        yield self._added("report.txt", "the report as text", page)
        yield self._json_row()

    def _json_row(self) -> Row:
        title = "the report for programs, with the facts of all nodes"
        text = self._json(self._material.report)
        if text is not None:
            return self._added("report.json", title, text)
        note = f"with the facts it would have more than {rough_size(MOST_REPORT)}"
        text = self._json(self._report)
        if text is None:
            return Row("the report for programs", "", "left out", note)
        return self._added("report.json", "the report for programs", text, note)

    def _json(self, report: Report) -> str | None:
        """Return the report as JSON, None if it is too large."""
        parts = []
        size = 0
        for part in json_report.pieces(report):
            size += len(part)
            if size > MOST_REPORT:
                return None
            parts.append(part)
        document: Json = cleaned_json(json.loads("".join(parts)), self._cleaner)
        if not self._cleaner.has_names:
            document.pop("inventory", None)
        return json.dumps(document, indent=1, ensure_ascii=True) + "\n"

    # ------------------------------------------------------------ files of this machine

    def _inventory_row(self) -> Row:
        material = self._material
        title = "the inventory"
        note = self._cleaner.value(material.inventory_note)
        given = material.inventory_text
        if given is not None and self._cleaner.has_names:
            suffix = PurePath(given.name).suffix
            name = f"inventory{suffix}" if suffix in _SUFFIXES else "inventory.txt"
            return self._added(name, title, self._cleaner.lines(given.content), note)
        if material.inventory is None:
            return Row(title, "", "absent", note)
        why = "as it was understood: it is no file of its own"
        if not self._cleaner.has_names:
            why = "as it was understood, since comments may hold names"
        text = self._inventory_json(material.inventory)
        return self._added("inventory.json", title, text, "; ".join(filter(None, [why, note])))

    def _inventory_json(self, inventory: Inventory) -> str:
        """Return what an inventory says of the nodes, without names."""
        whole = json_report.json_of(replace(inventory, warnings=(), path=""))
        for key in ("extensions", "known_bad", "path", "warnings"):
            whole.pop(key, None)
        return json.dumps(cleaned_json(whole, self._cleaner), indent=1) + "\n"

    def _log_rows(self) -> Iterator[Row]:
        for log in self._material.logs:
            name = safe_name(self._cleaner.value(log.name))
            path = self._unused(f"logs/{name}")
            yield self._added(path, "log", self._cleaner.lines(log.content), log.note)
        if self._material.logs_note:
            yield Row("log", "", "left out", self._cleaner.value(self._material.logs_note))

    # ------------------------------------------------------------ nodes

    def _node(self, evidence: NodeEvidence) -> NodePart:
        """Return what the index says of a node, and add its files."""
        node = self._cleaner.value(evidence.node)
        folder = f"nodes/{safe_name(node)}"
        if any(path.startswith(f"{folder}/") for path in self._members):
            folder = self._unused(folder)
        rows = []
        for answer in evidence.answers:
            if answer.source.name != NAMES.name:
                rows.append(self._answer_row(folder, answer))
        return NodePart(node, tuple(rows))

    def _answer_row(self, folder: str, answer: Evidence) -> Row:
        source = answer.source
        title = self._cleaner.value(source.title)
        note = self._cleaner.value(answer.note)
        if not answer.packed and not answer.size:
            state = "empty" if answer.state == "present" else answer.state
            return Row(title, "", state, note)
        content, trouble = text_of(answer)
        notes = [note, trouble]
        row = self._added(
            f"{folder}/{source.name}.txt",
            title,
            self._cleaner.lines(self._material.without_password(content)),
            "; ".join(filter(None, notes)),
        )
        return replace(row, state=answer.state) if row.path else row

    # ------------------------------------------------------------ room

    def _added(self, path: str, title: str, text: str, note: str = "") -> Row:
        """Add a file if there is room for it, and return what the index says of it."""
        data = text.encode("utf-8", "backslashreplace")
        if len(data) > self._room:
            left_out = f"{rough_size(len(data))}: there is no room for it in the archive"
            return Row(title, "", "left out", left_out)
        self._room -= len(data)
        self._members[path] = Member(path, zlib.compress(data, 1), len(data))
        return Row(title, path, "present", note, len(data))

    def _unused(self, path: str) -> str:
        """Return the path, with a number behind it if another file has it already."""
        number = 1
        unused = path
        taken = set(self._members)
        folders = {name.rpartition("/")[0] for name in taken}
        while unused in taken or unused in folders:
            number += 1
            unused = f"{path}.{number}"
        return unused


def chosen_nodes(
    report: Report, names: Iterable[str], most: int = MOST_NODES
) -> tuple[list[str], list[str]]:
    """Return the nodes that are asked for evidence, and those for which there is no room.

    Nodes that a failed or unknown check names come first, then those of culprits, then the others.
    """
    troubled = _troubled(report)
    ordered = sorted(names, key=lambda name: name not in troubled)  # stable: else as they are
    return ordered[:most], ordered[most:]


def _troubled(report: Report) -> Collection[str]:
    """Return the nodes that a failed or unknown check, or a culprit, names."""
    troubled: set[str] = set()
    for finding in report.findings or ():
        counts = finding.verdict in ("fail", "unknown") and not finding.silenced
        if counts and not finding.fixed:
            troubled.update(finding.nodes)
    for result in (report.verify, report.launch):
        if result is not None:
            for culprit in result.culprits:
                troubled.update(culprit.nodes)
    return troubled
