"""What was seen on the nodes becomes the parts of an inventory, each with the reason why it says so. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields

from clusterprep.cli.init.kinds import MachineKind, kind_groups, kind_of
from clusterprep.cli.init.rows import fold_rows
from clusterprep.cli.init.sources import Source
from clusterprep.cli.init.yaml_text import Note, Part, YamlBlock, YamlEntry, flow
from clusterprep.facts.torch import Torch
from clusterprep.model import Absent, Fleet, Node, NodeSnapshot, SshSettings
from clusterprep.model.nodeset import fold
from clusterprep.model.versions import conditions_of
from clusterprep.nccl.interfaces import choose
from clusterprep.runtime.lazy_dataclass import dataclass

FACTS = (
    "net.interfaces", "ssh.peer", "rdma.devices", "pci.tree", "torch.build", "gpu.nvml", "gpu.pci", "nv.driver",
    "kernel.release", "host.machine_id",
)  # fmt: skip
_GROUP_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*", re.ASCII)


@dataclass(frozen=True)
class Draft:
    """The parts of the file, and the nodes that are in it and that are not."""

    parts: tuple[Part, ...]
    nodes: tuple[Node, ...]
    left_out: tuple[str, ...]


def draft(source: Source, fleet: Fleet, cluster: str, by: str) -> Draft:
    """The inventory of the nodes that were reached; `by` says who wrote it, when and from what."""
    nodes = fleet.reached
    kinds = {node.name: kind_of(fleet, node) for node in nodes}
    lost = [snapshot for snapshot in fleet.snapshots.values() if not snapshot.reached]
    head = Note((by, "Look it through, then: clusterprep check", ""))
    parts = [
        head,
        YamlEntry(
            "cluster", cluster, beside="shown in reports; rollback undoes the last run of this name"
        ),
        *_login(nodes),
        *_shared(kinds),
        *_one_job(kinds),
        *_groups(source, nodes, kinds),
        Note(("", "The order is that of the ranks, and the first node is where they meet.")),
        *_doubled(fleet, nodes),
        YamlEntry("nodes", _rows(nodes)),
        *_left_out(lost, source),
        *_require(fleet, nodes),
    ]
    return Draft(tuple(parts), nodes, (*(snapshot.node for snapshot in lost), *source.passed_over))


# ---------------------------------------------------------------- how to log in


def _settings(node: Node) -> dict[str, object]:
    """What has to be written of a node's login, by keys of the inventory; defaults say nothing."""
    default = SshSettings()
    ssh = {
        f.name: getattr(node.ssh, f.name)
        for f in fields(SshSettings)
        if f.name not in ("become", "host_keys")
    }
    kept: dict[str, object] = {
        f"ssh.{key}": v for key, v in ssh.items() if v != getattr(default, key)
    }
    plain = Node(node.name, node.address, node.index)
    for key in ("transport", "python"):
        if getattr(node, key) != getattr(plain, key):
            kept[key] = getattr(node, key)
    if node.ssh.become:
        kept["become"] = True
    if node.job_user not in (None, node.ssh.user):
        kept["job_user"] = node.job_user
    return kept


def _common(nodes: Sequence[Node]) -> dict[str, object]:
    first, *others = [_settings(node) for node in nodes]
    return {
        key: value
        for key, value in first.items()
        if all(other.get(key) == value for other in others)
    }


def _nested(settings: Mapping[str, object]) -> dict[str, object]:
    ssh = {
        key.removeprefix("ssh."): value for key, value in settings.items() if key.startswith("ssh.")
    }
    rest = {key: value for key, value in settings.items() if not key.startswith("ssh.")}
    return {**({"ssh": ssh} if ssh else {}), **rest}


def _login(nodes: Sequence[Node]) -> list[Part]:
    common = _nested(_common(nodes))
    ssh = common.pop("ssh", None)
    parts: list[Part] = [Note(("",))]
    if isinstance(ssh, dict):
        parts.append(
            YamlEntry("ssh", YamlBlock(tuple(YamlEntry(key, value) for key, value in ssh.items())))
        )
    parts += [YamlEntry(key, value) for key, value in common.items()]
    if "python" not in common:
        interpreter = sorted({node.python for node in nodes})
        said = f"it is {', '.join(interpreter)}" if len(interpreter) == 1 else "it differs by node"
        parts.append(
            Note((f"python: the job's interpreter, in which torch is looked up; here {said}",))
        )
    return parts


def _rows(nodes: Sequence[Node]) -> list[dict[str, object]]:
    """Entries with ranges; nodes that log in otherwise than most have entries of their own."""
    common = _common(nodes)
    entries: list[dict[str, object]] = []
    run: list[tuple[str, str]] = []
    own: dict[str, object] = {}

    def close() -> None:
        for names, addresses in fold_rows(run):
            entries.append(
                {
                    "name": names,
                    **({} if addresses == names else {"address": addresses}),
                    **_nested(own),
                }
            )
        run.clear()

    for node in nodes:
        mine = {key: value for key, value in _settings(node).items() if key not in common}
        if mine != own:
            close()
            own = mine
        run.append((node.name, node.address))
    close()
    return entries


def _doubled(fleet: Fleet, nodes: Sequence[Node]) -> list[Part]:
    """Names that lead to one machine, which would run its ranks twice."""
    machines: dict[str, list[str]] = {}
    for node in nodes:
        identity = fleet.fact(node.name, "host.machine_id")
        if isinstance(identity, str):
            machines.setdefault(identity, []).append(node.name)
    lines = [
        f"{fold(names)} are one machine by /etc/machine-id: keep one of them"
        for names in machines.values()
        if len(names) > 1
    ]
    return [Note(tuple(lines))] if lines else []


def _left_out(lost: Iterable[NodeSnapshot], source: Source) -> list[Part]:
    address = {node.name: node.address for node in source.nodes}
    reasons = {s.node: f"{s.reason}: {s.detail}" for s in lost} | dict(source.passed_over)
    if not reasons:
        return []
    lines = [
        f"- {flow({'name': name, 'address': address[name]})}  # {why}"
        for name, why in reasons.items()
    ]
    return [
        Note(
            ("", "Left out, as nobody could look at them; put them back once they answer:", *lines)
        )
    ]


# ---------------------------------------------------------------- what they are


def _shared(kinds: Mapping[str, MachineKind]) -> list[Part]:
    """Settings that all nodes have alike, and a comment for what is not known."""
    parts: list[Part] = []
    values = list(kinds.values())
    if len({kind.gpus for kind in values}) == 1 and values[0].gpus is not None:
        parts.append(YamlEntry("gpus", values[0].gpus_written, beside=values[0].gpus_why))
    inner = _interfaces(values, everybody=True)
    if any(isinstance(part, YamlEntry) for part in inner):
        parts.append(YamlEntry("interfaces", YamlBlock(tuple(inner))))
    else:
        parts += inner
    unknown: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        for why in kind.unknown:
            unknown.setdefault(why, []).append(name)
    parts += [Note((f"{fold(names)}: {why}",)) for why, names in unknown.items()]
    return [Note(("",)), *parts] if parts else []


def _interfaces(kinds: Sequence[MachineKind], *, everybody: bool) -> list[Part]:
    parts: list[Part] = []
    if len({kind.nccl for kind in kinds}) == 1 and kinds[0].nccl:
        parts.append(YamlEntry("nccl", kinds[0].nccl, beside=kinds[0].nccl_why))
    if len({kind.rdma for kind in kinds}) == 1 and kinds[0].rdma:
        parts.append(YamlEntry("rdma", kinds[0].rdma, beside=kinds[0].rdma_why))
    elif everybody and all(kind.rdma == () for kind in kinds):
        parts.append(Note(("rdma: no RDMA port is in use on any node",)))
    return parts


def _one_job(kinds: Mapping[str, MachineKind]) -> list[Part]:
    """A word on nodes that would start unlike numbers of processes, which is for the user to decide."""
    counts: dict[int, list[str]] = {}
    for name, kind in kinds.items():
        if kind.gpus is not None:
            counts.setdefault(kind.gpus[0] or 1, []).append(name)
    if len(counts) < 2:
        return []
    differing = "; ".join(f"{count} on {fold(names)}" for count, names in counts.items())
    decide = (
        "An inventory is one job: take out the nodes that are no part of it, or set nproc_per_node."
    )
    return [
        Note(
            (
                "",
                f"Processes that a launcher starts differ: {differing}. {decide} Until then launch.nproc fails.",
            )
        )
    ]


def _groups(source: Source, nodes: Sequence[Node], kinds: Mapping[str, MachineKind]) -> list[Part]:
    there = {node.name for node in nodes}
    parts: list[Part] = []
    for name, kind, members in kind_groups(kinds, source.groups):
        settings: list[Part] = [YamlEntry("nodes", fold(members))]
        if len({k.gpus for k in kinds.values()}) > 1 and kind.gpus is not None:
            settings.append(YamlEntry("gpus", kind.gpus_written, beside=kind.gpus_why))
        differing = _differing(kind, list(kinds.values()))
        if differing:
            settings.append(YamlEntry("interfaces", YamlBlock(tuple(differing))))
        parts.append(YamlEntry(name, YamlBlock(tuple(settings))))
    for name, every in source.groups.items():
        kept = [node for node in every if node in there]
        if kept and _GROUP_NAME.fullmatch(name):
            parts.append(YamlEntry(name, {"nodes": fold(kept)}))
    return [Note(("",)), YamlEntry("groups", YamlBlock(tuple(parts)))] if parts else []


def _differing(kind: MachineKind, kinds: Sequence[MachineKind]) -> list[Part]:
    parts: list[Part] = []
    if len({other.nccl for other in kinds}) > 1 and kind.nccl:
        parts.append(YamlEntry("nccl", kind.nccl, beside=kind.nccl_why))
    if len({other.rdma for other in kinds}) > 1 and kind.rdma is not None:
        parts.append(YamlEntry("rdma", kind.rdma, beside=kind.rdma_why))
    return parts


# ---------------------------------------------------------------- versions


def _require(fleet: Fleet, nodes: Sequence[Node]) -> list[Part]:
    """Versions that all nodes have alike, as they are now; the rest is said and left to be decided."""
    picks = choose(fleet).picks
    found: list[Part] = []
    for key, of in _VERSIONS.items():
        found += _version(key, {node.name: of(fleet, node.name) for node in nodes})
    mtus = {picks[node.name].mtu for node in nodes if node.name in picks}
    if len(mtus) == 1 and len(picks) == len(nodes):
        found.append(Note((f"mtu: {mtus.pop()}  # of the interface that NCCL uses",)))
    lines = "Seen on the nodes now. A node that has something else fails its check; conditions such as >=2.6,<3 work too."
    return [Note(("", lines)), YamlEntry("require", YamlBlock(tuple(found)))]


def _version(key: str, values: Mapping[str, str | Absent | None]) -> list[Part]:
    known = {name: value for name, value in values.items() if isinstance(value, str)}
    lacking = [name for name, value in values.items() if value is None]
    unknown = {name: value for name, value in values.items() if isinstance(value, Absent)}
    notes = (
        [f"{key}: not known on {fold(unknown)}: {next(iter(unknown.values())).reason}"]
        if unknown
        else []
    )
    by_value: dict[str, list[str]] = {}
    for name, value in known.items():
        by_value.setdefault(value, []).append(name)
    if len(by_value) == 1 and _readable(next(iter(by_value))) and not (lacking and key == "torch"):
        beside = f"on {fold(known)}" if len(known) < len(values) else ""
        return [
            YamlEntry(key, next(iter(by_value)), beside=beside),
            *([Note(tuple(notes))] if notes else []),
        ]
    if by_value:
        differing = "; ".join(f"{value} on {fold(names)}" for value, names in by_value.items())
        notes.append(f"{key}: {differing}{f'; none on {fold(lacking)}' if lacking else ''}")
    elif lacking and key == "torch":
        notes.append("torch: not in the interpreter under `python`; name the job's own there")
    return [Note(tuple(notes))] if notes else []


def _readable(version: str) -> bool:
    """Whether `require:` takes it: what a host says of itself may be anything."""
    try:
        conditions_of(version)
    except ValueError:
        return False
    return True


def _kernel(fleet: Fleet, node: str) -> str | Absent | None:
    release = fleet.fact(node, "kernel.release")
    numbers = _NUMBERS.match(release) if isinstance(release, str) else None
    return release if numbers is None else numbers[0]


def _of_torch(field: str) -> Callable[[Fleet, str], str | Absent | None]:
    def of(fleet: Fleet, node: str) -> str | Absent | None:
        build = fleet.fact(node, "torch.build")
        value: str | Absent | None = getattr(build, field) if isinstance(build, Torch) else build
        return value

    return of


def _driver(fleet: Fleet, node: str) -> str | Absent | None:
    value: str | Absent | None = fleet.fact(node, "nv.driver")
    return value


_VERSIONS: Mapping[str, Callable[[Fleet, str], str | Absent | None]] = {
    "kernel": _kernel,
    "driver": _driver,
    "torch": _of_torch("version"),
    "cuda": _of_torch("cuda"),
    "nccl": _of_torch("nccl"),
}
