"""Tells which built libraries have a message, where only some versions can be had as source.

A folder of a version may have `strings.txt`: the texts in its libraries, one on a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.messages.c_source import GAP
from tests.support.messages.row import Row

_COMPILED = (".cpp", ".hpp", ".cu", ".cc", ".h", ".c")
_LEAST = 6  # letters of a part; shorter ones are in every library


def widened(rows: Sequence[Row], source: Path) -> list[Row]:
    """Return the rows with the first and last version whose library has all their parts."""
    libraries = _libraries(source)
    found: list[Row] = []
    for row in rows:
        if not row.file.endswith(_COMPILED) or not libraries:
            found.append(row)
            continue
        labels = {row.first, row.last}
        labels.update(label for label, text in libraries.items() if _has(text, row.text))
        ordered = sorted(labels, key=_numbers)
        found.append(replace(row, first=ordered[0], last=ordered[-1]))
    return found


def _libraries(source: Path) -> dict[str, str]:
    """Return the texts of the libraries by version."""
    texts: dict[str, str] = {}
    for path in source.glob("*/strings.txt"):
        texts[path.parent.name] = path.read_text(encoding="utf-8", errors="replace")
    return texts


def _has(library: str, text: str) -> bool:
    parts = [part.strip() for part in text.split(GAP)]
    parts = [part for part in parts if len(part) >= _LEAST]
    return bool(parts) and all(part in library for part in parts)


def _numbers(label: str) -> tuple[int, ...]:
    return tuple(int(number) for number in label.split("."))
