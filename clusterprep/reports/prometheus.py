"""The report for Prometheus: a file for node_exporter's textfile collector, whose size does not grow with the fleet.

docs/report.md lists the metrics; their names and labels are stable. Every sample carries cluster and command, so that
files of several clusters and commands can lie in one folder.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import datetime

from clusterprep.model import Finding, Report, VerifyResult
from clusterprep.reports import plain
from clusterprep.runtime.lazy_dataclass import dataclass

MOST_NODES = (
    200  # with series of their own: two each at most, and only nodes with a failure or an unknown
)
VERDICTS = ("pass", "fail", "unknown", "error", "refused", "interrupted")
NAME = 128  # characters of a label's value


@dataclass(frozen=True)
class Metric:
    """Samples of one name: labels and a number each."""

    name: str
    help: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, number: float, **labels: object) -> None:
        self.samples.append(({name: str(value) for name, value in labels.items()}, number))


def render(report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool) -> str:
    """The text format 0.0.4. Metrics without samples are left out; all are gauges, as each run stands for itself."""
    always = {"cluster": report.cluster, "command": report.command}
    lines: list[str] = []
    for metric in metrics(report):
        if metric.samples:
            lines += [
                f"# HELP clusterprep_{metric.name} {metric.help}",
                f"# TYPE clusterprep_{metric.name} gauge",
            ]
            # Names that look alike once they are cut and cleaned must not give one series twice: that spoils the file.
            rows = {
                f"clusterprep_{metric.name}{_labels({**always, **labels})}": n
                for labels, n in metric.samples
            }
            lines += [f"{series} {_number(number)}" for series, number in rows.items()]
    return "\n".join(lines) + "\n"


def metrics(report: Report) -> list[Metric]:
    """All of them, in the order of docs/report.md."""
    found = _of_run(report)
    if report.nodes is not None:
        found.append(_nodes(report))
    if report.findings is not None:
        found += [_checks(report.findings), *_troubled(report)]
    if report.changes is not None:
        found.append(_changes(report))
    if report.verify is not None:
        found += _verify(report.verify)
    return found


def _of_run(report: Report) -> list[Metric]:
    info = Metric("run_info", "The run that this file is of; always 1.")
    info.add(1, run=report.run, verdict=report.verdict)
    began = Metric("run_start_timestamp_seconds", "When the run began, in seconds since 1970.")
    began.add(datetime.fromisoformat(report.started.replace("Z", "+00:00")).timestamp())
    took = Metric("run_duration_seconds", "How long the run took.")
    took.add(report.seconds)
    code = Metric("run_exit_code", "The exit code of the run.")
    code.add(report.code)
    verdict = Metric("run_verdict", "1 for the verdict of the run, 0 for all others.")
    for word in VERDICTS:
        verdict.add(float(word == report.verdict), verdict=word)
    return [info, began, took, code, verdict]


def _nodes(report: Report) -> Metric:
    nodes = Metric("nodes", "Nodes that were to be asked, by whether they were reached.")
    reached = sum(node.reached for node in report.nodes or ())
    nodes.add(reached, state="reached")
    nodes.add(len(report.nodes or ()) - reached, state="unreached")
    return nodes


def state(finding: Finding) -> str:
    """The verdict, or why it does not count."""
    return "fixed" if finding.fixed else "silenced" if finding.silenced else finding.verdict


def _checks(findings: Iterable[Finding]) -> Metric:
    """A finding that names no node (of lint, of the fleet as a whole) counts as one."""
    metric = Metric(
        "check_nodes", "Nodes by check, severity and verdict; fixed and silenced ones do not count."
    )
    counts: Counter[tuple[str, str, str]] = Counter()
    for one in findings:
        counts[one.check, one.severity, state(one)] += len(one.nodes) or 1
    for (check, severity, verdict), number in sorted(counts.items()):
        metric.add(number, check=check, severity=severity, verdict=verdict)
    return metric


def _troubled(report: Report) -> Iterable[Metric]:
    """Nodes with trouble by name, the worst first, and how many more there are."""
    metric = Metric(
        "node_checks",
        f"Checks that failed or are unknown on a node, for the {MOST_NODES} nodes with the most errors.",
    )
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for one in report.findings or ():
        if state(one) in ("fail", "unknown"):
            for node in one.nodes:
                counts.setdefault(node, Counter())[one.severity, one.verdict] += 1
    order = sorted(counts, key=lambda node: [-counts[node][key] for key in _GRAVEST])
    for node in order[:MOST_NODES]:
        for (severity, verdict), number in sorted(counts[node].items()):
            metric.add(number, node=node, severity=severity, verdict=verdict)
    left = Metric(
        "nodes_left_out",
        "Nodes with a failure or an unknown that clusterprep_node_checks leaves out.",
    )
    left.add(max(0, len(order) - MOST_NODES))
    return metric, left


_GRAVEST = (("error", "fail"), ("error", "unknown"), ("warning", "fail"), ("warning", "unknown"))


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
    missing.add(len(result.stages[-1].missing) if result.stages else 0)
    culprits = Metric("verify_culprits", "Culprits by kind.")
    for kind, number in sorted(Counter(culprit.kind for culprit in result.culprits).items()):
        culprits.add(number, kind=kind)
    stages = Metric("verify_stage_seconds", "How long each stage of the trial took.")
    for stage in {row.name: row for row in result.stages}.values():
        stages.add(stage.seconds, stage=stage.name)
    speeds = Metric(
        "verify_busbw_bytes_per_second", "Bus bandwidth as nccl-tests defines it, by message size."
    )
    for row in {(one.op, one.dtype, one.bytes): one for one in result.collectives}.values():
        speeds.add(row.busbw_gbs * 1e9, op=row.op, dtype=row.dtype, bytes=row.bytes)
    return [passed, ranks, missing, culprits, stages, speeds]


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def _labels(labels: Mapping[str, str]) -> str:
    told = (
        f'{name}="{plain.field(value, NAME).translate(_ESCAPES)}"' for name, value in labels.items()
    )
    return f"{{{','.join(told)}}}"


def _number(number: float) -> str:
    if not math.isfinite(number):
        return {math.inf: "+Inf", -math.inf: "-Inf"}.get(number, "NaN")
    return str(int(number)) if number == int(number) else repr(float(number))
