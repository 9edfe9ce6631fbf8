"""Read `verify:`: sizes and durations become numbers."""

from __future__ import annotations

from typing import Any

from clusterprep.inventory.document import Document
from clusterprep.model import VerifySettings
from clusterprep.model.units import parse_duration, parse_size

_PLAIN = ("backend", "min_busbw")
_DAY = 86400  # seconds


def read_verify(document: Document, declared: dict[str, Any]) -> VerifySettings:
    """Return the settings. Wrong ones are complained about and keep their default."""
    settings: dict[str, Any] = {}
    for key in _PLAIN:
        if key in declared:
            settings[key] = declared[key]
    if "same_files" in declared:
        paths = declared["same_files"]
        settings["same_files"] = tuple(path for path in paths if path is not None)
    if "sizes" in declared:
        settings["sizes"] = _sizes(document, declared["sizes"])
    timeout = _timeout(document, declared.get("timeout"))
    if timeout is not None:
        settings["timeout"] = timeout
    return VerifySettings(**settings)


def _sizes(document: Document, written: list[str | int | None]) -> tuple[int, ...]:
    """Return bytes; the schema has complained of items that are None."""
    sizes: list[int] = []
    for number, text in enumerate(written):
        if text is None:
            continue
        try:
            size = parse_size(text)
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"expected a size of at least 1 byte; seen '{text}'")
            sizes.append(size)
        except ValueError as error:
            document.complain(("verify", "sizes", number), str(error))
    return tuple(sizes)


def _timeout(document: Document, written: float | str | None) -> float | None:
    """Return seconds; None if nothing is declared, or a wrong value that is complained about."""
    if written is None:
        return None
    if not isinstance(written, str):
        return float(written)
    try:
        seconds = parse_duration(written)
        if not 0 < seconds <= _DAY:
            raise ValueError(
                f"expected a duration of more than nothing and at most a day; seen '{written}'"
            )
    except ValueError as error:
        document.complain(("verify", "timeout"), str(error))
        return None
    return seconds
