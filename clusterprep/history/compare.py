"""What turned between two runs: checks that fail by now or no more, facts, environment, bandwidth. Pure."""

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

# How bad an answer is: what grows is new. A silenced finding that counts by now is new as well.
_WELL, _SILENCED, _UNKNOWN, _FAIL = range(4)
_LONGEST = 200  # characters of one value; a longer one is told by its beginning
_CUT = 40  # differences within one fact of one kind of nodes

# Facts that measure what moves by itself: times, loads, temperatures, counters, who is there at the moment.
MOVING = frozenset(
    {
        "clock.offset", "counters.earlier", "fs.probes", "gpu.heat", "gpu.latency", "gpu.throttle", "gpu.use",
        "host.uptime", "ib.counters", "irq.counts", "log.records", "mem.swaps", "net.dials", "net.listen", "proc.ids",
        "proc.load", "proc.tasks", "shm.segments", "shm.space", "store.results",
    }
)  # fmt: skip

Bad = dict[str, dict[str, int]]  # check → node → how bad


def since(run: RecordedRun, before: Report, findings: Sequence[Finding]) -> Since:
    """What turned since `before`, of which findings and nodes are known."""
    new, fixed = turns(before, findings)
    return Since(run.run, run.started, new, fixed)


def turns(before: Report, findings: Sequence[Finding]) -> tuple[tuple[Turn, ...], tuple[Turn, ...]]:
    """The findings that are new, and those that are gone: among nodes and checks that both runs judged.

    New is what got worse: it fails, or it is not known and was. Gone is what passes by now.
    """
    past, judged = _bad(before.findings or ()), {finding.check for finding in before.findings or ()}
    there = {node.node for node in before.nodes or () if node.reached}
    known = there | {node.node for node in before.nodes or ()}
    new: dict[tuple[str, str, str], dict[str, None]] = {}
    fixed: dict[tuple[str, str, str], dict[str, None]] = {}
    for finding in findings:
        was = past.get(finding.check, {})
        if finding.check not in judged or finding.fixed:
            continue
        key = (finding.check, finding.verdict, finding.severity)
        if finding.verdict == "pass":
            if gone := [node for node in finding.nodes if was.get(node, _WELL) >= _UNKNOWN]:
                fixed.setdefault(key, {}).update(dict.fromkeys(gone))
        elif (grade := _grade(finding)) >= _UNKNOWN:
            able = (
                known if finding.check == "ssh.reach" else there
            )  # of a node that was not reached nothing else is told
            if worse := [
                node for node in finding.nodes if node in able and was.get(node, _WELL) < grade
            ]:
                new.setdefault(key, {}).update(dict.fromkeys(worse))
    return _as_turns(new), _as_turns(fixed)


def _as_turns(found: Mapping[tuple[str, str, str], Mapping[str, None]]) -> tuple[Turn, ...]:
    rows = [Turn(*key, tuple(nodes)) for key, nodes in found.items()]
    return tuple(
        sorted(
            rows, key=lambda turn: (turn.severity != "error", turn.verdict != "fail", turn.check)
        )
    )


def _bad(findings: Iterable[Finding]) -> Bad:
    found: Bad = {}
    for finding in findings:
        if not finding.fixed and (grade := _grade(finding)) > _WELL:
            nodes = found.setdefault(finding.check, {})
            nodes.update((node, max(grade, nodes.get(node, _WELL))) for node in finding.nodes)
    return found


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
    """The run to compare with, of runs newest first: one that judged the same of as many nodes, else the nearest."""
    wide = [run for run, judged in runs if checks <= judged]
    large = [run for run in wide if run.reached >= nodes]
    alike = [run for run, judged in runs if run.command == command and checks & judged]
    return next(iter((*large, *wide, *alike)), None)


# ---------------------------------------------------------------- two runs


def compare(
    before: tuple[RecordedRun, Report],
    after: tuple[RecordedRun, Report],
    facts: Iterable[FactChange],
    beside: Sequence[str] = (),
) -> Comparison:
    """Everything that differs between two runs. `facts` are their differences by `fact_changes`."""
    (earlier, old), (later, now) = before, after
    new, fixed = turns(old, now.findings or ())
    then, by_now = ({node.node: None for node in report.nodes or ()} for report in (old, now))
    return Comparison(
        before=earlier,
        after=later,
        new=new,
        fixed=fixed,
        facts=tuple(sorted(facts, key=lambda change: (change.fact, change.key))),
        env=tuple(_env_changes(old.env, now.env)),
        speeds=tuple(_speeds(old, now)),
        came=tuple(node for node in by_now if node not in then),
        went=tuple(node for node in then if node not in by_now),
        beside=tuple(beside),
    )


def fact_changes(
    fact: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[FactChange]:
    """How one fact differs on the nodes that have it in both runs; equal differences are one row.

    Values are JSON or Absent, and equal ones may be one object: what differs is worked out once for each pair.
    """
    known: dict[tuple[int, int], tuple[tuple[str, str, str], ...]] = {}
    rows: dict[tuple[str, str, str], list[str]] = {}
    for node, new in after.items():
        if node not in before or (old := before[node]) is new:
            continue
        pair = (id(old), id(new))
        if pair not in known:
            known[pair] = tuple(_leaves(old, new))
        for row in known[pair]:
            rows.setdefault(row, []).append(node)
    for (key, was, now), nodes in rows.items():
        yield FactChange(fact, key, json.loads(was), json.loads(now), tuple(nodes))


def _leaves(old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    """Where two values differ: the way there, and both as text."""
    found = _differences("", _json(old), _json(new))
    for number, (key, was, now) in enumerate(found):
        if number == _CUT:
            yield "…", json.dumps("more"), json.dumps("more")
            return
        yield key, json.dumps(_short(was)), json.dumps(_short(now))


def _differences(key: str, old: Json, new: Json) -> Iterator[tuple[str, Json, Json]]:
    if old == new:
        return
    if (
        isinstance(old, dict)
        and isinstance(new, dict)
        and "absent" not in old
        and "absent" not in new
    ):
        for name in dict.fromkeys((*old, *new)):
            yield from _differences(f"{key}.{name}".lstrip("."), old.get(name), new.get(name))
    elif (
        isinstance(old, list)
        and isinstance(new, list)
        and len(old) == len(new)
        and any(map(_nested, (*old, *new)))
    ):
        for place, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from _differences(f"{key}[{place}]", was, now)
    else:
        yield key, old, new


def _nested(value: Json) -> bool:
    return isinstance(value, (dict, list))


def _json(value: Any) -> Json:
    return {"absent": value.reason} if isinstance(value, Absent) else value


def _short(value: Json) -> Json:
    text = json.dumps(value)
    return value if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _env_changes(
    old: tuple[EnvValue, ...] | None, new: tuple[EnvValue, ...] | None
) -> Iterator[EnvChange]:
    """Where both runs worked out the environment: values by node, for nodes that both have."""
    if old is None or new is None:
        return
    was, now = _by_name(old), _by_name(new)
    both = {node for values in was.values() for node in values} & {
        node for values in now.values() for node in values
    }
    for name in sorted({*was, *now}):
        rows: dict[tuple[str | None, str | None], list[str]] = {}
        for node in (
            *now.get(name, {}),
            *(node for node in was.get(name, {}) if node not in now.get(name, {})),
        ):
            pair = (was.get(name, {}).get(node), now.get(name, {}).get(node))
            if node in both and pair[0] != pair[1]:
                rows.setdefault(pair, []).append(node)
        yield from (EnvChange(name, *pair, tuple(nodes)) for pair, nodes in rows.items())


def _by_name(values: Iterable[EnvValue]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for value in values:
        found.setdefault(value.name, {}).update(dict.fromkeys(value.nodes, value.value))
    return found


def _speeds(old: Report, new: Report) -> Iterator[SpeedChange]:
    """Of the same collective at the same size, where the same number of ranks ran it."""
    if old.verify is None or new.verify is None or old.verify.world_size != new.verify.world_size:
        return
    was = {(row.op, row.dtype, row.bytes): row.busbw_gbs for row in old.verify.collectives}
    for row in new.verify.collectives:
        key = (row.op, row.dtype, row.bytes)
        if key in was and row.bytes >= 1 << 20:  # below that it is latency that decides
            yield SpeedChange(*key, was[key], row.busbw_gbs)
