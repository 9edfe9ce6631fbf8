"""Is every inventory entry a machine of its own, and how long has it been up."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.checks import Check, Outcome, Proof, Scene, by_value, each
from clusterprep.model import Absent, Node
from clusterprep.units import format_duration, parse_duration

FRESH = 600.0  # seconds since boot within which a node is called lately rebooted; services may still be starting


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


def uptime(scene: Scene, node: Node, seconds: float) -> Outcome:
    wanted = scene.wanted(node)
    least = parse_duration(wanted) if wanted is not None else FRESH
    text = f"more than {format_duration(least)}"
    if seconds > least:
        return Outcome("pass", (node.name,), "the node has been up for a while", text, text)
    cure = f"ssh {node.name} 'last -x reboot shutdown | head; journalctl -b -1 -n 50'   # why did it boot?"
    return Outcome("fail", (node.name,), "the node booted lately", f"up for {format_duration(seconds)}", text, cure)


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
UPTIME = Check(
    "host.uptime",
    facts=("host.uptime",),
    judge=each(uptime, "host.uptime"),
    severity="warning",
    title="The node has been up for a while",
    why="A node that booted minutes ago may have crashed, and may do so again under load; links train, file systems "
    "mount and daemons start while the job already looks for them.",
    how="/proc/uptime; more than 10 min, or what `require: {host.uptime: 1h}` says.",
    remedy="last -x reboot shutdown | head; journalctl -b -1 -n 50   # why did it boot?",
    wants=parse_duration,
    proof=Proof("host.uptime", lambda _: 95.0),
)
