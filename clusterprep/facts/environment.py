"""The effective environment: what each way to start a process would give to the job's user, and from which file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """A variable as a launch path has it; `file` and `line` are None where they cannot be told."""

    name: str
    value: str
    file: str | None = None
    line: int | None = None
