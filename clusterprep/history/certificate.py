"""The certificate of an acceptance: what the nodes were made of, and what they reached. Pure.

A JSON document that another day's answers can be compared with. It is signed beside the file, as
`ssh-keygen -Y sign` does, so its bytes are its text and nothing has to be put into an order first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from clusterprep.errors import InputError
from clusterprep.facts.certified import CERTIFIED, Certified, CertifiedPart
from clusterprep.history.compare import fact_changes
from clusterprep.history.encoding import encoded
from clusterprep.model import Absent, Fleet, Json, Report

KIND = "clusterprep certificate"
VERSION = 1
LARGEST = 64 << 20  # bytes of a certificate; a node takes some 10 KB
LONGEST = 256 << 10  # bytes of one fact
# What a node is made of, and the versions that a job runs with. Nothing of it changes by itself.
FACTS = (
    "host.machine_id",
    "host.bios",
    "mem.total",
    "gpu.nvml",
    "gpu.firmware",
    "rdma.devices",
    "disk.nvme",
    "kernel.release",
    "os.release",
    "nv.driver",
    "nccl.libraries",
    "torch.build",
)
# Of these facts only some fields are what a part is; the others are how it feels today.
_FIELDS = {"disk.nvme": ("name", "model", "serial")}


def certificate_text(report: Report) -> str:
    """Return the certificate of a `verify --for` that passed, as its file has it."""
    if report.verify is None or report.verify.acceptance is None:
        raise ValueError("only an acceptance has a certificate")
    nodes: dict[str, Json] = {}
    for snapshot in report.nodes or ():
        facts = {name: snapshot.facts[name] for name in FACTS if name in snapshot.facts}
        nodes[snapshot.node] = {name: _as_json(name, fact) for name, fact in facts.items()}
    verify = report.verify
    document = {
        "kind": KIND,
        "version": VERSION,
        "cluster": report.cluster,
        "run": report.run,
        "started": report.started,
        "verdict": report.verdict,
        "backend": verify.backend,
        "world_size": verify.world_size,
        "acceptance": msgspec.to_builtins(verify.acceptance),
        "collectives": msgspec.to_builtins(verify.collectives),
        "nodes": nodes,
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def parse_certificate(data: bytes, path: str) -> dict[str, Any]:
    """Return the document of a certificate. Raises InputError."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError.of("it is no JSON", file=path) from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise InputError.of("it is no certificate of `verify --for`", file=path)
    if document.get("version") != VERSION:
        seen = str(document.get("version"))[:20]
        raise InputError.of(f"it has version {seen}, and {VERSION} is known", file=path)
    nodes = document.get("nodes")
    if not isinstance(nodes, dict) or not all(isinstance(node, dict) for node in nodes.values()):
        raise InputError.of("it has no nodes", file=path)
    return document


def with_certified(fleet: Fleet, certificate: Mapping[str, Any] | None) -> Fleet:
    """Return the fleet with the fact `host.certified`; None on all nodes without a certificate."""
    added = {}
    for node in fleet.reached:
        added[node.name] = {CERTIFIED.name: _certified(fleet, certificate, node.name)}
    return fleet.with_facts(added)


def _certified(
    fleet: Fleet, certificate: Mapping[str, Any] | None, node: str
) -> Certified | Absent | None:
    if certificate is None:
        return None
    known = certificate["nodes"].get(node)
    if known is None:
        return Absent("not_certified", "the certificate does not have this node")
    if not any(_is_known(known.get(name)) for name in FACTS):
        return Absent("not_certified", "the certificate knows nothing of this node")
    differing: list[CertifiedPart] = []
    untold: list[str] = []
    for name in FACTS:
        if not _is_known(known.get(name)):
            continue
        fact = fleet.fact(node, name)
        if fact is None or isinstance(fact, Absent):
            untold.append(name)
            continue
        seen = _as_json(name, fact)
        for change in fact_changes(name, {node: known[name]}, {node: seen}):
            what = f"{name} {change.key}".strip()
            before, after = json.dumps(change.before), json.dumps(change.after)
            differing.append(CertifiedPart(what, before, after))
    started = str(certificate.get("started", ""))[:40]
    return Certified(started, tuple(differing), tuple(untold))


def _as_json(name: str, fact: Any) -> Json:
    value: Json = json.loads(encoded(fact, LONGEST))
    fields = _FIELDS.get(name)
    if fields is None or not isinstance(value, list):
        return value
    return [{key: item[key] for key in fields} for item in value if isinstance(item, dict)]


def _is_known(value: Json) -> bool:
    """Return whether a certified fact has a value: an absent one is an object with its reason."""
    return value is not None and not (isinstance(value, dict) and "absent" in value)
