"""Read `silence:`: accepted findings, the nodes they are accepted on, and until when."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from clusterprep.inventory.demands import unknown_check
from clusterprep.inventory.document import Document
from clusterprep.inventory.yaml_tree import Place
from clusterprep.model import Silence
from clusterprep.model.nodeset import select

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_NO_REASON = "no reason given"


class Silences:
    """Reads the section against the names and groups of the inventory.

    `complete` is false if some names could not be read: then unknown ones are no mistake.
    """

    def __init__(
        self,
        document: Document,
        names: Sequence[str],
        groups: Mapping[str, Sequence[str]],
        complete: bool,
    ) -> None:
        self.document = document
        self.names = names
        self.groups = groups
        self.complete = complete

    def read(self, declared: Sequence[Mapping[str, Any] | None]) -> tuple[Silence, ...]:
        """Return the silences. Mistakes are complained about, and reading goes on."""
        silences: list[Silence] = []
        for number, entry in enumerate(declared):
            if entry and "check" in entry:
                silences.append(self._silence(("silence", number), entry))
        return tuple(silences)

    def _silence(self, place: Place, entry: Mapping[str, Any]) -> Silence:
        check = entry["check"]
        problem = unknown_check(check, self.document.extensions.checks)
        if problem:
            message, hint = problem
            self.document.complain((*place, "check"), message, hint)
        nodes: Sequence[str] = self.names
        if "nodes" in entry:
            nodes = self._nodes((*place, "nodes"), entry["nodes"])
        until = self._until((*place, "until"), entry.get("until"))
        reason = entry.get("reason", _NO_REASON)
        return Silence(check, frozenset(nodes), reason, until)

    def _nodes(self, place: Place, text: str) -> list[str]:
        try:
            return select(text, self.names, self.groups, missing_ok=not self.complete)
        except ValueError as error:
            self.document.complain(place, str(error))
            return []

    def _until(self, place: Place, text: str | None) -> date | None:
        """Return the last day; None if none is given, or a wrong one that is complained about."""
        if text is None:
            return None
        try:
            if not _DATE.fullmatch(text):
                raise ValueError
            return date.fromisoformat(text)
        except ValueError:
            self.document.complain(place, f"expected a date such as 2027-01-31; seen '{text}'")
            return None
