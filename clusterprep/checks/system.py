"""Judges kernel and distribution: equal on all nodes, and no kernel known to hang NCCL jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import (
    EQUAL,
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    as_wanted,
    failed,
    kinds,
    passed,
    uniform,
)
from clusterprep.facts.kernel import newest_waiting
from clusterprep.model import Node
from clusterprep.model.versions import kernel_conditions, kernel_satisfies
from clusterprep.remedies import sentence, shell_line

FLOOR = ">=5.5"  # below it, Hugging Face Accelerate warns of hangs while a model loads
UPGRADE = shell_line(
    "apt-get install --only-upgrade linux-image-generic"
    "   # then reboot; or take the image of the other nodes"
)

MIXED = sentence(
    "if it is meant, say so: one group for each distribution with require: os.release, as "
    "clusterprep init drafts them; else give all nodes one of these"
)

# Parameters that change how fast a node is or what its devices may do; root=, console= and the like
# belong to a single machine (Linux, Documentation/admin-guide/kernel-parameters.txt).
_NAMES = (
    "iommu intel_iommu amd_iommu iommu.passthrough iommu.strict swiotlb pci hugepages hugepagesz "
    "default_hugepagesz hugetlb_free_vmemmap transparent_hugepage mem numa numa_balancing "
    "init_on_alloc init_on_free mitigations pti nopti spectre_v2 nospectre_v2 "
    "spec_store_bypass_disable l1tf mds retbleed isolcpus nohz nohz_full rcu_nocbs nosmt maxcpus "
    "nr_cpus processor.max_cstate intel_idle.max_cstate cpuidle.off idle intel_pstate amd_pstate "
    "tsc clocksource preempt skew_tick systemd.unified_cgroup_hierarchy"
)
PARAMETERS = frozenset(_NAMES.split())
FAMILIES = ("pcie_", "pci_", "cgroup", "nvidia", "mlx5_")
BOOTLOADER = shell_line(
    "grubby --info=ALL   # or GRUB_CMDLINE_LINUX in /etc/default/grub, update-grub, reboot"
)


def kernel(context: CheckContext) -> Iterable[Outcome]:
    """Compare the running kernels with what is declared.

    Where nothing is declared they should be equal on all nodes of a declared distribution, not
    below the floor, and the newest that is installed.
    """
    releases: dict[str, str] = context.values("kernel.release")
    for nodes in context.alike():
        node = nodes[0]
        if context.wanted(node) is not None:
            continue
        seen = releases[node.name]
        if not kernel_satisfies(seen, FLOOR):
            yield from about_all(nodes, [failed(node, "the kernel is old", seen, FLOOR)])
        newest = newest_waiting(seen, context.value(node, "kernel.installed"))
        if newest:
            yield from _waiting_kernels(nodes, seen, newest)
    for part in kinds(context, declared_distribution):
        of_part = part.values("kernel.release")
        yield from as_wanted(part, of_part, kernel_satisfies, "the running kernel")


def _waiting_kernels(nodes: Iterable[Node], seen: str, newest: str) -> Iterable[Outcome]:
    """Yield a failure of each node, whose remedy has its name."""
    message = "a newer kernel is installed and waits for a reboot"
    wanted = f"{newest}, the newest installed"
    for node in nodes:
        yield failed(
            node,
            message,
            seen,
            wanted,
            sentence("let {node} boot again when no job runs there", node=node.name),
        )


def cmdline(context: CheckContext) -> Iterable[Outcome]:
    """Compare the kernel's command line with what is declared, or with machines of its kind."""
    for part in kinds(context):
        command_lines: dict[str, tuple[str, ...]] = part.values("kernel.cmdline")
        undeclared = set()
        for nodes in part.alike():
            wanted = part.wanted(nodes[0])
            if wanted is None:
                undeclared.update([node.name for node in nodes])
            else:
                outcome = _judge_declared(nodes[0], command_lines[nodes[0].name], wanted)
                yield from about_all(nodes, [outcome])
        if undeclared:
            values = _describe_differences(command_lines)
            what = "what the kernel was started with"
            yield from uniform(values, what, len(part.inventory.nodes), about=undeclared)


def _judge_declared(node: Node, command_line: tuple[str, ...], wanted: str) -> Outcome:
    """Judge whether the kernel was started with each argument of `require:`."""
    given = {_normalize(argument) for argument in command_line}
    missing = [argument for argument in wanted.split() if _normalize(argument) not in given]
    if not missing:
        return passed(node, "the kernel was started as required", wanted, wanted)
    cure = shell_line(
        "grubby --update-kernel=ALL --args={arguments}"
        "   # or GRUB_CMDLINE_LINUX, update-grub; then reboot",
        arguments=" ".join(missing),
    )
    seen = f"no {', '.join(missing)}"
    return failed(
        node,
        "the kernel was not started as required",
        seen,
        wanted,
        cure,
    )


def parameters(arguments: Iterable[str]) -> dict[str, str]:
    """Return the parameters that matter, each with all its values in the order given.

    «hugepagesz» → «1G 2M».
    """
    values_by_name: dict[str, list[str]] = {}
    for argument in arguments:
        name, _, value = _normalize(argument).partition("=")
        if name in PARAMETERS or name.startswith(FAMILIES):
            values_by_name.setdefault(name, []).append(value)
    return {name: " ".join(values) for name, values in values_by_name.items()}


def _normalize(argument: str) -> str:
    """Return an argument with underscores in its name; the kernel takes dashes for the same."""
    name, equals, value = argument.partition("=")
    name = name.replace("-", "_")
    return f"{name}{equals}{value}"


def _describe_differences(command_lines: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return for each node the parameters that differ between nodes; all of them if none does."""
    kinds = {line: parameters(line) for line in set(command_lines.values())}
    names: set[str] = set()
    for parameters_of_kind in kinds.values():
        names.update(parameters_of_kind)
    differing = []
    for name in sorted(names):
        values = {parameters_of_kind.get(name) for parameters_of_kind in kinds.values()}
        if len(values) > 1:
            differing.append(name)
    shown = differing or sorted(names)
    texts = {line: _describe_parameters(found, shown) for line, found in kinds.items()}
    return {node: texts[line] for node, line in command_lines.items()}


def _describe_parameters(parameters: Mapping[str, str], names: Iterable[str]) -> str:
    """Return «hugepagesz=1G, nosmt, no iommu» for parameters of these names."""
    parts = []
    for name in names:
        value = parameters.get(name)
        if value is None:
            parts.append(f"no {name}")
        elif value:
            parts.append(f"{name}={value}")
        else:
            parts.append(name)
    return ", ".join(parts) or "no parameter that matters"


def declared_distribution(node: Node) -> str | None:
    """Return the distribution that `require:` says for a node.

    A fleet is mixed on purpose where its inventory says so: only that tells a second distribution
    from a node that was forgotten at the last upgrade. What comes with a distribution, such as its
    kernel, is then compared within it.
    """
    return node.require.get("os.release")


def release(context: CheckContext) -> Iterable[Outcome]:
    """Compare the distributions with what is declared, or nodes without such with each other."""
    for part in kinds(context, declared_distribution):
        releases: dict[str, str] = part.values("os.release")
        for outcome in as_wanted(part, releases, str.__eq__, "the distribution"):
            is_mixed = outcome.verdict == "fail" and outcome.wanted == EQUAL
            yield replace(outcome, remedy=MIXED) if is_mixed else outcome


KERNEL = Check(
    "kernel.version",
    facts=("kernel.release", "kernel.installed"),
    judge=kernel,
    severity="warning",
    title="The running kernel",
    why="Kernels older than 5.5 are known to hang multi-GPU training while it loads; a kernel that "
    "differs on one node brings another driver build, another scheduler and other NIC drivers into "
    "one job.",
    how="/proc/sys/kernel/osrelease, compared over all nodes (with those of the same distribution, "
    "where `require: os.release` declares several) and with the floor 5.5 or what "
    "`require: kernel` says; without that, also with the kernels of the same flavour in /boot: a "
    "newer one starts with the next reboot.",
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
    why="Another release on one node means other libraries, other defaults for limits, and drift "
    "from then on.",
    how="ID and VERSION_ID of /etc/os-release, as `require: {os.release: debian 12}` says, and "
    "equal on all nodes without that. A fleet that is mixed on purpose has one group for each "
    "distribution that requires it, as `init` drafts them; what comes with a distribution (kernel, "
    "glibc, OpenSSL) is then compared within it.",
    remedy=sentence(
        "reinstall the odd nodes with the image of the others; or, if it is meant, give them a "
        "group with require: os.release"
    ),
    proof=Proof("os.release", lambda _: "ubuntu 20.04"),
)
CMDLINE = Check(
    "kernel.cmdline",
    facts=("kernel.cmdline",),
    judge=cmdline,
    severity="warning",
    title="What the kernel was started with",
    why="One node with the IOMMU translating, other huge pages, other mitigations or deeper sleep "
    "states is slower than the rest in ways that no other check shows.",
    how="/proc/cmdline, of which only parameters count that change speed or devices: iommu, pci, "
    "hugepages, mitigations, isolcpus, C-states and the like; equal in machines of a kind, or all "
    "words of `require: {kernel.cmdline: …}`.",
    remedy=BOOTLOADER,
    proof=Proof("kernel.cmdline", lambda words: (*words, "mitigations=off")),
)
