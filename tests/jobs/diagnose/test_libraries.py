"""Libraries and drivers that do not fit, and the host that has them."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from clusterprep.jobs.diagnose.model import Diagnosis
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose


def told(*texts: str) -> Diagnosis:
    lines = [line_of("train.log", number, text, number) for number, text in enumerate(texts, 1)]
    return diagnose(lines, {"train.log": len(texts)})


def first(*texts: str) -> tuple[str, str | None, float]:
    causes = told(*texts).causes
    if not causes:
        return "", None, 0.0
    return causes[0].cause.name, causes[0].culprit, causes[0].confidence


SYMBOL = "ImportError: /opt/env/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclDevCommDestroy"


@pytest.mark.parametrize(
    ("line", "cause", "confidence"),
    [
        (SYMBOL, "nccl_library_conflict", 0.95),
        (
            "OSError: /usr/local/nccl/lib/libnccl.so.2: undefined symbol: __cudaRegisterFatBinary",
            "nccl_library_conflict",
            0.75,
        ),
        (
            "ImportError: libtorch_python.so: undefined symbol: _ZN5torch4cuda4nccl6detail16throw_nccl_errorE12ncclResult_t",
            "nccl_library_conflict",
            0.75,
        ),
        (
            "ERROR 05-01 10:00:00 [pynccl_wrapper.py:230] Failed to load NCCL library from libnccl.so.2. It is expected if you are not running on NVIDIA/AMD GPUs.",
            "nccl_library_conflict",
            0.75,
        ),
        ("RuntimeError: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "driver_too_old", 0.75),
        (
            "cudaErrorCompatNotSupportedOnDevice: forward compatibility was attempted on non supported HW",
            "driver_too_old",
            0.75,
        ),
    ],
)
def test_what_the_loader_and_the_driver_say(line: str, cause: str, confidence: float) -> None:
    name, _, sure = first(line)
    assert (name, sure) == (cause, confidence)


def test_the_missing_symbol_is_told() -> None:
    assert "ncclDevCommDestroy is missing" in told(SYMBOL).causes[0].message


def test_slurm_tells_the_host_whose_program_did_not_load() -> None:
    exited = "srun: error: i51: task 0: Exited with exit code 1"
    ended = "srun: error: i60: task 1: Terminated"
    assert first(SYMBOL, exited, ended) == ("nccl_library_conflict", "host i51", 0.95)
    both = "srun: error: i60: task 1: Exited with exit code 1"
    assert first(SYMBOL, exited, both)[1] is None


def test_what_every_process_says_is_not_the_fault_of_the_one_that_was_noticed_first() -> None:
    lines = [
        f"[{gpu}] enqueue.cc:215 NCCL WARN Cuda failure 'invalid device function'"
        for gpu in range(4)
    ]
    found = first(*lines, "-- Process 3 terminated with the following error:")
    assert found[:2] == ("nccl_bug_or_version", None)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            (
                "RuntimeError: Version mismatch: The cluster was started with:",
                "    Ray: 2.8.0",
                "This process on node 10.42.0.23 was started with:",
            ),
            ("env_or_version_mismatch", "host 10.42.0.23", 0.95),
            id="ray-refuses",
        ),
        pytest.param(
            (
                "WARNING utils.py:1591 -- Python patch version mismatch: The cluster was started with:",
                "This process on node 10.42.0.23 was started with:",
            ),
            ("", None, 0.0),
            id="ray-warns",
        ),
    ],
)
def test_rays_versions(lines: tuple[str, ...], expected: tuple[str, str | None, float]) -> None:
    assert first(*lines) == expected


def test_vllm_tells_its_nccl() -> None:
    found = first(
        "(RayWorkerWrapper pid=1, ip=10.9.0.1) INFO 05-01 10:00:00 [pynccl.py:63] vLLM is using nccl==2.21.5",
        "(RayWorkerWrapper pid=1, ip=10.9.0.2) INFO 05-01 10:00:00 [pynccl.py:63] vLLM is using nccl==2.18.1",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, internal error",
    )
    assert found[:2] == ("env_or_version_mismatch", "hosts 10.9.0.1 and 10.9.0.2")


@pytest.mark.parametrize(
    ("line", "note"),
    [
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
            "the driver is for CUDA 11040",
        ),
        (
            "n1:1:2 [0] misc/cudawrap.cc:240 NCCL WARN CUDA Driver version found is 11000. Minimum requirement is 11030",
            "for CUDA 11000 and NCCL needs 11030",
        ),
        (
            "[    9.000000] NVRM: API mismatch: the client has the version 550.90.07, but this kernel module has 535.54.03",
            "of driver 550.90.07 and the kernel module is 535.54.03",
        ),
    ],
)
def test_both_versions_are_told(line: str, note: str) -> None:
    assert note in told(line).causes[0].message


@pytest.mark.parametrize(
    "line",
    [
        "Failed to initialize NVML: Driver/library version mismatch",
        "n1:1:2 [0] NCCL WARN nvmlInit_v2() failed: Driver/library version mismatch",
        "[    9.000000] NVRM: API mismatch: the client has the version 550.90.07, but this kernel module has 535.54.03",
    ],
)
def test_a_driver_that_was_replaced_is_loaded_anew_and_is_not_too_old(line: str) -> None:
    insufficient = "RuntimeError: CUDA driver version is insufficient for CUDA runtime version"
    first, *others = told(line, insufficient).causes
    assert (first.cause.name, first.cause.check) == ("driver_not_reloaded", "nv.module_vs_lib")
    assert [other.cause.name for other in others] == ["driver_too_old"]
    assert "reboot" in str(first.cause.remedy.note)
