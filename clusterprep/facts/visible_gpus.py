"""The GPUs that a process sees, by CUDA_VISIBLE_DEVICES of its launch path. Pure.

CUDA reads the list from its beginning and stops at the first item that it cannot use: that item and
all behind it are hidden. An item is a number, a UUID or a beginning of one that no other GPU has,
or a MIG instance. (CUDA C++ Programming Guide, «CUDA Environment Variables».)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from clusterprep.facts.environment import Paths, Setting
from clusterprep.facts.gpu import Gpu, Nvml
from clusterprep.model import Absent

NAME = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
BY_BUS = "PCI_BUS_ID"  # of CUDA_DEVICE_ORDER: CUDA numbers as NVML does, else the fastest is first
NOT_CUDA = ("nccl", "slurm")  # CUDA reads no nccl.conf, and Slurm hands out devices itself
# What users put there to hide all GPUs, and Slurm where a job has none.
NOTHING = ("", "-1", "NoDevFiles", "none", "void")
_NUMBER = re.compile(r"\+?[0-9]{1,9}")
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/\d+/\d+")  # before driver 470


class Visible(Struct, frozen=True):
    """The GPUs that a list shows, by NVML's index and in CUDA's order.

    `ended` is the item at which CUDA stops, None where it takes all; `item` is its number from 1.
    `doubt` says why these GPUs may be others; with `unknown` they are not known at all.
    """

    indices: tuple[int, ...]
    ended: str | None = None
    item: int = 0
    doubt: str = ""
    unknown: str = ""


class Session(Struct, frozen=True):
    """What the launch paths of a node show: the list, and the paths that have it.

    `value` is None where none sets one. `others` are the lists of further paths that differ.
    """

    value: str | None
    order: str | None
    paths: tuple[str, ...]
    others: tuple[str | None, ...] = ()


def session_of(paths: Paths | Absent) -> Session:
    """Return the list of the job's session.

    Where launch paths differ, that of the first that sets one counts.
    """
    if isinstance(paths, Absent):
        return Session(None, None, ())
    paths_by_list: dict[tuple[str | None, str | None], list[str]] = {}
    for path, settings in paths.items():
        if path in NOT_CUDA or isinstance(settings, Absent):
            continue
        values = {setting.name: setting.value for setting in settings}
        key = (values.get(NAME), values.get(ORDER))
        paths_by_list.setdefault(key, []).append(path)
    if not paths_by_list:
        return Session(None, None, ())
    set_first = sorted(paths_by_list, key=lambda pair: pair[0] is None)
    (value, order), *rest = set_first
    others = tuple(other for other, _ in rest if other != value)
    return Session(value, order, tuple(paths_by_list[value, order]), others)


def visible_gpus(value: str | None, nvml: Nvml, order: str | None = None) -> Visible:
    """Return the GPUs of `nvml` that CUDA shows with this list; None is an unset variable."""
    gpus = nvml.gpus
    doubt = _doubt(gpus, order)
    if value is None:
        return Visible(tuple(gpu.index for gpu in gpus), doubt=doubt)
    if value.strip() in NOTHING:
        return Visible(())
    items = [item.strip() for item in value.split(",")]
    chosen: list[int] = []
    by_uuid = not _NUMBER.fullmatch(items[0])
    for number, item in enumerate(items, 1):
        if item.startswith("MIG-") and not _OLD_MIG.fullmatch(item):
            return Visible(tuple(chosen), unknown="of which GPU a MIG instance is was not asked")
        index = _by_uuid(item, gpus) if by_uuid else _by_number(item, gpus)
        if index is None:
            return Visible(tuple(chosen), item, number, "" if by_uuid else doubt)
        if index in chosen and not item.startswith("MIG-"):
            return Visible((), item, number)  # a device named twice hides all of them
        chosen.append(index)
    return Visible(tuple(chosen), doubt="" if by_uuid else doubt)


def _doubt(gpus: Sequence[Gpu], order: str | None) -> str:
    """Return why CUDA may number the GPUs otherwise than NVML; empty if it cannot."""
    if order == BY_BUS or len({gpu.name for gpu in gpus}) < 2:
        return ""
    return f"as the bus numbers them: without {ORDER}={BY_BUS} CUDA may begin with another model"


def _by_number(item: str, gpus: Sequence[Gpu]) -> int | None:
    if not _NUMBER.fullmatch(item):
        return None
    number = int(item)
    return number if any(gpu.index == number for gpu in gpus) else None


def _by_uuid(item: str, gpus: Sequence[Gpu]) -> int | None:
    """Return the one GPU whose UUID begins so."""
    old_instance = _OLD_MIG.fullmatch(item)
    beginning = (old_instance[1] if old_instance else item).lower()
    if not beginning.startswith("gpu-"):
        return None
    matches = [gpu.index for gpu in gpus if gpu.uuid.lower().startswith(beginning)]
    return matches[0] if len(matches) == 1 else None


# ---------------------------------------------------------------- where they are


def bus_address(pci: str, known: Collection[str]) -> str:
    """Return NVML's address of a GPU as the kernel writes it: that of `known` which it means.

    NVML writes «00000000:18:00.0». On Hyper-V its domain has digits that the kernel's lacks:
    «03F8CFDD:00:00.0» is cfdd:00:00.0 there.
    """
    domain, _, rest = pci.lower().partition(":")
    number = int(domain, 16)
    address = f"{number:04x}:{rest}"
    if address in known:
        return address
    shorter = f"{number & 0xFFFF:04x}:{rest}"
    return shorter if shorter in known else address


def numa_nodes(nvml: Nvml, numa_by_address: Mapping[str, int | None]) -> dict[int, int | None]:
    """Return the NUMA node of each GPU by NVML's index, None where the machine does not say."""
    places = {}
    for gpu in nvml.gpus:
        places[gpu.index] = numa_by_address.get(bus_address(gpu.pci, numa_by_address))
    return places


def first_setting(paths: Paths, values: Iterable[str | None]) -> Setting | None:
    """Return the first setting of the list that has one of these values."""
    wanted = set(values)
    for path, settings in paths.items():
        if path in NOT_CUDA or isinstance(settings, Absent):
            continue
        for setting in settings:
            if setting.name == NAME and setting.value in wanted:
                return setting
    return None
