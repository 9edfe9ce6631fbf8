"""What the driver recommends to do with a GPU after a fault."""

from __future__ import annotations

from msgspec.structs import replace

from clusterprep.checks import Check, Proof
from clusterprep.checks.gpu_health import RESET, Trouble, each_gpu
from clusterprep.model import NodeSnapshot
from clusterprep.remedies import shell_line

REBOOT = shell_line("dmesg | grep -e NVRM -e Xid   # end the jobs of this node, then reboot it")
DRAIN = shell_line("dmesg | grep -e NVRM -e Xid   # end the jobs that use P2P with GPU GPUS")
RESTART_IMEX = shell_line(
    "nvidia-imex-ctl -N; journalctl -u nvidia-imex -n 50"
    "   # then restart nvidia-imex on all nodes of the domain"
)
# nvmlDeviceGpuRecoveryAction_t: nvml.h 12.9 has 0 to 4, 13.5 the others too. A GPU that waits for a
# reset or a reboot runs no new job; with the two others those that run may end.
ACTIONS = {
    1: Trouble("the driver asks for a reset of the GPU", "reset", RESET, "error"),
    2: Trouble("the driver asks for a reboot of the node", "reboot", REBOOT, "error"),
    3: Trouble("the driver asks to end P2P between GPUs", "drain P2P", DRAIN),
    4: Trouble("the driver asks for a reset of the GPU", "drain P2P, then reset", RESET, "error"),
    5: Trouble("the driver asks to recover the IMEX domain", "recover IMEX", RESTART_IMEX),
    6: Trouble("the driver asks for a reset of the GPU", "reset of its PCIe bus", REBOOT, "error"),
    7: Trouble("the driver asks for a reboot of the node", "reboot", REBOOT, "error"),
}


def recovery(action: int) -> Trouble | None:
    """Return what the driver recommends, None where it is nothing."""
    if action == 0:
        return None
    unnamed = Trouble("the driver asks for a recovery", f"action {action}", REBOOT, "error")
    return ACTIONS.get(action, unnamed)


def _with_reset(snapshot: NodeSnapshot) -> NodeSnapshot:
    """Return a node of which GPU 3 is to be reset; the recorded driver recommends nothing."""
    return replace(snapshot, facts={**snapshot.facts, "gpu.recovery": {3: 1}})


CHECK = Check(
    "gpu.recovery",
    facts=("gpu.recovery",),
    judge=each_gpu("gpu.recovery", recovery, "the driver recommends no recovery", "none"),
    severity="warning",
    title="Recovery that the driver recommends",
    why="After some faults a GPU answers as ever, and ends each job that starts on it until it is "
    "reset or the node is rebooted.",
    how="NVML's GPU recovery action, from driver 570 on: none. A reset or a reboot is an error, "
    "to drain P2P or to recover the IMEX domain a warning.",
    grade="an error if a reset or a reboot is asked for",
    remedy=shell_line("nvidia-smi -q | grep -A1 'Recovery Action'; dmesg | grep -e NVRM -e Xid"),
    proof=Proof("", _with_reset),
)
