"""NCCL_P2P_DISABLE: only if NVLink joins two GPUs of the job and the driver refuses access."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.gpu import Gpu
from clusterprep.facts.nvlink import NvLinks
from clusterprep.model import Gpus
from clusterprep.nccl.interfaces import Choice
from clusterprep.nccl.variables import Basis
from clusterprep.nccl.variables.peers import derive
from tests.support.fleet import absent, fleet, nvml

NONE = absent("not_applicable")
SWITCHED = NvLinks(tuple(range(18)), (), switched=True, peers=())


def bridged(to: str) -> NvLinks:
    return NvLinks((0, 1, 2, 3), (), switched=False, peers=(to,))


def node(links: dict[int, Any], pairs: dict[tuple[int, int], Any], **facts: Any) -> dict[str, Any]:
    told: dict[int, Any] = {index: {} for index in links}
    for (first, second), status in pairs.items():
        told[first][second] = status
    mig = dict.fromkeys(links, (False, False))
    return {
        "nvlink.links": links,
        "nvlink.pairs": told,
        "gpu.nvml": nvml(len(links)),
        "gpu.mig": mig,
        **facts,
    }


def derived(
    *nodes: dict[str, Any], **options: Any
) -> list[tuple[str, str | None, tuple[str, ...]]]:
    seen = fleet(**options, **{f"n{number}": facts for number, facts in enumerate(nodes, 1)})
    return [(d.name, d.value, d.nodes) for d in derive(Basis(seen, Choice()))]


BROKEN = {(0, 1): 4, (0, 2): 0, (1, 2): 0}
BOARD = dict.fromkeys(range(3), SWITCHED)
WRITTEN = [("NCCL_P2P_DISABLE", "1", ("n1",))]


@pytest.mark.parametrize("status", [1, 2, 3, 4, 5])
def test_a_refusal_between_gpus_of_one_board_is_broken(status: int) -> None:
    assert derived(node(BOARD, {**BROKEN, (0, 1): status})) == WRITTEN


@pytest.mark.parametrize(
    ("links", "pairs"),
    [
        pytest.param(BOARD, {(0, 1): 0}, id="fine"),
        pytest.param(BOARD, {(0, 1): 6}, id="the-driver-does-not-know"),
        pytest.param(BOARD, {(0, 1): None}, id="the-driver-does-not-tell"),
        pytest.param({0: NONE, 1: NONE}, {(0, 1): 5}, id="cards-without-nvlink"),
        pytest.param({0: SWITCHED, 1: NONE}, {(0, 1): 5}, id="one-without-nvlink"),
        pytest.param({0: replace(SWITCHED, up=()), 1: SWITCHED}, {(0, 1): 5}, id="no-link-up"),
        pytest.param(
            {0: bridged("0000:07:00.0"), 1: bridged("0000:08:00.0")},
            {(0, 1): 5},
            id="bridges-to-others",
        ),
    ],
)
def test_what_is_not_shown_to_be_broken_is_left_to_nccl(
    links: dict[int, Any], pairs: dict[Any, Any]
) -> None:
    assert derived(node(links, pairs)) == []


@pytest.mark.parametrize("place", ["0000:01:00.0", "00000000:01:00.0", "0000:01:00.0".upper()])
def test_a_bridge_joins_the_gpu_that_its_links_lead_to(place: str) -> None:
    links = {0: bridged(place), 1: bridged("0000:00:00.0"), 2: bridged("0000:09:00.0")}
    assert derived(node(links, {(0, 1): 4, (0, 2): 5})) == WRITTEN
    assert derived(node(links, {(0, 1): 0, (0, 2): 5})) == []


@pytest.mark.parametrize("place", ["00010000:01:00.0", "00000001:01:00.0", "00000000:01:00.1"])
def test_addresses_of_gpus_are_compared_whole(place: str) -> None:
    gpus = nvml(2)
    other = replace(gpus, gpus=(gpus.gpus[0], Gpu(1, "A100", "GPU-1", place)))
    links = {0: bridged("0000:01:00.0"), 1: bridged("0000:00:00.0")}
    assert derived(node(links, {(0, 1): 4}, **{"gpu.nvml": other})) == []


@pytest.mark.parametrize("fact", ["nvlink.links", "nvlink.pairs", "gpu.nvml"])
def test_what_is_not_known_is_not_broken(fact: str) -> None:
    assert derived(node(BOARD, BROKEN, **{fact: absent("hung")})) == []


def test_gpus_cut_into_instances_have_no_peers_by_design() -> None:
    cut = {0: (True, True), 1: (False, False), 2: (False, False)}
    assert derived(node(BOARD, BROKEN, **{"gpu.mig": cut})) == []
    assert derived(node(BOARD, BROKEN, **{"gpu.mig": absent("missing_tool")})) == WRITTEN


def test_only_gpus_of_the_job_count() -> None:
    assert derived(node(BOARD, BROKEN), each={"gpus": Gpus(3, use=(0, 2))}) == []
    assert derived(node(BOARD, BROKEN), each={"gpus": Gpus(3, use=(1, 0))}) == WRITTEN


def test_the_reason_names_the_pairs() -> None:
    seen = fleet(n1=node(BOARD, {(0, 1): 4, (0, 2): 0, (1, 2): 5}))
    (found,) = derive(Basis(seen, Choice()))
    assert found.why.startswith(
        "peer access is broken between GPUs 0 and 1, 1 and 2, which NVLink joins"
    )


def test_other_nodes_do_not_notice() -> None:
    assert derived(node(BOARD, BROKEN), node(BOARD, {})) == WRITTEN
