"""NVLink: every link of a GPU is up, and every pair of an NVLink machine is joined by it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.checks.gpu_health import RESET, Trouble, of_job, one_by_one
from clusterprep.facts.gpu import Model, Readings
from clusterprep.facts.nvlink import NvLinks, joined
from clusterprep.model import Node

# Links of a GPU that is soldered into an NVLink board, by words of its name: NVIDIA's data sheets, CHECKS.
# Cards with a slot connector (PCIe, NVL) may have bridges or none, so only their peers say what is right.
ON_BOARD = (
    ("A100-SXM4", 12), ("A100-SXM", 12), ("A800-SXM4", 8), ("V100-SXM2", 6), ("V100-SXM3", 6),
    ("H100 80GB HBM3", 18), ("H200", 18), ("H800", 8), ("H20", 18), ("B200", 18), ("B300", 18),
    ("GB200", 18), ("GB300", 18),
)  # fmt: skip
SLOT = ("PCIE", "NVL")
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
    """How many links a GPU of this name has by its board; None where it depends on the machine."""
    words = name.upper().split()
    if any(slot in word.split("-") for slot in SLOT for word in words):
        return None
    return next(
        (count for key, count in ON_BOARD if set(key.upper().split()) <= set(_parts(words))), None
    )


def _parts(words: list[str]) -> list[str]:
    """A100-SXM4-80GB counts as A100-SXM4 too."""
    return [*words, *("-".join(word.split("-")[:2]) for word in words)]


def wrong_links(models: Readings, readings: Readings) -> dict[int, Trouble]:
    """What is wrong with the links of each GPU of a node."""
    known = {i: links for i, links in readings.items() if isinstance(links, NvLinks)}
    most: dict[str, int] = {}
    for index, links in known.items():
        most[_name(models, index)] = max(most.get(_name(models, index), 0), len(links.up))
    idle = not any(most.values())  # a single GPU, or a virtual machine that was given no links
    if idle and (len(known) == 1 or any(links.virtual for links in known.values())):
        return {}
    troubles = {}
    for index, links in known.items():
        name = _name(models, index)
        by_board = expected(name)
        wanted = by_board or most[name]
        if len(links.up) < wanted and (by_board or links.up or _one_board(name)):
            down = f", down: {','.join(map(str, links.down))}" if links.down and links.up else ""
            text = f"{len(links.up)} of {wanted}{down}"
            troubles[index] = Trouble(
                "NVLinks are down", text, f"nvidia-smi nvlink -s -i {{gpus}}; {RESET}"
            )
    return troubles


def _one_board(name: str) -> bool:
    """Whether GPUs of this name are all joined alike: not so with cards, of which some may have no bridge."""
    return not any(slot in name.upper() for slot in SLOT)


def _name(models: Readings, index: int) -> str:
    model = models.get(index)
    return model.name if isinstance(model, Model) else ""


def state(context: CheckContext) -> Iterable[Outcome]:
    for node in context.nodes:
        readings = context.value(node, "nvlink.links")
        mine = of_job(node, readings)
        troubles = wrong_links(context.value(node, "gpu.model"), readings)
        counts = {len(links.up) for links in mine.values() if isinstance(links, NvLinks)}
        if counts == {0} and not troubles:
            yield Outcome("skip", (node.name,), "no NVLink is in use here", reason="not_applicable")
            continue
        judged: Mapping[int, object] = {i: troubles.get(i, value) for i, value in mine.items()}
        fine = f"{'/'.join(map(str, sorted(counts)))} links up on each GPU"
        yield from one_by_one(
            node, judged, lambda v: v if isinstance(v, Trouble) else None, fine, "every link up"
        )


def topology(context: CheckContext) -> Iterable[Outcome]:
    """Pairs of GPUs whose links are all up; the others are nvl.state's."""
    for node in context.nodes:
        yield _topology(context, node)


def _topology(context: CheckContext, node: Node) -> Outcome:
    models, readings = context.value(node, "gpu.model"), context.value(node, "nvlink.links")
    whole = {i: v for i, v in of_job(node, readings).items() if isinstance(v, NvLinks)}
    boarded = any(
        links.switched or _joins_all(_name(models, index)) for index, links in whole.items()
    )
    sound = {index for index, links in whole.items() if links.up} - set(
        wrong_links(models, readings)
    )
    pairs = {
        pair: s
        for pair, s in joined(context.value(node, "nvlink.pairs")).items()
        if sound.issuperset(pair)
    }
    wanted = "every pair"
    if not boarded or not pairs:
        return Outcome(
            "skip", (node.name,), "no board that joins GPUs by NVLink", reason="not_applicable"
        )
    apart = {pair: status for pair, status in pairs.items() if status}
    if apart:
        seen = "; ".join(
            f"GPU {a} and {b}: {P2P.get(status or 6, status)}" for (a, b), status in apart.items()
        )
        return Outcome("fail", (node.name,), "pairs of GPUs are not joined by NVLink", seen, wanted)
    if None in pairs.values():
        return Outcome(
            "unknown",
            (node.name,),
            "the driver does not tell of every pair",
            "",
            wanted,
            reason="garbled",
        )
    return Outcome(
        "pass", (node.name,), "every pair is joined by NVLink", f"{len(pairs)} pairs", wanted
    )


def _joins_all(name: str) -> bool:
    """Whether a board without NVSwitches joins every pair of such GPUs; eight V100 are a hybrid cube mesh (DGX-1)."""
    return expected(name) is not None and "V100" not in name.upper()


def _without_link(readings: Readings) -> Readings:
    links = readings[3]
    return {**readings, 3: replace(links, up=links.up[:-1], down=(links.up[-1],))}


STATE = Check(
    "nvl.state",
    facts=("nvlink.links", "gpu.model"),
    judge=state,
    severity="error",
    title="NVLinks",
    why="With a link down a GPU is slower in every collective, or NCCL leaves NVLink for PCIe on the whole node.",
    how="NVML's state of each link, as many up as the model's board has (A100 12, H100, H200 and B200 18, A800 and "
    "H800 8); of others as many as the GPUs beside it have. Cards may have bridges or none.",
    remedy="nvidia-smi nvlink -s; nvidia-smi nvlink -e; reset the GPUs, then return the board",
    proof=Proof("nvlink.links", _without_link),
)
TOPOLOGY = Check(
    "nvl.topology",
    facts=("nvlink.pairs", "nvlink.links", "gpu.model"),
    judge=topology,
    severity="warning",
    title="Every pair of GPUs joined by NVLink",
    why="A pair that falls back to PCIe is a tenth as fast, and a ring over all GPUs passes it at every step.",
    how="NVML's P2P status over NVLink for each pair, on machines whose GPUs are joined by a board or NVSwitches.",
    remedy="nvidia-smi topo -m; nvidia-smi topo -p2p n; systemctl restart nvidia-fabricmanager",
    proof=Proof("nvlink.pairs", lambda pairs: {**pairs, 2: {**pairs[2], 3: 5}}),
)
