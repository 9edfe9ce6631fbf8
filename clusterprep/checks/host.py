"""Whether every inventory entry is a machine of its own, and how long it has been up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from msgspec.structs import replace

from clusterprep.checks import (
    NO_PEER,
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    by_value,
    failed,
    passed,
)
from clusterprep.facts.host import NO_MACHINE_ID
from clusterprep.model import Absent, Node
from clusterprep.model.colocation import HOST_ID, have_distinct_ids, host_ids
from clusterprep.model.units import format_duration, parse_duration
from clusterprep.remedies import Remedy, noted, sentence, shell_line

# Seconds since boot within which a node was booted lately; its services may still be starting.
FRESH = 600.0
OWN_ID = "a machine id of its own"


def identity(context: CheckContext) -> Iterable[Outcome]:
    """Judge that machine ids are unique.

    One that appears twice is a node listed twice, or a cloned image.
    """
    names = context.names
    if len(context.inventory.nodes) < 2:
        yield Outcome("skip", names, "there is only one node", reason="not_applicable")
        return
    machine_ids = _machine_ids(context)
    if len(machine_ids) < 2:
        message = "machine ids could not be compared"
        reason = NO_PEER
        yield Outcome(
            "unknown",
            names,
            message,
            "",
            "unique",
            reason=reason,
        )
        return
    blamed: set[str] = set()
    for outcome in _same_host_id(context, machine_ids):
        yield outcome
        blamed.update(outcome.nodes)
    unique: list[str] = []
    for machine_id, nodes in by_value(machine_ids):
        if len(nodes) > 1:
            yield _judge_shared(context, machine_id, nodes)
        elif nodes[0] not in blamed:
            unique.append(nodes[0])
    for what, names in by_value({name: _kind_of_id(machine_ids[name]) for name in unique}):
        yield Outcome(
            "pass",
            names,
            f"the {what} is unique",
            "unique",
            "unique",
        )


def _machine_ids(context: CheckContext) -> dict[str, str]:
    """Return the machine ids that are known, also of nodes whose other facts are missing.

    A system without one is known by its boot and its name.
    """
    reached = context.fleet.reached
    of_all = replace(context, nodes=reached).values("host.machine_id")
    machine_ids: dict[str, str] = {}
    for node in reached:
        value = of_all[node.name]
        if value == NO_MACHINE_ID:
            value = _boot_and_name(context, node)
        if not isinstance(value, Absent):
            machine_ids[node.name] = value
    return machine_ids


def _boot_and_name(context: CheckContext, node: Node) -> str | Absent:
    """Return what tells one machine from another where it has no machine id."""
    boot = context.value(node, "host.boot_id")
    host = context.value(node, "host.name")
    for value in (boot, host):
        if isinstance(value, Absent):
            return value
    return f"no machine id, boot id {boot}, host name {host}"


def _is_machine_id(identity: str) -> bool:
    return not identity.startswith("no machine id")


def _kind_of_id(identity: str) -> str:
    return "machine id" if _is_machine_id(identity) else "boot id"


def _entries(context: CheckContext, names: Collection[str]) -> list[Node]:
    return [node for node in context.inventory.nodes if node.name in names]


def _judge_shared(context: CheckContext, machine_id: str, names: tuple[str, ...]) -> Outcome:
    """Judge one machine id under several names: deliberate, a double entry, or a cloned image."""
    entries = _entries(context, names)
    seen = f"machine id {machine_id}" if _is_machine_id(machine_id) else machine_id
    if have_distinct_ids(entries):
        message = (
            f"they share this machine on purpose: transport local, each with an {HOST_ID} "
            "of its own"
        )
        return Outcome(
            "pass",
            names,
            message,
            seen,
            OWN_ID,
        )
    if not _is_one_machine(context, names):
        message = "machines cloned from one image share their id"
        remedy = shell_line(
            "grep -qx {machine_id} /etc/machine-id && mv /etc/machine-id /etc/machine-id.cloned "
            "&& systemd-machine-id-setup   # on all but one of them, then reboot",
            machine_id=machine_id,
        )
        return Outcome(
            "fail",
            names,
            message,
            seen,
            OWN_ID,
            remedy,
        )
    remedy = sentence("remove all but one of these entries from the inventory")
    if all(node.transport == "local" for node in entries):
        remedy = noted(
            remedy,
            "or give each `env: {{{host_id}: NAME}}`, "
            "to try a job of several nodes on this machine",
            host_id=HOST_ID,
        )
    message = "the same machine is listed more than once"
    return Outcome(
        "fail",
        names,
        message,
        seen,
        OWN_ID,
        remedy,
    )


def _is_one_machine(context: CheckContext, names: Iterable[str]) -> bool:
    """Return whether nodes have one boot id and one host name, as far as these are known."""
    boots, hosts = set(), set()
    for name in names:
        boot = context.fleet.fact(name, "host.boot_id")
        host = context.fleet.fact(name, "host.name")
        if isinstance(boot, Absent) or isinstance(host, Absent):
            return False
        boots.add(boot)
        hosts.add(host)
    return len(boots) == 1 and len(hosts) == 1


def _same_host_id(context: CheckContext, machine_ids: Mapping[str, str]) -> Iterable[Outcome]:
    """Yield machines that NCCL takes for one, because the inventory gives them one host id."""
    entries = _entries(context, machine_ids)
    for host_id, names in host_ids(entries).items():
        # Containers beside each other on one kernel may be meant to be one host, and then share
        # memory.
        if len(_boot_ids(context, names)) < 2:
            continue
        message = (
            f"NCCL takes nodes with the same {HOST_ID} for one machine, "
            "and looks for shared memory there"
        )
        remedy = sentence(
            "remove {host_id} from `env:` of the inventory, or give each machine one of its own",
            host_id=HOST_ID,
        )
        seen = f"{HOST_ID}={host_id}"
        yield Outcome(
            "fail",
            names,
            message,
            seen,
            "a host id of its own, or none",
            remedy,
        )


def _boot_ids(context: CheckContext, names: Iterable[str]) -> set[str]:
    boot_ids = set()
    for name in names:
        boot_id = context.fleet.fact(name, "host.boot_id")
        if not isinstance(boot_id, Absent):
            boot_ids.add(boot_id)
    return boot_ids


def uptime(context: CheckContext) -> Iterable[Outcome]:
    """Judge that a node was not booted lately, and not between two looks of this run."""
    for nodes in context.alike_by(partial(_settled_or_name, context)):
        yield from about_all(nodes, [_judge_uptime(context, nodes[0])])


def _settled_or_name(context: CheckContext, node: Node) -> str:
    """Return the name of a node that was booted, which its remedy has, else ""."""
    is_settled = context.value(node, "host.uptime") > _least_uptime(context, node)
    return "" if is_settled and not _booted_meanwhile(context, node) else node.name


def _least_uptime(context: CheckContext, node: Node) -> float:
    required = context.wanted(node)
    return FRESH if required is None else parse_duration(required)


def _judge_uptime(context: CheckContext, node: Node) -> Outcome:
    """Return the outcome of one node."""
    booted = _booted_meanwhile(context, node)
    if booted:
        return failed(
            node,
            "the node booted in the middle of this run",
            booted,
            "one boot",
            _why_it_booted(node),
        )
    seconds: float = context.value(node, "host.uptime")
    least = _least_uptime(context, node)
    wanted = f"more than {format_duration(least)}"
    if seconds > least:
        return passed(node, "the node has been up for a while", wanted, wanted)
    seen = f"up for {format_duration(seconds)}"
    return failed(
        node,
        "the node booted lately",
        seen,
        wanted,
        _why_it_booted(node),
    )


def _booted_meanwhile(context: CheckContext, node: Node) -> str:
    """Return both boot ids if they differ between two looks of this run, else ""."""
    before = context.value(node, "host.boot_before")
    now = context.value(node, "host.boot_id")
    if not isinstance(before, str) or not isinstance(now, str) or before == now:
        return ""
    return f"boot id {before} at the first look, {now} at the second"


def _why_it_booted(node: Node) -> Remedy:
    return shell_line(
        "ssh {name} 'last -x reboot shutdown | head; journalctl -b -1 -n 50'   # why did it boot?",
        name=node.name,
    )


IDENTITY = Check(
    "host.identity",
    facts=("host.machine_id", "host.boot_id", "host.name"),
    judge=identity,
    severity="error",
    title="Every inventory entry is a machine of its own",
    why="A machine listed twice gets two node ranks and twice the processes; ranks then share "
    "GPUs and the job dies or crawls. Cloned machine ids also confuse DHCP and journals. Machines "
    "with one NCCL_HOSTID are one to NCCL.",
    how="/etc/machine-id of all nodes is compared; boot id and host name tell one machine from a "
    "clone, and systems without a machine id (Alpine) from each other. Nodes of `transport: local` "
    "may share this machine where each declares an NCCL_HOSTID of its own under `env:`: then "
    "verify tries a job of several nodes on one machine, and apply refuses to write. One "
    "NCCL_HOSTID declared for machines with different boot ids fails.",
    remedy=sentence("remove the double entry, or give the clone a machine id of its own"),
    proof=Proof("host.machine_id", lambda _: "0" * 31 + "1"),
)
UPTIME = Check(
    "host.uptime",
    facts=("host.uptime",),
    before_job=True,
    uses=("host.boot_id", "host.boot_before"),
    judge=uptime,
    severity="warning",
    title="The node has been up for a while",
    why="A node that booted minutes ago may have crashed, and may do so again under load; links "
    "train, file systems mount and daemons start while the job already looks for them.",
    how="/proc/uptime; more than 10 min, or what `require: {host.uptime: 1h}` says. Where a "
    "command looks twice, as apply does, the boot id has to be the same.",
    remedy=shell_line(
        "last -x reboot shutdown | head; journalctl -b -1 -n 50   # why did it boot?"
    ),
    wants=parse_duration,
    proof=Proof("host.uptime", lambda _: 95.0),
)
