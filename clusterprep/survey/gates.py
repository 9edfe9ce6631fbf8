"""Decides which findings stop a write or an all-reduce."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.model import Finding, Fleet

# What has to be known of every node that a command uses. The job's own logins between nodes,
# ssh.mesh, are not among it.
LOGIN_CHECKS = ("ssh.reach", "ssh.sudo")
# Checks, besides these, without which an all-reduce could only hang.
GATES = ("rt.engine", "torch.version", "net.ports", "eth.iface_choice")
# GPUs are in use by another job: no rank is started without --on-busy.
BUSY = "gpu.busy"


def blocking_findings(findings: Iterable[Finding], on_busy: bool) -> list[Finding]:
    """Return the findings with which an all-reduce could only hang, or would disturb a job.

    Silenced findings block as well: accepting a fault does not cure it. With `on_busy` GPUs in
    use do not block. They come last.
    """
    grave = []
    busy = []
    for finding in findings:
        if finding.fixed or finding.verdict not in ("fail", "unknown"):
            continue
        if finding.severity == "error" and _is_gate(finding.check):
            grave.append(finding)
        if finding.check == BUSY and not on_busy:
            busy.append(finding)
    return grave + busy


def _is_gate(check: str) -> bool:
    return check in GATES or check in LOGIN_CHECKS


def blocked(fleet: Fleet, findings: Iterable[Finding], partial: bool) -> bool:
    """Return whether nothing may be written.

    True if two entries of the inventory are one machine, if no node was reached, and, unless
    `partial`, if one was not.
    """
    for finding in findings:
        if finding.check == "host.identity" and finding.verdict == "fail":
            return True
    if not fleet.reached:
        return True
    is_incomplete = len(fleet.reached) < len(fleet.inventory.nodes)
    return is_incomplete and not partial
