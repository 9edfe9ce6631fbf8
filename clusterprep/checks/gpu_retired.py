"""Pages of GPU memory that were retired, on GPUs before Ampere."""

from __future__ import annotations

from msgspec.structs import replace

from clusterprep.checks import Check, Proof
from clusterprep.checks.gpu_health import RESET, Trouble, each_gpu
from clusterprep.facts.gpu_health import RetiredPages
from clusterprep.model import NodeSnapshot
from clusterprep.remedies import sentence, shell_line

# Of the 64 pages that can be retired (NVIDIA, «Row Remapping», table of differences) 60 were the
# threshold of NVIDIA's policy for returns. From 10 on it is told, as node health checks do.
MANY, SPENT = 10, 60
WATCH = sentence("watch whether it retires more; plan to return the board")
RETURN = shell_line("nvidia-bug-report.sh   # then return the board")


def retired(pages: RetiredPages) -> Trouble | None:
    """Return what is wrong with the retired pages of a GPU."""
    total = pages.single + pages.double
    seen = f"{total} pages, {pages.double} for double-bit errors"
    if total >= SPENT:
        return Trouble("nearly no page of memory can be retired any more", seen, RETURN)
    if pages.pending:
        message = "pages of memory are to be retired at the next reset"
        return Trouble(message, seen, RESET)
    if total > MANY:
        return Trouble("many pages of memory are retired", seen, WATCH)
    return None


def _with_pending_page(snapshot: NodeSnapshot) -> NodeSnapshot:
    """Return a node of which GPU 3 is to retire a page; the recorded GPUs remap rows instead."""
    pages = {3: RetiredPages(2, 1, pending=True)}
    return replace(snapshot, facts={**snapshot.facts, "gpu.retired": pages})


CHECK = Check(
    "gpu.retired",
    facts=("gpu.retired",),
    judge=each_gpu(
        "gpu.retired",
        retired,
        "few pages of memory are retired, and none waits for it",
        f"none pending, at most {MANY}",
    ),
    severity="warning",
    title="Retired pages of GPU memory",
    why="A page that waits to be retired is still in use, and ends the next job that meets it.",
    how="NVML's retired pages of GPUs before Ampere: none pending, at most 10; from 60 on the "
    "board is to be returned. Later GPUs remap rows instead: gpu.remap.",
    remedy=shell_line("nvidia-smi -q -d PAGE_RETIREMENT"),
    proof=Proof("", _with_pending_page),
)
