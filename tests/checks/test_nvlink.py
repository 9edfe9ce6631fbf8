"""Links of boards and of cards with and without bridges, and pairs that fell back to PCIe."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.checks.nvlink import expected
from clusterprep.facts.gpu import Model
from clusterprep.facts.nvlink import NvLinks
from clusterprep.model import Gpus
from tests.support.fleet import absent, findings, fleet, gpu_facts, told

H100, A100, H800 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA H800"
CARD, NVL, NEW = "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA R100"


def links(up: int, down: int = 0, **fields: Any) -> NvLinks:
    made = NvLinks(tuple(range(up)), tuple(range(up, up + down)), switched=True, peers=())
    return replace(made, **fields)


def node(name: str, *each: Any, pairs: dict[int, Any] | None = None) -> dict[str, Any]:
    count = len(each)
    return {
        "nvlink.links": dict(enumerate(each)),
        "gpu.model": {index: Model(name, 80 << 30, "9.0") for index in range(count)},
        "nvlink.pairs": {i: dict.fromkeys(range(i + 1, count), 0) for i in range(count)}
        if pairs is None
        else pairs,
    }


@pytest.mark.parametrize(
    ("name", "count"),
    [
        (H100, 18),
        (A100, 12),
        ("NVIDIA A100-SXM-64GB", 12),
        ("NVIDIA H200", 18),
        ("NVIDIA H20", 18),
        (H800, 8),
        ("NVIDIA A800-SXM4-80GB", 8),
        ("NVIDIA B200", 18),
        ("NVIDIA GB200", 18),
        (CARD, None),
        (NVL, None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA H800 PCIe", None),
        ("NVIDIA L40S", None),
        ("NVIDIA GH200 480GB", None),
        (NEW, None),
        ("", None),
    ],
)
def test_a_board_has_its_number_of_links(name: str, count: int | None) -> None:
    assert expected(name) == count


FULL, SHORT, NONE = links(18), links(17, 1), links(0, 18)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        pytest.param(node(H100, *[FULL] * 8), "pass", id="all-up"),
        pytest.param(node(H100, *[FULL] * 7, SHORT), "fail error", id="one-link-down"),
        pytest.param(node(H100, *[SHORT] * 8), "fail error", id="one-down-on-each"),
        pytest.param(node(H100, *[NONE] * 8), "fail error", id="all-down"),
        pytest.param(node(H100, NONE), "skip not_applicable", id="a-single-gpu-has-no-peer"),
        pytest.param(
            node(H100, *[replace(NONE, virtual=True)] * 2),
            "skip not_applicable",
            id="a-vm-without-links",
        ),
        pytest.param(
            node(H100, *[replace(FULL, virtual=True)] * 7, SHORT),
            "fail error",
            id="a-vm-with-links",
        ),
        pytest.param(node(A100, *[links(12)] * 8), "pass", id="a100"),
        pytest.param(
            node(H100, *[replace(FULL, speeds=(26562,) * 18)] * 8), "pass", id="full-speed"
        ),
        pytest.param(
            node(H100, *[FULL] * 7, replace(FULL, speeds=(26562,) * 17 + (13281,))),
            "fail error",
            id="a-link-at-half-speed",
        ),
        pytest.param(
            node(NEW, *[replace(links(4), speeds=(50000, 50000, 50000, 25000))] * 2),
            "fail error",
            id="slower-than-those-beside-it",
        ),
        pytest.param(
            node("NVIDIA B200", *[replace(links(18), speeds=(53125,) * 18)] * 8),
            "pass",
            id="b200-as-most-drivers-tell",
        ),
        pytest.param(
            node("NVIDIA GB200", *[replace(links(18), speeds=(50000,) * 18)] * 4),
            "pass",
            id="gb200-as-others-tell",
        ),
        pytest.param(
            node(A100, *[links(12)] * 7, links(11)),
            "fail error",
            id="a100-and-a-link-that-is-not-told",
        ),
        pytest.param(node(H800, *[links(8)] * 8), "pass", id="h800-has-fewer"),
        pytest.param(
            node(CARD, *[links(0, 18)] * 4), "skip not_applicable", id="cards-without-bridges"
        ),
        pytest.param(node(CARD, *[links(12, 6)] * 4), "pass", id="cards-with-bridges"),
        pytest.param(
            node(CARD, *[links(12, 6)] * 2, *[links(0, 18)] * 2), "pass", id="a-pair-with-a-bridge"
        ),
        pytest.param(
            node(CARD, links(12, 6), links(8, 10)), "fail error", id="a-bridge-that-is-loose"
        ),
        pytest.param(
            node(NEW, *[links(20)] * 3, links(18, 2)), "fail error", id="fewer-than-its-peers"
        ),
        pytest.param(
            node(NEW, *[links(20)] * 3, links(0, 20)), "fail error", id="none-and-its-peers-have"
        ),
        pytest.param(node(NEW, *[links(20)] * 4), "pass", id="an-unknown-model"),
        pytest.param(
            node(H100, *[FULL] * 7, absent("denied")), "unknown error denied", id="one-denied"
        ),
        pytest.param(
            node(H100, *[FULL] * 7, absent("not_applicable")),
            "unknown error nvml_error",
            id="one-not-supported",
        ),
        pytest.param(
            node("NVIDIA L40S", absent("not_applicable")), "skip not_applicable", id="no-nvlink"
        ),
    ],
)
def test_every_link_is_up(facts: dict[str, Any], said: str) -> None:
    assert told(fleet(n1=facts), "nvl.state") == {"n1": said}


def test_links_that_are_down_are_named() -> None:
    (found,) = findings(fleet(n1=node(H100, *[FULL] * 7, SHORT)), "nvl.state")
    assert found.seen == "GPU 7: 17 of 18, down: 17"
    assert found.remedy.startswith("nvidia-smi nvlink -s -i 7")


def apart(*pairs: tuple[int, int], count: int = 8, status: int | None = 5) -> dict[int, Any]:
    return {
        i: {j: status if (i, j) in pairs else 0 for j in range(i + 1, count)} for i in range(count)
    }


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        pytest.param(node(H100, *[FULL] * 8), "pass", id="all-pairs"),
        pytest.param(
            node(H100, *[FULL] * 8, pairs=apart((2, 3))), "fail warning", id="one-pair-apart"
        ),
        pytest.param(
            node(H100, *[FULL] * 8, pairs=apart((2, 3), status=None)),
            "unknown warning nvml_error",
            id="not-told",
        ),
        pytest.param(
            node(H100, *[FULL] * 7, SHORT, pairs=apart((2, 7))),
            "pass",
            id="links-down-are-told-once",
        ),
        pytest.param(
            node(H100, *[NONE] * 8, pairs=apart((2, 3))),
            "skip not_applicable",
            id="all-down-is-told-once",
        ),
        pytest.param(
            node(CARD, *[links(0, 18)] * 8, pairs=apart((2, 3))), "skip not_applicable", id="cards"
        ),
        pytest.param(
            node(CARD, *[links(12, 6, switched=False)] * 8, pairs=apart((0, 2))),
            "skip not_applicable",
            id="bridges",
        ),
        pytest.param(
            node(NEW, *[links(20)] * 8, pairs=apart((0, 2))), "fail warning", id="switches-join-all"
        ),
        pytest.param(node(H100, FULL), "skip not_applicable", id="a-single-gpu"),
    ],
)
def test_every_pair_is_joined(facts: dict[str, Any], said: str) -> None:
    assert told(fleet(n1=facts), "nvl.topology") == {"n1": said}


def test_pairs_are_named_with_the_reason() -> None:
    facts = node(H100, *[FULL] * 8, pairs=apart((2, 3), (4, 5), status=4))
    (found,) = findings(fleet(n1=facts), "nvl.topology")
    assert found.seen == "GPU 2 and 3: the registry; GPU 4 and 5: the registry"


@pytest.mark.parametrize(
    ("name", "switched", "said"),
    [
        pytest.param(
            "Tesla V100-SXM2-32GB", False, "skip not_applicable", id="the-mesh-of-a-dgx-1"
        ),
        pytest.param("Tesla V100-SXM3-32GB", True, "fail warning", id="the-switches-of-a-dgx-2"),
        pytest.param(A100, False, "fail warning", id="a-board-of-four-joins-all"),
    ],
)
def test_a_mesh_does_not_join_every_pair(name: str, switched: bool, said: str) -> None:
    six = links(12 if name == A100 else 6, switched=switched)
    assert told(fleet(n1=node(name, *[six] * 8, pairs=apart((0, 5), (0, 6)))), "nvl.topology") == {
        "n1": said
    }


def test_pairs_with_devices_of_others_do_not_count() -> None:
    facts = node(H100, *[FULL] * 8, pairs=apart((2, 7)))
    seen = fleet(each={"gpus": Gpus(8, None, (0, 1, 2, 3))}, n1=facts)
    assert told(seen, "nvl.topology") == {"n1": "pass"}


@pytest.mark.parametrize("reason", ["denied", "missing_tool", "hung", "timed_out", "garbled"])
@pytest.mark.parametrize("fact", ["nvlink.links", "gpu.model", "nvlink.pairs"])
def test_what_is_not_known_is_never_a_pass(fact: str, reason: str) -> None:
    seen = fleet(n1={**gpu_facts(), fact: absent(reason)})
    assert told(seen, "nvl.topology") == {"n1": f"unknown warning {reason}"}
    if fact != "nvlink.pairs":
        assert told(seen, "nvl.state") == {"n1": f"unknown error {reason}"}
