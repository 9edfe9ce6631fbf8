"""The GPUs of the nodes, and which one each rank would get, as JSON and as text."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.facts.environment import Setting
from clusterprep.facts.gpu import Function, Gpu, Nvml
from clusterprep.facts.nvlink import NvLinks
from clusterprep.model import Fleet, Gpus, RankGpu, RankPlace, Report
from clusterprep.reports import console, json_report
from clusterprep.survey.rank_places import gpu_seats, rank_places
from tests.machines import play
from tests.support.fleet import absent, fleet, silent

L40S, L20 = "NVIDIA L40S", "NVIDIA L20"
# Incident 1: ten GPUs of two models, of which the job is shown the last four.
# Model, PCI bus, NUMA node.
SEATS = (
    (L40S, 0x16, 0),
    (L40S, 0x17, 0),
    (L40S, 0x38, 0),
    (L40S, 0x39, 0),
    (L40S, 0x98, 1),
    (L40S, 0x99, 1),
    (L20, 0xA3, 0),
    (L20, 0xA4, 0),
    (L20, 0xB3, 1),
    (L20, 0xB4, 1),
)


def box(value: str | None = None, **more: str) -> dict[str, Any]:
    """The box, with a list of devices in both launch paths."""
    gpus = tuple(
        Gpu(index, model, f"GPU-{index}", f"00000000:{bus:02X}:00.0")
        for index, (model, bus, _) in enumerate(SEATS)
    )
    functions = tuple(
        Function(f"0000:{bus:02x}:00.0", False, numa, False) for _, bus, numa in SEATS
    )
    names = {**({} if value is None else {"CUDA_VISIBLE_DEVICES": value}), **more}
    settings = tuple(Setting(name, text, "/root/.bashrc", 9) for name, text in names.items())
    return {
        "gpu.nvml": Nvml("550.54.15", "12.4", gpus),
        "gpu.functions": functions,
        "env.paths": {"login shell": settings, "ssh command": settings, "nccl": ()},
    }


def places(seen: Fleet) -> list[tuple[int, str, int, int | None]]:
    """Return (rank, node, local rank, NVML's index of its GPU) of each row."""
    return [
        (row.rank, row.node, row.local_rank, row.gpu and row.gpu.index)
        for row in rank_places(seen) or ()
    ]


def test_ranks_get_the_devices_that_the_session_shows() -> None:
    rows = rank_places(fleet(n1=box("6,7,8,9")))
    assert rows is not None
    assert rows[0] == RankPlace(0, 0, "n1", RankGpu("GPU-6", 6, "0000:a3:00.0", 0))
    assert rows[3] == RankPlace(3, 3, "n1", RankGpu("GPU-9", 9, "0000:b4:00.0", 1))
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("settings", "value", "expected"),
    [
        pytest.param({}, None, list(range(10)), id="all"),
        pytest.param({"gpus": Gpus(10, None, (9, 8))}, "0,1", [9, 8], id="declared-goes-first"),
        pytest.param({"nproc_per_node": 2}, "6,7,8,9", [6, 7], id="fewer-processes"),
        pytest.param({"nproc_per_node": 3}, "GPU-2,GPU-1", [2, 1, None], id="more-processes"),
        pytest.param({"nproc_per_node": 2}, "", [None, None], id="none-visible"),
        pytest.param({}, "8,12,7", [8], id="cuda-stops-early"),
    ],
)
def test_the_nth_rank_takes_the_nth_device_that_it_sees(
    settings: dict[str, Any], value: str | None, expected: list[int | None]
) -> None:
    seen = fleet(each=settings, n1=box(value))
    assert [index for _, _, _, index in places(seen)] == expected


def test_ranks_go_on_at_the_next_node() -> None:
    seen = fleet(n1=box("6,7"), n2=box("1"))
    assert places(seen) == [(0, "n1", 0, 6), (1, "n1", 1, 7), (2, "n2", 0, 1)]


def test_a_node_of_which_nothing_is_known_ends_the_table() -> None:
    seen = fleet(n1=box("6"), n2=silent("n2"), n3=box("7"))
    assert places(seen) == [(0, "n1", 0, 6)]


def test_a_node_that_is_declared_has_ranks_without_known_gpus() -> None:
    seen = fleet(each={"gpus": Gpus(10, None, (6, 7))}, n1=silent("n1"), n2=box())
    assert places(seen) == [
        (0, "n1", 0, None),
        (1, "n1", 1, None),
        (2, "n2", 0, 6),
        (3, "n2", 1, 7),
    ]
    rows = rank_places(seen)
    assert rows is not None
    assert rows[0].why == "the GPUs of this node are not known"


def test_nothing_is_told_where_gpus_were_not_asked() -> None:
    seen = fleet(n1={"env.paths": {}}, n2={"gpu.nvml": absent("hung")})
    assert rank_places(seen) is None
    assert gpu_seats(seen) is None


def test_equal_gpus_of_several_nodes_share_a_row() -> None:
    links = dict.fromkeys(range(10), NvLinks((0, 1), (), switched=False, peers=()))
    facts = {**box(), "nvlink.links": links}
    other = {**facts, "nvlink.links": {**links, 3: NvLinks((0,), (1,), switched=False, peers=())}}
    rows = gpu_seats(fleet(n1=facts, n2=other, n3=facts))
    assert rows is not None
    assert len(rows) == 11
    assert [(row.nodes, row.nvlinks) for row in rows if row.index == 3] == [
        (("n1", "n3"), 2),
        (("n2",), 1),
    ]


# ---------------------------------------------------------------- reports


def shown(seen: Fleet, verbose: int = 0) -> str:
    report = Report(
        "check",
        "r1",
        "box",
        "2026-11-21T09:30:00Z",
        1.0,
        "pass",
        0,
        gpus=gpu_seats(seen),
        ranks=rank_places(seen),
    )
    return console.render(report, color=False, verbose=verbose, width=120, ascii_only=False)


def test_the_console_shows_the_topology_and_a_mapping_that_is_not_plain() -> None:
    seen = fleet(n1=box("6,7,8,9"))
    topology = "n1  6 × NVIDIA L40S and 4 × NVIDIA L20; NUMA 0: GPU 0-3,6-7; NUMA 1: GPU 4-5,8-9"
    assert topology in shown(seen, verbose=1)
    text = shown(seen)
    assert "GPUs     n1 6 × NVIDIA L40S and 4 × NVIDIA L20\n" in text
    assert "rank 0      n1 local 0, GPU 6, GPU-6, 0000:a3:00.0, NUMA 0" in text
    assert "rank 3      n1 local 3, GPU 9, GPU-9, 0000:b4:00.0, NUMA 1" in text


def test_the_plain_mapping_is_shown_with_v() -> None:
    seen = fleet(n1=box(), n2=box())
    assert "rank 19" not in shown(seen)
    assert "rank 19" in shown(seen, verbose=1)


def test_a_rank_without_a_gpu_says_why() -> None:
    text = shown(fleet(each={"nproc_per_node": 2}, n1=box("6")))
    assert "no GPU: there is no further GPU for it" in text


def test_json_has_both_as_its_schema_says() -> None:
    seen = fleet(each={"nproc_per_node": 2}, n1=box("6"))
    report = Report(
        "check",
        "r1",
        "box",
        "2026-11-21T09:30:00Z",
        1.0,
        "pass",
        0,
        gpus=gpu_seats(seen),
        ranks=rank_places(seen),
    )
    document = json_report.document(report)
    assert document["ranks"] == [
        {
            "rank": 0,
            "local_rank": 0,
            "node": "n1",
            "gpu": {"uuid": "GPU-6", "index": 6, "pci": "0000:a3:00.0", "numa": 0},
        },
        {
            "rank": 1,
            "local_rank": 1,
            "node": "n1",
            "gpu": None,
            "why": "there is no further GPU for it",
        },
    ]
    assert document["gpus"][6] == {
        "nodes": ["n1"],
        "index": 6,
        "model": L20,
        "pci": "0000:a3:00.0",
        "numa": 0,
        "nvlinks": None,
        "near": [],
    }


@pytest.mark.machine
@play.needs_chroot
def test_near_ports_are_those_below_the_same_switch() -> None:
    rows = gpu_seats(play.world("dgx-h200").fleet)
    assert rows is not None
    first = rows[0]
    assert (first.nodes, first.pci, first.numa, first.nvlinks, first.near) == (
        ("n1", "n2", "n3"),
        "0000:1b:00.0",
        0,
        18,
        ("mlx5_0",),
    )
    ranks = rank_places(play.world("dgx-h200").fleet)
    assert ranks is not None
    assert len(ranks) == 24
    assert replace(ranks[8], gpu=None) == RankPlace(8, 0, "n2", None)
