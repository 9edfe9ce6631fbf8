"""RDMA devices of the training set: there, active, as fast as their fellows, and open to the job's user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, uniform
from clusterprep.facts.rdma import Port, RdmaDevice, Verbs
from clusterprep.model import Absent, Node
from clusterprep.nccl.rails import RdmaRail, TrainingSet, kind_of, training_sets

Devices = tuple[RdmaDevice, ...]
FACTS = ("rdma.devices", "pci.tree")
NOT_KNOWN = "which RDMA ports carry the training is not known"
NONE_IN_USE = "no RDMA port is in use here"


def present(context: CheckContext) -> Iterable[Outcome]:
    """Declared devices are there; undeclared, nodes of one kind have equally many of each model."""
    undeclared: dict[object, dict[str, str]] = {}
    for node in context.nodes:
        devices: Devices = context.value(node, "rdma.devices")
        wanted = context.wanted(node)
        if wanted is not None:
            yield _as_many(node, devices, int(wanted))
        if node.interfaces.rdma is not None:
            yield _all_there(node, devices)
        elif wanted is None:
            undeclared.setdefault(kind_of(context.fleet, node), {})[node.name] = _models(
                context, node
            )
    for models in undeclared.values():
        yield from _alike(models)


def _as_many(node: Node, devices: Devices, wanted: int) -> Outcome:
    good = len(devices) == wanted
    message = f"the number of RDMA devices is {'as required' if good else 'not what the inventory requires'}"
    return Outcome("pass" if good else "fail", (node.name,), message, _names(devices), str(wanted))


def _all_there(node: Node, devices: Devices) -> Outcome:
    wanted = tuple(dict.fromkeys(name.partition(":")[0] for name in node.interfaces.rdma or ()))
    if not wanted:
        return Outcome("skip", (node.name,), "declared as having no RDMA", reason="not_applicable")
    missing = [name for name in wanted if name not in {device.name for device in devices}]
    if not missing:
        return Outcome(
            "pass",
            (node.name,),
            "the declared RDMA devices are there",
            _names(devices),
            ", ".join(wanted),
        )
    message = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} declared and not there"
    return Outcome("fail", (node.name,), message, _names(devices), ", ".join(wanted))


def _models(context: CheckContext, node: Node) -> str:
    """«8 × MT4129, 2 × MT4125»; virtual functions come and go with their guests and do not count."""
    tree, devices = context.value(node, "pci.tree"), context.value(node, "rdma.devices")
    virtual = {device.at for device in tree.devices if device.physical}
    counts = Counter(
        device.model or "unknown model" for device in devices if device.pci not in virtual
    )
    return ", ".join(f"{number} × {model}" for model, number in sorted(counts.items())) or "none"


def _alike(models: Mapping[str, str]) -> Iterable[Outcome]:
    if set(models.values()) == {"none"}:
        yield Outcome("skip", tuple(models), "no RDMA device here", reason="not_applicable")
    elif len(models) == 1:
        message = "there is no other node of this kind to compare with"
        yield Outcome(
            "skip", tuple(models), message, next(iter(models.values())), reason="not_applicable"
        )
    else:
        yield from uniform(models, "the set of RDMA devices", len(models))


def _names(devices: Devices) -> str:
    return ", ".join(device.name for device in devices) or "none"


def parse_count(text: str) -> int:
    """What `require: {ib.present: …}` asks for. Raises ValueError for what is no number of devices."""
    if not (text.isascii() and text.isdigit() and int(text) <= 256):
        raise ValueError(f"expected a number of RDMA devices, such as 8; seen '{text}'")
    return int(text)


# ---------------------------------------------------------------- ports

Used = list[tuple[Node, TrainingSet]]
Labelled = list[tuple[str, RdmaRail, str]]  # node, port, and what is compared of it


def of_ports(
    judge: Callable[[CheckContext, Used], Iterable[Outcome]],
) -> Callable[[CheckContext], Iterable[Outcome]]:
    """A judge that gets the nodes whose training set has an active port; the others are answered here."""

    def judge_all(context: CheckContext) -> Iterable[Outcome]:
        sets = training_sets(context.fleet)
        used: Used = []
        for node in context.nodes:
            found = sets[node.name]
            if isinstance(found, Absent):
                yield Outcome(
                    "unknown", (node.name,), found.detail or NOT_KNOWN, reason=found.reason
                )
            elif found.active:
                used.append((node, found))
            else:
                yield Outcome("skip", (node.name,), NONE_IN_USE, reason="not_applicable")
        yield from judge(context, used)

    return judge_all


def state(context: CheckContext, used: Used) -> Iterable[Outcome]:
    """Single ports that are not up; a node without any is a matter of ib.configured."""
    for node, training in used:
        down = [rail for rail in training.rails if not rail.port.active]
        wanted = "ACTIVE, LinkUp"
        if not down:
            message = "all ports of the training set are active"
            yield Outcome("pass", (node.name,), message, f"{len(training.rails)} active", wanted)
            continue
        seen = "; ".join(f"{rail.name} {rail.port.state}, {rail.port.phys_state}" for rail in down)
        message = f"{', '.join(rail.name for rail in down)}: {_ailment(down[0].port)}"
        yield Outcome("fail", (node.name,), message, seen, wanted, _cure(down[0]))


def _ailment(port: Port) -> str:
    if port.phys_state == "Disabled":
        return "the port is switched off"
    if port.phys_state == "LinkUp" and port.link_layer == "InfiniBand":
        return "the link is up and no subnet manager has activated the port"
    return "the port has no link"


def _cure(rail: RdmaRail) -> str:
    name, number = rail.device.name, rail.port.number
    if rail.port.phys_state == "Disabled":
        return f"ibportstate -C {name} -P {number} -D 0 {number} enable"
    if rail.port.phys_state == "LinkUp" and not rail.port.active:
        return f"sminfo -C {name} -P {number}   # the subnet manager must answer"
    return f"mlxlink -d {name} -p {number}   # then reseat or replace the cable, and look at the switch port"


def rate(context: CheckContext, used: Used) -> Iterable[Outcome]:
    """As declared; else cards of one make run at one rate, in a node and on all nodes."""
    groups: dict[object, Labelled] = {}
    for node, training in used:
        silent = [rail.name for rail in training.active if rail.port.rate is None]
        if silent:
            yield Outcome(
                "unknown", (node.name,), f"{silent[0]} does not say its rate", reason="garbled"
            )
        elif (wanted := context.wanted(node)) is not None:
            slow = [
                rail for rail in training.active if (rail.port.rate or 0.0) < parse_rate(wanted)
            ]
            seen = _rates(slow or training.active)
            message = (
                "ports are slower than required" if slow else "the ports are as fast as required"
            )
            yield Outcome("fail" if slow else "pass", (node.name,), message, seen, wanted)
        else:
            for rail in training.active:
                key = (kind_of(context.fleet, node), rail.device.board or rail.device.model)
                groups.setdefault(key, []).append((node.name, rail, f"{rail.port.rate:g} Gbit/s"))
    yield from _compared(groups.values(), "rate", lambda rail, usual: _cure(rail))


def _rates(rails: Iterable[RdmaRail]) -> str:
    return ", ".join(f"{rail.name} {rail.port.rate:g} Gbit/s" for rail in rails)


def parse_rate(text: str) -> float:
    """Gbit/s of `require: {ib.rate: 400}`. Raises ValueError for anything else than a number."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 1 <= rate <= 10_000:
        raise ValueError(f"expected a rate in Gbit/s, such as 400; seen '{text}'")
    return rate


def link_layer(context: CheckContext, used: Used) -> Iterable[Outcome]:
    """One link layer in the training set, on all nodes of a kind."""
    groups: dict[object, Labelled] = {}
    for node, training in used:
        for rail in training.active:
            groups.setdefault(kind_of(context.fleet, node), []).append(
                (node.name, rail, rail.port.link_layer)
            )
    yield from _compared(groups.values(), "link layer", _switch_over)


def _switch_over(rail: RdmaRail, usual: str) -> str:
    kind = 2 if usual == "Ethernet" else 1
    return (
        f"mlxconfig -d {rail.device.name} set LINK_TYPE_P{rail.port.number}={kind}   # then reboot"
    )


def _compared(
    groups: Iterable[Labelled], what: str, cure: Callable[[RdmaRail, str], str]
) -> Iterable[Outcome]:
    """Each port against the majority of its group; without one all that differ are named."""
    odd: dict[str, list[str]] = {}
    cures: dict[str, str] = {}
    usual: dict[str, set[str]] = {}
    compared: set[str] = set()
    for group in groups:
        (value, number), *others = Counter(label for _, _, label in group).most_common()
        sure = 2 * number > len(group)
        for node, rail, label in group:
            usual.setdefault(node, set()).add(value if sure else "equal on all ports")
            compared |= {node} if len(group) > 1 else set()
            if others and (not sure or label != value):
                odd.setdefault(node, []).append(f"{rail.name} {label}")
                cures.setdefault(node, cure(rail, value))
    for node, values in usual.items():
        wanted = ", ".join(sorted(values))
        if node in odd:
            message = f"the {what} of a port differs from that of the others"
            yield Outcome("fail", (node,), message, ", ".join(odd[node]), wanted, cures[node])
        elif node in compared:
            yield Outcome("pass", (node,), f"the {what} is equal on all ports", wanted, wanted)
        else:
            yield Outcome(
                "skip",
                (node,),
                f"the {what} has nothing to be compared with",
                wanted,
                reason="not_applicable",
            )


def chardev(context: CheckContext, used: Used) -> Iterable[Outcome]:
    """Programs reach the verbs through /dev/infiniband/uverbsN."""
    for node, training in used:
        yield _chardev(node, training, context.value(node, "rdma.verbs"))


def _chardev(node: Node, training: TrainingSet, verbs: Verbs) -> Outcome:
    wanted = "uverbs devices that the job's user may read and write"
    if not verbs.devices:
        message = "there is no /dev/infiniband/uverbs*: programs cannot reach the RDMA devices"
        return Outcome(
            "fail",
            (node.name,),
            message,
            "none",
            wanted,
            "modprobe ib_uverbs   # container: --device",
        )
    served = set(verbs.devices.values())
    absent = sorted({rail.device.name for rail in training.active} - served)
    if absent and None not in served:
        message = f"{', '.join(absent)} has no character device here"
        return Outcome("fail", (node.name,), message, ", ".join(verbs.devices), wanted)
    if verbs.closed:
        user = node.job_user or node.ssh.user or "the job's user"
        message = f"{user} may not read and write the verbs"
        return Outcome("fail", (node.name,), message, ", ".join(verbs.closed), wanted)
    return Outcome(
        "pass",
        (node.name,),
        "the verbs are open to the job's user",
        f"{len(verbs.devices)} devices",
        wanted,
    )


def configured(context: CheckContext) -> Iterable[Outcome]:
    """At least one port can be used, or NCCL is told to leave RDMA alone."""
    sets = training_sets(context.fleet)
    for node in context.nodes:
        devices, disabled = (
            context.value(node, fact) for fact in ("rdma.devices", "rdma.disabled")
        )
        yield _configured(node, sets[node.name], devices, disabled)


def _configured(
    node: Node, training: TrainingSet | Absent, devices: Devices, disabled: bool
) -> Outcome:
    if not devices:
        return Outcome("skip", (node.name,), "no RDMA device here", reason="not_applicable")
    if node.gpus is not None and node.gpus.used == 0:
        return Outcome(
            "skip",
            (node.name,),
            "no GPU is declared, so NCCL does not run here",
            reason="not_applicable",
        )
    if isinstance(training, Absent):
        return Outcome(
            "unknown", (node.name,), training.detail or NOT_KNOWN, reason=training.reason
        )
    usable = [rail.name for rail in training.active if rail.port.addressed]
    wanted = "an active port with an address, or NCCL_IB_DISABLE=1"
    if usable:
        return Outcome("pass", (node.name,), "RDMA can be used", ", ".join(usable), wanted)
    seen = ", ".join(
        _condition(device, port) for device in devices for port in device.ports
    ) or _names(devices)
    if disabled:
        return Outcome(
            "pass",
            (node.name,),
            "no RDMA port is usable, and NCCL is told so",
            "NCCL_IB_DISABLE=1",
            wanted,
        )
    message = "there is an RDMA device that nobody has configured, and NCCL may try it"
    if training.why == "declared as interfaces.rdma" and not training.rails:
        message = "RDMA is declared as none, and the environment does not say so to NCCL"
    return Outcome("fail", (node.name,), message, seen, wanted)


def _condition(device: RdmaDevice, port: Port) -> str:
    lacking = (
        ", iWARP" if device.iwarp else ", no address" if port.active and not port.addressed else ""
    )
    return f"{device.name} {port.state}{lacking}"


# ---------------------------------------------------------------- the checks


def turned(name: str, **fields: object) -> Callable[[Devices], Devices]:
    """The devices with other fields in the ports of one of them (None: of all), for proofs."""

    def turn(devices: Devices) -> Devices:
        return tuple(
            replace(device, ports=tuple(replace(port, **fields) for port in device.ports))  # type: ignore[arg-type]
            if device.name == name or not name
            else device
            for device in devices
        )

    return turn


PRESENT = Check(
    "ib.present",
    facts=FACTS,
    judge=present,
    severity="error",
    title="The RDMA devices that should be there",
    why="A card that the driver did not bring up is missing without a word: NCCL spreads its channels over the rest, "
    "and this node sets the pace of all.",
    how="/sys/class/infiniband against `interfaces: {rdma: …}`; undeclared, nodes of one kind must have equally many "
    "of each model. `require: {ib.present: 8}` demands a number.",
    remedy="lspci -d 15b3:; dmesg | grep mlx5; modprobe mlx5_ib   # not on the bus: reseat the card",
    wants=parse_count,
    proof=Proof("rdma.devices", lambda devices: tuple(d for d in devices if d.name != "mlx5_8")),
)
STATE = Check(
    "ib.state",
    facts=FACTS,
    judge=of_ports(state),
    severity="error",
    title="Ports of the training set are active",
    why="NCCL leaves out a port that is not ACTIVE: the GPUs beside it go over another card, and the whole job slows.",
    how="state and phys_state in /sys/class/infiniband/*/ports/*. Judged are the declared ports, else those near GPUs "
    "that are active on at least half of the nodes; storage cards, front ends and ports in use nowhere are left out.",
    remedy="ibstat; mlxlink -d DEVICE   # cable, switch port, subnet manager",
    proof=Proof("rdma.devices", turned("mlx5_3", state="DOWN", phys_state="Polling")),
)
RATE = Check(
    "ib.rate",
    facts=FACTS,
    judge=of_ports(rate),
    severity="warning",
    title="The rate of the ports of the training set",
    why="A cable with a broken lane trains down to half or a quarter, all is green, and every all-reduce waits for it.",
    how="rate in /sys/class/infiniband/*/ports/*, equal for cards of one make (board id), or at least what "
    "`require: {ib.rate: 400}` says in Gbit/s.",
    remedy="mlxlink -d DEVICE   # then reseat or replace the cable",
    wants=parse_rate,
    proof=Proof("rdma.devices", turned("mlx5_3", rate=100.0)),
)
LINK_LAYER = Check(
    "ib.link_layer",
    facts=FACTS,
    judge=of_ports(link_layer),
    severity="warning",
    title="One link layer in the training set",
    why="Cards that speak both come up with the wrong one after a swap or a firmware reset; an Ethernet port never "
    "reaches an InfiniBand port.",
    how="link_layer in /sys/class/infiniband/*/ports/*, equal in the training set and on all nodes of a kind.",
    remedy="mlxconfig -d DEVICE set LINK_TYPE_P1=1   # 1 InfiniBand, 2 Ethernet; then reboot",
    proof=Proof("rdma.devices", turned("mlx5_3", link_layer="Ethernet")),
)
CHARDEV = Check(
    "ib.chardev",
    facts=(*FACTS, "rdma.verbs"),
    judge=of_ports(chardev),
    severity="warning",
    title="The job's user may open the RDMA devices",
    why="Without access NCCL warns «Unable to open device», leaves the card out, and trains over slow sockets.",
    how="Mode and owner of /dev/infiniband/uverbs* against the job's user and its groups.",
    remedy="chmod 0666 /dev/infiniband/uverbs*   # for good: a udev rule, as rdma-core brings it",
    proof=Proof("rdma.verbs", lambda verbs: replace(verbs, closed=tuple(verbs.devices))),
)
CONFIGURED = Check(
    "ib.configured",
    facts=(*FACTS, "rdma.disabled"),
    judge=configured,
    severity="error",
    title="RDMA is configured, or NCCL is told to leave it",
    why="A device that is there and was never set up draws NCCL into a path that leads nowhere: a hang at start.",
    how="At least one port of the training set is ACTIVE and has an address (a LID, or one that is not link-local), or "
    "the files that apply writes say NCCL_IB_DISABLE=1.",
    remedy="clusterprep apply INVENTORY   # writes NCCL_IB_DISABLE=1 where no node has a usable port; or configure it",
    proof=Proof("rdma.devices", turned("", state="DOWN", phys_state="Disabled")),
)
