"""Is every inventory entry a machine of its own, and how long has it been up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.checks import Check, CheckContext, Outcome, Proof, by_value, each
from clusterprep.model import Absent, Node
from clusterprep.model.colocation import HOST_ID, have_distinct_ids, host_ids
from clusterprep.model.units import format_duration, parse_duration

FRESH = 600.0  # seconds since boot within which a node is called lately rebooted; services may still be starting


def identity(context: CheckContext) -> Iterable[Outcome]:
    """Machine ids must be unique: one that appears twice is a node listed twice, or a cloned image."""
    names = tuple(node.name for node in context.nodes)
    if len(context.inventory.nodes) < 2:
        yield Outcome("skip", names, "there is only one node", reason="not_applicable")
        return
    # Whoever told a machine id counts, also where the rest of what this check wants to know is missing.
    told = {node.name: context.value(node, "host.machine_id") for node in context.fleet.reached}
    machines = {name: machine for name, machine in told.items() if not isinstance(machine, Absent)}
    if len(machines) < 2:
        reason = "fewer than two nodes have a value to compare"
        yield Outcome(
            "unknown", names, "machine ids could not be compared", "", "unique", reason=reason
        )
        return
    called_one = _called_one(context, machines)
    yield from called_one
    blamed = {name for outcome in called_one for name in outcome.nodes}
    for machine, nodes in by_value(machines):
        if len(nodes) > 1:
            yield _machine(context, machine, nodes)
        elif nodes[0] not in blamed:
            yield Outcome("pass", nodes, "the machine id is unique", "unique", "unique")


def _machine(context: CheckContext, machine: str, nodes: tuple[str, ...]) -> Outcome:
    """One machine id under several names: meant, a double entry, or a cloned image."""
    listed = [node for node in context.inventory.nodes if node.name in nodes]
    seen, wanted = f"machine id {machine}", "a machine id of its own"
    if have_distinct_ids(listed):
        message = f"they share this machine on purpose: transport local, each with an {HOST_ID} of its own"
        return Outcome("pass", nodes, message, seen, wanted)
    boots = {context.fleet.fact(node, "host.boot_id") for node in nodes}
    hosts = {context.fleet.fact(node, "host.name") for node in nodes}
    if (
        len(boots) == 1
        and len(hosts) == 1
        and not any(isinstance(seen, Absent) for seen in boots | hosts)
    ):
        cure = "remove all but one of these entries from the inventory"
        if all(node.transport == "local" for node in listed):
            cure += f"; or give each `env: {{{HOST_ID}: NAME}}`, to try a job of several nodes on this machine"
        return Outcome(
            "fail", nodes, "the same machine is listed more than once", seen, wanted, cure
        )
    cure = "rm /etc/machine-id && systemd-machine-id-setup   # on all but one of them, then reboot"
    return Outcome(
        "fail", nodes, "machines cloned from one image share their id", seen, wanted, cure
    )


def _called_one(context: CheckContext, machines: Mapping[str, str]) -> list[Outcome]:
    """Machines that NCCL would take for one, because the inventory gives them the same host id."""
    found = []
    for value, names in host_ids(
        node for node in context.inventory.nodes if node.name in machines
    ).items():
        # Containers beside each other on one kernel may be meant to be one host, and then share memory.
        boots = {context.fleet.fact(name, "host.boot_id") for name in names}
        if len({boot for boot in boots if not isinstance(boot, Absent)}) > 1:
            message = f"NCCL takes nodes with the same {HOST_ID} for one machine, and looks for shared memory there"
            cure = f"remove {HOST_ID} from `env:` of the inventory, or give each machine one of its own"
            found.append(
                Outcome(
                    "fail",
                    names,
                    message,
                    f"{HOST_ID}={value}",
                    "a host id of its own, or none",
                    cure,
                )
            )
    return found


def uptime(context: CheckContext, node: Node, seconds: float) -> Outcome:
    wanted = context.wanted(node)
    least = parse_duration(wanted) if wanted is not None else FRESH
    text = f"more than {format_duration(least)}"
    if seconds > least:
        return Outcome("pass", (node.name,), "the node has been up for a while", text, text)
    cure = f"ssh {node.name} 'last -x reboot shutdown | head; journalctl -b -1 -n 50'   # why did it boot?"
    return Outcome(
        "fail",
        (node.name,),
        "the node booted lately",
        f"up for {format_duration(seconds)}",
        text,
        cure,
    )


IDENTITY = Check(
    "host.identity",
    facts=("host.machine_id", "host.boot_id", "host.name"),
    judge=identity,
    severity="error",
    title="Every inventory entry is a machine of its own",
    why="A machine listed twice gets two node ranks and twice the processes; ranks then share GPUs and the job dies "
    "or crawls. Cloned machine ids also confuse DHCP and journals. Machines with one NCCL_HOSTID are one to NCCL.",
    how="/etc/machine-id of all nodes is compared; boot id and host name tell one machine from a clone. Nodes of "
    "`transport: local` may share this machine where each declares an NCCL_HOSTID of its own under `env:`: then verify "
    "tries a job of several nodes on one machine, and apply refuses to write. One NCCL_HOSTID declared for machines "
    "with different boot ids fails.",
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
