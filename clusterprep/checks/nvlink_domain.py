"""Judges NVLink between machines: one domain where one is declared, and what is seen elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    failed,
    names_of,
    skipped,
    uniform,
    unknown,
)
from clusterprep.checks.env import describe_setting, removal_command, settings_by_place
from clusterprep.checks.gpu_health import of_job
from clusterprep.facts.environment import Paths
from clusterprep.facts.gpu import Readings
from clusterprep.facts.nvlink_domain import NOT_JOINED, Domain
from clusterprep.model import Absent, Node
from clusterprep.remedies import shell_line

SHOW = shell_line(
    "nvidia-smi -q | grep -A5 -w Fabric"
    "   # one ClusterUUID and CliqueId; else ask the rack's NVLink manager (NMX) for its partitions"
)
# Settings that keep NCCL from NVLink between machines: src/mnnvl.cc wants the cuMem allocator,
# src/init.cc reads the others.
_OFF: Mapping[str, tuple[str, ...]] = {
    "NCCL_MNNVL_ENABLE": ("0",),
    "NCCL_CUMEM_ENABLE": ("0",),
    "NCCL_P2P_DISABLE": ("1",),
    "NCCL_P2P_LEVEL": ("0", "LOC"),
}


def domains(context: CheckContext) -> Iterable[Outcome]:
    """Judge declared domains by what their nodes have, and tell the domains of other nodes."""
    seen: dict[str, Domain] = {}
    for nodes in context.alike("nvlink.domain"):
        outcome, domain = _of_node(context, nodes[0])
        if outcome is not None:
            yield from about_all(nodes, [outcome])
        elif domain is not None:
            seen.update(dict.fromkeys(names_of(nodes), domain))
    undeclared: dict[Domain, list[str]] = {}
    declared: dict[str, dict[str, str]] = {}
    for node in context.nodes:
        if node.name not in seen:
            continue
        name = _declared(node)
        if name is None:
            undeclared.setdefault(seen[node.name], []).append(node.name)
        else:
            yield from _switched_off(context, node)
            declared.setdefault(name, {})[node.name] = str(seen[node.name])
    for name, texts in declared.items():
        total = sum(_declared(node) == name for node in context.inventory.nodes)
        what = f"the NVLink domain {name}".rstrip()
        yield from _equal(texts, what, total)
    for domain, names in undeclared.items():
        yield _told(domain, names)


def _declared(node: Node) -> str | None:
    """Return the name of the node's declared domain; None where none is."""
    if node.gpus is None or not isinstance(node.gpus.domain, str):
        return None
    return node.gpus.domain


def _of_node(context: CheckContext, node: Node) -> tuple[Outcome | None, Domain | None]:
    """Return the one domain of a node's GPUs, or the outcome of one that has no such."""
    readings: Readings = of_job(node, context.value(node, "nvlink.domain"))
    found: dict[Domain, list[int]] = {}
    for index, reading in readings.items():
        if isinstance(reading, Absent):
            return unknown(node, reading.detail, reading.reason), None
        found.setdefault(reading, []).append(index)
    if not found:
        return skipped(node, "no GPU of this job here"), None
    if NOT_JOINED in found:
        found = {NOT_JOINED: []}
    if len(found) > 1:
        texts = []
        for domain, indices in found.items():
            numbers = ",".join(map(str, indices))
            texts.append(f"GPU {numbers}: {domain}")
        message = "the GPUs of one node are not in one NVLink domain"
        return failed(node, message, "; ".join(texts), "one domain", SHOW), None
    (domain,) = found
    if not domain.joined and _declared(node) is not None:
        return unknown(node, "the GPUs have not joined their fabric", "gpu.fabricmanager"), None
    if not domain.cluster and _declared(node) is not None:
        message = "the inventory declares an NVLink domain, and these GPUs are in none"
        wanted = "a fabric that has a cluster"
        return failed(node, message, str(domain), wanted, SHOW), None
    return None, domain


def _switched_off(context: CheckContext, node: Node) -> Iterable[Outcome]:
    """Yield warnings of settings that keep NCCL from the declared domain.

    The environment is looked at where other checks asked for it: to ask takes the job's shells, and
    the domain is judged without.
    """
    paths: Paths | Absent = context.fleet.fact(node.name, "env.paths")
    if isinstance(paths, Absent):
        return
    for setting, path_names in settings_by_place(paths).items():
        if setting.value.strip() not in _OFF.get(setting.name, ()):
            continue
        message = f"{setting.name}={setting.value} keeps NCCL from NVLink between nodes"
        yield failed(
            node,
            message,
            describe_setting(setting, path_names),
            "unset, as the inventory declares an NVLink domain",
            removal_command(setting, context.inventory),
            severity="warning",
        )


def _equal(texts: Mapping[str, str], what: str, total: int) -> Iterable[Outcome]:
    if total > 1:
        yield from uniform(texts, what, total, SHOW)
        return
    for name, text in texts.items():
        yield Outcome("pass", (name,), f"{what} has this node alone", text, "as declared")


def _told(domain: Domain, nodes: list[str]) -> Outcome:
    """Return what NVLink joins, where nothing is declared."""
    names = tuple(nodes)
    if not domain.fabric:
        return Outcome("skip", names, "no NVSwitch joins GPUs here", reason="not_applicable")
    if not domain.joined:
        message = "the GPUs have not joined their fabric, as gpu.fabricmanager says"
        return Outcome("skip", names, message, reason="not_applicable")
    message = "NVLink joins these nodes"
    if not domain.cluster:
        message = "NVLink does not leave these machines"
    elif len(names) == 1:
        message = "NVLink may join this node to others, and to none of this inventory"
    return Outcome("pass", names, message, str(domain), "declared by `gpus: {nvlink_domain: …}`")


def _elsewhere(readings: Readings) -> Readings:
    """Return the readings of another rack, for the proof."""
    domain = Domain("dc6e40c4-d722-4357-9ba6-5291dd461278", 32766)
    return dict.fromkeys(readings, domain)


DOMAIN = Check(
    "nvl.domain",
    facts=("nvlink.domain",),
    judge=domains,
    severity="error",
    follows=("gpu.fabricmanager", "gpu.imex"),
    title="The NVLink domain of several nodes",
    why="Trays of a GB200 NVL72 are joined by NVLink only within a cluster and clique; between two "
    "of these NCCL goes over the network without a word.",
    how="Cluster UUID and clique of NVML's fabric information: equal on nodes that are declared as "
    "one domain (`gpus: {nvlink_domain: …}`). Variables that switch NVLink between nodes off are a "
    "warning there. Undeclared, the domains are told.",
    remedy=SHOW,
    proof=Proof("nvlink.domain", _elsewhere, fleet="gb300-nvl72"),
)
