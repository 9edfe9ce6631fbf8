"""Commented YAML as text: PyYAML writes no comments, and what hosts said of themselves stands in both halves here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from clusterprep.inventory.yaml_tree import core_scalar
from clusterprep.runtime.lazy_dataclass import dataclass

Scalar = str | int | float | bool | None
# Words that YAML of any version reads as text, and as nothing else.
_PLAIN = re.compile(r"[A-Za-z_/~.][A-Za-z0-9_./+@~-]*(?: [A-Za-z0-9_./+@~-]+)*")
_OTHER_WORDS = frozenset(
    {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "~"}
)  # of YAML 1.1 and 1.2
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
WIDTH = 110  # letters of a comment, without its indent


@dataclass(frozen=True)
class YamlEntry:
    """One key with its value, comment lines above it and one beside it."""

    key: str
    value: object
    above: tuple[str, ...] = ()
    beside: str = ""


@dataclass(frozen=True)
class Note:
    """Lines that are a comment and nothing else; an empty one is an empty line."""

    lines: tuple[str, ...]


Part = YamlEntry | Note


@dataclass(frozen=True)
class YamlBlock:
    """A mapping whose keys have comments of their own."""

    parts: tuple[Part, ...]


def document(parts: Iterable[Part]) -> str:
    return "".join(f"{line}\n" for line in _block(parts, 0))


def plain(value: object) -> object:
    """What reading the text gives: the same without comments."""
    if isinstance(value, YamlBlock):
        return {part.key: plain(part.value) for part in value.parts if isinstance(part, YamlEntry)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def scalar(value: Scalar) -> str:
    """A scalar that every YAML reader takes for this value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    safe = (
        _PLAIN.fullmatch(value)
        and value.lower() not in _OTHER_WORDS
        and isinstance(core_scalar(value), str)
    )
    return value if safe else '"' + "".join(map(_escaped, value)) + '"'


def flow(value: object) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str | int | float | bool | None):
        return scalar(value)
    raise TypeError(f"{type(value).__name__} has no place in an inventory")


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """A comment in lines; words of strangers cannot end it, nor steer the terminal that shows it."""
    lines = [""]
    for word in "".join(letter if letter.isprintable() else " " for letter in text).split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _escaped(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if letter.isprintable():
        return letter
    code = ord(letter)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def _comment(lines: Sequence[str], indent: str) -> Iterator[str]:
    for text in lines:
        yield from (f"{indent}# {line}" if line else "" for line in wrapped(text))


def _block(parts: Iterable[Part], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for part in parts:
        if isinstance(part, Note):
            yield from _comment(part.lines, indent)
            continue
        yield from _comment(part.above, indent)
        beside = f"  # {' '.join(wrapped(part.beside))}" if part.beside else ""
        head = f"{indent}{scalar(part.key)}:"
        if isinstance(part.value, YamlBlock) and any(
            isinstance(inner, YamlEntry) for inner in part.value.parts
        ):
            yield f"{head}{beside}"
            yield from _block(part.value.parts, depth + 1)
        elif isinstance(
            part.value, YamlBlock
        ):  # with comments alone: they stay where they are, and the key would be empty
            yield f"{head} {{}}{beside}"
            yield from _block(part.value.parts, depth + 1)
        elif isinstance(part.value, (list, tuple)) and any(
            isinstance(item, Mapping) for item in part.value
        ):
            yield f"{head}{beside}"
            yield from (f"{indent}  - {flow(item)}" for item in part.value)
        else:
            yield f"{head} {flow(part.value)}{beside}"
