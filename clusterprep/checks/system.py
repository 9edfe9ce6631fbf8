"""Kernel and distribution: the same everywhere, and no kernel known to hang NCCL jobs."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.checks import Check, Outcome, Scene, uniform
from clusterprep.versions import kernel_satisfies

FLOOR = ">=5.5"  # below it, Hugging Face Accelerate warns of hangs while a model loads
UPGRADE = "apt-get install --only-upgrade linux-image-generic && reboot   # or the image of the other nodes"


def kernel(scene: Scene) -> Iterable[Outcome]:
    """What is declared; where nothing is, equal on all nodes and at least the floor."""
    undeclared = set()
    for node in scene.nodes:
        release, wanted = scene.value(node, "kernel.release"), scene.wanted(node)
        if wanted is None:
            undeclared.add(node.name)
        if not kernel_satisfies(release, wanted or FLOOR):
            message = "the running kernel is not what the inventory requires" if wanted else "the kernel is old"
            yield Outcome("fail", (node.name,), message, release, wanted or FLOOR)
        elif wanted is not None:
            yield Outcome("pass", (node.name,), "the running kernel is as required", release, wanted)
    if undeclared:
        releases = scene.values("kernel.release")
        yield from uniform(releases, "the running kernel", len(scene.inventory.nodes), about=undeclared)


def release(scene: Scene) -> Iterable[Outcome]:
    undeclared = set()
    for node in scene.nodes:
        seen, wanted = scene.value(node, "os.release"), scene.wanted(node)
        if wanted is None:
            undeclared.add(node.name)
        elif seen == wanted:
            yield Outcome("pass", (node.name,), "the distribution is as required", seen, wanted)
        else:
            yield Outcome("fail", (node.name,), "the distribution is not what the inventory requires", seen, wanted)
    if undeclared:
        releases = scene.values("os.release")
        yield from uniform(releases, "the distribution", len(scene.inventory.nodes), about=undeclared)


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
)
