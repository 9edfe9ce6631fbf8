"""Tell which findings follow from others, so that one fault is shown and counted once. Pure.

    findings = with_causes(findings, rules_of(checks, facts))   # each names what it follows from
    standing(findings)                                          # those that count

A check declares in `Check.follows` which others explain its trouble. A finding follows only on
nodes of the cause. It keeps its verdict and severity, so the exit code is the same with and without
causes:

* A failure follows from failures alone; what is unknown follows from both.
* An unknown error does not follow from a failed warning: it decides the exit code, and the warning
  does not.
* Silenced and fixed findings are no causes: what follows from them counts.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import Check
from clusterprep.checks.firewall import UNDECIDED
from clusterprep.facts import Fact
from clusterprep.model import Because, Finding
from clusterprep.remote.agent.readers import NO_START

TROUBLE = ("fail", "unknown")
# Reasons that are one missing thing whatever the message says: rights of the login.
ONE_REASON = ("denied",)

# Checks that say why something is not known, by the reason that it has then.
TOLD_BY_REASON: Mapping[str, tuple[str, ...]] = {
    "denied": ("ssh.sudo",),
    "driver_library_mismatch": ("nv.module_vs_lib",),
    "gpu_lost": ("gpu.lost",),
    "reset_required": ("gpu.lost",),
    "nvml_not_started": ("gpu.lost",),
    "no_nvml_library": ("gpu.lost",),
    NO_START: ("python.env",),
    UNDECIDED: ("net.ports",),
}
# What is asked by code of the job is asked inside its runtime: this check says if that works.
RUNTIME = "rt.engine"


class Rules(Struct, frozen=True):
    """What may follow from what.

    `follows` has the checks that explain a check's trouble, `inside` the checks of what is asked in
    the job's runtime, and `between` those whose findings are about pairs of nodes, or about several
    nodes together.
    """

    follows: Mapping[str, tuple[str, ...]]
    inside: frozenset[str] = frozenset()
    between: frozenset[str] = frozenset()

    def causes_of(self, finding: Finding) -> tuple[str, ...]:
        """Return the names of the checks that may explain a finding."""
        causes = self.follows.get(finding.check, ())
        if finding.verdict != "unknown":
            return causes
        reason = finding.reason or ""
        # The reason of what is open may name the check that says more.
        causes = (*causes, reason, *TOLD_BY_REASON.get(reason, ()))
        if finding.check in self.inside:
            causes = (*causes, RUNTIME)
        return causes


def rules_of(checks: Iterable[Check], facts: Mapping[str, Fact]) -> Rules:
    """Return the rules that checks declare, and those that follow from how their facts are asked.

    A fact that no file defines, as a check of a site may name, says nothing.
    """
    follows: dict[str, tuple[str, ...]] = {}
    inside: set[str] = set()
    between: set[str] = set()
    for check in checks:
        follows[check.name] = check.follows
        for name in (*check.facts, *check.uses):
            fact = facts.get(name)
            if fact is None:
                continue
            if fact.deep and fact.needs.who == "job_user":
                inside.add(check.name)
            if fact.stage == "pairs" and name in check.facts:
                between.add(check.name)
    return Rules(follows, frozenset(inside), frozenset(between))


class CauseTree(Struct, frozen=True):
    """A finding that counts, and all that follows from it, also by way of others.

    `finding` has the highest severity of those below it that have its verdict.
    """

    finding: Finding
    consequences: tuple[Finding, ...] = ()


# ---------------------------------------------------------------- what follows from what


def with_causes(findings: Iterable[Finding], rules: Rules) -> tuple[Finding, ...]:
    """Return the findings, each with what it follows from.

    A finding that follows on some of its nodes only becomes several. One about pairs of nodes stays
    whole, and follows only with all of its nodes.
    """
    findings = tuple(findings)
    alike = _alike_nodes(findings)
    links = _Links(_of_one_each(findings, alike))
    for number, finding in enumerate(findings):
        if _is_trouble(finding):
            checks = rules.causes_of(finding)
            links.add_declared(number, checks, whole=finding.check in rules.between)
    links.add_gaps(rules.between)
    linked: list[Finding] = []
    for finding, causes in zip(findings, links.causes, strict=True):
        linked.extend(_split(finding, causes, alike))
    return tuple(linked)


def _alike_nodes(findings: Sequence[Finding]) -> dict[str, list[str]]:
    """Return the nodes with the same trouble, by the first of them; ten thousand may be a few."""
    troubles: dict[str, list[int]] = {}
    for number, finding in enumerate(findings):
        if _is_trouble(finding):
            for node in finding.nodes:
                troubles.setdefault(node, []).append(number)
    first: dict[tuple[int, ...], str] = {}
    alike: dict[str, list[str]] = {}
    for node, numbers in troubles.items():
        representative = first.setdefault(tuple(numbers), node)
        alike.setdefault(representative, []).append(node)
    return alike


def _of_one_each(findings: Iterable[Finding], alike: Container[str]) -> list[Finding]:
    """Return the findings about the first of nodes that are alike, what they follow from too."""
    reduced = []
    for finding in findings:
        if not _is_trouble(finding):
            reduced.append(finding)
            continue
        nodes = tuple(node for node in finding.nodes if node in alike)
        because = []
        for cause in finding.because:
            of_cause = tuple(node for node in cause.nodes if node in alike)
            because.append(Because(cause.check, of_cause))
        reduced.append(replace(finding, nodes=nodes, because=tuple(because)))
    return reduced


class _Links:
    """What explains each finding, for each of its nodes. Never a loop on any node."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = findings
        self._numbers = _numbers_by_check(findings)
        # For each finding, in their order: the checks that explain it on a node, by node.
        self.causes: list[dict[str, list[str]]] = [{} for _ in findings]
        # The same for all findings of a check together, by check and node: to see loops.
        self._causes_of_check: dict[tuple[str, str], set[str]] = {}

    def add_declared(self, number: int, checks: Iterable[str], *, whole: bool) -> None:
        """Link a finding to the checks that explain it where they are in trouble too.

        With `whole` it is linked only if each of its nodes is explained.
        """
        finding = self._findings[number]
        explained: dict[str, list[str]] = {}
        for check in dict.fromkeys(checks):
            by_node = self._numbers.get(check, {})
            for node in finding.nodes:
                if self._may_link(finding, check, by_node.get(node, ()), node):
                    explained.setdefault(node, []).append(check)
        if whole and len(explained) < len(finding.nodes):
            return
        for node, causes in explained.items():
            for cause in causes:
                self._add(number, node, cause)

    def add_gaps(self, between: Container[str]) -> None:
        """Link what one missing answer leaves unknown to the gravest finding that it leaves so.

        Those of the checks `between` are linked only if it explains each of their nodes.
        """
        leaders: dict[tuple[str, ...], dict[str, int]] = {}
        for number in self._open_gravest_first():
            finding = self._findings[number]
            leader_by_node = leaders.setdefault(_missing_answer(finding), {})
            loose = [node for node in finding.nodes if node not in self.causes[number]]
            explained: dict[str, str] = {}
            for node in loose:
                leader = leader_by_node.setdefault(node, number)
                cause = self._findings[leader].check
                if self._may_link(finding, cause, (leader,), node):
                    explained[node] = cause
            if finding.check in between and len(explained) < len(loose):
                continue
            for node, cause in explained.items():
                self._add(number, node, cause)

    def _open_gravest_first(self) -> list[int]:
        """Return the unknown findings that lack an answer. What has seen something is no gap."""
        numbers = []
        for number, finding in enumerate(self._findings):
            if finding.verdict == "unknown" and _is_trouble(finding) and not finding.seen:
                numbers.append(number)
        numbers.sort(key=lambda number: self._findings[number].severity != "error")
        return numbers

    def _may_link(self, finding: Finding, check: str, causes: Iterable[int], node: str) -> bool:
        """Return whether one of these findings of a check may explain a finding on a node."""
        if check == finding.check or self._follows(check, finding.check, node):
            return False
        return any(_may_follow(finding, self._findings[cause]) for cause in causes)

    def _add(self, number: int, node: str, cause: str) -> None:
        self.causes[number].setdefault(node, []).append(cause)
        key = (self._findings[number].check, node)
        self._causes_of_check.setdefault(key, set()).add(cause)

    def _follows(self, check: str, ancestor: str, node: str) -> bool:
        """Return whether a check follows from another one on a node, also by way of others."""
        seen: set[str] = set()
        left = [check]
        while left:
            current = left.pop()
            if current == ancestor:
                return True
            if current not in seen:
                seen.add(current)
                left.extend(self._causes_of_check.get((current, node), ()))
        return False


def _is_trouble(finding: Finding) -> bool:
    return finding.verdict in TROUBLE and finding.silenced is None and not finding.fixed


def _numbers_by_check(findings: Sequence[Finding]) -> dict[str, dict[str, list[int]]]:
    """Return the numbers of the findings that count, by check and node."""
    numbers: dict[str, dict[str, list[int]]] = {}
    for number, finding in enumerate(findings):
        if not _is_trouble(finding):
            continue
        by_node = numbers.setdefault(finding.check, {})
        for node in finding.nodes:
            by_node.setdefault(node, []).append(number)
    return numbers


def _may_follow(finding: Finding, cause: Finding) -> bool:
    """Return whether a finding may follow from a cause without hiding what the exit code says."""
    if finding.verdict == cause.verdict:
        return True
    if finding.verdict == "fail":
        return False
    return finding.severity == "warning" or cause.severity == "error"


def _missing_answer(finding: Finding) -> tuple[str, ...]:
    """Return what tells one missing answer from another."""
    reason = finding.reason or ""
    if reason in ONE_REASON:
        return (reason,)
    return (reason, finding.message)


def _split(
    finding: Finding, causes: Mapping[str, Sequence[str]], alike: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    """Yield a finding with its causes, in parts where its nodes have different ones.

    `causes` are those of the first of nodes that are `alike`.
    """
    if not causes:
        yield finding
        return
    parts: dict[tuple[str, ...], set[str]] = {}
    for node in finding.nodes:
        if node in alike:
            checks = tuple(causes.get(node, ()))
            parts.setdefault(checks, set()).update(alike[node])
    for names, members in parts.items():
        nodes = finding.nodes
        if len(parts) > 1:
            nodes = tuple(node for node in nodes if node in members)
        because = tuple(Because(name, nodes) for name in names)
        yield replace(finding, nodes=nodes, because=because)


# ---------------------------------------------------------------- what counts


def standing(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that count for themselves, with the severity that they count with."""
    return tuple(tree.finding for tree in cause_trees(tuple(findings)))


def cause_trees(findings: Sequence[Finding]) -> list[CauseTree]:
    """Return the findings that follow from no other one, each with all that follows from it.

    A finding whose causes are not among the findings stands for itself.
    """
    roots = _Roots(findings)
    below: dict[int, list[Finding]] = {}
    for number, finding in enumerate(findings):
        for root in roots.of(number):
            if root != number:
                below.setdefault(root, []).append(finding)
    trees = []
    for number, finding in enumerate(findings):
        if roots.of(number) == (number,):
            consequences = tuple(below.get(number, ()))
            trees.append(CauseTree(_raised(finding, consequences), consequences))
    return trees


def caused(trees: Iterable[CauseTree]) -> tuple[Finding, ...]:
    """Return what follows from other findings, each once."""
    findings: dict[Finding, None] = {}
    for tree in trees:
        findings.update(dict.fromkeys(tree.consequences))
    return tuple(findings)


def _raised(finding: Finding, consequences: Iterable[Finding]) -> Finding:
    """Return the finding with the highest severity of itself and what follows from it."""
    for consequence in consequences:
        if consequence.verdict == finding.verdict and consequence.severity == "error":
            return replace(finding, severity="error")
    return finding


class _Roots:
    """Finds the causes at the end of the links; of a finding without causes it is itself."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = findings
        self._numbers: Mapping[str, Mapping[str, Sequence[int]]] = {}
        self._known: dict[int, tuple[int, ...]] = {}
        has_links = any(finding.because for finding in findings)
        if has_links:  # without any, each finding is a root, and nothing is looked up
            self._findings = _of_one_each(findings, _alike_nodes(findings))
            self._numbers = _numbers_by_check(self._findings)

    def of(self, number: int) -> tuple[int, ...]:
        """Return the numbers of the findings that a finding follows from in the end."""
        known = self._known.get(number)
        if known is not None:
            return known
        # A report that was edited may have a loop: its findings stand for themselves.
        self._known[number] = (number,)
        roots: dict[int, None] = {}
        for cause in self._findings[number].because:
            by_node = self._numbers.get(cause.check, {})
            for node in cause.nodes:
                for parent in by_node.get(node, ()):
                    roots.update(dict.fromkeys(self.of(parent)))
        roots.pop(number, None)
        if roots:
            self._known[number] = tuple(roots)
        return self._known[number]
