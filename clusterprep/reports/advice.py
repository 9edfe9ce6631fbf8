"""What to do next, at the end of a report: at most two lines, with commands that can be pasted."""

from __future__ import annotations

from clusterprep.facts.account import Rights
from clusterprep.model import Finding, LaunchResult, Report
from clusterprep.model.units import pluralize
from clusterprep.remedies import shell_line
from clusterprep.reports.fixes import curable_checks
from clusterprep.reports.plain import NODES, fold_nodes
from clusterprep.survey.consequences import standing

NAMED = 4  # checks that a command to be pasted names
# Label and text. The text of the label "next" is a sentence, that of any other label is a command.
Advice = list[tuple[str, str]]

_WRITING = ("apply", "plan", "fix", "rollback")


def advice(report: Report, place: str = "above") -> Advice:
    """Return what to do about this report. `place` says where the findings stand on the page."""
    sentences = {
        "error": "correct this, then run the same command again",
        "refused": f"settle what stands {place}, then run it again",
        "interrupted": "run it again when you like",
    }
    if report.verdict in sentences:
        return [("next", sentences[report.verdict])]
    if report.command == "explain":
        return _explain(report, worst(report, "fail") or worst(report, "unknown"))
    launch = report.launch
    if launch is not None and launch.culprits and launch.logs:
        return _after_launch(launch)
    if report.verdict == "fail":
        return _after_failure(report, place)
    if report.verdict == "unknown":
        return _after_unknown(report, place)
    return _after_success(report)


def worst(report: Report, verdict: str) -> Finding | None:
    """Return the first finding of that verdict that counts, errors before warnings.

    What follows from another finding does not count: the cause is to be mended.
    """
    first_warning = None
    for finding in standing(report.findings or ()):
        if finding.verdict != verdict or finding.silenced or finding.fixed:
            continue
        if finding.severity == "error":
            return finding
        if first_warning is None:
            first_warning = finding
    return first_warning


def _after_failure(report: Report, place: str) -> Advice:
    finding = worst(report, "fail")
    if report.verify and report.verify.culprits:
        nodes = fold_nodes(report.verify.culprits[0].nodes)
        again = f"look at {nodes} first, then verify again"
        return [("next", again), *_undo(report), *_explain(report, finding)]
    outcomes = {row.outcome for row in report.changes or ()}
    if outcomes & {"failed", "rolled-back", "unanswered"}:
        again = "mend what made the change fail, then run the same command again"
        return [("next", again), *_undo(report)]
    counts = finding is not None and (finding.severity == "error" or report.strict)
    if not counts:
        finding = None  # it is only a warning: something else made the command fail
    sentence = _mending(report, finding, place)
    if report.held_by:
        without = f"{sentence}; or go on without {fold_nodes(report.held_by)}"
        return [("next", without), ("add", "--partial")]
    # What this user may not do, fix may not do either.
    cure = [] if "not-started" in outcomes else _fix(report)
    return [("next", sentence), *cure, *_undo(report), *_explain(report, finding)]


def _mending(report: Report, finding: Finding | None, place: str) -> str:
    """Return what to do about a failure. `finding` is the worst, if findings are the reason."""
    step = f"mend what stands {place}"
    if finding and finding.remedy.is_command:
        step = f"paste the fixes {place}"
    sentence = f"{step}, then run the same command again"
    lists = report.lists
    if lists is None or lists.wanted is None or not lists.passing:
        return sentence
    most = pluralize(len(lists.passing), "node")
    return f"pick at most {most}, or {sentence}"


def _fix(report: Report) -> Advice:
    """Return the command that cures what needs no person, unless this one was it."""
    names = curable_checks(report.findings or ())
    if not names or report.fixes is not None or _has_twins(report):
        return []
    users = _without_root(report)
    if any(rights.sudo != 0 for rights in users):
        return []
    command = shell_line("clusterprep fix {inventory}", inventory=_inventory(report))
    if len(names) <= NAMED:
        command = shell_line("{command} --only {only}", command=command, only=",".join(names))
    if any(not node.reached for node in report.nodes or ()):
        command = shell_line("{command} --partial", command=command)
    if users:
        command = shell_line("{command} --become", command=command)
    return [("fix", command)]


def _without_root(report: Report) -> list[Rights]:
    """Return the rights of the login users that are not root: `fix` needs sudo for them."""
    found = [node.facts.get("ssh.rights") for node in report.nodes or ()]
    return [rights for rights in found if isinstance(rights, Rights) and rights.uid != 0]


def _has_twins(report: Report) -> bool:
    """Return whether two entries of the inventory are one machine: then `fix` writes nothing."""
    return any(
        finding.check == "host.identity" and finding.verdict == "fail"
        for finding in report.findings or ()
    )


def _after_launch(launch: LaunchResult) -> Advice:
    """Name the log of the first culprit, and the command that explains all logs."""
    first = launch.culprits[0]
    name = f"rank-{first.rank}.log"
    if first.rank is None:
        name = f"torchrun-{first.nodes[0]}.log"
    return [
        ("read", shell_line("less {path}", path=f"{launch.logs}/{name}")),
        ("more", shell_line("clusterprep diagnose {folder}/*.log", folder=launch.logs)),
    ]


def _after_unknown(report: Report, place: str) -> Advice:
    reached = []
    unreached = []
    for node in report.nodes or ():
        if node.reached:
            reached.append(node.node)
        else:
            unreached.append(node.node)
    if not (reached and unreached):
        sentence = f"what is unknown {place} does not count as a pass: make it known"
        explain = _explain(report, worst(report, "unknown"))
        return [("next", sentence), *_undo(report), *explain]
    missing = fold_nodes(unreached)
    outcomes = {row.outcome for row in report.changes or ()}
    if outcomes & {"done", "undone"}:  # it has gone on without them
        sentence = f"bring back {missing}; the others have what is reported {place}"
        return [("next", sentence), *_undo(report)]
    steps = [("next", f"bring back {missing}, or go on without")]
    if report.held_by:
        # With --limit apply refuses what all nodes must share.
        return [*steps, ("add", "--partial")]
    if report.command in _WRITING:  # --partial was given already
        return [("next", f"bring back {missing}, then run the same command again")]
    limit = fold_nodes(reached, None)
    # A longer set is no option that a person would paste.
    if len(limit) <= NODES:
        option = shell_line("--limit {nodes}", nodes=limit)
        steps.append(("add", option))
    return steps


def _after_success(report: Report) -> Advice:
    outcomes = {row.outcome for row in report.changes or ()}
    if "planned" in outcomes:
        again = "clusterprep apply with the same options writes it"
        if report.batches is not None:
            again = "the same command without --dry-run writes it"
        return [("next", f"nothing has been written yet; {again}")]
    return _undo(report)


def _undo(report: Report) -> Advice:
    """Return how to undo an apply that wrote something, also if it failed afterwards."""
    outcomes = {row.outcome for row in report.changes or ()}
    if report.command not in ("apply", "fix") or "done" not in outcomes:
        return []
    undo = shell_line(
        "clusterprep rollback {inventory} --run {run}",
        inventory=_inventory(report),
        run=report.run,
    )
    if any(not node.reached for node in report.nodes or ()):
        undo = shell_line("{undo} --partial", undo=undo)
    return [("undo", undo)]


def _explain(report: Report, finding: Finding | None) -> Advice:
    if finding is None:
        return []
    if finding.check in {check.name for check in report.site_checks or ()}:
        command = shell_line(
            "clusterprep explain {check} --inventory {inventory}",
            check=finding.check,
            inventory=_inventory(report),
        )
        return [("more", command)]
    return [("more", shell_line("clusterprep explain {check}", check=finding.check))]


def _inventory(report: Report) -> str:
    """Return the inventory of the report as it was given, for a command to paste.

    One that came on standard input is gone.
    """
    return "INVENTORY" if report.inventory in ("", "-") else report.inventory
