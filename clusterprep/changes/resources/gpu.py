"""How GPUs are set while they run: persistence mode, compute mode, and the default power limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.facts.gpu import NVML_LIMIT, nvml_read, parse_nvml
from clusterprep.facts.gpu_state import COMPUTE_MODE, COMPUTE_MODES, PERSISTENCE, POWER
from clusterprep.model import Absent, Inventory, Json, Read
from clusterprep.model.operations import RunCommand, StepAction

# Seconds for one GPU. Without persistence mode the driver initialises the GPU first, each time.
LIMIT = 120.0
# Resources whose steps may bring a driver and nvidia-smi.
BRINGERS = ("package", "module", "reboot", "command")


class GpuSettings(Struct, frozen=True):
    """The GPUs of a node: those that answer by their UUID, and the reasons why others do not.

    `readings` are by parameter and GPU; each is a value or Absent.
    """

    uuids: Mapping[int, str]
    lost: tuple[str, ...]
    readings: Mapping[str, Mapping[int, Any]]


class GpuSetting(Struct, frozen=True):
    """One thing that nvidia-smi sets.

    * `option` is the option of nvidia-smi, `fact` reads the setting.
    * `actual(reading)` and `wanted(parameter, reading)` return values to compare.
    * `argument(value)` is a value for the option, `shown(value)` one for messages.
    """

    title: str
    option: str
    fact: Fact
    actual: Callable[[Any], Any]
    wanted: Callable[[Any, Any], Any]
    argument: Callable[[Any], str]
    shown: Callable[[Any], str] = str


_COMPUTE_MODE_NUMBERS = {name: str(number) for number, name in COMPUTE_MODES.items()}

SETTABLE = {
    "persistence": GpuSetting(
        "persistence mode",
        "-pm",
        PERSISTENCE,
        actual=lambda reading: reading.on,
        wanted=lambda parameter, reading: parameter,
        argument=lambda on: str(int(on)),
        shown=lambda on: "on" if on else "off",
    ),
    "compute_mode": GpuSetting(
        "compute mode",
        "-c",
        COMPUTE_MODE,
        actual=lambda reading: reading,
        wanted=lambda parameter, reading: parameter.replace("_", " "),
        argument=lambda mode: _COMPUTE_MODE_NUMBERS[mode],
    ),
    # The limit in force is the lower one of the driver's limit, which -pl sets, and the BMC's
    # limit, which -pl cannot raise.
    "power_limit": GpuSetting(
        "power limit",
        "-pl",
        POWER,
        actual=lambda reading: reading.limit,
        wanted=lambda parameter, reading: reading.default,
        argument=lambda watts: f"{watts:.2f}",
        shown=lambda watts: f"{watts:g} W",
    ),
}


def parse_settings(answer: Json) -> GpuSettings | Absent | None:
    """Return the settings of all GPUs, None where there is no driver."""
    nvml = parse_nvml(answer)
    if nvml is None or isinstance(nvml, Absent):
        return nvml
    uuids = {gpu.index: gpu.uuid for gpu in nvml.gpus}
    lost = list(nvml.lost)
    for index in nvml.denied:
        lost.append(f"GPU {index}: denied")
    readings = {}
    for name, setting in SETTABLE.items():
        values = setting.fact.parse(answer)
        if isinstance(values, Absent):  # no GPU has a value
            values = dict.fromkeys(uuids, values)
        readings[name] = values
    return GpuSettings(uuids, tuple(lost), readings)


def parse_tool(answer: Json) -> bool | Absent:
    """Return whether the shell finds nvidia-smi.

    The shell ends with 127 if it does not, which is also how a missing shell is reported.
    """
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


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    settings: GpuSettings | None = context.facts[SETTINGS.name]
    if settings is None or not (settings.uuids or settings.lost):
        _refuse_missing(context)
        return
    if settings.lost:
        raise NoPlan("gpu_lost", f"not every GPU answers: {'; '.join(settings.lost)}")
    has_tool = context.facts[TOOL.name] or context.awaits(*BRINGERS)
    step_actions = []
    for key in SETTABLE:
        if key not in params:
            continue
        step_action = _set_gpus(context.node.name, key, params[key], settings)
        step_actions.append(step_action)
    if not has_tool and any(step_action.operations for step_action in step_actions):
        message = "there is no nvidia-smi, which sets them: a package of the driver's brings it"
        raise NoPlan("cannot", message)
    yield from step_actions


def _refuse_missing(context: PlanContext) -> None:
    """Raise NoPlan if a node without GPUs is declared to have some, and no driver is to come."""
    node = context.node
    if node.gpus is None or node.gpus.count == 0 or context.awaits(*BRINGERS):
        return
    message = f"the inventory has {node.gpus.count} GPUs on {node.name}"
    raise NoPlan("cannot", f"{message}, and no driver answers there")


def _set_gpus(node: str, key: str, parameter: Any, settings: GpuSettings) -> StepAction:
    """Return the action that makes one setting on all GPUs of a node."""
    setting = SETTABLE[key]
    runs = []
    changed: dict[str, list[str]] = {}  # numbers of GPUs by what changes
    for index, reading in settings.readings[key].items():
        if isinstance(reading, Absent):
            raise _not_settable(index, reading)
        actual = setting.actual(reading)
        wanted = setting.wanted(parameter, reading)
        if actual == wanted:
            continue
        uuid = settings.uuids[index]
        undo = _command(uuid, setting, actual)
        run = _command(uuid, setting, wanted)
        runs.append(replace(run, undo=(undo,)))
        change = f"{setting.shown(actual)} → {setting.shown(wanted)}"
        numbers = changed.setdefault(change, [])
        numbers.append(str(index))
    lines = []
    for change, numbers in changed.items():
        gpus = ", ".join(numbers)
        lines.append(f"GPU {gpus}: {change}")
    diff = "\n".join(lines)
    return StepAction(
        node,
        "gpu",
        setting.title,
        "update",
        tuple(runs),
        diff,
    )


def _not_settable(index: int, reading: Absent) -> NoPlan:
    reason = reading.reason
    message = f"GPU {index}: {reading.detail or reason}"
    if reason == "not_applicable":
        reason = "cannot"
    return NoPlan(reason, message)


def _command(uuid: str, setting: GpuSetting, value: Any) -> RunCommand:
    argument = setting.argument(value)
    return RunCommand(("nvidia-smi", "-i", uuid, setting.option, argument), LIMIT)


RESOURCE = StepResource("gpu", plan, facts=facts, parts=parts)
