"""What the stress tier measured on a node, and what DCGM's diagnostics said there.

The stage `stress` of `check --stress` brings both; without it nothing is loaded and nothing known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from clusterprep.facts import Fact
from clusterprep.model import Absent
from clusterprep.remote.untrusted import shortened


class FailedTest(Struct, frozen=True):
    """A test without a value.

    `kind` is "wrong" if the device answered with an error, "hung" if the test was ended at its
    limit, "room" for too little memory, and "missing" if there is nothing that could run it.
    """

    kind: str
    text: str


class DeviceResult(Struct, frozen=True):
    """What one process measured: on a GPU by NVML's index, or on the processor (None).

    `values` by name: gemm in TFLOP/s; copy, to_device and to_host in GB/s. `failed` by test.
    """

    index: int | None
    model: str
    values: Mapping[str, float] = field(default_factory=dict)
    checksum: str = ""
    repeated: int = 0
    differing: int = 0
    failed: Mapping[str, FailedTest] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "CPU" if self.index is None else f"GPU {self.index}"


class StressResults(Struct, frozen=True):
    """What the stress tier measured on a node.

    `pairs` has GB/s by «GPU 0 to GPU 1», `stream` GB/s of the host's memory, `torch` the build that
    measured.
    """

    devices: tuple[DeviceResult, ...]
    torch: str = ""
    pairs: Mapping[str, float] = field(default_factory=dict)
    stream: float | None = None
    threads: int = 0
    failed: Mapping[str, FailedTest] = field(default_factory=dict)  # of the host's own tests


# ---------------------------------------------------------------- DCGM


class DiagnosticTest(Struct, frozen=True):
    """One test of DCGM: its verdict, the entities that have it, and what is said about them."""

    name: str
    status: str  # pass, fail, warn, skip
    entities: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


class Diagnostics(Struct, frozen=True):
    """The tests of one run of `dcgmi diag` at a level."""

    level: int
    tests: tuple[DiagnosticTest, ...]
    version: str = ""


# What DCGM's releases call the document, 3 and 4.
ROOTS = ("DCGM GPU Diagnostic", "DCGM Diagnostic")
STATUSES = {"pass": "pass", "fail": "fail", "warn": "warn", "skip": "skip", "skipped": "skip"}
MOST_TESTS = 10_000


def parse_diagnostics(level: int, answer: Mapping[str, Any] | None) -> Diagnostics | Absent:
    """Return what `dcgmi diag -r LEVEL -j` found.

    DCGM prints warnings before the document, and leaves `null` among its tests. It exits with a
    code other than 0 also where it has only found a fault, so the document counts.
    """
    if answer is None:
        return Absent("missing_tool", "dcgmi is not installed")
    text = str(answer["out"])
    start = text.find("{")
    if start < 0:
        said = " ".join((text + str(answer["err"])).split())
        return Absent("garbled", f"dcgmi ended with {answer['code']}: {shortened(said)}")
    document, _ = json.JSONDecoder().raw_decode(text[start:])
    for name in ROOTS:
        root = document.get(name)
        if root:
            break
    else:
        raise ValueError("no diagnostic of DCGM")
    if root.get("runtime_error"):
        return Absent("could not run", shortened(root["runtime_error"]))
    tests = tuple(_tests(root.get("test_categories") or ()))
    if len(tests) > MOST_TESTS:
        raise ValueError("more tests than DCGM has")
    if not tests:
        return Absent("could not run", "DCGM ran no test")
    metadata = document.get("metadata") or {}
    version = root.get("version") or metadata.get("version") or metadata.get("DCGM Version") or ""
    return Diagnostics(level, tests, shortened(version, 40))


def _tests(categories: Iterable[Any]) -> Iterator[DiagnosticTest]:
    """Yield each test once for each verdict that its results have."""
    for category in categories:
        for test in (category or {}).get("tests") or ():
            if test is not None:
                yield from _verdicts_of(test)


def _verdicts_of(test: Mapping[str, Any]) -> Iterator[DiagnosticTest]:
    rows = list(test.get("results") or ())
    summary = test.get("test_summary")
    if not rows and summary:
        rows = [summary]
    entities: dict[str, list[str]] = {}
    said: dict[str, dict[str, None]] = {}
    for row in rows:
        word = str(row.get("status", "")).lower()
        status = STATUSES.get(word, "skip")
        entities.setdefault(status, []).extend(_entities(row))
        texts = [*(row.get("warnings") or ()), *(row.get("info") or ())]
        for text in texts:
            warning = text.get("warning", "") if isinstance(text, dict) else text
            said.setdefault(status, {})[shortened(str(warning), 200)] = None
    for status, names in entities.items():
        words = tuple(said.get(status, ()))
        yield DiagnosticTest(shortened(str(test["name"]), 80), status, tuple(names), words)


def _entities(row: Mapping[str, Any]) -> list[str]:
    """Return the names of what a row is about: «GPU 3»; none for the whole node."""
    if row.get("entity_id") is not None:
        return [f"{row.get('entity_group', 'GPU')} {row['entity_id']}"]
    numbers = row.get("gpu_id", row.get("gpu_ids"))
    if numbers is None:
        return []
    return [f"GPU {number}" for number in str(numbers).split(",")]


RESULTS = Fact("stress.results", stage="stress", moves=True)
DIAGNOSTICS = Fact("stress.dcgm", stage="stress", moves=True)
