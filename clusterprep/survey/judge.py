"""Judge the facts of a fleet by checks and return findings. Pure.

    findings = judge(fleet, checks, date.today())

Whether something is unknown is decided here: a check never sees a node whose facts are missing.

A check that raises is unknown on the nodes whose answers make it raise, and the other
checks go on. Outcomes that differ in their nodes alone are put together before they become
findings, so ten thousand nodes are judged in time that grows with their number.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from operator import attrgetter

from msgspec.structs import replace

from clusterprep.checks import NO_PEER, Check, CheckContext, Outcome, names_of
from clusterprep.facts.account import Rights
from clusterprep.model import Absent, Finding, Fleet, Inventory, Node, Severity, Silence
from clusterprep.model.fact_columns import absences
from clusterprep.model.fixes import Fix
from clusterprep.model.memoize import once_per_facts
from clusterprep.model.nodeset import fold
from clusterprep.remedies import NO_REMEDY, Remedy, has_placeholder, placed, shell_line
from clusterprep.remote.untrusted import shortened

# Characters of one text of a finding. Texts about whole fleets are folded, so a longer one was
# written by a node.
LONGEST = 20_000

NOT_BUILT, ONLY_VERIFY = "not built yet", "only verify judges it"  # reasons of skips

# Where NVML tells nothing at all, this check says why, and the others follow from it. Not
# gpu.busy: it must not be taken as done before ranks are started.
TOLD_BY = {
    "nvml_not_started": "gpu.lost",
    "no_nvml_library": "gpu.lost",
}
NEVER_FOLLOWS = ("gpu.busy",)

TROUBLE = ("fail", "unknown")  # verdicts that need attention

Key = tuple[object, ...]

# What outcomes, and findings, of different nodes must have in common to be shown as one.
_EQUAL_OUTCOMES = attrgetter("verdict", "message", "seen", "wanted", "remedy", "reason", "severity")
_EQUAL_FINDINGS = attrgetter("check", "verdict", "severity", "seen", "wanted", "silenced", "until")

# What would let a user of the node learn what was denied to him.
BECOME = shell_line(
    "clusterprep check INVENTORY --become   "
    "# by sudo on the node, or log in as a user who may read it"
)


def judge(
    fleet: Fleet,
    checks: Iterable[Check],
    today: date,
    catalogue: Iterable[str] = (),
    trial: Collection[str] = (),
    asked: Collection[str] = (),
    *,
    by_message: bool = False,
) -> tuple[Finding, ...]:
    """Return the findings of all checks over a fleet, equal ones folded, silences applied.

    `catalogue` names checks that are planned and not built, `trial` those that only verify can
    judge: where the inventory requires one of them, or it is among `asked`, it is skipped with
    that reason. With `by_message` findings with different messages stay apart, so that what is
    said of a node does not depend on others.
    """
    findings: list[Finding] = []
    for check in checks:
        findings.extend(_check_findings(fleet, check))
    findings.extend(_not_judged_here(fleet.inventory, catalogue, trial, asked))
    return apply_silences(findings, fleet.inventory, today, by_message=by_message)


def apply_silences(
    findings: Iterable[Finding],
    inventory: Inventory,
    today: date,
    *,
    by_message: bool = False,
) -> tuple[Finding, ...]:
    """Return the findings with the accepted ones marked as silenced, and equal ones folded."""
    parts: list[Finding] = []
    for finding in findings:
        parts.extend(_split_by_silence(finding, inventory.silences, today))
    return merge(_told_once(parts), inventory, by_message=by_message)


def _told_once(findings: Sequence[Finding]) -> Iterable[Finding]:
    """Yield the findings, those that follow from another check's as skipped.

    Only where that one counts: a silence of the cause silences nothing that follows from it.
    """
    telling: dict[str, set[str]] = {}
    for finding in findings:
        if finding.verdict in TROUBLE and _counts(finding):
            telling.setdefault(finding.check, set()).update(finding.nodes)
    for finding in findings:
        cause = TOLD_BY.get(finding.reason or "")
        if (
            finding.verdict != "unknown"
            or cause is None
            or finding.check in (cause, *NEVER_FOLLOWS)
        ):
            yield finding
            continue
        told = _among(finding.nodes, telling.get(cause, ()))
        rest = _without(finding.nodes, told)
        if told:
            yield replace(
                finding,
                verdict="skip",
                nodes=told,
                message=f"{finding.message}: see {cause}",
                remedy=NO_REMEDY,
            )
        if rest:
            yield replace(finding, nodes=rest)


# ---------------------------------------------------------------- one check


def _check_findings(fleet: Fleet, check: Check) -> Iterable[Finding]:
    """Yield the findings of one check; nodes that lack a fact it needs are not shown to it."""
    missing = _missing_facts(fleet, check)
    complete = fleet.reached
    outcomes: list[Outcome] = []
    if missing:
        complete = tuple(node for node in fleet.reached if node.name not in missing)
        for node in fleet.reached:
            absent = missing.get(node.name)
            if absent is not None:
                outcomes.append(_unknown_outcome(fleet, check, node, absent))
    if complete or not check.facts:
        outcomes.extend(_judge_nodes(fleet, check, complete))
    requiring: Collection[str] = _requiring(fleet).get(check.name, ())
    for outcome in _without_false_passes(_combined(outcomes)):
        yield from _as_findings(check, outcome, requiring)


def _missing_facts(fleet: Fleet, check: Check) -> Mapping[str, Absent]:
    """Return by node why it lacks a fact that the check needs."""
    missing: dict[str, Absent] = {}
    # In reverse, so that of several missing facts the first one counts.
    for fact in reversed(check.facts):
        missing |= absences(fleet)[fact]
    return missing


@once_per_facts()
def _requiring(fleet: Fleet) -> Mapping[str, set[str]]:
    """Return for each check that `require:` names the nodes that require it."""
    requiring: dict[str, set[str]] = {}
    for node in fleet.inventory.nodes:
        for check in node.require:
            requiring.setdefault(check, set()).add(node.name)
    return requiring


def _judge_nodes(fleet: Fleet, check: Check, nodes: tuple[Node, ...]) -> list[Outcome]:
    """Return what a check says about these nodes.

    If the check raises, only the nodes whose answers make it raise are unknown, as far as they can
    be found.
    """
    try:
        return list(check.judge(_context(fleet, check, nodes)))
    # A bug in one check must not suppress the findings of the others.
    except Exception as error:  # noqa: BLE001
        causes = _nodes_that_break(fleet, check, nodes)
        if not causes or len(causes) == len(nodes):
            return [_bug_outcome(fleet, check, nodes, error)]
        garbled = _garbled_outcome(fleet, check, causes, error)
        others = tuple(node for node in nodes if node not in causes)
        return [garbled, *_judge_nodes(_with_garbled_facts(fleet, check, causes), check, others)]


def _context(fleet: Fleet, check: Check, nodes: tuple[Node, ...]) -> CheckContext:
    facts = (*check.facts, *check.uses)
    if check.source:
        # A site's check may look at more than it declares: it is asked for each node.
        facts = ()
    return CheckContext(fleet, nodes, check.name, facts)


def _nodes_that_break(fleet: Fleet, check: Check, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes over which a check raises even if it sees the answers of no other node."""
    all_garbled = _with_garbled_facts(fleet, check, nodes).snapshots
    causes: list[Node] = []
    for node in nodes:
        snapshots = {
            **all_garbled,
            node.name: fleet.snapshots[node.name],
        }
        alone = replace(fleet, snapshots=snapshots)
        try:
            list(check.judge(_context(alone, check, (node,))))
        except Exception:  # noqa: BLE001 - as in _judge_nodes
            causes.append(node)
    return causes


def _with_garbled_facts(fleet: Fleet, check: Check, nodes: Iterable[Node]) -> Fleet:
    """Return the fleet in which the facts that a check needs are garbled on these nodes."""
    garbled = dict.fromkeys(check.facts, Absent("garbled", "it breaks a check"))
    return fleet.with_facts({node.name: garbled for node in nodes})


def _garbled_outcome(
    fleet: Fleet, check: Check, nodes: Sequence[Node], error: Exception
) -> Outcome:
    why = f"{type(error).__name__}: {error}"
    message = shortened(f"this check breaks over what the node answered: {why}")
    outcome = _bug_outcome(fleet, check, nodes, error)
    return replace(outcome, message=message, reason="garbled")


def _bug_outcome(fleet: Fleet, check: Check, nodes: Sequence[Node], error: Exception) -> Outcome:
    """Return the outcome of a check that raised: unknown on all these nodes."""
    names: list[str] = []
    severity = check.severity
    for node in nodes:
        names.append(node.name)
        if check.grave(fleet, node):
            severity = "error"
    message = shortened(f"a bug in this check: {type(error).__name__}: {error}")
    reason = f"a bug in {check.source or 'clusterprep'}"
    return Outcome(
        "unknown",
        tuple(names),
        message,
        reason=reason,
        severity=severity,
    )


def _combined(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes with those that differ in their nodes alone as one.

    Most checks give one outcome for each of thousands of nodes.
    """
    groups: dict[Key, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(_EQUAL_OUTCOMES(outcome), []).append(outcome)
    combined: list[Outcome] = []
    for equal in groups.values():
        if len(equal) == 1:
            combined.append(equal[0])
        else:
            combined.append(replace(equal[0], nodes=_nodes_of_all(equal)))
    return combined


def _nodes_of_all(parts: Iterable[Outcome | Finding]) -> tuple[str, ...]:
    """Return the nodes of outcomes or findings, one after the other."""
    return tuple(itertools.chain.from_iterable([part.nodes for part in parts]))


def _without_false_passes(outcomes: Sequence[Outcome]) -> Iterable[Outcome]:
    """Yield the outcomes of a check, the passes without nodes that fail or are unknown."""
    troubled: set[str] = set()
    for outcome in outcomes:
        if outcome.verdict in TROUBLE:
            troubled.update(outcome.nodes)
    for outcome in outcomes:
        if outcome.verdict != "pass":
            yield outcome
        elif not troubled.isdisjoint(outcome.nodes):
            passed = _without(outcome.nodes, troubled)
            if passed:
                yield replace(outcome, nodes=passed)
        elif outcome.nodes:
            yield outcome


# ---------------------------------------------------------------- what is not known


def _unknown_outcome(fleet: Fleet, check: Check, node: Node, absent: Absent) -> Outcome:
    """Return the outcome on a node that lacks a fact: skip if the fact does not apply there."""
    names = (node.name,)
    if absent.reason == "not_applicable":
        message = absent.detail or "does not apply here"
        return Outcome("skip", names, message, reason=absent.reason)
    remedy: Remedy | None = None
    if absent.reason == "denied":
        # The check's own remedy mends a fault, and none was seen.
        remedy = NO_REMEDY if _is_root(fleet, node) else BECOME
    message = absent.detail or "could not be determined"
    severity: Severity = "error" if check.grave(fleet, node) else check.severity
    return Outcome(
        "unknown", names, message, remedy=remedy, reason=absent.reason, severity=severity
    )


def _is_root(fleet: Fleet, node: Node) -> bool:
    """Return True if the node was looked at as root: then sudo would allow no more."""
    rights = fleet.fact(node.name, "ssh.rights")
    if isinstance(rights, Rights):
        return rights.uid == 0
    return node.ssh.become or node.ssh.user == "root"


def _not_judged_here(
    inventory: Inventory, catalogue: Iterable[str], trial: Collection[str], asked: Collection[str]
) -> Iterable[Finding]:
    """Yield a skip for each check that is wanted and not built, or that only verify can judge.

    Wanted is what a node requires, and on all nodes what is among `asked`.
    """
    elsewhere = {*catalogue, *trial}
    wanting: dict[str, list[str]] = {}
    for node in inventory.nodes:
        for name in elsewhere.intersection((*node.require, *asked)):
            wanting.setdefault(name, []).append(node.name)
    for name, nodes in sorted(wanting.items()):
        verb = "asked for" if name in asked else "required"
        if name in trial:
            message = f"{verb}, but only verify can judge it"
            reason = ONLY_VERIFY
        else:
            message = f"{verb}, but this check is not built yet"
            reason = NOT_BUILT
        yield Finding(
            name,
            "skip",
            "warning",
            tuple(nodes),
            message,
            reason=reason,
        )


# ---------------------------------------------------------------- outcomes become findings


def _as_findings(check: Check, outcome: Outcome, requiring: Collection[str]) -> Iterable[Finding]:
    """Yield an outcome as findings, an error on the nodes whose `require:` names the check."""
    severity = outcome.severity or check.severity
    if not outcome.nodes:
        yield _finding(check, outcome, (), "error")
        return
    required = _among(outcome.nodes, requiring)
    if required:
        yield _finding(check, outcome, required, "error")
    others = _without(outcome.nodes, requiring)
    if others:
        yield _finding(check, outcome, others, severity)


def _finding(check: Check, outcome: Outcome, nodes: tuple[str, ...], severity: Severity) -> Finding:
    """Return an outcome of a check as a finding about these nodes."""
    message = shortened(outcome.message, LONGEST)
    seen = shortened(outcome.seen, LONGEST)
    wanted = shortened(outcome.wanted, LONGEST)
    remedy = _remedy(check, outcome, nodes)
    return Finding(
        check.name,
        outcome.verdict,
        severity,
        nodes,
        message,
        seen,
        wanted,
        remedy,
        outcome.reason,
        fix=_fix(check, outcome),
    )


def _fix(check: Check, outcome: Outcome) -> Fix | None:
    """Return what cures a failure: as the outcome says, else as its check does."""
    if outcome.verdict != "fail":
        return None
    return outcome.fix or check.fix


def _remedy(check: Check, outcome: Outcome, nodes: Sequence[str]) -> Remedy:
    """Return the remedy of the outcome, else that of the check with the first node filled in."""
    if outcome.verdict not in TROUBLE:
        return NO_REMEDY
    if outcome.remedy is not None:
        return outcome.remedy
    if outcome.reason == NO_PEER:
        # A remedy of the check mends a fault, and none was seen.
        return NO_REMEDY
    remedy = placed(check.remedy, NODE=nodes[0]) if nodes else check.remedy
    # What is not known has no words to fill in.
    return NO_REMEDY if outcome.verdict == "unknown" and has_placeholder(remedy) else remedy


# ---------------------------------------------------------------- silences


def _split_by_silence(
    finding: Finding, silences: Sequence[Silence], today: date
) -> Iterable[Finding]:
    """Yield the part of a finding that each silence covers today, and the part that counts."""
    if finding.verdict not in TROUBLE:
        yield finding
        return
    remaining = finding.nodes
    for silence in silences:
        if silence.check != finding.check or _is_over(silence, today):
            continue
        accepted = _among(remaining, silence.nodes)
        if accepted:
            remaining = _without(remaining, silence.nodes)
            yield replace(finding, nodes=accepted, silenced=silence.reason, until=silence.until)
    if remaining or not finding.nodes:
        yield replace(finding, nodes=remaining)


def _is_over(silence: Silence, today: date) -> bool:
    return silence.until is not None and today > silence.until


def lapsed_silences(
    findings: Iterable[Finding], silences: Iterable[Silence], today: date
) -> tuple[str, ...]:
    """Return a sentence for each silence that is over while its findings still exist."""
    nodes_by_check: dict[str, list[str]] = {}
    for finding in findings:
        if _counts(finding) and finding.verdict in TROUBLE:
            nodes_by_check.setdefault(finding.check, []).extend(finding.nodes)
    sentences: dict[str, None] = {}
    for silence in silences:
        if not _is_over(silence, today):
            continue
        nodes = _among(nodes_by_check.get(silence.check, ()), silence.nodes)
        if nodes:
            names = fold(dict.fromkeys(nodes))
            subject = f"the silence of {silence.check} on {names} ({silence.reason})"
            sentences[f"{subject} ended on {silence.until}: it counts again"] = None
    return tuple(sentences)


def _counts(finding: Finding) -> bool:
    return finding.silenced is None and not finding.fixed


# ---------------------------------------------------------------- sets of findings


def merge(
    findings: Iterable[Finding], inventory: Inventory, *, by_message: bool = False
) -> tuple[Finding, ...]:
    """Return equal findings of several nodes as one finding, with its nodes in inventory order.

    Their messages may differ unless `by_message`.
    """
    in_order = sorted(inventory.nodes, key=attrgetter("index"))
    known = names_of(in_order)
    position = {name: place for place, name in enumerate(known)}
    groups: dict[Key, list[Finding]] = {}
    for finding in findings:
        key = _merge_key(finding)
        if by_message:
            key = (*key, finding.message)
        groups.setdefault(key, []).append(finding)
    merged = []
    for equal in groups.values():
        one = equal[0] if len(equal) == 1 else _merged(equal)
        nodes = _in_order(one.nodes, known, position)
        # Mostly they are in order already.
        merged.append(one if nodes is one.nodes else replace(one, nodes=nodes))
    return tuple(merged)


def _merged(findings: Sequence[Finding]) -> Finding:
    """Return the first of equal findings with the nodes of all of them, and the highest age."""
    nodes = _nodes_of_all(findings)
    ages = [finding.age for finding in findings if finding.age is not None]
    oldest = max(ages, default=None)
    message = _message_of_all(findings)
    fix = findings[0].fix
    if any(finding.fix != fix for finding in findings):
        fix = None  # what is not the same on all nodes cannot be said for all of them
    return replace(findings[0], nodes=nodes, age=oldest, message=message, fix=fix)


def _message_of_all(findings: Sequence[Finding]) -> str:
    """Return what the findings say; where it is not the same, each message with its nodes."""
    if len({finding.message for finding in findings}) == 1:
        return findings[0].message
    nodes_by_message: dict[str, list[str]] = {}
    for finding in findings:
        nodes_by_message.setdefault(finding.message, []).extend(finding.nodes)
    sentences: list[str] = []
    for message, nodes in nodes_by_message.items():
        sentences.append(f"{message} ({fold(nodes)})")
    return shortened("; ".join(sentences), LONGEST)


def _merge_key(finding: Finding) -> Key:
    """Return what two findings must have in common to be one."""
    key: Key = _EQUAL_FINDINGS(finding)
    if finding.verdict in ("unknown", "skip"):
        key = (*key, finding.reason)
    # A stored finding has a message that the node wrote itself. It must not stand for another
    # node's message.
    if finding.age is not None:
        key = (*key, finding.message)
    return key


def _in_order(
    names: tuple[str, ...], known: Sequence[str], position: Mapping[str, int]
) -> tuple[str, ...]:
    """Return names in inventory order, each once.

    The inventory has those that are `known`, each at its position; others come last.
    """
    try:
        places = list(map(position.__getitem__, names))
    except KeyError:
        inside = _in_order(_among(names, position), known, position)
        outside = dict.fromkeys(_without(names, position))
        return (*inside, *outside)
    in_order = sorted(set(places))
    if in_order == places:
        return names
    return tuple([known[place] for place in in_order])


def _among(names: Iterable[str], chosen: Collection[str]) -> tuple[str, ...]:
    if not chosen:
        return ()
    return tuple([name for name in names if name in chosen])


def _without(names: Iterable[str], excluded: Collection[str]) -> tuple[str, ...]:
    if not excluded:
        return tuple(names)
    return tuple([name for name in names if name not in excluded])


def with_fixed(before: Sequence[Finding], after: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the second look's findings, preceded by the first look's troubles that pass now.

    The latter are marked as fixed and do not count. What the second look could not judge again,
    because the node was lost in between, is not fixed.
    """
    passing: dict[str, set[str]] = {}
    for finding in after:
        if finding.verdict == "pass":
            passing.setdefault(finding.check, set()).update(finding.nodes)
    cured: list[Finding] = []
    for finding in before:
        passing_nodes = passing.get(finding.check, ())
        nodes = _among(finding.nodes, passing_nodes)
        if finding.verdict in TROUBLE and nodes:
            cured.append(replace(finding, nodes=nodes, fixed=True))
    return (*cured, *after)


def without_rest(findings: Sequence[Finding], further: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings without the skips «at rest» of nodes that were judged under load since."""
    judged: dict[str, set[str]] = {}
    for finding in further:
        if finding.verdict != "skip":
            judged.setdefault(finding.check, set()).update(finding.nodes)
    kept = []
    for finding in findings:
        names = finding.nodes
        if finding.verdict == "skip" and finding.reason == "at_rest":
            names = tuple(name for name in names if name not in judged.get(finding.check, ()))
        if names or not finding.nodes:
            kept.append(replace(finding, nodes=names))
    return tuple(kept)
