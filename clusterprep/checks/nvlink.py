"""Judges NVLink: every link of a GPU is up, and every pair of an NVLink machine is joined by it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    each,
    failed,
    passed,
    skipped,
    unknown,
)
from clusterprep.checks.gpu_health import Trouble, of_job, one_by_one
from clusterprep.facts.gpu import Model, Readings
from clusterprep.facts.nvlink import NvLinks, pair_statuses
from clusterprep.model import Absent, Node
from clusterprep.model.units import pluralize
from clusterprep.remedies import shell_line

# Links of a GPU that is soldered into an NVLink board, by words of its name: NVIDIA's data sheets,
# CHECKS. Cards with a slot connector (PCIe, NVL) may have bridges or none, so only their peers say
# what is right.
ON_BOARD = (
    ("A100-SXM4", 12), ("A100-SXM", 12), ("A800-SXM4", 8), ("V100-SXM2", 6), ("V100-SXM3", 6),
    ("H100 80GB HBM3", 18), ("H200", 18), ("H800", 8), ("H20", 18), ("B200", 18), ("B300", 18),
    ("GB200", 18), ("GB300", 18),
)  # fmt: skip
SLOT = ("PCIE", "NVL")
# MB/s of one link as NVML tells it on such boards: `nvidia-smi nvlink -s` of public dumps (V100
# 25.781, A100 25, H100 and H200 26.562, B300 and GB200 53.125 or 50 GB/s), the least of them.
SPEEDS = (
    ("V100-SXM2", 25_000), ("V100-SXM3", 25_000), ("A100-SXM4", 25_000), ("A100-SXM", 25_000),
    ("A800-SXM4", 25_000), ("H100 80GB HBM3", 26_000), ("H200", 26_000), ("H800", 26_000),
    ("H20", 26_000), ("B200", 50_000), ("B300", 50_000), ("GB200", 50_000), ("GB300", 50_000),
)  # fmt: skip
SHOW_LINKS = shell_line(
    "nvidia-smi nvlink -s -i GPUS"
    "   # then reset them with no process on any, or reboot; if it stays: return the board"
)
# nvmlGpuP2PStatus_t of nvml.h: why a pair is not joined.
P2P = {
    1: "the chipset",
    2: "the GPU",
    3: "the topology",
    4: "the registry",
    5: "not supported",
    6: "unknown",
}


@functools.lru_cache(256)
def expected(name: str) -> int | None:
    """Return the number of links of a GPU by its name; None where it depends on the machine."""
    return _of_board(name, ON_BOARD)


@functools.lru_cache(256)
def least_speed(name: str) -> int | None:
    """Return the MB/s that each link of a GPU has by its name; None where it is not known."""
    return _of_board(name, SPEEDS)


def _of_board(name: str, table: Iterable[tuple[str, int]]) -> int | None:
    """Return what a table has for the model that is part of a GPU's name."""
    words = set()
    for word in name.upper().split():
        parts = word.split("-")
        if not set(SLOT).isdisjoint(parts):
            return None
        # A100-SXM4-80GB counts as A100-SXM4 too.
        words |= {word, "-".join(parts[:2])}
    for model, number in table:
        if set(model.upper().split()) <= words:
            return number
    return None


def wrong_links(models: Readings, readings: Readings) -> dict[int, Trouble]:
    """Return what is wrong with the links of each GPU of a node; a GPU in order has no entry."""
    known = _known_links(readings)
    most: dict[str, int] = {}
    for index, links in known.items():
        name = _model_name(models, index)
        number = len(links.up)
        most[name] = max(most.get(name, 0), number)
    # A single GPU has no peer; a virtual machine may have been given no links.
    may_be_idle = len(known) == 1 or any(links.virtual for links in known.values())
    if may_be_idle and not any(most.values()):
        return {}
    troubles = {}
    for index, links in known.items():
        name = _model_name(models, index)
        on_board = expected(name)
        wanted = on_board or most[name]
        trouble = None
        if len(links.up) >= wanted:
            least = least_speed(name) or _usual_speed(known, models, name)
            trouble = _slow_links(links, least)
        elif on_board or links.up or _all_joined_alike(name):
            trouble = _missing_links(links, wanted)
        if trouble is not None:
            troubles[index] = trouble
    return troubles


def _missing_links(links: NvLinks, wanted: int) -> Trouble:
    """Return that a GPU has fewer links than `wanted`, with those that are down beside others."""
    seen = f"{len(links.up)} of {wanted}"
    if links.down and links.up:
        down = ",".join(map(str, links.down))
        seen = f"{seen}, down: {down}"
    return Trouble("NVLinks are down", seen, SHOW_LINKS)


def _usual_speed(known: Mapping[int, NvLinks], models: Readings, name: str) -> int | None:
    """Return the speed that most links of the node's GPUs of one name have."""
    speeds: list[int] = []
    for index, links in known.items():
        if _model_name(models, index) == name:
            speeds.extend(links.speeds)
    return max(dict.fromkeys(speeds), key=speeds.count) if speeds else None


def _slow_links(links: NvLinks, least: int | None) -> Trouble | None:
    """Return that links are slower than `least` MB/s; None where speeds are not told."""
    if least is None:
        return None
    slow = {}
    for link, speed in zip(links.up, links.speeds, strict=False):
        if speed < least:
            slow[link] = speed
    if not slow:
        return None
    numbers = ",".join(map(str, slow))
    seen = f"links {numbers} at {min(slow.values()) / 1000:g} of {least / 1000:g} GB/s"
    return Trouble("NVLinks are slow", seen, SHOW_LINKS)


def _known_links(readings: Mapping[int, object]) -> dict[int, NvLinks]:
    return {index: links for index, links in readings.items() if isinstance(links, NvLinks)}


def _all_joined_alike(name: str) -> bool:
    """Return whether all GPUs of this name have as many links; some cards may have no bridge."""
    return not any(slot in name.upper() for slot in SLOT)


def _model_name(models: Readings, index: int) -> str:
    model = models.get(index)
    return model.name if isinstance(model, Model) else ""


def state(
    context: CheckContext, node: Node, readings: Readings, models: Readings
) -> Iterable[Outcome]:
    """Judge the number of links that are up on each GPU of the job."""
    job_readings = of_job(node, readings)
    troubles = wrong_links(models, readings)
    counts = {len(links.up) for links in _known_links(job_readings).values()}
    if counts == {0} and not troubles:
        yield skipped(node, "no NVLink is in use here")
        return
    linked = {_model_name(models, index) for index in _known_links(readings)}
    judged: dict[int, object] = {}
    for index, reading in job_readings.items():
        judged[index] = troubles.get(index, reading)
        # Cards may be without; of one board all have links, or none in a virtual machine.
        name = _model_name(models, index)
        if isinstance(reading, Absent) and name in linked and expected(name):
            judged[index] = replace(reading, reason=_why(reading))
    numbers = "/".join(map(str, sorted(counts)))
    noun = "link" if counts == {1} else "links"
    fine = f"{numbers} {noun} up on each GPU"
    yield from one_by_one(
        node,
        judged,
        _trouble_or_none,
        fine,
        "every link up",
    )


def _why(absent: Absent) -> str:
    """Return why links are not known, although GPUs beside this one have some."""
    return "nvml_error" if absent.reason == "not_applicable" else absent.reason


def _trouble_or_none(value: object) -> Trouble | None:
    return value if isinstance(value, Trouble) else None


def topology(context: CheckContext, node: Node, models: Readings) -> Outcome:
    """Judge whether every pair of a node's sound GPUs is joined, where a board joins all.

    GPUs whose links are not all up are for nvl.state.
    """
    pairs = _sound_pairs(context, node, models)
    is_board = False
    for index, links in _job_links(context, node).items():
        if links.switched or _joins_all_pairs(_model_name(models, index)):
            is_board = True
    if not is_board or not pairs:
        return skipped(node, "no board that joins GPUs by NVLink")
    wanted = "every pair"
    apart = []
    for (one, other), status in pairs.items():
        if status:
            apart.append(f"GPU {one} and {other}: {P2P.get(status, status)}")
    if apart:
        message = "pairs of GPUs are not joined by NVLink"
        return failed(node, message, "; ".join(apart), wanted)
    if None in pairs.values():
        message = "the driver does not tell of every pair"
        return unknown(
            node,
            message,
            "nvml_error",
            "",
            wanted,
        )
    return passed(node, "every pair is joined by NVLink", pluralize(len(pairs), "pair"), wanted)


def _job_links(context: CheckContext, node: Node) -> dict[int, NvLinks]:
    readings: Readings = context.value(node, "nvlink.links")
    return _known_links(of_job(node, readings))


def _sound_pairs(
    context: CheckContext, node: Node, models: Readings
) -> dict[tuple[int, int], int | None]:
    """Return the P2P status of the job's pairs whose GPUs have all their links up."""
    troubles = wrong_links(models, context.value(node, "nvlink.links"))
    sound = set()
    for index, links in _job_links(context, node).items():
        if links.up and index not in troubles:
            sound.add(index)
    all_pairs = pair_statuses(context.value(node, "nvlink.pairs"))
    return {pair: status for pair, status in all_pairs.items() if sound.issuperset(pair)}


def _joins_all_pairs(name: str) -> bool:
    """Return whether a board without NVSwitches joins every pair of such GPUs.

    Eight V100 do not: they are a hybrid cube mesh (DGX-1).
    """
    return expected(name) is not None and "V100" not in name.upper()


def _without_link(readings: Readings) -> Readings:
    """Return the readings with the last link of GPU 3 down; for the proof."""
    links = readings[3]
    *up, last = links.up
    bad = replace(links, up=tuple(up), down=(last,))
    return {
        **readings,
        3: bad,
    }


STATE = Check(
    "nvl.state",
    facts=("nvlink.links", "gpu.model"),
    judge=each(state, "nvlink.links", "gpu.model"),
    severity="error",
    follows=("gpu.lost", "gpu.fabricmanager"),
    title="NVLinks",
    why="With a link down a GPU is slower in every collective, or NCCL leaves NVLink for PCIe on "
    "the whole node.",
    how="NVML's state of each link, as many up as the model's board has (A100 12, H100, H200 and "
    "B200 18, A800 and H800 8); of others as many as the GPUs beside it have. Cards may have "
    "bridges or none. Where the driver tells the speed of links, it is that of the model (A100 25, "
    "H100 26, B200 50 GB/s), else that of most links beside it.",
    remedy=shell_line(
        "nvidia-smi nvlink -s; nvidia-smi nvlink -e   # reset the GPUs, then return the board"
    ),
    proof=Proof("nvlink.links", _without_link),
)
TOPOLOGY = Check(
    "nvl.topology",
    facts=("nvlink.pairs", "nvlink.links", "gpu.model"),
    judge=each(topology, "gpu.model"),
    severity="warning",
    follows=("gpu.lost", "gpu.fabricmanager", "nvl.state"),
    title="Every pair of GPUs joined by NVLink",
    why="A pair that falls back to PCIe is a tenth as fast, and a ring over all GPUs passes it at "
    "every step.",
    how="NVML's P2P status over NVLink for each pair, on machines whose GPUs are joined by a board "
    "or NVSwitches.",
    remedy=shell_line(
        "nvidia-smi topo -m; nvidia-smi topo -p2p n"
        "   # with no process on the GPUs: restart nvidia-fabricmanager"
    ),
    proof=Proof("nvlink.pairs", lambda pairs: {**pairs, 2: {**pairs[2], 3: 5}}),
)
