"""Judge the text of an environment, in any of its dialects, without a node and an inventory.

One module per family of rules. Imports `variables`. Begin with `read` and `rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from clusterprep.model import Severity
from clusterprep.remedies import NO_REMEDY, Remedy, sentence

DIALECTS = ("nccl.conf", "shell", "env-file", "environment", "unit")
Scope = Literal["file", "branch", "command"]


class LintEntry(Struct, frozen=True):
    """One setting as its writer meant it.

    `known` is false if a shell computes the value at run time. `lost` marks a setting that no
    program gets under its name, and `bare` one that a shell keeps for itself because it is not
    exported. The scope is «branch» if the setting may hold or not, and «command» if it is for one
    command alone.
    """

    name: str
    value: str
    line: int
    known: bool = True
    lost: bool = False
    bare: bool = False
    written: str = ""  # the value as it stands in the file, where quotes were taken off
    scope: Scope = "file"


class Text(Struct, frozen=True):
    """A file: its dialect, its lines without their ends, and the settings in them."""

    dialect: str
    lines: tuple[str, ...]
    entries: tuple[LintEntry, ...]
    returns: int = 0  # the first line that ends in a carriage return; 0: none does
    mark: bool = False  # a byte-order mark stands at its head

    def held(self, *scopes: Scope) -> Mapping[str, LintEntry]:
        """Return, by name, the settings that programs started afterwards get.

        In nccl.conf the first setting of a name holds, elsewhere the last. Without `scopes` the
        settings of branches count too, for they may be what holds.
        """
        wanted = scopes or ("file", "branch")
        entries = list(self.entries)
        if self.dialect == "nccl.conf":
            entries.reverse()
        held = {}
        for entry in entries:
            if not entry.lost and entry.scope in wanted:
                held[entry.name] = entry
        return held


class Versions(Struct, frozen=True):
    """The versions of what will read the settings, as numbers; None: not known."""

    nccl: tuple[int, ...] | None = None
    torch: tuple[int, ...] | None = None


DROP = sentence("drop the line")


class Remark(Struct, frozen=True):
    """One rule that one line breaks."""

    check: str
    line: int
    name: str
    message: str
    seen: str
    wanted: str
    remedy: Remedy = NO_REMEDY
    severity: Severity = "warning"


def no_effect(
    entry: LintEntry,
    message: str,
    wanted: str,
    remedy: Remedy = NO_REMEDY,
) -> Remark:
    """Return a remark of the check env.no_effect about the value of a setting."""
    seen = f"{entry.name}={entry.value}"
    return Remark(
        "env.no_effect",
        entry.line,
        entry.name,
        message,
        seen,
        wanted,
        remedy,
    )


def write(entry: LintEntry, value: str) -> Remedy:
    """Return the remedy «write NAME=value»; NO_REMEDY if there is no value to write."""
    return sentence("write {name}={value}", name=entry.name, value=value) if value else NO_REMEDY
