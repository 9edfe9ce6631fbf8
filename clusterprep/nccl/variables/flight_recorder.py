"""Switches on torch's flight recorder, where the inventory has a folder for its dumps.

The recorder keeps the last collectives of a rank and writes them when one of any rank times out.
`clusterprep diagnose` reads these dumps. Names and defaults are those of nccl_variables.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusterprep.facts.torch import Torch
from clusterprep.model import Absent, Node
from clusterprep.model.versions import leading_numbers
from clusterprep.nccl.variables import Basis, Derived, ValueAndReason, grouped

CALLS = 2000  # that are kept: the default of torch 2.11, where the recorder is on
SIZE_RENAMED = (2, 8)
PREFIX_RENAMED = (2, 15)
SIZES = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
PREFIXES = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.-]")


def derive(basis: Basis) -> Iterable[Derived]:
    """Yield the values for nodes with a folder, under the names that their torch reads."""
    values: dict[str, dict[str, ValueAndReason]] = {}
    job = _UNUSUAL.sub("-", basis.fleet.inventory.cluster)
    for node in basis.fleet.reached:
        if node.flight_recorder is None:
            continue
        version = _version(basis.fleet.fact(node.name, "torch.build"))
        for name, value in _values(node, version, job).items():
            values.setdefault(name, {})[node.name] = (value, _why(name))
    for name, by_node in values.items():
        yield from grouped(name, by_node)


def _values(node: Node, version: tuple[int, ...], job: str) -> dict[str, str]:
    size = SIZES[version >= SIZE_RENAMED]
    prefix = PREFIXES[version >= PREFIX_RENAMED]
    # torch puts the rank behind the prefix.
    return {
        size: str(CALLS),
        ON_TIMEOUT: "1",
        prefix: f"{node.flight_recorder}/{job}_rank_",
    }


def _why(name: str) -> str:
    if name in SIZES:
        return "the flight recorder keeps so many calls of each rank"
    if name in PREFIXES:
        return "declared as flight_recorder; torch adds the rank"
    return "the flight recorder is written when a collective times out"


def _version(build: Torch | Absent) -> tuple[int, ...]:
    """Return the version of torch. Newer ones read old names too, so not to know it is no harm."""
    if isinstance(build, Absent) or build.version is None:
        return ()
    return leading_numbers(build.version)[:2]
