"""Read `env:`: which variables may be set, and which names look misspelt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from clusterprep.inventory.document import Document
from clusterprep.inventory.yaml_tree import Place

_REFUSED = frozenset({"PATH", "BASH_ENV", "ENV", "IFS", "PROMPT_COMMAND", "HOME"})
_REFUSED_STARTS = ("LD_", "PYTHON")
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS", re.IGNORECASE)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_KNOWN_STARTS = ("NCCL_", "TORCH_")  # we know all names that begin like this


def read_env(document: Document, declared: Mapping[str, str], place: Place) -> dict[str, str]:
    """Return the variables that may be set; the others are complained about."""
    allowed: dict[str, str] = {}
    for name, value in declared.items():
        here = (*place, "env", name)
        refusal = _refusal(name)
        if refusal:
            document.complain(here, refusal)
        elif _CONTROL.search(value):
            document.complain(here, f"the value holds a control character: {value!r}")
        else:
            allowed[name] = value
    return allowed


def misspelt(names: Iterable[str]) -> list[str]:
    """Return a warning for each NCCL_* or TORCH_* name that no known version reads."""
    judged = {name for name in names if name.startswith(_KNOWN_STARTS)}
    if not judged:
        return []
    from clusterprep.nccl.lint.names import nearest_name, of_others
    from clusterprep.nccl.variables.variables import registry

    warnings: list[str] = []
    for name in sorted(judged):
        if name in registry() or of_others(name):
            continue
        warning = f"env.{name}: no NCCL or torch known here reads this variable"
        nearest = nearest_name(name)
        if nearest:
            warning += f" (did you mean '{nearest}'?)"
        warnings.append(warning)
    return warnings


def _refusal(name: str) -> str | None:
    """Return why a variable must not be set, or None."""
    if name in _REFUSED or name.startswith(_REFUSED_STARTS):
        return (
            f"'{name}' decides how programs are found and started on the node, "
            "and is never set from an inventory"
        )
    from clusterprep.nccl.variables.variables import is_read_by_nccl_or_plugin

    if _SECRET.search(name) and not is_read_by_nccl_or_plugin(name):
        return (
            f"'{name}' may be a secret, as any name with KEY, TOKEN, SECRET or PASS: "
            "all users of a node can read it"
        )
    return None
