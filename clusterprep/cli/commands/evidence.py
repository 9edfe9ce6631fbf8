"""Asks nodes for evidence, for `bundle` and before an apply reboots them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from clusterprep import __version__
from clusterprep.changes.planner import ChangePlan
from clusterprep.cli import exit_codes
from clusterprep.cli.commands.report import survey_report
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import Survey
from clusterprep.fabric import execute
from clusterprep.fabric.fleet import Fleet
from clusterprep.fabric.printed import unchanged
from clusterprep.fabric.results import Outcome
from clusterprep.model import Node
from clusterprep.model.nodeset import fold
from clusterprep.remote.transports import Transport, transports_for
from clusterprep.remote.transports.ssh import SshTransport
from clusterprep.reports.bundle import archive
from clusterprep.reports.bundle.contents import (
    MOST_NODES,
    Material,
    NodeEvidence,
    contents_of,
)
from clusterprep.reports.bundle.index_page import with_index
from clusterprep.reports.bundle.node_answers import NodeReader, answers_of
from clusterprep.reports.bundle.node_program import SECONDS, program_for
from clusterprep.reports.bundle.sources import LAST, Source, of_node, sources_for
from clusterprep.runtime.deadline import Deadline

# Seconds for all nodes that are asked at once, longer than any of them works.
PATIENCE = SECONDS + LAST.seconds + 60
FOLDER = "evidence"  # in the state folder
KEPT = 20  # archives there


def ask_nodes(
    invocation: Invocation, names: Sequence[str], sources: tuple[Source, ...]
) -> tuple[tuple[NodeEvidence, ...], Mapping[str, Outcome], bool]:
    """Return what these nodes answered, in this order, and how the program ended on each.

    The last value is True if the time was over before all of them had.
    """
    by_name = {node.name: node for node in invocation.inventory.nodes}
    nodes = tuple(by_name[name] for name in names)
    asked = {node.name: of_node(sources, node) for node in nodes}
    readers = {name: NodeReader(asked[name]) for name in names}

    def hear(node: str, stream: str, text: str) -> None:
        if stream == "out":
            readers[node].feed(text)

    outcomes: Mapping[str, Outcome] = {}
    timed_out = True
    if not invocation.deadline.over:
        limit = float(PATIENCE * math.ceil(len(nodes) / invocation.settings.forks))
        watch: Any = invocation.watch
        if invocation.deadline.end is not None:
            limit = min(limit, max(invocation.deadline.end - time.monotonic(), 0.0))
        with Deadline(limit) as deadline:
            fleet = Fleet(
                nodes=nodes,
                transports=_transports(invocation, nodes),
                password=invocation.password,
                forks=invocation.settings.forks,
                watch=watch,
                deadline=deadline,
            )
            outcomes, timed_out = execute.run_programs(
                fleet, lambda node: program_for(asked[node.name]), hear
            )
    evidence = []
    for name in names:
        answers = answers_of(asked[name], readers[name], outcomes.get(name))
        evidence.append(NodeEvidence(name, answers))
    return tuple(evidence), outcomes, timed_out


def _transports(invocation: Invocation, nodes: tuple[Node, ...]) -> dict[str, Transport]:
    """Return transports for a second login, which are closed before those of the command.

    That over SSH knows the keys that were unlocked for the first.
    """
    inventory = replace(invocation.inventory, nodes=nodes)
    transports = transports_for(inventory, lambda prompt: "")
    first = invocation.transports.get("ssh")
    if "ssh" in transports and isinstance(first, SshTransport):
        transports["ssh"] = first.twin()
    return transports


# ---------------------------------------------------------------- before a reboot


def keep_before_reboot(invocation: Invocation, surveyed: Survey, change_plan: ChangePlan) -> None:
    """Write a bundle of the nodes that a plan reboots, and note for the report where it is.

    What a kernel and a driver know of a fault is gone with the reboot. A failure is noted, and
    stops nothing.
    """
    names = change_plan.rebooted
    chosen, left = names[:MOST_NODES], names[MOST_NODES:]
    sources = sources_for(invocation.inventory, names=False)
    evidence, _, _ = ask_nodes(invocation, chosen, sources)
    code = exit_codes.findings_code(surveyed.findings, invocation.settings.strict)
    secret = invocation.password(invocation.inventory.nodes[0])  # one password is for all nodes
    material = Material(
        report=survey_report(invocation, code, surveyed),
        tool=__version__,
        inventory=invocation.inventory,
        evidence=evidence,
        not_asked=left,
        without_password=unchanged if secret is None else secret.filter.text,
    )
    folder = invocation.runs.path.parent / FOLDER
    path = folder / f"{invocation.run}.tar.gz"
    contents = contents_of(material, redact=False)
    problem = _make(folder)
    if not problem:
        seconds = int(invocation.started.timestamp())
        problem = archive.write(path, contents.name, with_index(contents), seconds)
    if problem:
        invocation.notices.append(f"no evidence from before the reboot is kept: {problem}")
        return
    _forget_old(folder)
    invocation.notices.append(f"evidence of {fold(chosen)} from before the reboot: {path}")


def _make(folder: Path) -> str:
    """Make a folder that only its owner may read. Return "", or why that failed."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return ""


def _forget_old(folder: Path) -> None:
    """Remove the oldest archives: names of runs sort by time."""
    for path in sorted(folder.glob("*.tar.gz"))[:-KEPT]:
        with suppress(OSError):
            path.unlink()
