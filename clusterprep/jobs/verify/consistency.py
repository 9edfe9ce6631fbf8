"""Whether interpreter, packages, environment and files of ranks are equal: rank.consistency."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Finding, Severity
from clusterprep.model.nodeset import fold, fold_numbers
from clusterprep.model.units import pluralize
from clusterprep.remedies import sentence
from clusterprep.remote.agent.belongings import variables

NAME = "rank.consistency"
PARTS = ("interpreter", "packages", "environment", "files")
SHOWN = 8  # differences of one kind that are shown one by one
WIDTH = 60  # characters of a value
NONE = "none"
UNCHANGED: dict[str, Any] = {}  # the variables of nearly all ranks, as one object
WANTED = "equal on all ranks"
REMEDY = sentence(
    "install the same packages and files on the nodes named, and see what sets variables there"
)

Items = Mapping[str, Any]  # name to value
Parts = Mapping[str, Items]  # what one rank has, by the names in PARTS
Grouped = list[tuple[Items, list[int]]]  # equal items, with the ranks that have them


class Difference(Struct, frozen=True):
    """One thing in which ranks differ: its values with their ranks, the usual value first."""

    name: str
    ranks: Mapping[str, tuple[int, ...]]
    minority: frozenset[str]  # nodes; all of them if there is no majority


def consistency_findings(timeline: Timeline) -> Iterable[Finding]:
    """Yield one failure for all differences of the same kind on the same nodes."""
    nodes = timeline.node_names()
    is_required = any(NAME in node.require for node in timeline.plan.nodes)
    severity: Severity = "error" if is_required else "warning"
    complete, silent = _complete_and_silent(timeline)
    if silent:
        yield _silent_finding(timeline, silent, severity)
    if len(complete) < 2:
        if not silent:
            message = "one rank has nothing to be compared with"
            reason = "not_applicable"
            yield Finding(
                check=NAME,
                verdict="skip",
                severity=severity,
                nodes=nodes,
                message=message,
                wanted=WANTED,
                reason=reason,
            )
        return
    problems = [*_unread(timeline, complete, severity), *_failures(timeline, complete, severity)]
    yield from problems
    if not silent and not problems:
        yield Finding(
            check=NAME,
            verdict="pass",
            severity=severity,
            nodes=nodes,
            message=_summary(complete),
            seen="equal",
            wanted=WANTED,
        )


def _complete_and_silent(timeline: Timeline) -> tuple[dict[int, Parts], set[int]]:
    """Return the ranks that told all parts with what they told, and all other ranks."""
    held = belongings(timeline)
    complete: dict[int, Parts] = {}
    for rank, parts in held.items():
        if set(parts) != set(PARTS):
            continue
        complete[rank] = parts
    ranks = range(timeline.plan.world_size)
    silent = set(ranks).difference(complete)
    return complete, silent


def _silent_finding(timeline: Timeline, silent: set[int], severity: Severity) -> Finding:
    nodes = timeline.nodes_of(silent)
    ranks = fold_numbers(silent)
    reason = f"rank {ranks} did not say what it has"
    message = f"not known: {reason}"
    return Finding(
        check=NAME,
        verdict="unknown",
        severity=severity,
        nodes=nodes,
        message=message,
        wanted=WANTED,
        reason=reason,
    )


def belongings(timeline: Timeline) -> dict[int, dict[str, dict[str, Any]]]:
    """Return what every rank said that it has, part by part.

    Of the environment it is what differs from the variables that the rank was given.
    """
    held: dict[int, dict[str, dict[str, Any]]] = {}
    for event in timeline.turn_by_turn("holds"):
        part = event.data.get("part")
        items = event.data.get("items")
        if event.rank is None or part not in PARTS:
            continue
        if not isinstance(items, dict):
            continue
        parts = held.setdefault(event.rank, {})
        before = parts.get(str(part))
        # Most ranks share one mapping, which is not changed.
        parts[str(part)] = items if before is None else {**before, **items}
    for rank, parts in held.items():
        environment = parts.get("environment")
        if environment is None:
            continue
        given = timeline.rank(rank).env
        parts["environment"] = _changed_variables(given, environment) or UNCHANGED
    return held


def _changed_variables(given: Mapping[str, str], actual: Items) -> dict[str, Any]:
    """Return variables that were set or changed after the start; "unset" if one was removed."""
    changed: dict[str, Any] = {}
    expected: dict[str, str] = {}
    for name, value in given.items():
        if not _is_compared(name):
            continue
        expected[name] = value
        if name not in actual:
            changed[name] = "unset"
    for name, value in actual.items():
        if value == expected.get(name):
            continue
        changed[name] = value
    return changed


@functools.lru_cache(1024)
def _is_compared(name: str) -> bool:
    return bool(variables({name: ""}))


def _failures(
    timeline: Timeline, complete: Mapping[int, Parts], severity: Severity
) -> Iterable[Finding]:
    """Yield a failure for each part and each set of nodes that differ in it."""
    for part in PARTS:
        items = {rank: parts[part] for rank, parts in complete.items()}
        groups: dict[frozenset[str], list[Difference]] = {}
        for difference in _differences(timeline, items):
            same = groups.setdefault(difference.minority, [])
            same.append(difference)
        for minority, same in groups.items():
            nodes = timeline.sorted_nodes(minority)
            yield _failure(part, nodes, same, severity)


def _failure(
    part: str, nodes: tuple[str, ...], same: Sequence[Difference], severity: Severity
) -> Finding:
    """Return the failure for differences in one part (see PARTS) that the same nodes have."""
    shown = same[:SHOWN]
    seen = "; ".join(map(_values_words, shown))
    names = ", ".join(difference.name for difference in shown)
    if len(same) > SHOWN:
        more = f"; and {len(same) - SHOWN} more"
        seen += more
        names += more
    differ = f"{part} differ in {names}"
    if part == "interpreter":
        differ = "ranks run another Python"
    message = f"{fold(nodes)}: {differ}"
    return Finding(
        check=NAME,
        verdict="fail",
        severity=severity,
        nodes=nodes,
        message=message,
        seen=seen,
        wanted=WANTED,
        remedy=REMEDY,
    )


def _differences(timeline: Timeline, items: Mapping[int, Items]) -> Iterable[Difference]:
    """Yield differences in order of names; a file that a rank cannot read is not compared."""
    groups = _equal_items(items)
    names: set[str] = set()
    for own, _ in groups:
        names.update(own)
    for name in sorted(names):
        ranks = _ranks_by_value(name, groups)
        if ranks is not None and len(ranks) > 1:
            yield _difference(timeline, name, ranks, len(items))


def _ranks_by_value(name: str, groups: Grouped) -> dict[str, list[int]] | None:
    """Return the ranks of each value, both in order; None if a rank could not read its value."""
    ranks: dict[str, list[int]] = {}
    for own, same in groups:
        value = own.get(name, NONE)
        if isinstance(value, list):
            return None
        with_value = ranks.setdefault(str(value), [])
        with_value.extend(same)
    for same in ranks.values():
        same.sort()
    return ranks


def _difference(
    timeline: Timeline, name: str, ranks: Mapping[str, list[int]], world: int
) -> Difference:
    """Return the difference in one name. `ranks` has the ranks of each value, in order."""

    def order_of_value(value: str) -> tuple[int, int]:
        """The usual value first; of two that are as frequent, the one that the lower rank has."""
        with_value = ranks[value]
        return -len(with_value), with_value[0]

    order = sorted(ranks, key=order_of_value)
    unusual = order
    usual = ranks[order[0]]
    if 2 * len(usual) > world:
        unusual = order[1:]
    minority: set[str] = set()
    for value in unusual:
        minority.update(timeline.nodes_of(ranks[value]))
    ordered = {value: tuple(ranks[value]) for value in order}
    return Difference(name, ordered, frozenset(minority))


def _equal_items(items: Mapping[int, Items]) -> Grouped:
    """Group ranks that have exactly the same: on a sound cluster that is one group."""
    groups: dict[object, tuple[Items, list[int]]] = {}
    keys: dict[int, object] = {}  # by the object, which many ranks share
    for rank, own in items.items():
        if id(own) not in keys:
            keys[id(own)] = _key_of_items(own)
        _, ranks = groups.setdefault(keys[id(own)], (own, []))
        ranks.append(rank)
    return list(groups.values())


def _key_of_items(items: Items) -> object:
    try:
        key = frozenset(items.items())
        hash(key)
    except TypeError:  # a file that cannot be read is a list
        return repr(sorted(items.items(), key=str))
    return key


def _unread(
    timeline: Timeline, complete: Mapping[int, Parts], severity: Severity
) -> Iterable[Finding]:
    """Yield files that should be the same and that some rank could not read, or no rank has."""
    for path in timeline.plan.same_files:
        values: dict[int, Any] = {}
        reasons: dict[int, Any] = {}
        for rank, parts in complete.items():
            value = parts["files"].get(path, NONE)
            values[rank] = value
            if isinstance(value, list) and value:
                reasons[rank] = value[0]
        if reasons:
            why = next(iter(reasons.values()))
            yield _unread_finding(
                timeline,
                path,
                reasons,
                why,
                severity,
            )
        elif _is_missing_everywhere(values.values()):
            why = "there is no such file on any rank"
            yield _unread_finding(
                timeline,
                path,
                values,
                why,
                severity,
            )


def _is_missing_everywhere(values: Iterable[Any]) -> bool:
    different = set(map(str, values))
    return len(different) == 1 and "no such file" in different.pop()


def _unread_finding(
    timeline: Timeline, path: str, ranks: Iterable[int], why: str, severity: Severity
) -> Finding:
    numbers = tuple(ranks)
    nodes = timeline.nodes_of(numbers)
    folded = fold_numbers(numbers)
    message = f"rank {folded} cannot read {path}: {why}"
    reason = f"{path}: {why}"
    return Finding(
        check=NAME,
        verdict="unknown",
        severity=severity,
        nodes=nodes,
        message=message,
        wanted=WANTED,
        reason=reason,
    )


def _values_words(difference: Difference) -> str:
    """Return a text such as "numpy: 1.26.4 on rank [0-5], 2.1.0 on rank [6-7]"."""
    parts: list[str] = []
    for value, ranks in difference.ranks.items():
        folded = fold_numbers(ranks)
        parts.append(f"{_shortened(value)} on rank {folded}")
    return f"{difference.name}: {', '.join(parts)}"


def _shortened(value: str) -> str:
    if len(value) <= WIDTH:
        return value
    return f"{value[: WIDTH - 1]}…"


def _summary(complete: Mapping[int, Parts]) -> str:
    parts = next(iter(complete.values()))
    equal = f"{pluralize(len(parts['packages']), 'package')}, environment"
    if parts["files"]:
        equal += f", {pluralize(len(parts['files']), 'file')}"
    return f"{pluralize(len(complete), 'rank')} with the same interpreter, {equal}"
