"""Health of each GPU: memory errors, temperature, clocks held down, and a driver that is slow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import (
    Check,
    CheckContext,
    NodeJudge,
    Outcome,
    Proof,
    about_all,
    each,
    failed,
    parse_count,
    passed,
    skipped,
    unknown,
)
from clusterprep.facts.counters import Earlier, Sample
from clusterprep.facts.gpu import NVML_LIMIT, Nvml, Readings
from clusterprep.facts.gpu_counters import HELD
from clusterprep.facts.gpu_health import EccErrors, EccMode, Remap, Temperatures
from clusterprep.model import Absent, Node, Severity
from clusterprep.model.fact_columns import Part
from clusterprep.model.units import format_duration, parse_duration
from clusterprep.remedies import NO_REMEDY, Remedy, placed, sentence, shell_line

RESET = shell_line(
    "nvidia-smi --gpu-reset -i GPUS   # no process may use it; on an HGX board reset all, or reboot"
)
# Bits of the clocks event reasons, nvml.h.
POWER_CAP, HARDWARE, SOFTWARE_THERMAL, THERMAL, BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
HARD = {
    HARDWARE: "hardware slowdown",
    THERMAL: "hardware thermal slowdown",
    BRAKE: "external power brake",
}
SOFT = {POWER_CAP: "software power cap", SOFTWARE_THERMAL: "software thermal slowdown"}
# Both limits of temperature are those of node health checks of GPU clusters.
MARGIN = 5  # °C to the slowdown
OUTLIER = 10  # °C over the median of the same seat in the other nodes
WAKE = shell_line(
    "nvidia-smi -pm 1; dmesg | grep -e NVRM -e Xid   # reboot where that does not come back"
)
# Limits of NVML_FI_DEV_PERF_POLICY_* that are faults of cooling and supply.
HELD_BY = {HELD + "thermal": "heat", HELD + "board_limit": "the board's limit"}
HELD_PART = 0.01  # of the time between two looks
PEERS = 3  # seats to compare before one of them is called hot
COUNTED = ("gpu.counters", "gpu.nvml")  # the counters of GPUs by UUID, and their indices
SLOW = 1.0  # s; idle drivers answer in milliseconds


class Trouble(Struct, frozen=True):
    """What is wrong with one GPU. GPUS in the remedy becomes the indices of the GPUs.

    `remedy` and `severity` default to the check's own.
    """

    message: str
    seen: str
    remedy: Remedy | None = None
    severity: Severity | None = None


Judge = Callable[[Any], Trouble | None]
"""Judges the reading of one GPU."""

JudgedGpus = tuple[tuple[int, Trouble | Absent | None], ...]
"""What is wrong with each GPU, by its index: None if nothing is, or why it is not known."""

Seat = tuple[str | None, int]
"""Model of GPU that is declared for a node, and index of a GPU."""


# ---------------------------------------------------------------- one GPU at a time


def of_job(node: Node, readings: Readings) -> dict[int, Any]:
    """Return the readings of the devices that this job uses: of all, unless `use:` names some."""
    if node.gpus is None or node.gpus.use is None:
        return dict(readings)
    return {index: readings[index] for index in node.gpus.use if index in readings}


def by_text(texts: Mapping[int, str], total: int) -> str:
    """Return texts with the GPUs that have them.

    «GPU 3, 5: off; GPU 4: …», and «all 8 GPUs: off» if all have the same text.
    """
    groups: dict[str, list[int]] = {}
    for index in sorted(texts):
        groups.setdefault(texts[index], []).append(index)
    if len(groups) == 1 and len(texts) == total > 1:
        (text,) = groups
        return f"all {total} GPUs: {text}"
    parts = []
    for text, indices in groups.items():
        numbers = ", ".join(map(str, indices))
        parts.append(f"GPU {numbers}: {text}")
    return "; ".join(parts)


def one_by_one(
    node: Node, readings: Readings, wrong: Judge, fine: str, wanted: str
) -> Iterable[Outcome]:
    """Judge each GPU of a node by `wrong`.

    Yields failures, then what is not known; a pass with the message `fine` if there are neither.
    """
    of_node = of_job(node, readings)
    troubles: dict[int, Trouble] = {}
    unreadable: dict[int, Absent] = {}
    has_known = False
    for index, value in of_node.items():
        if isinstance(value, Absent):
            if value.reason != "not_applicable":
                unreadable[index] = value
            continue
        has_known = True
        trouble = wrong(value)
        if trouble is not None:
            troubles[index] = trouble
    yield from _failures(node, troubles, len(of_node), wanted)
    yield from _not_known(node, unreadable, len(of_node), wanted)
    if troubles or unreadable:
        return
    if has_known:
        yield passed(node, fine, "", wanted)
        return
    message = "no GPU of this job here"
    if of_node:
        first = next(iter(of_node.values()))
        message = first.detail
    yield skipped(node, message)


def _failures(
    node: Node, troubles: Mapping[int, Trouble], total: int, wanted: str
) -> Iterable[Outcome]:
    """Yield one failure for each kind of trouble, with what is seen of each GPU."""
    kinds: dict[Trouble, dict[int, str]] = {}
    for index, trouble in troubles.items():
        kind = replace(trouble, seen="")
        kinds.setdefault(kind, {})[index] = trouble.seen
    for kind, seen_by_gpu in kinds.items():
        remedy = kind.remedy
        if remedy is not None:
            gpus = ",".join(map(str, sorted(seen_by_gpu)))
            remedy = placed(remedy, GPUS=gpus)
        seen = by_text(seen_by_gpu, total)
        yield failed(
            node,
            kind.message,
            seen,
            wanted,
            remedy,
            kind.severity,
        )


def _not_known(
    node: Node, unreadable: Mapping[int, Absent], total: int, wanted: str
) -> Iterable[Outcome]:
    """Yield one unknown for each reason, with the GPUs that have it."""
    gpus_by_absent: dict[Absent, list[int]] = {}
    for index, absent in unreadable.items():
        gpus_by_absent.setdefault(absent, []).append(index)
    for absent, gpus in gpus_by_absent.items():
        detail = absent.detail or absent.reason
        message = by_text(dict.fromkeys(gpus, detail), total)
        yield unknown(node, message, absent.reason, wanted=wanted)


def each_gpu(fact: str, wrong: Judge, fine: str, wanted: str = "") -> NodeJudge:
    """Return a judge of all nodes that judges one GPU at a time."""

    def judge(context: CheckContext, node: Node, readings: Readings) -> Iterable[Outcome]:
        return one_by_one(
            node,
            readings,
            wrong,
            fine,
            wanted,
        )

    return each(judge, fact)


# ---------------------------------------------------------------- memory


def ecc_mode(context: CheckContext, node: Node, readings: Readings) -> Iterable[Outcome]:
    """Judge that ECC is on, or as required, and that no change waits for a reset."""
    required = context.wanted(node)
    text = "on, or the factory's setting"
    wanted = None
    if required is not None:
        text = required
        wanted = parse_switch(required)
    judge = partial(_ecc_mode, wanted=wanted)
    return one_by_one(
        node,
        readings,
        judge,
        "ECC is as wanted",
        text,
    )


def _ecc_mode(mode: EccMode, wanted: bool | None) -> Trouble | None:
    now = _switch(mode.on)
    if mode.pending != mode.on:
        seen = f"{now}, {_switch(mode.pending)} after a reset"
        return Trouble("a change of ECC waits for a reset", seen, RESET)
    if wanted is None:
        # ECC that is off by default and on was switched on deliberately.
        wanted = mode.on or mode.default is not False
    if mode.on == wanted:
        return None
    remedy = shell_line(
        "nvidia-smi -i GPUS -e {mode} && nvidia-smi --gpu-reset -i GPUS"
        "   # no process may use it; on an HGX board reset all, or reboot",
        mode=int(wanted),
    )
    return Trouble(f"ECC is {now}", now, remedy)


def _switch(is_on: bool) -> str:
    return "on" if is_on else "off"


def parse_switch(text: str) -> bool:
    """Parse `on` or `off`. Raises ValueError for anything else."""
    word = text.lower()
    if word not in ("on", "off", "true", "false"):
        raise ValueError(f"expected on or off; seen '{text}'")
    return word in ("on", "true")


def ecc_errors(errors: EccErrors) -> Trouble | None:
    """Return what is wrong with the memory of a GPU."""
    if errors.since_load:
        message = "uncorrected memory errors since the driver was loaded"
        return Trouble(message, str(errors.since_load), RESET)
    if errors.exceeded:
        message = "SRAM errors are over the maker's threshold: replace it"
        return Trouble(message, "threshold exceeded", NO_REMEDY)
    return None


def ecc_unc(context: CheckContext, node: Node, readings: Readings) -> Iterable[Outcome]:
    """Judge errors since the driver was loaded; those of the board's life are only shown."""
    fine = "no uncorrected memory errors since the driver was loaded"
    wanted = "0 since the driver was loaded"
    earlier: dict[int, str] = {}
    for index, errors in of_job(node, readings).items():
        if isinstance(errors, EccErrors) and errors.ever:
            earlier[index] = str(errors.ever)
    for outcome in one_by_one(
        node,
        readings,
        ecc_errors,
        fine,
        wanted,
    ):
        if outcome.verdict == "pass" and earlier:
            message = f"{fine}; over the board's life there were some"
            seen = by_text(earlier, len(readings))
            yield replace(outcome, message=message, seen=seen)
        else:
            yield outcome


def remap(rows: Remap) -> Trouble | None:
    """Return what is wrong with the replaced rows of a GPU's memory."""
    if rows.failed:
        message = "a row of memory could not be replaced: the board needs replacing"
        remedy = shell_line("nvidia-bug-report.sh   # then return the board")
        return Trouble(message, "remapping failed", remedy, "error")
    if rows.pending:
        message = "a row of memory is to be replaced at the next reset"
        return Trouble(message, "remapping pending", RESET)
    if rows.spent:
        message = "banks of memory have no spare rows left: the next error cannot be repaired"
        seen = f"{rows.spent} banks without spare rows"
        return Trouble(message, seen, sentence("plan to return the board"))
    return None


# ---------------------------------------------------------------- temperature


def temp(context: CheckContext) -> Iterable[Outcome]:
    """Judge the margin to the slowdown, and the difference from the same seat in other nodes."""
    usual = _usual_temperatures(context)
    for nodes in context.alike():
        node = nodes[0]
        required = context.wanted(node)
        margin = MARGIN if required is None else parse_margin(required)
        readings: Readings = context.value(node, "gpu.heat")
        judged: dict[int, Trouble | Absent | Temperatures] = {}
        for index, heat in readings.items():
            usual_of_seat = usual.get(_seat(node, index))
            judged[index] = _judged_heat(heat, margin, usual_of_seat)
        wanted = f"at least {margin} °C below the slowdown"
        outcomes = one_by_one(
            node,
            judged,
            _as_trouble,
            "cool enough",
            wanted,
        )
        yield from about_all(nodes, outcomes)


def _as_trouble(value: Trouble | Temperatures) -> Trouble | None:
    return value if isinstance(value, Trouble) else None


def _judged_heat(
    heat: Temperatures | Absent, margin: int, usual: float | None
) -> Trouble | Absent | Temperatures:
    """Return the trouble of a GPU, or its reading; Absent if it cannot be judged."""
    if isinstance(heat, Absent):
        return heat
    trouble = _too_hot(heat, margin, usual)
    if trouble is not None:
        return trouble
    if heat.left is None:
        return Absent("not_applicable", "this GPU tells no temperature limit")
    return heat


def _seat(node: Node, index: int) -> Seat:
    model = node.gpus.model if node.gpus else None
    return model, index


def _usual_temperatures(context: CheckContext) -> dict[Seat, float]:
    """Return the median of each seat over nodes of one kind.

    In a box that is cooled with air the seats differ by design.
    """
    chips_by_seat: dict[Seat, list[int]] = {}
    for nodes in context.alike():
        first = nodes[0]
        readings: Readings = context.value(first, "gpu.heat")
        for index, heat in readings.items():
            if isinstance(heat, Temperatures):
                chips = chips_by_seat.setdefault(_seat(first, index), [])
                chips.extend([heat.chip] * len(nodes))
    usual = {}
    for seat, chips in chips_by_seat.items():
        if len(chips) >= PEERS:
            usual[seat] = median(chips)
    return usual


def _too_hot(heat: Temperatures, margin: int, usual: float | None) -> Trouble | None:
    if heat.left is not None and heat.left < margin:
        message = "close to the temperature at which it slows down"
        return Trouble(message, f"{heat.chip} °C, {heat.left} °C left")
    if usual is not None and heat.chip - usual > OUTLIER:
        message = "hotter than the same seat in the other nodes"
        return Trouble(message, f"{heat.chip} °C, elsewhere {usual:g} °C")
    return None


def parse_margin(text: str) -> int:
    """Parse °C to the slowdown. Raises ValueError for what is no whole number."""
    return parse_count(text, "whole degrees Celsius below the slowdown, such as 5")


# ---------------------------------------------------------------- clocks held down


def throttle_hw(context: CheckContext) -> Iterable[Outcome]:
    """Judge the reasons that every sample shows, and the time since an earlier run.

    The bit of the hardware slowdown also flashes when clocks change (nvml.h).
    """
    held_since = partial(_held_since, context)
    for nodes in context.alike_by(held_since, "gpu.throttle"):
        held, is_compared = held_since(nodes[0])
        judged = _judged_samples(context.value(nodes[0], "gpu.throttle"), dict(held))
        fine = "at rest the hardware does not slow it down"
        if is_compared and not held:
            fine += ", and heat did not since the earlier run"
        outcomes = one_by_one(
            nodes[0],
            judged,
            trouble_or_none,
            fine,
            "no slowdown",
        )
        yield from about_all(nodes, outcomes)


def _judged_samples(readings: Readings, held: Mapping[int, Trouble]) -> Readings:
    """Return what is wrong with each GPU by its samples, else by what held it down before."""
    judged: dict[int, Trouble | Absent | None] = {}
    for index, samples in readings.items():
        is_sampled = isinstance(samples, tuple)
        judged[index] = _held_now(samples) or held.get(index) if is_sampled else samples
    return judged


def trouble_or_none(value: object) -> Trouble | None:
    """Return a reading that was judged before: its trouble, or None."""
    return value if isinstance(value, Trouble) else None


def _held_now(samples: tuple[int, ...]) -> Trouble | None:
    seen = _reasons_in_all(samples, HARD)
    return Trouble("the hardware holds the clocks down", seen) if seen else None


def _earlier_counters(context: CheckContext, node: Node) -> Sample | None:
    earlier = context.fleet.fact(node.name, "counters.earlier")
    return earlier.recent if isinstance(earlier, Earlier) and earlier.recent.gpu else None


def _held_since(context: CheckContext, node: Node) -> tuple[tuple[tuple[int, Trouble], ...], bool]:
    """Return the GPUs that heat or the board's limit held down for long since an earlier run.

    And whether there is one to compare with.
    """
    sample = _earlier_counters(context, node)
    counters = context.fleet.fact(node.name, "gpu.counters")
    nvml = context.fleet.fact(node.name, "gpu.nvml")
    if sample is None or isinstance(counters, Absent) or not isinstance(nvml, Nvml):
        return (), sample is not None
    if counters == sample.gpu:  # as on a node that did nothing meanwhile
        return (), True
    troubles = []
    for gpu in nvml.gpus:
        before = (sample.gpu or {}).get(gpu.uuid)
        current = counters.get(gpu.uuid)
        if before is None or current is None:
            continue
        parts = []
        for name, words in HELD_BY.items():
            seconds = _growth(current, before, name) / 1e9
            if seconds > HELD_PART * sample.seconds:
                parts.append(f"{words} for {seconds / sample.seconds:.0%} of the time")
        if parts:
            seen = f"{' and '.join(parts)} in {format_duration(round(sample.seconds))}"
            message = "the hardware held the clocks down for part of the time"
            troubles.append((gpu.index, Trouble(message, seen)))
    return tuple(troubles), True


def _growth(now: Mapping[str, int], before: Mapping[str, int], name: str) -> int:
    """Return the growth of a counter, 0 where one of both samples lacks it or it was reset."""
    if name not in now or name not in before:
        return 0
    return max(0, now[name] - before[name])


def throttle_sw(context: CheckContext, node: Node, readings: Readings) -> Iterable[Outcome]:
    """Skip a node on which limits hold the clocks, with the limits: under load that is normal.

    A GPU at full load meets its power limit, as it should.
    """
    sampled = 0
    capped: dict[int, str] = {}
    for index, samples in of_job(node, readings).items():
        if not isinstance(samples, tuple):
            continue
        sampled += 1
        limits = _reasons_in_all(samples, SOFT)
        if limits:
            capped[index] = limits
    if capped:
        message = "the driver holds the clocks at a limit, which is normal under load"
        return [skipped(node, message, by_text(capped, sampled), reason="busy")]
    fine = "no limit holds the clocks down"
    return one_by_one(
        node,
        readings,
        never_wrong,
        fine,
        "",
    )


def never_wrong(value: object) -> None:
    """Judge every reading as good: it is enough that there is one."""


def _reasons_in_all(samples: tuple[int, ...], reasons: Mapping[int, str]) -> str:
    """Return the reasons whose bit is set in all samples."""
    common = -1  # all bits
    for bits in samples:
        common &= bits
    return " and ".join(text for bit, text in reasons.items() if common & bit)


# ---------------------------------------------------------------- the driver's answers


def latency(context: CheckContext, node: Node, readings: Readings | None) -> Iterable[Outcome]:
    """Judge that the driver answers within a second, or as required.

    No answer at all is the worst case of a slow one.
    """
    required = context.wanted(node)
    limit = SLOW if required is None else parse_duration(required)
    wanted = f"at most {limit:g} s"
    if readings is None:
        message = "the driver is stuck, or wakes idle GPUs, for persistence mode is off"
        seen = f"no answer within {NVML_LIMIT:g} s"
        return [failed(node, message, seen, wanted, WAKE)]
    judge = partial(_slow, limit=limit)
    return one_by_one(
        node,
        readings,
        judge,
        "it answers at once",
        wanted,
    )


def _prompt(readings: Readings | None) -> Hashable:
    """Return what is said of the answers, where our own limit is the one that counts."""
    if readings is None:
        return None
    said = []
    for index, seconds in readings.items():
        is_prompt = not isinstance(seconds, Absent) and seconds <= SLOW
        said.append((index, "prompt" if is_prompt else seconds))
    return tuple(said)


def _slow(seconds: float, limit: float) -> Trouble | None:
    if seconds <= limit:
        return None
    return Trouble("a trivial question to the driver takes long", f"{seconds:.1f} s")


def _with_changes(index: int, **changes: Any) -> Callable[[Readings], Readings]:
    """Return a `turn` for proofs that changes the reading of one GPU."""
    return lambda readings: {
        **readings,
        index: replace(readings[index], **changes),
    }


ECC_MODE = Check(
    "gpu.ecc_mode",
    facts=("gpu.ecc_mode",),
    judge=each(ecc_mode, "gpu.ecc_mode"),
    severity="warning",
    title="ECC of the GPU's memory",
    why="Without ECC a flipped bit goes into the weights unseen; a change that waits for a reset "
    "makes one node of the job differ from the others after its next boot.",
    how="NVML's ECC mode, now and after the next reset: on, or off on cards that the factory "
    "ships so. GPUs without ECC are skipped. `require: {gpu.ecc_mode: off}` wants it off.",
    remedy=shell_line("nvidia-smi -e 1 && nvidia-smi --gpu-reset"),
    wants=parse_switch,
    proof=Proof("gpu.ecc_mode", _with_changes(3, on=False, pending=False)),
)
ECC = Check(
    "gpu.ecc_unc",
    facts=("gpu.ecc",),
    judge=each(ecc_unc, "gpu.ecc"),
    severity="error",
    title="Uncorrected memory errors",
    why="Data was lost: the process that used the page was killed, and the next one may be.",
    how="NVML's uncorrected ECC errors since the driver was loaded, and the SRAM threshold flag "
    "where the driver has one. Errors over the board's life alone are told and not judged.",
    remedy=shell_line("nvidia-smi --gpu-reset   # when they come back, return the board"),
    proof=Proof("gpu.ecc", _with_changes(3, since_load=2)),
)
REMAP = Check(
    "gpu.remap",
    facts=("gpu.remap",),
    judge=each_gpu(
        "gpu.remap", remap, "no row of memory waits to be replaced", "none pending, none failed"
    ),
    severity="warning",
    title="Replaced rows of GPU memory",
    why="A pending row is still in use until the reset; where replacing failed, memory is bad for "
    "good.",
    how="NVML's remapped rows: pending asks for a reset, failed (an error) for a new board, and a "
    "bank without spare rows cannot be repaired the next time.",
    remedy=shell_line("nvidia-smi --gpu-reset"),
    proof=Proof("gpu.remap", _with_changes(3, pending=True)),
)
TEMP = Check(
    "gpu.temp",
    facts=("gpu.heat",),
    judge=temp,
    severity="warning",
    follows=("gpu.lost",),
    title="Temperature",
    why="A GPU that meets its limit halves its clocks, and the whole job waits for it at every "
    "step.",
    how="NVML's temperature and its margin to the slowdown: at least 5 °C, or what `require: "
    "gpu.temp` says; and no more than 10 °C over the median of the same seat in the other nodes, "
    "from three nodes on.",
    remedy=sentence("check fans, air flow and inlet temperature of this node"),
    wants=parse_margin,
    proof=Proof("gpu.heat", _with_changes(3, left=2)),
)
THROTTLE_HW = Check(
    "gpu.throttle_hw",
    facts=("gpu.throttle",),
    uses=("counters.earlier", "host.boot_id", "host.uptime", "ib.counters", *COUNTED),
    judge=throttle_hw,
    severity="warning",
    title="Clocks held down by the hardware",
    why="Heat, a failing power supply or a power brake of the rack "
    "halve the clocks of one GPU, and the job's pace with it.",
    how="NVML's clocks event reasons, three samples within 0.1 s: hardware slowdown, hardware "
    "thermal slowdown or power brake in all of them. At rest a pass says little about load; so "
    "where an earlier run of this boot noted the counters, heat and the board's limit may not have "
    "held the clocks for more than 1 % of the time since.",
    remedy=shell_line(
        "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; check power supplies and fans"
    ),
    proof=Proof("gpu.throttle", lambda readings: {**readings, 3: (0x41, 0x41, 0x41)}),
)
THROTTLE_SW = Check(
    "gpu.throttle_sw",
    facts=("gpu.throttle",),
    judge=each(throttle_sw, "gpu.throttle"),
    severity="warning",
    title="Clocks held at a limit by the driver",
    why="A GPU that meets its power limit under load is normal; this shows why its clocks are "
    "lower.",
    how="NVML's clocks event reasons: software power cap and software thermal slowdown. Never a "
    "failure.",
    remedy=shell_line("nvidia-smi -q -d PERFORMANCE,POWER"),
    proof=Proof("gpu.throttle", lambda readings: {**readings, 3: (0x4, 0x4, 0x4)}, "skip"),
)
LATENCY = Check(
    "gpu.latency",
    facts=("gpu.latency",),
    judge=each(latency, "gpu.latency", parts_by_default=(Part("gpu.latency", _prompt),)),
    severity="warning",
    title="How fast the driver answers",
    why="Before a driver sticks for good it gets slow: queries take seconds, then CUDA hangs in "
    "the kernel.",
    how="The time of one NVML query to each GPU. Over 1 s, or over what `require: gpu.latency` "
    "says, fails, and so does no answer within 10 s; all else that NVML would say is then unknown "
    "(hung).",
    remedy=shell_line("dmesg | grep -e NVRM -e Xid   # reboot before a job starts there"),
    wants=parse_duration,
    proof=Proof("gpu.latency", lambda readings: {**readings, 3: 2.5}),
)
