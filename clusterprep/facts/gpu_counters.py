"""Counters of each GPU that tell by their growth: what a run leaves for the next one to compare."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from clusterprep.facts import Fact
from clusterprep.facts.counters import Counters
from clusterprep.facts.gpu import (
    IN_PIECES,
    NO_GPU,
    columns,
    nvml_read,
    refusal,
    without_uuids,
)
from clusterprep.facts.nvlink import errors_by_link
from clusterprep.facts.parts import read_once
from clusterprep.model import Absent

CORRECTED = "ecc corrected"
HELD = "held down by "  # and the limit: nanoseconds
_COUNTED = ("ecc_corrected", "violations", "links", "link_errors")


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
            counted = {field: row[field] for field in _COUNTED if field in row}
            counters[row["uuid"]] = _counters_of(counted)
    return counters


@read_once
def _counters_of(row: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the counters of one GPU from the fields _COUNTED."""
    counters: dict[str, int] = {}
    if isinstance(row["ecc_corrected"], int):
        counters[CORRECTED] = row["ecc_corrected"]
    for limit, nanoseconds in row["violations"].items():
        if isinstance(nanoseconds, int):
            counters[HELD + limit] = nanoseconds
    if refusal(row["links"]) is None:
        errors = errors_by_link((row["links"], row["link_errors"]))
        if not isinstance(errors, Absent):
            for link, kinds in errors.items():
                for kind, count in kinds.items():
                    counters[link_counter(link, kind)] = count
    return counters


def _narrow(answer: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {"gpus": columns(answer, "uuid", *_COUNTED)}


def _with_uuids(counters: Counters, uuids: Sequence[str]) -> Counters:
    return {uuids[int(place)]: of_gpu for place, of_gpu in counters.items()}


COUNTERS = Fact(
    "gpu.counters",
    nvml_read,
    parse_counters,
    narrow=without_uuids(_narrow),
    pieces=IN_PIECES,
    with_own=_with_uuids,
    moves=True,
)
