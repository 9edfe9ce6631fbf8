"""Write the parts of an inventory from facts of the nodes, each with the reason for it. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.cli.init.kinds import MachineKind, distribution_groups, kind_groups, kind_of
from clusterprep.cli.init.rows import fold_rows
from clusterprep.cli.init.sources import Source
from clusterprep.cli.init.yaml_text import Note, Part, YamlBlock, YamlEntry, flow
from clusterprep.facts.host import NO_MACHINE_ID
from clusterprep.facts.torch import Torch
from clusterprep.model import Absent, Fleet, Node, SshSettings
from clusterprep.model.nodeset import fold
from clusterprep.model.versions import conditions_of
from clusterprep.nccl.interfaces import choose
from clusterprep.remote.agent.readers import NO_START

FACTS = (
    "net.interfaces", "ssh.peer", "rdma.devices", "pci.tree", "torch.build", "gpu.nvml", "gpu.pci",
    "nv.driver", "kernel.release", "host.machine_id", "os.release",
)  # fmt: skip
# Names that `--limit` takes as they are: a comma or a bracket is syntax of a node set.
_GROUP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*", re.ASCII)
EMPTY_LINE = Note(("",))
ONE_JOB = (
    "An inventory is one job: take out the nodes that are no part of it, or set nproc_per_node. "
    "Until then launch.nproc fails."
)
NO_TORCH = Note(("torch: not in the interpreter under `python`; name the job's own there",))
ABOUT_VERSIONS = (
    "Seen on the nodes now. A node that has something else fails its check; "
    "conditions such as >=2.6,<3 work too."
)

Version = str | Absent | None  # None: the node does not have the software


class Draft(Struct, frozen=True):
    """The parts of the file, and the nodes that are in it and that are not."""

    parts: tuple[Part, ...]
    nodes: tuple[Node, ...]
    left_out: tuple[str, ...]


def draft(source: Source, fleet: Fleet, cluster: str, by: str) -> Draft:
    """Return the inventory of the reached nodes; `by` says what wrote it, when and from what."""
    nodes = fleet.reached
    kinds = {node.name: kind_of(fleet, node) for node in nodes}
    left_out = _reasons_to_leave_out(fleet, source)
    about_cluster = "shown in reports; rollback undoes the last run of this name"
    parts: list[Part] = [Note((by, "Look it through, then: clusterprep check", ""))]
    parts.append(YamlEntry("cluster", cluster, beside=about_cluster))
    parts += _login(nodes)
    parts += _common_hardware(kinds)
    parts += _differing_process_counts(kinds)
    parts += _groups(source, kinds, fleet)
    about_order = "The order is that of the ranks, and the first node is where they meet."
    parts.append(Note(("", about_order)))
    parts += _duplicate_machines(fleet, nodes)
    parts.append(YamlEntry("nodes", _node_entries(nodes)))
    parts += _left_out(left_out, source)
    parts += _require(fleet, nodes)
    return Draft(tuple(parts), nodes, tuple(left_out))


def _reasons_to_leave_out(fleet: Fleet, source: Source) -> dict[str, str]:
    """Return why hosts are not in the file: they were not reached, or need no look."""
    reasons: dict[str, str] = {}
    for snapshot in fleet.snapshots.values():
        if not snapshot.reached:
            reasons[snapshot.node] = f"{snapshot.reason}: {snapshot.detail}"
    return {
        **reasons,
        **source.passed_over,
    }


# ---------------------------------------------------------------- how to log in


def _login_settings(node: Node) -> dict[str, object]:
    """Return a node's login settings that are not defaults, by keys such as `ssh.port`."""
    default_ssh = SshSettings()
    default_node = Node(node.name, node.address, node.index)
    settings: dict[str, object] = {}
    for name in SshSettings.__struct_fields__:
        if name in ("become", "host_keys", "options"):
            continue
        value = getattr(node.ssh, name)
        if value != getattr(default_ssh, name):
            settings[f"ssh.{name}"] = value
    if node.transport != default_node.transport:
        settings["transport"] = node.transport
    # One that is found by its name inside a runtime is none of the node's own.
    if node.python != default_node.python and node.python.startswith("/"):
        settings["python"] = node.python
    if node.ssh.options:
        settings["ssh.options"] = dict(node.ssh.options)
    if node.ssh.become:
        settings["become"] = True
    if node.job_user not in (None, node.ssh.user):
        settings["job_user"] = node.job_user
    return settings


def _common_settings(nodes: Sequence[Node]) -> dict[str, object]:
    """Return the login settings that all nodes have alike."""
    first, *others = nodes
    common = _login_settings(first)
    for node in others:
        settings = _login_settings(node)
        common = {key: value for key, value in common.items() if settings.get(key) == value}
    return common


def _nested(settings: Mapping[str, object]) -> dict[str, object]:
    """Return {"ssh": {"port": 22}, …} for {"ssh.port": 22, …}, with `ssh` first."""
    ssh: dict[str, object] = {}
    others: dict[str, object] = {}
    for key, value in settings.items():
        if key.startswith("ssh."):
            ssh[key.removeprefix("ssh.")] = value
        else:
            others[key] = value
    return (
        {
            "ssh": ssh,
            **others,
        }
        if ssh
        else others
    )


def _login(nodes: Sequence[Node]) -> list[Part]:
    parts: list[Part] = [EMPTY_LINE]
    common = _nested(_common_settings(nodes))
    for key, value in common.items():
        if isinstance(value, Mapping):
            settings = [YamlEntry(name, setting) for name, setting in value.items()]
            parts.append(YamlEntry(key, YamlBlock(tuple(settings))))
        else:
            parts.append(YamlEntry(key, value))
    if "python" not in common:
        interpreters = {node.python for node in nodes}
        seen = "it differs by node"
        if len(interpreters) == 1:
            seen = f"it is {interpreters.pop()}"
        about = f"python: the job's interpreter, in which torch is looked up; here {seen}"
        parts.append(Note((about,)))
    return parts


def _node_entries(nodes: Sequence[Node]) -> list[dict[str, object]]:
    """Return the entries of `nodes` with ranges of nodes that log in alike."""
    common = _common_settings(nodes)

    def own_settings(node: Node) -> dict[str, object]:
        settings = _login_settings(node)
        for key in common:
            del settings[key]
        return settings

    entries: list[dict[str, object]] = []
    for own, members in itertools.groupby(nodes, own_settings):
        rows = [(node.name, node.address) for node in members]
        for names, addresses in fold_rows(rows):
            entry: dict[str, object] = {"name": names}
            if addresses != names:
                entry["address"] = addresses
            entry.update(_nested(own))
            entries.append(entry)
    return entries


def _duplicate_machines(fleet: Fleet, nodes: Sequence[Node]) -> list[Part]:
    """Return a comment on names that lead to one machine, which would run its ranks twice."""
    machines: dict[str, list[str]] = {}
    for node in nodes:
        identity = fleet.fact(node.name, "host.machine_id")
        if isinstance(identity, str) and identity != NO_MACHINE_ID:
            machines.setdefault(identity, []).append(node.name)
    lines: list[str] = []
    for names in machines.values():
        if len(names) < 2:
            continue
        lines.append(f"{fold(names)} are one machine by /etc/machine-id: keep one of them")
    return [Note(tuple(lines))] if lines else []


def _left_out(reasons: Mapping[str, str], source: Source) -> list[Part]:
    """Return a comment with the entries of nodes that are not in the file, and why they are not."""
    if not reasons:
        return []
    addresses = {node.name: node.address for node in source.nodes}
    lines = ["", "Left out, because they could not be looked at; put them back once they answer:"]
    for name, why in reasons.items():
        entry = flow(
            {
                "name": name,
                "address": addresses[name],
            }
        )
        lines.append(f"- {entry}  # {why}")
    return [Note(tuple(lines))]


# ---------------------------------------------------------------- hardware


def _common_hardware(kinds: Mapping[str, MachineKind]) -> list[Part]:
    """Return the hardware that all nodes have alike, and a comment for what is not known."""
    parts: list[Part] = []
    alike = list(kinds.values())
    first = alike[0]
    if first.gpus is not None and not _differs(alike, "gpus"):
        parts.append(_gpus_entry(first))
    interfaces = YamlBlock(tuple(_common_interfaces(alike)))
    if interfaces.has_entries:
        parts.append(YamlEntry("interfaces", interfaces))
    else:
        parts += interfaces.parts
    unknown: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        for why in kind.unknown:
            unknown.setdefault(why, []).append(name)
    for why, names in unknown.items():
        line = f"{fold(names)}: {why}"
        parts.append(Note((line,)))
    return [EMPTY_LINE, *parts] if parts else []


def _differs(kinds: Iterable[MachineKind], attribute: str) -> bool:
    return len({getattr(kind, attribute) for kind in kinds}) > 1


def _gpus_entry(kind: MachineKind) -> YamlEntry:
    return YamlEntry("gpus", kind.gpus_written, beside=kind.gpus_why)


def _nccl_entry(kind: MachineKind) -> YamlEntry:
    return YamlEntry("nccl", kind.nccl, beside=kind.nccl_why)


def _rdma_entry(kind: MachineKind) -> YamlEntry:
    return YamlEntry("rdma", kind.rdma, beside=kind.rdma_why)


def _common_interfaces(kinds: Sequence[MachineKind]) -> list[Part]:
    parts: list[Part] = []
    first = kinds[0]
    if first.nccl and not _differs(kinds, "nccl"):
        parts.append(_nccl_entry(first))
    if first.rdma and not _differs(kinds, "rdma"):
        parts.append(_rdma_entry(first))
    elif all(kind.rdma == () for kind in kinds):
        parts.append(Note(("rdma: no RDMA port is in use on any node",)))
    return parts


def _differing_process_counts(kinds: Mapping[str, MachineKind]) -> list[Part]:
    """Return a comment if nodes would start different numbers of processes."""
    counts: dict[int, list[str]] = {}
    for name, kind in kinds.items():
        if kind.gpus is not None:
            count = kind.gpus[0] or 1
            counts.setdefault(count, []).append(name)
    if len(counts) < 2:
        return []
    parts = [f"{count} on {fold(names)}" for count, names in counts.items()]
    differing = "; ".join(parts)
    line = f"Processes that a launcher starts differ: {differing}. {ONE_JOB}"
    return [Note(("", line))]


def _groups(source: Source, kinds: Mapping[str, MachineKind], fleet: Fleet) -> list[Part]:
    """Return the groups of the source, and one for each kind of machine if there are several.

    So it is with distributions. A group of the source is left out if no node of it was reached, or
    its name does not fit.
    """
    groups: list[Part] = []
    every_kind = kinds.values()
    for name, kind, members in kind_groups(kinds, source.groups):
        settings: list[Part] = [YamlEntry("nodes", fold(members))]
        settings += _kind_settings(kind, every_kind)
        groups.append(YamlEntry(name, YamlBlock(tuple(settings))))
    taken = {
        *source.groups,
        *kinds,
        *[group.key for group in groups if isinstance(group, YamlEntry)],
    }
    groups += _distribution_groups(fleet, taken)
    for name, members in source.groups.items():
        reached = [node for node in members if node in kinds]
        if reached and _GROUP_NAME.fullmatch(name):
            groups.append(YamlEntry(name, {"nodes": fold(reached)}))
    if not groups:
        return []
    block = YamlBlock(tuple(groups))
    return [EMPTY_LINE, YamlEntry("groups", block)]


def _distribution_groups(fleet: Fleet, taken: Collection[str]) -> list[Part]:
    """Return a group for each distribution if there are several; `require` says that it is meant.

    What nodes of one distribution have alike and others have not is required there: the kernel.
    """
    kernels = {node.name: _kernel(fleet, node.name) for node in fleet.reached}
    kernel_differs = len(_texts(kernels.values())) > 1
    groups: list[Part] = []
    for name, release, members in distribution_groups(fleet, taken):
        required: dict[str, object] = {"os.release": release}
        own = _texts([kernels[member] for member in members])
        if kernel_differs and len(own) == 1:
            required["kernel"] = f">={own.pop()}"
        settings = {"nodes": fold(members), "require": required}
        block = YamlBlock(tuple(YamlEntry(key, value) for key, value in settings.items()))
        groups.append(YamlEntry(name, block))
    return groups


def _texts(versions: Iterable[Version]) -> set[str]:
    """Return the versions that are known and can be required."""
    return {text for text in versions if isinstance(text, str) and _can_be_required(text)}


def _kind_settings(kind: MachineKind, kinds: Iterable[MachineKind]) -> list[Part]:
    """Return what a kind of machine has that other kinds do not have."""
    parts: list[Part] = []
    every = list(kinds)
    if kind.gpus is not None and _differs(every, "gpus"):
        parts.append(_gpus_entry(kind))
    interfaces: list[Part] = []
    if kind.nccl and _differs(every, "nccl"):
        interfaces.append(_nccl_entry(kind))
    if kind.rdma is not None and _differs(every, "rdma"):
        interfaces.append(_rdma_entry(kind))
    if interfaces:
        parts.append(YamlEntry("interfaces", YamlBlock(tuple(interfaces))))
    return parts


# ---------------------------------------------------------------- versions


def _require(fleet: Fleet, nodes: Sequence[Node]) -> list[Part]:
    """Return the versions that all nodes have alike now, and a comment for those that differ."""
    parts: list[Part] = _not_starting(fleet, nodes)
    for key, version_on in _VERSIONS.items():
        versions: dict[str, Version] = {}
        for node in nodes:
            versions[node.name] = version_on(fleet, node.name)
        parts += _version(key, versions)
    picks = choose(fleet).picks
    mtus = {pick.mtu for pick in picks.values()}
    if len(mtus) == 1 and len(picks) == len(nodes):
        line = f"mtu: {mtus.pop()}  # of the interface that NCCL uses"
        parts.append(Note((line,)))
    about = Note(("", ABOUT_VERSIONS))
    block = YamlBlock(tuple(parts))
    return [about, YamlEntry("require", block)]


def _not_starting(fleet: Fleet, nodes: Sequence[Node]) -> list[Part]:
    """Return a comment on interpreters that do not start, with the words of the loader."""
    names_by_failure: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        build = fleet.fact(node.name, "torch.build")
        if isinstance(build, Absent) and build.reason == NO_START:
            failure = (node.python, build.detail)
            names_by_failure.setdefault(failure, []).append(node.name)
    if not names_by_failure:
        return []
    lines: list[str] = []
    for (python, words), names in names_by_failure.items():
        where = fold(names)
        lines.append(f"{python} does not start on {where}, which need another one: {words}")
    return [Note(tuple(lines))]


def _version(key: str, versions: Mapping[str, Version]) -> list[Part]:
    """Return the entry of a version if it is the same wherever it is known, else a comment.

    Nodes without the software do not matter, except those without torch.
    """
    by_value: dict[str, list[str]] = {}
    lacking: list[str] = []
    unknown: dict[str, Absent] = {}
    for name, version in versions.items():
        if version is None:
            lacking.append(name)
        elif isinstance(version, Absent):
            if version.reason != NO_START:  # told once, for all that the interpreter would say
                unknown[name] = version
        else:
            by_value.setdefault(version, []).append(name)
    notes: list[Part] = []
    if unknown:
        notes.append(_about_unknown(key, unknown))
    lacks_torch = key == "torch" and bool(lacking)
    if not by_value:
        if lacks_torch:
            notes.append(NO_TORCH)
        return notes
    (value, names), *others = by_value.items()
    if others or lacks_torch or not _can_be_required(value):
        notes.append(_about_differing(key, by_value, lacking))
        return notes
    beside = f"on {fold(names)}" if len(names) < len(versions) else ""
    required = f">={value}" if key in _AT_LEAST else value
    entry = YamlEntry(key, required, beside=beside)
    return [entry, *notes]


def _about_unknown(key: str, unknown: Mapping[str, Absent]) -> Note:
    first, *_ = unknown.values()
    nodes = fold(unknown)
    return Note((f"{key}: not known on {nodes}: {first.reason}",))


def _about_differing(
    key: str, by_value: Mapping[str, Sequence[str]], lacking: Sequence[str]
) -> Note:
    """Return the comment `torch: 2.6.0 on n[1-2]; 2.5.1 on n3; none on n4`."""
    parts = [f"{value} on {fold(names)}" for value, names in by_value.items()]
    if lacking:
        parts.append(f"none on {fold(lacking)}")
    differing = "; ".join(parts)
    return Note((f"{key}: {differing}",))


def _can_be_required(version: str) -> bool:
    """Return True if `require:` takes the version; what a host says of itself may be anything."""
    try:
        conditions_of(version)
    except ValueError:
        return False
    return True


def _kernel(fleet: Fleet, node: str) -> Version:
    """Return `6.8.0` for the release `6.8.0-45-generic`."""
    release: Version = fleet.fact(node, "kernel.release")
    if not isinstance(release, str):
        return release
    numbers = _NUMBERS.match(release)
    return release if numbers is None else numbers[0]


def _driver(fleet: Fleet, node: str) -> Version:
    version: Version = fleet.fact(node, "nv.driver")
    return version


def _version_of_torch(attribute: str) -> Callable[[Fleet, str], Version]:
    """Return a function that reads a field of Torch from a node's facts."""

    def version_on(fleet: Fleet, node: str) -> Version:
        build: Any = fleet.fact(node, "torch.build")
        version: Version = getattr(build, attribute) if isinstance(build, Torch) else build
        return version

    return version_on


# Security updates raise it, and the checks tell where nodes differ.
_AT_LEAST = frozenset({"kernel"})
_VERSIONS: Mapping[str, Callable[[Fleet, str], Version]] = {
    "kernel": _kernel,
    "driver": _driver,
    "torch": _version_of_torch("version"),
    "cuda": _version_of_torch("cuda"),
    "nccl": _version_of_torch("nccl"),
}
