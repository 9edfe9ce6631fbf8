"""Finds all causes that the files in causes/ define, and the commands that find them earlier."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from clusterprep.checks.stress import TAG as STRESS
from clusterprep.jobs.diagnose.model import Cause
from clusterprep.jobs.verify.pages import PAGES
from clusterprep.runtime.plugins import modules
from clusterprep.survey import registry


@functools.cache
def causes() -> Mapping[str, Cause]:
    """Return all causes by name, sorted. Raises TypeError if two have the same name."""
    by_name: dict[str, Cause] = {}
    for module in modules("clusterprep.jobs.diagnose.causes"):
        for value in vars(module).values():
            if not isinstance(value, Cause):
                continue
            name = value.name
            if name in by_name and by_name[name] is not value:
                raise TypeError(f"{name} is defined twice, the second time in {module.__name__}")
            by_name[name] = value
    return dict(sorted(by_name.items()))


def command_that_finds(check: str | None) -> str:
    """Return what looks for a cause before the job starts: "check", its --stress, or "verify".

    Empty if there is no check for it, or if its check is not built yet.
    """
    found = registry.checks().get(check or "")
    if found is not None:
        return "check --stress" if STRESS in found.tags else "check"
    return "verify" if check in PAGES else ""
