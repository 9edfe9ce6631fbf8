"""The table of one project: each message once, with its file and its first and last version."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.messages import binaries, trees
from tests.support.messages.c_source import GAP, tidied
from tests.support.messages.projects import Project
from tests.support.messages.row import Row

FOLDER = Path(__file__).parents[3] / "clusterprep" / "data" / "messages"
# What a message has of its own, at least: less is found in lines of any program.
LEAST_LETTERS = 12
LEAST_WORDS = 2
LEAST_WORD = 4  # letters of the word that it is found by
# Information is kept only if it could be taken for an error.
ALARMING = re.compile(
    r"error|fail|could not|unable|cannot|abort|invalid|denied|timed? ?out", re.IGNORECASE
)
_OF_THE_SYSTEM = frozenset(os.strerror(number) for number in errno.errorcode)


def extract(
    project: Project,
    source: Path,
    wanted: Sequence[str] = (),
    libraries: Path | None = None,
) -> list[Row]:
    """Return the messages of all versions, sorted.

    `libraries` is a folder with texts of built libraries (see binaries.py), if not `source` is.
    """
    libraries = libraries or source
    rows: dict[str, Row] = {}
    known: dict[tuple[str, str], dict[str, str]] = {}  # kind by text, by path and identity
    labels: set[str] = set()
    for version, name in trees.versions(project, source, wanted).items():
        label = ".".join(map(str, version))
        labels.add(label)
        for path, identity, source_text in trees.files(project, source, name):
            key = (path, identity)
            if key not in known:
                known[key] = _lines(project, path, source_text)
            for text, kind in known[key].items():
                row = rows.get(text)
                if row is None:
                    rows[text] = Row(text, kind, path, label, label)
                elif row.last != label or kind > row.kind:
                    rows[text] = replace(row, kind=max(kind, row.kind), file=path, last=label)
    found = binaries.widened(list(rows.values()), libraries)
    texts = {row.text for row in found}
    if libraries == source:
        labels.clear()
    for row in binaries.parts(found, libraries):
        # What a library has and its own source does not print as a warning is no warning.
        if row.first not in labels and row.text not in texts and has_own_text(row.text):
            found.append(row)
    return sorted(found, key=lambda row: (row.text, row.file))


def _lines(project: Project, path: str, source: str) -> dict[str, str]:
    """Return the kind of each line of the messages of a file that has enough text of its own."""
    kinds: dict[str, str] = {}
    for text, is_info in project.texts(path, source):
        for line in text.splitlines():
            shown = tidied(line)
            if not has_own_text(shown) and not path.endswith(".go"):
                continue
            if is_info and not ALARMING.search(shown):
                continue
            kinds[shown] = max("i" if is_info else "w", kinds.get(shown, ""))
    return kinds


def has_own_text(text: str) -> bool:
    if text.strip(f"{GAP}.: ") in _OF_THE_SYSTEM:
        return False
    words = re.findall(r"[A-Za-z]{2,}", text)
    enough = len(words) >= LEAST_WORDS and sum(map(len, words)) >= LEAST_LETTERS
    return enough and bool(words_of(text))


def words_of(text: str) -> list[str]:
    """Return the words of a message that are long enough to find it by. Gaps may be in words."""
    words = re.findall(rf"(?<![A-Za-z{GAP}])[A-Za-z]+(?![A-Za-z{GAP}])", text)
    return [word for word in words if len(word) >= LEAST_WORD]


def write(project: Project, rows: Sequence[Row]) -> Path:
    """Write the table and return its path.

    A line has the word that the message is found by, which few others have, its text, its kind,
    its file, its first and its last version, with tabs between.
    """
    path = FOLDER / f"{project.name}.tsv"
    path.parent.mkdir(exist_ok=True)
    count = Counter(word for row in rows for word in set(words_of(row.text)))
    lines: list[str] = []
    for row in rows:
        word = min(words_of(row.text), key=lambda word: (count[word], -len(word)))
        cells = (word, row.text, row.kind, row.file, row.first, row.last)
        lines.append("\t".join(cells) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path
