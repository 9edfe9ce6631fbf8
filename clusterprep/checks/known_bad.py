"""Versions that are known to be bad, and versions with known vulnerabilities.

The table is data/known_bad.json; a file known_bad.yaml beside the inventory adds to it.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

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
from clusterprep.facts.cpu import Cpus
from clusterprep.facts.gpu_driver import FabricState
from clusterprep.facts.rdma import RdmaDevice
from clusterprep.model import Absent, Node
from clusterprep.model.fact_columns import Part
from clusterprep.model.known_bad import KnownBad, entry_of, meets
from clusterprep.model.versions import satisfies
from clusterprep.remedies import Remedy, sentence

_DATA = Path(__file__).parent.parent / "data"
DAY = 86400  # seconds
NONE = "none"
# How each component is called in findings.
NAMES = {
    "nccl": "NCCL",
    "torch": "torch",
    "driver": "the NVIDIA driver",
    "fabricmanager": "the fabric manager",
    "kernel": "the kernel",
    "cuda": "the CUDA toolkit",
    "aws-ofi-nccl": "aws-ofi-nccl",
    "libfabric": "libfabric",
    "efa-installer": "the EFA installer",
    "nic-firmware": "the firmware of a network card",
    "container-toolkit": "NVIDIA's container toolkit",
}
EFFECTS = {
    "hang": "is known to hang jobs",
    "corruption": "is known to give wrong data",
    "crash": "is known to end jobs",
    "start": "is known to keep jobs from starting as they should",
    "slow": "is known to be slow",
    "leak": "is known to lose memory",
    "tools": "is known to mislead other tools",
    "security": "has known vulnerabilities",
}
FACTS = ("torch.build", "nv.driver")
USES = (
    "nccl.libraries",
    "nv.module",
    "kernel.release",
    "os.release",
    "host.uptime",
    "cpu.processors",
    "gpu.model",
    "gpu.fabric_state",
    "rdma.devices",
    "cuda.toolkit",
    "efa.packages",
    "net.libfabric",
    "container.toolkit",
)
UPTIME = "uptime_days"  # of a node, as a condition
# What a node without the component answers: there is nothing that could be bad.
_NOT_THERE = ("not_applicable", "missing_tool")

Installed = Mapping[str, tuple[str, ...]]
"""What a node has of each component and condition, by name."""


@functools.cache
def table() -> tuple[KnownBad, ...]:
    """Return the entries of data/known_bad.json."""
    text = (_DATA / "known_bad.json").read_text(encoding="utf-8")
    return tuple(entry_of(row) for row in json.loads(text))


def installed(context: CheckContext, node: Node) -> dict[str, tuple[str, ...]]:
    """Return what the node has of each component and condition, without what is not known."""
    found: dict[str, tuple[str, ...]] = {}
    for fact in (*FACTS, *USES):
        value = context.value(node, fact)
        if value is None or isinstance(value, Absent):
            continue
        for name, values in _READ[fact](value).items():
            both = (*found.get(name, ()), *values)
            found[name] = tuple(dict.fromkeys(both))
    return found


def _of_torch(build: Any) -> Installed:
    return _present(torch=build.version, nccl=build.nccl)


def _of_libraries(libraries: Any) -> Installed:
    return _present(nccl=libraries.system_version)


def _of_kernel(release: str) -> Installed:
    """Return 7.0.0.31 for 7.0.0-31-generic: distributions number their builds."""
    match = re.match(r"\d+(?:[.-]\d+)*", release)
    return _present(kernel=match[0].replace("-", ".") if match else None)


def _of_processors(cpus: Cpus) -> Installed:
    is_arm = cpus.model.startswith("CPU implementer")
    return {"cpu": (cpus.model,), "arch": ("aarch64" if is_arm else "x86_64",)}


def _of_models(models: Mapping[int, Any]) -> Installed:
    known = [model for model in models.values() if not isinstance(model, Absent)]
    return {"gpu": tuple(model.capability for model in known if model.capability)}


def _of_fabric(state: FabricState) -> Installed:
    return _present(fabricmanager=state.service.version if state.service else None)


def _of_cards(devices: Iterable[RdmaDevice]) -> Installed:
    return {"nic-firmware": tuple(card.firmware for card in devices if card.firmware)}


_CARDS = Part("rdma.devices", lambda devices: _of_cards(devices)["nic-firmware"])


def _present(**versions: str | None) -> Installed:
    return {name: (version,) for name, version in versions.items() if version}


_READ: Mapping[str, Any] = {
    "torch.build": _of_torch,
    "nv.driver": lambda version: {"driver": (version,)},
    "nccl.libraries": _of_libraries,
    "nv.module": lambda kind: {"module": (kind,)},
    "kernel.release": _of_kernel,
    "os.release": lambda text: {"os": (text,)},
    "host.uptime": lambda seconds: {UPTIME: (f"{seconds / DAY:.1f}",)},
    "cpu.processors": _of_processors,
    "gpu.model": _of_models,
    "gpu.fabric_state": _of_fabric,
    "rdma.devices": _of_cards,
    "cuda.toolkit": lambda version: {"cuda": (version,)},
    "efa.packages": lambda versions: {name: (text,) for name, text in versions.items()},
    "net.libfabric": lambda versions: {"libfabric": versions},
    "container.toolkit": lambda version: {"container-toolkit": (version,)},
}


def affected(entry: KnownBad, found: Installed) -> tuple[str, ...]:
    """Return the versions on a node that an entry names; none where a condition does not hold.

    A condition whose value is not known does not hold: the entry is about another machine, or the
    node answers «unknown» for it.
    """
    for name, condition in entry.when.items():
        if not meets(name, found.get(name, ()), condition):
            return ()
    versions = found.get(entry.component, ())
    return tuple(version for version in versions if satisfies(version, entry.versions))


def known_bad(context: CheckContext) -> Iterable[Outcome]:
    """Yield a failure for each node and entry, and what could not be compared."""
    entries = [entry for entry in _entries(context) if not entry.is_security]
    for nodes in context.alike(parts=[_CARDS, _uptime(entries)]):
        found = installed(context, nodes[0])
        yield from about_all(nodes, _judge_installed(context, nodes[0], found, entries))


def _judge_installed(
    context: CheckContext, node: Node, found: Installed, entries: Iterable[KnownBad]
) -> Iterable[Outcome]:
    """Yield a failure for each entry about one node, and what could not be compared."""
    matches = _matches(entries, found)
    for entry, version in matches:
        yield _bad_version(node, entry, version)
    gaps = _gaps(context, node)
    if gaps:
        yield _not_known(node, gaps)
    elif not matches:
        yield passed(node, "no version is known to be bad", _shown(found))


def _uptime(entries: Iterable[KnownBad]) -> Part:
    """Return what matters of the time since boot: which conditions on it are met."""
    conditions = {entry.when[UPTIME]: None for entry in entries if UPTIME in entry.when}

    def met(seconds: float) -> Hashable:
        days = _READ["host.uptime"](seconds)[UPTIME]
        return tuple([meets(UPTIME, days, condition) for condition in conditions])

    return Part("host.uptime", met)


def _matches(entries: Iterable[KnownBad], found: Installed) -> list[tuple[KnownBad, str]]:
    """Return each entry about a node, with the version there that it names."""
    matches = []
    for entry in entries:
        for version in affected(entry, found):
            matches.append((entry, version))
    return matches


def _entries(context: CheckContext) -> tuple[KnownBad, ...]:
    """Return the shipped entries and the site's; one of the site replaces one of its id."""
    by_id = {entry.id: entry for entry in (*table(), *context.inventory.known_bad)}
    return tuple(by_id.values())


def _bad_version(node: Node, entry: KnownBad, version: str) -> Outcome:
    name = NAMES.get(entry.component, entry.component)
    message = f"this version of {name} {EFFECTS[entry.effect]}: {entry.symptom}"
    seen = f"{version}: {entry.id}"
    wanted = f"{entry.mended} or newer" if entry.mended else "another version"
    is_error = entry.severity == "error"
    return failed(
        node,
        message,
        seen,
        wanted,
        cure(entry),
        severity="error" if is_error else "warning",
    )


def cure(entry: KnownBad) -> Remedy:
    """Return what to do about an entry, and where it was told."""
    name = NAMES.get(entry.component, entry.component)
    source = entry.source
    if entry.mended and entry.workaround:
        return sentence(
            "bring {name} to {mended} or newer; until then: {workaround}; {source}",
            name=name,
            mended=entry.mended,
            workaround=entry.workaround,
            source=source,
        )
    if entry.mended:
        return sentence(
            "bring {name} to {mended} or newer; {source}",
            name=name,
            mended=entry.mended,
            source=source,
        )
    if entry.workaround:
        return sentence(
            "until it is mended: {workaround}; {source}", workaround=entry.workaround, source=source
        )
    return sentence("take another version of {name}; {source}", name=name, source=source)


def _gaps(context: CheckContext, node: Node) -> dict[str, Absent]:
    """Return the facts that should be there and are not, with the reason."""
    gaps = {}
    for fact in USES:
        value = context.value(node, fact)
        if isinstance(value, Absent) and value.reason not in _NOT_THERE:
            gaps[fact] = value
    return gaps


def _not_known(node: Node, gaps: Mapping[str, Absent]) -> Outcome:
    reason = next(iter(gaps.values())).reason
    message = f"some versions are not known, so not all were compared: {', '.join(gaps)}"
    return unknown(node, message, reason)


def _shown(found: Installed) -> str:
    """Return «NCCL 2.21.5, torch 2.6.0», the components of a node that the table knows."""
    parts = []
    for name in NAMES:
        versions = found.get(name)
        if versions:
            parts.append(f"{name} {', '.join(sorted(versions))}")
    return ", ".join(parts) or "nothing that the table knows"


# ---------------------------------------------------------------- vulnerabilities


# A driver follows its image and takes a reboot, and nearly every driver that is older than a
# quarter of a year is behind a bulletin. Drivers are judged where the inventory asks for it.
ON_DEMAND = frozenset({"driver"})


def security(context: CheckContext) -> Iterable[Outcome]:
    """Yield a failure for each node and component with known vulnerabilities."""
    entries = [entry for entry in _entries(context) if entry.is_security]
    parts = [_CARDS, _uptime(entries)]
    for nodes in context.alike(*FACTS, *USES, LIBRARY, parts=parts):
        found = _secured(context, nodes[0])
        by_component: dict[str, list[KnownBad]] = {}
        for entry, _ in _matches(entries, found):
            matching = by_component.setdefault(entry.component, [])
            if entry not in matching:
                matching.append(entry)
        yield from about_all(nodes, _judge_vulnerable(context, nodes[0], found, by_component))


def _secured(context: CheckContext, node: Node) -> dict[str, tuple[str, ...]]:
    """Return what the node has, with the library of the container toolkit as a part of that."""
    found = installed(context, node)
    library = context.value(node, LIBRARY)
    if isinstance(library, str):
        both = (*found.get("container-toolkit", ()), library)
        found["container-toolkit"] = tuple(dict.fromkeys(both))
    return found


def _judge_vulnerable(
    context: CheckContext,
    node: Node,
    found: Installed,
    by_component: Mapping[str, list[KnownBad]],
) -> Iterable[Outcome]:
    """Yield what is vulnerable on one node, what could not be compared, and what is well."""
    for component, entries in by_component.items():
        yield _vulnerable(context, node, component, entries, found[component])
    gaps = [context.value(node, fact) for fact in ("container.toolkit", LIBRARY)]
    absences = [gap.reason for gap in gaps if isinstance(gap, Absent)]
    reasons = [reason for reason in absences if reason not in _NOT_THERE]
    if reasons:
        yield unknown(node, "the version of the container toolkit is not known", reasons[0])
        return
    well = {name: found[name] for name in _SECURED if name in found and name not in by_component}
    if well or not by_component:
        yield passed(node, "no vulnerability is known of these versions", _shown(well))


_SECURED = ("driver", "container-toolkit")
LIBRARY = "container.library"


def _vulnerable(
    context: CheckContext,
    node: Node,
    component: str,
    entries: list[KnownBad],
    versions: tuple[str, ...],
) -> Outcome:
    """Return the outcome of one component; a driver counts only where `require:` asks for it."""
    last = entries[-1]  # of several in one branch the last has the highest version
    name = NAMES.get(component, component)
    symptoms = " ".join(entry.symptom for entry in entries)
    ids = ", ".join(entry.id for entry in entries)
    seen = f"{', '.join(versions)}: {ids}"
    wanted = f"{last.mended} or newer" if last.mended else "another version"
    if component in ON_DEMAND and context.wanted(node) is None:
        message = (
            f"{name} has known vulnerabilities, which count where "
            f"`require: {{sw.security: none}}` asks for it. {symptoms}"
        )
        return skipped(node, message, seen, wanted, reason="not required")
    message = f"{name} {EFFECTS['security']}. {symptoms}"
    return failed(node, message, seen, wanted, cure(last))


def parse_none(text: str) -> object:
    """Accept «none» as what is required. Raises ValueError for anything else."""
    if text != NONE:
        raise ValueError(f"expected none; seen '{text}'")
    return text


KNOWN_BAD = Check(
    "sw.known_bad",
    facts=FACTS,
    uses=USES,
    judge=known_bad,
    severity="warning",
    title="Versions that are known to be bad",
    why="Many hangs and wrong results are defects that others met, described and mended: an update "
    "saves the search.",
    how="The versions of NCCL, torch, driver, fabric manager, kernel, CUDA toolkit, OFI plug-in, "
    "libfabric, firmware of network cards and container toolkit against a table with sources, each "
    "entry with its conditions on architecture, GPU and other versions. known_bad.yaml beside the "
    "inventory adds entries (docs/reference/known-bad.md). `explain ENTRY` shows one. "
    "`require: {sw.known_bad: none}` makes each an error.",
    remedy=sentence("take the version that the finding names"),
    grade="a warning, or an error where the entry says that this very setup hangs or computes "
    "wrong data",
    wants=parse_none,
    # No vulnerability is known of this one, which sw.security would name too.
    proof=Proof(
        "container.toolkit",
        lambda version: "1.17.8",
        machine={
            "commands": {
                "nvidia-ctk --version": "NVIDIA Container Toolkit CLI version 1.19.1\n"
                "commit: 7a3b8f0\n"
            }
        },
    ),
)
SECURITY = Check(
    "sw.security",
    facts=("nv.driver",),
    uses=("container.toolkit", LIBRARY),
    judge=security,
    severity="warning",
    title="Versions with known vulnerabilities",
    why="A crafted image can leave its container through an old container toolkit, and a user of "
    "the node can become root through an old driver.",
    how="The versions of NVIDIA's container toolkit with its library, and of the driver by branch, "
    "against its security bulletins. Drivers count where `require: {sw.security: none}` asks for "
    "it: they follow the image of the cluster and take a reboot.",
    remedy=sentence("take the version that the finding names"),
    wants=parse_none,
    proof=Proof(
        LIBRARY,
        lambda version: "1.16.1",
        machine={
            "commands": {
                "nvidia-container-cli --version": "cli-version: 1.19.1\nlib-version: 1.19.1\n"
            }
        },
    ),
)
