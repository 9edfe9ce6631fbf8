"""How each GPU is set and who uses it: clocks, power limit, persistence, MIG, compute mode, other processes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.checks.gpu_health import (
    Trouble,
    by_text,
    each_gpu,
    of_job,
    one_by_one,
    parse_switch,
)
from clusterprep.facts.gpu import Model, Readings
from clusterprep.facts.gpu_state import Clocks, Persistence, Power, Use
from clusterprep.model import Absent
from clusterprep.model.units import format_size, parse_size

MIB = 1 << 20
USED = 2 << 30  # bytes that nothing should hold before a job starts; Primus' limit, CHECKS gpu.busy
# MPS shares a GPU between the job's own processes; it is a service and not somebody's job.
SERVICES = ("nvidia-cuda-mps", "nvidia-persiste")  # as /proc shows names, 15 characters
Place = tuple[str, int]  # node and GPU


def alike(context: CheckContext, fact: str, say: Callable[[Any], str]) -> dict[Place, str]:
    """GPUs whose value differs from that of most GPUs of the same model in the job, with what most have.

    Without a strict majority each of them differs.
    """
    groups: dict[str, dict[Place, str]] = {}
    for node in context.nodes:
        models: Readings = context.value(node, "gpu.model")
        for index, value in of_job(node, context.value(node, fact)).items():
            model = models.get(index)
            if not isinstance(value, Absent) and isinstance(model, Model):
                groups.setdefault(model.name, {})[node.name, index] = say(value)
    return {place: usual for group in groups.values() for place, usual in _odd(group).items()}


def _odd(group: Mapping[Place, str]) -> dict[Place, str]:
    usual, count = Counter(group.values()).most_common(1)[0]
    if 2 * count > len(group):
        return {place: usual for place, value in group.items() if value != usual}
    return dict.fromkeys(group, "equal on all GPUs of this model")


def _differing(
    context: CheckContext, fact: str, say: Callable[[Any], str], message: str, cure: str
) -> Iterable[Outcome]:
    """Failures of the GPUs that differ, by node; nothing for the others."""
    odd = alike(context, fact, say)
    for node in context.nodes:
        mine = of_job(node, context.value(node, fact))
        said = {i: say(mine[i]) for i in mine if (node.name, i) in odd}
        if said:
            usual = odd[node.name, min(said)]
            remedy = cure.format(gpus=",".join(map(str, said)), usual=usual)
            yield Outcome("fail", (node.name,), message, by_text(said, len(mine)), usual, remedy)


def _otherwise(
    context: CheckContext,
    fact: str,
    failed: Iterable[Outcome],
    fine: Callable[[Mapping[int, Any]], str],
    wanted: str,
) -> Iterable[Outcome]:
    """Those failures, and for each other node what its readings are worth: pass, unknown or skip."""
    failed = list(failed)
    yield from failed
    bad = {name for outcome in failed for name in outcome.nodes}
    for node in context.nodes:
        readings = context.value(node, fact)
        known = {i: v for i, v in of_job(node, readings).items() if not isinstance(v, Absent)}
        for outcome in one_by_one(node, readings, lambda _: None, fine(known), wanted):
            if node.name not in bad or outcome.verdict == "unknown":
                yield outcome


def _declared(
    context: CheckContext, fact: str, wrong: Callable[..., Trouble | None], fine: str
) -> tuple[list[Outcome], CheckContext]:
    """The nodes whose value `require:` declares, judged, and the context without them."""
    outcomes: list[Outcome] = []
    for node in context.nodes:
        wanted = context.wanted(node)
        if wanted is not None:
            outcomes += one_by_one(
                node, context.value(node, fact), partial(wrong, wanted=wanted), fine, wanted
            )
    rest = tuple(node for node in context.nodes if context.wanted(node) is None)
    return outcomes, replace(context, nodes=rest)


# ---------------------------------------------------------------- clocks and power


def _clock_words(clocks: Clocks) -> str:
    most = f"at most {clocks.highest[0]}/{clocks.highest[1]} MHz"
    if clocks.application is None:
        return most
    return f"applications {clocks.application[0]}/{clocks.application[1]} MHz, {most}"


def clocks(context: CheckContext) -> Iterable[Outcome]:
    """As required; else equal on all GPUs of a model. Equal and not the factory's is a choice, and told."""
    declared, context = _declared(
        context, "gpu.clocks", _not_these_clocks, "the application clock is as required"
    )
    yield from declared
    cure = "nvidia-smi -i {gpus} -rac; nvidia-smi -i {gpus} -rgc   # most have: {usual}"
    failed = _differing(
        context, "gpu.clocks", _clock_words, "clocks differ from those of the same GPUs", cure
    )
    yield from _otherwise(
        context, "gpu.clocks", failed, _clocks_fine, "equal on all GPUs of a model"
    )


def _not_these_clocks(value: Clocks, wanted: str) -> Trouble | None:
    if value.application is not None and value.application[0] == parse_clock(wanted):
        return None
    return Trouble("the application clock is not as required", _clock_words(value))


def _clocks_fine(readings: Mapping[int, Clocks]) -> str:
    if any(c.default is not None and c.application != c.default for c in readings.values()):
        return "clocks are equal on all GPUs of a model, and not the factory's"
    return "clocks are equal on all GPUs of a model"


def parse_clock(text: str) -> int:
    """MHz of the application graphics clock. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+) ?(?:MHz)?", text)
    if match is None:
        raise ValueError(
            f"expected the application graphics clock in MHz, such as 1980; seen '{text}'"
        )
    return int(match[1])


def power_limit(context: CheckContext) -> Iterable[Outcome]:
    """As required; else equal on all GPUs of a model. A cap on all of them is a choice, and told."""
    declared, context = _declared(
        context, "gpu.power", _not_this_power, "the power limit is as required"
    )
    yield from declared
    cure = "nvidia-smi -i {gpus} -pl {usual}"
    failed = _differing(
        context,
        "gpu.power",
        lambda p: f"{p.limit:g}",
        "the power limit (W) differs from the rest",
        cure,
    )
    yield from _otherwise(context, "gpu.power", failed, _power_fine, "equal on all GPUs of a model")


def _not_this_power(power: Power, wanted: str) -> Trouble | None:
    watts = parse_watts(wanted)
    if power.limit == watts:
        return None
    return Trouble(
        "the power limit is not as required",
        f"{power.limit:g} W",
        f"nvidia-smi -i {{gpus}} -pl {watts:g}",
    )


def _power_fine(readings: Mapping[int, Power]) -> str:
    capped = {
        f"{p.limit:g} W instead of {p.default:g} W"
        for p in readings.values()
        if p.limit < p.default
    }
    return (
        f"all are capped alike: {', '.join(sorted(capped))}"
        if capped
        else "power limits are the factory's"
    )


def parse_watts(text: str) -> float:
    """A power limit. Raises ValueError for anything but watts."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?W?", text)
    if match is None:
        raise ValueError(f"expected watts, such as 700 or 700W; seen '{text}'")
    return float(match[1])


# ---------------------------------------------------------------- modes


def persistence(state: Persistence) -> Trouble | None:
    """In a virtual machine the driver of the host has the GPU, and nothing is lost there."""
    if state.on or state.virtual:
        return None
    return Trouble(
        "persistence is off",
        "off",
        "systemctl enable --now nvidia-persistenced   # or nvidia-smi -pm 1",
    )


def mig(modes: tuple[bool, bool], wanted: bool) -> Trouble | None:
    now, then = modes
    if now != then:
        text = f"{'on' if now else 'off'}, {'on' if then else 'off'} after a reset"
        return Trouble(
            "a change of MIG waits for a reset", text, "nvidia-smi --gpu-reset -i {gpus}"
        )
    if now == wanted:
        return None
    cure = f"nvidia-smi -i {{gpus}} -mig {int(wanted)}"
    return Trouble(f"MIG is {'on' if now else 'off'}", "on" if now else "off", cure)


def mig_modes(context: CheckContext) -> Iterable[Outcome]:
    """Off, or as required."""
    for node in context.nodes:
        on = parse_switch(context.wanted(node) or "off")
        text = "on" if on else "off"
        yield from one_by_one(
            node, context.value(node, "gpu.mig"), partial(mig, wanted=on), f"MIG is {text}", text
        )


def compute_mode(mode: str) -> Trouble | None:
    if mode == "default":
        return None
    return Trouble("only one process, or none, may use it", mode, "nvidia-smi -i {gpus} -c DEFAULT")


# ---------------------------------------------------------------- use


def busy(context: CheckContext) -> Iterable[Outcome]:
    """Nobody else's process, and no memory that nobody admits to."""
    for node in context.nodes:
        wanted = context.wanted(node)
        most = USED if wanted is None else int(min(parse_size(wanted), 1 << 62))
        text = f"no process, and less than {format_size(most)} in use"
        yield from one_by_one(
            node, context.value(node, "gpu.use"), partial(in_use, most=most), "nobody uses it", text
        )


def in_use(use: Use, most: int) -> Trouble | None:
    strangers = [p for p in use.processes if not (p.name or "").startswith(SERVICES)]
    if strangers:
        said = ", ".join(f"{p.name or 'pid'} {p.pid}{_size(p.used)}" for p in strangers)
        pids = " ".join(str(p.pid) for p in strangers)
        return Trouble(
            "somebody computes here",
            said,
            f"ps -o user,pid,lstart,args -p {pids}   # then ask, or kill them",
        )
    if use.used >= most:
        message = "memory is in use and no process shows: one in another container, or left over"
        return Trouble(message, f"{use.used // MIB} MiB", "fuser -v /dev/nvidia*")
    return None


def _size(used: int | None) -> str:
    return "" if used is None else f" ({used // MIB} MiB)"


def _turned(index: int, value: Any) -> Callable[[Readings], Readings]:
    """For proofs: one GPU's reading replaced."""
    return lambda readings: {**readings, index: value}


CLOCKS = Check(
    "gpu.clocks",
    facts=("gpu.clocks", "gpu.model"),
    judge=clocks,
    severity="warning",
    title="Clock settings",
    why="One GPU that somebody set to lower clocks for a test is a straggler that every step waits for.",
    how="NVML's highest clocks and application clocks, equal on all GPUs of a model, or the application graphics clock "
    "in MHz that `require: gpu.clocks` names. NVML does not tell clocks that were locked with nvidia-smi -lgc.",
    remedy="nvidia-smi -rac; nvidia-smi -rgc",
    wants=parse_clock,
    proof=Proof("gpu.clocks", _turned(3, Clocks((1980, 2619), (1200, 2619), (1980, 2619)))),
)
POWER = Check(
    "gpu.power_limit",
    facts=("gpu.power", "gpu.model"),
    judge=power_limit,
    severity="warning",
    title="Power limit",
    why="A cap on all GPUs is a choice; a cap on one makes the whole job as slow as that one.",
    how="NVML's enforced limit, equal on all GPUs of a model, or the watts that `require: gpu.power_limit` names.",
    remedy="nvidia-smi -q -d POWER; nvidia-smi -pl WATTS",
    wants=parse_watts,
    proof=Proof("gpu.power", _turned(3, Power(400.0, 700.0))),
)
PERSISTENCE = Check(
    "gpu.persistence",
    facts=("gpu.persistence",),
    judge=each_gpu(
        "gpu.persistence", persistence, "the driver stays with it", "on, or a virtual machine"
    ),
    severity="warning",
    title="Persistence mode",
    why="Without it the driver lets go of an idle GPU: the next start takes seconds, and settings such as clocks, "
    "power limit and ECC counters are lost in between.",
    how="NVML's persistence mode, which nvidia-persistenced sets too; virtual machines are fine without.",
    remedy="systemctl enable --now nvidia-persistenced",
    proof=Proof("gpu.persistence", _turned(3, Persistence(on=False, virtual=False))),
)
MIG = Check(
    "gpu.mig",
    facts=("gpu.mig",),
    judge=mig_modes,
    severity="warning",
    title="MIG mode",
    why="With MIG a GPU is cut in slices: NCCL has no P2P between them and takes slices of one GPU for duplicates.",
    how="NVML's MIG mode, now and after the next reset; off, or as `require: gpu.mig` says.",
    remedy="nvidia-smi -mig 0",
    wants=parse_switch,
    proof=Proof("gpu.mig", _turned(3, (True, True))),
)
COMPUTE_MODE = Check(
    "gpu.compute_mode",
    facts=("gpu.compute_mode",),
    judge=each_gpu("gpu.compute_mode", compute_mode, "any process may use it", "default"),
    severity="warning",
    title="Compute mode",
    why="In exclusive mode the second process on a GPU is refused: a data loader, a profiler, or a rank after a crash "
    "that is not quite gone («all CUDA-capable devices are busy or unavailable»).",
    how="NVML's compute mode is the default one.",
    remedy="nvidia-smi -c DEFAULT",
    proof=Proof("gpu.compute_mode", _turned(3, "exclusive process")),
)
BUSY = Check(
    "gpu.busy",
    facts=("gpu.use",),
    judge=busy,
    severity="warning",
    title="Somebody else on the GPUs",
    why="A job that was left over takes memory and time: out of memory at start, or one rank slower than all others.",
    how="NVML's compute processes, and memory in use without the driver's own share: less than 2 GiB, or than "
    "`require: gpu.busy` says. Where it is not a pass, verify starts no rank.",
    remedy="nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv",
    wants=parse_size,
    proof=Proof("gpu.use", lambda readings: {**readings, 3: replace(readings[3], used=70 << 30)}),
)
