"""Why `fix` leaves a failure to people: what mends it is no change of a file or a setting. Pure.

A reason is looked up by the name of the check, then by its area, so a new check of an area has one.
"""

from __future__ import annotations

REBOOT = "it takes a reboot, which ends what runs on the node"
DRIVER = "drivers and their libraries are replaced with no job on the node, and often with a reboot"
FIRMWARE = "firmware and its settings are changed with a maintenance of the machine"
HARDWARE = "a card, a cable, a module or a disk has to be looked at"
RESET = "a GPU is reset with no job on it, and what it lost does not come back"
SWITCH = "the switches and the fabric manager's side are not reached from the nodes"
OTHERS = "it is about processes and files of other people's jobs"
JOB = "the job's Python, libraries and container belong to the job's user"
ACCESS = "who may log in, and with which rights, is for people to decide"
INVENTORY = "the inventory says what is wanted, and is yours"
CLOCK = "a clock that is set does not go back: programs that run would notice"
RULES = "other tools keep these rules, and no table opens what another one closes"
NETWORK = "addresses, routes and bonds belong to the network's own configuration"
DATA = "what is deleted or mounted anew is not put back by a rollback"
SCHEDULER = "the scheduler's files are the same on all nodes, and reload with it"
MACHINE = "the machines themselves differ, and no check can tell which one is right"
LINES = "the right line is not known, only that this one is wrong"
SERVICES = "a limit of a service counts from its next start, which ends what it runs"
SIZE = "which size is right is not known, or the switches between the nodes have to carry it"
NO_STEP = "no resource of a playbook brings it about"

_REASONS = {
    # areas
    "bios": FIRMWARE,
    "disk": HARDWARE,
    "env": LINES,
    "fabric": DRIVER,
    "fw": FIRMWARE,
    "gpu": RESET,
    "ib": SWITCH,
    "ipmi": HARDWARE,
    "kernel": REBOOT,
    "launch": INVENTORY,
    "lim": SERVICES,
    "log": HARDWARE,
    "mem": HARDWARE,
    "nccl": JOB,
    "nv": DRIVER,
    "nvl": SWITCH,
    "ofed": DRIVER,
    "os": MACHINE,
    "pcie": HARDWARE,
    "proc": OTHERS,
    "python": JOB,
    "roce": NETWORK,
    "rt": JOB,
    "slurm": SCHEDULER,
    "ssh": ACCESS,
    "sw": JOB,
    "torch": JOB,
    "user": ACCESS,
    # checks
    "cpu.model": MACHINE,
    "cuda.runtime_vs_driver": DRIVER,
    "cuda.toolkit": JOB,
    "eth.bond": NETWORK,
    "eth.iface_choice": INVENTORY,
    "eth.mtu": SIZE,
    "eth.path_mtu": SIZE,
    "eth.speed": HARDWARE,
    "fs.mount": DATA,
    "fs.ro": HARDWARE,
    "fs.shared": DATA,
    "fs.space": DATA,
    "gpu.busy": OTHERS,
    "gpu.hidden": ACCESS,
    "gpu.model_mix": INVENTORY,
    "gpu.numa_span": INVENTORY,
    "gpu.temp": HARDWARE,
    "host.identity": INVENTORY,
    "host.uptime": "why the node has booted is for people to find out",
    "ib.chardev": ACCESS,
    "ib.link_layer": FIRMWARE,
    "ib.present": DRIVER,
    "kernel.version": f"{REBOOT}: the playbook `kernel` does it",
    "lim.stack": "the resource would set the hard limit too, which programs may have to raise",
    "mem.free": OTHERS,
    "net.firewall": RULES,
    "net.latency": SWITCH,
    "net.ports": RULES,
    "net.rail": HARDWARE,
    "numa.gpu_nic": HARDWARE,
    "numa.nodes": FIRMWARE,
    "pcie.bar": FIRMWARE,
    "pcie.iommu": REBOOT,
    "shm.stale": OTHERS,
    "time.clocksource": FIRMWARE,
    "time.daemon": "which source of time a site has is not known",
    "time.offset": CLOCK,
}


def reason(check: str) -> str:
    """Return why a failure of this check is for people."""
    area = check.partition(".")[0]
    return _REASONS.get(check) or _REASONS.get(area) or NO_STEP
