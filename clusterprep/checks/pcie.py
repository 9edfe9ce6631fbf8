"""PCI Express between GPUs, cards and processor: full width, full speed, and no detour for peer traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each
from clusterprep.facts.pci import PciDevice, PciLink, PciTree
from clusterprep.model import Node
from clusterprep.nccl.rails import kind_of

FAST = 8.0  # GT/s, PCI Express 3: a slower network card is the board's own for management
# PCI Express Base Specification, ACS Control: P2P request redirect, P2P completion redirect, upstream forwarding
REDIRECT = {0x04: "ReqRedir", 0x08: "CmpltRedir", 0x10: "UpstreamFwd"}

Judged = list[
    tuple[PciDevice, int, int]
]  # a device, its lanes now, and as many as it and its slot have


def _judged(tree: PciTree) -> list[PciDevice]:
    """GPUs and fast network cards that this host uses itself: no virtual functions, none lent to a guest."""
    return [
        device
        for device in tree.devices
        if device.physical is None and device.driver != "vfio-pci"
        if device.gpu or (device.link.max_speed or 0.0) >= FAST
    ]


def _least(own: float | None, above: float | None) -> float | None:
    """What both ends can; None where one of them does not say."""
    return None if own is None or above is None else min(own, above)


def _widths(tree: PciTree) -> Judged:
    found = []
    for device in _judged(tree):
        above = tree.link_above(device)
        most = None if above is None else _least(device.link.max_width, above.max_width)
        if most is not None and device.link.width is not None:
            found.append((device, device.link.width, int(most)))
    return found


def width(context: CheckContext, node: Node, tree: PciTree) -> Outcome:
    """Lanes in use against what the device and the slot both have; a link does not lose lanes at rest."""
    if not _judged(tree):
        return Outcome(
            "skip", (node.name,), "no GPU or fast network card here", reason="not_applicable"
        )
    links = _widths(tree)
    if not links and tree.virtual:
        message = "a virtual machine: its slots are not shown"
        return Outcome("skip", (node.name,), message, reason="not_applicable")
    if not links:
        return Outcome(
            "unknown", (node.name,), "no link says its width", reason="no widths in /sys"
        )
    narrow = [(device, now, most) for device, now, most in links if now < most]
    silent = [
        device
        for device in _judged(tree)
        if device.link.max_width is not None and device.link.width is None
    ]
    if silent and not narrow:
        message = f"{', '.join(map(_called, silent))} says no width"
        return Outcome("unknown", (node.name,), message, reason="no widths in /sys")
    if not narrow:
        return Outcome(
            "pass",
            (node.name,),
            "every link has its full width",
            f"{len(links)} links",
            "full width",
        )
    seen = "; ".join(f"{_called(device)} x{now} of x{most}" for device, now, most in narrow)
    cure = f"lspci -s {narrow[0][0].at} -vv | grep Lnk   # then reseat the card, its riser or cable"
    return Outcome("fail", (node.name,), "a link has lost lanes", seen, "full width", cure)


def _called(device: PciDevice) -> str:
    return f"{'GPU' if device.gpu else 'NIC'} {device.at}"


def gen(context: CheckContext, node: Node, tree: PciTree) -> Outcome:
    """Cards keep their speed at rest; GPUs drop theirs, and are judged only where they show their best."""
    speeds = []
    for device in _judged(tree):
        above = tree.link_above(device)
        most = None if above is None else _least(device.link.max_speed, above.max_speed)
        if most is not None and device.link.speed is not None:
            speeds.append((device, device.link.speed, most))
    if not speeds:
        message = "no link here says its speed and that of its slot"
        return Outcome("skip", (node.name,), message, reason="not_applicable")
    slow = [(device, now, most) for device, now, most in speeds if now < most]
    cards = [row for row in slow if not row[0].gpu]
    seen = "; ".join(
        f"{_called(device)} {now:g} of {most:g} GT/s" for device, now, most in cards or slow
    )
    if cards:
        cure = f"lspci -s {cards[0][0].at} -vv | grep Lnk   # reseat the card; look at the slot's speed in the BIOS"
        return Outcome(
            "fail",
            (node.name,),
            "a network card came up at a lower speed",
            seen,
            "full speed",
            cure,
        )
    if slow:
        return Outcome(
            "skip",
            (node.name,),
            "GPUs lower their link at rest",
            seen,
            "full speed",
            reason="at_rest",
        )
    return Outcome(
        "pass", (node.name,), "every link has its full speed", f"{len(speeds)} links", "full speed"
    )


# ---------------------------------------------------------------- bridges


def parent(context: CheckContext) -> Iterable[Outcome]:
    """Links between bridges: degraded by themselves, or narrower than the same link of the other nodes."""
    usual = _usual(context)
    for node in context.nodes:
        tree: PciTree = context.value(node, "pci.tree")
        links = _uplinks(tree)
        if not links:
            message = "no PCIe switch above a GPU or network card says its link"
            yield Outcome("skip", (node.name,), message, reason="not_applicable")
            continue
        kind = kind_of(context.fleet, node)
        found = {
            at: _degraded(*ends) or _behind(ends[0], usual.get((kind, at)))
            for at, ends in links.items()
        }
        if bad := {at: text for at, text in found.items() if text}:
            served = [device for device in tree.devices if next(iter(bad)) in device.above]
            seen = "; ".join(f"{at} {text}" for at, text in bad.items())
            message = f"a bridge above {', '.join(map(_called, served))} is degraded"
            cure = f"lspci -s {next(iter(bad))} -vv | grep Lnk   # then the switch board, riser or cable"
            yield Outcome("fail", (node.name,), message, seen, "full width and speed", cure)
        else:
            yield Outcome(
                "pass", (node.name,), "no bridge is degraded", f"{len(links)} links between bridges"
            )


def _uplinks(tree: PciTree) -> dict[str, tuple[PciLink, PciLink]]:
    """The ports of switches that face the processor, each with the port above it.

    On the way down, root port and switch alternate: a link joins the bridges 0 and 1, 2 and 3, …. The last link leads
    to the device and is judged with it; what lies between the two sides of a switch is no link.
    """
    found = {}
    for device in tree.devices:
        for number in range(1, len(device.above), 2):
            at = device.above[number]
            found[at] = (tree.bridges[at], tree.bridges[device.above[number - 1]])
    return {
        at: ends
        for at, ends in found.items()
        if ends[0].width is not None and ends[0].speed is not None
    }


def _degraded(own: PciLink, above: PciLink) -> str:
    lanes, speed = _least(own.max_width, above.max_width), _least(own.max_speed, above.max_speed)
    if lanes is not None and own.width is not None and own.width < lanes:
        return f"x{own.width} of x{lanes:g}"
    if speed is not None and own.speed is not None and own.speed < speed:
        return f"{own.speed:g} of {speed:g} GT/s"
    return ""


def _behind(own: PciLink, usual: int | None) -> str:
    if usual is not None and own.width is not None and own.width < usual:
        return f"x{own.width}, x{usual} on the other nodes"
    return ""


def _usual(context: CheckContext) -> dict[tuple[object, str], int]:
    """The width that most nodes of a kind have at a place; nothing where no width has a majority."""
    widths: dict[tuple[object, str], Counter[int]] = {}
    for node in context.nodes:
        for at, (own, _) in _uplinks(context.value(node, "pci.tree")).items():
            if own.width is not None:
                widths.setdefault((kind_of(context.fleet, node), at), Counter())[own.width] += 1
    best = {key: count.most_common(1)[0] for key, count in widths.items()}
    return {key: lanes for key, (lanes, number) in best.items() if 2 * number > widths[key].total()}


def acs(context: CheckContext, node: Node, tree: PciTree, words: Mapping[str, int]) -> Outcome:
    """Redirection of peer traffic by the switches above GPUs and cards."""
    if _smmu(tree):
        message = "on Arm the GPUs' traffic goes through the SMMU by design"
        return Outcome("skip", (node.name,), message, reason="not_applicable")
    on = {at: _flags(word) for at, word in words.items() if _flags(word)}
    if not on:
        message = "no PCIe switch redirects peer traffic"
        return Outcome(
            "pass", (node.name,), message, f"{len(words)} ports with ACS", "redirect off"
        )
    seen = "; ".join(f"{at} {flags}" for at, flags in on.items())
    cure = "; ".join(f"setpci -s {at} ECAP_ACS+0x6.w=0000" for at in on) + "   # at every boot"
    return Outcome(
        "fail",
        (node.name,),
        "PCIe switches send peer traffic up to the processor",
        seen,
        "redirect off",
        cure,
    )


def _flags(word: int) -> str:
    return " ".join(name for bit, name in REDIRECT.items() if word & bit)


def _smmu(tree: PciTree) -> bool:
    return any(name.startswith(("smmu", "arm-smmu")) for name in tree.iommus)


def iommu(context: CheckContext, node: Node, tree: PciTree, passing: bool) -> Outcome:
    """Off, or passing addresses through: translation costs GPUDirect half its rate."""
    devices = [device for device in _judged(tree) if device.gpu] and _judged(tree)
    if not devices:
        return Outcome("skip", (node.name,), "no GPU here", reason="not_applicable")
    if tree.virtual:
        message = "a virtual machine: the host decides about its IOMMU"
        return Outcome("skip", (node.name,), message, reason="not_applicable")
    if _smmu(tree):
        return Outcome(
            "skip", (node.name,), "on Arm the SMMU is meant to translate", reason="not_applicable"
        )
    wanted = "off or passthrough"
    translated = [device for device in devices if (device.iommu or "").startswith("DMA")]
    if translated:
        seen = f"{translated[0].iommu} for {', '.join(map(_called, translated))}"
        return Outcome(
            "fail", (node.name,), "the IOMMU translates for GPUs and network cards", seen, wanted
        )
    unsaid = [device for device in devices if device.iommu == ""]
    if unsaid and not passing:
        message = "this kernel does not say whether its IOMMU translates; iommu=pt on its command line would"
        return Outcome(
            "unknown", (node.name,), message, reason="no type in /sys/kernel/iommu_groups"
        )
    seen = "off" if all(device.iommu is None for device in devices) else "passthrough"
    return Outcome("pass", (node.name,), "the IOMMU does not stand in the way", seen, wanted)


# ---------------------------------------------------------------- the checks


def _link(select: Callable[[PciDevice], bool], **fields: float) -> Callable[[PciTree], PciTree]:
    """For proofs: the tree with another link in the first device that is selected."""

    def turn(tree: PciTree) -> PciTree:
        first = next(device for device in tree.devices if select(device))
        bad = replace(first, link=replace(first.link, **fields))  # type: ignore[arg-type]
        return replace(
            tree, devices=tuple(bad if device is first else device for device in tree.devices)
        )

    return turn


def _narrow_uplink(tree: PciTree) -> PciTree:
    at = tree.gpus[0].above[1]
    return replace(tree, bridges={**tree.bridges, at: replace(tree.bridges[at], width=8)})


WIDTH = Check(
    "pcie.width",
    facts=("pci.tree",),
    judge=each(width, "pci.tree"),
    severity="warning",
    title="The width of PCIe links",
    why="A GPU or card that sits badly comes up with half of its lanes: everything works at half the rate, and the "
    "node slows down the whole job.",
    how="current_link_width in /sys/bus/pci/devices/* against the smaller maximum of the device and of the port above "
    "it. Other than the speed, the width does not change at rest.",
    remedy="lspci -vv | grep LnkSta   # then reseat the card, its riser or cable",
    proof=Proof("pci.tree", _link(lambda device: device.gpu, width=8)),
)
GEN = Check(
    "pcie.gen",
    facts=("pci.tree",),
    judge=each(gen, "pci.tree"),
    severity="warning",
    title="The speed of PCIe links",
    why="A link that trained down a generation halves the rate of the card, and no counter says so.",
    how="current_link_speed against the smaller maximum of the device and of the port above it. GPUs lower theirs at "
    "rest: that is no fault, and without load nothing is said about them.",
    remedy="lspci -vv | grep LnkSta   # then reseat the card, and look at the slot's speed in the BIOS",
    proof=Proof(
        "pci.tree",
        _link(lambda device: not device.gpu and device.link.max_speed == 32.0, speed=8.0),
    ),
)
PARENT = Check(
    "pcie.parent",
    facts=("pci.tree",),
    judge=parent,
    severity="warning",
    title="The PCIe bridges above GPUs and network cards",
    why="A switch whose way up has lost lanes slows every GPU and card below it, whose own links look perfect.",
    how="The links between bridges on the way to GPUs and network cards, in sysfs: less than both ends can, or "
    "narrower than the same link on most nodes of this kind.",
    remedy="lspci -tv; lspci -vv | grep LnkSta   # then the vendor: switch board or riser",
    proof=Proof("pci.tree", _narrow_uplink),
)
ACS = Check(
    "pcie.acs",
    facts=("pci.tree", "pci.acs"),
    judge=each(acs, "pci.tree", "pci.acs"),
    severity="warning",
    title="PCIe access control on switches",
    why="With redirection on, what a GPU sends to the card beside it goes up to the processor and down again: "
    "GPUDirect drops to half or less, and NCCL may hang.",
    how="The ACS control words of the switch ports above GPUs and network cards; root alone can read them. Not judged "
    "in virtual machines and on Arm.",
    remedy="setpci -s ADDRESS ECAP_ACS+0x6.w=0000   # for each port, at every boot; or switch ACS off in the BIOS",
    proof=Proof("pci.acs", lambda words: dict.fromkeys(words, 0x1D)),
)
IOMMU = Check(
    "pcie.iommu",
    facts=("pci.tree", "pci.passthrough"),
    judge=each(iommu, "pci.tree", "pci.passthrough"),
    severity="warning",
    title="The IOMMU of nodes with GPUs",
    why="An IOMMU that translates stands between GPUs and network cards: GPUDirect loses about half of its rate.",
    how="The type of the IOMMU domain of each GPU and card (/sys/kernel/iommu_groups/*/type), else the kernel's "
    "command line. Not judged in virtual machines and on Arm.",
    remedy="grubby --update-kernel=ALL --args=iommu=pt   # Debian: GRUB_CMDLINE_LINUX, update-grub; then reboot",
    proof=Proof(
        "pci.tree",
        lambda tree: replace(
            tree, devices=tuple(replace(device, iommu="DMA-FQ") for device in tree.devices)
        ),
    ),
)
