"""The stages of `clusterprep diagnose` in a row, and what an inventory adds: nodes for ranks, and checks as of now."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO

from clusterprep.jobs.diagnose.model import Diagnosis, Found
from clusterprep.jobs.diagnose.prefixes import lines_of
from clusterprep.jobs.diagnose.ranking import diagnose as judge
from clusterprep.jobs.diagnose.ranking import needles
from clusterprep.jobs.diagnose.redact import redacted
from clusterprep.jobs.diagnose.sources import read
from clusterprep.model import Finding, Inventory, Node

_RANKS = re.compile(r"ranks? ((?:\d+(?:, | and )?)+)$")
_PLACE = re.compile(r"^(?:host|peer) (\S+)")


def diagnose(
    names: Sequence[str], *, stdin: BinaryIO | None = None
) -> tuple[Diagnosis, frozenset[str]]:
    """Read logs and judge them; also the hosts that they name. InputError for what cannot be read, or is no text."""
    reading = read(names, needles(), stdin)
    lines = lines_of(reading.kept)
    return judge(lines, reading.lines, reading.notices), frozenset(
        line.host for line in lines if line.host
    )


def without_names(diagnosis: Diagnosis, hosts: frozenset[str]) -> Diagnosis:
    return redacted(diagnosis, hosts)


def checks_of(diagnosis: Diagnosis) -> tuple[str, ...]:
    """The checks that would have found its causes."""
    named = (found.cause.check for found in diagnosis.causes if found.severity != "benign")
    return tuple(dict.fromkeys(name for name in named if name))


def on_nodes(diagnosis: Diagnosis, inventory: Inventory) -> Diagnosis:
    """Culprits with the node that they are on: ranks by their place in the inventory, hosts by name or address."""
    ranks = _ranks(inventory.nodes)
    places = {node.address: node.name for node in inventory.nodes}
    causes = tuple(
        replace(found, culprit=_placed(found.culprit, ranks, places)) for found in diagnosis.causes
    )
    return replace(diagnosis, causes=causes)


def _ranks(nodes: Sequence[Node]) -> Sequence[str]:
    """The node of each rank, in the order of the inventory; none where a node does not say how many it starts."""
    shares = [node.nproc_per_node or (node.gpus.used if node.gpus else None) for node in nodes]
    if None in shares:
        return ()
    return [node.name for node, share in zip(nodes, shares, strict=True) for _ in range(share or 1)]


def _placed(culprit: str | None, ranks: Sequence[str], places: Mapping[str, str]) -> str | None:
    if culprit is None:
        return None
    if found := _RANKS.match(culprit):
        numbers = [int(number) for number in re.findall(r"\d+", found[1])]
        nodes = dict.fromkeys(ranks[number] for number in numbers if number < len(ranks))
        return f"{culprit} on {', '.join(nodes)}" if nodes else culprit
    place = _PLACE.match(culprit)
    name = places.get(place[1]) if place else None
    return f"{culprit} ({name})" if place and name and name != place[1] else culprit


def as_now(
    diagnosis: Diagnosis, findings: Sequence[Finding], lost: Sequence[str] = ()
) -> Diagnosis:
    """What the related checks say today, beside each cause; `lost` are nodes that gave no answer."""
    said: dict[str, list[str]] = {}
    for finding in findings:
        if finding.verdict != "skip":
            who = f" on {', '.join(finding.nodes)}" if finding.nodes else ""
            said.setdefault(finding.check, []).append(
                f"{finding.check} {finding.verdict}{who}: {finding.message}"
            )
    notices = (
        [f"{', '.join(lost)} not reached, so what the checks say there now is not known"]
        if lost
        else []
    )
    causes = tuple(_live(found, said) for found in diagnosis.causes)
    return replace(diagnosis, causes=causes, notices=(*diagnosis.notices, *notices))


def _live(found: Found, said: Mapping[str, list[str]]) -> Found:
    return replace(found, live=tuple(said.get(found.cause.check or "", ())))
