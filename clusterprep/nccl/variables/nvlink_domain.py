"""NCCL_MNNVL_ENABLE: NVLink within nodes only, where the inventory says so."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.model.nodeset import fold
from clusterprep.nccl.variables import Basis, Derived

NAME = "NCCL_MNNVL_ENABLE"


def derive(basis: Basis) -> Iterable[Derived]:
    """Yield 0 for all nodes if one of them declares `gpus: {nvlink_domain: false}`.

    Ranks must agree on the value. Otherwise NCCL decides: it uses NVLink between nodes where NVML
    reports one cluster and clique for them.
    """
    nodes = basis.fleet.reached
    without = [node.name for node in nodes if node.gpus and node.gpus.domain is False]
    if not without or any(NAME in node.env for node in nodes):
        return
    why = f"{fold(without)} declared with `nvlink_domain: false`, and all ranks must agree"
    yield Derived(NAME, "0", basis.names, why)
