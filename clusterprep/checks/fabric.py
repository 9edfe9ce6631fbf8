"""Judges fabrics that NCCL reaches by a plug-in: cards, plug-in and libfabric, topology file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    each,
    failed,
    names_of,
    parse_count,
    passed,
    skipped,
    uniform_by_kind,
    unknown,
)
from clusterprep.facts.environment import Paths, Setting, in_effect
from clusterprep.facts.pci import PciTree
from clusterprep.facts.rdma import RdmaDevice
from clusterprep.facts.topology_file import TopologyFile
from clusterprep.facts.torch import Libraries, Plugin, Plugins
from clusterprep.model import Absent, Node
from clusterprep.model.units import pluralize
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.plugin_fabrics import (
    EFA,
    PluginFabric,
    fabric_of,
    least_libfabric,
    networks,
    ofi_plugin,
)
from clusterprep.nccl.rails import HARDWARE, training_sets
from clusterprep.remedies import Remedy, sentence, shell_line

NO_FABRIC = "no card of a fabric that takes a plug-in"

# ---------------------------------------------------------------- cards


def devices(context: CheckContext) -> Iterable[Outcome]:
    """Judge that every card has its driver, and their number: as required, else equal."""
    counts: dict[str, str] = {}
    classes = list(context.alike("pci.tree", parts=[HARDWARE]))
    fabrics = [fabric_of(context.value(nodes[0], "pci.tree")) for nodes in classes]
    any_fabric = any(fabrics)
    undeclared: set[str] = set()
    for nodes, fabric in zip(classes, fabrics, strict=True):
        node = nodes[0]
        wanted = context.wanted(node)
        if fabric is None and wanted is None and (not any_fabric or not _has_gpus(context, node)):
            yield from about_all(nodes, [skipped(node, NO_FABRIC)])
            continue
        tree: PciTree = context.value(node, "pci.tree")
        cards = () if fabric is None else fabric.devices(tree)
        count = f"{len(cards)} × {fabric.name}" if fabric else "none"
        counts.update(dict.fromkeys(names_of(nodes), count))
        idle = _without_driver(context, node, fabric, tree)
        if idle:
            message = f"{', '.join(idle)}: a card without its driver"
            outcome = failed(node, message, count, "a driver for each")
            yield from about_all(nodes, [outcome])
        if wanted is None:
            undeclared.update(names_of(nodes))
        else:
            yield from about_all(nodes, [_judge_required(node, len(cards), wanted)])
    if undeclared:
        yield from uniform_by_kind(context, counts, "the set of fabric cards", about=undeclared)


def _judge_required(node: Node, count: int, wanted: str) -> Outcome:
    if count == int(wanted):
        message = "the fabric has as many cards as required"
        return passed(node, message, str(count), wanted)
    message = "the fabric has not as many cards as the inventory requires"
    return failed(node, message, str(count), wanted)


def _has_gpus(context: CheckContext, node: Node) -> bool:
    tree: PciTree = context.value(node, "pci.tree")
    return bool(tree.gpus)


def _without_driver(
    context: CheckContext, node: Node, fabric: PluginFabric | None, tree: PciTree
) -> list[str]:
    """Return the addresses of cards that no driver runs.

    An EFA card that a driver runs is an RDMA device.
    """
    if fabric is None:
        return []
    cards = fabric.devices(tree)
    if fabric is not EFA:
        return [card.at for card in cards if card.driver is None]
    rdma: tuple[RdmaDevice, ...] | Absent = context.value(node, "rdma.devices")
    if isinstance(rdma, Absent):
        return []
    served = {device.pci for device in rdma}
    return [card.at for card in cards if card.at not in served]


def parse_card_count(text: str) -> int:
    """Return the number in `require: {fabric.devices: 32}`. Raises ValueError for other text."""
    return parse_count(text, "a number of cards, such as 32", maximum=256)


# ---------------------------------------------------------------- the plug-in


def plugin(context: CheckContext, node: Node, tree: PciTree, plugins: Plugins) -> Outcome:
    """Judge the plug-in of the fabric, its libfabric, and what the environment asks of it."""
    fabric = fabric_of(tree) if tree.gpus else None
    settings = _settings(context.value(node, "env.paths"))
    wanted_net = _wanted_network(node, settings)
    if fabric is None and wanted_net is None and not _wants_sharp(settings):
        return skipped(node, NO_FABRIC)
    libraries = context.value(node, "nccl.libraries")
    if isinstance(libraries, Libraries) and libraries.loaded is None and libraries.system is None:
        message = "the job's interpreter finds no NCCL here: what a container brings is not known"
        return skipped(node, message)
    if any(one.size is None for one in plugins.files):
        return unknown(node, "a plug-in of NCCL could not be read", "denied")
    if fabric is not None:
        outcome = _judge_ofi(node, fabric, plugins)
        if outcome is not None:
            return outcome
    if wanted_net is not None and wanted_net.lower() not in networks(plugins):
        return _judge_wanted(node, wanted_net, plugins)
    if _wants_sharp(settings) and "sharp" not in networks(plugins):
        message = "NCCL_COLLNET_ENABLE asks for SHARP, and no plug-in brings it"
        cure = sentence("install nccl-rdma-sharp-plugins, or unset NCCL_COLLNET_ENABLE")
        return failed(node, message, _describe(plugins), "a plug-in with SHARP", cure)
    seen = _describe(plugins)
    if wanted_net is not None:
        seen = f"NCCL_NET={wanted_net}; {seen}"
    return passed(node, "NCCL has the plug-in for its network", seen)


def _settings(paths: Paths | Absent) -> Mapping[str, Setting]:
    if isinstance(paths, Absent):
        return {}
    return in_effect(paths, "ssh command")


def _wanted_network(node: Node, settings: Mapping[str, Setting]) -> str | None:
    """Return NCCL_NET of the inventory, or else of the node; None if neither sets it."""
    if "NCCL_NET" in node.env:
        return node.env["NCCL_NET"].value
    setting = settings.get("NCCL_NET")
    return setting.value if setting is not None and setting.value else None


def _wants_sharp(settings: Mapping[str, Setting]) -> bool:
    setting = settings.get("NCCL_COLLNET_ENABLE")
    return setting is not None and setting.value.strip() == "1"


def _judge_ofi(node: Node, fabric: PluginFabric, plugins: Plugins) -> Outcome | None:
    """Return the outcome where aws-ofi-nccl is missing or its libfabric too old, else None."""
    ofi = ofi_plugin(plugins)
    if ofi is None:
        message = f"NCCL reaches {fabric.name} by a plug-in alone and finds none: sockets it is"
        cure = sentence(
            "install aws-ofi-nccl, and put the folder of its libnccl-net.so into LD_LIBRARY_PATH "
            "or /etc/ld.so.conf.d"
        )
        return failed(node, message, _describe(plugins), "aws-ofi-nccl", cure)
    least = least_libfabric(ofi, fabric)
    if least is None:
        return None
    wanted = f"libfabric {_dotted(least)} or newer"
    seen = f"aws-ofi-nccl {ofi.ofi}, libfabric {plugins.libfabric or 'not found'}"
    if plugins.libfabric is None:
        message = "the plug-in of the fabric needs libfabric, and the loader does not find it"
        return failed(node, message, seen, wanted, _libfabric_remedy())
    if leading_numbers(plugins.libfabric)[:2] < least:
        message = "libfabric is older than what the plug-in of the fabric needs"
        return failed(node, message, seen, wanted, _libfabric_remedy())
    return None


def _libfabric_remedy() -> Remedy:
    return shell_line(
        "ldconfig -p | grep libfabric; fi_info --version   # the newest EFA installer"
    )


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def _judge_wanted(node: Node, wanted: str, plugins: Plugins) -> Outcome:
    message = "NCCL_NET names a network that no plug-in here has: NCCL ends at its start"
    cure = sentence(
        "take {name} out of NCCL_NET, or put the plug-in's folder into LD_LIBRARY_PATH", name=wanted
    )
    return failed(node, message, f"NCCL_NET={wanted}; {_describe(plugins)}", wanted, cure)


def _describe(plugins: Plugins) -> str:
    return ", ".join(map(_describe_one, plugins.files)) or "no plug-in"


def _describe_one(one: Plugin) -> str:
    if one.ofi:
        return f"{one.name} (aws-ofi-nccl {one.ofi})"
    if one.networks:
        return f"{one.name} ({', '.join(one.networks)})"
    return one.name


# ---------------------------------------------------------------- the topology file


def topology(context: CheckContext) -> Iterable[Outcome]:
    """Judge that the topology file has the GPUs and cards of its node, and no others."""
    for nodes in context.alike(parts=[HARDWARE]):
        yield from about_all(nodes, [_judge_file(context, nodes[0])])


def _judge_file(context: CheckContext, node: Node) -> Outcome:
    found: TopologyFile | None = context.value(node, "nccl.topology")
    tree: PciTree = context.value(node, "pci.tree")
    if found is None:
        return skipped(node, "no topology file: NCCL looks at the bus by itself")
    if not found.there:
        message = "the topology file that NCCL is given cannot be opened; NCCL goes on without"
        return failed(node, message, found.path, "a file that can be read")
    if not tree.gpus:
        return skipped(node, "no GPU is visible on the bus here")
    return _judge_topology(context, node, tree, found)


def _judge_topology(
    context: CheckContext, node: Node, tree: PciTree, found: TopologyFile
) -> Outcome:
    named = {*found.gpus, *found.nics, *found.others}
    on_bus = {device.at for device in tree.devices}
    own_gpus = {gpu.at for gpu in tree.gpus}
    faults = []
    if missing := sorted(own_gpus - named):
        faults.append(f"GPU {', '.join(missing)} not in it")
    if found.nics and (left_out := sorted(_rail_addresses(context, node) - named)):
        faults.append(f"NIC {', '.join(left_out)} not in it")
    if strange := sorted({*found.gpus, *found.nics} - on_bus):
        faults.append(f"{', '.join(strange)} not on the bus")
    if faults:
        message = f"the topology file {found.path} is that of another machine"
        cure = sentence(
            "give NCCL the file of this kind of machine, or none: NCCL_TOPO_FILE is {path} now",
            path=found.path,
        )
        return failed(node, message, "; ".join(faults), "the devices of this node", cure)
    seen = f"{pluralize(len(own_gpus), 'GPU')} of {found.path}"
    return passed(node, "the topology file has the devices of this node", seen)


def _rail_addresses(context: CheckContext, node: Node) -> set[str]:
    """Return the addresses of the training cards; empty if these are not known."""
    training = training_sets(context.fleet)[node.name]
    if isinstance(training, Absent):
        return set()
    return {rail.device.pci for rail in training.rails if rail.device.pci is not None}


# ---------------------------------------------------------------- the checks


def _without_card(tree: PciTree) -> PciTree:
    """Return the tree with one card of a fabric less, for the proof."""
    lost = EFA.devices(tree)[0]
    return replace(tree, devices=tuple(device for device in tree.devices if device is not lost))


DEVICES = Check(
    "fabric.devices",
    facts=("pci.tree",),
    uses=("rdma.devices",),
    judge=devices,
    severity="warning",
    title="The cards of EFA and Slingshot",
    why="An instance that was started with fewer EFA cards, or a card whose driver is not there, "
    "is as slow as the cards that are left, and all wait for it.",
    how="PCI vendor and device of network controllers: EFA of AWS, Cassini of HPE. Each has its "
    "driver, and nodes of a kind have equally many. `require: {fabric.devices: 32}` wants a "
    "number.",
    remedy=shell_line(
        "lspci -d 1d0f: ; modprobe efa; fi_info -p efa   # Slingshot: fi_info -p cxi"
    ),
    wants=parse_card_count,
    proof=Proof("pci.tree", _without_card, fleet="p5-efa-vm"),
)
PLUGIN = Check(
    "fabric.plugin",
    facts=("pci.tree", "nccl.plugins"),
    uses=("env.paths", "nccl.libraries"),
    judge=each(plugin, "pci.tree", "nccl.plugins"),
    severity="warning",
    title="NCCL's plug-in for the fabric",
    why="NCCL knows neither EFA nor Slingshot by itself. Where aws-ofi-nccl does not load, for "
    "example because its libfabric is too old, NCCL goes on over sockets at a twentieth of the "
    "speed and says so in its log alone.",
    how="The plug-ins that the job's loader finds, the networks and the version in them, and the "
    "libfabric that it would load, against the release notes of aws-ofi-nccl: 1.22 from plug-in "
    "1.13 on (on AWS), 1.18 from 1.8 on, else 1.11. NCCL_NET must name a network that is there, "
    "and NCCL_COLLNET_ENABLE=1 needs a plug-in with SHARP.",
    remedy=sentence("install aws-ofi-nccl with its libfabric, and put it on the loader's path"),
    proof=Proof("nccl.plugins", lambda found: replace(found, libfabric="1.18"), fleet="p5-efa-vm"),
)
TOPOLOGY = Check(
    "fabric.topology",
    facts=("pci.tree", "nccl.topology"),
    uses=("rdma.devices",),
    judge=topology,
    severity="warning",
    title="NCCL's topology file belongs to this machine",
    why="In a virtual machine NCCL takes from this file which card is near which GPU. With the "
    "file of another kind of machine it pairs GPUs with far cards, at half the rate.",
    how="NCCL_TOPO_FILE of the inventory or of /etc/nccl.conf, or else "
    "/var/run/nvidia-topologyd/virtualTopology.xml: its GPUs and cards against the PCI bus. "
    "Bridges in it may be invented and are not compared.",
    remedy=sentence("give NCCL the topology file of this kind of machine, or none"),
    proof=Proof(
        "nccl.topology",
        lambda found: TopologyFile("/etc/topology.xml", there=True, gpus=("0001:00:00.0",)),
    ),
)
