"""The stages of `clusterprep diagnose` in a row, and what an inventory adds: nodes for ranks, and checks as of now."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO

from clusterprep.diagnose.model import Diagnosis, Found
from clusterprep.diagnose.prefixes import lines_of
from clusterprep.diagnose.ranking import diagnose as judge
from clusterprep.diagnose.ranking import needles
from clusterprep.diagnose.redact import redacted
from clusterprep.diagnose.sources import read
from clusterprep.model import Finding, Inventory

_RANK = re.compile(r"\brank (\d+)$")
_PLACE = re.compile(r"^(?:host|peer) (\S+)")


def diagnose(names: Sequence[str], *, stdin: BinaryIO | None = None) -> tuple[Diagnosis, frozenset[str]]:
    """Read logs and judge them; also the hosts that they name. InputError for what cannot be read, or is no text."""
    reading = read(names, needles(), stdin)
    lines = lines_of(reading.kept)
    return judge(lines, reading.lines, reading.notices), frozenset(line.host for line in lines if line.host)


def without_names(diagnosis: Diagnosis, hosts: frozenset[str]) -> Diagnosis:
    return redacted(diagnosis, hosts)


def checks_of(diagnosis: Diagnosis) -> tuple[str, ...]:
    """The checks that would have found its causes."""
    named = (found.cause.check for found in diagnosis.causes if found.severity != "benign")
    return tuple(dict.fromkeys(name for name in named if name))


def on_nodes(diagnosis: Diagnosis, inventory: Inventory) -> Diagnosis:
    """Culprits with the node that they are on: ranks by their place in the inventory, hosts by name or address."""
    first, nodes = 0, {}
    for node in inventory.nodes:
        for rank in range(first, first + (node.nproc_per_node or 1)):
            nodes[str(rank)] = node.name
        first += node.nproc_per_node or 1
    for node in inventory.nodes:
        nodes[f"@{node.address}"] = node.name
    causes = tuple(replace(found, culprit=_placed(found.culprit, nodes)) for found in diagnosis.causes)
    return replace(diagnosis, causes=causes)


def _placed(culprit: str | None, nodes: Mapping[str, str]) -> str | None:
    if culprit is None:
        return None
    if (rank := _RANK.search(culprit)) and rank[1] in nodes:
        return f"{culprit} on {nodes[rank[1]]}"
    if (place := _PLACE.match(culprit)) and f"@{place[1]}" in nodes and nodes[f"@{place[1]}"] != place[1]:
        return f"{culprit} ({nodes[f'@{place[1]}']})"
    return culprit


def as_now(diagnosis: Diagnosis, findings: Sequence[Finding]) -> Diagnosis:
    """What the related checks say today, beside each cause."""
    said: dict[str, list[str]] = {}
    for finding in findings:
        if finding.verdict != "skip":
            who = f" on {', '.join(finding.nodes)}" if finding.nodes else ""
            said.setdefault(finding.check, []).append(f"{finding.check} {finding.verdict}{who}: {finding.message}")
    return replace(diagnosis, causes=tuple(_live(found, said) for found in diagnosis.causes))


def _live(found: Found, said: Mapping[str, list[str]]) -> Found:
    return replace(found, live=tuple(said.get(found.cause.check or "", ())))
