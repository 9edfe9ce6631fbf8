"""The report for CI systems: JUnit's XML, a suite for each area, a failed test for each check and node that counts.

What CI calls failed is what makes the exit code 1, and an error is what makes it 3: a check that could not be made. A
warning does not count without --strict, so it is skipped with its message, as are silenced findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from clusterprep.model import ChangeRow, Culprit, Finding, LaunchResult, Report, VerifyResult
from clusterprep.reports.plain import clean, counted, field, folded, folded_ranks
from clusterprep.runtime.lazy_dataclass import dataclass

MOST_CASES = 1000  # of one finding, one for each node; all other nodes are in one more
NODES = 2000  # characters of a node set in a text
TEXT = 4000  # characters of one field: logs of CI are read on demand

Kind = Literal["pass", "failure", "error", "skipped"]


@dataclass(frozen=True)
class Case:
    """One test: `kind` is what became of it, `message` a line and `text` the story."""

    suite: str
    name: str
    kind: Kind
    message: str = ""
    text: str = ""
    seconds: float = 0.0
    type: str = ""


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """The whole document."""
    return "".join(pieces(report))


def pieces(report: Report) -> Iterator[str]:
    """The same in parts, a suite each."""
    suites: dict[str, list[Case]] = {}
    for case in cases(report):
        suites.setdefault(case.suite, []).append(case)
    name = " ".join(filter(None, ["clusterprep", report.command, report.cluster]))
    suites = {suite: _merged(mine) for suite, mine in suites.items()}
    every = [case for suite in suites.values() for case in suite]
    yield f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites {_head(name, every, report.seconds)}>\n'
    for suite, mine in suites.items():
        began = report.started.removesuffix("Z")
        seconds = sum(case.seconds for case in mine)
        yield f'  <testsuite {_head(suite, mine, seconds)} timestamp={quoteattr(began)} hostname="localhost">\n'
        yield _properties(report) if suite == "clusterprep" else ""
        yield from map(_case, mine)
        yield "  </testsuite>\n"
    yield "</testsuites>\n"


def _merged(cases: Iterable[Case]) -> list[Case]:
    """Each name once, as CI follows tests by it from run to run; what differs stands one below the other."""
    found: dict[tuple[str, bool], Case] = {}
    for case in cases:
        key = case.name, case.kind == "pass"
        if key not in found:
            found[key] = case
            continue
        before = found[key]
        text = "\n\n".join(filter(None, [before.text, case.text]))
        found[key] = replace(before, text=text, seconds=before.seconds + case.seconds)
    return list(found.values())


# ---------------------------------------------------------------- what is a test


def cases(report: Report) -> Iterator[Case]:
    """How the command ended, then nodes, findings by area, changes, the trial, the launch."""
    yield _command(report)
    if report.findings is None:
        yield from _nodes(report)
    for one in report.findings or ():
        yield from _finding(one, report.strict)
    for row in report.changes or ():
        yield from _change(row)
    if report.verify is not None:
        yield from _verify(report.verify)
    if report.launch is not None:
        yield _launch(report.launch)


def _command(report: Report) -> Case:
    """There is always a test: a report without any is taken for a broken one."""
    if report.error is None:
        notes = "\n".join(_text(notice) for notice in report.notices)
        return Case(
            "clusterprep",
            f"clusterprep {report.command}",
            "pass",
            text=notes,
            seconds=report.seconds,
        )
    message = str(report.error.get("message") or report.verdict)
    first = field(message.split("\n", maxsplit=1)[0])
    text = "\n".join(_text(line) for line in message.split("\n"))
    return Case(
        "clusterprep",
        f"clusterprep {report.command}",
        "error",
        first,
        text,
        report.seconds,
        report.verdict,
    )


def _nodes(report: Report) -> Iterator[Case]:
    """Where no check speaks of them."""
    for node in report.nodes or ():
        name, reason = f"reach [{_name(node.node)}]", node.reason or "not reached"
        if not node.reached:
            kind: Kind = "failure" if node.answered else "error"
            yield Case(
                "nodes",
                name,
                kind,
                field(reason),
                f"{_text(node.detail)}\nfix: {_text(node.remedy)}",
                type=reason,
            )
    if reached := [node.node for node in report.nodes or () if node.reached]:
        yield Case("nodes", "reach", "pass", text=f"reached: {folded(reached, NODES)}")


def _finding(one: Finding, strict: bool) -> Iterator[Case]:
    """A pass is one test for all its nodes, and so is what does not count; what counts is one for each node."""
    suite, counts = one.check.split(".")[0], strict or one.severity == "error"
    text = _story(one)
    if one.verdict in ("pass", "skip") or one.fixed or one.silenced is not None or not counts:
        kind: Kind = "pass" if one.verdict == "pass" or one.fixed else "skipped"
        yield Case(
            suite, one.check + ("" if kind == "pass" else _aside(one)), kind, _why(one), text
        )
        return
    kind = "failure" if one.verdict == "fail" else "error"
    nodes = one.nodes or ("",)
    for node in nodes[:MOST_CASES]:
        name = f"{one.check} [{_name(node)}]" if node else one.check
        yield Case(
            suite, name, kind, _why(one), text, type=f"{one.severity} {one.reason or one.verdict}"
        )
    if rest := nodes[MOST_CASES:]:
        name = f"{one.check} [{counted(len(rest), 'more node')}]"
        yield Case(
            suite, name, kind, _why(one), text, type=f"{one.severity} {one.reason or one.verdict}"
        )


def _aside(one: Finding) -> str:
    """What tells a skipped test from the passed one of the same check on other nodes."""
    word = (
        "silenced"
        if one.silenced is not None
        else one.severity
        if one.verdict != "skip"
        else one.reason or "skip"
    )
    return f" ({field(word, 80)})"


def _why(one: Finding) -> str:
    """A line."""
    if one.silenced is not None:
        return field(f"accepted: {one.silenced}")
    if one.verdict == "skip":
        return field(f"not judged: {one.reason or one.message}")
    words = [
        f"{one.verdict} ({one.severity})" if one.verdict != "pass" else "",
        one.message,
        one.reason or "",
    ]
    seen = f"{one.seen}, wanted {one.wanted}" if one.seen and one.wanted else one.seen
    return field("; ".join(filter(None, [*words, seen])))


def _story(one: Finding) -> str:
    rows = {
        "nodes": folded(one.nodes, NODES),
        "what": _text(one.message),
        "seen": _text(one.seen),
        "wanted": _text(one.wanted),
        "reason": _text(one.reason or ""),
        "fixed": "by this run" if one.fixed else "",
        "fix": _text(one.remedy) if one.verdict != "pass" else "",
    }
    return "\n".join(f"{key}: {words}" for key, words in rows.items() if words)


def _change(row: ChangeRow) -> Iterator[Case]:
    """What failed is a failure; what was put back or not begun because of it was not tested."""
    kind = _OUTCOMES.get(row.outcome, "pass")
    name = " ".join(
        filter(None, [row.resource, field(row.target), "" if kind == "pass" else row.outcome])
    )
    lines = (_text(line) for line in row.diff.rstrip().split("\n"))
    text = "\n".join(
        [f"{row.action}: {row.outcome} on {folded(row.nodes, NODES)}", _text(row.detail), *lines]
    ).strip()
    message = "" if kind == "pass" else field(row.detail or row.outcome)
    yield Case("changes", name, kind, message, text, type=row.outcome)


_OUTCOMES: dict[str, Kind] = {
    "failed": "failure",
    "rolled-back": "skipped",
    "not-started": "skipped",
}


def _verify(result: VerifyResult) -> Iterator[Case]:
    """A test for each stage with its time; the last that failed names the culprits."""
    story = "\n".join(filter(None, [_text(result.message), *map(_culprit, result.culprits)]))
    bad = [stage for stage in result.stages if stage.verdict in ("fail", "unknown")]
    for stage in result.stages:
        late = f"missing: rank {folded_ranks(stage.missing)}" if stage.missing else ""
        kind = _KINDS[stage.verdict]
        text = "\n".join(filter(None, [late, story if bad and stage is bad[-1] else ""]))
        message = late or (f"{stage.name}: {stage.verdict}" if kind != "pass" else "")
        yield Case(
            "verify",
            f"stage {field(stage.name)}",
            kind,
            message,
            text,
            stage.seconds,
            "stage" * (kind != "pass"),
        )
    if not bad:
        message = field(result.message or result.verdict) if result.verdict != "pass" else ""
        rows = (
            f"{row.op} {row.dtype} {row.bytes} bytes: {row.busbw_gbs:.3f} GB/s"
            for row in result.collectives
        )
        text = "\n".join([story, *rows]).strip()
        yield Case(
            "verify",
            "result",
            _KINDS[result.verdict],
            message,
            text,
            type="result" * (result.verdict != "pass"),
        )


_KINDS: dict[str, Kind] = {"pass": "pass", "fail": "failure", "unknown": "error", "skip": "skipped"}


def _culprit(one: Culprit) -> str:
    evidence = (f"  - {_text(line)}" for line in one.evidence)
    head = f"culprit: {one.kind} {folded(one.nodes, NODES)}, {one.confidence:.0%} sure: {_text(one.cause)}"
    return "\n".join([head, *evidence])


def _launch(result: LaunchResult) -> Case:
    causes = (
        f"log says {cause.get('cause')}: {_text(str(cause.get('message')))}"
        for cause in result.causes
    )
    text = "\n".join(
        filter(None, [_text(result.message), *map(_culprit, result.culprits), *causes])
    )
    message = field(
        result.culprits[0].cause if result.culprits else result.message or result.verdict
    )
    kind = _KINDS.get(result.verdict, "error")
    return Case(
        "launch",
        "job",
        kind,
        "" if kind == "pass" else message,
        text,
        type="job" * (kind != "pass"),
    )


# ---------------------------------------------------------------- as XML


def _head(name: str, mine: Sequence[Case], seconds: float) -> str:
    numbers = {
        "tests": len(mine),
        "failures": _count(mine, "failure"),
        "errors": _count(mine, "error"),
        "skipped": _count(mine, "skipped"),
    }
    told = " ".join(f'{key}="{number}"' for key, number in numbers.items())
    return f'name={_attribute(name)} {told} time="{seconds:.3f}"'


def _count(mine: Iterable[Case], kind: Kind) -> int:
    return sum(case.kind == kind for case in mine)


def _properties(report: Report) -> str:
    values = {
        "run": report.run,
        "cluster": report.cluster,
        "verdict": report.verdict,
        "exit code": str(report.code),
    }
    rows = "".join(
        f'      <property name="{key}" value={_attribute(value)}/>\n'
        for key, value in values.items()
    )
    return f"    <properties>\n{rows}    </properties>\n"


def _case(case: Case) -> str:
    """Text of a pass stands in system-out, all other in the element that says what became of it."""
    classname = f"clusterprep.{clean(case.suite)}"
    head = f'    <testcase classname={_attribute(classname)} name={_attribute(case.name)} time="{case.seconds:.3f}"'
    text = escape(case.text)
    if case.kind == "pass":
        return f"{head}><system-out>{text}</system-out></testcase>\n" if text else f"{head}/>\n"
    kind = f" type={_attribute(case.type)}" if case.type else ""
    return f"{head}>\n      <{case.kind} message={_attribute(case.message)}{kind}>{text}</{case.kind}>\n    </testcase>\n"


def _attribute(text: str) -> str:
    return quoteattr(clean(text))


def _name(node: str) -> str:
    return field(node, 128)


def _text(text: str) -> str:
    """Clean, so that XML may hold it: control characters and lone surrogates have no place there, even escaped."""
    return field(text, TEXT)
