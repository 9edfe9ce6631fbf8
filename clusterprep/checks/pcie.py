"""Judges PCI Express between GPUs, cards and processor.

Links should have full width and speed, and peer traffic should take the direct path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    each,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.facts.gpu_load import GpuLoad
from clusterprep.facts.pci import PciDevice, PciLink, PciTree
from clusterprep.model import Node
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.model.units import pluralize
from clusterprep.nccl.rails import kind_of
from clusterprep.remedies import Remedy, chain, shell_line

FAST = 8.0  # GT/s, PCI Express 3: a slower network card is the board's own for management
# PCI Express Base Specification, ACS Control: P2P request redirect, P2P completion redirect,
# upstream forwarding.
REDIRECT = {0x04: "ReqRedir", 0x08: "CmpltRedir", 0x10: "UpstreamFwd"}
NO_WIDTHS = "no widths in /sys"


class MeasuredLink(Struct, frozen=True):
    """The link of a device: its lanes or speed now, and what the device and its slot both have."""

    device: PciDevice
    now: float
    most: float

    @property
    def degraded(self) -> bool:
        """Return whether the link has less than it could have."""
        return self.now < self.most


def _judged_devices(tree: PciTree) -> list[PciDevice]:
    """Return GPUs and fast network cards that this host uses itself.

    Virtual functions, and devices lent to a guest, are left out.
    """
    devices = []
    for device in tree.devices:
        if device.physical is not None or device.driver == "vfio-pci":
            continue
        speed = device.link.max_speed or 0.0
        if device.gpu or speed >= FAST or device.link.cannot_tell("speed"):
            devices.append(device)
    return devices


def _unread_links(node: Node, tree: PciTree, what: str) -> Outcome | None:
    """Return unknown if the files about `what`, width or speed, of a judged link hold no value."""
    texts = []
    addresses = []
    for device in _judged_devices(tree):
        above = tree.link_above(device)
        if device.link.cannot_tell(what):
            addresses.append(device.at)
            texts.append(f"{_device_name(device)} {', '.join(device.link.unread)}")
        elif above is not None and above.cannot_tell(what):
            addresses.append(device.above[-1])
            texts.append(f"the port above {_device_name(device)} {', '.join(above.unread)}")
    if not texts:
        return None
    cure = shell_line("lspci -s {at} -vv   # «rev ff»: it left the bus", at=addresses[0])
    message = f"the {what} of a link cannot be read"
    return unknown(node, message, "garbled", "; ".join(texts), remedy=cure)


def _least(own: float | None, above: float | None) -> float | None:
    """Return what both ends can do; None where one of them does not say."""
    if own is None or above is None:
        return None
    return min(own, above)


def _measure_widths(tree: PciTree) -> list[MeasuredLink]:
    """Return the links whose lanes both ends tell."""
    links = []
    for device in _judged_devices(tree):
        above = tree.link_above(device)
        own = device.link
        if above is None or own.width is None:
            continue
        most = _least(own.max_width, above.max_width)
        if most is not None:
            links.append(MeasuredLink(device, own.width, most))
    return links


def _measure_speeds(tree: PciTree) -> list[MeasuredLink]:
    """Return the links whose speed in GT/s both ends tell."""
    links = []
    for device in _judged_devices(tree):
        above = tree.link_above(device)
        own = device.link
        if above is None or own.speed is None:
            continue
        most = _least(own.max_speed, above.max_speed)
        if most is not None:
            links.append(MeasuredLink(device, own.speed, most))
    return links


def width(context: CheckContext, node: Node, tree: PciTree) -> Outcome:
    """Compare the lanes in use with what both ends have; a link keeps its lanes at rest."""
    devices = _judged_devices(tree)
    if not devices:
        return skipped(node, "no GPU or fast network card here")
    links = _measure_widths(tree)
    unread = _unread_links(node, tree, "width")
    if not links and unread is None and tree.virtual:
        return skipped(node, "a virtual machine: its slots are not shown")
    if not links and unread is None:
        return unknown(node, "no link says its width", NO_WIDTHS)
    narrow = [link for link in links if link.degraded]
    if narrow:
        parts = []
        for link in narrow:
            name = _device_name(link.device)
            parts.append(f"{name} x{link.now:.0f} of x{link.most:.0f}")
        at = narrow[0].device.at
        cure = shell_line(
            "lspci -s {at} -vv | grep Lnk   # then reseat the card, its riser or cable", at=at
        )
        return failed(
            node,
            "a link has lost lanes",
            "; ".join(parts),
            "full width",
            cure,
        )
    if unread is not None:
        return unread
    silent = [device for device in devices if _hides_width(device.link)]
    if silent:
        verb = "says" if len(silent) == 1 else "say"
        return unknown(node, f"{_join_names(silent)} {verb} no width", NO_WIDTHS)
    message = "every link has its full width"
    return passed(node, message, pluralize(len(links), "link"), "full width")


def _hides_width(link: PciLink) -> bool:
    return link.max_width is not None and link.width is None


def _device_name(device: PciDevice) -> str:
    kind = "GPU" if device.gpu else "NIC"
    return f"{kind} {device.at}"


def _join_names(devices: Iterable[PciDevice]) -> str:
    return ", ".join(_device_name(device) for device in devices)


def gen(context: CheckContext, node: Node, tree: PciTree) -> Iterable[Outcome]:
    """Compare the speed of links with what both ends have.

    Network cards keep their speed at rest. GPUs lower theirs, so a lower speed is a fault of those
    GPUs alone that surely work while it is read.
    """
    links = _measure_speeds(tree)
    unread = _unread_links(node, tree, "speed")
    if not links:
        yield unread or skipped(node, "no link here says its speed and that of its slot")
        return
    busy = _busy_gpus(context.value(node, "gpu.load"))
    yield from _judge_speeds(node, links, busy, unread)


def _judge_speeds(
    node: Node, links: Sequence[MeasuredLink], busy: Collection[str], unread: Outcome | None
) -> Iterable[Outcome]:
    """Judge the links of a node; `busy` are addresses of GPUs that surely work."""
    slow = [link for link in links if link.degraded]
    cards = [link for link in slow if not link.device.gpu]
    gpus = [link for link in slow if link.device.gpu]
    working = [link for link in gpus if link.device.at in busy]
    if cards:
        message = "a network card came up at a lower speed"
        yield _slow_link(node, message, cards, "look at the slot's speed in the BIOS")
    if working:
        message = "a GPU works over a link of lower speed"
        yield _slow_link(node, message, working, "its riser or cable, the slot's speed in BIOS")
    if cards or working:
        return
    if unread is not None:
        yield unread
    elif gpus:
        yield skipped(
            node,
            "GPUs lower their link at rest",
            _describe_speeds(gpus),
            "full speed",
            "at_rest",
        )
    else:
        message = "every link that says its speed has it in full"
        yield passed(node, message, pluralize(len(links), "link"), "full speed")


def _busy_gpus(readings: object) -> set[str]:
    """Return the addresses of GPUs that surely work; none where NVML does not say."""
    if not isinstance(readings, Mapping):
        return set()
    return {load.pci for load in readings.values() if isinstance(load, GpuLoad) and load.busy}


def _slow_link(node: Node, message: str, links: Sequence[MeasuredLink], then: str) -> Outcome:
    """Return the failure of links that are below their speed."""
    at = links[0].device.at
    advice = f"reseat the card; {then}"
    cure = shell_line("lspci -s {at} -vv | grep Lnk   # {advice}", at=at, advice=advice)
    return failed(
        node,
        message,
        _describe_speeds(links),
        "full speed",
        cure,
    )


def _describe_speeds(links: Iterable[MeasuredLink]) -> str:
    parts = []
    for link in links:
        name = _device_name(link.device)
        parts.append(f"{name} {link.now:g} of {link.most:g} GT/s")
    return "; ".join(parts)


# ---------------------------------------------------------------- bridges

Uplinks = dict[str, tuple[PciLink, PciLink]]
"""The port of a switch that faces the processor: its own link, and that of the port above it."""


def parent(context: CheckContext) -> Iterable[Outcome]:
    """Judge links between bridges: degraded, or narrower than the same link of other nodes."""
    usual = _usual_widths(context)
    for nodes in context.alike():
        tree: PciTree = context.value(nodes[0], "pci.tree")
        outcome = _judge_bridges(nodes[0], tree, usual.get(kind_of(context.fleet, nodes[0]), {}))
        yield from about_all(nodes, [outcome])


def _judge_bridges(node: Node, tree: PciTree, usual: Mapping[str, int]) -> Outcome:
    """Judge the links between bridges of one node; `usual` are the widths in its kind."""
    uplinks = _uplinks(tree)
    unread = _unread_bridges(node, tree)
    if not uplinks and unread is None:
        return skipped(node, "no PCIe switch above a GPU or network card says its link")
    faulty: list[str] = []
    faults: list[str] = []
    for at, (own, above) in uplinks.items():
        fault = _describe_degradation(own, above) or _describe_narrower(own, usual.get(at))
        if fault:
            faulty.append(at)
            faults.append(f"{at} {fault}")
    if faulty:
        return _degraded_bridges(node, tree, faulty[0], "; ".join(faults))
    if unread is not None:
        return unread
    seen = f"{pluralize(len(uplinks), 'link')} between bridges"
    return passed(node, "no bridge is degraded", seen)


def _degraded_bridges(node: Node, tree: PciTree, first: str, seen: str) -> Outcome:
    """Return the failure of bridges; the devices below the `first` of them are named."""
    below = [device for device in tree.devices if first in device.above]
    message = f"a bridge above {_join_names(below)} is degraded"
    cure = shell_line(
        "lspci -s {first} -vv | grep Lnk   # then the switch board, riser or cable", first=first
    )
    return failed(
        node,
        message,
        seen,
        "full width and speed",
        cure,
    )


def _unread_bridges(node: Node, tree: PciTree) -> Outcome | None:
    """Return unknown if a file about the link of a bridge holds no value."""
    texts = []
    for at, link in tree.bridges.items():
        if link.unread:
            texts.append(f"{at} {', '.join(link.unread)}")
    if not texts:
        return None
    return unknown(node, "the link of a bridge cannot be read", "garbled", "; ".join(texts))


def _uplinks(tree: PciTree) -> Uplinks:
    """Return the ports of switches that face the processor, each with the port above it.

    On the way down, root port and switch alternate: a link joins the bridges 0 and 1, 2 and 3, ….
    The last link leads to the device and is judged with it; what lies between the two sides of a
    switch is no link.
    """
    uplinks: Uplinks = {}
    for device in tree.devices:
        for number in range(1, len(device.above), 2):
            at = device.above[number]
            own = tree.bridges[at]
            above = tree.bridges[device.above[number - 1]]
            if own.width is not None and own.speed is not None:
                uplinks[at] = (own, above)
    return uplinks


def _describe_degradation(own: PciLink, above: PciLink) -> str:
    """Return «x8 of x16» or «16 of 32 GT/s» if both ends can do more than the link has, else «»."""
    lanes = _least(own.max_width, above.max_width)
    if lanes is not None and own.width is not None and own.width < lanes:
        return f"x{own.width} of x{lanes:g}"
    speed = _least(own.max_speed, above.max_speed)
    if speed is not None and own.speed is not None and own.speed < speed:
        return f"{own.speed:g} of {speed:g} GT/s"
    return ""


def _describe_narrower(own: PciLink, usual: int | None) -> str:
    """Return «x8, x16 on the other nodes» if a link is narrower than usual, else «»."""
    if usual is not None and own.width is not None and own.width < usual:
        return f"x{own.width}, x{usual} on the other nodes"
    return ""


def _usual_widths(context: CheckContext) -> dict[object, dict[str, int]]:
    """Return the width that most nodes of a kind have at an address, by kind and address.

    Where no width has a majority there is no entry.
    """
    widths: dict[tuple[object, str], Counter[int]] = {}
    for nodes in context.alike():
        kind = kind_of(context.fleet, nodes[0])
        for at, (own, _) in _uplinks(context.value(nodes[0], "pci.tree")).items():
            if own.width is not None:
                counter = widths.setdefault((kind, at), Counter())
                counter[own.width] += len(nodes)
    usual: dict[object, dict[str, int]] = {}
    for (kind, at), counter in widths.items():
        lanes, number = counter.most_common(1)[0]
        if 2 * number > counter.total():
            usual.setdefault(kind, {})[at] = lanes
    return usual


def acs(
    context: CheckContext, node: Node, tree: PciTree, control_words: Mapping[str, int | None]
) -> Outcome:
    """Judge whether the switches above GPUs and cards redirect peer traffic to the processor."""
    if _has_smmu(tree):
        return skipped(node, "on Arm the GPUs' traffic goes through the SMMU by design")
    wanted = "redirect off"
    redirecting: list[str] = []
    unread: list[str] = []
    commands: list[Remedy] = []
    for at, control in control_words.items():
        if control is None:
            unread.append(at)
            continue
        flags = _redirect_flags(control)
        if flags:
            redirecting.append(f"{at} {flags}")
            commands.append(
                shell_line("setpci -s {at} ECAP_ACS+0x6.w=0000   # at every boot", at=at)
            )
    if not redirecting and unread:
        message = f"the access control of {', '.join(unread)} cannot be read"
        return unknown(node, message, "denied")
    if not redirecting:
        message = "no PCIe switch redirects peer traffic"
        return passed(node, message, f"{pluralize(len(control_words), 'port')} with ACS", wanted)
    seen = "; ".join(redirecting)
    cure = chain(*commands)
    message = "PCIe switches send peer traffic up to the processor"
    return failed(
        node,
        message,
        seen,
        wanted,
        cure,
        fix=fix_of(wanted_state("acs")),
    )


def _redirect_flags(control: int) -> str:
    return " ".join(name for bit, name in REDIRECT.items() if control & bit)


def _has_smmu(tree: PciTree) -> bool:
    return any(name.startswith(("smmu", "arm-smmu")) for name in tree.iommus)


def iommu(context: CheckContext, node: Node, tree: PciTree, passing: bool) -> Outcome:
    """Judge whether the IOMMU is off or passes addresses through.

    Translation costs GPUDirect half its rate. `passing` tells whether the kernel's command line has
    passthrough.
    """
    devices = _judged_devices(tree)
    if not any(device.gpu for device in devices):
        return skipped(node, "no GPU here")
    if tree.virtual:
        return skipped(node, "a virtual machine: the host decides about its IOMMU")
    if _has_smmu(tree):
        return skipped(node, "on Arm the SMMU is meant to translate")
    translated = []
    types = set()
    for device in devices:
        types.add(device.iommu)
        if device.iommu is not None and device.iommu.startswith("DMA"):
            translated.append(device)
    wanted = "off or passthrough"
    if translated:
        message = "the IOMMU translates for GPUs and network cards"
        seen = f"{translated[0].iommu} for {_join_names(translated)}"
        return failed(node, message, seen, wanted)
    type_not_shown = "" in types
    if type_not_shown and not passing:
        advice = "iommu=pt on its command line would"
        message = f"this kernel does not say whether its IOMMU translates; {advice}"
        return unknown(node, message, "no type in /sys/kernel/iommu_groups")
    seen = "off" if types == {None} else "passthrough"
    return passed(node, "the IOMMU does not stand in the way", seen, wanted)


# ---------------------------------------------------------------- the checks


def _with_link(
    select: Callable[[PciDevice], bool], **fields: float
) -> Callable[[PciTree], PciTree]:
    """Return a function for proofs that sets fields in the link of the first selected device."""

    def turn(tree: PciTree) -> PciTree:
        devices = list(tree.devices)
        for number, device in enumerate(devices):
            if select(device):
                link = replace(device.link, **fields)
                devices[number] = replace(device, link=link)
                break
        return replace(tree, devices=tuple(devices))

    return turn


def _narrow_uplink(tree: PciTree) -> PciTree:
    at = tree.gpus[0].above[1]
    narrow = replace(tree.bridges[at], width=8)
    return replace(
        tree,
        bridges={
            **tree.bridges,
            at: narrow,
        },
    )


def _with_translation(tree: PciTree) -> PciTree:
    devices = [replace(device, iommu="DMA-FQ") for device in tree.devices]
    return replace(tree, devices=tuple(devices))


WIDTH = Check(
    "pcie.width",
    facts=("pci.tree",),
    judge=each(width, "pci.tree"),
    severity="warning",
    follows=("gpu.lost",),
    title="The width of PCIe links",
    why="A GPU or card that sits badly comes up with half of its lanes: everything works at half "
    "the rate, and the node slows down the whole job.",
    how="current_link_width in /sys/bus/pci/devices/* against the smaller maximum of the device "
    "and of the port above it. Other than the speed, the width does not change at rest.",
    remedy=shell_line("lspci -vv | grep LnkSta   # then reseat the card, its riser or cable"),
    proof=Proof("pci.tree", _with_link(lambda device: device.gpu, width=8)),
)
GEN = Check(
    "pcie.gen",
    facts=("pci.tree",),
    uses=("gpu.load",),
    judge=each(gen, "pci.tree"),
    severity="warning",
    follows=("gpu.lost",),
    title="The speed of PCIe links",
    why="A link that trained down a generation halves the rate of the card, and no counter says "
    "so.",
    how="current_link_speed against the smaller maximum of the device and of the port above it. "
    "GPUs lower theirs at rest, so only those are judged that work while it is read: at least half "
    "of the time, in P0, with clocks above half of the highest. `verify` gives all of them work.",
    remedy=shell_line(
        "lspci -vv | grep LnkSta   # then reseat the card, and look at the slot's speed in the BIOS"
    ),
    proof=Proof(
        "pci.tree",
        _with_link(lambda device: not device.gpu and device.link.max_speed == 32.0, speed=8.0),
    ),
)
PARENT = Check(
    "pcie.parent",
    facts=("pci.tree",),
    judge=parent,
    severity="warning",
    follows=("gpu.lost",),
    title="The PCIe bridges above GPUs and network cards",
    why="A switch whose way up has lost lanes slows every GPU and card below it, whose own links "
    "look perfect.",
    how="The links between bridges on the way to GPUs and network cards, in sysfs: less than both "
    "ends can, or narrower than the same link on most nodes of this kind.",
    remedy=shell_line(
        "lspci -tv; lspci -vv | grep LnkSta   # then the vendor: switch board or riser"
    ),
    proof=Proof("pci.tree", _narrow_uplink),
)
ACS = Check(
    "pcie.acs",
    facts=("pci.tree", "pci.acs"),
    judge=each(acs, "pci.tree", "pci.acs"),
    severity="warning",
    title="PCIe access control on switches",
    why="With redirection on, what a GPU sends to the card beside it goes up to the processor and "
    "down again: GPUDirect drops to half or less, and NCCL may hang.",
    how="The ACS control words of the switch ports above GPUs and network cards; root alone can "
    "read them. Not judged in virtual machines and on Arm.",
    remedy=shell_line(
        "setpci -s ADDRESS ECAP_ACS+0x6.w=0000   # for each port, at every boot; or switch ACS "
        "off in the BIOS"
    ),
    proof=Proof("pci.acs", lambda words: dict.fromkeys(words, 0x1D)),
)
IOMMU = Check(
    "pcie.iommu",
    facts=("pci.tree", "pci.passthrough"),
    judge=each(iommu, "pci.tree", "pci.passthrough"),
    severity="warning",
    title="The IOMMU of nodes with GPUs",
    why="An IOMMU that translates stands between GPUs and network cards: GPUDirect loses about "
    "half of its rate.",
    how="The type of the IOMMU domain of each GPU and card (/sys/kernel/iommu_groups/*/type), else "
    "the kernel's command line. Not judged in virtual machines and on Arm.",
    remedy=shell_line(
        "grubby --update-kernel=ALL --args=iommu=pt   # Debian: GRUB_CMDLINE_LINUX, "
        "update-grub; then reboot"
    ),
    proof=Proof("pci.tree", _with_translation),
)
