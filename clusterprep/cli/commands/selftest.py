"""Show that every check fires, by turning facts of recorded healthy machines bad.

A check that cannot fail is worse than none. Each carries its `proof`; one without it fails here.
"""

from __future__ import annotations

import contextlib
import fnmatch
import gzip
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from clusterprep.checks import Check, Proof
from clusterprep.checks.stress import data_sheet
from clusterprep.cli.commands.report import new_report
from clusterprep.cli.exit_codes import FAILED, OK
from clusterprep.facts.counters import EARLIER, IB, Earlier, Sample
from clusterprep.facts.gpu import NVML, Gpu, Nvml
from clusterprep.facts.gpu_counters import COUNTERS as GPU_COUNTERS
from clusterprep.facts.pci import ERRORS
from clusterprep.facts.stress import (
    DIAGNOSTICS,
    RESULTS,
    DeviceResult,
    Diagnostics,
    DiagnosticTest,
    StressResults,
)
from clusterprep.history.certificate import with_certified
from clusterprep.inventory.load import load_inventory
from clusterprep.model import Absent, Finding, Fleet, Inventory, Json, Read, Report
from clusterprep.model.extensions import NO_EXTENSIONS, Extensions
from clusterprep.remedies import sentence, shell_line
from clusterprep.remote.transports.replay import ReplayTransport
from clusterprep.survey import registry
from clusterprep.survey.answers import parse_fact
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.judge import judge
from clusterprep.survey.port_matrix import probe_pairs
from clusterprep.survey.queries import plan_queries

# Position of the node whose fact is turned bad: not the rendezvous host, and one of a majority.
VICTIM = 1
WANTED = "this check fires on that node, and no other check"
FORKS = 64  # nodes at once; a recorded fleet is smaller
HOUR = 3600.0  # seconds

Verdicts = dict[tuple[str, str], set[str]]  # by check and node
Facts = dict[str, Any]  # by name


class _NoProgress:
    """Shows no progress, as a self-test takes a second or two."""

    def stage(self, name: str, total: int, nodes: Sequence[str] = ()) -> None: ...
    def step(self, node: str, outcome: str, seconds: float | None = None) -> None: ...


def selftest(
    checks: Mapping[str, Check] | None = None, extensions: Extensions = NO_EXTENSIONS
) -> Report:
    """Return a finding for each check; it passes if the check's proof makes this check alone fire.

    Without `checks` these are all of ours and those of the site's `extensions`.
    """
    began = time.monotonic()
    if checks is None:
        checks = registry.extended(extensions).checks
    chosen = list(checks.values())
    fleets = {check.proof.fleet for check in chosen if check.proof}
    names = sorted(fleets)
    findings = _unproved(chosen)
    for name in names:
        findings += _prove_all(name, chosen, extensions)
    findings.sort(key=lambda finding: finding.check)
    failed = [finding for finding in findings if finding.verdict == "fail"]
    passed = len(findings) - len(failed)
    notice = f"{passed} of {len(findings)} checks fire on their fault"
    broken = [f"a site check cannot be used: {one}" for one in extensions.broken]
    seconds = round(time.monotonic() - began, 3)
    return new_report(
        "selftest",
        FAILED if failed else OK,
        cluster=", ".join(names),
        seconds=seconds,
        findings=tuple(findings),
        notices=(notice, *broken),
    )


# ---------------------------------------------------------------- recorded fleets


def recorded_fleet(
    name: str, checks: Sequence[Check], extensions: Extensions = NO_EXTENSIONS
) -> Fleet:
    """Return a recorded fleet with the facts that these checks need.

    A transport that plays the recording is asked as real nodes are. What a site's checks read is
    in no recording: their proofs say what healthy nodes answer.
    """
    plan = plan_queries(checks, registry.extended(extensions).facts)
    with _recording(name) as (inventory_file, recording):
        inventory = with_groups(load_inventory(inventory_file), extensions.groups.values())
    transports = dict.fromkeys(("ssh", "local"), ReplayTransport(recording))
    with Fanout(
        inventory,
        transports,
        forks=FORKS,
        password=lambda node: None,
        watch=_NoProgress(),
    ) as fanout:
        fleet = fanout.survey(plan)
        if "pairs" in plan.stages:
            fleet = probe_pairs(fanout, fleet, inventory.nodes[0].name)
    if "history" in plan.stages:
        fleet = with_past(fleet)
    if "stress" in plan.stages:
        fleet = with_load(fleet)
    if "certificate" in plan.stages:
        fleet = with_certified(fleet, None)
    return with_answers(fleet, checks, extensions)


def with_groups(inventory: Inventory, groups: Iterable[str]) -> Inventory:
    """Return the inventory with all its nodes in these groups too."""
    added = tuple(dict.fromkeys(groups))
    nodes = []
    for node in inventory.nodes:
        nodes.append(msgspec.structs.replace(node, groups=(*node.groups, *added)))
    return msgspec.structs.replace(inventory, nodes=tuple(nodes))


def with_answers(fleet: Fleet, checks: Sequence[Check], extensions: Extensions) -> Fleet:
    """Return the fleet with the facts of a site as the proofs of its checks describe them."""
    added: dict[str, Facts] = {}
    for check in checks:
        proof = check.proof
        if not check.source or proof is None:
            continue
        for name in check.facts:
            fact = extensions.facts.get(name)
            if fact is None:
                continue
            for node in fleet.reached:
                answers = [_described(proof, read) for read in fact.reads(node, fleet.inventory)]
                if answers and None not in answers:
                    added.setdefault(node.name, {})[name] = parse_fact(fact, answers)
    return fleet.with_facts(added)


def _described(proof: Proof, read: Read) -> Json:
    """Return the raw answer that a proof describes, None if it does not describe this read."""
    if read in proof.answers:
        answer = proof.answers[read]
        return ["no", "missing", str(read.args[0])] if answer is None else ["ok", answer]
    files = proof.machine.get("files", {})
    if read.kind == "file" and read.args[0] in files:
        return ["ok", files[read.args[0]]]
    if read.kind == "files":
        found = {path: text.strip() for path, text in files.items() if _is_asked(path, read.args)}
        return ["ok", found] if found else None
    commands = proof.machine.get("commands", {})
    line = " ".join(map(str, read.args))
    if read.kind in ("command", "alone") and line in commands:
        return ["ok", {"code": 0, "out": commands[line], "err": ""}]
    return None


def _is_asked(path: str, patterns: Sequence[str]) -> bool:
    """Return whether one of these patterns, in which * is a whole name, stands for a path."""
    return any(
        fnmatch.fnmatchcase(path, pattern) and path.count("/") == pattern.count("/")
        for pattern in patterns
    )


def with_past(fleet: Fleet) -> Fleet:
    """Return the fleet as if a run an hour ago had read the same error counters."""
    past: dict[str, Facts] = {}
    for node in fleet.reached:
        counters = fleet.fact(node.name, IB.name)
        if isinstance(counters, Absent):
            counters = {}
        pcie = fleet.fact(node.name, ERRORS.name)
        gpu = fleet.fact(node.name, GPU_COUNTERS.name)
        sample = Sample(
            HOUR,
            counters,
            pcie=None if isinstance(pcie, Absent) else pcie,
            gpu=None if isinstance(gpu, Absent) else gpu,
        )
        past[node.name] = {EARLIER.name: Earlier(sample, sample)}
    return fleet.with_facts(past)


def with_load(fleet: Fleet) -> Fleet:
    """Return the fleet as if `check --stress` had loaded its nodes, and all were healthy."""
    loaded: dict[str, Facts] = {}
    for node in fleet.reached:
        nvml = fleet.fact(node.name, NVML.name)
        if not isinstance(nvml, Nvml):
            continue
        devices = tuple(_healthy_device(gpu) for gpu in nvml.gpus)
        indices = [gpu.index for gpu in nvml.gpus]
        ends = [(near, far) for near in indices for far in indices if near != far]
        pairs = {f"GPU {near} to GPU {far}": 370.0 for near, far in ends}
        results = StressResults(devices, "2.6.0+cu124", pairs, 610.0, 96)
        diagnostics = Diagnostics(2, (DiagnosticTest("memory", "pass", ("GPU 0",)),))
        loaded[node.name] = {RESULTS.name: results, DIAGNOSTICS.name: diagnostics}
    return fleet.with_facts(loaded)


def _healthy_device(gpu: Gpu) -> DeviceResult:
    """Return what a healthy GPU reaches: between the floor of its model and its data sheet."""
    flops, memory = data_sheet(gpu.name) or (100.0, 1000.0)
    # Two thirds of PCIe 6, and less than Grace gives its own GPUs: above the floor of any link.
    rates = {"gemm": 0.7 * flops, "copy": 0.87 * memory, "to_device": 95.0, "to_host": 92.0}
    return DeviceResult(
        gpu.index,
        gpu.name,
        {"alive": 1.0, **rates},
        checksum="5d41402abc4b2a76",
        repeated=9,
    )


@contextlib.contextmanager
def _recording(name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the inventory file of a recorded fleet, and node → its recorded answers."""
    folder = resources.files("clusterprep").joinpath("data/fleets")
    compressed = folder.joinpath(f"{name}.json.gz").read_bytes()
    recording = unpacked(json.loads(gzip.decompress(compressed)))
    inventory_file = folder.joinpath(f"{name}.yaml")
    with resources.as_file(inventory_file) as inventory:
        yield inventory, recording


def unpacked(recording: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recording of every node: the first node's answers, replaced by its own."""
    base = recording["base"]
    nodes: dict[str, Any] = {}
    for name, own in recording["nodes"].items():
        answers = {
            **base["answers"],
            **own.get("answers", {}),
        }
        nodes[name] = {
            **base,
            **own,
            "answers": answers,
        }
    return nodes


def packed(recording: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `unpacked` takes: answers that are equal on all nodes are stored once."""
    base = dict(next(iter(recording.values())))
    nodes: dict[str, Any] = {}
    for name, node in recording.items():
        own = _differences(node, base)
        own.pop("answers", None)
        own["answers"] = _differences(node["answers"], base["answers"])
        nodes[name] = own
    return {
        "base": base,
        "nodes": nodes,
    }


def _differences(values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value != base.get(key)}


# ---------------------------------------------------------------- proofs


def _unproved(checks: Sequence[Check]) -> list[Finding]:
    """Return a failure for each check without a proof."""
    findings: list[Finding] = []
    for check in checks:
        if check.proof is None:
            findings.append(_failure(check, _without_proof(check), "no proof"))
    return findings


def _without_proof(check: Check) -> str:
    """Return what to say of a check that has no proof."""
    if not check.source:
        return "there is no proof that this check can fail"
    if not check.facts:
        return f"it cannot be used: {check.why}"
    return "there is no proof that this check can fail: give it examples, or a proof"


def _prove_all(
    name: str, checks: Sequence[Check], extensions: Extensions = NO_EXTENSIONS
) -> list[Finding]:
    """Prove the checks whose proofs are about this recorded fleet."""
    fleet = recorded_fleet(name, checks, extensions)
    healthy = _verdicts(fleet, checks)
    findings: list[Finding] = []
    for check in checks:
        if check.proof is not None and check.proof.fleet == name:
            finding = prove(
                check,
                check.proof,
                fleet,
                healthy,
                checks,
            )
            findings.append(finding)
    return findings


def prove(
    check: Check, proof: Proof, fleet: Fleet, healthy: Verdicts, checks: Sequence[Check]
) -> Finding:
    """Turn the fact bad and look which checks answer otherwise than on the healthy fleet."""
    victim = _victim(fleet)
    before = healthy.get((check.name, victim), set())
    if "fail" in before or not before:
        verdicts = _verdict_text(before)
        message = f"on the healthy {proof.fleet} this check says {verdicts}"
        return _failure(check, message, verdicts, victim)
    sick = turned_bad(fleet, victim, proof)
    if isinstance(sick, Absent):
        why = f"{sick.reason} {sick.detail}".rstrip()
        message = f"the recorded fleet {proof.fleet} has no {proof.fact}: {why}"
        return _failure(check, message, sick.reason, victim)
    verdicts_now = _verdicts(sick, checks)
    after = verdicts_now.get((check.name, victim), set())
    if proof.verdict not in after - before:
        message = "the fact was turned bad and this check did not fire"
        return _failure(check, message, _verdict_text(after), victim)
    others = _checks_that_fire(healthy, verdicts_now) - {check.name}
    if others:
        names = ", ".join(sorted(others))
        return _failure(check, "other checks fire on the same fault", names, victim)
    subject = proof.fact or "the node"
    message = f"fires when {subject} is turned bad"
    seen = f"{proof.verdict} of this check alone"
    return Finding(
        check.name,
        "pass",
        "error",
        (victim,),
        message,
        seen,
        WANTED,
    )


def _victim(fleet: Fleet) -> str:
    """Return the name of the node whose fact is turned bad."""
    nodes = fleet.inventory.nodes
    last = len(nodes) - 1
    return nodes[min(VICTIM, last)].name


def turned_bad(fleet: Fleet, victim: str, proof: Proof) -> Fleet | Absent:
    """Return the fleet with one fact of one node turned bad, or Absent if there is no such fact."""
    if not proof.fact:
        snapshots = dict(fleet.snapshots)
        snapshots[victim] = proof.turn(snapshots[victim])
        return msgspec.structs.replace(fleet, snapshots=snapshots)
    before = fleet.fact(victim, proof.fact)
    if isinstance(before, Absent) and proof.verdict == "fail":
        return before
    changed: dict[str, Facts] = {}
    if not proof.between:
        changed[victim] = {proof.fact: proof.turn(before)}
        return fleet.with_facts(changed)
    # The fault shows on the other ends of the victim's connections too.
    for node in fleet.reached:
        value = fleet.fact(node.name, proof.fact)
        changed[node.name] = {proof.fact: proof.turn(value, victim)}
    return fleet.with_facts(changed)


def _verdicts(fleet: Fleet, checks: Sequence[Check]) -> Verdicts:
    """Return the verdicts of all checks; several of one check on one node are possible."""
    verdicts: Verdicts = {}
    today = datetime.now(timezone.utc).date()
    for finding in judge(fleet, checks, today):
        for node in finding.nodes:
            verdicts.setdefault((finding.check, node), set()).add(finding.verdict)
    return verdicts


def _verdict_text(verdicts: set[str]) -> str:
    return " and ".join(sorted(verdicts)) or "nothing"


def _checks_that_fire(healthy: Verdicts, now: Verdicts) -> set[str]:
    """Return the checks that fail on a node on which they did not fail before."""
    names: set[str] = set()
    for (check, node), verdicts in now.items():
        if "fail" in verdicts and "fail" not in healthy.get((check, node), set()):
            names.add(check)
    return names


def _failure(check: Check, message: str, seen: str, *nodes: str) -> Finding:
    remedy = shell_line(
        "clusterprep explain {name}   # this is a bug of clusterprep: report it", name=check.name
    )
    if check.source:
        remedy = sentence("mend the check in {place}", place=check.source)
    return Finding(
        check.name,
        "fail",
        "error",
        nodes,
        message,
        seen,
        WANTED,
        remedy,
    )
