"""Render the report for node_exporter's textfile collector. The size does not grow with the fleet.

docs/reference/report.md lists the metrics; their names and labels are stable. Every sample has the
labels cluster and command, so that files of several clusters and commands can be in one folder.

It counts checks and names nodes only where they are ill: a series for each node and check would be
a million at ten thousand nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field

from clusterprep.model import Finding, Report, VerifyResult
from clusterprep.reports.blocks import number_reached
from clusterprep.reports.plain import safe_text
from clusterprep.survey.consequences import CauseTree, cause_trees, caused

# Nodes with series of their own, which are only nodes with a failure or an unknown.
MOST_NODES = 200
VERDICTS = ("pass", "fail", "unknown", "error", "refused", "interrupted")
NAME = 128  # characters of a label's value
# Severity and verdict of what makes a node stand before others, the gravest first.
_GRAVEST = (("error", "fail"), ("error", "unknown"), ("warning", "fail"), ("warning", "unknown"))
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Metric(Struct, frozen=True):
    """The samples of one metric: labels and a number each."""

    name: str
    help: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, number: float, **labels: object) -> None:
        texts = {}
        for name, value in labels.items():
            texts[name] = str(value)
        self.samples.append((texts, number))


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """Return the report in the text format 0.0.4.

    Metrics without samples are left out. All are gauges, because each run stands for itself.
    """
    common = {
        "cluster": report.cluster,
        "command": report.command,
    }
    lines: list[str] = []
    for metric in metrics(report):
        if metric.samples:
            lines += _lines(metric, common)
    return "\n".join(lines) + "\n"


def metrics(report: Report) -> list[Metric]:
    """Return all metrics, in the order of docs/reference/report.md."""
    rows = _of_run(report)
    if report.nodes is not None:
        rows.append(_nodes(report))
    if report.findings is not None:
        trees = cause_trees(report.findings)
        rows.append(_checks(trees))
        rows += _troubled_nodes([tree.finding for tree in trees])
    if report.changes is not None:
        rows.append(_changes(report))
    if report.verify is not None:
        rows += _verify(report.verify)
    return rows


def state(finding: Finding) -> str:
    """Return the verdict, or why it does not count."""
    if finding.fixed:
        return "fixed"
    if finding.silenced:
        return "silenced"
    return finding.verdict


def _lines(metric: Metric, common: Mapping[str, str]) -> list[str]:
    """Return the lines of a metric; `common` has the labels of all samples."""
    name = f"clusterprep_{metric.name}"
    # Labels that are equal once they are cut and cleaned must not give one series twice: the
    # collector refuses the whole file then. The last number stays.
    numbers: dict[str, float] = {}
    for labels, number in metric.samples:
        all_labels = dict(common)
        all_labels.update(labels)
        series = name + _labels(all_labels)
        numbers[series] = number
    lines = [f"# HELP {name} {metric.help}", f"# TYPE {name} gauge"]
    for series, number in numbers.items():
        lines.append(f"{series} {_number(number)}")
    return lines


def _of_run(report: Report) -> list[Metric]:
    info = Metric("run_info", "The run that this file is of; always 1.")
    info.add(1, run=report.run, verdict=report.verdict)
    # datetime reads a Z from Python 3.11 on.
    started = datetime.fromisoformat(report.started.replace("Z", "+00:00"))
    began = Metric("run_start_timestamp_seconds", "When the run began, in seconds since 1970.")
    began.add(started.timestamp())
    took = Metric("run_duration_seconds", "How long the run took.")
    took.add(report.seconds)
    code = Metric("run_exit_code", "The exit code of the run.")
    code.add(report.code)
    verdict = Metric("run_verdict", "1 for the verdict of the run, 0 for all others.")
    for possible in VERDICTS:
        verdict.add(float(possible == report.verdict), verdict=possible)
    return [info, began, took, code, verdict]


def _nodes(report: Report) -> Metric:
    metric = Metric("nodes", "Nodes that were to be asked, by whether they were reached.")
    total = len(report.nodes or ())
    reached = number_reached(report)
    metric.add(reached, state="reached")
    metric.add(total - reached, state="unreached")
    return metric


def _checks(trees: Sequence[CauseTree]) -> Metric:
    """Count nodes by check. A finding that names no node (of lint, of the fleet) counts as one."""
    metric = Metric(
        "check_nodes",
        "Nodes by check, severity and verdict; fixed, silenced and caused ones do not count.",
    )
    counts: Counter[tuple[str, str, str]] = Counter()
    for tree in trees:
        finding = tree.finding
        key = (finding.check, finding.severity, state(finding))
        counts[key] += len(finding.nodes) or 1
    for finding in caused(trees):
        key = (finding.check, finding.severity, "caused")
        counts[key] += len(finding.nodes)
    for (check, severity, verdict), number in sorted(counts.items()):
        metric.add(number, check=check, severity=severity, verdict=verdict)
    return metric


def _troubled_nodes(findings: Iterable[Finding]) -> list[Metric]:
    """Return the worst nodes by name, and how many nodes with trouble there are besides."""
    named = Metric(
        "node_checks",
        "Checks that failed or are unknown on a node, "
        f"for the {MOST_NODES} nodes with the most errors.",
    )
    unnamed = Metric(
        "nodes_left_out",
        "Nodes with a failure or an unknown that clusterprep_node_checks leaves out.",
    )
    counts = _troubles_by_node(findings)
    worst_first = sorted(counts, key=lambda node: _gravity(counts[node]))
    for node in worst_first[:MOST_NODES]:
        for (severity, verdict), number in sorted(counts[node].items()):
            named.add(number, node=node, severity=severity, verdict=verdict)
    unnamed.add(max(0, len(worst_first) - MOST_NODES))
    return [named, unnamed]


def _troubles_by_node(findings: Iterable[Finding]) -> dict[str, Counter[tuple[str, str]]]:
    """Return how many checks fail or are unknown on each node, by severity and verdict."""
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for finding in findings:
        if state(finding) not in ("fail", "unknown"):
            continue
        key = (finding.severity, finding.verdict)
        for node in finding.nodes:
            counts.setdefault(node, Counter())[key] += 1
    return counts


def _gravity(counts: Counter[tuple[str, str]]) -> list[int]:
    """Return a sort key: the more errors, then the more of what is less grave, the smaller."""
    key = []
    for kind in _GRAVEST:
        number = counts[kind]
        key.append(-number)
    return key


def _changes(report: Report) -> Metric:
    metric = Metric(
        "changes", "Changes by kind of resource and outcome, one for each node and target."
    )
    counts: Counter[tuple[str, str]] = Counter()
    for row in report.changes or ():
        counts[row.resource, row.outcome] += len(row.nodes)
    for (resource, outcome), number in sorted(counts.items()):
        metric.add(number, resource=resource, outcome=outcome)
    return metric


def _verify(result: VerifyResult) -> list[Metric]:
    passed = Metric(
        "verify_passed", "1 where all ranks exchanged the right data fast enough, 0 where not."
    )
    passed.add(float(result.verdict == "pass"), backend=result.backend)
    ranks = Metric("verify_ranks", "Ranks of the trial.")
    ranks.add(result.world_size)
    missing = Metric("verify_missing_ranks", "Ranks that did not arrive where the trial ended.")
    number_missing = 0
    if result.stages:
        number_missing = len(result.stages[-1].missing)
    missing.add(number_missing)
    return [passed, ranks, missing, _culprits(result), _stages(result), _speeds(result)]


def _culprits(result: VerifyResult) -> Metric:
    metric = Metric("verify_culprits", "Culprits by kind.")
    counts: Counter[str] = Counter()
    for culprit in result.culprits:
        counts[culprit.kind] += 1
    for kind, number in sorted(counts.items()):
        metric.add(number, kind=kind)
    return metric


def _stages(result: VerifyResult) -> Metric:
    metric = Metric("verify_stage_seconds", "How long each stage of the trial took.")
    # The last one counts where a name comes more than once.
    seconds_by_name = {}
    for stage in result.stages:
        seconds_by_name[stage.name] = stage.seconds
    for name, seconds in seconds_by_name.items():
        metric.add(seconds, stage=name)
    return metric


def _speeds(result: VerifyResult) -> Metric:
    metric = Metric(
        "verify_busbw_bytes_per_second", "Bus bandwidth as nccl-tests defines it, by message size."
    )
    rates = {}
    for row in result.collectives:
        key = (row.op, row.dtype, row.bytes)
        rates[key] = row.busbw_gbs
    for (op, dtype, size), rate in rates.items():
        metric.add(rate * 1e9, op=op, dtype=dtype, bytes=size)
    return metric


def _labels(labels: Mapping[str, str]) -> str:
    """Return `{cluster="c1",command="check"}`."""
    parts = []
    for name, value in labels.items():
        text = safe_text(value, NAME).translate(_ESCAPES)
        parts.append(f'{name}="{text}"')
    return "{" + ",".join(parts) + "}"


def _number(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        sign = "+" if number > 0 else "-"
        return f"{sign}Inf"
    if number == int(number):
        return str(int(number))
    return repr(float(number))
