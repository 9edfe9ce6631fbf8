"""Judges how network cards read from memory over PCI Express: request size and ordering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    parse_count,
    passed,
    skipped,
    unknown,
)
from clusterprep.checks.ib import FACTS, NONE_IN_USE, training_not_known
from clusterprep.facts.pci import DeviceControl
from clusterprep.model import Absent, Node
from clusterprep.nccl.rails import HARDWARE, kind_of, training_sets
from clusterprep.remedies import Remedy, shell_line

LEAST = 512  # bytes: below it a card cannot keep enough reads under way for its rate
SIZES = (128, 256, 512, 1024, 2048, 4096)
# The fields of Device Control, for setpci: bits 12 to 14 and bit 4.
READ_MASK, ORDER_MASK = 0x7000, 0x0010

Controls = Mapping[str, DeviceControl]


def requests(context: CheckContext) -> Iterable[Outcome]:
    """Judge the training cards of each node: ordering, then the size of reads."""
    sets = training_sets(context.fleet)
    controls_by_node: dict[str, Controls] = {}
    classes = {nodes[0].name: nodes for nodes in context.alike(parts=[HARDWARE])}
    for name, nodes in classes.items():
        node = nodes[0]
        training = sets[name]
        if isinstance(training, Absent):
            yield from about_all(nodes, [training_not_known(node, training)])
            continue
        known = context.value(node, "pci.device_control")
        cards = [rail.device.pci for rail in training.rails if rail.device.pci is not None]
        addresses = [at for at in cards if at in known]
        if not addresses:
            message = NONE_IN_USE if not training.rails else "no training card is a whole card here"
            yield from about_all(nodes, [skipped(node, message)])
            continue
        silent = [at for at in addresses if known[at] is None]
        if silent:
            message = f"{', '.join(silent)}: Device Control cannot be read"
            yield from about_all(nodes, [unknown(node, message, "denied")])
        else:
            controls_by_node[name] = {at: known[at] for at in addresses}
    usual = _usual_sizes(context, classes, controls_by_node)
    for name, controls in controls_by_node.items():
        nodes = classes[name]
        size = usual.get(kind_of(context.fleet, nodes[0]))
        yield from about_all(nodes, [_judge(context, nodes[0], controls, size)])


def _usual_sizes(
    context: CheckContext,
    classes: Mapping[str, tuple[Node, ...]],
    controls: Mapping[str, Controls],
) -> dict[object, int]:
    """Return the size of reads that more than half of the cards of a kind of node have.

    Classes and controls are given by the first node of a class.
    """
    sizes: dict[object, Counter[int]] = {}
    for name, nodes in classes.items():
        counter = sizes.setdefault(kind_of(context.fleet, nodes[0]), Counter())
        for control in controls.get(name, {}).values():
            counter[control.max_read] += len(nodes)
    usual = {}
    for kind, counter in sizes.items():
        for size, count in counter.most_common(1):
            if 2 * count > counter.total():
                usual[kind] = size
    return usual


def _judge(context: CheckContext, node: Node, controls: Controls, usual: int | None) -> Outcome:
    required = context.wanted(node)
    ordered = [at for at, control in controls.items() if not control.relaxed_ordering]
    if required is not None:
        least = parse_size(required)
        odd = [at for at, control in controls.items() if control.max_read < least]
        wanted = f"relaxed ordering, reads of {least} bytes or more"
    else:
        least = max(LEAST, usual or LEAST)
        odd = _of_odd_size(controls, usual)
        wanted = f"relaxed ordering, reads of {usual or LEAST} bytes on all cards"
    if ordered:
        message = "relaxed ordering is off for a network card"
        cure = _setpci(ordered[0], ORDER_MASK, ORDER_MASK)
        return failed(node, message, _describe(controls, ordered), wanted, cure)
    if odd:
        message = "a network card reads memory in requests of another size"
        cure = _setpci(odd[0], SIZES.index(least) << 12, READ_MASK)
        return failed(node, message, _describe(controls, odd), wanted, cure)
    if required is None and usual is None:
        message = "the size of reads differs from card to card, and none has a majority"
        return failed(node, message, _describe(controls, controls), "one size on all cards")
    seen = _describe(controls, [next(iter(controls))])
    return passed(node, "network cards read memory alike, in relaxed order", seen, wanted)


def _of_odd_size(controls: Controls, usual: int | None) -> list[str]:
    """Return the cards whose reads are smaller than LEAST, or not of the usual size."""
    odd = []
    for at, control in controls.items():
        is_unusual = usual is not None and control.max_read != usual
        if control.max_read < LEAST or is_unusual:
            odd.append(at)
    return odd


def _describe(controls: Controls, addresses: Iterable[str]) -> str:
    texts = []
    for at in addresses:
        control = controls[at]
        order = "relaxed" if control.relaxed_ordering else "strict order"
        texts.append(f"NIC {at} {order}, MaxReadReq {control.max_read}")
    return "; ".join(texts)


def _setpci(at: str, value: int, mask: int) -> Remedy:
    return shell_line(
        "setpci -s {at} CAP_EXP+8.w={value}:{mask}   # at every boot, for each such card",
        at=at,
        value=f"{value:04x}",
        mask=f"{mask:04x}",
    )


def parse_size(text: str) -> int:
    """Return the bytes in `require: {pcie.relaxed: 4096}`. Raises ValueError for anything else."""
    expected = "128, 256, 512, 1024, 2048 or 4096 bytes"
    size = parse_count(text, expected)
    if size not in SIZES:
        raise ValueError(f"expected {expected}; seen '{text}'")
    return size


def _ordered(controls: Mapping[str, DeviceControl]) -> dict[str, DeviceControl]:
    """Return the controls with one card in strict order, for the proof."""
    return {at: replace(control, relaxed_ordering=False) for at, control in controls.items()}


RELAXED = Check(
    "pcie.relaxed",
    facts=(*FACTS, "pci.device_control"),
    judge=requests,
    severity="warning",
    title="How network cards read from memory",
    why="A card that asks for 128 bytes at a time, or whose packets may not pass each other, "
    "cannot fill its link: 400 Gbit/s become 200 and no error is counted.",
    how="Device Control in the configuration space of the training cards, which root alone can "
    "read: relaxed ordering is on, and MaxReadReq is at least 512 bytes and equal on all cards of "
    "a kind of node. `require: {pcie.relaxed: 4096}` wants at least so much. Not judged in virtual "
    "machines.",
    remedy=shell_line(
        "setpci -s ADDRESS CAP_EXP+8.w=5000:7000   # reads of 4096 bytes; at every boot"
    ),
    wants=parse_size,
    proof=Proof("pci.device_control", _ordered),
)
