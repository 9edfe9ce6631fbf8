"""NVLink: the links of each GPU, what is at their other end, the pairs that they join, and the NVSwitch fabric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterprep.facts.gpu import Readings, number, per_gpu, refused, rows
from clusterprep.facts.gpu_health import flag
from clusterprep.model import Absent
from clusterprep.runtime.lazy_dataclass import dataclass

GPU, SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t
COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
STATES = {0: "not supported", 1: "not started", 2: "in progress", COMPLETED: "completed"}
_CONFIGURATIONS = {
    2: "another system's GUID", 3: "another chassis", 4: "no partition", 5: "too few NVLinks",
    6: "GPU firmware that does not fit", 7: "a wrong location", 8: "an invalid GPU state",
}  # fmt: skip


@dataclass(frozen=True)
class NvLinks:
    """The links of one GPU by number, and what those that are up lead to: «a switch», or addresses of GPUs."""

    up: tuple[int, ...]
    down: tuple[int, ...]
    switched: bool
    peers: tuple[str, ...]
    virtual: bool = False  # in a virtual machine, which may be given a GPU without its links


@dataclass(frozen=True)
class Fabric:
    """What the GPU knows of its NVSwitch fabric; `troubles` in words, empty where it is healthy or does not say."""

    state: str
    status: int
    troubles: tuple[str, ...]


def parse_links(row: Mapping[str, Any]) -> NvLinks | Absent:
    """[[link, up, [type, address]], …]; a GPU without NVLink has none."""
    links = rows(row["links"])
    if not links:
        return Absent("not_applicable", "this GPU has no NVLink")
    ends = [far for _, up, far in links if flag(up)]
    kinds = [far[0] for far in ends if far is not None]
    peers = {far[1] for far in ends if far is not None and far[0] == GPU and not refused(far[1])}
    return NvLinks(
        up=tuple(number(link) for link, up, _ in links if up),
        down=tuple(number(link) for link, up, _ in links if not up),
        switched=SWITCH in kinds,
        peers=tuple(sorted(peers)),
        virtual=row["virtualization"] in (1, 2),
    )


def parse_fabric(fabric: list[Any]) -> Fabric | Absent:
    """[state, status, clique, health mask, summary] (nvmlGpuFabricInfo_v3_t)."""
    state, status, _, mask, summary = fabric
    if state == 0:
        return Absent("not_applicable", "this GPU is not part of an NVSwitch fabric")
    return Fabric(STATES[number(state)], number(status), _troubles(mask, summary))


def _troubles(mask: int | None, summary: int | None) -> tuple[str, ...]:
    """In each 2-bit field 1 is true and 2 false; the 4-bit field at 8 names a wrong configuration."""
    found = ["unhealthy"] if summary == 2 else ["limited capacity"] if summary == 3 else []
    if mask is not None:
        words = {
            0: "degraded bandwidth",
            2: "route recovery under way",
            4: "unhealthy routes",
            6: "access time-outs",
        }
        found += [text for shift, text in words.items() if number(mask) >> shift & 3 == 1]
        configuration = mask >> 8 & 15
        if configuration not in (0, 1):
            found.append(
                _CONFIGURATIONS.get(configuration, f"a wrong configuration ({configuration})")
            )
    return tuple(found)


def parse_pairs(row: Mapping[str, Any]) -> dict[int, int | None]:
    """For each GPU behind this one nvmlGpuP2PStatus_t over NVLink, None where it was not told."""
    return {
        number(other): None if refused(status) else number(status)
        for other, status in rows(row["p2p"])
    }


def joined(pairs: Readings) -> dict[tuple[int, int], int | None]:
    """The pairs of a node, each once."""
    return {
        (first, other): status
        for first, others in pairs.items()
        if not isinstance(others, Absent)
        for other, status in others.items()
    }


LINKS = per_gpu("nvlink.links", parse_links, "links", besides=("virtualization",))
PAIRS = per_gpu("nvlink.pairs", parse_pairs, besides=("p2p",))
FABRIC = per_gpu("gpu.fabric", parse_fabric, "fabric")
