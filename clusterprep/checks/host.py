"""Is every inventory entry a machine of its own."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.checks import Check, Outcome, Proof, Scene, by_value
from clusterprep.model import Absent


def identity(scene: Scene) -> Iterable[Outcome]:
    """Machine ids must be unique: one that appears twice is a node listed twice, or a cloned image."""
    names = tuple(node.name for node in scene.nodes)
    if len(scene.inventory.nodes) < 2:
        yield Outcome("skip", names, "there is only one node", reason="not_applicable")
        return
    # Whoever told a machine id counts, also where the rest of what this check wants to know is missing.
    told = {node.name: scene.value(node, "host.machine_id") for node in scene.fleet.reached}
    machines = {name: machine for name, machine in told.items() if not isinstance(machine, Absent)}
    if len(machines) < 2:
        reason = "fewer than two nodes have a value to compare"
        yield Outcome("unknown", names, "machine ids could not be compared", "", "unique", reason=reason)
        return
    for machine, nodes in by_value(machines):
        if len(nodes) == 1:
            yield Outcome("pass", nodes, "the machine id is unique", "unique", "unique")
            continue
        boots = {scene.fleet.fact(node, "host.boot_id") for node in nodes}
        hosts = {scene.fleet.fact(node, "host.name") for node in nodes}
        same = len(boots) == 1 and len(hosts) == 1 and not any(isinstance(seen, Absent) for seen in boots | hosts)
        story = "the same machine is listed more than once" if same else "machines cloned from one image share their id"
        cure = (
            "remove all but one of these entries from the inventory"
            if same
            else "rm /etc/machine-id && systemd-machine-id-setup   # on all but one of them, then reboot"
        )
        yield Outcome("fail", nodes, story, f"machine id {machine}", "a machine id of its own", cure)


IDENTITY = Check(
    "host.identity",
    facts=("host.machine_id", "host.boot_id", "host.name"),
    judge=identity,
    severity="error",
    title="Every inventory entry is a machine of its own",
    why="A machine listed twice gets two node ranks and twice the processes; ranks then share GPUs and the job dies "
    "or crawls. Cloned machine ids also confuse DHCP and journals.",
    how="/etc/machine-id of all nodes is compared; boot id and host name tell one machine from a clone.",
    remedy="remove the double entry, or give the clone a machine id of its own",
    proof=Proof("host.machine_id", lambda _: "0" * 31 + "1"),
)
