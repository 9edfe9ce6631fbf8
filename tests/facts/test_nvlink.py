"""Links, pairs and fabric as NVML tells them of boards, bridges and GPUs that have neither."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.nvlink import Fabric, LinkErrors, NvLinks, pair_statuses
from clusterprep.model import Absent
from tests.support.fleet import learned

SWITCH, PEER = [2, "00000000:07:00.0"], [0, "00000000:2a:00.0"]
UNKNOWN = [["no", "nvml_error", 999], ["no", "nvml_error", 999]]


ROW = {"index": 0, "virtualization": 0, "uuid": "GPU-1", "link_speeds": ["no", "not_applicable"]}


def of(fact: str, **row: Any) -> Any:
    return learned(fact, ["ok", {"gpus": [{**ROW, **row}]}])


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([[0, 1, SWITCH], [1, 1, SWITCH]], NvLinks((0, 1), (), switched=True, peers=())),
        ([[0, 1, SWITCH], [1, 0, None]], NvLinks((0,), (1,), switched=True, peers=())),
        (
            [[0, 1, PEER], [1, 1, PEER]],
            NvLinks((0, 1), (), switched=False, peers=("00000000:2a:00.0",)),
        ),
        ([[0, 0, None], [1, 0, None]], NvLinks((), (0, 1), switched=False, peers=())),
        (
            [[0, 1, UNKNOWN], [4, 1, PEER]],
            NvLinks((0, 4), (), switched=False, peers=("00000000:2a:00.0",)),
        ),
    ],
)
def test_links(links: Any, expected: NvLinks) -> None:
    assert of("nvlink.links", links=links) == {0: expected}


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        (26562, (26562, 26562)),
        ([26562, 13281], (26562, 13281)),
        (0, ()),
        ([26562, ["no", "nvml_error", 999]], ()),
        (["no", "missing_tool"], ()),
    ],
)
def test_speeds_of_links(speeds: Any, expected: tuple[int, ...]) -> None:
    links = [[0, 1, SWITCH], [1, 0, None], [2, 1, SWITCH]]
    assert of("nvlink.links", links=links, link_speeds=speeds)[0].speeds == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"replay": 0}, {0: {"replay": 0}, 2: {"replay": 0}}),
        ({"replay": [0, 7], "crc": 1}, {0: {"replay": 0, "crc": 1}, 2: {"replay": 7, "crc": 1}}),
    ],
)
def test_errors_of_links(counts: Any, expected: Any) -> None:
    links = [[0, 1, SWITCH], [1, 0, None], [2, 1, SWITCH]]
    assert of("nvlink.errors", links=links, link_errors=counts)[0] == LinkErrors("GPU-1", expected)


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        (["no", "not_applicable"], "not_applicable"),
        (["no", "denied"], "denied"),
        ({"replay": [0, ["no", "gpu_lost"]]}, "gpu_lost"),
        ({"replay": ["no", "nvml_error", 999]}, "nvml_error"),
        ({"replay": [1, 2, 3]}, "garbled"),
        ({"replay": None}, "garbled"),
    ],
)
def test_errors_of_links_that_are_not_known(counts: Any, reason: str) -> None:
    links = [[0, 1, SWITCH], [2, 1, SWITCH]]
    assert of("nvlink.errors", links=links, link_errors=counts).reason == reason


@pytest.mark.parametrize(
    ("mask", "troubles"),
    [
        (0x0, ()),  # H200 and GB200 of public dumps, with drivers that report nothing
        (0x80, ()),  # B200
        (0x5000 | 0x80, ()),  # a partition is assigned, and the manager is connected
        (0x2 << 12, ("no partition is assigned",)),
        (0x2 << 14, ("no connection to the global fabric manager",)),
        (0x1 | 0x2 << 14, ("degraded bandwidth", "no connection to the global fabric manager")),
    ],
)
def test_the_health_mask_of_newer_drivers(mask: int, troubles: tuple[str, ...]) -> None:
    """Bits 12 and 14: nvml.h 13.5; both are 0 where an older driver does not report them."""
    assert of("gpu.fabric", fabric=[3, 0, 0, mask, 1])[0].troubles == troubles


def test_links_in_a_virtual_machine() -> None:
    assert of("nvlink.links", links=[[0, 0, None]], virtualization=1)[0].virtual
    assert not of("nvlink.links", links=[[0, 0, None]], virtualization=["no", "denied"])[0].virtual


@pytest.mark.parametrize("links", [[], ["no", "not_applicable"]])
def test_no_nvlink(links: Any) -> None:
    assert of("nvlink.links", links=links).reason == "not_applicable"


@pytest.mark.parametrize(
    "links", [None, 18, "18", [[0]], [[0, 2, None]], [[0, "up", SWITCH]], [["0", 1, SWITCH]]]
)
def test_links_of_another_shape_are_garbled(links: Any) -> None:
    assert of("nvlink.links", links=links).reason == "garbled"


def test_links_that_are_refused() -> None:
    assert of("nvlink.links", links=["no", "denied"]).reason == "denied"


def test_each_pair_is_known_once() -> None:
    rows = [
        {"index": 0, "p2p": [[1, 0], [2, 5]]},
        {"index": 1, "p2p": [[2, ["no", "denied"]]]},
        {"index": 2, "p2p": []},
    ]
    pairs = learned("nvlink.pairs", ["ok", {"gpus": rows}])
    assert pair_statuses(pairs) == {(0, 1): 0, (0, 2): 5, (1, 2): None}
    assert pair_statuses({0: Absent("denied")}) == {}


@pytest.mark.parametrize("pairs", [None, [[1]], [["1", 0]], [[1, "ok"]], 7])
def test_pairs_of_another_shape_are_garbled(pairs: Any) -> None:
    assert of("nvlink.pairs", p2p=pairs).reason == "garbled"


@pytest.mark.parametrize(
    ("fabric", "expected"),
    [
        ([3, 0, 0, 0, 0], Fabric("completed", 0, ())),
        ([3, 0, 0, None, None], Fabric("completed", 0, ())),
        ([1, 0, 0, None, None], Fabric("not started", 0, ())),
        ([2, 0, 0, 0, 0], Fabric("in progress", 0, ())),
        ([3, 999, 0, 0, 0], Fabric("completed", 999, ())),
        ([3, 0, 0, 0b10_10_10_10, 1], Fabric("completed", 0, ())),
        ([3, 0, 0, 0b01, 0], Fabric("completed", 0, ("degraded bandwidth",))),
        (
            [3, 0, 0, 0b01_01_01_00, 2],
            Fabric(
                "completed",
                0,
                ("unhealthy", "route recovery under way", "unhealthy routes", "access time-outs"),
            ),
        ),
        ([3, 0, 0, 0x1AA, 1], Fabric("completed", 0, ())),
        ([3, 0, 0, 0x5AA, 3], Fabric("completed", 0, ("limited capacity", "too few NVLinks"))),
        ([3, 0, 0, 0x9AA, 1], Fabric("completed", 0, ("a wrong configuration (9)",))),
    ],
)
def test_the_fabric(fabric: Any, expected: Fabric) -> None:
    assert of("gpu.fabric", fabric=fabric) == {0: expected}


def test_no_fabric() -> None:
    assert of("gpu.fabric", fabric=[0, 0, 0, 0, 0]).reason == "not_applicable"


@pytest.mark.parametrize(
    "fabric", [None, [], [3, 0, 0], [9, 0, 0, 0, 0], ["3", 0, 0, 0, 0], [3, None, 0, 0, 0]]
)
def test_a_fabric_that_nobody_understands(fabric: Any) -> None:
    assert of("gpu.fabric", fabric=fabric).reason == "garbled"
