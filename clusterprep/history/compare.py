"""What changed between two runs: verdicts of checks, facts, environment, bandwidth. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from clusterprep.model import Absent, EnvValue, Finding, Json, Report
from clusterprep.model.history import (
    Comparison,
    EnvChange,
    FactChange,
    RecordedRun,
    Since,
    SpeedChange,
    Turn,
)

# How bad an answer is. A finding is new if it got worse, also if it was silenced and now counts.
_WELL, _SILENCED, _UNKNOWN, _FAIL = range(4)
_LONGEST = 200  # characters of a value; of a longer one the beginning is shown
_MOST_DIFFERENCES = 40  # within one fact of one group of nodes

Grades = dict[str, dict[str, int]]  # check → node → how bad
Key = tuple[str, str, str]  # check, verdict, severity


def since(run: RecordedRun, before: Report, findings: Sequence[Finding]) -> Since:
    """Return what changed since `before`, the report of `run`."""
    new, fixed = turns(before, findings)
    return Since(run.run, run.started, new, fixed)


def turns(before: Report, findings: Sequence[Finding]) -> tuple[tuple[Turn, ...], tuple[Turn, ...]]:
    """Return the new and the fixed findings, among nodes and checks that both runs judged.

    New is what got worse: it fails, or is unknown and was known. Fixed is what passes now.
    """
    grades = _grades(before.findings or ())
    judged = {finding.check for finding in before.findings or ()}
    known = {snapshot.node for snapshot in before.nodes or ()}
    reached = {snapshot.node for snapshot in before.nodes or () if snapshot.reached}
    new: dict[Key, dict[str, None]] = {}
    fixed: dict[Key, dict[str, None]] = {}
    for finding in findings:
        if finding.check not in judged or finding.fixed:
            continue
        old = grades.get(finding.check, {})
        key = (finding.check, finding.verdict, finding.severity)
        # Of a node that was not reached nothing was judged but that.
        comparable = known if finding.check == "ssh.reach" else reached
        grade = _grade(finding)
        for node in finding.nodes:
            old_grade = old.get(node, _WELL)
            if finding.verdict == "pass" and old_grade >= _UNKNOWN:
                fixed.setdefault(key, {})[node] = None
            is_worse = grade >= _UNKNOWN and grade > old_grade
            if is_worse and node in comparable:
                new.setdefault(key, {})[node] = None
    return _as_turns(new), _as_turns(fixed)


def _as_turns(nodes_by_key: Mapping[Key, Mapping[str, None]]) -> tuple[Turn, ...]:
    def order(turn: Turn) -> tuple[bool, bool, str]:
        return turn.severity != "error", turn.verdict != "fail", turn.check

    rows = [Turn(*key, tuple(nodes)) for key, nodes in nodes_by_key.items()]
    return tuple(sorted(rows, key=order))


def _grades(findings: Iterable[Finding]) -> Grades:
    grades: Grades = {}
    for finding in findings:
        grade = _grade(finding)
        if finding.fixed or grade == _WELL:
            continue
        nodes = grades.setdefault(finding.check, {})
        for node in finding.nodes:
            nodes[node] = max(grade, nodes.get(node, _WELL))
    return grades


def _grade(finding: Finding) -> int:
    if finding.verdict in ("pass", "skip"):
        return _WELL
    if finding.silenced is not None:
        return _SILENCED
    return _FAIL if finding.verdict == "fail" else _UNKNOWN


def best(
    runs: Sequence[tuple[RecordedRun, frozenset[str]]],
    command: str,
    checks: frozenset[str],
    nodes: int,
) -> RecordedRun | None:
    """Return the run to compare with, of `runs` with their checks, the newest first; None of none.

    Preferred is a run that judged the same checks and reached as many nodes, then one that judged
    the same checks, then one of the same command that shares some.
    """
    same_checks = [run for run, judged in runs if checks <= judged]
    as_large = [run for run in same_checks if run.reached >= nodes]
    similar = [run for run, judged in runs if run.command == command and checks & judged]
    candidates = [*as_large, *same_checks, *similar]
    return candidates[0] if candidates else None


# ---------------------------------------------------------------- two runs


def compare(
    before: tuple[RecordedRun, Report],
    after: tuple[RecordedRun, Report],
    facts: Iterable[FactChange],
    beside: Sequence[str] = (),
) -> Comparison:
    """Return everything that differs between two runs; `facts` comes from `fact_changes`."""
    old_run, old = before
    new_run, new = after
    new_findings, fixed = turns(old, new.findings or ())
    old_nodes = [snapshot.node for snapshot in old.nodes or ()]
    new_nodes = [snapshot.node for snapshot in new.nodes or ()]
    in_old, in_new = set(old_nodes), set(new_nodes)
    return Comparison(
        before=old_run,
        after=new_run,
        new=new_findings,
        fixed=fixed,
        facts=tuple(sorted(facts, key=lambda change: (change.fact, change.key))),
        env=tuple(_env_changes(old.env, new.env)),
        speeds=tuple(_speeds(old, new)),
        came=tuple(node for node in dict.fromkeys(new_nodes) if node not in in_old),
        went=tuple(node for node in dict.fromkeys(old_nodes) if node not in in_new),
        beside=tuple(beside),
    )


def fact_changes(
    fact: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[FactChange]:
    """Yield how one fact differs on nodes that have it in both runs; equal differences are one row.

    Values are JSON or Absent. Equal values may be one object, so the difference of two objects is
    computed once.
    """
    computed: dict[tuple[int, int], tuple[tuple[str, str, str], ...]] = {}
    rows: dict[tuple[str, str, str], list[str]] = {}
    for node, new in after.items():
        if node not in before:
            continue
        old = before[node]
        if old is new:
            continue
        pair = (id(old), id(new))
        if pair not in computed:
            computed[pair] = tuple(_leaves(old, new))
        for row in computed[pair]:
            rows.setdefault(row, []).append(node)
    for (key, old_text, new_text), nodes in rows.items():
        yield FactChange(fact, key, json.loads(old_text), json.loads(new_text), tuple(nodes))


def _leaves(old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    """Yield where two values differ: the path, and both as JSON text."""
    differences = _differences("", _json(old), _json(new))
    for number, (key, old_part, new_part) in enumerate(differences):
        if number == _MOST_DIFFERENCES:
            more = json.dumps("more")
            yield "…", more, more
            return
        yield key, json.dumps(_short(old_part)), json.dumps(_short(new_part))


def _differences(key: str, old: Json, new: Json) -> Iterator[tuple[str, Json, Json]]:
    if old == new:
        return
    if _is_object(old) and _is_object(new):
        for name in dict.fromkeys((*old, *new)):
            path = f"{key}.{name}".lstrip(".")
            yield from _differences(path, old.get(name), new.get(name))
    elif _are_alike_lists(old, new):
        for place, (old_item, new_item) in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{key}[{place}]", old_item, new_item)
    else:
        yield key, old, new


def _is_object(value: Json) -> bool:
    return isinstance(value, dict) and "absent" not in value


def _are_alike_lists(old: Json, new: Json) -> bool:
    """Return whether both are lists of one length with objects or lists in them."""
    if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(new):
        return False
    return any(isinstance(item, (dict, list)) for item in (*old, *new))


def _json(value: Any) -> Json:
    return {"absent": value.reason} if isinstance(value, Absent) else value


def _short(value: Json) -> Json:
    text = json.dumps(value)
    if len(text) <= _LONGEST:
        return value
    return f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _env_changes(
    old: tuple[EnvValue, ...] | None, new: tuple[EnvValue, ...] | None
) -> Iterator[EnvChange]:
    """Yield the changed variables, of nodes that have an environment in both runs."""
    if old is None or new is None:
        return
    old_values, new_values = _by_name(old), _by_name(new)
    both = _nodes_of(old_values) & _nodes_of(new_values)
    for name in sorted({*old_values, *new_values}):
        old_by_node = old_values.get(name, {})
        new_by_node = new_values.get(name, {})
        rows: dict[tuple[str | None, str | None], list[str]] = {}
        for node in dict.fromkeys((*new_by_node, *old_by_node)):
            pair = (old_by_node.get(node), new_by_node.get(node))
            if node in both and pair[0] != pair[1]:
                rows.setdefault(pair, []).append(node)
        for (old_value, new_value), nodes in rows.items():
            yield EnvChange(name, old_value, new_value, tuple(nodes))


def _by_name(values: Iterable[EnvValue]) -> dict[str, dict[str, str]]:
    """Return name → node → value."""
    by_name: dict[str, dict[str, str]] = {}
    for value in values:
        nodes = by_name.setdefault(value.name, {})
        nodes.update(dict.fromkeys(value.nodes, value.value))
    return by_name


def _nodes_of(values: Mapping[str, Mapping[str, str]]) -> set[str]:
    nodes: set[str] = set()
    for by_node in values.values():
        nodes.update(by_node)
    return nodes


def _speeds(old: Report, new: Report) -> Iterator[SpeedChange]:
    """Yield the bandwidth of each collective that both runs timed, with as many ranks."""
    if old.verify is None or new.verify is None:
        return
    if old.verify.world_size != new.verify.world_size:
        return
    old_speeds = {}
    for row in old.verify.collectives:
        old_speeds[row.op, row.dtype, row.bytes] = row.busbw_gbs
    for row in new.verify.collectives:
        key = (row.op, row.dtype, row.bytes)
        # Below 1 MiB the latency decides, not the bandwidth.
        if key in old_speeds and row.bytes >= 1 << 20:
            yield SpeedChange(*key, old_speeds[key], row.busbw_gbs)
