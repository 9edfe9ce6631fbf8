"""Group and count the findings of a report: equal findings of one check, the gravest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date

from msgspec import Struct

from clusterprep.model import (
    BisectResult,
    ChangeRow,
    CommandResult,
    Culprit,
    Finding,
    NodeSnapshot,
    Report,
)
from clusterprep.model.units import pluralize
from clusterprep.remedies import Remedy, sentence, shell_line
from clusterprep.remote.agent.readers import NO_START
from clusterprep.reports.plain import distinct, nonblank_lines, safe_text
from clusterprep.survey.cached import RENEW
from clusterprep.survey.consequences import cause_trees

# The order of trouble by verdict and severity, the gravest first.
GRAVITY = {
    ("fail", "error"): 0,
    ("fail", "warning"): 1,
    ("unknown", "error"): 2,
    ("unknown", "warning"): 3,
}
LABELS = {
    ("fail", "error"): "FAIL",
    ("fail", "warning"): "WARN",
    ("unknown", "error"): "UNKNOWN",
    ("unknown", "warning"): "UNKNOWN",
}

# What to do about a missing answer, by its reason. It does not depend on the check that needed it.
GAP_REMEDIES: Mapping[str, Remedy] = {
    "denied": sentence(
        "run it with sudo on the nodes (-b, --become), or as a user who may read it"
    ),
    "missing_tool": sentence("install on the node what the message names"),
    NO_START: sentence("set `python:` to an interpreter that starts on the node"),
    "hung": shell_line(
        "dmesg -T | tail -50   # on the node: a driver or a file system that does not answer"
    ),
    "the budget ended": shell_line(
        "uptime; dmesg -T | tail -50   # on the node: then the same check without --budget"
    ),
    "never stored": RENEW,
    "out of date": RENEW,
    "timed_out": shell_line(
        "dmesg -T | tail -50; uptime   # on the node: what does not answer, or too much load"
    ),
}

# Where sudo would not help, or it is not known whether it would.
_MORE_RIGHTS = sentence("look as a user who may read it; from a container, on its host")

_SET_PYTHON = sentence("set `python:` in the inventory to the interpreter of the job")
WITH_PYTHON = "with python: set"

# What would make a missing answer known, by its reason.
_WAYS = {
    "denied": "with more rights",
    "missing_tool": "with a tool that the node lacks",
    NO_START: "with an interpreter that starts",
    "hung": "once the node answers again",
    "timed_out": "once the node answers in time",
    "the budget ended": "without --budget",
    "truncated": "with a longer log",
    "never stored": "after check --deep --store",
    "out of date": "after check --deep --store",
}

# Why a command of `exec` has no exit code; UNENDED are those of which it is not known whether it
# would have failed.
_ENDINGS = {
    "timed_out": "still running when the time was up",
    "hung": "lost: the connection ended before the command did",
    "killed": "ended by a signal",
}
UNENDED = ("timed_out", "hung")

# The fields of a finding that all findings of a block have in common.
_COMMON = ("check", "verdict", "severity", "reason", "fixed", "silenced", "until")


class Block(Struct, frozen=True):
    """Findings of one check that differ only in their nodes, values and texts.

    `consequences` are the findings of other checks that follow from them.
    """

    findings: tuple[Finding, ...]
    consequences: tuple[Finding, ...] = ()

    @property
    def check(self) -> str:
        return self.findings[0].check

    @property
    def verdict(self) -> str:
        return self.findings[0].verdict

    @property
    def severity(self) -> str:
        return self.findings[0].severity

    @property
    def reason(self) -> str | None:
        return self.findings[0].reason

    @property
    def fixed(self) -> bool:
        return self.findings[0].fixed

    @property
    def silenced(self) -> str | None:
        return self.findings[0].silenced

    @property
    def until(self) -> date | None:
        return self.findings[0].until

    @property
    def nodes(self) -> tuple[str, ...]:
        return nodes_of(self.findings)

    @property
    def messages(self) -> Sequence[str]:
        """The different messages."""
        return distinct(finding.message for finding in self.findings)

    @property
    def remedies(self) -> Sequence[Remedy]:
        """The different remedies."""
        remedies = dict.fromkeys(finding.remedy for finding in self.findings)
        return [remedy for remedy in remedies if remedy]

    @property
    def valued(self) -> list[Finding]:
        """The findings that say what was seen or wanted."""
        return [finding for finding in self.findings if finding.seen or finding.wanted]

    @property
    def age(self) -> float | None:
        """Seconds since the oldest answer; None if all of them are of this run."""
        oldest = None
        for finding in self.findings:
            age = finding.age
            if age is None:
                continue
            if oldest is None or age > oldest:
                oldest = age
        return oldest


def nodes_of(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the nodes of all findings, each once, in order."""
    names: dict[str, None] = {}
    for finding in findings:
        names.update(dict.fromkeys(finding.nodes))
    return tuple(names)


def blocks_of(findings: Iterable[Finding]) -> list[Block]:
    """Return findings grouped into blocks, in the order of each block's first finding.

    Failures that name no node (of lint, for example) are grouped only if they are equal.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        key = _group_key(finding)
        groups.setdefault(key, []).append(finding)
    return [Block(tuple(group)) for group in groups.values()]


def _group_key(finding: Finding) -> tuple[object, ...]:
    """Return what the findings of one block have in common."""
    key: list[object] = [getattr(finding, name) for name in _COMMON]
    if finding.verdict == "fail" and not finding.nodes:
        key += (finding.message, finding.seen)
    return tuple(key)


def troubles(findings: Iterable[Finding]) -> list[Block]:
    """Return what counts, or would count with --strict: failures first, errors before warnings.

    What follows from another finding is among the consequences of that one, which has the highest
    severity of them.
    """
    trees = cause_trees(tuple(findings))
    below: dict[tuple[object, ...], dict[Finding, None]] = {}
    for tree in trees:
        key = _group_key(tree.finding)
        below.setdefault(key, {}).update(dict.fromkeys(tree.consequences))
    blocks = []
    for block in blocks_of(tree.finding for tree in trees):
        if block.fixed or block.silenced:
            continue
        if (block.verdict, block.severity) in GRAVITY:
            consequences = tuple(below[_group_key(block.findings[0])])
            blocks.append(Block(block.findings, consequences))
    return sorted(blocks, key=_place)


def _place(block: Block) -> tuple[int, bool]:
    """Return the place of a block among others; of those as grave, nodes not reached are first.

    Such a node leaves others without a peer to be compared with.
    """
    return gravity(block), block.check != "ssh.reach"


def gravity(block: Block) -> int:
    """Return the place of a block of trouble in the order of gravity; 0 is the gravest."""
    return GRAVITY[block.verdict, block.severity]


def accepted(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks of trouble that are silenced and that this run did not fix."""
    silenced = []
    for block in blocks:
        is_trouble = block.verdict in ("fail", "unknown")
        if is_trouble and block.silenced and not block.fixed:
            silenced.append(block)
    return silenced


def group_gaps(blocks: Iterable[Block]) -> list[list[Block]]:
    """Return blocks in groups: unknown checks that the same missing answer leaves open together.

    One missing answer can leave several checks open, and there is one thing to mend. Every other
    block is a group of its own.
    """
    groups: dict[tuple[object, ...], list[Block]] = {}
    for block in blocks:
        key: tuple[object, ...] = (len(groups),)  # no other group has this key
        if _is_gap(block):
            key = (block.severity, block.reason, block.nodes, *block.messages)
        group = groups.setdefault(key, [])
        group.append(block)
        group.extend(left_open(block))
    return list(groups.values())


def left_open(block: Block) -> list[Block]:
    """Return the other checks that are unknown for the same reason as this block's."""
    if not _is_gap(block):
        return []
    same = [finding for finding in block.consequences if finding.reason == block.reason]
    return blocks_of(same)


def follows_of(block: Block) -> list[Block]:
    """Return what follows from a block, the gravest first, without what `group_gaps` adds to it.

    The findings of one check are one block, whatever their reasons.
    """
    consequences = block.consequences
    if _is_gap(block):
        consequences = tuple(each for each in consequences if each.reason != block.reason)
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in consequences:
        key = (finding.check, finding.verdict, finding.severity)
        groups.setdefault(key, []).append(finding)
    blocks = [Block(tuple(group)) for group in groups.values()]
    return sorted(blocks, key=gravity)


def _is_gap(block: Block) -> bool:
    """Return True for a check that is unknown because an answer is missing."""
    if block.verdict != "unknown":
        return False
    return not any(finding.seen for finding in block.findings)


def unreported_nodes(report: Report) -> list[NodeSnapshot]:
    """Return the nodes that were not reached and of which no finding of ssh.reach says so."""
    reported: set[str] = set()
    for finding in report.findings or ():
        if finding.check == "ssh.reach":
            reported.update(finding.nodes)
    unreported = []
    for node in report.nodes or ():
        if node.reached:
            continue
        if node.node not in reported:
            unreported.append(node)
    return unreported


def number_reached(report: Report) -> int:
    """Return how many nodes were reached."""
    return sum(node.reached for node in report.nodes or ())


def culprits_of(report: Report) -> list[Culprit]:
    """Return the culprits of the trial, of the launch and of the bisect."""
    culprits: list[Culprit] = []
    if report.verify is not None:
        culprits += report.verify.culprits
    if report.launch is not None:
        culprits += report.launch.culprits
    if report.bisect is not None:
        culprits += report.bisect.culprits
    return culprits


def gap_remedy(gap: Block) -> Remedy:
    """Return what to do about a missing answer. A check's own remedy is for what it would find."""
    if gap.reason == "denied" and not gap.remedies:
        return _MORE_RIGHTS
    if way_to_know(gap) == WITH_PYTHON:
        return _SET_PYTHON
    remedy = GAP_REMEDIES.get(gap.reason or "")
    if remedy is not None:
        return remedy
    return shell_line(
        "clusterprep explain {check}   # how it is measured, and what that needs", check=gap.check
    )


def way_to_know(gap: Block) -> str:
    """Return what would make an unknown check known, such as `with --become`."""
    if gap.reason == "denied" and gap.remedies:
        return "with --become"  # the engine proposes it where root would learn more
    if gap.reason == "missing_tool" and any("`python:`" in text for text in gap.messages):
        return WITH_PYTHON
    reason = gap.reason or "not determined"
    return _WAYS.get(reason, f"see explain ({safe_text(reason, 40)})")


def summarize(report: Report) -> str:
    """Return `1 error, 2 warnings, 0 unknown on 16 nodes`, then what does not count.

    What gave the verdict stands first where no finding did, such as a change that failed.
    """
    nodes = ""
    if report.nodes:
        nodes = f" on {pluralize(len(report.nodes), 'node')}"
    if report.findings is None:
        return _summarize_without_findings(report, nodes)
    kinds = Counter((block.verdict, block.severity) for block in troubles(report.findings))
    errors = pluralize(kinds["fail", "error"], "error")
    warnings = pluralize(kinds["fail", "warning"], "warning")
    unknown = _summarize_unknown(kinds, report.strict)
    text = f"{errors}, {warnings}, {unknown}{nodes}"
    text += _summarize_not_counting(report.findings)
    text += _summarize_not_cured(report)
    decided = _decided_by(report, kinds)
    return f"{decided}; {text}" if decided else text


def _summarize_unknown(kinds: Mapping[tuple[str, str], int], strict: bool) -> str:
    """Return `3 unknown`; with how many could only be warnings, which decide no verdict."""
    warnings = kinds["unknown", "warning"]
    unknown = kinds["unknown", "error"] + warnings
    text = f"{unknown} unknown"
    if strict or not warnings:
        return text
    if warnings < unknown:
        return f"{text} ({warnings} at most a warning)"
    return f"{text} (at most a warning)"


def _summarize_not_cured(report: Report) -> str:
    """Return `, 2 not cured` for a fix whose steps did not help everywhere."""
    left = Counter(row.outcome for row in report.fixes or ())["not cured"]
    return f", {left} not cured" if left else ""


def _decided_by(report: Report, kinds: Mapping[tuple[str, str], int]) -> str:
    """Return what gave the report its verdict, "" if a finding did or nothing was wrong.

    `kinds` has the number of blocks of trouble by verdict and severity.
    """
    severities = ("error", "warning") if report.strict else ("error",)
    if report.verdict == "pass" or any(kinds[report.verdict, one] for one in severities):
        return ""
    if report.lists is not None and report.lists.wanted is not None:
        return f"--pick {report.lists.wanted} chose none"
    return _decided_by_changes(report) or _decided_by_ranks(report)


def _decided_by_changes(report: Report) -> str:
    """Return which changes gave the report its verdict, "" if none did."""
    counts = Counter(row.outcome for row in report.changes or ())
    if report.verdict == "fail" and counts["failed"]:
        return f"{pluralize(counts['failed'], 'change')} failed"
    if report.verdict == "fail" and counts["not-started"] and not counts["done"]:
        return "no change was started"
    if counts["unanswered"]:
        return f"{pluralize(counts['unanswered'], 'change')} without an answer"
    return ""


def _decided_by_ranks(report: Report) -> str:
    """Return whether launch or verify gave the report its verdict, "" if neither did."""
    if report.launch is not None and report.launch.timed_out:
        return "launch ran out of time"
    words = {"fail": "failed", "unknown": "is not known to have worked"}
    if report.bisect is not None and report.bisect.verdict == report.verdict:
        return _summarize_bisect(report.bisect)
    for name, result in (("launch", report.launch), ("verify", report.verify)):
        if result is not None and result.verdict == report.verdict in words:
            return f"{name} {words[result.verdict]}"
    return ""


def _summarize_bisect(bisect: BisectResult) -> str:
    runs = pluralize(len(bisect.runs), "run")
    if bisect.verdict == "unknown":
        return f"undecided after {runs}"
    return f"{pluralize(len(bisect.culprits), 'culprit')} found in {runs}"


def _summarize_without_findings(report: Report, nodes: str) -> str:
    if report.error is None and report.env is None:
        if report.changes is not None:
            return _summarize_changes(report.changes, nodes)
        if report.results is not None and report.verify is None:
            return _summarize_results(report.results, nodes)
    return _summarize_rest(report) + nodes


def _summarize_rest(report: Report) -> str:
    if report.error is not None:
        message = str(report.error.get("message") or "")
        return pluralize(len(nonblank_lines(message)), "problem")
    if report.env is not None:
        names = set()
        for value in report.env:
            names.add(value.name)
        return pluralize(len(names), "variable")
    if report.verify is not None:
        return f"verify {report.verify.verdict}"
    return "finished"


def _summarize_changes(changes: Iterable[ChangeRow], nodes: str) -> str:
    """Return `2 changes on 4 nodes, 1 failed`."""
    counts = {"changed": 0, "failed": 0, "unanswered": 0}
    for row in changes:
        if row.outcome in counts:
            counts[row.outcome] += 1
        elif row.outcome != "unchanged":
            counts["changed"] += 1
    text = pluralize(counts["changed"], "change") + nodes
    for outcome in ("failed", "unanswered"):
        if counts[outcome]:
            text += f", {counts[outcome]} {outcome}"
    return text


def _summarize_results(results: Sequence[CommandResult], nodes: str) -> str:
    """Return `3 results on 4 nodes; exit code not 0 on 1 node, not known on 2 nodes`."""
    counts = {"not 0": 0, "not known": 0}
    for result in results:
        if result.reason in UNENDED:
            counts["not known"] += len(result.nodes)
        elif result.exit_code != 0:
            counts["not 0"] += len(result.nodes)
    parts = []
    for what, count in counts.items():
        if count:
            parts.append(f"{what} on {pluralize(count, 'node')}")
    text = pluralize(len(results), "result") + nodes
    if parts:
        text += f"; exit code {', '.join(parts)}"
    return text


def describe_ending(result: CommandResult) -> str:
    """Return `exit code 2`, or why a command has none. Empty if it ended with 0."""
    if result.exit_code == 0:
        return ""
    if result.exit_code is not None:
        return f"exit code {result.exit_code}"
    return _ENDINGS.get(result.reason or "", "not known how it ended")


def _summarize_not_counting(findings: Iterable[Finding]) -> str:
    fixed = 0
    silenced = 0
    for block in blocks_of(findings):
        if block.fixed:
            fixed += 1
        elif block.silenced:
            silenced += 1
    text = ""
    if fixed:
        text += f", {fixed} fixed"
    if silenced:
        text += f", {silenced} silenced"
    return text
