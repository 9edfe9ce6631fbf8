"""Finds messages in shell and Go, which are simple enough for one pattern each."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.support.messages.c_source import GAP

_SHELL = re.compile(
    r"\b(?:common::(?:err|warn|log (?:WARN|ERROR))|log_error|log_warn) +(?:-\w+ +)?"
    r"(?:\"(?P<double>(?:[^\"\\]|\\.)+)\"|'(?P<single>[^']+)')"
)
_VARIABLE = re.compile(r"\$\{[^}]*\}|\$\([^)]*\)|\$\w+")
# Reasons of one common word, as «Failed», are in lines of any program.
_GO_REASON = re.compile(
    r'^\s*\w*Reason\w*\s*(?:\w+ )?= "(?P<text>[A-Z][a-z]+[A-Z]\w+)"', re.MULTILINE
)


def shell_messages(source: str) -> Iterator[str]:
    """Yield what a script reports, with GAP for variables."""
    for match in _SHELL.finditer(source):
        text = match["double"] or match["single"]
        yield _VARIABLE.sub(GAP, text)


def go_reasons(source: str) -> Iterator[str]:
    """Yield the constants of a file: reasons of events and conditions, one word each."""
    for match in _GO_REASON.finditer(source):
        yield match["text"]
