"""Whether all ranks run the same: interpreter, packages, environment, files. The finding rank.consistency. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Finding, Severity
from clusterprep.model.nodeset import fold
from clusterprep.remote.agent.belongings import variables
from clusterprep.runtime.lazy_dataclass import dataclass

NAME = "rank.consistency"
PARTS = ("interpreter", "packages", "environment", "files")
SHOWN = 8  # differences of one kind that are told one by one
WIDTH = 60  # characters of a value
NONE = "none"
WANTED = "equal on all ranks"
REMEDY = "install the same packages and files on the nodes named, and see what sets variables there"

Items = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """One thing that ranks do not have alike: its values, each with the ranks that have it, the usual one first."""

    name: str
    ranks: Mapping[str, tuple[int, ...]]
    odd: frozenset[str]  # nodes: those of the minority; all where there is no majority


def consistency(timeline: Timeline) -> Iterable[Finding]:
    """One failure for all differences of the same kind on the same nodes."""
    held = belongings(timeline)
    every = tuple(node.name for node in timeline.plan.nodes)
    severity: Severity = (
        "error" if any(NAME in node.require for node in timeline.plan.nodes) else "warning"
    )
    every_part = set(PARTS)
    silent = {
        rank.rank for rank in timeline.plan.ranks if held.get(rank.rank, {}).keys() != every_part
    }
    if silent:
        reason = f"rank {fold(map(str, silent))} did not say what it has"
        nodes = _in_order(timeline, {timeline.rank(rank).node for rank in silent})
        yield Finding(
            NAME, "unknown", severity, nodes, f"not known: {reason}", "", WANTED, reason=reason
        )
    told = {rank: parts for rank, parts in held.items() if rank not in silent}
    if len(told) < 2:
        if not silent:
            words = "one rank has nothing to be compared with"
            yield Finding(NAME, "skip", severity, every, words, "", WANTED, reason="not_applicable")
        return
    unread = list(_unread(timeline, told, severity))
    failures = list(_failures(timeline, told, severity))
    yield from (*unread, *failures)
    if not (silent or unread or failures):
        yield Finding(NAME, "pass", severity, every, _summary(told), "equal", WANTED)


def belongings(timeline: Timeline) -> dict[int, dict[str, dict[str, Any]]]:
    """What every rank said that it has, part by part; of the environment, what is not as the rank was given it."""
    held: dict[int, dict[str, dict[str, Any]]] = {}
    for event in timeline.of("holds"):
        part, items = event.data.get("part"), event.data.get("items")
        if event.rank is not None and part in PARTS and isinstance(items, dict):
            held.setdefault(event.rank, {}).setdefault(str(part), {}).update(items)
    for rank, parts in held.items():
        if "environment" in parts:
            parts["environment"] = _changed(timeline.rank(rank).env, parts["environment"])
    return held


def _changed(given: Mapping[str, str], there: Items) -> dict[str, Any]:
    """A variable that is otherwise than it was given was set or removed on the way; one that is gone is «unset»."""
    expected = {name: value for name, value in given.items() if _compared(name)}
    names = {*expected, *there}
    return {
        name: there.get(name, "unset") for name in names if there.get(name) != expected.get(name)
    }


@functools.lru_cache(1024)
def _compared(name: str) -> bool:
    return bool(variables({name: ""}))


def _failures(
    timeline: Timeline, told: Mapping[int, Mapping[str, Items]], severity: Severity
) -> Iterable[Finding]:
    for part in PARTS:
        groups: dict[frozenset[str], list[Difference]] = {}
        for difference in _differences(
            timeline, {rank: parts[part] for rank, parts in told.items()}
        ):
            groups.setdefault(difference.odd, []).append(difference)
        for odd, same in groups.items():
            nodes = _in_order(timeline, odd)
            seen = "; ".join(_words(difference) for difference in same[:SHOWN])
            more = f"; and {len(same) - SHOWN} more" if len(same) > SHOWN else ""
            names = ", ".join(difference.name for difference in same[:SHOWN])
            message = (
                f"{fold(nodes)}: {part} differ in {names}{more}"
                if part != "interpreter"
                else _other(nodes)
            )
            yield Finding(NAME, "fail", severity, nodes, message, f"{seen}{more}", WANTED, REMEDY)


def _other(nodes: tuple[str, ...]) -> str:
    return f"{fold(nodes)}: ranks run another Python"


def _differences(timeline: Timeline, items: Mapping[int, Items]) -> Iterable[Difference]:
    """In order of names; a file that some rank cannot read is not compared."""
    groups = _alike(items)
    for name in sorted({name for mine, _ in groups for name in mine}):
        values = [mine.get(name, NONE) for mine, _ in groups]
        if any(isinstance(value, list) for value in values) or len(set(map(str, values))) == 1:
            continue
        ranks: dict[str, list[int]] = {}
        for value, (_, same) in zip(values, groups, strict=True):
            ranks.setdefault(str(value), []).extend(same)
        for same in ranks.values():
            same.sort()
        # The usual one first; where two are as frequent, the one that is met first.
        order = sorted(ranks, key=lambda value: (-len(ranks[value]), ranks[value][0]))
        certain = 2 * len(ranks[order[0]]) > len(items)
        odd = {timeline.rank(rank).node for value in order[certain:] for rank in ranks[value]}
        yield Difference(name, {value: tuple(ranks[value]) for value in order}, frozenset(odd))


def _alike(items: Mapping[int, Items]) -> list[tuple[Items, list[int]]]:
    """Ranks that have exactly the same, together: on a sound cluster that is all of them."""
    groups: dict[object, tuple[Items, list[int]]] = {}
    for rank, mine in items.items():
        try:
            key: object = frozenset(mine.items())
            hash(key)
        except TypeError:  # a file that cannot be read is a list
            key = repr(sorted(mine.items(), key=str))
        groups.setdefault(key, (mine, []))[1].append(rank)
    return list(groups.values())


def _unread(
    timeline: Timeline, told: Mapping[int, Mapping[str, Items]], severity: Severity
) -> Iterable[Finding]:
    """Files that the user wants to be the same and that some rank could not read, or none has."""
    for path in timeline.plan.same_files:
        values = {rank: parts["files"].get(path, NONE) for rank, parts in told.items()}
        locked = {
            rank: value[0] for rank, value in values.items() if isinstance(value, list) and value
        }
        nowhere = len(set(map(str, values.values()))) == 1 and "no such file" in str(
            next(iter(values.values()))
        )
        if locked or nowhere:
            ranks = locked or values
            why = next(iter(locked.values())) if locked else "there is no such file on any rank"
            nodes = _in_order(timeline, {timeline.rank(rank).node for rank in ranks})
            message = f"rank {fold(map(str, ranks))} cannot read {path}: {why}"
            yield Finding(
                NAME, "unknown", severity, nodes, message, "", WANTED, reason=f"{path}: {why}"
            )


def _words(difference: Difference) -> str:
    """As in «numpy: 1.26.4 on rank [0-5], 2.1.0 on rank [6-7]»."""
    parts = [
        f"{_short(value)} on rank {fold(map(str, ranks))}"
        for value, ranks in difference.ranks.items()
    ]
    return f"{difference.name}: {', '.join(parts)}"


def _short(value: str) -> str:
    return value if len(value) <= WIDTH else f"{value[: WIDTH - 1]}…"


def _summary(told: Mapping[int, Mapping[str, Items]]) -> str:
    parts = next(iter(told.values()))
    files = f", {len(parts['files'])} files" if parts["files"] else ""
    return f"{len(told)} ranks have the same interpreter, {len(parts['packages'])} packages, environment{files}"


def _in_order(timeline: Timeline, names: Iterable[str]) -> tuple[str, ...]:
    wanted = set(names)
    return tuple(node.name for node in timeline.plan.nodes if node.name in wanted)
