"""NCCL_NET: the network of a plug-in, where NCCL itself has none for the fabric.

With it a plug-in that does not load ends the job at once. Without it NCCL goes on over sockets.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.model import Absent
from clusterprep.nccl.plugin_fabrics import fabric_of, name_to_pin
from clusterprep.nccl.variables import Basis, Derived

NAME = "NCCL_NET"


def derive(basis: Basis) -> Iterable[Derived]:
    """Yield NCCL_NET if every node has a fabric for plug-ins, and the same plug-in for it.

    Ranks must agree on the value: if one node declares it, the inventory decides for all nodes.
    What is not known of a node's plug-ins is no gap: NCCL then chooses, as it does without us.
    """
    nodes = basis.fleet.reached
    if any(NAME in node.env or "NCCL_NET_PLUGIN" in node.env for node in nodes):
        return
    plugins = []
    fabrics = set()
    for node in nodes:
        tree = basis.fleet.fact(node.name, "pci.tree")
        found = basis.fleet.fact(node.name, "nccl.plugins")
        if isinstance(tree, Absent) or isinstance(found, Absent):
            return
        fabric = fabric_of(tree)
        if fabric is None:
            return
        fabrics.add(fabric.name)
        plugins.append(found)
    value = name_to_pin(plugins) if plugins else None
    if value is None:
        return
    why = (
        f"NCCL reaches {' and '.join(sorted(fabrics))} by its plug-in alone: "
        "without this it would go on over sockets if the plug-in does not load"
    )
    yield Derived(NAME, value, basis.names, why)
