"""GPUs, NVLink and NVSwitches in logs: what tells of a fault, and what every healthy job prints."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import io

import pytest

from clusterprep.jobs.diagnose.command import diagnose
from clusterprep.jobs.diagnose.model import DiagnosedCause


def grave(log: str) -> list[DiagnosedCause]:
    """Return the causes of a log that are not harmless, most likely first."""
    diagnosis, _ = diagnose(["-"], stdin=io.BytesIO(log.encode()))
    return [found for found in diagnosis.causes if found.severity != "benign"]


def told(log: str) -> str:
    """Return «cause severity confidence culprit» of the first grave cause; "" if there is none."""
    found = grave(log)
    if not found:
        return ""
    first = found[0]
    return f"{first.cause.name} {first.severity} {first.confidence} {first.culprit}"


XID = "[Mon May  5 11:00:01 2025] NVRM: Xid"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("(PCI:0000:01:00): 13, pid=12, name=python, Graphics SM Warp Exception", id="13"),
        pytest.param("(PCI:0000:01:00): 31, pid=12, name=exe, Ch 0000000a, intr 0. MMU Fault", id="31"),
        pytest.param("(PCI:0009:01:00): 43, pid=31, name=trigger_xid, channel 0x0b00000a", id="43"),
        pytest.param("(PCI:0000:01:00): 45, pid=12, name=python, Ch 00000008", id="45"),
        pytest.param("(PCI:0000:01:00): 63, pid=12, name=python, Row Remapper: New row marked", id="63"),
        pytest.param("(PCI:0000:01:00): 121, pid=12, name=python, C2C Link corrected error", id="121"),
        pytest.param("(PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)", id="145"),
        pytest.param("(PCI:0018:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", id="154-none"),
        pytest.param("(PCI:0000:01:00): 162, Power smoothing HW Circuitry capability reengaged", id="162"),
    ],
)  # fmt: skip
def test_an_xid_that_is_no_fault_of_hardware_is_no_cause(line: str) -> None:
    assert told(f"{XID} {line}\n") == ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("(PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "0.95 GPU 0000:3b:00", id="79"),
        pytest.param("(PCI:0000:00:08): 94, pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No, D-RST: No", "0.95 GPU 0000:00:08", id="94"),
        pytest.param("(PCI:0000:01:00 GPU-I:05): 95, pid=7, Uncontained: LTC TAG", "0.95 GPU 0000:01:00 (GPU instance 5)", id="mig"),
        pytest.param("(PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, pid=7, Contained: SM", "0.95 GPU 0000:01:00 (GPU instance 5)", id="mig-compute"),
        pytest.param("(PCI:0000:01:00): 46, pid=7, GPU stopped processing", "0.75 GPU 0000:01:00", id="46"),
        pytest.param("(PCI:0000:01:00): 109, pid=7, Ch 1, errorString CTX SWITCH TIMEOUT", "0.75 GPU 0000:01:00", id="109"),
        pytest.param("(PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406)", "0.75 GPU 0019:01:00", id="149"),
        pytest.param("(PCI:0000:01:00): 158, pid=7, fatal timeout", "0.75 GPU 0000:01:00", id="158"),
        pytest.param("(PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", "0.75 GPU 0000:01:00", id="154-reboot"),
        pytest.param("(PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149", "0.75 GPU 0000:dc:00", id="45-caused-by-149"),
    ],
)  # fmt: skip
def test_an_xid_of_hardware_names_the_gpu(line: str, expected: str) -> None:
    assert told(f"{XID} {line}\n") == f"gpu_hardware_fault fatal {expected}"


def test_a_harmless_xid_says_nothing_beside_a_grave_one() -> None:
    log = f"{XID} (PCI:0000:00:05): 43, pid=1, name=python\n{XID} (PCI:0000:00:08): 48, pid=1\n"
    assert told(log) == "gpu_hardware_fault fatal 0.95 GPU 0000:00:08"


def test_the_xid_of_a_device_plugin_is_read_too() -> None:
    log = "'nvidia.com/gpu' device marked unhealthy: XidCriticalError: Xid=48 on Device=GPU-8f1d2b0e, the device will go unhealthy.\n"
    assert told(log) == "gpu_hardware_fault fatal 0.95 GPU GPU-8f1d2b0e"
    assert told(log.replace("Xid=48", "Xid=31")) == ""


def test_a_gpu_with_an_xid_and_its_host() -> None:
    log = "Jul 02 05:12:55 a100-n08 kernel: NVRM: Xid (PCI:0000:5d:00): 79, pid=1, GPU has fallen off the bus.\n"
    assert told(log) == "gpu_hardware_fault fatal 0.95 GPU 0000:5d:00 on a100-n08"


def test_a_gpu_that_cannot_be_attached_is_a_fault() -> None:
    log = "May 27 16:50:10 n7 kernel: NVRM: GPU 0000:09:00.0: rm_init_adapter failed, device minor number 0\n"
    assert told(log) == "gpu_hardware_fault fatal 0.75 GPU 0000:09:00 on n7"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."), id="with-an-xid"),
        pytest.param(("NVRM: GPU 0000:3B:00.0: RmInitAdapter failed! (0x24:0xffff:1484)", "Unable to determine the device handle for GPU 00000000:3B:00.0: Unknown Error"), id="as-nvidia-smi-writes-it"),
        pytest.param(("| 00000000:3B:00.0 Off | GPU requires reset |",), id="in-its-table"),
    ],
)  # fmt: skip
def test_one_gpu_has_one_name_with_its_host(lines: tuple[str, ...]) -> None:
    log = "".join(f"Jul 02 05:12:55 n8 kernel: {line}\n" for line in lines)
    (found,) = grave(log)
    assert (found.cause.name, found.culprit) == ("gpu_hardware_fault", "GPU 0000:3b:00 on n8")


def test_the_number_of_a_lost_gpu_has_its_host() -> None:
    log = "n1:1:2 [0] misc/nvmlwrap.cc:166 NCCL WARN nvmlDeviceGetHandleByIndex(5) failed: GPU is lost\n"
    assert told(log) == "gpu_hardware_fault fatal 0.95 GPU 5 of n1"


SWITCH = "[ 9.0] nvidia-nvswitch3: SXid (PCI:0000:86:00.0)"


def test_a_fatal_sxid_names_the_switch_and_not_its_driver() -> None:
    assert told(f"{SWITCH}: 20034, Fatal, Link 12 LTSSM Fault Up\n") == (
        "gpu_hardware_fault fatal 0.75 NVSwitch 0000:86:00.0"
    )


@pytest.mark.parametrize("text", ["12028, Non-fatal, Link 32 egress non-posted PRIV error (First)", "12028, Severity 0 Engine instance 32 Sub-engine instance 00"])  # fmt: skip
def test_a_non_fatal_sxid_is_no_cause(text: str) -> None:
    assert told(f"{SWITCH}: {text}\n") == ""


BIND = "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param("n1:1:2 [0] NCCL INFO NVLS multicast support is available on dev 0", "", id="available"),
        pytest.param("n1:1:2 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)", "", id="available-with-channels"),
        pytest.param("NVLS multicast support is not available on dev 0 (NVLS_NCHANNELS 0)", "", id="not-available"),
        pytest.param(f"n1:1:2 [0] NCCL INFO {BIND} 401 'the operation cannot be performed in the present state'. Proceeding without NVLS support.", "fabric_manager_down degraded 0.75 host n1", id="goes-on-without"),
        pytest.param(f"n1:1:2 [0] transport/nvls.cc:284 NCCL WARN {BIND} 401 'the operation cannot be performed in the present state'.", "fabric_manager_down fatal 0.95 host n1", id="fails"),
        pytest.param(f"n1:1:2 [0] transport/nvls.cc:284 NCCL WARN {BIND} 2 'out of memory'.", "", id="out-of-memory"),
        pytest.param("n1:1:2 [0] transport/nvls.cc:598 NCCL WARN Cuda failure 1 'invalid argument'", "fabric_manager_down fatal 0.75 host n1", id="cuda-failure"),
        pytest.param("n1:1:2 [0] NCCL INFO transport/nvls.cc:158 Cuda failure 1 'invalid argument'", "", id="ignored-by-nccl"),
        pytest.param("n1:1:2 [0] NCCL INFO NVLS comm 0x87952f0 headRank 7 nHeads 8 buffSize 4194304 memSize 2097152", "", id="channels"),
        pytest.param("n1:1:2 [0] NCCL INFO MNNVL busId 0x1a000 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0", "", id="mnnvl-state"),
    ],
)  # fmt: skip
def test_multicast_memory_fails_only_where_nccl_says_so(log: str, expected: str) -> None:
    found = told(log + "\n")
    if expected:
        assert found == expected
    else:
        assert "fabric_manager_down" not in found


IPC = "z-pc:909608:910337 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported between these two devices\n"


def test_two_gpus_without_peer_access_are_those_of_the_channel_before() -> None:
    channel = "z-pc:909608:910337 [0] NCCL INFO Channel 00 : 0[2d000] -> 1[2e000] via P2P/IPC\n"
    assert told(channel + IPC) == "p2p_acs_iommu fatal 0.95 GPU pair 0-1"
    assert told(channel.replace("z-pc", "other") + IPC) == "p2p_acs_iommu fatal 0.95 host z-pc"


@pytest.mark.parametrize(
    "log",
    [
        pytest.param("lab:14072:14862 [0] NCCL INFO Could not enable P2P between dev 0(=100000) and dev 3(=400000)\n", id="no-p2p"),
        pytest.param('n1:1:2 [0] /app/rccl/init.cc:213 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!\n', id="iommu"),
        pytest.param("n1:1:2 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.\n", id="p2p-disabled"),
    ],
)  # fmt: skip
def test_what_every_job_of_such_a_machine_prints_is_no_failure(log: str) -> None:
    assert grave(log) == []


def test_where_a_collective_hangs_a_missing_iommu_setting_is_a_hint() -> None:
    log = 'n1:1:2 [0] NCCL WARN Missing "iommu=pt" from kernel command line which can lead to a hang!\n'
    hang = "[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600068 milliseconds before timing out.\n"
    found = [cause for cause in grave(log + hang) if cause.cause.name == "p2p_acs_iommu"]
    assert [cause.confidence < 0.5 for cause in found] == [True]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param("n1:1:2 [0] mnnvl.cc:74 NCCL WARN MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel configuration (/dev/nvidia-caps-imex-channels).\n", "fabric_manager_down fatal 0.95 host n1", id="imex-channel"),
        pytest.param("[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression cuMemCreate(&handle, roundedUpAllocationSize, &prop, 0 ) on worker-0, rank = 0 in MultinodeMemoryAllocationUnicast\n", "fabric_manager_down fatal 0.75 None", id="fabric-handle"),
        pytest.param("n1:1:2 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 800 'operation not permitted'\n", "fabric_manager_down fatal 0.45 host n1", id="p2p-not-permitted"),
        pytest.param("n1:1:2 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'\n", "fabric_manager_down fatal 0.45 host n1", id="p2p-import"),
        pytest.param("nv-hostengine: fabric manager NVIDIA GPU driver interface version 550.54.14 don't match with driver version 550.54.15. Please update with matching NVIDIA driver package.\n", "fabric_manager_down fatal 0.75 None", id="versions"),
        pytest.param("systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.\n", "fabric_manager_down fatal 0.95 None", id="service"),
        pytest.param("nvidia-imex.service: Main process exited, code=exited, status=1/FAILURE\n", "fabric_manager_down fatal 0.75 None", id="imex-service"),
        pytest.param("n1:1:2 [0] NCCL INFO IMEX channel not needed\n", "", id="imex-not-needed"),
        pytest.param("RuntimeError: CUDA error: system not yet initialized\n", "fabric_manager_down fatal 0.95 None", id="802"),
        pytest.param("n1:1:2 [0] mnnvl.cc:40 NCCL WARN MNNVL is not supported on this system\n", "fabric_manager_down fatal 0.45 host n1", id="mnnvl-forced"),
        pytest.param("n1:1:2 [0] NCCL INFO MNNVL is not supported on this system\n", "", id="mnnvl-not-forced"),
        pytest.param("RuntimeError: cudaErrorSystemNotReady\n", "fabric_manager_down fatal 0.95 None", id="802-by-name"),
    ],
)  # fmt: skip
def test_fabric_manager_and_imex(log: str, expected: str) -> None:
    assert told(log) == expected


def test_the_only_host_of_a_log_is_to_blame_for_its_fabric_manager() -> None:
    log = "Cuda failure 802 'system not yet initialized'\nn5:16:16 [6] NCCL INFO Bootstrap : Using eth0:172.17.0.14<0>\n"
    assert told(log) == "fabric_manager_down fatal 0.95 host n5"


SHM = "n1:1:2 [0] misc/shmutils.cc:132 NCCL WARN Error"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(f"{SHM} while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: No space left on device (28)", "shm_too_small fatal 0.95 host n1", id="full"),
        pytest.param(f"{SHM} while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888)", "shm_too_small fatal 0.95 host n1", id="without-an-errno"),
        pytest.param(f"{SHM} while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: Permission denied (13)", "", id="denied"),
        pytest.param(f"{SHM} while attaching to shared memory segment /dev/shm/nccl-x (size 0), error: No such file or directory (2)", "", id="not-there"),
        pytest.param(f"{SHM}: failed to create shared memory file /dev/shm/nccl-x, error Too many open files (24)", "fd_limit fatal 0.95 host n1", id="open-files"),
        pytest.param("OSError: [Errno 28] No space left on device: '/scratch/cache/x.arrow'", "", id="full-disk"),
        pytest.param("OSError: [Errno 28] No space left on device: '/dev/shm/x'", "shm_too_small fatal 0.95 None", id="full-shm"),
    ],
)  # fmt: skip
def test_shared_memory_is_too_small_where_its_path_is_full(line: str, expected: str) -> None:
    assert told(line + "\n") == expected


@pytest.mark.parametrize(
    "line",
    [
        "GPU Direct RDMA Disabled for GPU 0 / HCA 4 (distance 9 > 4)",
        "Failed to initialize NET plugin IBext_v8",
        "Unable to use GIN: Peermem is not supported, nor DMA-BUF.",
        "NET/IB: recv: Got completion with error (devIndex=1, wc->status=(flushed)5, wc->opcode=(send)1, wc->wr_id=1)",
        "NET/OFI Failed to initialize GDRCopy: Failed to open gdr handle",
    ],
)  # fmt: skip
def test_what_nccl_tells_at_info_and_goes_on_is_no_failure(line: str) -> None:
    assert grave(f"n1:1:2 [0] NCCL INFO {line}\n") == []


def test_an_xid_of_days_before_the_job_is_not_its_cause() -> None:
    old = "Jul 02 05:12:55 n8 kernel: NVRM: Xid (PCI:0000:5d:00): 79, pid=1, GPU has fallen off the bus.\n"
    job = "2024-07-09T10:00:00.1Z [rank3]: torch.OutOfMemoryError: CUDA out of memory. GPU 3 has\n"
    assert told(old + job) == "rank_gpu_oom fatal 0.95 rank 3"
    assert told(old + job.replace("07-09T10", "07-02T06")).startswith("gpu_hardware_fault")
    assert told(old) == "gpu_hardware_fault fatal 0.95 GPU 0000:5d:00 on n8"


@pytest.mark.parametrize(
    ("line", "culprit"),
    [
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "GPU 0000:3b:00"),
        ("NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus.", "GPU 0000:3b:00"),
        ("NVRM: GPU 0 has fallen off the bus and is not responding, PCI:0000:3b:00", "GPU 0000:3b:00"),
        ("RuntimeError: GPU has fallen off the bus", "None"),
    ],
)  # fmt: skip
def test_a_gpu_off_the_bus_is_named_without_an_xid_too(line: str, culprit: str) -> None:
    assert told(f"[ 9.000000] {line}\n") == f"gpu_hardware_fault fatal 0.95 {culprit}"
