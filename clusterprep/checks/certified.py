"""Judges whether nodes still are what a certificate of `verify --for` says of them."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.facts.certified import CERTIFIED, Certified, CertifiedPart
from clusterprep.history.certificate import FACTS
from clusterprep.model import Node
from clusterprep.remedies import shell_line

SHOWN = 6  # differences of one node in one finding; a node that was replaced has many


def certified(context: CheckContext) -> Iterable[Outcome]:
    """Judge the comparison with the certificate, once for nodes on which it says the same."""
    for nodes in context.alike(CERTIFIED.name):
        answer = context.value(nodes[0], CERTIFIED.name)
        yield from about_all(nodes, _compared(nodes[0], answer))


def _compared(node: Node, answer: Certified | None) -> Iterable[Outcome]:
    """Yield a failure with what differs, and unknown for what was certified and is not told."""
    if answer is None:
        yield skipped(node, "no certificate was given; --against FILE names one")
    elif answer.differing:
        parts = answer.differing[:SHOWN]
        seen = "; ".join(f"{part.what} is {part.seen}" for part in parts)
        if len(answer.differing) > SHOWN:
            seen += f"; and {len(answer.differing) - SHOWN} more"
        wanted = "; ".join(part.certified for part in parts)
        yield failed(node, f"not as certified on {answer.started}", seen, wanted)
    elif answer.untold:
        facts = ", ".join(answer.untold)
        yield unknown(node, f"what was certified is not told today: {facts}", "not told today")
    else:
        yield passed(node, f"as certified on {answer.started}")


CERTIFIED_PARTS = Check(
    "host.certified",
    facts=(CERTIFIED.name,),
    uses=FACTS,
    judge=certified,
    severity="warning",
    title="The node is as it was certified",
    why="What was accepted is not what runs today if a GPU, a card or a disk was swapped, or a "
    "driver or library was changed since: its figures were never measured with it.",
    how="With `check --against FILE`, of a certificate that `verify --for` made: serial numbers, "
    "models and firmware of GPUs, RDMA cards and disks, memory, BIOS, kernel, driver, NCCL and "
    "torch of every node. Without --against it is skipped.",
    remedy=shell_line(
        "clusterprep verify INVENTORY --for 30m   # if the change is meant, certify it anew"
    ),
    proof=Proof(
        CERTIFIED.name,
        lambda _: Certified(
            "2026-11-21", (CertifiedPart("gpu.nvml gpus[0].uuid", '"GPU-1"', '"GPU-2"'),), ()
        ),
    ),
)
