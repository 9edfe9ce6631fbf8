"""Judges the RDMA ports that carry the training.

They should be present, active, equally fast, and open to the job's user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    names_of,
    parse_count,
    passed,
    skipped,
    uniform,
    unknown,
)
from clusterprep.facts.pci import PciTree
from clusterprep.facts.rdma import Port, RdmaDevice, Verbs
from clusterprep.model import Absent, Node
from clusterprep.model.fact_columns import Part
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.model.units import pluralize
from clusterprep.nccl.rails import HARDWARE, RdmaRail, TrainingSet, kind_of, training_sets
from clusterprep.remedies import NO_REMEDY, Remedy, shell_line

Devices = tuple[RdmaDevice, ...]
FACTS = ("rdma.devices", "pci.tree")
NOT_KNOWN = "which RDMA ports carry the training is not known"
NONE_IN_USE = "no RDMA port is in use here"


def training_not_known(node: Node, absent: Absent) -> Outcome:
    """Return the outcome for a node whose training ports could not be determined."""
    message = absent.detail or NOT_KNOWN
    return unknown(node, message, absent.reason)


def present(context: CheckContext) -> Iterable[Outcome]:
    """Compare declared devices with those present; without a declaration, nodes of one kind."""
    undeclared: dict[object, dict[str, str]] = {}
    for nodes in context.alike(parts=[HARDWARE]):
        node = nodes[0]
        devices: Devices = context.value(node, "rdma.devices")
        wanted = context.wanted(node)
        if wanted is not None:
            yield from about_all(nodes, [_judge_count(node, devices, int(wanted))])
        if node.interfaces.rdma is not None:
            outcome = _judge_declared(node, devices, node.interfaces.rdma)
            yield from about_all(nodes, [outcome])
        elif wanted is None:
            tree: PciTree = context.value(node, "pci.tree")
            models = dict.fromkeys(names_of(nodes), _count_models(devices, tree))
            undeclared.setdefault(kind_of(context.fleet, node), {}).update(models)
    for models in undeclared.values():
        yield from _compare_models(models)


def _judge_count(node: Node, devices: Devices, wanted: int) -> Outcome:
    seen = _join_names(devices)
    if len(devices) == wanted:
        message = "the number of RDMA devices is as required"
        return passed(node, message, seen, str(wanted))
    message = "the number of RDMA devices is not what the inventory requires"
    return failed(node, message, seen, str(wanted))


def _judge_declared(node: Node, devices: Devices, declared: Iterable[str]) -> Outcome:
    """Judge whether each declared device exists; `declared` may name ports, as in «mlx5_0:1»."""
    existing = {device.name for device in devices}
    names: list[str] = []
    missing: list[str] = []
    for port in declared:
        name = port.partition(":")[0]
        if name in names:
            continue
        names.append(name)
        if name not in existing:
            missing.append(name)
    if not names:
        return skipped(node, "declared as having no RDMA")
    seen = _join_names(devices)
    wanted = ", ".join(names)
    if not missing:
        message = "the declared RDMA devices are there"
        return passed(node, message, seen, wanted)
    verb = "is" if len(missing) == 1 else "are"
    message = f"{', '.join(missing)} {verb} declared and not there"
    return failed(node, message, seen, wanted)


def _count_models(devices: Devices, tree: PciTree) -> str:
    """Return the number of each model, as in «8 × MT4129, 2 × MT4125».

    Virtual functions do not count: they appear and disappear with their guests.
    """
    virtual = {device.at for device in tree.devices if device.physical}
    counts: Counter[str] = Counter()
    for device in devices:
        if device.pci not in virtual:
            model = device.model or "unknown model"
            counts[model] += 1
    parts = []
    for model, number in sorted(counts.items()):
        parts.append(f"{number} × {model}")
    return ", ".join(parts) or "none"


def _compare_models(models: Mapping[str, str]) -> Iterable[Outcome]:
    """Compare the models of nodes of one kind; `models` holds a text for each node."""
    names = tuple(models)
    if set(models.values()) == {"none"}:
        yield Outcome("skip", names, "no RDMA device here", reason="not_applicable")
    elif len(models) == 1:
        message = "there is no other node of this kind to compare with"
        seen = models[names[0]]
        yield Outcome(
            "skip",
            names,
            message,
            seen,
            reason="not_applicable",
        )
    else:
        yield from uniform(models, "the set of RDMA devices", len(models))


def _join_names(devices: Devices) -> str:
    return ", ".join(device.name for device in devices) or "none"


def parse_device_count(text: str) -> int:
    """Return the number in `require: {ib.present: …}`. Raises ValueError for anything else."""
    expected = "a number of RDMA devices, such as 8"
    return parse_count(text, expected, maximum=256)


# ---------------------------------------------------------------- ports

UsedPorts = list[tuple[tuple[Node, ...], TrainingSet]]
"""Nodes that are alike, and the training set of the first of them."""
LabelledPorts = list[tuple[tuple[str, ...], RdmaRail, str]]
"""Names of nodes that are alike, a port of each, and the text that is compared between ports."""


def of_ports(
    judge: Callable[[CheckContext, UsedPorts], Iterable[Outcome]], *parts: Part
) -> Callable[[CheckContext], Iterable[Outcome]]:
    """Return a judge of a whole context that calls `judge` for nodes with an active training port.

    Nodes without one get their outcome here: unknown or skip. Nodes are alike if they differ in the
    addresses of their ports alone; `parts` are all that `judge` looks at of other facts.
    """

    def judge_all(context: CheckContext) -> Iterable[Outcome]:
        sets = training_sets(context.fleet)
        used: UsedPorts = []
        for nodes in context.alike(parts=[HARDWARE, *parts]):
            training = sets[nodes[0].name]
            if isinstance(training, Absent):
                yield from about_all(nodes, [training_not_known(nodes[0], training)])
            elif training.active:
                used.append((nodes, training))
            else:
                yield from about_all(nodes, [skipped(nodes[0], NONE_IN_USE)])
        yield from judge(context, used)

    return judge_all


def state(context: CheckContext, used: UsedPorts) -> Iterable[Outcome]:
    """Judge single ports that are not up; a node without any active port is for ib.configured."""
    for nodes, training in used:
        yield from about_all(nodes, [_judge_state(nodes[0], training)])


def _judge_state(node: Node, training: TrainingSet) -> Outcome:
    wanted = "ACTIVE, LinkUp"
    down: list[RdmaRail] = []
    names: list[str] = []
    states: list[str] = []
    for rail in training.rails:
        port = rail.port
        if not port.active:
            down.append(rail)
            names.append(rail.name)
            states.append(f"{rail.name} {port.state}, {port.phys_state}")
    if not down:
        message = "all ports of the training set are active"
        seen = f"{len(training.rails)} active"
        return passed(node, message, seen, wanted)
    fault = _describe_fault(down[0].port)
    message = f"{', '.join(names)}: {fault}"
    remedy = _port_remedy(down[0])
    return failed(
        node,
        message,
        "; ".join(states),
        wanted,
        remedy,
    )


def _describe_fault(port: Port) -> str:
    if port.phys_state == "Disabled":
        return "the port is switched off"
    if port.phys_state == "LinkUp" and port.link_layer == "InfiniBand":
        return "the link is up and no subnet manager has activated the port"
    return "the port has no link"


def _port_remedy(rail: RdmaRail) -> Remedy:
    """Return the command for a port that is switched off, not activated, or without a link."""
    name = rail.device.name
    number = rail.port.number
    if rail.port.phys_state == "Disabled":
        return shell_line(
            "ibportstate -C {name} -P {number} -D 0 {number} enable", name=name, number=number
        )
    if rail.port.phys_state == "LinkUp" and not rail.port.active:
        return shell_line(
            "sminfo -C {name} -P {number}   # the subnet manager must answer",
            name=name,
            number=number,
        )
    return shell_line(
        "mlxlink -d {name} -p {number}"
        "   # then reseat or replace the cable, and look at the switch port",
        name=name,
        number=number,
    )


def rate(context: CheckContext, used: UsedPorts) -> Iterable[Outcome]:
    """Compare rates with the declared one; without it, cards of one make on all nodes."""
    groups: dict[object, LabelledPorts] = {}
    for nodes, training in used:
        node = nodes[0]
        silent = _first_without_rate(training)
        if silent is not None:
            message = f"{silent.name} does not say its rate"
            yield from about_all(nodes, [unknown(node, message, "garbled")])
            continue
        wanted = context.wanted(node)
        if wanted is not None:
            yield from about_all(nodes, [_judge_required_rate(node, training, wanted)])
            continue
        kind = kind_of(context.fleet, node)
        names = names_of(nodes)
        for rail in training.active:
            make = rail.device.board or rail.device.model
            label = f"{rail.port.rate:g} Gbit/s"
            groups.setdefault((kind, make), []).append((names, rail, label))
    yield from compare_ports(groups.values(), "rate", lambda rail, usual: _port_remedy(rail))


def _first_without_rate(training: TrainingSet) -> RdmaRail | None:
    for rail in training.active:
        if rail.port.rate is None:
            return rail
    return None


def _judge_required_rate(node: Node, training: TrainingSet, wanted: str) -> Outcome:
    least = parse_rate(wanted)
    slow = [rail for rail in training.active if (rail.port.rate or 0.0) < least]
    if slow:
        message = "ports are slower than required"
        return failed(node, message, _join_rates(slow), wanted)
    message = "the ports are as fast as required"
    return passed(node, message, _join_rates(training.active), wanted)


def _join_rates(rails: Iterable[RdmaRail]) -> str:
    return ", ".join(f"{rail.name} {rail.port.rate:g} Gbit/s" for rail in rails)


def parse_rate(text: str) -> float:
    """Return the Gbit/s of `require: {ib.rate: 400}`. Raises ValueError for anything else."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 1 <= rate <= 10_000:
        raise ValueError(f"expected a rate in Gbit/s, such as 400; seen '{text}'")
    return rate


def link_layer(context: CheckContext, used: UsedPorts) -> Iterable[Outcome]:
    """Compare the link layers of the training ports on all nodes of a kind."""
    groups: dict[object, LabelledPorts] = {}
    for nodes, training in used:
        group = groups.setdefault(kind_of(context.fleet, nodes[0]), [])
        names = names_of(nodes)
        for rail in training.active:
            group.append((names, rail, rail.port.link_layer))
    yield from compare_ports(groups.values(), "link layer", _link_layer_remedy)


def _link_layer_remedy(rail: RdmaRail, usual: str) -> Remedy:
    # LINK_TYPE of mlxconfig: 1 is InfiniBand, 2 is Ethernet.
    kind = 2 if usual == "Ethernet" else 1
    return shell_line(
        "mlxconfig -d {name} set LINK_TYPE_P{number}={kind}   # then reboot",
        name=rail.device.name,
        number=rail.port.number,
        kind=kind,
    )


def compare_ports(
    groups: Iterable[LabelledPorts], what: str, remedy: Callable[[RdmaRail, str], Remedy]
) -> Iterable[Outcome]:
    """Compare each port with the majority of its group.

    Without a majority every port of a group whose labels differ is named. `remedy(port, usual
    label)` tells how to mend the first differing port of a node.
    """
    comparisons: dict[str, _Comparison] = {}
    for group in groups:
        labels: Counter[str] = Counter()
        for names, _, label in group:
            labels[label] += len(names)
        labels_differ = len(labels) > 1
        usual, count = labels.most_common(1)[0]
        has_majority = 2 * count > labels.total()
        wanted = usual if has_majority else "equal on all ports"
        for names, rail, label in group:
            comparison = comparisons.setdefault(names[0], _Comparison(names))
            comparison.wanted.add(wanted)
            if labels.total() > 1:
                comparison.has_peer = True
            if labels_differ and not (has_majority and label == usual):
                comparison.differing.append(f"{rail.name} {label}")
                comparison.remedy = comparison.remedy or remedy(rail, usual)
    for comparison in comparisons.values():
        yield comparison.outcome(what)


class _Comparison:
    """The training ports of nodes that are alike, compared with the other ports of their groups."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.wanted: set[str] = set()
        self.differing: list[str] = []
        self.remedy = NO_REMEDY
        self.has_peer = False

    def outcome(self, what: str) -> Outcome:
        """Return the outcome for the nodes; `what` names the property that was compared."""
        names = self.names
        wanted = ", ".join(sorted(self.wanted))
        if self.differing:
            message = f"the {what} of a port differs from that of the others"
            seen = ", ".join(self.differing)
            return Outcome(
                "fail",
                names,
                message,
                seen,
                wanted,
                self.remedy,
            )
        if self.has_peer:
            return Outcome(
                "pass",
                names,
                f"the {what} is equal on all ports",
                wanted,
                wanted,
            )
        message = f"the {what} has nothing to be compared with"
        return Outcome(
            "skip",
            names,
            message,
            wanted,
            reason="not_applicable",
        )


def chardev(context: CheckContext, used: UsedPorts) -> Iterable[Outcome]:
    """Judge access to /dev/infiniband/uverbsN, through which programs reach the devices."""
    for nodes, training in used:
        verbs: Verbs = context.value(nodes[0], "rdma.verbs")
        yield from about_all(nodes, [_judge_verbs(nodes[0], training, verbs)])


def _judge_verbs(node: Node, training: TrainingSet, verbs: Verbs) -> Outcome:
    """Judge whether all training devices have a character device that is open to the user."""
    wanted = "uverbs devices that the job's user may read and write"
    if not verbs.devices:
        message = "there is no /dev/infiniband/uverbs*: programs cannot reach the RDMA devices"
        cure = shell_line("modprobe ib_uverbs   # container: --device")
        return failed(
            node,
            message,
            "none",
            wanted,
            cure,
        )
    served = set(verbs.devices.values())
    training_devices = {rail.device.name for rail in training.active}
    unserved = sorted(training_devices - served)
    if unserved and None not in served:
        verb = "has" if len(unserved) == 1 else "have"
        message = f"{', '.join(unserved)} {verb} no character device here"
        return failed(node, message, ", ".join(verbs.devices), wanted)
    if verbs.closed:
        user = node.job_user or node.ssh.user or "the job's user"
        message = f"{user} may not read and write the verbs"
        return failed(node, message, ", ".join(verbs.closed), wanted)
    message = "the verbs are open to the job's user"
    return passed(node, message, pluralize(len(verbs.devices), "device"), wanted)


def configured(context: CheckContext) -> Iterable[Outcome]:
    """Judge whether a port can be used, or NCCL is told to leave RDMA alone."""
    sets = training_sets(context.fleet)
    for nodes in context.alike(parts=[HARDWARE]):
        node = nodes[0]
        devices: Devices = context.value(node, "rdma.devices")
        disabled: bool = context.value(node, "rdma.disabled")
        outcome = _judge_configured(node, sets[node.name], devices, disabled)
        yield from about_all(nodes, [outcome])


def _judge_configured(
    node: Node, training: TrainingSet | Absent, devices: Devices, disabled: bool
) -> Outcome:
    """Judge one node; `disabled` says that a file of ours has NCCL_IB_DISABLE=1."""
    if not devices:
        return skipped(node, "no RDMA device here")
    if node.gpus is not None and node.gpus.used == 0:
        message = "no GPU is declared, so NCCL does not run here"
        return skipped(node, message)
    if isinstance(training, Absent):
        return training_not_known(node, training)
    wanted = "an active port with an address, or NCCL_IB_DISABLE=1"
    usable = [rail.name for rail in training.active if rail.port.addressed]
    if usable:
        return passed(node, "RDMA can be used", ", ".join(usable), wanted)
    if disabled:
        message = "no RDMA port is usable, and NCCL is told so"
        return passed(node, message, "NCCL_IB_DISABLE=1", wanted)
    message = "there is an RDMA device that is not configured, and NCCL may try it"
    if training.why == "declared as interfaces.rdma" and not training.rails:
        message = "RDMA is declared as none, and the environment does not say so to NCCL"
    environment = fix_of(wanted_state("env"), everywhere=True)
    return failed(node, message, _describe_ports(devices), wanted, fix=environment)


def _describe_ports(devices: Devices) -> str:
    """Return the state of every port; the names of the devices where none has a port."""
    states = []
    for device in devices:
        for port in device.ports:
            state = _describe_port(device, port)
            states.append(state)
    return ", ".join(states) or _join_names(devices)


def _describe_port(device: RdmaDevice, port: Port) -> str:
    state = f"{device.name} {port.state}"
    if device.iwarp:
        return f"{state}, iWARP"
    if port.active and not port.addressed:
        return f"{state}, no address"
    return state


# ---------------------------------------------------------------- the checks


def turned(name: str, **fields: object) -> Callable[[Devices], Devices]:
    """Return a function for proofs that sets `fields` in all ports of the device `name`.

    With an empty name it sets them in the ports of all devices.
    """

    def change(device: RdmaDevice) -> RdmaDevice:
        ports = []
        for port in device.ports:
            changed_port = replace(port, **fields)
            ports.append(changed_port)
        return replace(device, ports=tuple(ports))

    def turn(devices: Devices) -> Devices:
        changed = []
        for device in devices:
            if not name or device.name == name:
                changed.append(change(device))
            else:
                changed.append(device)
        return tuple(changed)

    return turn


PRESENT = Check(
    "ib.present",
    facts=FACTS,
    judge=present,
    severity="error",
    title="The RDMA devices that should be there",
    why="A card that the driver did not bring up is missing without a word: NCCL spreads its "
    "channels over the rest, and this node sets the pace of all.",
    how="/sys/class/infiniband against `interfaces: {rdma: …}`; undeclared, nodes of one kind must "
    "have equally many of each model. `require: {ib.present: 8}` demands a number.",
    remedy=shell_line(
        "lspci -d 15b3:; dmesg | grep mlx5; modprobe mlx5_ib   # not on the bus: reseat the card"
    ),
    wants=parse_device_count,
    proof=Proof("rdma.devices", lambda devices: tuple(d for d in devices if d.name != "mlx5_8")),
)
STATE = Check(
    "ib.state",
    facts=FACTS,
    judge=of_ports(state),
    severity="error",
    title="Ports of the training set are active",
    why="NCCL leaves out a port that is not ACTIVE: the GPUs beside it go over another card, and "
    "the whole job slows.",
    how="state and phys_state in /sys/class/infiniband/*/ports/*. Judged are the declared ports, "
    "else those near GPUs that are active on at least half of the nodes; storage cards, front ends "
    "and ports in use nowhere are left out.",
    remedy=shell_line("ibstat; mlxlink -d DEVICE   # cable, switch port, subnet manager"),
    proof=Proof("rdma.devices", turned("mlx5_3", state="DOWN", phys_state="Polling")),
)
RATE = Check(
    "ib.rate",
    facts=FACTS,
    judge=of_ports(rate),
    severity="warning",
    title="The rate of the ports of the training set",
    why="A cable with a broken lane trains down to half or a quarter, all is green, and every "
    "all-reduce waits for it.",
    how="rate in /sys/class/infiniband/*/ports/*, equal for cards of one make (board id), or at "
    "least what `require: {ib.rate: 400}` says in Gbit/s.",
    remedy=shell_line("mlxlink -d DEVICE   # then reseat or replace the cable"),
    wants=parse_rate,
    proof=Proof("rdma.devices", turned("mlx5_3", rate=100.0)),
)
LINK_LAYER = Check(
    "ib.link_layer",
    facts=FACTS,
    judge=of_ports(link_layer),
    severity="warning",
    title="One link layer in the training set",
    why="Cards that speak both come up with the wrong one after a swap or a firmware reset; an "
    "Ethernet port never reaches an InfiniBand port.",
    how="link_layer in /sys/class/infiniband/*/ports/*, equal in the training set and on all nodes "
    "of a kind.",
    remedy=shell_line(
        "mlxconfig -d DEVICE set LINK_TYPE_P1=1   # 1 InfiniBand, 2 Ethernet; then reboot"
    ),
    proof=Proof("rdma.devices", turned("mlx5_3", link_layer="Ethernet")),
)
CHARDEV = Check(
    "ib.chardev",
    facts=(*FACTS, "rdma.verbs"),
    judge=of_ports(chardev),
    severity="warning",
    title="The job's user may open the RDMA devices",
    why="Without access NCCL warns «Unable to open device», leaves the card out, and trains over "
    "slow sockets.",
    how="Mode and owner of /dev/infiniband/uverbs* against the job's user and its groups.",
    remedy=shell_line(
        "chmod 0666 /dev/infiniband/uverbs*   # for good: a udev rule, as rdma-core brings it"
    ),
    proof=Proof("rdma.verbs", lambda verbs: replace(verbs, closed=tuple(verbs.devices))),
)
CONFIGURED = Check(
    "ib.configured",
    facts=(*FACTS, "rdma.disabled"),
    judge=configured,
    severity="error",
    title="RDMA is configured, or NCCL is told to leave it",
    why="A device that is there and was never set up draws NCCL into a path that leads nowhere: a "
    "hang at start.",
    how="At least one port of the training set is ACTIVE and has an address (a LID, or one that is "
    "not link-local), or the files that apply writes say NCCL_IB_DISABLE=1.",
    remedy=shell_line(
        "clusterprep apply INVENTORY   # writes NCCL_IB_DISABLE=1 where no node has a usable "
        "port; or configure it"
    ),
    proof=Proof("rdma.devices", turned("", state="DOWN", phys_state="Disabled")),
)
