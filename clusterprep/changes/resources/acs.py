"""PCIe access control of switches: peer traffic is not redirected, now and at boot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.checks.pcie import REDIRECT
from clusterprep.facts import Fact
from clusterprep.facts.pci import ACS, TREE, PciTree, parse_acs, parse_tree
from clusterprep.model import Absent, Inventory
from clusterprep.model.operations import Operation, RunCommand, StepAction, Write

# udev runs its lines when the kernel adds the device, at every boot; udev(7).
FILE = "/etc/udev/rules.d/90-clusterprep-acs.rules"
HEAD = "# Written by clusterprep apply, which overwrites this file.\n"
SETPCI = "/usr/bin/setpci"
REGISTER = "ECAP_ACS+0x6.w"  # the control word; setpci(8) finds the capability
LIMIT = 30.0  # seconds
WORDS = Fact("acs:words", ACS.reads, parse_acs, lenient=True, needs=ACS.needs)
BUS = Fact("acs:tree", TREE.reads, parse_tree, lenient=True)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (WORDS, BUS)


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (FILE,)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return (("acs", ""),)


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    words: Mapping[str, int | None] | Absent = context.facts[WORDS.name]
    tree: PciTree | Absent = context.facts[BUS.name]
    operations: list[Operation] = []
    lines: list[str] = []
    if isinstance(words, Absent):
        if words.reason != "not_applicable":
            raise NoPlan(words.reason, words.detail)
    elif not _is_arm(tree):
        _refuse_unread(words)
        for port, word in words.items():
            if word is not None and _redirects(word):
                operations.append(_clear(port, word))
                lines.append(f"{port}: {word:#06x} → {word & ~_mask():#06x}")
        operations.extend(_at_boot(context, words))
        if len(operations) > len(lines):
            lines.append("at boot")
    yield StepAction(
        context.node.name,
        "acs",
        "PCIe switches",
        "update",
        tuple(operations),
        "\n".join(lines),
    )


def _mask() -> int:
    """Return the bits that redirect peer traffic; the others of a control word stay."""
    mask = 0
    for bit in REDIRECT:
        mask |= bit
    return mask


def _redirects(word: int) -> bool:
    return bool(word & _mask())


def _is_arm(tree: PciTree | Absent) -> bool:
    """Return whether the GPUs' traffic goes through an SMMU by design."""
    if isinstance(tree, Absent):
        raise NoPlan(tree.reason, tree.detail)
    return any(name.startswith(("smmu", "arm-smmu")) for name in tree.iommus)


def _refuse_unread(words: Mapping[str, int | None]) -> None:
    unread = [port for port, word in words.items() if word is None]
    if unread:
        raise NoPlan("denied", f"the access control of {', '.join(unread)} cannot be read")


def _clear(port: str, word: int) -> RunCommand:
    """Return the command that clears the bits of one port; its undo writes the word as it was."""
    run = RunCommand((SETPCI, "-s", port, f"{REGISTER}={word & ~_mask():04x}"), LIMIT)
    undo = RunCommand((SETPCI, "-s", port, f"{REGISTER}={word:04x}"), LIMIT)
    return replace(run, undo=(undo,))


def _at_boot(context: PlanContext, words: Mapping[str, int | None]) -> Iterable[Write]:
    """Yield the change of the rules that clear the bits at boot: `:MASK` leaves the others."""
    lines = [HEAD]
    for port in words:
        command = f"{SETPCI} -s %k {REGISTER}=0000:{_mask():04x}"
        lines.append(f'ACTION=="add", SUBSYSTEM=="pci", KERNEL=="{port}", RUN+="{command}"\n')
    file = context.files[FILE]
    content = "".join(lines).encode() if words else file.content
    if file.content != content:
        yield Write(FILE, file.content, content)


RESOURCE = StepResource(
    "acs", plan, facts=facts, paths=paths, parts=parts, texts=True, inapplicable=True
)
