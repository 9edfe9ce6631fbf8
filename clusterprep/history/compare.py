"""What changed between two runs: verdicts of checks, facts, environment, bandwidth. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.history.parts import without_swaps
from clusterprep.model import Absent, EnvValue, Finding, Json, Report
from clusterprep.model.history import (
    Comparison,
    EnvChange,
    FactChange,
    PartMove,
    RecordedRun,
    Since,
    SpeedChange,
    Turn,
)

# How bad an answer is. A finding is new if it got worse, also if it was silenced and now counts.
_WELL, _SILENCED, _UNKNOWN, _FAIL = range(4)
_LONGEST = 200  # characters of a value; of a longer one the beginning is shown
_MOST_DIFFERENCES = 40  # within one fact of one group of nodes
# Bytes of a collective. Below 1 MiB the latency decides, not the bandwidth.
_LEAST_BYTES = 1 << 20

Grades = dict[str, dict[str, int]]  # check → node → how bad
Key = tuple[str, str, str]  # check, verdict, severity
NodesByKey = dict[Key, dict[str, None]]  # each value is an ordered set of nodes
Row = tuple[str, str, str]  # path of a difference, old and new value as JSON text


def since(run: RecordedRun, before: Report, findings: Sequence[Finding]) -> Since:
    """Return what changed since `before`, the report of `run`."""
    new, fixed = turns(before, findings)
    return Since(run.run, run.started, new, fixed)


def turns(before: Report, findings: Sequence[Finding]) -> tuple[tuple[Turn, ...], tuple[Turn, ...]]:
    """Return the new and the fixed findings, among nodes and checks that both runs judged.

    New is what got worse: it fails, or is unknown and was known. Fixed is what passes now. What
    follows from another finding is left to that one.
    """
    earlier = _earlier_look(before)
    new: NodesByKey = {}
    fixed: NodesByKey = {}
    for finding in findings:
        if finding.check not in earlier.judged or finding.fixed:
            continue
        if finding.verdict == "pass":
            _add_nodes(fixed, finding, _nodes_fixed(finding, earlier))
        elif not finding.because:
            _add_nodes(new, finding, _nodes_worse(finding, earlier))
    return _as_turns(new), _as_turns(fixed)


class _EarlierLook(Struct, frozen=True):
    """What an earlier run knew: the checks it judged, its nodes, and how bad answers were.

    `grades_of_causes` leaves out what followed from other findings.
    """

    judged: frozenset[str]
    known: frozenset[str]
    reached: frozenset[str]
    grades: Grades
    grades_of_causes: Grades


def _earlier_look(report: Report) -> _EarlierLook:
    findings = report.findings or ()
    nodes = report.nodes or ()
    return _EarlierLook(
        judged=frozenset(finding.check for finding in findings),
        known=frozenset(snapshot.node for snapshot in nodes),
        reached=frozenset(snapshot.node for snapshot in nodes if snapshot.reached),
        grades=_grades(findings),
        grades_of_causes=_grades(finding for finding in findings if not finding.because),
    )


def _nodes_fixed(finding: Finding, earlier: _EarlierLook) -> list[str]:
    """Return the nodes of a pass on which the check did not pass before."""
    grades = earlier.grades_of_causes.get(finding.check, {})
    not_well = {node for node, grade in grades.items() if grade >= _UNKNOWN}
    if not not_well:
        return []
    return [node for node in finding.nodes if node in not_well]


def _nodes_worse(finding: Finding, earlier: _EarlierLook) -> list[str]:
    """Return the nodes of a finding that the earlier run knew, and knew as better."""
    grade = _grade(finding)
    if grade < _UNKNOWN:
        return []
    # Of a node that was not reached only the check ssh.reach was judged.
    comparable = earlier.known if finding.check == "ssh.reach" else earlier.reached
    grades = earlier.grades.get(finding.check, {})
    worse = []
    for node in finding.nodes:
        if node in comparable and grade > grades.get(node, _WELL):
            worse.append(node)
    return worse


def _add_nodes(nodes_by_key: NodesByKey, finding: Finding, nodes: Iterable[str]) -> None:
    """Add nodes under the key of a finding; without nodes there will be no key."""
    key = (finding.check, finding.verdict, finding.severity)
    for node in nodes:
        nodes_by_key.setdefault(key, {})[node] = None


def _as_turns(nodes_by_key: NodesByKey) -> tuple[Turn, ...]:
    """Return a Turn for each key, the most important first."""
    turned = []
    for (check, verdict, severity), nodes in nodes_by_key.items():
        turned.append(Turn(check, verdict, severity, tuple(nodes)))
    turned.sort(key=_importance)
    return tuple(turned)


def _importance(turn: Turn) -> tuple[bool, bool, str]:
    """Return the key that sorts errors first, then failures, then by check."""
    is_error = turn.severity == "error"
    is_failure = turn.verdict == "fail"
    return not is_error, not is_failure, turn.check


def _grades(findings: Iterable[Finding]) -> Grades:
    """Return how bad the worst finding of each check is on each node; all others are well."""
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
    for run in same_checks:
        if run.reached >= nodes:
            return run
    if same_checks:
        return same_checks[0]
    for run, judged in runs:
        if run.command == command and not checks.isdisjoint(judged):
            return run
    return None


# ---------------------------------------------------------------- two runs


def compare(
    before: tuple[RecordedRun, Report],
    after: tuple[RecordedRun, Report],
    facts: Iterable[FactChange],
    beside: Sequence[str] = (),
    parts: Sequence[PartMove] = (),
) -> Comparison:
    """Return everything that differs between two runs.

    `facts` comes from `fact_changes`, `parts` from `parts.moves`. A part that is in the place of
    another one is told by its moves alone.
    """
    old_run, old = before
    new_run, new = after
    new_findings, fixed = turns(old, new.findings or ())
    other_facts = without_swaps(facts, parts)
    sorted_facts = sorted(other_facts, key=lambda change: (change.fact, change.key))
    env = _env_changes(old.env, new.env)
    speeds = _speeds(old, new)
    return Comparison(
        before=old_run,
        after=new_run,
        new=new_findings,
        fixed=fixed,
        facts=tuple(sorted_facts),
        env=tuple(env),
        speeds=tuple(speeds),
        came=_missing_nodes(old, new),
        went=_missing_nodes(new, old),
        parts=tuple(parts),
        beside=tuple(beside),
    )


def _missing_nodes(report: Report, other: Report) -> tuple[str, ...]:
    """Return the nodes of the other report that `report` does not have, in their order."""
    known = {snapshot.node for snapshot in report.nodes or ()}
    missing: dict[str, None] = {}  # an ordered set
    for snapshot in other.nodes or ():
        if snapshot.node not in known:
            missing[snapshot.node] = None
    return tuple(missing)


def fact_changes(
    fact: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[FactChange]:
    """Yield how one fact differs on nodes that have it in both runs; equal differences are one row.

    Values are JSON or Absent. Equal values may be one object, so the difference of two objects is
    computed once.
    """
    rows_by_pair: dict[tuple[int, int], tuple[Row, ...]] = {}
    nodes_by_row: dict[Row, list[str]] = {}
    for node, new in after.items():
        if node not in before or before[node] is new:
            continue
        old = before[node]
        pair = (id(old), id(new))
        if pair not in rows_by_pair:
            rows_by_pair[pair] = tuple(_leaves(old, new))
        for row in rows_by_pair[pair]:
            nodes_by_row.setdefault(row, []).append(node)
    for (key, old_text, new_text), nodes in nodes_by_row.items():
        old_value = json.loads(old_text)
        new_value = json.loads(new_text)
        yield FactChange(
            fact,
            key,
            old_value,
            new_value,
            tuple(nodes),
        )


def _leaves(old: Any, new: Any) -> Iterator[Row]:
    """Yield where two values differ: the path, and both as JSON text."""
    differences = _differences("", _json(old), _json(new))
    for key, old_part, new_part in itertools.islice(differences, _MOST_DIFFERENCES):
        yield key, _short_text(old_part), _short_text(new_part)
    if next(differences, None) is not None:
        more = json.dumps("more")
        yield "…", more, more


def _differences(key: str, old: Json, new: Json) -> Iterator[tuple[str, Json, Json]]:
    """Yield path, old and new part wherever two values differ; `key` is the path of the values."""
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
    if not isinstance(old, list) or not isinstance(new, list):
        return False
    if len(old) != len(new):
        return False
    return any(isinstance(item, (dict, list)) for item in (*old, *new))


def _json(value: Any) -> Json:
    return {"absent": value.reason} if isinstance(value, Absent) else value


def _short_text(value: Json) -> str:
    """Return a value as JSON text; a long value as a JSON string with its beginning."""
    text = json.dumps(value)
    if len(text) <= _LONGEST:
        return text
    return json.dumps(f"{text[:_LONGEST]}… ({len(text):,} characters)")


def _env_changes(
    old: tuple[EnvValue, ...] | None, new: tuple[EnvValue, ...] | None
) -> Iterator[EnvChange]:
    """Yield the changed variables, of nodes that have an environment in both runs."""
    if old is None or new is None:
        return
    old_values = _values_by_name(old)
    new_values = _values_by_name(new)
    common_nodes = _nodes_of(old_values) & _nodes_of(new_values)
    for name in sorted({*old_values, *new_values}):
        old_by_node = old_values.get(name, {})
        new_by_node = new_values.get(name, {})
        changes = _changed_values(old_by_node, new_by_node, common_nodes)
        for (old_value, new_value), nodes in changes.items():
            yield EnvChange(name, old_value, new_value, tuple(nodes))


def _changed_values(
    old_by_node: Mapping[str, str], new_by_node: Mapping[str, str], among: set[str]
) -> dict[tuple[str | None, str | None], list[str]]:
    """Return (old value, new value) of a variable → the nodes on which it changed so.

    A value is None if the node does not have the variable. Other nodes than `among` do not count.
    """
    nodes_by_change: dict[tuple[str | None, str | None], list[str]] = {}
    nodes = dict.fromkeys((*new_by_node, *old_by_node))
    for node in nodes:
        if node not in among:
            continue
        change = (old_by_node.get(node), new_by_node.get(node))
        old_value, new_value = change
        if old_value != new_value:
            nodes_by_change.setdefault(change, []).append(node)
    return nodes_by_change


def _values_by_name(values: Iterable[EnvValue]) -> dict[str, dict[str, str]]:
    """Return name of a variable → node → value."""
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
        if row.bytes < _LEAST_BYTES:
            continue
        old_speed = old_speeds.get((row.op, row.dtype, row.bytes))
        if old_speed is not None:
            yield SpeedChange(
                row.op,
                row.dtype,
                row.bytes,
                old_speed,
                row.busbw_gbs,
            )
