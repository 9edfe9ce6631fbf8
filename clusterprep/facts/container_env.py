"""Which files of podman give variables to every container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Inventory, Node, Read


def parse_defaults(answer: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the line at which each file that sets `env` begins to; 0 for an empty list."""
    return {str(path): int(line) for path, line in answer.items()}


def _reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    # A tree below `root:` is no system that starts containers; its files are looked at there.
    root = "" if node.root == "/" else node.root
    return (Read("container_defaults", (root,)),)


DEFAULTS = Fact("env.container_defaults", _reads, parse_defaults)
