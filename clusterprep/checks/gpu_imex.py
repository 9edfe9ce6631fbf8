"""IMEX, without which GPUs of several hosts do not share memory over NVLink."""

from __future__ import annotations

from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed, passed, skipped
from clusterprep.facts.imex import Imex
from clusterprep.model import Node, NodeSnapshot
from clusterprep.model.units import pluralize
from clusterprep.remedies import sentence, shell_line

READY = "UP"
WANTED = "every node of its domain ready"
LOOK = shell_line("nvidia-imex-ctl -N; journalctl -u nvidia-imex -n 50")


def imex(context: CheckContext, node: Node, state: Imex) -> Outcome:
    """Judge the domain of a service that runs; one that does not run is no fault.

    Jobs and Kubernetes may start it themselves, for their own nodes.
    """
    seen = f"nvidia-imex is {state.active}"
    if state.active == "failed":
        return failed(node, "IMEX has failed", seen, WANTED, LOOK)
    if state.domain is None:
        return skipped(node, "IMEX does not run here, as where jobs start it", seen, WANTED)
    if not state.nodes:
        return skipped(node, "IMEX has no nodes in its file, so no domain", seen, WANTED)
    seen = f"the domain is {state.domain}"
    if state.not_ready:
        seen += f"; {', '.join(state.not_ready)}"
    if state.domain == READY and not state.not_ready:
        message = f"IMEX is ready on {pluralize(state.nodes, 'node')}"
        return passed(node, message, seen, WANTED)
    return failed(node, "IMEX is not ready: jobs go without NVLink between hosts", seen, WANTED)


def _with_a_node_missing(snapshot: NodeSnapshot) -> NodeSnapshot:
    """Return a node whose domain lacks another one; the recorded nodes have no IMEX."""
    state = Imex("active", "DEGRADED", ("10.0.0.2 UNAVAILABLE",), 2)
    return replace(snapshot, facts={**snapshot.facts, "gpu.imex": state})


CHECK = Check(
    "gpu.imex",
    facts=("gpu.imex",),
    judge=each(imex, "gpu.imex"),
    severity="warning",
    title="IMEX of a multi-node NVLink domain",
    why="NCCL reaches the GPUs of other trays over NVLink only while IMEX is ready on all of "
    "them; else it stops, or takes the network.",
    how="systemd's word for nvidia-imex, and where it runs `nvidia-imex-ctl -N -j`: the domain is "
    "UP and every node READY. A service that does not run, or has no nodes in "
    "/etc/nvidia-imex/nodes_config.cfg, is skipped.",
    remedy=sentence("start nvidia-imex with the same nodes_config.cfg on all nodes of the domain"),
    proof=Proof("", _with_a_node_missing),
)
