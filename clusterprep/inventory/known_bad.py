"""Read known_bad.yaml: the entries that a site adds to the table of bad versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterprep.inventory.document import read_document
from clusterprep.inventory.schema import check_against_schema
from clusterprep.model.known_bad import KnownBad, check_conditions, entry_of

FILE = "known_bad.yaml"
_WRITTEN = [{"versions": True, "mended": True, "when": {"*": True}}]  # 2.10 stays "2.10"


def read_known_bad(inventory_path: str) -> tuple[KnownBad, ...]:
    """Return the entries of the file beside the inventory; none if there is no such file.

    Raises InputError with all mistakes, in file order.
    """
    path = Path(inventory_path).parent / FILE
    if not path.is_file():
        return ()
    document = read_document(path, _WRITTEN, "a list of bad versions", top="list")
    invalid = check_against_schema(document, "known_bad", document.data)
    spoilt = {place[0] for place in invalid if place}
    entries: list[KnownBad] = []
    for number, row in enumerate(document.data):
        if number not in spoilt:
            entries.append(_entry(document, number, row, entries))
    document.settle()
    return tuple(entries)


def _entry(document: Any, number: int, row: Any, earlier: list[KnownBad]) -> KnownBad:
    """Return the entry of a row; what is wrong with its conditions is complained about."""
    entry = entry_of(row)
    if any(entry.id == other.id for other in earlier):
        document.complain((number, "id"), f"'{entry.id}' is there twice")
    try:
        check_conditions(entry)
    except ValueError as error:
        document.complain((number,), str(error))
    return entry
