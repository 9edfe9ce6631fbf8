"""What `require:` may ask for: names of checks, short names for some of them, and values of the right kind."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from clusterprep.model.nodeset import nearest
from clusterprep.survey import registry

if TYPE_CHECKING:
    from clusterprep.inventory.document import Document
    from clusterprep.inventory.yaml_tree import Place

_DATA = Path(__file__).parent.parent / "data"

ALIASES = {
    "kernel": "kernel.version",
    "driver": "nv.driver",
    "cuda": "cuda.runtime_vs_driver",
    "nccl": "nccl.torch",
    "torch": "torch.version",
    "clock_skew": "time.offset",
    "mtu": "eth.mtu",
    "memlock": "lim.memlock",
    "shm": "shm.size",
}


@functools.cache
def check_names() -> frozenset[str]:
    """Every check of the catalogue, built or not."""
    text = (_DATA / "check_names.json").read_text(encoding="utf-8")
    return frozenset(json.loads(text))


def read_require(
    document: Document, declared: Mapping[str, str | list[str | None]], place: Place
) -> dict[str, str]:
    """Full check name → what is wanted, as written; what cannot be used has been complained about."""
    wanted: dict[str, str] = {}
    for name, value in declared.items():
        here = (*place, "require", name)
        items = [value] if isinstance(value, str) else value
        text = ",".join(item for item in items if item is not None)
        check = ALIASES.get(name, name)
        if check not in check_names():
            document.complain(
                here, "there is no such check", nearest(name, sorted({*check_names(), *ALIASES}))
            )
        elif None in items:
            continue  # the schema has complained about this item
        elif wanted.setdefault(check, text) != text:
            document.complain(here, f"'{check}' is asked for twice: '{wanted[check]}' and '{text}'")
        elif trouble := _trouble(check, text):
            document.complain(here, trouble)
    return wanted


def unknown_check(name: str) -> tuple[str, str | None] | None:
    """Message and hint where a name is not in the catalogue."""
    if name in check_names():
        return None
    return f"there is no check '{name}'", nearest(name, sorted(check_names()))


def _trouble(check: str, text: str) -> str | None:
    if not text.strip():
        return "expected what is wanted of the check; seen nothing"
    try:
        built = registry.checks().get(check)
        if built is not None:
            built.wants(text)
    except ValueError as error:
        return str(error)
    return None
