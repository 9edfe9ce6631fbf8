"""The exit codes of all commands: what each one means, and which one outranks another. Pure.

worst(findings_code(findings, strict=True), gaps_code(plan.gaps))  →  1 if either one failed
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterprep.errors import ClusterprepError, Interrupted

if TYPE_CHECKING:  # `--help` imports this module and no values
    from collections.abc import Iterable, Mapping

    from clusterprep.changes.file_plan import Gap
    from clusterprep.model import (
        BisectResult,
        ChangeRow,
        CommandResult,
        Finding,
        LaunchResult,
        NodeSnapshot,
        VerifyResult,
    )

OK = 0
FAILED = 1
UNKNOWN = 3
PENDING = 5  # `plan --detailed-exitcode`: there is something to change
INTERNAL_ERROR = 70  # os.EX_SOFTWARE: a bug in clusterprep

_VERDICTS = {
    OK: "pass",
    FAILED: "fail",
    2: "error",
    UNKNOWN: "unknown",
    4: "refused",
    PENDING: "pass",
    130: "interrupted",
}


def verdict_of(code: int) -> str:
    """Return the word that the report has for an exit code."""
    return _VERDICTS.get(code, "error")


def worst(*codes: int) -> int:
    """Return 1 if one of the codes is 1, else 3 if one is 3, else the first that is not 0.

    A failure outranks what could not be determined, which outranks success.
    """
    for code in (FAILED, UNKNOWN):
        if code in codes:
            return code
    for code in codes:
        if code != OK:
            return code
    return OK


def cut_code(error: ClusterprepError, *codes: int) -> int:
    """Return the code of a report of what was known when `error` ended the command.

    130 if it was interrupted, whatever was found; else 1 if one of the codes is 1, else that of the
    error. `codes` are those of what is in the report.
    """
    if isinstance(error, Interrupted):
        return error.code
    return worst(*codes, error.code)


def findings_code(findings: Iterable[Finding], strict: bool = False) -> int:
    """Return 1 if a check failed, 3 if one is unknown, else 0.

    Silenced and fixed findings do not count, and warnings only if `strict`.
    """
    verdicts = set()
    for finding in findings:
        if finding.silenced is not None or finding.fixed:
            continue
        if strict or finding.severity == "error":
            verdicts.add(finding.verdict)
    if "fail" in verdicts:
        return FAILED
    if "unknown" in verdicts:
        return UNKNOWN
    return OK


def gaps_code(gaps: Mapping[str, Gap]) -> int:
    """Return 1 if a node has an obstacle that is known, 3 if it could not be determined, else 0.

    `gaps` has the nodes for which nothing could be planned.
    """
    if not gaps:
        return OK
    for gap in gaps.values():
        if gap.is_known_obstacle:
            return FAILED
    return UNKNOWN


def stored_code(rows: Iterable[ChangeRow]) -> int:
    """Return 1 if a node could not store its findings, as for every change that failed."""
    for row in rows:
        if row.outcome == "failed":
            return FAILED
    return OK


def trial_code(result: VerifyResult | None, findings: Iterable[Finding] = ()) -> int:
    """Return the code of a trial run: 1 if it failed, 3 if it could not be judged, else 0.

    `findings` are those of the trial. If the inventory silences every one that has the verdict of
    the trial, it does not count. `result` is None if there was no trial.
    """
    if result is None or result.verdict in ("pass", "skip"):
        return OK
    same: list[Finding] = []
    for finding in findings:
        counts = finding.verdict == "fail" or finding.severity == "error"
        if counts and finding.verdict == result.verdict:
            same.append(finding)
    if same and all(finding.silenced for finding in same):
        return OK
    return FAILED if result.verdict == "fail" else UNKNOWN


def launch_code(result: LaunchResult) -> int:
    """Return 0 if every process ended with 0, 3 if time ran out or nothing started, else 1."""
    if result.verdict == "pass":
        return OK
    if result.verdict == "unknown" or result.timed_out:
        return UNKNOWN
    return FAILED


def bisect_code(result: BisectResult) -> int:
    """Return 1 if culprits were found, 0 if there are none, 3 if it is undecided."""
    return {"fail": FAILED, "pass": OK}.get(result.verdict, UNKNOWN)


def live_code(state: str) -> int:
    """Return 1 if a job that runs is stuck, 0 if all of them move, 3 if that is not known."""
    return {"stuck": FAILED, "moving": OK}.get(state, UNKNOWN)


def results_code(results: Iterable[CommandResult], nodes: Iterable[NodeSnapshot]) -> int:
    """Return the code of exec: 1 if a command did not end with 0, or a node refused us.

    Else 3 if it is not known how one ended, or a node gave no answer, else 0.
    """
    codes = [reached_code(nodes)]
    for result in results:
        if result.reason in ("timed_out", "hung"):
            codes.append(UNKNOWN)
        elif result.exit_code != OK:
            codes.append(FAILED)
    return worst(*codes)


def reached_code(nodes: Iterable[NodeSnapshot]) -> int:
    """Return 1 if a node refused us, 3 if one gave no answer, else 0."""
    codes = [OK]
    for node in nodes:
        if not node.reached:
            codes.append(FAILED if node.answered else UNKNOWN)
    return worst(*codes)


def copied_code(rows: Iterable[ChangeRow], nodes: Iterable[NodeSnapshot]) -> int:
    """Return the code of copy and fetch: 1 if a file was not brought, 3 if that is not known."""
    codes = [reached_code(nodes)]
    for row in rows:
        if row.outcome == "failed":
            codes.append(FAILED)
        elif row.outcome == "unanswered":
            codes.append(UNKNOWN)
    return worst(*codes)
