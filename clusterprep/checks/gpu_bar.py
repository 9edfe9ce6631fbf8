"""The window through which other devices reach a GPU's memory."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.checks.gpu_state import EQUAL_BY_MODEL, fail_differing, with_other_nodes
from clusterprep.model.units import format_size
from clusterprep.remedies import sentence


def bar(context: CheckContext) -> Iterable[Outcome]:
    """Judge that BAR1 is equal on all GPUs of a model in the job."""
    message = "BAR1 is of another size than on the same GPUs"
    cure = sentence(
        "set «Above 4G decoding» and «Resizable BAR» in the BIOS as on the other nodes, which "
        "have USUAL"
    )
    failures = fail_differing(
        context,
        "gpu.bar",
        format_size,
        message,
        cure,
    )
    yield from with_other_nodes(
        context,
        "gpu.bar",
        failures,
        lambda _: "BAR1 is equal on all GPUs of a model",
        EQUAL_BY_MODEL,
    )


CHECK = Check(
    "pcie.bar",
    facts=("gpu.bar", "gpu.model"),
    judge=bar,
    severity="warning",
    title="The size of BAR1",
    why="Network cards reach a GPU's memory through BAR1: where it is smaller than the memory, "
    "GPUDirect RDMA runs out of mappings on this node alone.",
    how="NVML's total of BAR1, equal on all GPUs of a model in the job.",
    remedy=sentence("set «Above 4G decoding» and «Resizable BAR» in the BIOS"),
    proof=Proof("gpu.bar", lambda readings: {**readings, 3: 256 << 20}),
)
