"""What a site adds to our own checks, facts and resources, beside its inventory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

SITE_MODULES = "clusterprep_site_"  # begins the names of modules that are files of a site


class Broken(Struct, frozen=True):
    """A file of a site, or a part of one, that cannot be used.

    `check` is the name under which reports tell of it, `place` the file with its line, and `why`
    what is wrong and what to do.
    """

    check: str
    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {self.why} ({self.check} is unknown)"


class SiteCheck(Struct, frozen=True):
    """What a report says of a check of the site: its page, its file and the facts that it used.

    Those in `moving` change by themselves.
    """

    name: str
    title: str
    why: str
    how: str
    source: str
    facts: tuple[str, ...] = ()
    moving: tuple[str, ...] = ()


class Extensions(Struct, frozen=True):
    """Checks, facts and resources of a site by their names, and what of its files is broken.

    The values are `checks.Check` and `facts.Fact`, and of `resources` the file and the resource of
    `changes.resources`; these stand behind this package. A broken check is also among `checks`, and
    always unknown.
    """

    checks: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    broken: tuple[Broken, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)  # a check's name -> its `when.group`

    def __bool__(self) -> bool:
        return bool(self.checks or self.facts or self.resources)


NO_EXTENSIONS = Extensions()
