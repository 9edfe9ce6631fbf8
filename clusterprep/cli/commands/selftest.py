"""Shows that every check fires: on recorded healthy machines one fact after the other is turned bad.

A check that cannot fail is worse than none. Each carries its `proof`; a check without one fails here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib import resources
from typing import Any

from clusterprep.checks import Check, Proof
from clusterprep.facts.counters import EARLIER, IB, Earlier, Sample
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Absent, Finding, Fleet, NodeSnapshot, Report
from clusterprep.remote.transports.replay import ReplayTransport
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.judge import judge
from clusterprep.survey.port_matrix import probe_pairs
from clusterprep.survey.queries import plan_queries

VICTIM = 1  # position of the node whose fact is turned bad: not the rendezvous host, and one of a majority
WANTED = "this check fires on that node, and no other check"

Verdicts = dict[tuple[str, str], set[str]]  # by check and node


class _Quiet:
    """Nobody watches: it takes a second or two."""

    def stage(self, name: str, total: int, nodes: Sequence[str] = ()) -> None: ...
    def step(self, node: str, outcome: str, seconds: float | None = None) -> None: ...


def selftest(checks: Mapping[str, Check] | None = None) -> Report:
    """One finding per check: passed where its proof made it fire, and it alone."""
    clock = time.monotonic()
    chosen = list((registry.checks() if checks is None else checks).values())
    names = sorted({check.proof.fleet for check in chosen if check.proof})
    fleets = {name: recorded_fleet(name, chosen) for name in names}
    findings = tuple(
        finding for name in [*names, None] for finding in _proved(name, fleets, chosen)
    )
    bad = sum(finding.verdict == "fail" for finding in findings)
    counted = f"{len(findings) - bad} of {len(findings)} checks fire on their fault"
    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    return Report(
        command="selftest",
        run="",
        cluster=", ".join(names),
        started=now,
        seconds=round(time.monotonic() - clock, 3),
        verdict="fail" if bad else "pass",
        code=1 if bad else 0,
        findings=tuple(sorted(findings, key=lambda finding: finding.check)),
        notices=(counted,),
    )


def recorded_fleet(name: str, checks: Sequence[Check]) -> Fleet:
    """A recorded fleet, asked as real nodes are, over a transport that plays the recording."""
    plan = plan_queries(checks, registry.facts())
    with _files(name) as (inventory_file, recording):
        inventory = load_inventory(inventory_file)
    transports = dict.fromkeys(("ssh", "local"), ReplayTransport(recording))
    with Fanout(inventory, transports, 64, lambda node: None, _Quiet()) as fanout:
        fleet = fanout.survey(plan)
        fleet = (
            probe_pairs(fanout, fleet, inventory.nodes[0].name) if "pairs" in plan.stages else fleet
        )
        return with_past(fleet) if "history" in plan.stages else fleet


def with_past(fleet: Fleet) -> Fleet:
    """As if there had been a run an hour ago, and nothing had been counted since."""
    snapshots = dict(fleet.snapshots)
    for node in fleet.reached:
        counters = fleet.fact(node.name, IB.name)
        sample = Sample(3600.0, {} if isinstance(counters, Absent) else counters)
        snapshots[node.name] = _with(snapshots[node.name], EARLIER.name, Earlier(sample, sample))
    return dataclasses.replace(fleet, snapshots=snapshots)


@contextlib.contextmanager
def _files(name: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    folder = resources.files("clusterprep").joinpath("data/fleets")
    packed = folder.joinpath(f"{name}.json.gz").read_bytes()
    with resources.as_file(folder.joinpath(f"{name}.yaml")) as inventory:
        yield inventory, unpacked(json.loads(gzip.decompress(packed)))


def unpacked(recording: Mapping[str, Any]) -> dict[str, Any]:
    """The recording of every node: what the first one answers, and what the others answer differently."""
    base = recording["base"]
    return {
        name: {**base, **own, "answers": {**base["answers"], **own.get("answers", {})}}
        for name, own in recording["nodes"].items()
    }


def packed(recording: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The inverse: equal answers are kept once."""
    base = dict(next(iter(recording.values())))
    nodes = {}
    for name, node in recording.items():
        own = {
            key: value for key, value in node.items() if key != "answers" and value != base.get(key)
        }
        answers = {
            key: value
            for key, value in node["answers"].items()
            if value != base["answers"].get(key)
        }
        nodes[name] = {**own, "answers": answers}
    return {"base": base, "nodes": nodes}


def _proved(
    name: str | None, fleets: Mapping[str, Fleet], checks: Sequence[Check]
) -> Iterable[Finding]:
    """The checks whose proof is about this fleet; with None those that have no proof."""
    mine = [check for check in checks if (check.proof.fleet if check.proof else None) == name]
    if name is None:
        yield from (
            _finding(check, "there is no proof that this check can fail", "no proof", ())
            for check in mine
        )
        return
    healthy = _verdicts(fleets[name], checks)
    for check in mine:
        if check.proof is not None:
            yield prove(check, check.proof, fleets[name], healthy, checks)


def prove(
    check: Check, proof: Proof, fleet: Fleet, healthy: Verdicts, checks: Sequence[Check]
) -> Finding:
    """Turn the fact bad and see which checks answer otherwise than on the healthy fleet."""
    victim = fleet.inventory.nodes[min(VICTIM, len(fleet.inventory.nodes) - 1)].name
    if "fail" in healthy.get((check.name, victim), ()) or not healthy.get((check.name, victim)):
        said = " and ".join(sorted(healthy.get((check.name, victim), {"nothing"})))
        return _finding(
            check, f"on the healthy {proof.fleet} this check says {said}", said, (victim,)
        )
    sick = turned_bad(fleet, victim, proof)
    if isinstance(sick, Absent):
        message = f"the recorded fleet {proof.fleet} has no {proof.fact}: {sick.reason} {sick.detail}".rstrip()
        return _finding(check, message, sick.reason, (victim,))
    now = _verdicts(sick, checks)
    if proof.verdict not in now.get((check.name, victim), set()) - healthy[check.name, victim]:
        said = " and ".join(sorted(now.get((check.name, victim), {"nothing"})))
        return _finding(
            check, "the fact was turned bad and this check did not fire", said, (victim,)
        )
    also = sorted(
        {name for name, node in now if "fail" in now[name, node] - healthy.get((name, node), set())}
    )
    others = [name for name in also if name != check.name]
    if others:
        return _finding(check, "other checks fire on the same fault", ", ".join(others), (victim,))
    fact = proof.fact or "the node"
    return _finding(
        check,
        f"fires when {fact} is turned bad",
        f"{proof.verdict} of this check alone",
        (victim,),
        "pass",
    )


def turned_bad(fleet: Fleet, victim: str, proof: Proof) -> Fleet | Absent:
    """The fleet with one fact of one node turned bad; Absent where there is no such fact."""
    if not proof.fact:
        alone = {victim: proof.turn(fleet.snapshots[victim])}
        return dataclasses.replace(fleet, snapshots={**fleet.snapshots, **alone})
    before = fleet.fact(victim, proof.fact)
    if isinstance(before, Absent) and proof.verdict == "fail":
        return before
    if proof.between:
        facts = {
            node.name: proof.turn(fleet.fact(node.name, proof.fact), victim)
            for node in fleet.reached
        }
    else:
        facts = {victim: proof.turn(before)}
    changed = {
        name: _with(fleet.snapshots[name], proof.fact, value) for name, value in facts.items()
    }
    return dataclasses.replace(fleet, snapshots={**fleet.snapshots, **changed})


def _with(snapshot: NodeSnapshot, fact: str, value: Any) -> NodeSnapshot:
    return dataclasses.replace(snapshot, facts={**snapshot.facts, fact: value})


def _verdicts(fleet: Fleet, checks: Sequence[Check]) -> Verdicts:
    said: Verdicts = {}
    for finding in judge(fleet, checks, datetime.now(timezone.utc).date()):
        for node in finding.nodes:
            said.setdefault((finding.check, node), set()).add(finding.verdict)
    return said


def _finding(
    check: Check, message: str, seen: str, nodes: tuple[str, ...], verdict: str = "fail"
) -> Finding:
    remedy = (
        ""
        if verdict == "pass"
        else f"clusterprep explain {check.name}; this is a bug of clusterprep: report it"
    )
    return Finding(
        check.name,
        "pass" if verdict == "pass" else "fail",
        "error",
        nodes,
        message,
        seen,
        WANTED,
        remedy,
    )
