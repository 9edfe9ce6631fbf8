r"""Write commented YAML as text, because PyYAML writes no comments.

    document([YamlEntry("cluster", "lab", beside="shown in reports")])
    # "cluster: lab  # shown in reports\n"

Keys, values and comments may hold what hosts said of themselves, so all of them are escaped.

A test by properties holds that any text is read back equal, by our reader and by PyYAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from msgspec import Struct

from clusterprep.inventory.yaml_tree import core_scalar

Scalar = str | int | float | bool | None
# Words that YAML of any version reads as text, and as nothing else.
_PLAIN = re.compile(r"[A-Za-z_/~.][A-Za-z0-9_./+@~-]*(?: [A-Za-z0-9_./+@~-]+)*")
# Words that YAML 1.1 or 1.2 reads as a boolean or null.
_OTHER_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "~"})
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
WIDTH = 110  # letters of a comment, without its indent


class YamlEntry(Struct, frozen=True):
    """One key with its value, comment lines above it and one beside it."""

    key: str
    value: object
    above: tuple[str, ...] = ()
    beside: str = ""


class Note(Struct, frozen=True):
    """Lines that are a comment and nothing else; an empty one is an empty line."""

    lines: tuple[str, ...]


Part = YamlEntry | Note


class YamlBlock(Struct, frozen=True):
    """A mapping whose keys have comments of their own."""

    parts: tuple[Part, ...]

    @property
    def has_entries(self) -> bool:
        return any(isinstance(part, YamlEntry) for part in self.parts)


def document(parts: Iterable[Part]) -> str:
    """Return the YAML text of a file."""
    return "".join(f"{line}\n" for line in _block_lines(parts, 0))


def plain(value: object) -> object:
    """Return what a YAML reader makes of the text of this value: the same without comments."""
    if isinstance(value, YamlBlock):
        entries: dict[str, object] = {}
        for part in value.parts:
            if isinstance(part, YamlEntry):
                entries[part.key] = plain(part.value)
        return entries
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


# ---------------------------------------------------------------- values


def scalar(value: Scalar) -> str:
    """Return a scalar that every YAML reader takes for this value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    if _is_plain(value):
        return value
    escaped = "".join(map(_escaped, value))
    return f'"{escaped}"'


def _is_plain(text: str) -> bool:
    """Return True if every YAML reader takes the text for itself without quotes."""
    if not _PLAIN.fullmatch(text) or text.lower() in _OTHER_WORDS:
        return False
    return isinstance(core_scalar(text), str)


def _escaped(letter: str) -> str:
    """Return a character as it is written between double quotes."""
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if letter.isprintable():
        return letter
    code = ord(letter)
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def flow(value: object) -> str:
    """Return a value on one line. Raises TypeError for a value that an inventory cannot have."""
    if isinstance(value, Mapping):
        entries = [f"{scalar(key)}: {flow(item)}" for key, item in value.items()]
        joined = ", ".join(entries)
        return f"{{{joined}}}"
    if isinstance(value, (list, tuple)):
        joined = ", ".join(map(flow, value))
        return f"[{joined}]"
    if isinstance(value, str | int | float | bool | None):
        return scalar(value)
    raise TypeError(f"{type(value).__name__} has no place in an inventory")


# ---------------------------------------------------------------- comments


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """Return a comment in lines.

    Text of a host cannot end the comment, nor steer the terminal that shows it: what is not
    printable is replaced by blanks.
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    lines = [""]
    for word in printable.split():
        if not lines[-1]:
            lines[-1] = word
        elif len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines


def _comment_lines(texts: Sequence[str], indent: str) -> Iterator[str]:
    for text in texts:
        for line in wrapped(text):
            yield f"{indent}# {line}" if line else ""


# ---------------------------------------------------------------- lines


def _block_lines(parts: Iterable[Part], depth: int) -> Iterator[str]:
    """Yield the lines of comments and entries, indented by two columns for each level of depth."""
    indent = "  " * depth
    for part in parts:
        if isinstance(part, Note):
            yield from _comment_lines(part.lines, indent)
        else:
            yield from _comment_lines(part.above, indent)
            yield from _entry_lines(part, depth)


def _entry_lines(entry: YamlEntry, depth: int) -> Iterator[str]:
    """Yield the lines of a key and its value; `depth` is the number of keys above it."""
    indent = "  " * depth
    beside = ""
    if entry.beside:
        comment = " ".join(wrapped(entry.beside))
        beside = f"  # {comment}"
    head = f"{indent}{scalar(entry.key)}:"
    value = entry.value
    if isinstance(value, YamlBlock):
        # With comments alone the key would have no value, so an empty mapping stands before them.
        yield f"{head}{beside}" if value.has_entries else f"{head} {{}}{beside}"
        yield from _block_lines(value.parts, depth + 1)
    elif _is_list_of_mappings(value):
        yield f"{head}{beside}"
        for item in value:
            yield f"{indent}  - {flow(item)}"
    else:
        yield f"{head} {flow(value)}{beside}"


def _is_list_of_mappings(value: object) -> TypeGuard[Sequence[object]]:
    if not isinstance(value, (list, tuple)):
        return False
    return any(isinstance(item, Mapping) for item in value)
