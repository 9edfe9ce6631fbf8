"""Kernel and distribution: the same everywhere, started alike, and no kernel known to hang NCCL jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.checks import Check, CheckContext, Outcome, Proof, as_wanted, kinds, uniform
from clusterprep.facts.kernel import waiting
from clusterprep.model import Node
from clusterprep.model.versions import kernel_conditions, kernel_satisfies

FLOOR = ">=5.5"  # below it, Hugging Face Accelerate warns of hangs while a model loads
UPGRADE = "apt-get install --only-upgrade linux-image-generic && reboot   # or the image of the other nodes"

# Parameters that change how fast a node is or what its devices may do; root=, console= and the like name the one
# machine (Linux, Documentation/admin-guide/kernel-parameters.txt).
_NAMES = (
    "iommu intel_iommu amd_iommu iommu.passthrough iommu.strict swiotlb pci hugepages hugepagesz default_hugepagesz "
    "hugetlb_free_vmemmap transparent_hugepage mem numa numa_balancing init_on_alloc init_on_free mitigations pti "
    "nopti spectre_v2 nospectre_v2 spec_store_bypass_disable l1tf mds retbleed isolcpus nohz nohz_full rcu_nocbs nosmt "
    "maxcpus nr_cpus processor.max_cstate intel_idle.max_cstate cpuidle.off idle intel_pstate amd_pstate tsc "
    "clocksource preempt skew_tick systemd.unified_cgroup_hierarchy"
)
PARAMETERS = frozenset(_NAMES.split())
FAMILIES = ("pcie_", "pci_", "cgroup", "nvidia", "mlx5_")
BOOTLOADER = (
    "grubby --info=ALL   # or GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub && reboot"
)


def kernel(context: CheckContext) -> Iterable[Outcome]:
    """What is declared; where nothing is, equal on all nodes, at least the floor, and the newest that is installed."""
    releases: dict[str, str] = context.values("kernel.release")
    for node in context.nodes:
        seen = releases[node.name]
        if context.wanted(node) is not None:
            continue
        if not kernel_satisfies(seen, FLOOR):
            yield Outcome("fail", (node.name,), "the kernel is old", seen, FLOOR)
        if newest := waiting(seen, context.value(node, "kernel.installed")):
            message = "a newer kernel is installed and waits for a reboot"
            yield Outcome(
                "fail",
                (node.name,),
                message,
                seen,
                f"{newest}, the newest installed",
                f"ssh {node.name} reboot",
            )
    yield from as_wanted(context, releases, kernel_satisfies, "the running kernel")


def cmdline(context: CheckContext) -> Iterable[Outcome]:
    """The words that are declared; where none are, the parameters that matter are equal in machines of a kind."""
    for part in kinds(context):
        words: dict[str, tuple[str, ...]] = part.values("kernel.cmdline")
        undeclared = set()
        for node in part.nodes:
            wanted = part.wanted(node)
            if wanted is None:
                undeclared.add(node.name)
            else:
                yield _declared(node, words[node.name], wanted)
        if undeclared:
            told = _differences({name: parameters(given) for name, given in words.items()})
            what = "what the kernel was started with"
            yield from uniform(told, what, len(part.inventory.nodes), about=undeclared)


def _declared(node: Node, words: tuple[str, ...], wanted: str) -> Outcome:
    given = {_plain(word) for word in words}
    missing = [word for word in wanted.split() if _plain(word) not in given]
    if not missing:
        return Outcome("pass", (node.name,), "the kernel was started as required", wanted, wanted)
    cure = f"grubby --update-kernel=ALL --args='{' '.join(missing)}' && reboot   # or GRUB_CMDLINE_LINUX, update-grub"
    return Outcome(
        "fail",
        (node.name,),
        "the kernel was not started as required",
        f"no {', '.join(missing)}",
        wanted,
        cure,
    )


def parameters(words: Iterable[str]) -> dict[str, str]:
    """The parameters that matter, each with all its values in the order given: «hugepagesz» → «1G 2M»."""
    found: dict[str, list[str]] = {}
    for word in words:
        name, _, value = _plain(word).partition("=")
        if name in PARAMETERS or name.startswith(FAMILIES):
            found.setdefault(name, []).append(value)
    return {name: " ".join(values) for name, values in found.items()}


def _plain(word: str) -> str:
    """The kernel takes dashes in names for underscores."""
    name, equals, value = word.partition("=")
    return name.replace("-", "_") + equals + value


def _differences(given: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Per node only what is not the same on all of them; where nothing differs, all that matters."""
    names = sorted({name for own in given.values() for name in own})
    odd = [name for name in names if len({own.get(name) for own in given.values()}) > 1]
    return {node: _shown(own, odd or names) for node, own in given.items()}


def _shown(own: Mapping[str, str], names: Iterable[str]) -> str:
    shown = [
        (f"{name}={own[name]}" if own[name] else name) if name in own else f"no {name}"
        for name in names
    ]
    return ", ".join(shown) or "no parameter that matters"


def release(context: CheckContext) -> Iterable[Outcome]:
    yield from as_wanted(context, context.values("os.release"), str.__eq__, "the distribution")


KERNEL = Check(
    "kernel.version",
    facts=("kernel.release", "kernel.installed"),
    judge=kernel,
    severity="warning",
    title="The running kernel",
    why="Kernels older than 5.5 are known to hang multi-GPU training while it loads; a kernel that differs on one "
    "node brings another driver build, another scheduler and other NIC drivers into one job.",
    how="/proc/sys/kernel/osrelease, compared over all nodes and with the floor 5.5 or what `require: kernel` says; "
    "without that, also with the kernels of the same flavour in /boot: a newer one starts with the next reboot.",
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
CMDLINE = Check(
    "kernel.cmdline",
    facts=("kernel.cmdline",),
    judge=cmdline,
    severity="warning",
    title="What the kernel was started with",
    why="One node with the IOMMU translating, other huge pages, other mitigations or deeper sleep states is slower "
    "than the rest in ways that no other check shows.",
    how="/proc/cmdline, of which only parameters count that change speed or devices: iommu, pci, hugepages, "
    "mitigations, isolcpus, C-states and the like; equal in machines of a kind, or all words of "
    "`require: {kernel.cmdline: …}`.",
    remedy=BOOTLOADER,
    proof=Proof("kernel.cmdline", lambda words: (*words, "mitigations=off")),
)
