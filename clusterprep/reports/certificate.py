"""The certificate of an acceptance: what the nodes were made of, and what they reached. Pure.

A JSON document that another day's answers can be compared with. It is signed beside the file, as
`ssh-keygen -Y sign` does, so its bytes are its text and nothing has to be put into an order first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clusterprep.errors import InputError
from clusterprep.history.compare import fact_changes
from clusterprep.model import Absent, Finding, Fleet, Json, Report
from clusterprep.model.history import FactChange
from clusterprep.model.nodeset import fold
from clusterprep.remedies import shell_line
from clusterprep.reports.json_report import json_of

KIND = "clusterprep certificate"
VERSION = 1
LARGEST = 64 << 20  # bytes; a node takes some 10 KB
CHECK = "host.certified"
WANTED = "what the certificate says"
REMEDY = shell_line(
    "clusterprep verify INVENTORY --for 30m   # if the change is meant, certify the nodes anew"
)
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
        facts = {name: snapshot.facts.get(name) for name in FACTS}
        nodes[snapshot.node] = {name: _certified(name, fact) for name, fact in facts.items()}
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
        "acceptance": json_of(verify.acceptance),
        "collectives": json_of(verify.collectives),
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


def certified_findings(certificate: Mapping[str, Any], fleet: Fleet) -> tuple[Finding, ...]:
    """Return how the nodes that were reached differ from what was certified.

    A node of which the certificate knows nothing, or that does not tell a fact today, is unknown.
    """
    known: Mapping[str, Mapping[str, Json]] = certificate["nodes"]
    found: list[Finding] = []
    differing: set[str] = set()
    for fact in FACTS:
        before, after = _both(fact, known, fleet)
        for change in fact_changes(fact, before, after):
            found.append(_difference(change))
            differing.update(change.nodes)
    strange = tuple(node.name for node in fleet.reached if node.name not in known)
    if strange:
        found.append(_unknown(strange, "the certificate does not have this node"))
    silent = tuple(node.name for node in fleet.reached if _is_silent(known, fleet, node.name))
    if silent:
        found.append(_unknown(silent, "today it does not tell all that was certified"))
    same = [node.name for node in fleet.reached if node.name not in {*strange, *silent, *differing}]
    if same:
        found.append(_same(tuple(same), str(certificate.get("started", ""))[:40]))
    return tuple(found)


def _certified(name: str, fact: Any) -> Json:
    value = json_of(fact)
    fields = _FIELDS.get(name)
    if fields is None or not isinstance(value, list):
        return value
    return [{field: item[field] for field in fields} for item in value if isinstance(item, dict)]


def _both(
    fact: str, known: Mapping[str, Mapping[str, Json]], fleet: Fleet
) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return one fact by node, as certified and as it is today, where both are known."""
    before: dict[str, Json] = {}
    after: dict[str, Json] = {}
    for node in fleet.reached:
        old = known.get(node.name, {}).get(fact)
        new = fleet.fact(node.name, fact)
        if _is_known(old) and not isinstance(new, Absent):
            before[node.name] = old
            after[node.name] = _certified(fact, new)
    return before, after


def _is_known(value: Json) -> bool:
    return value is not None and not (isinstance(value, dict) and "absent" in value)


def _is_silent(known: Mapping[str, Mapping[str, Json]], fleet: Fleet, node: str) -> bool:
    """Return whether something that was certified of a node is not known today."""
    for fact in FACTS:
        was_known = _is_known(known.get(node, {}).get(fact))
        if was_known and isinstance(fleet.fact(node, fact), Absent):
            return True
    return False


def _difference(change: FactChange) -> Finding:
    what = f"{change.fact}.{change.key}".rstrip(".")
    seen = json.dumps(change.after)
    wanted = json.dumps(change.before)
    return Finding(
        check=CHECK,
        verdict="fail",
        severity="warning",
        nodes=change.nodes,
        message=f"{what} is {seen}, and {wanted} was certified",
        seen=seen,
        wanted=wanted,
        remedy=REMEDY,
    )


def _unknown(nodes: tuple[str, ...], why: str) -> Finding:
    return Finding(
        check=CHECK,
        verdict="unknown",
        severity="warning",
        nodes=nodes,
        message=f"{fold(nodes)}: {why}",
        wanted=WANTED,
        reason="not certified",
    )


def _same(nodes: tuple[str, ...], started: str) -> Finding:
    return Finding(
        check=CHECK,
        verdict="pass",
        severity="warning",
        nodes=nodes,
        message=f"as certified on {started}",
        wanted=WANTED,
    )
