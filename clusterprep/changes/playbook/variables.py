"""`{{ name }}` in parameters: names of the inventory and of facts, no filters, no logic. Pure.

filled("of {{ node }}", lookup)  →  "of n1"
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clusterprep.changes.playbook.conditions import Lookup
from clusterprep.changes.playbook.names import Name, find
from clusterprep.model import Absent

_PIECE = re.compile(r"\\\{\{|\{\{(.*?)\}\}|\{\{", re.DOTALL)
_WORD = re.compile(r"\s*([A-Za-z_][\w.]*)\s*", re.ASCII)
_LITERAL = "for the two braces themselves write \\{{"

TextPath = tuple[str | int, ...]  # the keys and indices that lead to a text


class VariableError(ValueError):
    r"""A text whose variables cannot be read; `line` counts from 0 inside the text."""

    def __init__(self, message: str, line: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.hint = hint


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> tuple[str | Name, ...]:
    r"""Return text and names in turn; `\{{` stands for `{{`.

    Raises VariableError at the first mistake.
    """
    parts: list[str | Name] = []
    start = 0
    for match in _PIECE.finditer(text):
        parts.append(text[start : match.start()])
        start = match.end()
        if match[0] == "\\{{":
            parts.append("{{")
        else:
            line = text.count("\n", 0, match.start())
            parts.append(_parse_name(match, line))
    parts.append(text[start:])
    return tuple(part for part in parts if part != "")


def _parse_name(match: re.Match[str], line: int) -> Name:
    if match[1] is None:
        raise VariableError("'{{' is never closed by '}}'", line, _LITERAL)
    word = _WORD.fullmatch(match[1])
    if word is None:
        inside = match[1].strip()[:60]
        message = f"expected one name between {{{{ and }}}}; seen {inside!r}"
        raise VariableError(message, line, f"no filters, no logic; {_LITERAL}")
    try:
        return find(word[1])
    except KeyError as error:
        message = f"unknown name '{word[1]}' between {{{{ and }}}}"
        raise VariableError(message, line, error.args[0]) from None


def texts(value: Any, path: TextPath = ()) -> Iterator[tuple[TextPath, str]]:
    """Yield every text inside a value, with the path that leads to it."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from texts(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from texts(inner, (*path, number))


def names(params: Mapping[str, Any]) -> set[Name]:
    """Return every name that the texts of a step use."""
    used = set()
    for _, text in texts(params):
        for part in parse(text):
            if isinstance(part, Name):
                used.add(part)
    return used


def filled(value: Any, lookup: Lookup) -> Any:
    """Return the value with every variable replaced, or the first Absent that `lookup` gave."""
    if isinstance(value, str):
        return _filled_text(value, lookup)
    if isinstance(value, Mapping):
        pairs = {}
        for key, inner in value.items():
            pairs[key] = filled(inner, lookup)
        absent = _first_absent(pairs.values())
        return pairs if absent is None else absent
    if isinstance(value, list | tuple):
        rows = tuple(filled(inner, lookup) for inner in value)
        absent = _first_absent(rows)
        return rows if absent is None else absent
    return value


def _first_absent(values: Iterable[Any]) -> Absent | None:
    for value in values:
        if isinstance(value, Absent):
            return value
    return None


def _filled_text(text: str, lookup: Lookup) -> str | Absent:
    if "{{" not in text:
        return text
    pieces = []
    for part in parse(text):
        value = lookup(part) if isinstance(part, Name) else part
        if isinstance(value, Absent):
            return value
        pieces.append(str(value))
    return "".join(pieces)
