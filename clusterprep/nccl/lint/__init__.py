"""Judges the text of an environment: settings in whatever dialect, without a node and without an inventory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from clusterprep.model import Severity
from clusterprep.runtime.lazy_dataclass import dataclass

DIALECTS = ("nccl.conf", "shell", "env-file", "environment", "unit")
Scope = Literal["file", "branch", "command"]


@dataclass(frozen=True)
class LintEntry:
    """One setting as its writer meant it.

    `known` is false where a shell puts the value together at run time. `lost` marks a setting that never reaches
    anybody under its name, and `bare` one that a shell keeps for itself because nobody exports it. The scope is
    «branch» where it may hold or not, and «command» where it is for one command alone.
    """

    name: str
    value: str
    line: int
    known: bool = True
    lost: bool = False
    bare: bool = False
    written: str = ""  # the value as it stands in the file, where quotes were taken off
    scope: Scope = "file"


@dataclass(frozen=True)
class Text:
    """A file: its dialect, its lines without their ends, and the settings in them."""

    dialect: str
    lines: tuple[str, ...]
    entries: tuple[LintEntry, ...]
    returns: int = 0  # the first line that ends in a carriage return; 0: none does
    mark: bool = False  # a byte-order mark stands at its head

    def held(self, *scopes: Scope) -> Mapping[str, LintEntry]:
        """What holds in the end for programs that come after: in nccl.conf the first setting of a name, else the last.

        Without scopes what a branch sets counts too, for it may be what holds.
        """
        taken = scopes or ("file", "branch")
        entries = [entry for entry in self.entries if not entry.lost and entry.scope in taken]
        return {
            entry.name: entry
            for entry in (reversed(entries) if self.dialect == "nccl.conf" else entries)
        }


@dataclass(frozen=True)
class Versions:
    """What will read the settings, as numbers; None: not known."""

    nccl: tuple[int, ...] | None = None
    torch: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Remark:
    """One rule that one line breaks."""

    check: str
    line: int
    name: str
    message: str
    seen: str
    wanted: str
    remedy: str = ""
    severity: Severity = "warning"
