"""Compares the command lines of launchers that the nodes of a job were started with.

torchrun, torch.distributed.launch and accelerate are started once on each node. Most of their
arguments must be equal on all nodes, and the rank of the node different.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import Culprits, Evidence, LogFile, LogLine, Weight

NEEDLES = ("torchrun ", "torch.distributed.run ", "torch.distributed.launch ", "accelerate launch ")
_LAUNCHER = re.compile(
    r"(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate launch) ", re.IGNORECASE
)
# A value that begins with $ is one that the shell had not replaced yet.
_ARGUMENT = re.compile(
    r"--(?P<name>[a-z][a-z_-]{1,30})[= ](?P<value>[\w.\[\]][\w.:\[\]-]*)", re.IGNORECASE
)
_NAMES = {  # those of accelerate, as torchrun calls them
    "num_machines": "nnodes",
    "machine_rank": "node_rank",
    "main_process_ip": "master_addr",
    "main_process_port": "master_port",
}
_EQUAL = ("nnodes", "master_addr", "master_port", "rdzv_endpoint", "rdzv_id", "rdzv_backend")

_Arguments = dict[str, str]
_Nodes = dict[str, tuple[LogLine, _Arguments]]  # by host, or by file where no host is known


def contradictions(log: LogFile) -> Iterator[Evidence]:
    """Yield command lines of nodes that cannot belong to one job."""
    nodes = _nodes(log)
    if len(nodes) < 2:
        return
    for name in _EQUAL:
        yield from _unequal(name, nodes)
    yield from _same_rank(nodes)


def _nodes(log: LogFile) -> _Nodes:
    """Return the command line of each node of a job of several.

    A node that was started in different ways is left out: those are several jobs.
    """
    nodes: _Nodes = {}
    unclear: set[str] = set()
    for line in log.lines_with(*NEEDLES):
        launcher = _LAUNCHER.search(line.message)
        if launcher is None:
            continue
        arguments = _arguments(line.message[launcher.end() :])
        if arguments.get("nnodes", "1") in {"1", "1:1"}:
            continue
        place = line.host or line.file
        known = nodes.setdefault(place, (line, arguments))
        if known[1] != arguments:
            unclear.add(place)
    return {place: node for place, node in nodes.items() if place not in unclear}


def _arguments(text: str) -> _Arguments:
    arguments: _Arguments = {}
    for match in _ARGUMENT.finditer(text):
        name = match["name"].lower().replace("-", "_")
        name = _NAMES.get(name, name)
        if name in _EQUAL or name == "node_rank":
            arguments.setdefault(name, match["value"])
    return arguments


def _unequal(name: str, nodes: _Nodes) -> Iterator[Evidence]:
    """Yield nodes with different values of an argument that must be equal."""
    places: dict[str, list[str]] = {}  # by value
    for place, (_, arguments) in nodes.items():
        if name in arguments:
            places.setdefault(arguments[name], []).append(place)
    if len(places) < 2:
        return
    parts = [f"{value} on {' and '.join(names)}" for value, names in places.items()]
    note = f"the nodes have different --{name}: {', '.join(parts)}"
    usual = max(places.values(), key=len)
    told = [place for names in places.values() for place in names]
    odd = told
    if 2 * len(usual) > len(told):
        odd = [place for place in told if place not in usual]
    yield from _blamed(odd, nodes, note)


def _same_rank(nodes: _Nodes) -> Iterator[Evidence]:
    """Yield nodes that have the same rank. With an endpoint torchrun numbers the nodes itself."""
    places: dict[str, list[str]] = {}  # by rank
    for place, (_, arguments) in nodes.items():
        if "node_rank" in arguments and "rdzv_endpoint" not in arguments:
            places.setdefault(arguments["node_rank"], []).append(place)
    for rank, names in places.items():
        if len(names) == 2:
            note = f"two nodes have the node rank {rank}: {names[0]} and {names[1]}"
            yield from _blamed(names, nodes, note)


def _blamed(places: list[str], nodes: _Nodes, note: str) -> Iterator[Evidence]:
    for place in places:
        line, _ = nodes[place]
        kind = "host" if line.host else "file"
        if len(places) == 2:
            kind = f"{kind}s"
        culprits: Culprits = ((kind, place),)
        yield Evidence("rendezvous_misconfigured", line, Weight.LIKELY, culprits, note)
