"""NVIDIA GPUs as three sources list them: the PCI bus, the driver and NVML."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import starmap
from operator import attrgetter, itemgetter
from typing import Any, TypedDict

from msgspec import UNSET, Raw, Struct, UnsetType, defstruct

from clusterprep.facts import Fact, file
from clusterprep.facts.parts import Apart, as_json, shared_text
from clusterprep.model import Absent, Inventory, Node, Read
from clusterprep.model.fact_columns import Part

Readings = Mapping[int, Any]  # of each GPU that answers, by NVML's index: a value, or Absent
NVML_LIMIT = 10.0  # seconds that a driver gets to answer all of it
MOST_GPUS = 64  # of a node whose UUIDs are set apart
# Fields of NVML that are the same on healthy GPUs of one model, and from one look to the next. The
# facts that are made of these alone are parsed once for all nodes on which they all are equal.
LASTING = frozenset(
    {
        "bar",
        "capability",
        "clock_application_graphics",
        "clock_application_memory",
        "clock_default_graphics",
        "clock_default_memory",
        "clock_max_graphics",
        "clock_max_memory",
        "cluster",
        "compute_mode",
        "ecc",
        "ecc_aggregate",
        "ecc_default",
        "ecc_volatile",
        "fabric",
        "gsp",
        "inforom",
        "link_speeds",
        "links",
        "mig",
        "name",
        "p2p",
        "part",
        "persistence",
        "power_default",
        "power_enforced",
        "power_limit",
        "recovery",
        "remap",
        "remap_banks",
        "retired_double",
        "retired_pending",
        "retired_single",
        "sram",
        "vbios",
        "virtualization",
    }
)


# Fields that are the same on healthy GPUs of one model as long as nothing uses them. The facts that
# are made of these are parsed together too.
AT_REST = frozenset(
    {
        "capability",
        "clock",
        "clock_max_graphics",
        "memory",
        "name",
        "pci",
        "processes",
        "state",
        "throttle",
        "utilization",
    }
)
# Likewise what is the same but for the UUIDs, as long as no error has happened.
WITH_UUIDS = frozenset(
    {"ecc_corrected", "ecc_corrected_ever", "link_errors", "links", "name", "pci", "uuid"}
)
# The fields of NVML's rows for a GPU that answers, as the agent's `nvml` writes them.
FIELDS = (
    *LASTING,
    "clock",
    "ecc_corrected",
    "ecc_corrected_ever",
    "index",
    "link_errors",
    "margin",
    "memory",
    "memory_temperature",
    "minor",
    "pci",
    "processes",
    "seconds",
    "slowdown",
    "state",
    "temperature",
    "throttle",
    "utilization",
    "uuid",
    "violations",
)


@functools.cache
def _row_of_pieces(fields: tuple[str, ...]) -> type[Struct]:
    """Return the class of rows with some fields, each of which stays JSON or is missing."""
    columns = [(field, Raw | UnsetType, UNSET) for field in fields]
    return defstruct("RowOfPieces", columns, forbid_unknown_fields=True)


# Fields that are in order are found fastest.
NvmlRow: Any = _row_of_pieces(tuple(sorted(FIELDS)))


class NvmlPieces(TypedDict):
    """NVML's answer with rows of which no value is decoded: each has a thousand of them.

    It has this shape if all GPUs answer.
    """

    driver: Any
    cuda: Any
    gpus: list[NvmlRow]


IN_PIECES = (NvmlPieces,)
NO_GPU = Absent("not_applicable", "no GPU here")
NVIDIA = "0x10de"  # PCI vendor id
_DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers, as GPUs are
_BRIDGE_CLASS = "0x0680"  # other bridges, as NVSwitches are


class Gpu(Struct, frozen=True, gc=False):
    index: int  # NVML's, which is PCI order
    name: str
    uuid: str
    pci: str


class Nvml(Struct, frozen=True):
    """What NVML reports; `driver` and `cuda` are versions, None where it does not tell them.

    `gpus` has those that say who they are. `lost` says which of the others did not answer and why,
    `denied` has those that it may not show.
    """

    driver: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]
    lost: tuple[str, ...] = ()
    denied: tuple[int, ...] = ()


def _without_uuids(nvml: Nvml | None) -> Hashable:
    """Return what NVML reports without the numbers that each GPU has for itself."""
    if nvml is None:
        return None
    gpus = tuple([(gpu.index, gpu.name, gpu.pci) for gpu in nvml.gpus])
    return (nvml.driver, nvml.cuda, gpus, nvml.lost, nvml.denied)


WITHOUT_UUIDS = Part("gpu.nvml", _without_uuids)
"""What nodes with the same GPUs have alike."""


class Gone(Struct, frozen=True):
    """Devices that cannot be used, each as «GPU 3: why».

    `lost`: by NVML or by the bus. `reset`: NVML says that they need a reset. `broken`: NVML names
    another fault. `silent`: it answered with a code that names none. `stopped` is why NVML does not
    start at all although a driver is loaded, `missing` that there is no NVML although a driver has
    GPUs; both are empty elsewhere.
    """

    lost: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    stopped: str = ""
    missing: str = ""


class Listed(Struct, frozen=True):
    """How many GPUs NVML lists, and the indices of those that it may not show to this user."""

    count: int
    denied: tuple[int, ...] = ()


class Function(Struct, frozen=True):
    """A GPU or NVSwitch on the PCI bus; `gone`: its registers read as all ones.

    `numa` is None where the machine does not report the NUMA node.
    """

    pci: str
    switch: bool
    numa: int | None
    gone: bool


class Model(Struct, frozen=True):
    """What makes GPUs alike: memory in bytes by the driver, compute capability as «9.0».

    `memory` is None for GPUs that have none of their own, as GB10.
    """

    name: str
    memory: int | None
    capability: str


class DeviceNodes(Struct, frozen=True):
    """States of /dev/nvidiaN by minor number, and the PCI addresses that the driver has bound.

    A state is open, hidden (by the device cgroup) or denied.
    """

    nodes: Mapping[int, str]
    bound: tuple[str, ...]


_IDENTITY = ("name", "uuid", "pci")


def parse_nvml(answer: dict[str, Any] | Absent | None) -> Nvml | Absent | None:
    """Return what NVML reports, None on a node that has no NVML library or no driver for it.

    Toolkits install the library on nodes without GPUs too.
    """
    if answer is None:
        return None
    if isinstance(answer, Absent):
        return None if answer.reason == "no_driver" else answer
    gpus = []
    lost = []
    denied = []
    for row in answer["gpus"]:
        index = row["index"]
        reason = row.get("no") or _reason_without_identity(row)
        if reason == "denied":
            denied.append(index)
        elif reason is not None:
            lost.append(f"GPU {index}: {reason}")
        else:
            gpus.append(Gpu(index, shared_text(row["name"]), row["uuid"], shared_text(row["pci"])))
    return Nvml(
        _version_or_none(answer["driver"]),
        _cuda_version(answer["cuda"]),
        tuple(gpus),
        tuple(lost),
        tuple(denied),
    )


def _reason_without_identity(row: Mapping[str, Any]) -> str | None:
    """Return why a GPU does not say its name, UUID or address; None if it says them all."""
    for field in _IDENTITY:
        reason = refusal(row[field])
        if reason is not None:
            return "nvml_error" if reason[1] == "not_applicable" else str(reason[1])
    return None


def _version_or_none(value: object) -> str | None:
    """Return a version, None where NVML refused it."""
    if refusal(value):
        return None
    if not isinstance(value, str):
        raise ValueError(f"expected a version, seen {value!r}")  # noqa: TRY004 - garbled
    return value


def _cuda_version(value: object) -> str | None:
    """Return «12.4» for 12040, None where NVML refused it.

    It does with code 12 where libcuda.so.1 is missing: in containers that were given nothing but
    `utility`, and with split packages of the driver.
    """
    if refusal(value):
        return None
    number = require_number(value)
    return f"{number // 1000}.{number % 1000 // 10}"


_NVML = (Read("nvml", (), limit=NVML_LIMIT),)


def nvml_read(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    """Return the one read that brings all that NVML reports; equal reads are made once."""
    return _NVML


def per_gpu(
    name: str,
    make: Callable[..., Any],
    *fields: str,
    besides: tuple[str, ...] | None = None,
    unsupported: tuple[str, ...] = (),
    moves: bool = False,
    with_uuid: Callable[[Any, Sequence[str]], Any] | None = None,
) -> Fact:
    """Return a fact with a reading of each GPU that answers, by the GPU's index.

    The reading is `make(*values)` of these fields of NVML's answer, or Absent if NVML refuses one
    of them. With `besides` it is `make(row)`: a dict of these fields and of further ones, each of
    which may be refused; those in `unsupported` only since this GPU does not have them. With
    `with_uuid` the row has a number for the UUID, and `with_uuid(reading, uuids)` returns the
    reading with the UUID that has this place.
    """
    needed_fields = (*fields, *(besides or ()))
    takes_row = besides is not None

    def parse(answer: dict[str, Any] | Absent | None) -> dict[int, Any] | Absent:
        if answer is None:
            return NO_GPU
        if isinstance(answer, Absent):
            return NO_GPU if answer.reason == "no_driver" else answer
        readings = {}
        rows = answer["gpus"]
        for row in rows:
            if "no" not in row:
                needed = _needed(row, fields, unsupported)
                readings[row["index"]] = _reading(make, row, needed, takes_row)
        return _readings_or_absent(readings, rows)

    def narrow(answer: Mapping[str, Any]) -> dict[str, list[Any]]:
        return {"gpus": columns(answer, *needed_fields)}

    def readings_with_uuids(readings: Readings, uuids: Sequence[str]) -> Readings:
        """Return the readings, of which all but those that are absent have no UUID yet."""
        complete = dict(readings)
        for index, reading in readings.items():
            if with_uuid is not None and not isinstance(reading, Absent):
                complete[index] = with_uuid(reading, uuids)
        return complete

    narrow_to_group = _common_narrow(needed_fields, with_uuid is not None)
    knows_fields = frozenset(FIELDS).issuperset(needed_fields)
    return Fact(
        name,
        nvml_read,
        parse,
        lenient=True,
        narrow=narrow_to_group or narrow,
        pieces=IN_PIECES if knows_fields else (),
        with_own=readings_with_uuids if with_uuid else None,
        moves=moves,
    )


def _common_narrow(
    fields: Sequence[str], sets_uuids_apart: bool
) -> Callable[[Mapping[str, Any]], Any] | None:
    """Return what takes a part with these fields that is looked up for many facts, None if none."""
    if sets_uuids_apart:
        return columns_with_uuids if WITH_UUIDS.issuperset(fields) else None
    if LASTING.issuperset(fields):
        return _lasting_columns
    return _columns_at_rest if AT_REST.issuperset(fields) else None


def _lasting_columns(answer: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {"gpus": columns(answer, *LASTING)}


def _columns_at_rest(answer: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {"gpus": columns(answer, *AT_REST)}


def columns(answer: Mapping[str, Any], *fields: str) -> list[Any]:
    """Return NVML's rows with some of their fields; those of GPUs that do not answer unchanged."""
    wanted = ("index", *fields)
    if are_pieces(answer["gpus"]):
        return _columns_of_pieces(answer["gpus"], wanted)
    values_of = itemgetter(*wanted)
    rows = []
    for row in answer["gpus"]:
        if "no" in row:
            rows.append(row)
            continue
        try:
            rows.append(dict(zip(wanted, values_of(row), strict=True)))
        except KeyError:  # an agent or a library that does not know all fields
            rows.append({field: row[field] for field in wanted if field in row})
    return rows


def are_pieces(rows: object) -> bool:
    """Return whether NVML's rows are those of NvmlPieces. There may be none."""
    return isinstance(rows, list) and bool(rows) and type(rows[0]) is NvmlRow


def _columns_of_pieces(rows: Iterable[Any], fields: tuple[str, ...]) -> list[Any]:
    make, values_of = _row_maker(fields)
    return list(starmap(make, map(values_of, rows)))


@functools.cache
def _row_maker(fields: tuple[str, ...]) -> tuple[Any, Any]:
    """Return the class of rows of some fields, and what takes their values from a row of all."""
    return _row_of_pieces(fields), attrgetter(*fields)


def without_uuids(
    narrow: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> Callable[[Mapping[str, Any]], Any]:
    """Return `narrow`, which takes the UUIDs of the GPUs among others, so that it sets them apart.

    They are all that tells the parts of most nodes apart.
    """

    @functools.wraps(narrow)
    def narrow_apart(answer: Mapping[str, Any]) -> Any:
        part = narrow(answer)
        if not are_pieces(answer["gpus"]):
            return part
        rows = part["gpus"]
        if any(row.uuid is UNSET for row in rows):
            return part
        uuids = _plain_texts(b"".join([bytes(row.uuid) for row in rows]), len(rows))
        if uuids is None:
            return part
        for row, place in zip(rows, _PLACES, strict=False):
            row.uuid = place
        return Apart(part, uuids)

    return narrow_apart


_PLACES = tuple([Raw(b'"%d"' % place) for place in range(MOST_GPUS)])


@functools.lru_cache(maxsize=64)  # several facts of a node share the texts
def _plain_texts(pieces: bytes, count: int) -> tuple[str, ...] | None:
    """Return the texts of so many pieces of JSON, None if one is no text, or is escaped."""
    is_plain = pieces.startswith(b'"') and b"\\" not in pieces and pieces.isascii()
    if count > MOST_GPUS or not is_plain or pieces.count(b'"') != 2 * count:
        return None
    # As each text has two quotes, two that stand together are those between two texts.
    texts = pieces[1:-1].decode().split('""')
    return tuple(texts) if len(texts) == count else None


def _columns_of_identity(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what NVML says of itself, of who each GPU is, and of its errors."""
    rows = columns(answer, *WITH_UUIDS)
    return {"driver": answer["driver"], "cuda": answer["cuda"], "gpus": rows}


columns_with_uuids = without_uuids(_columns_of_identity)


def _readings_or_absent(
    readings: dict[int, Any], rows: list[dict[str, Any]]
) -> dict[int, Any] | Absent:
    """Return the readings; where no GPU has a value, the reason of the first.

    A reason other than «not_applicable» goes before that one.
    """
    if not rows:
        return NO_GPU
    if not readings:
        return Absent(str(rows[0]["no"]), "no GPU answers")
    reasons = []
    for reading in readings.values():
        if not isinstance(reading, Absent):
            return readings
        reasons.append(reading)
    for reason in reasons:
        if reason.reason != "not_applicable":
            return reason
    return reasons[0]


def _needed(
    row: Mapping[str, Any], fields: tuple[str, ...], unsupported: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the fields without which this GPU has no reading."""
    needed = list(fields)
    for field in unsupported:
        reason = refusal(row[field])
        if reason is None or reason[1] != "not_applicable":
            needed.append(field)
    return tuple(needed)


def _reading(
    make: Callable[..., Any], row: Mapping[str, Any], fields: Iterable[str], takes_row: bool
) -> Any:
    """Return the reading of one GPU, or Absent if NVML refuses a field."""
    values = []
    for field in fields:
        value = row[field]
        reason = refusal(value)
        if reason is not None:
            return absence(field, reason)
        values.append(value)
    return make(row) if takes_row else make(*values)


def is_unsupported(value: object) -> bool:
    """Return whether NVML refused since this GPU, or this library, does not have what is asked."""
    reason = refusal(value)
    return reason is not None and reason[1] in ("missing_tool", "not_applicable")


def is_older_driver(value: object) -> bool:
    """Return the same of a field of nvmlDeviceGetFieldValues.

    An older library answers a field that it does not know with «invalid argument» (2).
    """
    reason = refusal(value)
    return is_unsupported(value) or (reason is not None and reason[1:] == ["nvml_error", 2])


def refusal(value: object) -> list[Any] | None:
    """Return NVML's reason where it gave one instead of a value or of one of several samples."""
    if not isinstance(value, list):
        return None
    if value[:1] == ["no"]:
        return value
    for part in value:
        if isinstance(part, list) and part[:1] == ["no"]:
            return part
    return None


def absence(field: str, value: list[Any]) -> Absent:
    """Return NVML's reason, ["no", reason] or ["no", reason, code], as an Absent."""
    reason = value[1]
    if reason == "not_applicable":
        outcome = "is not supported by this GPU"
    elif len(value) > 2:
        outcome = f"was not answered (code {value[2]})"
    else:
        outcome = "was not answered"
    return Absent(str(reason), f"{field.replace('_', ' ')} {outcome}")


def require_number(value: object) -> int:
    """Return a number of NVML's. Raises ValueError for anything else."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected a number, seen {value!r}")  # noqa: TRY004 - garbled
    return value


def require_rows(value: object) -> list[Any]:
    """Return a list of NVML's. Raises ValueError for anything else, such as an empty object."""
    if not isinstance(value, list):
        raise ValueError(f"expected a list, seen {value!r}")  # noqa: TRY004 - garbled
    return value


def parse_functions(devices: list[dict[str, Any]]) -> tuple[Function, ...]:
    """Return the GPUs and NVSwitches on the bus."""
    functions = []
    for row in devices:
        numa_text = row["numa"]
        switch = row["class"].startswith(_BRIDGE_CLASS)
        if not switch and not row["class"].startswith(_DISPLAY_CLASSES):
            continue
        numa = None if numa_text is None else int(numa_text)
        if numa is not None and numa < 0:  # the kernel writes -1 where the firmware names no node
            numa = None
        gone = row["config"] == "ffffffff"  # a read of a device that is gone returns all ones
        functions.append(Function(row["pci"], switch, numa, gone))
    return tuple(functions)


def parse_listed(answer: Any) -> Listed | None:
    """Return how many GPUs NVML lists, None where it does not answer."""
    if answer is None or isinstance(answer, Absent):
        return None
    denied = []
    for row in answer["gpus"]:
        if (row.get("no") or _reason_without_identity(row)) == "denied":
            denied.append(row["index"])
    return Listed(len(answer["gpus"]), tuple(denied))


# What nvmlReturn_t 8 and 11 say of a GPU.
_FAULTS = {
    "power_cables": "its power cables are not attached properly",
    "interrupts": "the kernel has trouble with its interrupts",
}
_TROUBLES = "|".join(("gpu_lost", "reset_required", *_FAULTS))
_REFUSED_FOR_TROUBLE = re.compile(rb'"no"[ \t\r\n,:]*"(?:' + _TROUBLES.encode() + rb')"')
# Reasons for which NVML tells nothing at all, while the bus shows the GPUs.
STOPPED, MISSING = "nvml_not_started", "no_nvml_library"


def parse_gone(nvml: Any, devices: Any) -> Gone | Absent:
    """Return the devices that cannot be used, as NVML and the bus tell.

    Where NVML does not answer, the bus may still show which are gone.
    """
    if isinstance(devices, Absent):
        return devices
    functions = parse_functions(devices)
    gone = tuple(_gone_functions(functions))
    if isinstance(nvml, Absent) and nvml.reason != "no_driver":
        return _gone_without_nvml(nvml, gone)
    if nvml is None or isinstance(nvml, Absent):
        return Gone(lost=gone) if functions else NO_GPU
    texts: dict[str, list[str]] = {"lost": [], "reset": [], "broken": [], "silent": []}
    rows = nvml["gpus"]
    may_have_trouble = _may_name_trouble(rows)
    for row in rows:
        trouble = _trouble_of_row(row, _reasons_in(row) if may_have_trouble else set())
        if trouble is not None:
            kind, why = trouble
            texts[kind].append(f"GPU {row['index']}: {why}")
    return Gone(
        (*texts["lost"], *gone),
        tuple(texts["reset"]),
        tuple(texts["broken"]),
        tuple(texts["silent"]),
    )


def _rows_in_trouble(answer: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return NVML's rows that may be in trouble, which are none on nearly all nodes."""
    rows = answer["gpus"]
    if not _may_name_trouble(rows):
        rows = [row for row in rows if not _says_who_it_is(row)]
    return {"gpus": rows}


def _says_who_it_is(row: Any) -> bool:
    """Return whether a GPU answers, and says its name, UUID and address.

    `row` may be pieces of JSON. Raises KeyError for one without these fields.
    """
    if type(row) is not NvmlRow:
        return "no" not in row and all(isinstance(row[field], str) for field in _IDENTITY)
    for piece in (row.name, row.uuid, row.pci):
        if piece is UNSET:
            raise KeyError(_IDENTITY)
        if not bytes(piece).startswith(b'"'):
            return False
    return True


def _gone_without_nvml(nvml: Absent, gone: tuple[str, ...]) -> Gone | Absent:
    """Return what is gone where NVML tells nothing; Absent if the bus shows nothing either."""
    if nvml.reason == "gpu_lost":
        return Gone(lost=(*gone, nvml.detail))
    if nvml.reason == "reset_required":
        return Gone(lost=gone, reset=(nvml.detail,))
    if nvml.reason == STOPPED:
        return Gone(lost=gone, stopped=nvml.detail)
    if nvml.reason == MISSING:
        return Gone(lost=gone, missing=nvml.detail)
    return Gone(lost=gone) if gone else nvml


def _trouble_of_row(row: Mapping[str, Any], reasons: set[str]) -> tuple[str, str] | None:
    """Return the kind of trouble of a GPU, a field of Gone, and why; None where there is none.

    One call that answers «lost» or «reset required» is enough, whatever the others answer.
    """
    if "gpu_lost" in reasons:
        return "lost", "gpu_lost"
    if "reset_required" in reasons:
        return "reset", "reset_required"
    for reason, fault in _FAULTS.items():
        if reason in reasons:
            return "broken", fault
    unnamed = row.get("no") or _reason_without_identity(row)
    if unnamed is None or unnamed == "denied":  # gpu.hidden tells what this user may not see
        return None
    return "silent", str(row.get("why") or unnamed)


def _may_name_trouble(rows: Sequence[Any]) -> bool:
    """Return whether NVML may have refused something for a trouble, as ["no", "gpu_lost"].

    A row has a thousand parts. As one text they are searched ten times as fast as one by one.
    """
    text = as_json(rows)
    if b"\\" in text:  # then a word can be written in other ways
        return True
    return _REFUSED_FOR_TROUBLE.search(text) is not None


def _reasons_in(row: Mapping[str, Any]) -> set[str]:
    """Return the reasons of all that NVML refused in the row of a GPU.

    Those of its pairs are left out: they may be about the other GPU.
    """
    reasons: set[str] = set()
    waiting: list[Any] = [row]
    while waiting:
        parts = waiting.pop()
        if isinstance(parts, dict):
            if "no" in parts:
                reasons.add(str(parts["no"]))
            parts = [part for key, part in parts.items() if key != "p2p"]
        elif parts and parts[0] == "no":
            reasons.update(map(str, parts[1:2]))
            continue
        # Most parts are numbers, of which a row has thousands.
        waiting += [part for part in parts if isinstance(part, (dict, list))]
    return reasons


def _gone_functions(functions: Iterable[Function]) -> list[str]:
    """Return a text about each device that does not respond on the bus."""
    gone = []
    for function in functions:
        if function.gone:
            kind = "NVSwitch" if function.switch else "GPU"
            gone.append(f"{function.pci} ({kind}): reads all ones")
    return gone


def parse_model(row: Mapping[str, Any]) -> Model:
    """Parse a name, [total, reserved, used] of the memory in bytes, and a capability as [9, 0].

    GPUs that share the memory of the processor answer «not supported» for theirs.
    """
    name, memory, capability = row["name"], row["memory"], row["capability"]
    if not isinstance(name, str) or not name:
        raise ValueError("NVML names no model")
    if not isinstance(memory, list) or not isinstance(capability, list):
        raise ValueError("NVML names no model")  # noqa: TRY004 - garbled
    total = None if refusal(memory) else require_number(memory[0])
    version = ".".join(str(require_number(part)) for part in capability)
    return Model(name, total, version)


def parse_nodes(answer: Mapping[str, Any]) -> DeviceNodes:
    """Parse what /dev and /proc/driver/nvidia/gpus hold."""
    nodes = {int(minor): str(state) for minor, state in answer["nodes"].items()}
    for state in nodes.values():
        if state not in ("open", "hidden", "denied"):
            raise ValueError(f"unknown states of device nodes in {nodes}")
    bound = tuple(map(str, answer["bound"]))
    return DeviceNodes(nodes, bound)


def parse_pci(devices: list[dict[str, str]]) -> tuple[str, ...]:
    """Return the PCI addresses of NVIDIA's display and 3D controllers."""
    return tuple(row["pci"] for row in devices if row["class"].startswith(_DISPLAY_CLASSES))


def parse_driver(text: str | None) -> str | None:
    """Return the driver's version, None where no driver is loaded.

    The file has «NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14 …».
    """
    if text is None:
        return None
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    if match is None:
        raise ValueError("no version in /proc/driver/nvidia/version")
    return match[1]


def _pci_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("pci", (NVIDIA,)),)


def _gone_reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (*nvml_read(node, inventory), *_pci_reads(node, inventory))


def _nvml_with_uuids(nvml: Nvml | None, uuids: Sequence[str]) -> Nvml | None:
    """Return what NVML reports, whose GPUs have a number instead of their UUID."""
    if nvml is None:
        return None
    gpus = [Gpu(gpu.index, gpu.name, uuids[int(gpu.uuid)], gpu.pci) for gpu in nvml.gpus]
    return Nvml(nvml.driver, nvml.cuda, tuple(gpus), nvml.lost, nvml.denied)


NVML = Fact(
    "gpu.nvml",
    nvml_read,
    parse_nvml,
    lenient=True,
    narrow=columns_with_uuids,
    pieces=IN_PIECES,
    with_own=_nvml_with_uuids,
)
PCI = Fact("gpu.pci", _pci_reads, parse_pci)
DRIVER = Fact("nv.driver", file("/proc/driver/nvidia/version"), parse_driver)
FUNCTIONS = Fact("gpu.functions", _pci_reads, parse_functions)
NODES = Fact("gpu.nodes", lambda node, inventory: (Read("gpu_nodes"),), parse_nodes)
MODEL = per_gpu(
    "gpu.model",
    parse_model,
    "name",
    "capability",
    besides=("memory",),
    unsupported=("memory",),
)
LISTED = Fact(
    "gpu.listed",
    nvml_read,
    parse_listed,
    lenient=True,
    narrow=columns_with_uuids,
    pieces=IN_PIECES,
)
GONE = Fact(
    "gpu.gone",
    _gone_reads,
    parse_gone,
    lenient=True,
    narrow=_rows_in_trouble,
    pieces=(NvmlPieces, None),
)
