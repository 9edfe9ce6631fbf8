"""One YAML file in memory: its data, its lines, and the problems found in it so far."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

from clusterprep.errors import InputError, Problem
from clusterprep.inventory.yaml_tree import (
    Construction,
    Place,
    Tree,
    Written,
    YamlError,
    compose,
    file_of,
    key_text,
    line_of,
)
from clusterprep.model.extensions import NO_EXTENSIONS, Extensions

INVENTORY = "an inventory"  # what is expected in most files
# An inventory of 100,000 nodes has a tenth of that; /dev/zero has no end.
MAX_BYTES = 64 << 20


class Document:
    """The data of a file.

    `complain` collects problems; `settle` raises them all at once, in file order.
    """

    def __init__(self, path: str, tree: Tree, written: Written) -> None:
        self.path = path
        self.tree = tree  # before the data: complaints look for their files in it
        self.problems: list[Problem] = []
        self.notices: tuple[str, ...] = ()  # what is no mistake and has to be known
        self.extensions: Extensions = NO_EXTENSIONS  # whose names the document may use
        construction = Construction(self._add_problem)
        self.data: Any = construction.build(tree, written)
        # Places about which enough has been said.
        self.spoilt = frozenset(construction.spoilt)

    def complain(self, place: Place, message: str, hint: str | None = None) -> None:
        self._add_problem(place, message, self.line(place), hint)

    def line(self, place: Place) -> int:
        return line_of(self.tree, place)

    def settle(self) -> None:
        """Raise InputError with all problems, each once, in file order, if there are any."""
        if self.problems:
            distinct = dict.fromkeys(self.problems)
            raise InputError(tuple(sorted(distinct, key=self._file_order)))

    def _file_order(self, problem: Problem) -> tuple[bool, str, int]:
        """Return the key by which problems are sorted: those of the document's own file first."""
        file = problem.file or self.path
        return (file != self.path, file, problem.line or 0)

    def _add_problem(self, place: Place, message: str, line: int, hint: str | None) -> None:
        key = key_text(place) or None
        self.problems.append(
            Problem(
                message,
                file_of(self.tree, place) or self.path,
                line or None,
                key,
                hint,
            )
        )


def read_document(
    path: str | Path, written: Written = None, what: str = INVENTORY, top: str = "mapping"
) -> Document:
    """Read a file that holds one mapping, or one list, as `top` says.

    Raises InputError if the file cannot be read or holds something else. `what` describes the file
    in messages; `written` is explained in `yaml_tree`.
    """
    file = str(path)
    text = read_text(file, what)
    return parse_document(
        file,
        text,
        written,
        what,
        top,
    )


def read_text(file: str, what: str) -> str:
    """Return the content of a file. Raises InputError if it cannot be read, or is no text."""
    content = _read(file, what)
    refuse_large(content, file, what)
    return decode(content, file)


def parse_document(
    file: str, text: str, written: Written, what: str = INVENTORY, top: str = "mapping"
) -> Document:
    """Return the document of a text that has been read. Raises InputError as `read_document`."""
    try:
        tree = compose(text)
    except YamlError as error:
        problem = Problem(error.message, file, error.line, hint=error.hint)
        raise InputError((problem,)) from None
    if tree is None or _is_empty(tree):
        raise InputError.of(f"the file is empty, expected {what}", file=file, line=1)
    if tree.kind != top:
        wanted = "a mapping of keys" if top == "mapping" else what
        seen = "single value" if tree.kind == "scalar" else tree.kind
        message = f"expected {wanted} at the top, seen a {seen}"
        raise InputError.of(message, file=file, line=tree.line)
    document = Document(file, tree, written)
    if document.data is None:  # the top has a tag that is not allowed: there is no data at all
        document.settle()
    return document


def _is_empty(tree: Tree) -> bool:
    return tree.kind == "scalar" and tree.plain and not tree.text


def _read(file: str, what: str) -> bytes:
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        hint = "clusterprep init HOST… writes one" if what == INVENTORY else None
        message = f"there is no such file; expected {what}"
        raise InputError.of(message, file=file, hint=hint) from None
    except IsADirectoryError:
        message = f"this is a directory; expected the file of {what}"
        raise InputError.of(message, file=file) from None
    except OSError as error:
        raise InputError.of(f"cannot be read: {error.strerror}", file=file) from None
    except ValueError as error:  # a zero byte in the name
        raise InputError.of(f"cannot be read: {error}", file=file) from None
    return content


def refuse_large(content: bytes, file: str, what: str) -> None:
    """Raise InputError for a file that is too large to be what was expected."""
    if len(content) > MAX_BYTES:
        raise InputError.of(f"more than {MAX_BYTES >> 20} MiB is not {what}", file=file)


def decode(content: bytes, file: str) -> str:
    """Return the content of a file as text. Raises InputError if it is none."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError.of(
            "the file is UTF-16, expected UTF-8", file=file, line=1, hint="save it as UTF-8"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"the byte 0x{content[error.start]:02x} is not UTF-8"
        raise InputError.of(message, file=file, line=line, hint="save the file as UTF-8") from None
