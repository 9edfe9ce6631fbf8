"""Decides which findings stop a write or an all-reduce."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from clusterprep.model import Finding, Fleet
from clusterprep.model.nodeset import fold

# What has to be known of every node that a command uses. The job's own logins between nodes,
# ssh.mesh, are not among it.
LOGIN_CHECKS = ("ssh.reach", "ssh.sudo")
# Checks, besides these, without which an all-reduce could only hang.
GATES = ("rt.engine", "torch.version", "net.ports", "eth.iface_choice")
# GPUs are in use by another job: no rank is started without --on-busy.
BUSY = "gpu.busy"


class Obstacle(Struct, frozen=True):
    """Why nothing may be written. With `--partial` the nodes `unreached` would not be in the way.

    `unreached` is empty where `--partial` would not help.
    """

    reason: str
    unreached: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The reason, and the option that goes on all the same if there is one."""
        if not self.unreached:
            return self.reason
        them = "it" if len(self.unreached) == 1 else "them"
        return f"{self.reason} (`--partial` goes on without {them})"


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


def obstacle(fleet: Fleet, findings: Iterable[Finding], partial: bool) -> Obstacle | None:
    """Return why nothing may be written, None if it may.

    Two entries of the inventory are one machine, no node was reached, or, unless `partial`, one
    was not.
    """
    twins: dict[str, None] = {}
    for finding in findings:
        if finding.check == "host.identity" and finding.verdict == "fail":
            twins.update(dict.fromkeys(finding.nodes))
    if twins:
        return Obstacle(f"{fold(twins)} are not different machines (host.identity)")
    if not fleet.reached:
        return Obstacle("no node was reached")
    reached = {node.name for node in fleet.reached}
    missing = tuple(node.name for node in fleet.inventory.nodes if node.name not in reached)
    if partial or not missing:
        return None
    verb = "was" if len(missing) == 1 else "were"
    return Obstacle(f"{fold(missing)} {verb} not reached", missing)
