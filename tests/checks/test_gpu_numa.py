"""The NUMA nodes of the job's devices: all, a part that fits one node, one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.environment import Setting
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


def session(value: str, **more: str) -> dict[str, Any]:
    """Both launch paths with a list of devices, and other variables."""
    names = {"CUDA_VISIBLE_DEVICES": value, **more}
    settings = tuple(Setting(name, text, "/root/.bashrc", 9) for name, text in names.items())
    return {"env.paths": {"login shell": settings, "ssh command": settings, "nccl": ()}}


def mixed(facts: dict[str, Any]) -> dict[str, Any]:
    """The ten GPUs of incident 1: six L40S, then four L20, two of these on each socket."""
    nvml = facts["gpu.nvml"]
    gpus = tuple(
        Gpu(gpu.index, "NVIDIA L40S" if gpu.index < 6 else gpu.name, gpu.uuid, gpu.pci)
        for gpu in nvml.gpus
    )
    return {**facts, "gpu.nvml": Nvml(nvml.driver, nvml.cuda, gpus)}


INCIDENT = [0, 0, 0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("0,1,2,3", "pass", id="one-socket"),
        pytest.param("2,3,4,5", "fail warning", id="across"),
        pytest.param("GPU-2,GPU-3,GPU-4", "fail warning", id="uuids-across"),
        pytest.param("GPU-4,GPU-5", "pass", id="uuids-of-one-socket"),
        pytest.param("0,1,9,4", "pass", id="cuda-stops-at-what-is-not-there"),
        pytest.param("3,9,4", "pass", id="one-is-left"),
        pytest.param("", "skip not_applicable", id="none-visible"),
        pytest.param("MIG-4f421ec4-5175-50ef-8452-d6abb13cb1d2", "unknown warning not_asked"),
    ],
)
def test_devices_that_the_session_shows_are_judged(value: str, expected: str) -> None:
    seen = fleet(each={"gpus": Gpus(8)}, n1={**node(FOUR_AND_FOUR), **session(value)})
    assert told(seen, "gpu.numa_span") == {"n1": expected}


def test_a_session_that_was_not_asked_is_said_and_one_that_is_not_known_is_unknown() -> None:
    (found,) = findings(fleet(each={"gpus": Gpus(8)}, n1=node(FOUR_AND_FOUR)), "gpu.numa_span")
    assert (found.verdict, "which was not asked" in found.message) == ("pass", True)
    facts = {**node(FOUR_AND_FOUR), "env.paths": absent("hung")}
    seen = fleet(each={"gpus": Gpus(8)}, n1=facts)
    assert told(seen, "gpu.numa_span") == {"n1": "unknown warning hung"}
    declared = {"gpus": Gpus(8, None, (0, 1))}
    assert told(fleet(each=declared, n1=facts), "gpu.numa_span") == {"n1": "pass"}


def test_what_is_declared_goes_before_what_the_session_shows() -> None:
    facts = {**node(FOUR_AND_FOUR), **session("3,4")}
    assert told(fleet(each={"gpus": Gpus(8, None, (0, 1))}, n1=facts), "gpu.numa_span") == {
        "n1": "pass"
    }


def test_the_box_of_incident_1_without_a_declaration() -> None:
    facts = {**mixed(node(INCIDENT)), **session("6,7,8,9")}
    (found,) = findings(fleet(each={"gpus": Gpus(10)}, n1=facts), "gpu.numa_span")
    assert found.verdict == "fail"
    assert found.seen == "NUMA 0: GPU 6,7; NUMA 1: GPU 8,9"
    assert "that CUDA_VISIBLE_DEVICES shows span NUMA nodes" in found.message
    assert "0-3 (NVIDIA L40S) would not" in found.message
    assert "CUDA may begin with another model" in found.message


def test_devices_of_the_model_in_use_are_proposed_first() -> None:
    facts = {**mixed(node([0, 0, 0, 0, 0, 0, 0, 1, 1, 1])), **session("6,7")}
    (found,) = findings(fleet(each={"gpus": Gpus(10)}, n1=facts), "gpu.numa_span")
    assert "7-8 would not" in found.message


def test_gpus_of_a_virtual_machine_are_found_by_what_the_kernel_calls_them() -> None:
    """NVIDIA/nvidia-docker#1316: NVML's domains have digits that Hyper-V's kernel does not show."""
    gpus = tuple(
        Gpu(index, "Tesla P100-PCIE-16GB", f"GPU-{index}", f"{domain}:00:00.0")
        for index, domain in enumerate(("03f8cfdd", "03f8f31a"))
    )
    functions = (
        Function("cfdd:00:00.0", False, 0, False),
        Function("f31a:00:00.0", False, 0, False),
    )
    facts = {"gpu.nvml": Nvml("535.183.01", "12.2", gpus), "gpu.functions": functions}
    (found,) = findings(fleet(each={"gpus": Gpus(2)}, n1=facts), "gpu.numa_span")
    assert (found.verdict, found.seen) == ("pass", "NUMA 0: GPU 0,1")
