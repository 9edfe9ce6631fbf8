"""Nodes that went down on purpose: waits until each is back with another boot id."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from clusterprep.errors import LinkLost, Unreached
from clusterprep.model import Node
from clusterprep.runtime.clock import running_seconds
from clusterprep.survey.fanout import Fanout

PAUSE = 1.0  # seconds between two tries to log in
SLOW = 10.0  # seconds for the one small file
_READ = ["file", ["/proc/sys/kernel/random/boot_id"], 5.0]


def boot_ids(fanout: Fanout, names: Iterable[str]) -> dict[str, str]:
    """The boot id of each of these nodes, empty for one that does not say."""
    answers = fanout.ask("look", {name: {"reads": [_READ]} for name in names}, SLOW)
    return {
        name: "" if isinstance(answer, LinkLost) else _boot_id(answer)
        for name, answer in answers.items()
    }


def _boot_id(answer: Mapping[str, object]) -> str:
    rows = answer.get("answers")
    row = rows[0] if isinstance(rows, list) and rows else None
    return str(row[1]).strip() if isinstance(row, list) and len(row) > 1 and row[0] == "ok" else ""


def wait_for(
    fanout: Fanout,
    nodes: Mapping[str, Node],
    limits: Mapping[str, float],
    before: Mapping[str, str],
) -> dict[str, str]:
    """Log in again to nodes that go down; why one is not back, or not by a new start, when its limit has passed."""
    missing: dict[str, str] = {}

    def wait(node: Node) -> None:
        why = _waited(
            fanout, node, running_seconds() + limits[node.name], before.get(node.name, "")
        )
        if why:
            missing[node.name] = f"{why}, {limits[node.name]:g} s after it was told to go down"

    fanout.each(nodes.values(), wait)
    return missing


def _waited(fanout: Fanout, node: Node, until: float, before: str) -> str:
    why = "it did not go down"
    while running_seconds() < until:
        time.sleep(PAUSE)
        try:
            now = _boot_id(fanout.redial(node).request("look", SLOW, reads=[_READ]))
        except Unreached as error:
            why = f"it is not back: {error.message}"
            continue
        if now and now != before:
            return ""
        why = "it did not go down: its boot id is the same"
    return why
