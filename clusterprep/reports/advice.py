"""A report ends with what a person does now: at most two lines, and commands that can be pasted."""

from __future__ import annotations

from clusterprep.model import Finding, LaunchResult, Report
from clusterprep.reports.plain import NODES, field, folded

Advice = list[
    tuple[str, str]
]  # label and text; "next" is a sentence, every other label stands before a command


def advice(report: Report, place: str = "above") -> Advice:
    """What to do about this report; `place` is where what is wrong stands, seen from here."""
    sentences = {
        "error": "correct this, then run the same command again",
        "refused": f"settle what stands {place}, then run it again",
        "interrupted": "run it again when you like; what an apply had written was put back",
    }
    if report.verdict in sentences:
        return [("next", sentences[report.verdict])]
    if report.launch is not None and report.launch.culprits and report.launch.logs:
        return _after_launch(report.launch)
    if report.verdict == "fail":
        return _after_failure(report, place)
    return _after_unknown(report, place) if report.verdict == "unknown" else _after_success(report)


def worst(report: Report, verdict: str) -> Finding | None:
    """The first finding of that verdict that counts, errors before warnings."""
    counting = [
        one
        for one in report.findings or ()
        if one.verdict == verdict and not one.silenced and not one.fixed
    ]
    return min(counting, key=lambda one: one.severity != "error", default=None)


def _after_failure(report: Report, place: str) -> Advice:
    culprits = report.verify.culprits if report.verify else ()
    if culprits:
        return [
            ("next", f"look at {folded(culprits[0].nodes)} first, then verify again"),
            *_explain(worst(report, "fail")),
        ]
    if any(row.outcome in ("failed", "rolled-back") for row in report.changes or ()):
        return [("next", "mend what made the change fail, then run the same command again")]
    finding = worst(report, "fail")
    do = f"paste the fixes {place}" if finding and finding.remedy else f"mend what stands {place}"
    return [("next", f"{do}, then run the same command again"), *_explain(finding)]


def _after_launch(launch: LaunchResult) -> Advice:
    """The log of who was first, and what it means."""
    first = launch.culprits[0]
    name = f"torchrun-{first.nodes[0]}.log" if first.rank is None else f"rank-{first.rank}.log"
    folder = field(launch.logs)
    return [
        ("read", f"less {folder}/{field(name)}"),
        ("more", f"clusterprep diagnose {folder}/*.log"),
    ]


def _after_unknown(report: Report, place: str) -> Advice:
    reached = [node.node for node in report.nodes or () if node.reached]
    lost = [node.node for node in report.nodes or () if not node.reached]
    if lost and reached:
        rest = folded(reached, None)
        without: Advice = [("add", f"--limit '{rest}'")] if len(rest) <= NODES else []
        return [("next", f"bring back {folded(lost)}, or go on without"), *without]
    return [
        ("next", f"what could not be learned is not taken for good; see {place}"),
        *_explain(worst(report, "unknown")),
    ]


def _after_success(report: Report) -> Advice:
    outcomes = {row.outcome for row in report.changes or ()}
    if "planned" in outcomes:
        return [
            ("next", "nothing has been written yet; this writes it:"),
            ("run", "clusterprep apply INVENTORY"),
        ]
    if report.command == "apply" and "done" in outcomes:
        return [("undo", f"clusterprep rollback INVENTORY --run {field(report.run)}")]
    return []


def _explain(finding: Finding | None) -> Advice:
    return [("more", f"clusterprep explain {field(finding.check)}")] if finding else []
