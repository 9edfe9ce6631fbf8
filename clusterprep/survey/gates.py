"""What stands in the way of writing and of the all-reduce, and which exit code outranks which."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.model import Finding, Fleet, VerifyResult

GATES = (
    "torch.version",
    "net.ports",
    "eth.iface_choice",
)  # besides ssh.*: what verify cannot run without
BUSY = "gpu.busy"  # somebody works there: no rank is started unless --on-busy says so


def blocking_findings(findings: Iterable[Finding], on_busy: bool) -> list[Finding]:
    """The findings without whose cure a verify could only hang, or would disturb a job, silenced or not."""
    bad = [f for f in findings if f.verdict in ("fail", "unknown") and not f.fixed]
    grave = [
        f for f in bad if f.severity == "error" and (f.check in GATES or f.check.startswith("ssh."))
    ]
    return [*grave, *(f for f in bad if f.check == BUSY and not on_busy)]


def blocked(fleet: Fleet, findings: Iterable[Finding], partial: bool) -> bool:
    """Whether apply must not write at all: a node is missing, or two entries are one machine."""
    missing = len(fleet.reached) < len(fleet.inventory.nodes)
    doubled = any(f.check == "host.identity" and f.verdict == "fail" for f in findings)
    return (missing and not partial) or doubled or not fleet.reached


def worse_exit_code(first: int, second: int) -> int:
    """A failure outranks not knowing, which outranks all well."""
    return next((code for code in (1, 3) if code in (first, second)), first or second)


def after_write(
    code: int, done: bool, result: VerifyResult | None, tried: Iterable[Finding] = ()
) -> int:
    """The code after something was to be written and tried.

    `done` tells whether all was written, `tried` has the findings of the trial: where the inventory accepts all that
    failed in it, it does not count.
    """
    code = worse_exit_code(code, 0 if done else 1)
    failed = [finding for finding in tried if finding.verdict == "fail"]
    if (
        result is None
        or result.verdict in ("pass", "skip")
        or (failed and all(f.silenced for f in failed))
    ):
        return code
    return worse_exit_code(code, 1 if result.verdict == "fail" else 3)
