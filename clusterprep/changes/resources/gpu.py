"""How GPUs are set while they run: persistence mode, compute mode, and the power limit that they came with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.facts.gpu import NVML_LIMIT, nvml_read, parse_nvml
from clusterprep.facts.gpu_state import COMPUTE_MODE, COMPUTE_MODES, PERSISTENCE, POWER
from clusterprep.model import Absent, Inventory, Json, Read
from clusterprep.model.operations import RunCommand, StepAction

LIMIT = 120.0  # seconds for one GPU: without persistence mode the driver brings the GPU up first, each time
BRINGERS = (
    "package",
    "module",
    "reboot",
    "command",
)  # resources whose deeds may bring a driver and its tool


@dataclass(frozen=True)
class GpuSettings:
    """The GPUs that answer by their UUID, what does not, and readings by parameter and GPU: a value, or Absent."""

    uuids: Mapping[int, str]
    lost: tuple[str, ...]
    readings: Mapping[str, Mapping[int, Any]]


@dataclass(frozen=True)
class GpuSetting:
    """One thing that nvidia-smi sets: its option, where it is read, the value in a reading, and words for a value."""

    title: str
    option: str
    fact: Fact
    value: Callable[[Any], Any]
    wanted: Callable[[Any, Any], Any]  # of the parameter and the reading
    word: Callable[[Any], str]
    shown: Callable[[Any], str] = str


POSSIBLE = {
    "persistence": GpuSetting(
        "persistence mode",
        "-pm",
        PERSISTENCE,
        lambda reading: reading.on,
        lambda param, reading: param,
        lambda on: str(int(on)),
        lambda on: "on" if on else "off",
    ),
    "compute_mode": GpuSetting(
        "compute mode",
        "-c",
        COMPUTE_MODE,
        lambda reading: reading,
        lambda param, reading: param.replace("_", " "),
        lambda mode: str(next(number for number, name in COMPUTE_MODES.items() if name == mode)),
    ),
    # The limit in force is the lower one of the driver's, which -pl sets, and the BMC's, which it cannot raise.
    "power_limit": GpuSetting(
        "power limit",
        "-pl",
        POWER,
        lambda reading: reading.limit,
        lambda param, reading: reading.default,
        lambda watts: f"{watts:.2f}",
        lambda watts: f"{watts:g} W",
    ),
}


def parse_settings(answer: Json) -> GpuSettings | Absent | None:
    """None where there is no driver."""
    nvml = parse_nvml(answer)
    if nvml is None or isinstance(nvml, Absent):
        return nvml
    uuids = {gpu.index: gpu.uuid for gpu in nvml.gpus}
    lost = (*nvml.lost, *(f"GPU {index}: denied" for index in nvml.denied))
    readings = {}
    for name, setting in POSSIBLE.items():
        found = setting.fact.parse(answer)  # absent as a whole where no GPU has a value
        readings[name] = dict.fromkeys(uuids, found) if isinstance(found, Absent) else found
    return GpuSettings(uuids, lost, readings)


def parse_tool(answer: Json) -> bool | Absent:
    """Whether the shell finds it; one that does not ends with 127, as for a tool that is missing itself."""
    if isinstance(answer, Absent):
        return False if answer.reason == "missing_tool" else answer
    return bool(answer["code"] == 0)


SETTINGS = Fact("gpu:settings", nvml_read, parse_settings, lenient=True)
TOOL = Fact(
    "gpu:nvidia-smi",
    lambda node, inventory: (Read("command", ("sh", "-c", "command -v nvidia-smi"), NVML_LIMIT),),
    parse_tool,
    lenient=True,
)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (SETTINGS, TOOL)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return tuple((f"gpu {name}", "") for name in params)


def plan(params: Params, known: PlanContext) -> Iterable[StepAction]:
    settings: GpuSettings | None = known.facts[SETTINGS.name]
    name = known.node.name
    if settings is None or not (settings.uuids or settings.lost):
        declared = 0 if known.node.gpus is None else known.node.gpus.count
        if declared and not known.awaits(*BRINGERS):
            raise NoPlan(
                "cannot",
                f"the inventory has {declared} GPUs on {name}, and no driver answers there",
            )
        return
    if settings.lost:
        raise NoPlan("gpu_lost", f"not every GPU answers: {'; '.join(settings.lost)}")
    step_actions = [_deed(name, key, params[key], settings) for key in POSSIBLE if key in params]
    if any(step_action.operations for step_action in step_actions) and not (
        known.facts[TOOL.name] or known.awaits(*BRINGERS)
    ):
        raise NoPlan(
            "cannot", "there is no nvidia-smi, which sets them: a package of the driver's brings it"
        )
    yield from step_actions


def _deed(node: str, key: str, param: Any, settings: GpuSettings) -> StepAction:
    """One setting of all GPUs of a node."""
    setting = POSSIBLE[key]
    runs = []
    words: dict[str, list[int]] = {}
    for index, reading in settings.readings[key].items():
        if isinstance(reading, Absent):
            reason = "cannot" if reading.reason == "not_applicable" else reading.reason
            raise NoPlan(reason, f"GPU {index}: {reading.detail or reading.reason}")
        value, wanted = setting.value(reading), setting.wanted(param, reading)
        if value != wanted:
            undo = RunCommand(_argv(settings.uuids[index], setting, value), LIMIT)
            runs.append(
                RunCommand(_argv(settings.uuids[index], setting, wanted), LIMIT, undo=(undo,))
            )
            words.setdefault(f"{setting.shown(value)} → {setting.shown(wanted)}", []).append(index)
    diff = "\n".join(
        f"GPU {', '.join(map(str, indices))}: {change}" for change, indices in words.items()
    )
    return StepAction(node, "gpu", setting.title, "update", tuple(runs), diff)


def _argv(uuid: str, setting: GpuSetting, value: Any) -> tuple[str, ...]:
    return "nvidia-smi", "-i", uuid, setting.option, setting.word(value)


RESOURCE = StepResource("gpu", plan, facts=facts, parts=parts)
