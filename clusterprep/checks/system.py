"""Kernel and distribution: the same everywhere, and no kernel known to hang NCCL jobs."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.checks import Check, Outcome, Proof, Scene, as_wanted
from clusterprep.versions import kernel_conditions, kernel_satisfies

FLOOR = ">=5.5"  # below it, Hugging Face Accelerate warns of hangs while a model loads
UPGRADE = "apt-get install --only-upgrade linux-image-generic && reboot   # or the image of the other nodes"


def kernel(scene: Scene) -> Iterable[Outcome]:
    """What is declared; where nothing is, equal on all nodes and at least the floor."""
    releases: dict[str, str] = scene.values("kernel.release")
    for node in scene.nodes:
        seen = releases[node.name]
        if scene.wanted(node) is None and not kernel_satisfies(seen, FLOOR):
            yield Outcome("fail", (node.name,), "the kernel is old", seen, FLOOR)
    yield from as_wanted(scene, releases, kernel_satisfies, "the running kernel")


def release(scene: Scene) -> Iterable[Outcome]:
    yield from as_wanted(scene, scene.values("os.release"), str.__eq__, "the distribution")


KERNEL = Check(
    "kernel.version",
    facts=("kernel.release",),
    judge=kernel,
    severity="warning",
    title="The running kernel",
    why="Kernels older than 5.5 are known to hang multi-GPU training while it loads; a kernel that differs on one "
    "node brings another driver build, another scheduler and other NIC drivers into one job.",
    how="/proc/sys/kernel/osrelease, compared over all nodes and with the floor 5.5 or what `require: kernel` says.",
    remedy=UPGRADE,
    wants=kernel_conditions,
    proof=Proof("kernel.release", lambda _: "5.4.0-150-generic"),
)
RELEASE = Check(
    "os.release",
    facts=("os.release",),
    judge=release,
    severity="warning",
    title="The distribution and its version",
    why="Another release on one node means other libraries, other defaults for limits, and drift from then on.",
    how="ID and VERSION_ID of /etc/os-release, equal on all nodes or as `require: {os.release: …}` says.",
    remedy="reinstall the odd nodes with the image of the others",
    proof=Proof("os.release", lambda _: "ubuntu 20.04"),
)
