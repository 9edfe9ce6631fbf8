"""The NUMA nodes of the job's devices: all, a part that fits one node, one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.gpu import Function, Gpu, Nvml
from clusterprep.model import Gpus
from tests.support.fleet import absent, findings, fleet, told

FOUR_AND_FOUR = [0, 0, 0, 0, 1, 1, 1, 1]
TEN = [0] * 6 + [1] * 4


def node(numa: list[int | None], answering: int | None = None) -> dict[str, Any]:
    """GPUs by NVML, with eight digits of domain in addresses, and by the kernel, with four."""
    shown = len(numa) if answering is None else answering
    gpus = tuple(
        Gpu(i, "NVIDIA L20", f"GPU-{i}", f"00000000:{i + 16:02X}:00.0") for i in range(shown)
    )
    places = tuple(
        Function(f"0000:{i + 16:02x}:00.0", False, place, False) for i, place in enumerate(numa)
    )
    return {"gpu.nvml": Nvml("550.54.15", "12.4", gpus), "gpu.functions": places}


@pytest.mark.parametrize(
    ("numa", "use", "expected"),
    [
        pytest.param(FOUR_AND_FOUR, None, "pass", id="nothing-declared"),
        pytest.param(FOUR_AND_FOUR, (0, 1, 2, 3, 4, 5, 6, 7), "pass", id="all"),
        pytest.param(FOUR_AND_FOUR, (0, 1, 2, 3), "pass", id="one-socket"),
        pytest.param(FOUR_AND_FOUR, (4, 5), "pass", id="part-of-one-socket"),
        pytest.param(FOUR_AND_FOUR, (3, 4), "fail warning", id="across"),
        pytest.param(FOUR_AND_FOUR, (0, 1, 2, 3, 4), "pass", id="more-than-a-socket-has"),
        pytest.param(TEN, (6, 7, 8, 9), "pass", id="incident-1"),
        pytest.param(TEN, (5, 6, 7, 8), "fail warning", id="incident-1-off-by-one"),
        pytest.param(TEN, (6, 7, 9), "pass", id="holes"),
        pytest.param([None] * 8, (3, 4), "skip not_applicable", id="the-machine-does-not-say"),
        pytest.param(
            [0, 0, None, None],
            (1, 2),
            "unknown warning numa_node of PCI devices is -1",
            id="half-of-it",
        ),
        pytest.param([], None, "skip not_applicable", id="no-gpu"),
    ],
)
def test_a_part_of_the_devices_fits_one_numa_node(
    numa: list[int | None], use: Any, expected: str
) -> None:
    gpus = None if use is None else Gpus(len(numa), None, use)
    assert told(fleet(each={"gpus": gpus}, n1=node(numa)), "gpu.numa_span") == {"n1": expected}


def test_the_set_that_fits_is_named() -> None:
    seen = fleet(each={"gpus": Gpus(10, "NVIDIA L20", (5, 6, 7, 8))}, n1=node(TEN))
    (found,) = findings(seen, "gpu.numa_span")
    assert found.seen == "NUMA 0: GPU 5; NUMA 1: GPU 6,7,8"
    assert found.remedy == 'set `gpus: {count: 10, use: "0-3"}` for n1'


def test_holes_are_told() -> None:
    (found,) = findings(
        fleet(each={"gpus": Gpus(10, None, (6, 7, 9))}, n1=node(TEN)), "gpu.numa_span"
    )
    assert "with holes in `use: 6,7,9`" in found.message


def test_a_device_of_the_job_that_does_not_answer() -> None:
    seen = fleet(each={"gpus": Gpus(10, None, (6, 7, 8, 9))}, n1=node(TEN, answering=9))
    assert told(seen, "gpu.numa_span") == {"n1": "unknown warning gpu.lost"}


@pytest.mark.parametrize(
    ("answering", "message"),
    [
        (9, "device 9 of `use:` does not answer"),
        (8, "devices 8, 9 of `use:` do not answer"),
    ],
)
def test_devices_that_do_not_answer_are_named(answering: int, message: str) -> None:
    seen = fleet(each={"gpus": Gpus(10, None, (6, 7, 8, 9))}, n1=node(TEN, answering))
    (finding,) = findings(seen, "gpu.numa_span")
    assert finding.message == message


@pytest.mark.parametrize("reason", ["denied", "missing_tool", "hung", "timed_out", "garbled"])
@pytest.mark.parametrize("fact", ["gpu.nvml", "gpu.functions"])
def test_what_is_not_known_is_never_a_pass(fact: str, reason: str) -> None:
    seen = fleet(n1={**node(FOUR_AND_FOUR), fact: absent(reason)})
    assert told(seen, "gpu.numa_span") == {"n1": f"unknown warning {reason}"}


def test_a_node_without_nvml_has_no_gpus() -> None:
    seen = fleet(n1={"gpu.nvml": None, "gpu.functions": ()})
    assert told(seen, "gpu.numa_span") == {"n1": "skip not_applicable"}
