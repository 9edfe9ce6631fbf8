"""Versions that are known to be bad: an entry of the table, and whether it applies to a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from clusterprep.model.versions import satisfies

# Conditions of an entry whose value is a text. The others are conditions on a version or a number.
_TEXTS = frozenset({"arch", "module", "os", "cpu"})


class KnownBad(Struct, frozen=True):
    """A version of a component with a known defect.

    * `versions` are conditions as `require:` takes them, such as «>=2.28.9,<2.29.3».
    * `when` limits the entry to nodes whose other components meet these conditions: «arch» and
      «module» are equal to a word, «os» begins with it, «cpu» contains it; «gpu» is a compute
      capability, «uptime_days» a number, and everything else the version of a component.
    * `effect` is a word such as hang or corruption; "security" marks a vulnerability.
    * `mended` is the first version without the defect, None where none is known.
    """

    id: str
    component: str
    versions: str
    effect: str
    symptom: str
    source: str
    mended: str | None = None
    workaround: str = ""
    when: Mapping[str, str] = field(default_factory=dict)
    severity: str = "warning"

    @property
    def is_security(self) -> bool:
        return self.effect == "security"


def entry_of(row: Mapping[str, Any]) -> KnownBad:
    """Return the entry that a row of known_bad.json or known_bad.yaml describes."""
    return KnownBad(
        id=row["id"],
        component=row["component"],
        versions=row["versions"],
        effect=row["effect"],
        symptom=row["symptom"],
        source=row["source"],
        mended=row.get("mended"),
        workaround=row.get("workaround", ""),
        when=row.get("when", {}),
        severity=row.get("severity", "warning"),
    )


def check_conditions(entry: KnownBad) -> None:
    """Raise ValueError if a condition of the entry cannot be read."""
    satisfies("1", entry.versions)
    for name, condition in entry.when.items():
        if name not in _TEXTS:
            satisfies("1", condition)


def meets(name: str, values: tuple[str, ...], condition: str) -> bool:
    """Return whether one of the values that a node has of `name` meets a condition of `when`."""
    if name in ("arch", "module"):
        return condition in values
    if name == "os":
        return any(value.startswith(condition) for value in values)
    if name == "cpu":
        return any(condition in value for value in values)
    return any(satisfies(value, condition) for value in values)
