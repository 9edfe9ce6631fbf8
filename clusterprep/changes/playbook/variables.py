"""`{{ name }}` in parameters: names of the inventory and of facts, strictly, without filters or logic. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from clusterprep.changes.playbook.conditions import Lookup
from clusterprep.changes.playbook.names import Name, find
from clusterprep.model import Absent

_PIECE = re.compile(r"\\\{\{|\{\{(.*?)\}\}|\{\{", re.DOTALL)
_WORD = re.compile(r"\s*([A-Za-z_][\w.]*)\s*", re.ASCII)


class VariableError(ValueError):
    r"""A text whose variables cannot be read; `line` counts from 0 inside the text."""

    def __init__(self, message: str, line: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.line, self.hint = line, hint


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> tuple[str | Name, ...]:
    r"""Text and names in turn; `\{{` stands for `{{`. Raises VariableError at the first mistake."""
    parts: list[str | Name] = []
    start = 0
    for match in _PIECE.finditer(text):
        parts.append(text[start : match.start()])
        start = match.end()
        if match[0] == "\\{{":
            parts.append("{{")
        else:
            parts.append(_name(match, text.count("\n", 0, match.start())))
    parts.append(text[start:])
    return tuple(part for part in parts if part != "")


def _name(match: re.Match[str], line: int) -> Name:
    literal = "for the two braces themselves write \\{{"
    if match[1] is None:
        raise VariableError("'{{' is never closed by '}}'", line, literal)
    word = _WORD.fullmatch(match[1])
    if word is None:
        inside = match[1].strip()[:60]
        raise VariableError(
            f"expected one name between {{{{ and }}}}; seen {inside!r}",
            line,
            f"no filters, no logic; {literal}",
        )
    try:
        return find(word[1])
    except KeyError as error:
        raise VariableError(
            f"unknown name '{word[1]}' between {{{{ and }}}}", line, error.args[0]
        ) from None


def texts(
    value: Any, place: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every text below a value, with the way that leads to it."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield from texts(below, (*place, key))
    elif isinstance(value, list | tuple):
        for number, below in enumerate(value):
            yield from texts(below, (*place, number))


def names(params: Mapping[str, Any]) -> set[Name]:
    """Every name that the texts of a step use."""
    return {part for _, text in texts(params) for part in parse(text) if isinstance(part, Name)}


def filled(value: Any, lookup: Lookup) -> Any:
    """The same with every variable replaced, or the Absent of the first that is not known."""
    if isinstance(value, str):
        return _filled(value, lookup)
    if isinstance(value, Mapping):
        found = {key: filled(below, lookup) for key, below in value.items()}
        return next((below for below in found.values() if isinstance(below, Absent)), found)
    if isinstance(value, list | tuple):
        rows = tuple(filled(below, lookup) for below in value)
        return next((below for below in rows if isinstance(below, Absent)), rows)
    return value


def _filled(text: str, lookup: Lookup) -> str | Absent:
    if "{{" not in text:
        return text
    pieces = []
    for part in parse(text):
        value = lookup(part) if isinstance(part, Name) else part
        if isinstance(value, Absent):
            return value
        pieces.append(str(value))
    return "".join(pieces)
