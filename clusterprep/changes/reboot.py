"""Waits for nodes that reboot, until each one is back with another boot id.

A rebooted node has a new agent, accepted by its boot id alone. The lock was lost with the old agent
and is taken again. Another run may have reached this node in between; the other nodes refuse it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from clusterprep.changes.agents import Agents
from clusterprep.errors import LinkLost, Unreached
from clusterprep.model import Node
from clusterprep.runtime.clock import running_seconds

PAUSE = 1.0  # seconds between two tries to log in
SLOW = 10.0  # seconds for reading one small file
_READ = ["file", ["/proc/sys/kernel/random/boot_id"], 5.0]


def boot_ids(agents: Agents, names: Iterable[str]) -> dict[str, str]:
    """Return the boot id of each of these nodes, empty if a node does not answer."""
    bodies = {name: {"reads": [_READ]} for name in names}
    found = {}
    for name, answer in agents.ask("look", bodies, SLOW).items():
        found[name] = "" if isinstance(answer, LinkLost) else _boot_id(answer)
    return found


def _boot_id(answer: Mapping[str, object]) -> str:
    """Return the boot id of an agent's answer, empty if it has none."""
    rows = answer.get("answers")
    if not isinstance(rows, list) or not rows:
        return ""
    first = rows[0]
    if not isinstance(first, list) or len(first) < 2 or first[0] != "ok":
        return ""
    return str(first[1]).strip()


def wait_for(
    agents: Agents,
    nodes: Mapping[str, Node],
    limits: Mapping[str, float],
    before: Mapping[str, str],
) -> dict[str, str]:
    """Log in again to nodes that reboot, each within its limit in seconds.

    Returns the nodes that are not back, or did not reboot, with the reason. `before` has the boot
    ids from before the reboot.
    """
    missing: dict[str, str] = {}

    def wait(node: Node) -> None:
        limit = limits[node.name]
        old_id = before.get(node.name, "")
        why = _wait_for_node(agents, node, running_seconds() + limit, old_id)
        if why:
            missing[node.name] = f"{why}, {limit:g} s after it was told to go down"

    agents.each(nodes.values(), wait)
    return missing


def _wait_for_node(agents: Agents, node: Node, until: float, old_id: str) -> str:
    """Return an empty text once the node is back, else why it is not back in time."""
    why = "it did not go down"
    while running_seconds() < until:
        time.sleep(PAUSE)
        try:
            link = agents.redial(node)
            new_id = _boot_id(link.request("look", SLOW, reads=[_READ]))
        except Unreached as error:
            why = f"it is not back: {error.message}"
            continue
        if new_id and new_id != old_id:
            return ""
        why = "it did not go down: its boot id is the same"
    return why
