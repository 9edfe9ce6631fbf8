"""Read `require:`: names of checks, short names for some of them, and what is wanted of each."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

LONGEST = (
    4000  # characters of what is wanted of a check; int() refuses 4,300 digits in its own words
)


@functools.cache
def check_names() -> frozenset[str]:
    """Return the names of all checks of the catalogue, built or not."""
    text = (_DATA / "check_names.json").read_text(encoding="utf-8")
    return frozenset(json.loads(text))


def read_require(
    document: Document, declared: Mapping[str, str | list[str | None]], place: Place
) -> dict[str, str]:
    """Return what is wanted, as written, by the full name of the check.

    What cannot be used is left out and complained about.
    """
    wanted: dict[str, str] = {}
    for name, value in declared.items():
        here = (*place, "require", name)
        check = ALIASES.get(name, name)
        site = document.extensions.checks
        if check not in check_names() and check not in site:
            known = sorted({*check_names(), *ALIASES, *site})
            hint = nearest(name, known) or "clusterprep explain --list has all"
            document.complain(here, "there is no such check", hint)
            continue
        items = [value] if isinstance(value, str) else value
        if None in items:
            continue  # the schema has complained about this item
        text = ",".join(item for item in items if item is not None)
        first = wanted.setdefault(check, text)
        if first != text:
            document.complain(here, f"'{check}' is asked for twice: '{first}' and '{text}'")
            continue
        problem = _problem_of(check, text, site)
        if problem:
            document.complain(here, problem)
    return wanted


def unknown_check(name: str, site: Iterable[str] = ()) -> tuple[str, str | None] | None:
    """Return a message and a hint if no check, nor one of the site's, has this name, else None."""
    known = {*check_names(), *site}
    if name in known:
        return None
    hint = nearest(name, sorted(known))
    return f"there is no check '{name}'", hint


def _problem_of(check: str, text: str, site: Mapping[str, Any] | None = None) -> str | None:
    """Return what is wrong with the text wanted of a check, or None.

    A check of the catalogue that is not built takes any text.
    """
    if not text.strip():
        return "expected what is wanted of the check; seen nothing"
    if len(text) > LONGEST:
        return f"expected at most {LONGEST:,} characters; seen {len(text):,}"
    try:
        built = (site or {}).get(check) or registry.checks().get(check)
        if built is not None:
            built.wants(text)
    except ValueError as error:
        return str(error)
    return None
