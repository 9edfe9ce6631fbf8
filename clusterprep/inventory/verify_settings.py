"""The `verify:` section: sizes and durations become numbers."""

from __future__ import annotations

from typing import Any

from clusterprep.inventory.document import Document
from clusterprep.model import VerifySettings
from clusterprep.model.units import parse_duration, parse_size

_PLAIN = ("backend", "min_busbw")


def read_verify(document: Document, declared: dict[str, Any]) -> VerifySettings:
    settings: dict[str, Any] = {key: declared[key] for key in _PLAIN if key in declared}
    if "same_files" in declared:
        settings["same_files"] = tuple(path for path in declared["same_files"] if path is not None)
    if "sizes" in declared:
        settings["sizes"] = _sizes(document, declared["sizes"])
    if (timeout := _timeout(document, declared.get("timeout"))) is not None:
        settings["timeout"] = timeout
    return VerifySettings(**settings)


def _sizes(document: Document, written: list[str | int | None]) -> tuple[int, ...]:
    sizes = []
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
    if written is None or not isinstance(written, str):
        return written if written is None else float(written)
    try:
        seconds = parse_duration(written)
        if not 0 < seconds <= 86400:
            raise ValueError(
                f"expected a duration of more than nothing and at most a day; seen '{written}'"
            )
    except ValueError as error:
        document.complain(("verify", "timeout"), str(error))
        return None
    return seconds
