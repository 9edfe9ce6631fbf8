"""A floor for `check`: its own transport and agent, asked what it asks. The answers are dropped."""

from __future__ import annotations

import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clusterprep.model import Node
from clusterprep.remote.transports.link import Link, open_link
from clusterprep.remote.transports.ssh import SshTransport

LIMIT = 60.0  # seconds for any answer
WIDTH = 64  # nodes at once, as in `--forks`


def main(job: str, count: str = "") -> int:
    """Read the job that fanout.py wrote.

    An inventory, what to ask each of its nodes, and which node to dial.

    With a count only so many of the nodes, to tell what starting up costs.
    """
    told = pickle.loads(Path(job).read_bytes())  # noqa: S301 - written a moment ago
    nodes, transport, links = told["nodes"][: int(count or len(told["nodes"]))], SshTransport(), {}

    def look(node: Node) -> None:
        link = open_link(transport, node, told["parts"], lambda node: None)
        for _ in range(told["pings"]):
            link.request("ping", LIMIT)
        link.request("look", LIMIT, reads=told["looks"][node.name])
        links[node.name] = link

    with ThreadPoolExecutor(WIDTH) as pool:
        list(pool.map(look, nodes))
    dial(links[nodes[0].name], [links[node.name] for node in nodes[1:]], told)
    return 0


def dial(first: Link, others: list[Link], told: dict[str, dict[str, object]]) -> None:
    """One listens, all others dial it."""
    first.request("listen", LIMIT, **told["listen"])
    numbers = [link.send("dial", **told["dial"]) for link in others]
    for link, number in zip(others, numbers, strict=True):
        link.receive(number, LIMIT)


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]))  # without farewell: the agents end with their connections
