"""Judges the BIOS: equal on machines of one product."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    kinds,
    machine,
    names_of,
    passed,
    skipped,
    uniform,
)
from clusterprep.facts.dmi import Bios
from clusterprep.model import Node
from clusterprep.remedies import sentence

WHAT = "the BIOS"
CURE = sentence(
    "bring the BIOS of these nodes to the version of the others, and compare its settings: an "
    "update may reset those of PCIe, NUMA and power"
)


def bios(context: CheckContext) -> Iterable[Outcome]:
    """Judge what is required; compare the others within a kind and a product."""
    undeclared: set[str] = set()
    for nodes in context.alike():
        found: Bios = context.value(nodes[0], "host.bios")
        wanted = context.wanted(nodes[0])
        if wanted is not None:
            yield from about_all(nodes, [_judge_required(nodes[0], found, wanted)])
        elif found.virtual:
            message = "the BIOS of a virtual machine is its host's"
            yield from about_all(nodes, [skipped(nodes[0], message, found.product)])
        else:
            undeclared.update(names_of(nodes))
    if undeclared:
        yield from _compare(context, undeclared)


def _judge_required(node: Node, found: Bios, wanted: str) -> Outcome:
    if found.version == wanted:
        return passed(node, "the BIOS is as required", found.version, wanted)
    return failed(node, "the BIOS is not what the inventory requires", found.version, wanted)


def _compare(context: CheckContext, names: set[str]) -> Iterable[Outcome]:
    """Compare machines of one declared kind that are one product, and have one board."""
    known: dict[str, Bios] = context.values("host.bios")

    def of(node: Node) -> object:
        found = known.get(node.name)
        return None if found is None else (machine(node), found.product, found.board)

    for part in kinds(context, of):
        values = {}
        for node in part.nodes:
            if node.name in names:
                found = known[node.name]
                values[node.name] = f"{found.version} of {found.date}".removesuffix(" of ")
        if values:
            yield from uniform(values, WHAT, len(part.inventory.nodes))


CHECK = Check(
    "fw.bios",
    facts=("host.bios",),
    judge=bios,
    severity="warning",
    title="The BIOS",
    why="Another BIOS has other settings of PCIe, NUMA, power and ACS: one node is slower than "
    "its peers, and nothing in the system says why.",
    how="bios_version and bios_date of /sys/class/dmi/id, equal on nodes of a kind that are one "
    "product with one board. Virtual machines are skipped. `require: {fw.bios: 1.05.03}` wants a "
    "version.",
    remedy=CURE,
    proof=Proof(
        "host.bios",
        lambda found: Bios(found.product, found.board, "1.01.00", "03/21/2023", virtual=False),
        machine={
            "files": {
                # As a DGX H100 shows them (the user guide names firmware 1.05.03).
                "/sys/class/dmi/id/sys_vendor": "NVIDIA\n",
                "/sys/class/dmi/id/product_name": "DGXH100\n",
                "/sys/class/dmi/id/board_name": "DGXH100\n",
                "/sys/class/dmi/id/bios_version": "1.05.03\n",
                "/sys/class/dmi/id/bios_date": "05/21/2024\n",
            }
        },
    ),
)
