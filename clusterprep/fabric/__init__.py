"""Fabric on the nodes of an inventory, and what `exec`, `copy` and `fetch` do with it.

from clusterprep.fabric import Cluster

This package alone imports Fabric. Imports `inventory` and what stands before it. Begin with
`cluster`, and with `connection`, which puts Fabric on our own SSH.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterprep.fabric.cluster import Cluster

__all__ = ["Cluster"]


def __getattr__(name: str) -> object:
    """Import Cluster when it is asked for: parts of this package need no Fabric."""
    if name != "Cluster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from clusterprep.fabric.cluster import Cluster

    return Cluster
