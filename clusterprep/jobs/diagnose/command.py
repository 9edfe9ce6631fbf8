"""Runs the stages of `clusterprep diagnose`, and adds what an inventory tells: nodes and checks.

`diagnose(["rank0.log"])` returns the diagnosis and the hosts that the log names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from msgspec.structs import replace

from clusterprep.jobs.diagnose.model import DiagnosedCause, Diagnosis
from clusterprep.jobs.diagnose.plain_signs import is_plain
from clusterprep.jobs.diagnose.prefixes import lines_of
from clusterprep.jobs.diagnose.ranking import diagnose as judge
from clusterprep.jobs.diagnose.ranking import needles
from clusterprep.jobs.diagnose.records import reading as records
from clusterprep.jobs.diagnose.redact import redacted
from clusterprep.jobs.diagnose.sources import read
from clusterprep.model import Finding, Inventory, Node

_RANKS = re.compile(r"ranks? ((?:\d+(?:, | and )?)+)$")
_HOST_OR_PEER = re.compile(r"^(?:host|peer) (\S+)")


def diagnose(
    names: Sequence[str], *, stdin: BinaryIO | None = None
) -> tuple[Diagnosis, frozenset[str]]:
    """Read logs and records and return their diagnosis and the hosts that they name.

    Raises InputError for files that cannot be read, or are neither text nor a known record.
    """
    found = records.read(names, stdin)
    reading = read(found.logs, needles(), found.stdin or stdin, is_plain=is_plain)
    lines = (*lines_of(reading.kept), *found.lines)
    hosts = frozenset(line.host for line in lines if line.host)
    files = {**reading.lines, **found.files}
    notices = (*reading.notices, *found.notices)
    return judge(lines, files, notices, found), hosts


def without_names(diagnosis: Diagnosis, hosts: frozenset[str]) -> Diagnosis:
    """Return the diagnosis without names of hosts, addresses, paths and users."""
    return redacted(diagnosis, hosts)


def checks_of(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the names of the checks that would have found the causes before the start."""
    names: dict[str, None] = {}  # each once, in order
    for found in diagnosis.causes:
        check = found.cause.check
        if check and found.severity != "benign":
            names[check] = None
    return tuple(names)


# ---------------------------------------------------------------- nodes of culprits


def with_nodes(diagnosis: Diagnosis, inventory: Inventory) -> Diagnosis:
    """Return the diagnosis with the node of each culprit.

    Ranks are counted in the order of the inventory; hosts are found by address.
    """
    node_of_rank = _node_of_rank(inventory.nodes)
    node_of_address = {node.address: node.name for node in inventory.nodes}
    causes: list[DiagnosedCause] = []
    for found in diagnosis.causes:
        culprit = _with_node(found.culprit, node_of_rank, node_of_address)
        causes.append(replace(found, culprit=culprit))
    return replace(diagnosis, causes=tuple(causes))


def _node_of_rank(nodes: Sequence[Node]) -> Sequence[str]:
    """Return the name of the node of each rank. Empty if a node does not say how many it starts."""
    names: list[str] = []
    for node in nodes:
        gpus = node.gpus.used if node.gpus else None
        processes = node.nproc_per_node or gpus
        if processes is None:
            return ()
        names += [node.name] * (processes or 1)
    return names


def _with_node(
    culprit: str | None, node_of_rank: Sequence[str], node_of_address: Mapping[str, str]
) -> str | None:
    """Return a culprit such as «ranks 2 and 3» or «peer 10.0.0.2» with its nodes, if known."""
    if culprit is None:
        return None
    if ranks := _RANKS.match(culprit):
        return _ranks_with_nodes(culprit, ranks[1], node_of_rank)
    match = _HOST_OR_PEER.match(culprit)
    if match is None:
        return culprit
    address = match[1]
    node = node_of_address.get(address)
    if not node or node == address:
        return culprit
    return f"{culprit} ({node})"


def _ranks_with_nodes(culprit: str, ranks: str, node_of_rank: Sequence[str]) -> str:
    """Return the culprit with the nodes of its ranks; `ranks` is the list of them in its text."""
    nodes: dict[str, None] = {}  # each once, in order
    for digits in re.findall(r"\d+", ranks):
        rank = int(digits)
        if rank < len(node_of_rank):
            nodes[node_of_rank[rank]] = None
    if not nodes:
        return culprit
    return f"{culprit} on {', '.join(nodes)}"


# ---------------------------------------------------------------- checks of today


def with_live_checks(
    diagnosis: Diagnosis, findings: Sequence[Finding], lost: Sequence[str] = ()
) -> Diagnosis:
    """Return the diagnosis with what the related checks say today.

    `lost` are the nodes that gave no answer.
    """
    answers: dict[str, list[str]] = {}  # by check
    for finding in findings:
        if finding.verdict == "skip":
            continue
        nodes = ", ".join(finding.nodes)
        where = f" on {nodes}" if nodes else ""
        answer = f"{finding.check} {finding.verdict}{where}: {finding.message}"
        answers.setdefault(finding.check, []).append(answer)
    notices = list(diagnosis.notices)
    if lost:
        nodes = ", ".join(lost)
        notices.append(f"{nodes} not reached, so what the checks say there now is not known")
    causes: list[DiagnosedCause] = []
    for found in diagnosis.causes:
        live = answers.get(found.cause.check or "", ())
        causes.append(replace(found, live=tuple(live)))
    return replace(diagnosis, causes=tuple(causes), notices=tuple(notices))
