"""Settings of each GPU (clocks, power limit, persistence, MIG, compute mode) and its processes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    each,
    failed,
)
from clusterprep.checks.gpu_health import (
    Trouble,
    by_text,
    each_gpu,
    never_wrong,
    of_job,
    one_by_one,
    parse_switch,
)
from clusterprep.facts.gpu import Model, Readings
from clusterprep.facts.gpu_state import Clocks, GpuProcess, Persistence, Power, Use
from clusterprep.model import Absent, Node
from clusterprep.model.fixes import Fix, fix_of, wanted_state
from clusterprep.model.units import format_size, parse_size
from clusterprep.remedies import Remedy, placed, shell_line

MIB = 1 << 20
USED = 2 << 30  # bytes that nothing should hold before a job starts; Primus' limit, CHECKS gpu.busy
MOST_BYTES = 1 << 62  # of a limit that is «unlimited»
NO_LOCKED_CLOCKS = "no application clock here, and NVML does not tell a clock that is locked"
EQUAL_BY_MODEL = "equal on all GPUs of a model"
# MPS shares a GPU between the job's own processes: it is a service, and no other job.
SERVICES = ("nvidia-cuda-mps", "nvidia-persiste")  # as /proc shows names, 15 characters

Place = tuple[str, int]
"""Name of a node and index of a GPU."""

Say = Callable[[Any], str]
"""Returns the value of a GPU as text."""


# ---------------------------------------------------------------- equal on all GPUs of a model


def find_differing(
    context: CheckContext, fact: str, say: Say, kind: Say | None = None
) -> dict[Place, str]:
    """Return the GPUs that differ from most GPUs of their model in the job, and what most have.

    Without a strict majority each of them differs. Only GPUs of one `kind` are compared, if given.
    Of nodes that are alike only the first has places.
    """
    groups: dict[tuple[str, str], dict[Place, tuple[str, int]]] = {}
    for nodes in context.alike():
        node = nodes[0]
        models: Readings = context.value(node, "gpu.model")
        for index, value in of_job(node, context.value(node, fact)).items():
            model = models.get(index)
            if not isinstance(value, Absent) and isinstance(model, Model):
                key = (model.name, kind(value) if kind else "")
                group = groups.setdefault(key, {})
                group[node.name, index] = (say(value), len(nodes))
    differing: dict[Place, str] = {}
    for group in groups.values():
        differing.update(_differing_in(group))
    return differing


def _differing_in(group: Mapping[Place, tuple[str, int]]) -> dict[Place, str]:
    """Return the same for the GPUs of one model; of each the value as text, and on how many nodes.

    Of two values that are equally frequent the first one counts.
    """
    counts: Counter[str] = Counter()
    for value, number in group.values():
        counts[value] += number
    usual, count = counts.most_common(1)[0]
    if 2 * count > counts.total():
        return {place: usual for place, (value, _) in group.items() if value != usual}
    return dict.fromkeys(group, "equal on all GPUs of this model")


def fail_differing(
    context: CheckContext,
    fact: str,
    say: Say,
    message: str,
    cure: Remedy,
    kind: Say | None = None,
    fix: Fix | None = None,
) -> Iterable[Outcome]:
    """Yield one failure for each node whose GPUs differ, and nothing for the others.

    GPUS and USUAL in `cure` become the indices of the GPUs, and what most have. `fix` is what cures
    it where most have what GPUs come with.
    """
    differing = find_differing(context, fact, say, kind)
    for nodes in context.alike():
        node = nodes[0]
        readings = of_job(node, context.value(node, fact))
        seen_by_gpu: dict[int, str] = {}
        for index, value in readings.items():
            if (node.name, index) in differing:
                seen_by_gpu[index] = say(value)
        if not seen_by_gpu:
            continue
        usual = differing[node.name, min(seen_by_gpu)]
        gpus = ",".join(map(str, seen_by_gpu))
        remedy = placed(cure, GPUS=gpus, USUAL=usual)
        seen = by_text(seen_by_gpu, len(readings))
        failure = failed(
            node,
            message,
            seen,
            usual,
            remedy,
            fix=fix,
        )
        yield from about_all(nodes, [failure])


def with_other_nodes(
    context: CheckContext,
    fact: str,
    failures: Iterable[Outcome],
    fine: Callable[[Mapping[int, Any]], str],
    wanted: str,
) -> Iterable[Outcome]:
    """Yield the failures, and pass, unknown or skip for each other node of the context.

    `fine(known readings)` is the message of a pass. A node that fails may have GPUs that are not
    known besides.
    """
    names: set[str] = set()
    for failure in failures:
        yield failure
        names.update(failure.nodes)
    for nodes in context.alike():
        node = nodes[0]
        readings = context.value(node, fact)
        of_node = of_job(node, readings)
        known = {i: value for i, value in of_node.items() if not isinstance(value, Absent)}
        for outcome in one_by_one(
            node,
            readings,
            never_wrong,
            fine(known),
            wanted,
        ):
            # Nodes that are alike have failed together, or not at all.
            if node.name not in names or outcome.verdict == "unknown":
                yield from about_all(nodes, [outcome])


def _judge_declared(
    context: CheckContext, fact: str, wrong: Callable[..., Trouble | None], fine: str
) -> Iterable[Outcome]:
    """Judge the nodes whose value `require:` declares, by `wrong(value, wanted=declared)`."""
    for nodes in context.alike():
        node = nodes[0]
        wanted = context.wanted(node)
        if wanted is not None:
            readings = context.value(node, fact)
            judge = partial(wrong, wanted=wanted)
            outcomes = one_by_one(
                node,
                readings,
                judge,
                fine,
                wanted,
            )
            yield from about_all(nodes, outcomes)


def _without_declared(context: CheckContext) -> CheckContext:
    """Return the context without the nodes whose value `require:` declares."""
    nodes = tuple(node for node in context.nodes if context.wanted(node) is None)
    return replace(context, nodes=nodes)


# ---------------------------------------------------------------- clocks


def clocks(context: CheckContext) -> Iterable[Outcome]:
    """Judge clocks: as required, else equal on all GPUs of a model.

    Equal clocks that are not the factory's are a choice, which is only shown.
    """
    fact = "gpu.clocks"
    fine = "the application clock is as required"
    yield from _judge_declared(_told_clocks(context), fact, _wrong_clocks, fine)
    rest = _without_declared(context)
    message = "clocks differ from those of the same GPUs"
    cure = shell_line("nvidia-smi -i GPUS -rac; nvidia-smi -i GPUS -rgc   # most have: USUAL")
    failures = fail_differing(
        rest,
        fact,
        _clocks_text,
        message,
        cure,
        _kind_of_clocks,
    )
    yield from with_other_nodes(
        rest,
        fact,
        failures,
        _clocks_fine,
        EQUAL_BY_MODEL,
    )


def _kind_of_clocks(clocks: Clocks) -> str:
    """Return what is told: a GPU without application clocks does not differ from those with."""
    return "highest" if clocks.application is None else "applications"


def _clocks_text(clocks: Clocks) -> str:
    highest = f"at most {_megahertz(clocks.highest)}"
    if clocks.application is None:
        return highest
    return f"applications {_megahertz(clocks.application)}, {highest}"


def _megahertz(clocks: tuple[int, int]) -> str:
    graphics, memory = clocks
    return f"{graphics}/{memory} MHz"


def _wrong_clocks(clocks: Clocks, wanted: str) -> Trouble | None:
    if clocks.application is not None:
        graphics, _ = clocks.application
        if graphics == parse_clock(wanted):
            return None
    return Trouble("the application clock is not as required", _clocks_text(clocks))


def _told_clocks(context: CheckContext) -> CheckContext:
    """Return the context with the clocks of GPUs that have no application clock as not known.

    What is required there can be set as a locked clock alone (nvidia-smi -lgc), and NVML has no
    call that returns it.
    """
    added = {}
    for node in context.nodes:
        if context.wanted(node) is None:
            continue
        readings = {}
        for index, clocks in context.value(node, "gpu.clocks").items():
            readings[index] = clocks
            if isinstance(clocks, Clocks) and clocks.application is None:
                readings[index] = Absent("missing_tool", NO_LOCKED_CLOCKS)
        added[node.name] = {"gpu.clocks": readings}
    if not added:
        return context
    return replace(context, fleet=context.fleet.with_facts(added))


def _clocks_fine(readings: Mapping[int, Clocks]) -> str:
    message = "clocks are equal on all GPUs of a model"
    for clocks in readings.values():
        if clocks.default is not None and clocks.application != clocks.default:
            return f"{message}, and not the factory's"
    return message


def parse_clock(text: str) -> int:
    """Parse MHz of the application graphics clock. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+) ?(?:MHz)?", text)
    if match is None:
        raise ValueError(
            f"expected the application graphics clock in MHz, such as 1980; seen '{text}'"
        )
    return int(match[1])


# ---------------------------------------------------------------- power


def power_limit(context: CheckContext) -> Iterable[Outcome]:
    """Judge power limits: as required, else equal on all GPUs of a model.

    A cap on all of them is a choice, which is only shown.
    """
    fact = "gpu.power"
    fine = "the power limit is as required"
    yield from _judge_declared(context, fact, _wrong_power, fine)
    rest = _without_declared(context)
    message = "the power limit (W) differs from the rest"
    cure = shell_line("nvidia-smi -i GPUS -pl USUAL")
    failures = fail_differing(
        rest,
        fact,
        _watts,
        message,
        cure,
        fix=fix_of(wanted_state("gpu", power_limit="default")),
    )
    yield from with_other_nodes(
        rest,
        fact,
        failures,
        _power_fine,
        EQUAL_BY_MODEL,
    )


def _watts(power: Power) -> str:
    return f"{power.limit:g}"


def _wrong_power(power: Power, wanted: str) -> Trouble | None:
    watts = parse_watts(wanted)
    if power.limit == watts:
        return None
    remedy = shell_line("nvidia-smi -i GPUS -pl {watts}", watts=watts)
    return Trouble("the power limit is not as required", f"{power.limit:g} W", remedy)


def _power_fine(readings: Mapping[int, Power]) -> str:
    caps: set[str] = set()
    for power in readings.values():
        if power.limit < power.default:
            caps.add(f"{power.limit:g} W instead of {power.default:g} W")
    if not caps:
        return "power limits are the factory's"
    return f"all are capped alike: {', '.join(sorted(caps))}"


def parse_watts(text: str) -> float:
    """Parse a power limit. Raises ValueError for anything but watts."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?W?", text)
    if match is None:
        raise ValueError(f"expected watts, such as 700 or 700W; seen '{text}'")
    return float(match[1])


# ---------------------------------------------------------------- modes


def persistence(state: Persistence) -> Trouble | None:
    """Return that persistence is off, except in a virtual machine.

    There the driver of the host has the GPU, and keeps its settings.
    """
    if state.on or state.virtual:
        return None
    remedy = shell_line("systemctl enable --now nvidia-persistenced   # or nvidia-smi -pm 1")
    return Trouble("persistence is off", "off", remedy)


def mig(modes: tuple[bool, bool], wanted: bool) -> Trouble | None:
    """Return what is wrong with the MIG mode, now and after the next reset."""
    now, then = modes
    state = _switch(now)
    if now != then:
        seen = f"{state}, {_switch(then)} after a reset"
        remedy = shell_line("nvidia-smi --gpu-reset -i GPUS")
        return Trouble("a change of MIG waits for a reset", seen, remedy)
    if now == wanted:
        return None
    remedy = shell_line("nvidia-smi -i GPUS -mig {mode}", mode=int(wanted))
    return Trouble(f"MIG is {state}", state, remedy)


def _switch(is_on: bool) -> str:
    return "on" if is_on else "off"


def mig_modes(context: CheckContext, node: Node, readings: Readings) -> Iterable[Outcome]:
    """Judge that MIG is off, or as required."""
    is_wanted = parse_switch(context.wanted(node) or "off")
    wanted = _switch(is_wanted)
    judge = partial(mig, wanted=is_wanted)
    return one_by_one(
        node,
        readings,
        judge,
        f"MIG is {wanted}",
        wanted,
    )


def compute_mode(mode: str) -> Trouble | None:
    """Return that the compute mode is not the default one."""
    if mode == "default":
        return None
    return Trouble(
        "only one process, or none, may use it", mode, shell_line("nvidia-smi -i GPUS -c DEFAULT")
    )


# ---------------------------------------------------------------- use


def busy(context: CheckContext, node: Node, readings: Readings) -> Iterable[Outcome]:
    """Judge that no process uses a GPU, and that no memory is in use without a process."""
    required = context.wanted(node)
    limit = USED
    if required is not None:
        limit = int(min(parse_size(required), MOST_BYTES))
    wanted = f"no process, and less than {format_size(limit)} in use"
    judge = partial(in_use, most=limit)
    fine = "no process uses it"
    uses = of_job(node, readings).values()
    if any(isinstance(use, Use) and use.processes is None for use in uses):
        fine = "little of its memory is in use, and NVML lists no processes here"
    return one_by_one(
        node,
        readings,
        judge,
        fine,
        wanted,
    )


def in_use(use: Use, most: int) -> Trouble | None:
    """Return the processes of other jobs on a GPU, or memory of at least `most` bytes in use."""
    listed = use.processes or ()
    processes = [process for process in listed if not _is_service(process)]
    if processes:
        seen = ", ".join(map(_process_text, processes))
        pids = [process.pid for process in processes]
        remedy = shell_line(
            "ps -o user,pid,lstart,args -p {pids}   # then ask, or kill them", pids=pids
        )
        return Trouble("other processes use it", seen, remedy)
    if use.used is not None and use.used >= most:
        message = "memory is in use and no process shows: one in another container, or left over"
        return Trouble(message, f"{use.used // MIB} MiB", shell_line("fuser -v /dev/nvidia*"))
    return None


def _is_service(process: GpuProcess) -> bool:
    return process.name is not None and process.name.startswith(SERVICES)


def _process_text(process: GpuProcess) -> str:
    """Return «python 4711 (512 MiB)»."""
    text = f"{process.name or 'pid'} {process.pid}"
    if process.used is not None:
        text += f" ({process.used // MIB} MiB)"
    return text


def _with_reading(index: int, value: Any) -> Callable[[Readings], Readings]:
    """Return a `turn` for proofs that replaces the reading of one GPU."""
    return lambda readings: {
        **readings,
        index: value,
    }


CLOCKS = Check(
    "gpu.clocks",
    facts=("gpu.clocks", "gpu.model"),
    judge=clocks,
    severity="warning",
    title="Clock settings",
    why="One GPU that was set to lower clocks for a test is a straggler that every step waits for.",
    how="NVML's highest clocks and application clocks, equal on all GPUs of a model, or the "
    "application graphics clock in MHz that `require: gpu.clocks` names. NVML does not tell "
    "clocks that were locked with nvidia-smi -lgc.",
    remedy=shell_line("nvidia-smi -rac; nvidia-smi -rgc"),
    wants=parse_clock,
    proof=Proof("gpu.clocks", _with_reading(3, Clocks((1980, 2619), (1200, 2619), (1980, 2619)))),
)
POWER = Check(
    "gpu.power_limit",
    facts=("gpu.power", "gpu.model"),
    judge=power_limit,
    severity="warning",
    title="Power limit",
    why="A cap on all GPUs is a choice; a cap on one makes the whole job as slow as that one.",
    how="NVML's enforced limit, equal on all GPUs of a model, or the watts that `require: "
    "gpu.power_limit` names.",
    remedy=shell_line("nvidia-smi -q -d POWER; nvidia-smi -pl WATTS"),
    wants=parse_watts,
    proof=Proof("gpu.power", _with_reading(3, Power(400.0, 700.0))),
)
PERSISTENCE = Check(
    "gpu.persistence",
    facts=("gpu.persistence",),
    judge=each_gpu(
        "gpu.persistence", persistence, "the driver stays with it", "on, or a virtual machine"
    ),
    severity="warning",
    title="Persistence mode",
    why="Without it the driver lets go of an idle GPU: the next start takes seconds, and settings "
    "such as clocks, power limit and ECC counters are lost in between.",
    how="NVML's persistence mode, which nvidia-persistenced sets too; virtual machines are fine "
    "without.",
    remedy=shell_line("systemctl enable --now nvidia-persistenced"),
    fix=fix_of(wanted_state("gpu", persistence=True)),
    proof=Proof("gpu.persistence", _with_reading(3, Persistence(on=False, virtual=False))),
)
MIG = Check(
    "gpu.mig",
    facts=("gpu.mig",),
    judge=each(mig_modes, "gpu.mig"),
    severity="warning",
    title="MIG mode",
    why="With MIG a GPU is cut in slices: NCCL has no P2P between them and takes slices of one "
    "GPU for duplicates.",
    how="NVML's MIG mode, now and after the next reset; off, or as `require: gpu.mig` says.",
    remedy=shell_line("nvidia-smi -mig 0"),
    wants=parse_switch,
    proof=Proof("gpu.mig", _with_reading(3, (True, True))),
)
COMPUTE_MODE = Check(
    "gpu.compute_mode",
    facts=("gpu.compute_mode",),
    judge=each_gpu("gpu.compute_mode", compute_mode, "any process may use it", "default"),
    severity="warning",
    title="Compute mode",
    why="In exclusive mode the second process on a GPU is refused: a data loader, a profiler, or "
    "a rank after a crash that is not quite gone («all CUDA-capable devices are busy or "
    "unavailable»).",
    how="NVML's compute mode is the default one.",
    remedy=shell_line("nvidia-smi -c DEFAULT"),
    fix=fix_of(wanted_state("gpu", compute_mode="default")),
    proof=Proof("gpu.compute_mode", _with_reading(3, "exclusive process")),
)
BUSY = Check(
    "gpu.busy",
    facts=("gpu.use",),
    before_job=True,
    judge=each(busy, "gpu.use"),
    severity="warning",
    follows=("gpu.lost",),
    title="Other processes on the GPUs",
    why="A job that was left over takes memory and time: out of memory at start, or one rank "
    "slower than all others.",
    how="NVML's compute processes, and memory in use without the driver's own share: less than 2 "
    "GiB, or than `require: gpu.busy` says. Where it is not a pass, verify starts no rank.",
    remedy=shell_line("nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv"),
    wants=parse_size,
    proof=Proof("gpu.use", lambda readings: {**readings, 3: replace(readings[3], used=70 << 30)}),
)
