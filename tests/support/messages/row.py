"""One message of a program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A message, the last file that had it, and the first and last version that had it."""

    text: str
    kind: str  # "w" for warnings and errors, "i" for information that sounds like one
    file: str
    first: str
    last: str
