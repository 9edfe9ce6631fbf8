"""Render the report as JUnit XML for CI: a suite per area, a test per check and node that counts.

A failure in CI is what makes the exit code 1, an error what makes it 3: a check that could not be
made. A warning does not count without --strict, so it is skipped with its message, as are silenced
findings and those that follow from another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.model import (
    BisectResult,
    ChangeRow,
    CollectiveResult,
    CommandResult,
    Culprit,
    Finding,
    Json,
    LaunchResult,
    Report,
    Stage,
    VerifyResult,
)
from clusterprep.model.units import pluralize
from clusterprep.reports.blocks import UNENDED, describe_ending
from clusterprep.reports.plain import clean, fold_nodes, fold_ranks, safe_text
from clusterprep.survey.consequences import cause_trees, caused

MOST_CASES = 1000  # tests of one finding, one per node; all other nodes share one more
NODES = 2000  # characters of a node set in a text
TEXT = 4000  # characters of one text; CI shows its logs on demand, so they may be long

Kind = Literal["pass", "failure", "error", "skipped"]

_CHANGE_KINDS: dict[str, Kind] = {
    "failed": "failure",
    "unanswered": "error",
    "rolled-back": "skipped",
    "not-started": "skipped",
}
_VERDICT_KINDS: dict[str, Kind] = {
    "pass": "pass",
    "fail": "failure",
    "unknown": "error",
    "skip": "skipped",
}


class Case(Struct, frozen=True):
    """One test: its outcome (`kind`), a line (`message`) and all that is known (`text`)."""

    suite: str
    name: str
    kind: Kind
    message: str = ""
    text: str = ""
    seconds: float = 0.0
    type: str = ""


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """Return the whole document."""
    return "".join(pieces(report))


def pieces(report: Report) -> Iterator[str]:
    """Yield the document in parts, one suite after the other."""
    suites = _suites(report)
    every: list[Case] = []
    for rows in suites.values():
        every += rows
    name = _join(" ", "clusterprep", report.command, report.cluster)
    head = _head(name, every, report.seconds)
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f"<testsuites {head}>\n"
    # JUnit's timestamps have no time zone.
    began = quoteattr(report.started.removesuffix("Z"))
    for suite, rows in suites.items():
        seconds = sum(case.seconds for case in rows)
        head = _head(suite, rows, seconds)
        yield f'  <testsuite {head} timestamp={began} hostname="localhost">\n'
        if suite == "clusterprep":
            yield _properties(report)
        for case in rows:
            yield _case(case)
        yield "  </testsuite>\n"
    yield "</testsuites>\n"


def _suites(report: Report) -> dict[str, list[Case]]:
    suites: dict[str, list[Case]] = {}
    for case in cases(report):
        suites.setdefault(case.suite, []).append(case)
    merged = {}
    for suite, rows in suites.items():
        merged[suite] = _merged(rows)
    return merged


def _merged(cases: Iterable[Case]) -> list[Case]:
    """Return each name once, because CI follows tests by name from run to run.

    The texts of tests of one name stand one below the other. A pass stays apart from the others.
    """
    merged: dict[tuple[str, bool], Case] = {}
    for case in cases:
        key = (case.name, case.kind == "pass")
        before = merged.get(key)
        if before is None:
            merged[key] = case
            continue
        text = _join("\n\n", before.text, case.text)
        seconds = before.seconds + case.seconds
        merged[key] = replace(before, text=text, seconds=seconds)
    return list(merged.values())


# ---------------------------------------------------------------- what is a test


def cases(report: Report) -> Iterator[Case]:
    """Yield a test for the command, then for nodes, findings and changes.

    The trial, the launch and the bisect come last.
    """
    yield _command(report)
    if report.findings is None:
        yield from _nodes(report)
    trees = cause_trees(report.findings or ())
    for tree in trees:
        yield from _finding(tree.finding, report.strict)
    for finding in caused(trees):
        yield _consequence(finding)
    for result in report.results or ():
        yield from _result(result)
    for row in report.changes or ():
        yield _change(row)
    if report.verify is not None:
        yield from _verify(report.verify)
    if report.launch is not None:
        yield _launch(report.launch)
    if report.bisect is not None:
        yield _bisect(report.bisect)


def _command(report: Report) -> Case:
    """Return the test of the command itself: CI takes a report without any test for broken."""
    name = f"clusterprep {report.command}"
    if report.error is None:
        notes = _long_texts(report.notices)
        return Case(
            "clusterprep",
            name,
            "pass",
            text="\n".join(notes),
            seconds=report.seconds,
        )
    message = str(report.error.get("message") or report.verdict)
    lines = message.split("\n")
    return Case(
        "clusterprep",
        name,
        "error",
        message=safe_text(lines[0]),
        text="\n".join(_long_texts(lines)),
        seconds=report.seconds,
        type=report.verdict,
    )


def _nodes(report: Report) -> Iterator[Case]:
    """Yield a test per node that was not reached, and one for all others.

    For reports without findings: elsewhere the check ssh.reach says it.
    """
    reached = []
    for node in report.nodes or ():
        if node.reached:
            reached.append(node.node)
            continue
        reason = node.reason or "not reached"
        kind: Kind = "error"
        if node.answered:
            kind = "failure"
        name = f"reach [{_node_name(node.node)}]"
        text = f"{_long_text(node.detail)}\nfix: {_long_text(node.remedy)}"
        if node.remedy.note:
            text += f"\nnote: {node.remedy.note}"
        yield Case(
            suite="nodes",
            name=name,
            kind=kind,
            message=safe_text(reason),
            text=text,
            type=reason,
        )
    if reached:
        nodes = fold_nodes(reached, NODES)
        yield Case("nodes", "reach", "pass", text=f"reached: {nodes}")


def _finding(finding: Finding, strict: bool) -> Iterator[Case]:
    """Yield one test for all nodes of a pass or of what does not count, else one per node."""
    suite = finding.check.split(".")[0]
    message = _message(finding)
    text = _details(finding)
    kind = _finding_kind(finding, strict)
    names = [finding.check]
    about = ""
    if kind == "skipped":
        # The name tells it from the passed test of the same check on other nodes.
        reason = _skip_reason(finding)
        names = [f"{finding.check} ({reason})"]
    elif kind != "pass":
        names = _failed_names(finding.check, finding.nodes)
        about = f"{finding.severity} {finding.reason or finding.verdict}"
    for name in names:
        yield Case(
            suite=suite,
            name=name,
            kind=kind,
            message=message,
            text=text,
            type=about,
        )


def _consequence(finding: Finding) -> Case:
    """Return the test of what follows from other findings, which do count."""
    causes = []
    for cause in finding.because:
        causes.append(f"{cause.check} on {fold_nodes(cause.nodes, NODES)}")
    return Case(
        suite=finding.check.split(".")[0],
        name=f"{finding.check} (consequence)",
        kind="skipped",
        message=safe_text(f"{_message(finding)}; follows from {', '.join(causes)}"),
        text=_details(finding),
    )


def _finding_kind(finding: Finding, strict: bool) -> Kind:
    if finding.verdict == "pass" or finding.fixed:
        return "pass"
    counts = strict or finding.severity == "error"
    if finding.verdict == "skip" or finding.silenced is not None or not counts:
        return "skipped"
    if finding.verdict == "fail":
        return "failure"
    return "error"


def _failed_names(about: str, nodes: Sequence[str]) -> list[str]:
    """Return the names of the tests of what failed: `check [node]` for each node, or it alone."""
    if not nodes:
        return [about]
    names = []
    for node in nodes[:MOST_CASES]:
        if node:
            names.append(f"{about} [{_node_name(node)}]")
        else:
            names.append(about)
    remaining = len(nodes) - MOST_CASES
    if remaining > 0:
        more = pluralize(remaining, "more node")
        names.append(f"{about} [{more}]")
    return names


def _skip_reason(finding: Finding) -> str:
    """Return why a finding does not count, in a word for the test's name."""
    if finding.silenced is not None:
        return "silenced"
    if finding.verdict == "skip":
        return safe_text(finding.reason or "skip", 80)
    return finding.severity


def _message(finding: Finding) -> str:
    """Return a line with the verdict and what was seen, or why the finding does not count."""
    if finding.silenced is not None:
        return safe_text(f"accepted: {finding.silenced}")
    if finding.verdict == "skip":
        return safe_text(f"not judged: {finding.reason or finding.message}")
    parts = [finding.message, finding.reason or ""]
    if finding.verdict != "pass":
        parts.insert(0, f"{finding.verdict} ({finding.severity})")
    value = finding.seen
    if finding.seen and finding.wanted:
        value = f"{finding.seen}, wanted {finding.wanted}"
    parts.append(value)
    return safe_text(_join("; ", *parts))


def _details(finding: Finding) -> str:
    """Return all that is known of a finding, a line each."""
    rows = {"nodes": fold_nodes(finding.nodes, NODES)}
    rows["what"] = _long_text(finding.message)
    rows["seen"] = _long_text(finding.seen)
    rows["wanted"] = _long_text(finding.wanted)
    rows["reason"] = _long_text(finding.reason or "")
    if finding.fixed:
        rows["fixed"] = "by this run"
    if finding.verdict != "pass":
        rows["fix"] = _long_text(finding.remedy)
        rows["note"] = finding.remedy.note
    lines = []
    for key, text in rows.items():
        if not text:
            continue
        line = f"{key}: {text}"
        lines.append(line)
    return "\n".join(lines)


def _result(result: CommandResult) -> Iterator[Case]:
    """Yield one test for all nodes on which a command ended with 0, else one per node."""
    kind: Kind = "pass"
    names = ["command"]
    ending = describe_ending(result)
    if ending:
        kind = "error" if result.reason in UNENDED else "failure"
        names = _failed_names("command", result.nodes)
    lines = [f"nodes: {fold_nodes(result.nodes, NODES)}"]
    for output in (result.stdout, result.stderr):
        if output.strip():
            lines += _long_texts(output.rstrip().split("\n"))
    for name in names:
        yield Case(
            suite="command",
            name=name,
            kind=kind,
            message=ending,
            text="\n".join(lines),
            seconds=result.seconds,
            type=result.reason or "exit",
        )


def _change(row: ChangeRow) -> Case:
    """Return the test of a change. What was rolled back or not started because of it is skipped."""
    kind = _CHANGE_KINDS.get(row.outcome, "pass")
    name = _join(" ", row.resource, safe_text(row.target))
    message = ""
    if kind != "pass":
        name = _join(" ", name, row.outcome)
        message = safe_text(row.detail or row.outcome)
    nodes = fold_nodes(row.nodes, NODES)
    lines = [f"{row.action}: {row.outcome} on {nodes}", _long_text(row.detail)]
    diff = row.diff.rstrip()
    lines += _long_texts(diff.split("\n"))
    text = "\n".join(lines)
    return Case(
        suite="changes",
        name=name,
        kind=kind,
        message=message,
        text=text.strip(),
        type=row.outcome,
    )


def _verify(result: VerifyResult) -> Iterator[Case]:
    """Yield a test for each stage with its time; the last one that failed names the culprits."""
    explanation = _join("\n", _long_text(result.message), *_culprits(result.culprits))
    failed = [stage for stage in result.stages if stage.verdict in ("fail", "unknown")]
    for stage in result.stages:
        if failed and stage is failed[-1]:
            yield _stage(stage, explanation)
        else:
            yield _stage(stage, "")
    # Where no stage failed, the verdict is a matter of the whole trial.
    if not failed:
        yield _verify_result(result, explanation)


def _stage(stage: Stage, explanation: str) -> Case:
    kind = _VERDICT_KINDS[stage.verdict]
    missing = ""
    if stage.missing:
        missing = f"missing: rank {fold_ranks(stage.missing)}"
    message = missing
    about = ""
    if kind != "pass":
        message = missing or f"{stage.name}: {stage.verdict}"
        about = "stage"
    return Case(
        suite="verify",
        name=f"stage {safe_text(stage.name)}",
        kind=kind,
        message=message,
        text=_join("\n", missing, explanation),
        seconds=stage.seconds,
        type=about,
    )


def _verify_result(result: VerifyResult, explanation: str) -> Case:
    kind = _VERDICT_KINDS[result.verdict]
    speeds = [_speed(row) for row in result.collectives]
    text = "\n".join([explanation, *speeds]).strip()
    if kind == "pass":
        return Case("verify", "result", kind, text=text)
    message = safe_text(result.message or result.verdict)
    return Case(
        suite="verify",
        name="result",
        kind=kind,
        message=message,
        text=text,
        type="result",
    )


def _speed(row: CollectiveResult) -> str:
    return f"{row.op} {row.dtype} {row.bytes} bytes: {row.busbw_gbs:.3f} GB/s"


def _culprits(culprits: Iterable[Culprit]) -> list[str]:
    texts = []
    for culprit in culprits:
        nodes = fold_nodes(culprit.nodes, NODES)
        cause = _long_text(culprit.cause)
        sure = f"{culprit.confidence:.0%} sure"
        lines = [f"culprit: {culprit.kind} {nodes}, {sure}: {cause}"]
        for evidence in culprit.evidence:
            text = _long_text(evidence)
            lines.append(f"  - {text}")
        texts.append("\n".join(lines))
    return texts


def _launch(result: LaunchResult) -> Case:
    culprits = _culprits(result.culprits)
    causes = [_cause(cause) for cause in result.causes]
    text = _join("\n", _long_text(result.message), *culprits, *causes)
    kind = _VERDICT_KINDS.get(result.verdict, "error")
    if kind == "pass":
        return Case("launch", "job", kind, text=text)
    message = result.message or result.verdict
    if result.culprits:
        message = result.culprits[0].cause
    return Case(
        suite="launch",
        name="job",
        kind=kind,
        message=safe_text(message),
        text=text,
        type="job",
    )


def _bisect(result: BisectResult) -> Case:
    """Return the bisect as one test. Culprits are its failure."""
    text = _join("\n", _long_text(result.message), *_culprits(result.culprits))
    kind = _VERDICT_KINDS.get(result.verdict, "error")
    if kind == "pass":
        return Case("bisect", "command", kind, text=text)
    message = result.message or result.verdict
    if result.culprits:
        message = result.culprits[0].cause
    return Case(
        suite="bisect",
        name="command",
        kind=kind,
        message=safe_text(message),
        text=text,
        type="job",
    )


def _cause(cause: Mapping[str, Json]) -> str:
    message = _long_text(str(cause.get("message")))
    return f"log says {cause.get('cause')}: {message}"


# ---------------------------------------------------------------- XML


def _head(name: str, cases: Sequence[Case], seconds: float) -> str:
    """Return the attributes of a suite, or of all suites."""
    failures = 0
    errors = 0
    skipped = 0
    for case in cases:
        if case.kind == "failure":
            failures += 1
        elif case.kind == "error":
            errors += 1
        elif case.kind == "skipped":
            skipped += 1
    title = f"name={_attribute(name)}"
    numbers = f'tests="{len(cases)}" failures="{failures}" errors="{errors}" skipped="{skipped}"'
    return f'{title} {numbers} time="{seconds:.3f}"'


def _properties(report: Report) -> str:
    values = {
        "run": report.run,
        "cluster": report.cluster,
        "verdict": report.verdict,
        "exit code": str(report.code),
    }
    lines = ["    <properties>\n"]
    for key, value in values.items():
        lines.append(f'      <property name="{key}" value={_attribute(value)}/>\n')
    lines.append("    </properties>\n")
    return "".join(lines)


def _case(case: Case) -> str:
    """Return the element of a test, with its text as system-out or as that of the outcome."""
    classname = _attribute(f"clusterprep.{case.suite}")
    name = _attribute(case.name)
    head = f'    <testcase classname={classname} name={name} time="{case.seconds:.3f}"'
    text = escape(case.text)
    if case.kind == "pass":
        if not text:
            return f"{head}/>\n"
        return f"{head}><system-out>{text}</system-out></testcase>\n"
    attributes = f"message={_attribute(case.message)}"
    if case.type:
        attributes += f" type={_attribute(case.type)}"
    outcome = f"<{case.kind} {attributes}>{text}</{case.kind}>"
    return f"{head}>\n      {outcome}\n    </testcase>\n"


def _attribute(text: str) -> str:
    return quoteattr(clean(text))


def _join(separator: str, *texts: str) -> str:
    """Join the texts that are not empty."""
    return separator.join(text for text in texts if text)


def _node_name(node: str) -> str:
    return safe_text(node, 128)


def _long_texts(texts: Iterable[str]) -> list[str]:
    return [_long_text(text) for text in texts]


def _long_text(text: str) -> str:
    """Return clean text: XML may not hold control characters and lone surrogates, even escaped."""
    return safe_text(text, TEXT)
