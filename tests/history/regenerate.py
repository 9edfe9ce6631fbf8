"""Writes the golden files anew: `python -m tests.history.regenerate`.

Read the diff before you keep it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from clusterprep.history.compare import compare, fact_changes, since
from clusterprep.history.encoding import encoded
from clusterprep.history.parts import FACTS, Parts, moves, parts_of
from clusterprep.model import Absent, Report
from clusterprep.model.history import Comparison
from clusterprep.reports import render
from clusterprep.survey import registry

from .fleets import FLEETS, line, swapped, with_serials

GOLDEN = Path(__file__).parent / "golden"
KINDS = {".txt": ("console", 0), ".v.txt": ("console", 1), ".json": ("json", 0)}


def comparison(old: Report, new: Report) -> Comparison:
    """The comparison of two reports that are at hand with their facts."""
    before, after = (
        {node.node: node.facts for node in report.nodes or ()} for report in (old, new)
    )
    known = {name for facts in (*before.values(), *after.values()) for name in facts}
    names = sorted(name for name in known if not registry.facts()[name].moves)
    changes = [
        change
        for name in names
        for change in fact_changes(name, _kept(before, name), _kept(after, name))
    ]
    moved = moves(_parts(before), _parts(after))
    return compare((line(old), old), (line(new), new), changes, parts=moved)


def _parts(nodes: Mapping[str, Mapping[str, Any]]) -> Parts:
    return parts_of({name: _kept(nodes, name) for name in FACTS})


def _kept(nodes: Mapping[str, Mapping[str, Any]], fact: str) -> dict[str, Any]:
    """A fact by node, as the history gives it back."""
    values = {}
    for name, facts in nodes.items():
        if fact in facts:
            value = facts[fact]
            is_absent = isinstance(value, Absent)
            values[name] = value if is_absent else json.loads(encoded(value, 1 << 20))
    return values


def wanted() -> dict[str, tuple[Report, str, int]]:
    """File name -> report, format, verbosity."""
    reports = [make() for make in FLEETS]
    shown = {"history": _answer("history", runs=tuple(line(one) for one in reversed(reports)))}
    shown["compare_parts"] = _answer("compare", comparison=comparison(with_serials(), swapped()))
    for (old, new), name in zip(itertools.pairwise(reports), ("odd", "dead"), strict=True):
        shown[f"compare_{name}"] = _answer("compare", comparison=comparison(old, new))
        nodes = tuple(replace(node, facts={}) for node in new.nodes or ())
        told = since(line(old), old, new.findings or ())
        shown[f"since_{name}"] = replace(new, nodes=nodes, env=None, verify=None, since=told)
    return {
        f"{name}{suffix}": (report, fmt, verbose)
        for name, report in shown.items()
        for suffix, (fmt, verbose) in KINDS.items()
        if name == "history" or not verbose
    }


def _answer(command: str, **sections: object) -> Report:
    return Report(command, "", "test", "2026-11-21T11:30:00Z", 0.0, "pass", 0, **sections)  # type: ignore[arg-type]


def main() -> None:
    """Write them all, and remove those that nothing makes any more."""
    GOLDEN.mkdir(exist_ok=True)
    files = wanted()
    for old in GOLDEN.iterdir():
        if old.name not in files:
            old.unlink()
    for file, (report, fmt, verbose) in files.items():
        (GOLDEN / file).write_text(render(report, fmt, verbose=verbose), encoding="utf-8")


if __name__ == "__main__":
    main()
