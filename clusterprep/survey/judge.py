"""Facts become findings. Unknown is decided here: a check never sees a node whose facts are missing. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date

from clusterprep.checks import Check, CheckContext, Outcome
from clusterprep.errors import ENDINGS
from clusterprep.facts.account import Rights
from clusterprep.model import NOT_ASKED, Absent, Finding, Fleet, Inventory, Node, Severity, Silence
from clusterprep.model.memoize import once_per_fleet
from clusterprep.model.nodeset import fold
from clusterprep.remote.untrusted import shortened

LONGEST = 20_000  # characters of one text of a finding; those of whole fleets fold, so that more is a node's own

# What would let a user of the node learn what was denied to him.
BECOME = "clusterprep check INVENTORY --become   # by sudo on the node, or log in as a user who may read it"


def judge(
    fleet: Fleet,
    checks: Sequence[Check],
    today: date,
    catalogue: Iterable[str] = (),
    trial: Collection[str] = (),
) -> tuple[Finding, ...]:
    """All findings of the checks over a fleet, equal ones folded, silences applied.

    `catalogue` holds the names of checks that are planned and not built: where one is required it is skipped,
    and said. So it is with those of `trial`, which only verify can judge.
    """
    findings: list[Finding] = []
    for check in checks:
        findings.extend(_findings(fleet, check))
    findings.extend(_not_here(fleet.inventory, catalogue, trial))
    return silenced(findings, fleet.inventory, today)


def silenced(findings: Iterable[Finding], inventory: Inventory, today: date) -> tuple[Finding, ...]:
    """The findings with those marked that the inventory accepts, and equal ones folded."""
    parts = (part for finding in findings for part in _silence(finding, inventory.silences, today))
    return merge(parts, inventory)


def _findings(fleet: Fleet, check: Check) -> Iterable[Finding]:
    lacking: dict[str, Absent] = {}
    for name in reversed(check.facts):  # of several reasons the first fact's counts
        lacking |= _absences(fleet)[name]
    knowing = (
        tuple(node for node in fleet.reached if node.name not in lacking)
        if lacking
        else fleet.reached
    )
    outcomes = [
        _unknown(fleet, check, node, lacking[node.name])
        for node in fleet.reached
        if node.name in lacking
    ]
    judged = _judged(fleet, check, knowing) if knowing or not check.facts else []
    declared = {node.name for node in fleet.inventory.nodes if check.name in node.require}
    for outcome in _without_false_passes(_together([*outcomes, *judged])):
        yield from _as_findings(check, outcome, declared)


def _judged(fleet: Fleet, check: Check, knowing: tuple[Node, ...]) -> list[Outcome]:
    """What a check says; where it breaks, of those nodes alone over whose answers it does, if it can be told which."""
    try:
        return list(check.judge(CheckContext(fleet, knowing, check.name)))
    except ENDINGS:
        raise
    except Exception as error:  # noqa: BLE001 - a bug in one check must not take the others' answers with it
        over = _breaking(fleet, check, knowing)
        if not over or len(over) == len(knowing):
            return [_broken(fleet, check, knowing, error)]
        rest = tuple(node for node in knowing if node not in over)
        message = f"this check breaks over what the node answered: {type(error).__name__}: {error}"
        alone = _broken(fleet, check, over, error)
        return [
            replace(alone, message=shortened(message), reason="garbled"),
            *_judged(_without(fleet, check, over), check, rest),
        ]


def _breaking(fleet: Fleet, check: Check, nodes: Sequence[Node]) -> list[Node]:
    """The nodes over whose answers a check breaks also where it sees those of no other node."""
    nothing = _without(fleet, check, nodes).snapshots
    found = []
    for node in nodes:
        alone = replace(fleet, snapshots={**nothing, node.name: fleet.snapshots[node.name]})
        try:
            list(check.judge(CheckContext(alone, (node,), check.name)))
        except ENDINGS:
            raise
        except Exception:  # noqa: BLE001 - as above
            found.append(node)
    return found


def _without(fleet: Fleet, check: Check, nodes: Iterable[Node]) -> Fleet:
    """The fleet without what these nodes answered to a check: it is garbled."""
    spoilt = dict.fromkeys(check.facts, Absent("garbled", "it breaks a check"))
    snapshots = dict(fleet.snapshots)
    for node in nodes:
        before = snapshots[node.name]
        snapshots[node.name] = replace(before, facts={**before.facts, **spoilt})
    return replace(fleet, snapshots=snapshots)


def _broken(fleet: Fleet, check: Check, nodes: Sequence[Node], error: Exception) -> Outcome:
    message = shortened(f"a bug in this check: {type(error).__name__}: {error}")
    severity: Severity = (
        "error" if any(check.grave(fleet, node) for node in nodes) else check.severity
    )
    names = tuple(node.name for node in nodes)
    return Outcome("unknown", names, message, reason="a bug in clusterprep", severity=severity)


def _together(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Outcomes that differ in nothing but their nodes as one: most checks speak of thousands of nodes one by one."""
    nodes: dict[tuple[object, ...], list[str]] = {}
    first: dict[tuple[object, ...], Outcome] = {}
    for o in outcomes:
        key = (o.verdict, o.message, o.seen, o.wanted, o.remedy, o.reason, o.severity)
        first.setdefault(key, o)
        nodes.setdefault(key, []).extend(o.nodes)
    return [replace(outcome, nodes=tuple(nodes[key])) for key, outcome in first.items()]


def _without_false_passes(outcomes: Sequence[Outcome]) -> Iterable[Outcome]:
    """A node that one part of a check passes and another does not has not passed the check."""
    troubled = {node for o in outcomes if o.verdict in ("fail", "unknown") for node in o.nodes}
    for outcome in outcomes:
        if outcome.verdict != "pass":
            yield outcome
        elif nodes := tuple(node for node in outcome.nodes if node not in troubled):
            yield replace(outcome, nodes=nodes)


@once_per_fleet
def _absences(fleet: Fleet) -> Mapping[str, Mapping[str, Absent]]:
    """Of each fact: the nodes reached that do not know it, and why. Several checks ask for the same."""
    return _Absences(fleet)


class _Absences(dict[str, Mapping[str, Absent]]):
    """Looks through the nodes when a fact is asked for first."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._facts = {node.name: fleet.snapshots[node.name].facts for node in fleet.reached}

    def __missing__(self, fact: str) -> Mapping[str, Absent]:
        values = ((name, facts.get(fact, NOT_ASKED)) for name, facts in self._facts.items())
        self[fact] = {name: value for name, value in values if isinstance(value, Absent)}
        return self[fact]


def _unknown(fleet: Fleet, check: Check, node: Node, absent: Absent) -> Outcome:
    if absent.reason == "not_applicable":
        return Outcome(
            "skip", (node.name,), absent.detail or "does not apply here", reason=absent.reason
        )
    severity: Severity = "error" if check.grave(fleet, node) else check.severity
    message = absent.detail or "could not be determined"
    cure = BECOME if absent.reason == "denied" and not _is_root(fleet, node) else None
    return Outcome(
        "unknown", (node.name,), message, remedy=cure, reason=absent.reason, severity=severity
    )


def _is_root(fleet: Fleet, node: Node) -> bool:
    """Whether the node was looked at as root, so that sudo would bring no more."""
    rights = fleet.fact(node.name, "ssh.rights")
    return (
        rights.uid == 0
        if isinstance(rights, Rights)
        else bool(node.ssh.become) or node.ssh.user == "root"
    )


def _as_findings(check: Check, outcome: Outcome, declared: set[str]) -> Iterable[Finding]:
    """One outcome as findings: what `require:` declares is an error on the nodes that declare it."""
    severity: Severity = outcome.severity or check.severity
    required = tuple(node for node in outcome.nodes if node in declared)
    others = tuple(node for node in outcome.nodes if node not in declared)
    sure = outcome.verdict in ("pass", "skip")
    for nodes, grade in ((required, "error"), (others, severity)):
        if nodes or not outcome.nodes:
            yield Finding(
                check=check.name,
                verdict=outcome.verdict,
                severity="error" if grade == "error" else "warning",
                nodes=nodes,
                message=shortened(outcome.message, LONGEST),
                seen=shortened(outcome.seen, LONGEST),
                wanted=shortened(outcome.wanted, LONGEST),
                remedy=""
                if sure
                else (outcome.remedy if outcome.remedy is not None else _general(check, nodes)),
                reason=outcome.reason,
            )
        if not outcome.nodes:
            return


def _general(check: Check, nodes: Sequence[str]) -> str:
    """The remedy of a check's page, to be pasted: NODE is the first that needs it."""
    return check.remedy.replace("NODE", nodes[0]) if nodes else check.remedy


def _not_here(
    inventory: Inventory, catalogue: Iterable[str], trial: Collection[str]
) -> Iterable[Finding]:
    names = {*catalogue, *trial}
    for name in sorted(
        {name for node in inventory.nodes for name in node.require if name in names}
    ):
        nodes = tuple(node.name for node in inventory.nodes if name in node.require)
        why = "only verify judges it" if name in trial else "not built yet"
        message = (
            "required, but only verify can judge it"
            if name in trial
            else "required, but this check is not built yet"
        )
        yield Finding(name, "skip", "warning", nodes, message, reason=why)


def _silence(finding: Finding, silences: Sequence[Silence], today: date) -> Iterable[Finding]:
    """Split a finding into its silenced and its counting nodes."""
    if finding.verdict in ("pass", "skip"):
        yield finding
        return
    left = finding.nodes
    for silence in silences:
        if silence.check != finding.check or (silence.until is not None and today > silence.until):
            continue
        quiet = tuple(node for node in left if node in silence.nodes)
        if quiet:
            left = tuple(node for node in left if node not in silence.nodes)
            yield replace(finding, nodes=quiet, silenced=silence.reason, until=silence.until)
    if left or not finding.nodes:
        yield replace(finding, nodes=left)


def lapsed(
    findings: Iterable[Finding], silences: Iterable[Silence], today: date
) -> tuple[str, ...]:
    """A sentence for each silence whose time is over while what it was about is still there, and counts again."""
    found: dict[str, None] = {}
    over = [silence for silence in silences if silence.until is not None and today > silence.until]
    counting = [
        f
        for f in findings
        if f.verdict in ("fail", "unknown") and not f.fixed and f.silenced is None
    ]
    for silence in over:
        nodes = [
            n for f in counting if f.check == silence.check for n in f.nodes if n in silence.nodes
        ]
        if nodes:
            when = (
                f"the silence of {silence.check} on {fold(dict.fromkeys(nodes))} ({silence.reason})"
            )
            found[f"{when} ended on {silence.until}: it counts again"] = None
    return tuple(found)


def merge(findings: Iterable[Finding], inventory: Inventory) -> tuple[Finding, ...]:
    """One finding per check, verdict, severity, seen and wanted, with its nodes in inventory order."""
    position = {node.name: node.index for node in inventory.nodes}
    first: dict[tuple[object, ...], Finding] = {}
    names: dict[tuple[object, ...], dict[str, None]] = {}
    ages: dict[tuple[object, ...], float] = {}
    for finding in findings:
        alike = (finding.check, finding.verdict, finding.severity, finding.seen, finding.wanted)
        key: tuple[object, ...] = (*alike, finding.silenced, finding.until)
        if finding.verdict in ("unknown", "skip"):
            key = (*key, finding.reason)
        if (
            finding.age is not None
        ):  # its words are the node's own, and stand for no other node that words it otherwise
            key = (*key, finding.message)
        first.setdefault(key, finding)
        names.setdefault(key, {}).update(dict.fromkeys(finding.nodes))
        if finding.age is not None:
            ages[key] = max(finding.age, ages.get(key, 0.0))
    return tuple(
        replace(finding, nodes=_in_order(names[key], position), age=ages.get(key))
        for key, finding in first.items()
    )


def _in_order(names: Iterable[str], position: Mapping[str, int]) -> tuple[str, ...]:
    """Names in inventory order; those that it does not have come last."""
    known = sorted((name for name in names if name in position), key=position.__getitem__)
    return (*known, *(name for name in names if name not in position))


def exit_code(findings: Iterable[Finding], strict: bool = False) -> int:
    """0, 1 for a failure, 3 for not knowing; a failure outranks not knowing, silenced and fixed ones do not count."""
    counted = [
        f
        for f in findings
        if f.silenced is None and not f.fixed and (strict or f.severity == "error")
    ]
    if any(finding.verdict == "fail" for finding in counted):
        return 1
    return 3 if any(finding.verdict == "unknown" for finding in counted) else 0


def fixed(before: Sequence[Finding], after: Sequence[Finding]) -> tuple[Finding, ...]:
    """The second look, and from the first what passes by now: cured, and not counted.

    What the second look could not see again, because its node was lost in between, is not cured.
    """
    good = {
        (finding.check, node)
        for finding in after
        if finding.verdict == "pass"
        for node in finding.nodes
    }
    gone = []
    for finding in before:
        cured = tuple(node for node in finding.nodes if (finding.check, node) in good)
        if finding.verdict in ("fail", "unknown") and cured:
            gone.append(replace(finding, nodes=cured, fixed=True))
    return (*gone, *after)
