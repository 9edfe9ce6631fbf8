"""`check --local`: this machine as an inventory of one node, without a file and without SSH."""

from __future__ import annotations

import socket
import sys

from clusterprep.inventory.extensions import installed_extensions, with_extensions
from clusterprep.model import Inventory, Node


def local_inventory() -> Inventory:
    """Return an inventory of this machine over `transport: local`.

    Its Python is the one that runs clusterprep.
    """
    name = socket.gethostname()
    node = Node(
        name=name,
        address="127.0.0.1",
        index=0,
        transport="local",
        python=sys.executable,
    )
    inventory = Inventory(cluster=name, nodes=(node,), path="--local")
    return with_extensions(inventory, installed_extensions())
