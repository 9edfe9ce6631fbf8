"""Refuses a job across nodes of which only some have what an apply in batches wrote."""

from __future__ import annotations

from clusterprep.changes.batches import uneven_run
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import plan_survey, survey_part
from clusterprep.errors import Refused
from clusterprep.model import Finding, Fleet
from clusterprep.model.nodeset import fold
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.gates import LOGIN_CHECKS

UNIFORM = "env.nccl_uniform"


def refuse_uneven(invocation: Invocation, fanout: Fanout, fleet: Fleet) -> None:
    """Raise Refused if batches of an apply differ in values that must be equal on all ranks.

    The journals say whether some nodes have a run in batches and others do not; `fleet` has them.
    Only then are the nodes asked what they have, which runs start-up files of the job's user.
    """
    uneven = uneven_run(fleet)
    if uneven is None:
        return
    query_plan = plan_survey(invocation, only=(*LOGIN_CHECKS, UNIFORM))
    surveyed = survey_part(invocation, fanout, query_plan, fleet)
    doubtful = [each for each in surveyed.findings if _counts(each)]
    doubtful.sort(key=lambda finding: finding.verdict)  # fail before unknown
    for finding in doubtful[:1]:
        what = finding.seen or finding.message
        if finding.verdict == "unknown":
            what = f"whether they are equal by now is not known: {finding.message}"
        having = fold(uneven.having)
        raise Refused(
            f"run {uneven.run} was written in batches, and {having} has it, "
            f"{fold(uneven.lacking)} has not; {what}. No process was started: apply to all nodes, "
            f"or `clusterprep rollback --run {uneven.run}`, or --limit {having}"
        )


def _counts(finding: Finding) -> bool:
    """Return whether a finding says that values differ, or that this is not known."""
    is_bad = finding.verdict in ("fail", "unknown") and finding.severity == "error"
    return finding.check == UNIFORM and is_bad
