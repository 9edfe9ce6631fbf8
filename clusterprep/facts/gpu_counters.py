"""Counters of each GPU that tell by their growth: what a run leaves for the next one to compare."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact
from clusterprep.facts.counters import Counters
from clusterprep.facts.gpu import NO_GPU, columns, nvml_read, refusal
from clusterprep.facts.nvlink import LinkErrors, parse_link_errors
from clusterprep.model import Absent

CORRECTED = "ecc corrected"
HELD = "held down by "  # and the limit: nanoseconds
_FIELDS = ("uuid", "ecc_corrected", "violations", "links", "link_errors")


@functools.lru_cache(maxsize=1024)
def link_counter(link: int, kind: str) -> str:
    """Return the name of a counter of a link."""
    return f"link {link} {kind}"


def parse_counters(answer: Mapping[str, Any] | None) -> Counters | Absent:
    """Return the counters by UUID and name, those that NVML refuses left out."""
    if answer is None:
        return NO_GPU
    counters = {}
    for row in answer["gpus"]:
        if "no" not in row and isinstance(row["uuid"], str):
            counters[row["uuid"]] = _counters_of(row)
    return counters


def _counters_of(row: Mapping[str, Any]) -> Mapping[str, int]:
    counters: dict[str, int] = {}
    if isinstance(row["ecc_corrected"], int):
        counters[CORRECTED] = row["ecc_corrected"]
    for limit, nanoseconds in row["violations"].items():
        if isinstance(nanoseconds, int):
            counters[HELD + limit] = nanoseconds
    if refusal(row["links"]) is None:
        errors = parse_link_errors(row)
        if isinstance(errors, LinkErrors):
            for link, kinds in errors.links.items():
                for kind, count in kinds.items():
                    counters[link_counter(link, kind)] = count
    return _shared(tuple(counters.items()))


@functools.lru_cache(maxsize=256)
def _shared(counters: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    """Return the counters as a mapping, which is one for GPUs that count the same."""
    return dict(counters)


def _narrow(answer: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {"gpus": columns(answer, *_FIELDS)}


COUNTERS = Fact("gpu.counters", nvml_read, parse_counters, narrow=_narrow, moves=True)
