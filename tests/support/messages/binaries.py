"""Reads messages from built libraries, where only some versions can be had as source.

A folder of a version may have `strings.txt`: the texts in its libraries, one on a line. They may be
in their order, as `ordered.txt`: compilers put the texts of one source file side by side.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.messages.c_source import GAP, tidied, without_formats
from tests.support.messages.row import Row

_COMPILED = (".cpp", ".hpp", ".cu", ".cc", ".h", ".c")
_LEAST = 6  # letters of a part; shorter ones are in every library
# Around a text of the project there are so many texts known to be its, of as many looked at.
_NEIGHBOURS = 30
_LEAST_KNOWN = 5
_SENTENCE = re.compile(r"[^<>*:;|]*[A-Za-z]{3,} [A-Za-z]{2,}[^<>*;|]* [^<>*;|]+")
_NO_MESSAGE = re.compile(r"cuDNN|INTERNAL ASSERT|Expected .* to be true|^\W*\(|\) ->|->\w|::\w+\(")


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
        found.append(dataclasses.replace(row, first=ordered[0], last=ordered[-1]))
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


def parts(rows: Sequence[Row], source: Path) -> Iterator[Row]:
    """Yield texts that stand among known ones in libraries, and are in none of the rows.

    Where a program puts messages together from parts, these are the parts.
    """
    known = {part.strip() for row in rows for part in row.text.split(GAP)}
    known = {part for part in known if len(part) >= 2 * _LEAST}
    known |= {row.text for row in rows}
    labels: dict[str, str] = {}  # as in the library, by the text with gaps
    for path in sorted(source.glob("*/ordered.txt")):
        texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
        shown = [tidied(without_formats(text.replace("\\n", " "))) for text in texts]
        for index in _among_known(shown, known):
            labels[shown[index]] = texts[index]
    libraries = _libraries(source)
    for text, raw in labels.items():
        found = [label for label, library in libraries.items() if raw in library]
        if found:
            found.sort(key=_numbers)
            yield Row(text, "w", "the library", found[0], found[-1])


def _among_known(texts: Sequence[str], known: set[str]) -> Iterator[int]:
    """Yield the indexes of unknown sentences with enough known texts around them."""
    places = [index for index, text in enumerate(texts) if text in known]
    for index, text in enumerate(texts):
        low = bisect.bisect_left(places, index - _NEIGHBOURS // 2)
        high = bisect.bisect_right(places, index + _NEIGHBOURS // 2)
        if high - low < _LEAST_KNOWN or text in known:
            continue
        if _SENTENCE.fullmatch(text) and not _NO_MESSAGE.search(text):
            yield index
