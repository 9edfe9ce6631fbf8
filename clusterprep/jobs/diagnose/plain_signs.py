"""Tells whether a line says its cause by itself, for the few lines that have to be judged early."""

from __future__ import annotations

import functools
import re

from clusterprep.jobs.diagnose.known import causes
from clusterprep.jobs.diagnose.model import Sign, Weight, form_of
from clusterprep.jobs.diagnose.prefixes import line_of


def is_plain(text: bytes) -> bool:
    """Whether a line has a plain sign of a cause that is not harmless."""
    decoded = text.decode("utf-8", "replace")
    form = form_of(decoded)
    candidates = [sign for needle, sign in _plain_signs() if needle in form]
    if not candidates:
        return False
    line = line_of("", 1, decoded)
    for sign in candidates:
        searched = line.text if sign.searches_whole_line else line.message
        if re.search(sign.pattern, searched, re.IGNORECASE):
            return True
    return False


@functools.cache
def _plain_signs() -> tuple[tuple[str, Sign], ...]:
    """Return the plain signs of causes that are not harmless, with their needles as forms."""
    signs: list[tuple[str, Sign]] = []
    for cause in causes().values():
        for sign in cause.signs:
            severity = sign.severity or cause.severity
            if sign.weight == Weight.PLAIN and severity != "benign":
                signs.append((form_of(sign.needle), sign))
    return tuple(signs)
