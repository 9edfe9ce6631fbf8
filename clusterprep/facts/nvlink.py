"""NVLink: the links of each GPU, their other ends, the pairs they join, the NVSwitch fabric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.facts.gpu import (
    Readings,
    absence,
    per_gpu,
    refusal,
    require_number,
    require_rows,
)
from clusterprep.facts.gpu_health import require_flag
from clusterprep.facts.parts import read_once
from clusterprep.model import Absent

GPU, SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t
COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
STATES = {0: "not supported", 1: "not started", 2: "in progress", COMPLETED: "completed"}
_CONFIGURATIONS = {
    2: "another system's GUID",
    3: "another chassis",
    4: "no partition",
    5: "too few NVLinks",
    6: "GPU firmware that does not fit",
    7: "a wrong location",
    8: "an invalid GPU state",
}
# Shifts of 2-bit fields of the health mask, and what is wrong where one of them is 1.
_HEALTH_FIELDS = {
    0: "degraded bandwidth",
    2: "route recovery under way",
    4: "unhealthy routes",
    6: "access time-outs",
}
# 2-bit fields in which 2 is wrong.
_ABSENT_FIELDS = {
    12: "no partition is assigned",
    14: "no connection to the global fabric manager",
}
UNHEALTHY, LIMITED_CAPACITY = "unhealthy", "limited capacity"
_SUMMARIES = {2: UNHEALTHY, 3: LIMITED_CAPACITY}  # NVML_GPU_FABRIC_HEALTH_SUMMARY_*
# Troubles with which a GPU still reaches all others, slower.
SLOWER = frozenset({"degraded bandwidth", "route recovery under way"})


class NvLinks(Struct, frozen=True):
    """The links of one GPU by number; `peers` are the PCI addresses of GPUs at their other ends.

    `switched`: a link leads to an NVSwitch. `virtual`: in a virtual machine, which may be given a
    GPU without its links. `speeds`: MB/s of each link that is up, none where they are not told.
    """

    up: tuple[int, ...]
    down: tuple[int, ...]
    switched: bool
    peers: tuple[str, ...]
    virtual: bool = False
    speeds: tuple[int, ...] = ()


class LinkErrors(Struct, frozen=True, gc=False):
    """Errors since the driver was loaded, by link and kind (LINK_ERRORS of the agent)."""

    uuid: str
    links: Mapping[int, Mapping[str, int]]


class Fabric(Struct, frozen=True):
    """A GPU's view of its NVSwitch fabric.

    `troubles` are texts, none where it is healthy or reports nothing.
    """

    state: str
    status: int
    troubles: tuple[str, ...]

    @property
    def is_usable(self) -> bool:
        """Whether its troubles cost bandwidth alone; the driver's summary decides, if bad."""
        if UNHEALTHY in self.troubles:
            return False
        return LIMITED_CAPACITY in self.troubles or SLOWER.issuperset(self.troubles)


def parse_links(row: Mapping[str, Any]) -> NvLinks | Absent:
    """Parse [[link, up, [type, address]], …]; a GPU without NVLink has none."""
    links = require_rows(row["links"])
    if not links:
        return Absent("not_applicable", "this GPU has no NVLink")
    links_up = []
    links_down = []
    switched = False
    peers = set()
    for link, up, far_end in links:
        if not require_flag(up):
            links_down.append(require_number(link))
            continue
        links_up.append(require_number(link))
        if far_end is None:
            continue
        if far_end[0] == SWITCH:
            switched = True
        elif far_end[0] == GPU and not refusal(far_end[1]):
            peers.add(far_end[1])
    virtual = row["virtualization"] in (1, 2)
    return NvLinks(
        tuple(links_up),
        tuple(links_down),
        switched,
        tuple(sorted(peers)),
        virtual,
        _speeds(row["link_speeds"], len(links_up)),
    )


def per_link(value: object, links: int) -> list[Any]:
    """Return the values of so many links; one value alone, also a refusal, is that of each."""
    if not isinstance(value, list) or refusal(value) is value:
        return [value] * links
    if len(value) != links:
        raise ValueError(f"values of {len(value)} links instead of {links}")
    return value


def _speeds(value: object, links: int) -> tuple[int, ...]:
    """Return the speeds of the links, none if one is not told or 0."""
    speeds = []
    for speed in per_link(value, links):
        if refusal(speed) or not require_number(speed):
            return ()
        speeds.append(speed)
    return tuple(speeds)


def links_up(rows: object) -> list[int]:
    """Return the numbers of the links that are up, of the rows that `parse_links` takes."""
    return [require_number(link) for link, up, _ in require_rows(rows) if require_flag(up)]


def parse_link_errors(row: Mapping[str, Any]) -> LinkErrors | Absent:
    """Return the errors of the links that are up, which `link_errors` has by kind."""
    by_link = errors_by_link((row["links"], row.get("link_errors")))
    if isinstance(by_link, Absent):
        return by_link
    return LinkErrors(str(row["uuid"]), by_link)


def _errors_with_uuid(errors: LinkErrors, uuids: Sequence[str]) -> LinkErrors:
    return LinkErrors(uuids[int(errors.uuid)], errors.links)


@read_once
def errors_by_link(fields: tuple[Any, Any]) -> Mapping[int, Mapping[str, int]] | Absent:
    """Return the errors by link and kind, of the fields `links` and `link_errors`.

    Most GPUs have none but zeros: apart these would take most of the memory of ten thousand nodes.
    """
    rows, errors = fields
    links = links_up(rows)
    if not links:
        return Absent("not_applicable", "no NVLink is in use here")
    reason = refusal(errors)
    if reason is not None:
        return absence("link_errors", reason)
    by_link: dict[int, dict[str, int]] = {link: {} for link in links}
    for kind, values in errors.items():
        for link, count in zip(links, per_link(values, len(links)), strict=True):
            if type(count) is not int:
                unread = refusal(count)
                if unread is not None:
                    return absence(f"{kind}_errors_of_link_{link}", unread)
                raise ValueError(f"expected a number of errors, seen {count!r}")
            by_link[link][kind] = count
    return by_link


def parse_fabric(fabric: list[Any]) -> Fabric | Absent:
    """Parse [state, status, clique, health mask, summary] (nvmlGpuFabricInfo_v3_t)."""
    state, status, _, mask, summary = fabric
    if state == 0:
        return Absent("not_applicable", "this GPU is not part of an NVSwitch fabric")
    return Fabric(STATES[require_number(state)], require_number(status), _troubles(mask, summary))


def _troubles(mask: int | None, summary: int | None) -> tuple[str, ...]:
    """Return the troubles of a health mask (NVML_GPU_FABRIC_HEALTH_MASK_* of nvml.h).

    In each of its 2-bit fields 1 is true (assigned, connected) and 2 false; 0 is not supported. The
    4-bit field at 8 names a wrong configuration.
    """
    troubles = []
    if summary in _SUMMARIES:
        troubles.append(_SUMMARIES[summary])
    if mask is None:
        return tuple(troubles)
    for shift, trouble in _HEALTH_FIELDS.items():
        field = (require_number(mask) >> shift) & 3
        if field == 1:
            troubles.append(trouble)
    configuration = (mask >> 8) & 15
    if configuration not in (0, 1):  # not reported, and none
        unnamed = f"a wrong configuration ({configuration})"
        troubles.append(_CONFIGURATIONS.get(configuration, unnamed))
    for shift, trouble in _ABSENT_FIELDS.items():
        if (mask >> shift) & 3 == 2:
            troubles.append(trouble)
    return tuple(troubles)


def parse_pairs(row: Mapping[str, Any]) -> dict[int, int | None]:
    """Return nvmlGpuP2PStatus_t over NVLink for each later GPU, None where it was not reported."""
    statuses = {}
    for other, status in require_rows(row["p2p"]):
        statuses[require_number(other)] = None if refusal(status) else require_number(status)
    return statuses


def pair_statuses(pairs: Readings) -> dict[tuple[int, int], int | None]:
    """Return the statuses of a node's pairs of GPUs, each pair once."""
    statuses = {}
    for first, others in pairs.items():
        if isinstance(others, Absent):
            continue
        for other, status in others.items():
            statuses[first, other] = status
    return statuses


LINKS = per_gpu("nvlink.links", parse_links, "links", besides=("virtualization", "link_speeds"))
ERRORS = per_gpu(
    "nvlink.errors",
    parse_link_errors,
    "uuid",
    "links",
    besides=("link_errors",),
    moves=True,
    with_uuid=_errors_with_uuid,
)
PAIRS = per_gpu("nvlink.pairs", parse_pairs, besides=("p2p",))
FABRIC = per_gpu("gpu.fabric", parse_fabric, "fabric")
