"""What was sampled on one node while a job loaded it, and what its agent's answer means. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from clusterprep.facts import Fact
from clusterprep.facts.gpu import refusal, require_rows
from clusterprep.facts.gpu import require_number as require_whole
from clusterprep.facts.gpu_counters import COUNTERS
from clusterprep.facts.gpu_health import ECC, ECC_CORRECTED
from clusterprep.facts.nvlink import ERRORS, links_up
from clusterprep.facts.pci import PciLink, parse_link
from clusterprep.model import Absent, Read
from clusterprep.remote.untrusted import require_device_name, require_number, shortened

MOST_SAMPLES = 80  # of a node; an agent of ours keeps 64
MOST_GPUS = 64
MOST_NAMES = 4096  # of interfaces
# Facts that the totals of GPUs tell, the fields that they take, and those not asked again.
COUNTED = (COUNTERS, ECC, ECC_CORRECTED, ERRORS)
COUNTED_FIELDS = ("uuid", "ecc_volatile", "ecc_corrected", "violations", "links", "link_errors")
NOT_ASKED_AGAIN = ("sram", "ecc_aggregate", "ecc_corrected_ever")


class SampledGpu(Struct, frozen=True):
    """A GPU by NVML's index: its address, model, highest SM clock in MHz and slowdown in °C."""

    index: int
    pci: str
    model: str
    clock_max: int | None
    slowdown: int | None


class GpuSample(Struct, frozen=True):
    """A GPU at one moment.

    Utilisation in %, P-state, clocks in MHz, bits of the clocks event reasons, °C and mW; None for
    what NVML refuses.
    """

    utilization: int | None
    state: int | None
    clock: int | None
    memory_clock: int | None
    reasons: int | None
    temperature: int | None
    power: int | None


class LoadSample(Struct, frozen=True):
    """A node at one moment, `seconds` after the first: GPUs by index, links by PCI address."""

    seconds: float
    gpus: Mapping[int, GpuSample]
    links: Mapping[str, PciLink]


class GpuTotals(Struct, frozen=True):
    """What only grows on the GPUs of a node, by their index: the facts of COUNTED by name.

    `replays` are those of each GPU's PCIe link, and `links_up` the NVLinks that are up, where NVML
    tells them.
    """

    gpus: tuple[int, ...]
    facts: Mapping[str, Any]
    replays: Mapping[int, int]
    links_up: Mapping[int, frozenset[int]]


class NodeSamples(Struct, frozen=True):
    """All samples of a node. `why` says why GPUs are not known, None if they are.

    `first` and `last` have what the GPUs counted before and after.
    """

    why: Absent | None
    gpus: Mapping[int, SampledGpu] = field(default_factory=dict)
    first: GpuTotals | None = None
    last: GpuTotals | None = None
    samples: tuple[LoadSample, ...] = ()

    def of_gpu(self, index: int) -> tuple[GpuSample, ...]:
        """Return the samples of one GPU, the oldest first."""
        return tuple(sample.gpus[index] for sample in self.samples if index in sample.gpus)


class NodeLooks(Struct, frozen=True):
    """Facts of a node before and after, and its samples."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    samples: NodeSamples


class Looks(Struct, frozen=True):
    """What all nodes showed in `seconds`; `on_gpus`: whether the job was to work on GPUs."""

    seconds: float
    on_gpus: bool
    nodes: Mapping[str, NodeLooks]


# ---------------------------------------------------------------- parsing


def parse_samples(answer: Mapping[str, Any]) -> NodeSamples:
    """Return the samples of an agent's answer.

    Raises ValueError, KeyError or TypeError for an answer of another shape.
    """
    if "no" in answer:
        return NodeSamples(_absent([answer["no"], answer.get("why", "")]))
    why = None if answer["why"] is None else _absent(answer["why"])
    rows = answer["samples"]
    if len(rows) > MOST_SAMPLES:
        raise ValueError("more samples than an agent keeps")
    first = last = None
    if len(answer["totals"]) == 2:
        first, last = map(parse_totals, answer["totals"])
        if first.gpus != last.gpus:
            raise ValueError("counters of other GPUs than before")
    samples = []
    links: dict[str, PciLink] = {}
    for row in rows:  # a sample has the links that changed since the one before
        links = {**links, **_links(row["links"])}
        samples.append(_sample(row, links))
    return NodeSamples(
        why=why,
        gpus=_described(answer["described"]),
        first=first,
        last=last,
        samples=tuple(samples),
    )


def _absent(why: Sequence[Any]) -> Absent:
    reason, detail = why
    return Absent(shortened(reason, 80), shortened(detail))


def _described(rows: Mapping[str, Any]) -> dict[int, SampledGpu]:
    """Return the GPUs that answered."""
    if len(rows) > MOST_GPUS:
        raise ValueError("more GPUs than a node has")
    gpus = {}
    for key, row in rows.items():
        if "no" in row:
            continue
        index = int(key)
        gpus[index] = SampledGpu(
            index=index,
            pci=shortened(row["pci"] or "", 40),
            model=shortened(row["model"] or "", 120),
            clock_max=_whole(row["clock_max"]),
            slowdown=_whole(row["slowdown"]),
        )
    return gpus


def _links(rows: Mapping[str, Any]) -> dict[str, PciLink]:
    return {shortened(address, 40): parse_link(texts) for address, texts in rows.items()}


def _sample(row: Mapping[str, Any], links: Mapping[str, PciLink]) -> LoadSample:
    gpus = {}
    for key, values in row["gpus"].items():
        numbers = [_whole(value) for value in values]
        gpus[int(key)] = GpuSample(*numbers)
    return LoadSample(require_number(row["t"]), gpus, links)


def parse_totals(answer: object) -> GpuTotals:
    """Return the counters of a node's GPUs, from the rows of `totals` of the agent's reader."""
    rows: dict[int, dict[str, Any]] = {}
    replays: dict[int, int] = {}
    up: dict[int, frozenset[int]] = {}
    for row in require_rows(answer):
        index = require_whole(row["index"])
        fields = {name: row[name] for name in COUNTED_FIELDS}
        for name in NOT_ASKED_AGAIN:
            fields[name] = ["no", "not_applicable"]
        rows[index] = {"index": index, **fields}
        if not refusal(row["pcie_replays"]):
            replays[index] = require_whole(row["pcie_replays"])
        if not refusal(row["links"]):
            up[index] = frozenset(links_up(row["links"]))
    if len(rows) > MOST_GPUS:
        raise ValueError("more GPUs than a node has")
    facts = {fact.name: fact.parse({"gpus": list(rows.values())}) for fact in COUNTED}
    return GpuTotals(tuple(rows), facts, replays, up)


def _whole(value: object) -> int | None:
    """Return a whole number that is not negative, or None."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"expected a count, seen {shortened(value, 40)}")
    return value


def parse_link_errors(answer: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return error counters by interface; those that the kernel does not have are left out."""
    if len(answer) > MOST_NAMES:
        raise ValueError("more names than a node has")
    counters: dict[str, dict[str, int]] = {}
    for name, row in answer.items():
        known = {}
        for counter, value in row.items():
            number = _whole(value)
            if number is not None:
                known[shortened(counter, 40)] = number
        counters[require_device_name(name)] = known
    return counters


LINK_ERRORS = Fact(
    "load.link_errors", lambda node, inventory: (Read("link_errors"),), parse_link_errors
)
