"""How each GPU is: errors of its memory, temperature, clocks held down, and a driver that answers slowly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.facts.gpu import PATIENCE, Readings
from clusterprep.facts.gpu_health import EccErrors, EccMode, Remap, Temperatures
from clusterprep.model import Absent, Node, Severity
from clusterprep.model.units import parse_duration
from clusterprep.runtime.lazy_dataclass import dataclass

RESET = "nvidia-smi --gpu-reset -i {gpus}   # no process may use it; on an HGX board reset all, or reboot"
# Bits of the clocks event reasons, nvml.h.
POWER_CAP, HARDWARE, SOFTWARE_THERMAL, THERMAL, BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
HARD = {
    HARDWARE: "hardware slowdown",
    THERMAL: "hardware thermal slowdown",
    BRAKE: "external power brake",
}
SOFT = {POWER_CAP: "software power cap", SOFTWARE_THERMAL: "software thermal slowdown"}
MARGIN = 5  # °C to the slowdown; what node health checks of GPU clusters allow
OUTLIER = 10  # °C over the median of the same seat in the other nodes; what node health checks of GPU clusters allow
WAKE = "nvidia-smi -pm 1; dmesg | grep -e NVRM -e Xid; reboot where that does not come back"
PEERS = 3  # seats to compare before one of them is called hot
SLOW = 1.0  # s; idle drivers answer in milliseconds


@dataclass(frozen=True)
class Trouble:
    """What is wrong with one GPU; remedy and severity default to the check's own. `{gpus}` becomes the indices."""

    message: str
    seen: str
    remedy: str | None = None
    severity: Severity | None = None


Judge = Callable[[Any], Trouble | None]


def of_job(node: Node, readings: Readings) -> dict[int, Any]:
    """The readings of the devices that this job uses: of all, where `use:` names none."""
    use = node.gpus.use if node.gpus else None
    return (
        dict(readings)
        if use is None
        else {index: readings[index] for index in use if index in readings}
    )


def by_text(said: Mapping[int, str], total: int) -> str:
    """«GPU 3, 5: off; GPU 4: …», and «all 8 GPUs: off» where all say the same."""
    texts: dict[str, list[int]] = {}
    for index, text in sorted(said.items()):
        texts.setdefault(text, []).append(index)
    if len(texts) == 1 and len(said) == total > 1:
        return f"all {total} GPUs: {next(iter(texts))}"
    return "; ".join(
        f"GPU {', '.join(map(str, indices))}: {text}" for text, indices in texts.items()
    )


def one_by_one(
    node: Node, readings: Readings, wrong: Judge, fine: str, wanted: str
) -> Iterable[Outcome]:
    """What a rule says of the GPUs of one node: failures, then what is not known, else a pass."""
    mine = of_job(node, readings)
    known = {index: value for index, value in mine.items() if not isinstance(value, Absent)}
    unknown = {
        i: v for i, v in mine.items() if isinstance(v, Absent) and v.reason != "not_applicable"
    }
    troubles = {
        index: trouble for index, value in known.items() if (trouble := wrong(value)) is not None
    }
    for kind in dict.fromkeys(replace(trouble, seen="") for trouble in troubles.values()):
        said = {i: t.seen for i, t in troubles.items() if replace(t, seen="") == kind}
        cure = (
            None
            if kind.remedy is None
            else kind.remedy.format(gpus=",".join(map(str, sorted(said))))
        )
        seen = by_text(said, len(mine))
        yield Outcome(
            "fail", (node.name,), kind.message, seen, wanted, cure, severity=kind.severity
        )
    for absent in dict.fromkeys(unknown.values()):
        said = {
            index: value.detail or value.reason
            for index, value in unknown.items()
            if value == absent
        }
        yield Outcome(
            "unknown", (node.name,), by_text(said, len(mine)), "", wanted, reason=absent.reason
        )
    if troubles or unknown:
        return
    if known:
        yield Outcome("pass", (node.name,), fine, "", wanted)
    else:
        details = [value.detail for value in mine.values() if isinstance(value, Absent)]
        message = details[0] if details else "no GPU of this job here"
        yield Outcome("skip", (node.name,), message, reason="not_applicable")


def each_gpu(
    fact: str, wrong: Judge, fine: str, wanted: str = ""
) -> Callable[[CheckContext], Iterable[Outcome]]:
    """A judge of one GPU at a time."""

    def judge(context: CheckContext) -> Iterable[Outcome]:
        for node in context.nodes:
            yield from one_by_one(node, context.value(node, fact), wrong, fine, wanted)

    return judge


def ecc_mode(context: CheckContext) -> Iterable[Outcome]:
    """On, or as required, and no change that waits for a reset."""
    for node in context.nodes:
        required = context.wanted(node)
        wanted = None if required is None else parse_switch(required)
        judge = partial(_ecc_mode, wanted=wanted)
        text = "on, or the factory's setting" if required is None else required
        yield from one_by_one(
            node, context.value(node, "gpu.ecc_mode"), judge, "ECC is as wanted", text
        )


def _ecc_mode(mode: EccMode, wanted: bool | None) -> Trouble | None:
    if wanted is None:  # who switched on what is off by default meant it
        wanted = mode.on or mode.default is not False
    now, then = ("on" if mode.on else "off"), ("on" if mode.pending else "off")
    if mode.pending != mode.on:
        return Trouble("a change of ECC waits for a reset", f"{now}, {then} after a reset", RESET)
    if mode.on != wanted:
        cure = f"nvidia-smi -i {{gpus}} -e {int(wanted)} && {RESET}"
        return Trouble(f"ECC is {now}", now, cure)
    return None


def parse_switch(text: str) -> bool:
    """`on` or `off`. Raises ValueError for anything else."""
    if text.lower() not in ("on", "off", "true", "false"):
        raise ValueError(f"expected on or off; seen '{text}'")
    return text.lower() in ("on", "true")


def ecc_errors(errors: EccErrors) -> Trouble | None:
    if errors.since_load:
        return Trouble(
            "uncorrected memory errors since the driver was loaded", str(errors.since_load), RESET
        )
    if errors.exceeded:
        return Trouble(
            "SRAM errors are over the maker's threshold: replace it", "threshold exceeded", ""
        )
    return None


def ecc_unc(context: CheckContext) -> Iterable[Outcome]:
    """None since the driver was loaded; those of the board's life are told and not judged."""
    for node in context.nodes:
        readings = context.value(node, "gpu.ecc")
        old = {
            i: str(e.ever)
            for i, e in of_job(node, readings).items()
            if isinstance(e, EccErrors) and e.ever
        }
        fine = "no uncorrected memory errors since the driver was loaded"
        for outcome in one_by_one(
            node, readings, ecc_errors, fine, "0 since the driver was loaded"
        ):
            if outcome.verdict == "pass" and old:
                told = by_text(old, len(readings))
                yield replace(
                    outcome, message=f"{fine}; over the board's life there were some", seen=told
                )
            else:
                yield outcome


def remap(rows: Remap) -> Trouble | None:
    if rows.failed:
        message = "a row of memory could not be replaced: the board needs replacing"
        return Trouble(
            message, "remapping failed", "nvidia-bug-report.sh   # then return the board", "error"
        )
    if rows.pending:
        return Trouble(
            "a row of memory is to be replaced at the next reset", "remapping pending", RESET
        )
    if rows.spent:
        message = "banks of memory have no spare rows left: the next error cannot be repaired"
        return Trouble(
            message, f"{rows.spent} banks without spare rows", "plan to return the board"
        )
    return None


def temp(context: CheckContext) -> Iterable[Outcome]:
    """Away from the slowdown, and not much hotter than the same seat in the other nodes."""
    usual = _usual(context)
    for node in context.nodes:
        wanted = context.wanted(node)
        margin = MARGIN if wanted is None else parse_margin(wanted)
        readings: Readings = context.value(node, "gpu.heat")
        judged = {
            i: _judged(heat, margin, usual.get((_kind(node), i))) for i, heat in readings.items()
        }
        text = f"at least {margin} °C below the slowdown"
        yield from one_by_one(
            node, judged, lambda v: v if isinstance(v, Trouble) else None, "cool enough", text
        )


def _judged(
    heat: Temperatures | Absent, margin: int, usual: float | None
) -> Trouble | Absent | Temperatures:
    if isinstance(heat, Absent):
        return heat
    no_limit = Absent("not_applicable", "this GPU tells no temperature limit")
    return _heat(heat, margin, usual) or (no_limit if heat.left is None else heat)


def _kind(node: Node) -> str | None:
    return node.gpus.model if node.gpus else None


def _usual(context: CheckContext) -> dict[tuple[str | None, int], float]:
    """The median of each seat over nodes of one kind: in a box that is cooled with air the seats differ by design."""
    seats: dict[tuple[str | None, int], list[int]] = {}
    for node in context.nodes:
        for index, heat in context.value(node, "gpu.heat").items():
            if isinstance(heat, Temperatures):
                seats.setdefault((_kind(node), index), []).append(heat.chip)
    return {seat: median(values) for seat, values in seats.items() if len(values) >= PEERS}


def _heat(heat: Temperatures, margin: int, usual: float | None) -> Trouble | None:
    if heat.left is not None and heat.left < margin:
        return Trouble(
            "close to the temperature at which it slows down",
            f"{heat.chip} °C, {heat.left} °C left",
        )
    if usual is not None and heat.chip - usual > OUTLIER:
        return Trouble(
            "hotter than the same seat in the other nodes",
            f"{heat.chip} °C, elsewhere {usual:g} °C",
        )
    return None


def parse_margin(text: str) -> int:
    """°C to the slowdown. Raises ValueError for what is no whole number."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(
            f"expected whole degrees Celsius below the slowdown, such as 5; seen '{text}'"
        )
    return int(text)


def throttle_hw(samples: tuple[int, ...]) -> Trouble | None:
    """Only what every sample shows: bit 8 also flashes when clocks change (nvml.h)."""
    held = [text for bit, text in HARD.items() if all(bits & bit for bits in samples)]
    return Trouble("the hardware holds the clocks down", " and ".join(held)) if held else None


def throttle_sw(context: CheckContext) -> Iterable[Outcome]:
    """Information: a GPU at full load meets its power limit, and that is no fault."""
    for node in context.nodes:
        mine = {
            i: s
            for i, s in of_job(node, context.value(node, "gpu.throttle")).items()
            if isinstance(s, tuple)
        }
        capped = {i: words for i, samples in mine.items() if (words := _soft(samples))}
        if capped:
            message = "the driver holds the clocks at a limit, which is normal under load"
            yield Outcome("skip", (node.name,), message, by_text(capped, len(mine)), reason="busy")
        else:
            yield from one_by_one(
                node,
                context.value(node, "gpu.throttle"),
                lambda _: None,
                "no limit holds the clocks down",
                "",
            )


def _soft(samples: tuple[int, ...]) -> str:
    return " and ".join(text for bit, text in SOFT.items() if all(bits & bit for bits in samples))


def latency(context: CheckContext) -> Iterable[Outcome]:
    """Under a second, or as required; a driver that does not answer at all is the worst case of it."""
    for node in context.nodes:
        wanted = context.wanted(node)
        limit = SLOW if wanted is None else parse_duration(wanted)
        readings = context.value(node, "gpu.latency")
        text = f"at most {limit:g} s"
        if readings is None:
            message = "the driver is stuck, or wakes idle GPUs, for persistence mode is off"
            yield Outcome(
                "fail", (node.name,), message, f"no answer within {PATIENCE:g} s", text, WAKE
            )
            continue
        yield from one_by_one(
            node, readings, partial(_slow, limit=limit), "it answers at once", text
        )


def _slow(seconds: float, limit: float) -> Trouble | None:
    if seconds <= limit:
        return None
    return Trouble("a trivial question to the driver takes long", f"{seconds:.1f} s")


def _turned(index: int, **changes: Any) -> Callable[[Readings], Readings]:
    """For proofs: one GPU's reading changed."""
    return lambda readings: {**readings, index: replace(readings[index], **changes)}


ECC_MODE = Check(
    "gpu.ecc_mode",
    facts=("gpu.ecc_mode",),
    judge=ecc_mode,
    severity="warning",
    title="ECC of the GPU's memory",
    why="Without ECC a flipped bit goes into the weights unseen; a change that waits for a reset makes one node of "
    "the job differ from the others after its next boot.",
    how="NVML's ECC mode, now and after the next reset: on, or off on cards that the factory ships so. GPUs "
    "without ECC are skipped. `require: {gpu.ecc_mode: off}` wants it off.",
    remedy="nvidia-smi -e 1 && nvidia-smi --gpu-reset",
    wants=parse_switch,
    proof=Proof("gpu.ecc_mode", _turned(3, on=False, pending=False)),
)
ECC = Check(
    "gpu.ecc_unc",
    facts=("gpu.ecc",),
    judge=ecc_unc,
    severity="error",
    title="Uncorrected memory errors",
    why="Data was lost: the process that used the page was killed, and the next one may be.",
    how="NVML's uncorrected ECC errors since the driver was loaded, and the SRAM threshold flag where the driver has "
    "one. Errors over the board's life alone are told and not judged.",
    remedy="nvidia-smi --gpu-reset; when they come back, return the board",
    proof=Proof("gpu.ecc", _turned(3, since_load=2)),
)
REMAP = Check(
    "gpu.remap",
    facts=("gpu.remap",),
    judge=each_gpu(
        "gpu.remap", remap, "no row of memory waits to be replaced", "none pending, none failed"
    ),
    severity="warning",
    title="Replaced rows of GPU memory",
    why="A pending row is still in use until the reset; where replacing failed, memory is bad for good.",
    how="NVML's remapped rows: pending asks for a reset, failed (an error) for a new board, and a bank without spare "
    "rows cannot be repaired the next time.",
    remedy="nvidia-smi --gpu-reset",
    proof=Proof("gpu.remap", _turned(3, pending=True)),
)
TEMP = Check(
    "gpu.temp",
    facts=("gpu.heat",),
    judge=temp,
    severity="warning",
    title="Temperature",
    why="A GPU that meets its limit halves its clocks, and the whole job waits for it at every step.",
    how="NVML's temperature and its margin to the slowdown: at least 5 °C, or what `require: gpu.temp` says; and no "
    "more than 10 °C over the median of the same seat in the other nodes, from three nodes on.",
    remedy="check fans, air flow and inlet temperature of this node",
    wants=parse_margin,
    proof=Proof("gpu.heat", _turned(3, left=2)),
)
THROTTLE_HW = Check(
    "gpu.throttle_hw",
    facts=("gpu.throttle",),
    judge=each_gpu(
        "gpu.throttle", throttle_hw, "at rest the hardware does not slow it down", "no slowdown"
    ),
    severity="warning",
    title="Clocks held down by the hardware",
    why="Heat, a failing power supply or a power brake of the rack "
    "halve the clocks of one GPU, and the job's pace with it.",
    how="NVML's clocks event reasons, three samples within 0.1 s: hardware slowdown, hardware thermal slowdown or "
    "power brake in all of them. At rest a pass says little about load.",
    remedy="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; check power supplies and fans",
    proof=Proof("gpu.throttle", lambda readings: {**readings, 3: (0x41, 0x41, 0x41)}),
)
THROTTLE_SW = Check(
    "gpu.throttle_sw",
    facts=("gpu.throttle",),
    judge=throttle_sw,
    severity="warning",
    title="Clocks held at a limit by the driver",
    why="A GPU that meets its power limit under load is normal; it is told for who wonders about clocks.",
    how="NVML's clocks event reasons: software power cap and software thermal slowdown. Never a failure.",
    remedy="nvidia-smi -q -d PERFORMANCE,POWER",
    proof=Proof("gpu.throttle", lambda readings: {**readings, 3: (0x4, 0x4, 0x4)}, "skip"),
)
LATENCY = Check(
    "gpu.latency",
    facts=("gpu.latency",),
    judge=latency,
    severity="warning",
    title="How fast the driver answers",
    why="Before a driver sticks for good it gets slow: queries take seconds, then CUDA hangs in the kernel.",
    how="The time of one NVML query to each GPU. Over 1 s, or over what `require: gpu.latency` says, fails, and so "
    "does no answer within 10 s; all else that NVML would say is then unknown (hung).",
    remedy="dmesg | grep -e NVRM -e Xid; reboot before a job starts there",
    wants=parse_duration,
    proof=Proof("gpu.latency", lambda readings: {**readings, 3: 2.5}),
)
