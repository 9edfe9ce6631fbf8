"""One YAML file in memory: its data, its lines, and everything found wrong with it so far."""

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
    key_text,
    line_of,
)

MAX_BYTES = 64 << 20  # an inventory of 100,000 nodes has a tenth of that; /dev/zero has no end


class Document:
    """The data of a file. `complain` collects problems; `settle` raises them all at once, in file order."""

    def __init__(self, path: str, tree: Tree, written: Written) -> None:
        self.path = path
        self.tree = tree
        self.problems: list[Problem] = []
        self.notices: tuple[str, ...] = ()  # what is no mistake and has to be known
        construction = Construction(self._at_line)
        self.data: Any = construction.build(tree, written)
        self.spoilt = frozenset(
            construction.spoilt
        )  # nothing more is to be said about these places

    def complain(self, place: Place, message: str, hint: str | None = None) -> None:
        self._at_line(place, message, self.line(place), hint)

    def line(self, place: Place) -> int:
        return line_of(self.tree, place)

    def settle(self) -> None:
        if self.problems:
            raise InputError(
                tuple(sorted(dict.fromkeys(self.problems), key=lambda found: found.line or 0))
            )

    def _at_line(self, place: Place, message: str, line: int, hint: str | None) -> None:
        self.problems.append(Problem(message, self.path, line, key_text(place) or None, hint))


def read_document(
    path: str | Path, written: Written = None, what: str = "an inventory", top: str = "mapping"
) -> Document:
    """Reads a file that holds one mapping, or one list. InputError where there is nothing to go on with."""
    file = str(path)
    return parse_document(file, read_text(file, what), written, what, top)


def read_text(file: str, what: str) -> str:
    """What a file holds. InputError where it cannot be read, or is no text."""
    return _decode(_read(file, what), file)


def parse_document(
    file: str, text: str, written: Written, what: str = "an inventory", top: str = "mapping"
) -> Document:
    """The same of a text that has been read."""
    try:
        tree = compose(text)
    except YamlError as bad:
        raise InputError((Problem(bad.message, file, bad.line, None, bad.hint),)) from None
    if tree is None or (tree.kind == "scalar" and tree.plain and not tree.text):
        raise InputError.of(f"the file is empty, expected {what}", file=file, line=1)
    if tree.kind != top:
        wanted = "a mapping of keys" if top == "mapping" else "a list of steps"
        message = f"expected {wanted} at the top, seen a {'single value' if tree.kind == 'scalar' else tree.kind}"
        raise InputError.of(message, file=file, line=tree.line)
    document = Document(file, tree, written)
    if document.data is None:  # a tag before all of it, so that there is nothing to go on with
        document.settle()
    return document


def _read(file: str, what: str) -> bytes:
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError.of(f"there is no such file; expected {what}", file=file) from None
    except IsADirectoryError:
        raise InputError.of(
            f"this is a directory; expected the file of {what}", file=file
        ) from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError.of(f"cannot be read: {said}", file=file) from None
    if len(content) > MAX_BYTES:
        raise InputError.of(f"more than {MAX_BYTES >> 20} MiB is not {what}", file=file)
    return content


def _decode(content: bytes, file: str) -> str:
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
