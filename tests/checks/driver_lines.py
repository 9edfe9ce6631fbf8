"""Lines that drivers really wrote to the kernel's log, each with what it should be judged to be.

All were copied from public reports, the source beside each, and labelled by hand with NVIDIA's Xid
catalogue and its Fabric Manager user guide before they were run. Host names, times and prefixes of
other programs were cut off: the kernel's log has none. `...` of a source is left as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OGKM = "github.com/NVIDIA/open-gpu-kernel-modules"
GPUD = "github.com/leptonai/gpud"
SENTINEL = "github.com/NVIDIA/NVSentinel"
VLLM = "github.com/vllm-project/vllm/issues/40652"
NVTRUST = "github.com/NVIDIA/nvtrust/issues/124"
AKASH = "github.com/akash-network/support/issues/244"
FORUM = "forums.developer.nvidia.com"
ECC_CASE = "a public runbook of an A100 node with driver 550.90.07"

Grade = Literal["fatal", "warning", "said", "nothing"]


@dataclass(frozen=True)
class Line:
    """A line, the check that it belongs to, how severe it is, and the words that must be told.

    "said": the check passes and tells it. "nothing": no check tells it.
    """

    text: str
    source: str
    check: Literal["gpu.xid", "gpu.sxid", "pcie.mlx_limited", ""]
    grade: Grade
    tells: tuple[str, ...] = ()


def xid(text: str, source: str, grade: Grade, *tells: str) -> Line:
    return Line(text, source, "gpu.xid", grade, tells)


def sxid(text: str, source: str, grade: Grade, *tells: str) -> Line:
    return Line(text, source, "gpu.sxid", grade, tells)


def card(text: str, source: str, grade: Grade, *tells: str) -> Line:
    return Line(text, source, "pcie.mlx_limited", grade, tells)


def other(text: str, source: str) -> Line:
    return Line(text, source, "", "nothing")


UNKNOWN_PROCESS = "pid='<unknown>', name=<unknown>"
NO_DATA = "0x00000000, 0x00000000, 0x00000000"

LINES = (
    # ---------------------------------------------------------------- programs
    xid(
        "NVRM: Xid (PCI:0000:00:05): 43, pid=1045242, name=pt_main_thread, Ch 00000008",
        AKASH,
        "said",
        "Xid 43",
    ),
    xid(
        "NVRM: Xid (PCI:0000:00:07): 31, pid=2512125, name=python3.10, Ch 00000008, intr 00000000. "
        "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000. Fault is of type "
        "FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
        AKASH,
        "said",
        "Xid 31",
    ),
    xid(
        "NVRM: Xid (PCI:0000:2b:00): 31, pid=1942, name=llama-bench, channel 0x00000002, intr "
        "00000000. MMU Fault: ENGINE GRAPHICS GPC6 GPCCLIENT_T1_13 faulted @ 0x6f6f_320c2000. "
        "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
        f"{OGKM}/issues/1030",
        "said",
        "Xid 31",
    ),
    xid(
        "NVRM: Xid (PCI:0001:00:00): 31, Graphics SM Warp Exception on (GPC 1, TPC 0, SM 0): "
        "Misaligned Address",
        SENTINEL,
        "said",
        "Xid 31",
    ),
    xid(
        "NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000",
        "pastebin.com/NGng33SB",
        "said",
        "Xid 31",
    ),
    xid(
        "NVRM: Xid (PCI:0000:01:00): 31, Ch 00000003, engmask 00000101, intr 10000000",
        "github.com/Bumblebee-Project/Bumblebee/issues/677",
        "said",
        "Xid 31",
    ),
    xid(
        "NVRM: Xid (PCI:0000:01:00): 32, Channel ID 00000000 intr 00004000",
        "github.com/Bumblebee-Project/Bumblebee/issues/677",
        "said",
        "Xid 32",
    ),
    xid(
        "NVRM: Xid (PCI:0000:01:00): 32, pid=2096908, name=kf-phys-oracle, channel 0x00000007 "
        "intr1 00000004 HCE_DBG0 00000300 HCE_DBG1 0000118e",
        "a public notebook of experiments with copy engines",
        "said",
        "Xid 32",
    ),
    xid(
        f"NVRM: Xid (PCI:0000:cb:00): 13, {UNKNOWN_PROCESS}, Graphics SM Warp Exception on "
        "(GPC 7, TPC 7, SM 0): Illegal Instruction Parameter",
        f"{GPUD}/pull/46",
        "said",
        "Xid 13",
    ),
    xid(
        f"NVRM: Xid (PCI:0000:38:00): 13, {UNKNOWN_PROCESS}, Graphics Exception: ESR "
        "0x546fb0=0x11f000e 0x546fb4=0x24 0x546fa8=0xf81eb60 0x546fac=0x1174",
        GPUD,
        "said",
        "Xid 13",
    ),
    xid(
        f"NVRM: Xid (PCI:0000:38:00): 13, {UNKNOWN_PROCESS}, Graphics SM Global Exception on "
        "(GPC 10, TPC 1, SM 1): Multiple Warp Errors",
        GPUD,
        "said",
        "Xid 13",
    ),
    xid(
        "NVRM: Xid (PCI:0000:01:00): 13, Graphics SM Warp Exception on (GPC 1, TPC 0): "
        "Out Of Range Address",
        f"{FORUM}/t/47210",
        "said",
        "Xid 13",
    ),
    xid(
        "NVRM: Xid (PCI:0009:01:00): 13, Graphics SM Warp Exception on (GPC 0, TPC 3, SM 0): "
        "Out Of Range Address",
        SENTINEL,
        "said",
        "Xid 13",
    ),
    xid(
        "NVRM: Xid (0000:01:00): 13, 0005 00000000 0000502d 00000104 00000000 00000100",
        "pastebin.com/gn6mYmM4",
        "said",
        "Xid 13",
    ),
    xid(
        "NVRM: Xid (PCI:0000:01:00): 43, Ch 00000020, engmask 00000101",
        f"{FORUM}/t/47210",
        "said",
        "Xid 43",
    ),
    xid(
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by "
        "previous Xid 149",
        f"{OGKM}/issues/1150",
        "fatal",
        "Xid 149",
        "0000:dc:00",
    ),
    xid(
        "NVRM: Xid (PCI:0000:48:00): 45, pid=22884, name=VLLM::Work...",
        VLLM,
        "said",
        "Xid 45",
    ),
    xid(
        "NVRM: Xid (0000:03:00): 14, Channel 00000001",
        "docs.nvidia.com/deploy/xid-errors",
        "said",
        "Xid 14",
    ),
    # ---------------------------------------------------------------- a look is due
    xid(
        f"NVRM: Xid (PCI:0000:00:08): 94, {UNKNOWN_PROCESS}, Contained: SM (0x1). RST: No, "
        "D-RST: No",
        AKASH,
        "warning",
        "Xid 94",
        "0000:00:08",
    ),
    xid(
        f"NVRM: Xid (PCI:0000:52:00): 94, {UNKNOWN_PROCESS}, Contained: SM (0x1). RST: No, "
        "D-RST: No",
        ECC_CASE,
        "warning",
        "Xid 94",
        "0000:52:00",
    ),
    xid(
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). "
        "RST: No, D-RST: No",
        "docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt, table 3",
        "warning",
        "Xid 94",
        "0000:01:00",
        "GPU instance 5",
    ),
    xid(
        f"NVRM: Xid (PCI:0000:52:00): 63, {UNKNOWN_PROCESS}, Row Remapper: New row "
        "(0x0000000018f31d80) marked for remapping, reset gpu to activate.",
        ECC_CASE,
        "warning",
        "Xid 63",
        "0000:52:00",
    ),
    xid(
        "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, "
        "reset gpu to activate.",
        "github.com/stas00/ml-engineering, debug.md",
        "warning",
        "Xid 63",
        "0000:10:1c",
    ),
    xid(
        "NVRM: Xid (PCI:0000:01:00): 38, pid=1659,",
        "bbs.archlinux.org/viewtopic.php?id=283219",
        "warning",
        "Xid 38",
    ),
    xid(
        "NVRM: Xid (PCI:0000:08:00): 44, Ch 00000000, engmask 00000101, intr 10000000",
        "github.com/Bumblebee-Project/Bumblebee/issues/608",
        "warning",
        "Xid 44",
    ),
    xid(
        "NVRM: Xid (PCI:0000:5f:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 02",
        "github.com/NVIDIA/TensorRT-LLM/issues/4816",
        "warning",
        "Xid 145",
        "0000:5f:00",
        "link 2",
    ),
    xid(
        "NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal "
        "XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
        f"{GPUD}/pull/1174",
        "warning",
        "Xid 145",
        "0018:01:00",
        "link 13",
    ),
    xid(
        "NVRM: Xid (PCI:0008:01:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 "
        "0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)",
        GPUD,
        "warning",
        "Xid 145",
        "0008:01:00",
        "link 12",
    ),
    xid(
        "NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 "
        "0x00000000 0x00000000 0x00000000 0x00000000)",
        f"{GPUD}/pull/1160",
        "warning",
        "Xid 144",
        "link 0",
    ),
    xid(
        "NVRM: Xid (PCI:0008:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 "
        "0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)",
        GPUD,
        "warning",
        "Xid 149",
        "link 1",
    ),
    xid(
        "NVRM: Xid (PCI:...): 137, RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error",
        "github.com/NVIDIA/nccl/issues/2241",
        "warning",
        "Xid 137",
    ),
    # ---------------------------------------------------------------- a reset is due
    xid(
        "NVRM: Xid (PCI:0000:01:00): 95, pid=7062, Uncontained: LTC TAG (0x2,0x0). RST: Yes, "
        "D-RST: No",
        "docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt, table 3",
        "fatal",
        "Xid 95",
    ),
    xid(
        f"NVRM: Xid (PCI:0000:52:00): 48, {UNKNOWN_PROCESS}, An uncorrectable double bit error "
        "(DBE) has been detected on GPU in the framebuffer at physAddr 0x18f31d80 partition 16, "
        "subpartition 3.",
        ECC_CASE,
        "fatal",
        "Xid 48",
        "0000:52:00",
    ),
    xid(
        "NVRM: Xid (PCI:0000:8a:00): 48, An uncorrectable double bit error (DBE) has been "
        "detected on GPU in the framebuffer at partition 4, subpartition 1",
        "github.com/NVIDIA/gpu-operator/issues/1146",
        "fatal",
        "Xid 48",
        "0000:8a:00",
    ),
    xid(
        "NVRM: Xid (PCI:0000:48:00): 62, 00002740 00002b08 00001126 0000117a 0000279f 0002a91a "
        "00000011 00000000",
        VLLM,
        "fatal",
        "Xid 62",
        "0000:48:00",
    ),
    xid(
        "NVRM: Xid (PCI:0000:19:00): 62, 32260b5e 000154b0 00000000 2026da96 202b5626 202b5832 "
        "202b5872 202b58be",
        SENTINEL,
        "fatal",
        "Xid 62",
    ),
    xid(
        f"NVRM: Xid (PCI:0000:c1:00): 74, {UNKNOWN_PROCESS}, NVLink: fatal error detected on "
        "link 1",
        f"{FORUM}/t/292539",
        "fatal",
        "Xid 74",
        "0000:c1:00",
        "link 1",
    ),
    xid(
        f"NVRM: Xid (PCI:0003:00:00): 74, {UNKNOWN_PROCESS}, NVLink: fatal error detected on "
        "link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
        SENTINEL,
        "fatal",
        "Xid 74",
        "link 14",
    ),
    xid(
        "NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.",
        f"{FORUM}/t/49452",
        "fatal",
        "Xid 79",
        "0000:06:00",
    ),
    xid(
        f"NVRM: Xid (PCI:0004:01:00): 79, {UNKNOWN_PROCESS}, GPU has fallen off the bus.",
        f"{OGKM}/issues/461",
        "fatal",
        "Xid 79",
        "0004:01:00",
    ),
    xid(
        f"NVRM: Xid (PCI:0000:91:00): 79, {UNKNOWN_PROCESS}, GPU has fallen off the bus.",
        f"{GPUD}, sxid/README.md",
        "fatal",
        "Xid 79",
        "0000:91:00",
    ),
    xid(
        "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
        f"{GPUD}, sxid/README.md",
        "fatal",
        "fallen off the bus",
        "0000:91:00",
    ),
    xid(
        "NVRM: GPU at 0000:01:00.0 has fallen off the bus.",
        "github.com/Bumblebee-Project/Bumblebee/issues/554",
        "fatal",
        "fallen off the bus",
        "0000:01:00",
    ),
    xid(
        "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system "
        "has\\x0aNVRM: fallen off the bus and is not responding to commands.",
        "github.com/NVIDIA/NVSentinel/issues/155",
        "fatal",
        "fallen off the bus",
        "0000:b3:00",
    ),
    xid(
        "NVRM: The NVIDIA GPU 0000:0e:00.0 (PCI ID: 10de:1b06) installed in this system has "
        "fallen off the bus and is not responding to commands.",
        "a public note on GPUs given to virtual machines",
        "fatal",
        "fallen off the bus",
        "0000:0e:00",
    ),
    xid(
        "NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, "
        "errorString CTX SWITCH TIMEOUT, Info 0x58005",
        f"{GPUD}/pull/46",
        "fatal",
        "Xid 109",
    ),
    xid(
        "NVRM: Xid (PCI:0000:02:00): 109, pid=8494, name=RenderThread, channel 0x0000000d, CTX "
        "SWITCH TIMEOUT, Info 0x14c011",
        f"{OGKM}/issues/1146",
        "fatal",
        "Xid 109",
    ),
    xid(
        "NVRM: Xid (PCI:0001:6c:00): 119, pid=10200, name=NvmlTaskRunner, Timeout after 45s of "
        "waiting for RPC response from GPU5 GSP! Expected function 76 (GSP_RM_CONTROL) sequence "
        "24174 (0x20801322 0x808).",
        VLLM,
        "fatal",
        "Xid 119",
        "0001:6c:00",
    ),
    xid(
        "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of "
        "waiting for RPC response from GPU4 GSP! Expected function 10 (FREE) (0xa55a0090 0x0).",
        GPUD,
        "fatal",
        "Xid 119",
    ),
    xid(
        "NVRM: Xid (PCI:0004:01:00): 119, pid=430, name=nv_queue, Timeout waiting for RPC from "
        "GSP!",
        f"{OGKM}/issues/461",
        "fatal",
        "Xid 119",
    ),
    xid(
        "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 "
        "0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        GPUD,
        "fatal",
        "Xid 149",
        "0009:01:00",
        "link 1",
    ),
    xid(
        "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 "
        "0x00000000 0x00000000 0x00000000 0x00000000)",
        f"{GPUD}/pull/1174",
        "fatal",
        "Xid 149",
        "0019:01:00",
    ),
    xid(
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 "
        "(Node Reboot Required)",
        "a public report of Xid 79 with a laptop",
        "fatal",
        "Xid 154",
    ),
    xid(
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 "
        "(OS Reboot)",
        "two public notes on Xid 79, driver 610.43.02",
        "fatal",
        "Xid 154",
    ),
    xid(
        "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 "
        "(GPU Reset Required)",
        SENTINEL,
        "fatal",
        "Xid 154",
    ),
    xid(
        "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x4 (Drain and Reset) "
        "to 0x1 (GPU Reset Required)",
        GPUD,
        "fatal",
        "Xid 154",
    ),
    xid(
        "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 "
        "(Drain and Reset)",
        GPUD,
        "fatal",
        "Xid 154",
    ),
    # ---------------------------------------------------------------- NVSwitches
    sxid(
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
        f"{GPUD}, sxid/README.md",
        "fatal",
        "SXid 20034",
        "0000:06:00.0",
        "link 48",
    ),
    sxid(
        "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "access.redhat.com/solutions/6619941",
        "fatal",
        "SXid 20034",
        "0000:a9:00.0",
    ),
    sxid(
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 sourcetrack timeout "
        "error (First)",
        "a public checker of DGX nodes",
        "fatal",
        "SXid 24007",
        "link 28",
    ),
    sxid(
        "nvidia-nvswitch1: SXid (PCI:0000:aa:00.0): 24007, Severity 1 Engine instance 12 "
        "Sub-engine instance 00",
        VLLM,
        "fatal",
        "SXid 24007",
        "0000:aa:00.0",
    ),
    sxid(
        "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data {0x000001c0, 0x00bd5c8a, "
        "0x00000500, 0x00000064, 0x00000000, 0x40008000, 0x5a001100, 0x00000000, 0x00000000}",
        f"{GPUD}/pull/338",
        "warning",
        "SXid 12028",
    ),
    sxid(
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted "
        "PRIV error (First)",
        GPUD,
        "warning",
        "SXid 12028",
        "link 32",
    ),
    sxid(
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20009, Non-fatal, Link 04 RX Short Error Rate",
        "a public checker of DGX nodes",
        "warning",
        "SXid 20009",
        "link 4",
    ),
    sxid(
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 28006, Non-fatal, Link 29 MC TS crumbstore "
        "MCTO",
        SENTINEL,
        "warning",
        "SXid 28006",
    ),
    sxid(
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ "
        "interrupt",
        NVTRUST,
        "said",
        "SXid 22013",
    ),
    sxid(
        "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44 "
        "Sub-engine instance 00",
        NVTRUST,
        "said",
        "SXid 22013",
    ),
    # ---------------------------------------------------------------- network adapters
    card(
        "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on "
        "the PCIe slot (27W).",
        f"{GPUD}/issues/348",
        "warning",
        "0000:5c:00.0",
        "27 W",
    ),
    card(
        "mlx5_core 0000:63:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)",
        "github.com/NVIDIA/gpu-operator/issues/2511",
        "nothing",
    ),
    card(
        "mlx5_core 0000:13:00.0: mlx5_pcie_event:297:(pid 11): PCIe slot power capability was not "
        "advertised.",
        "github.com/NVIDIA/gpu-operator/issues/2511",
        "nothing",
    ),
    # ---------------------------------------------------------------- of the same drivers, harmless
    other("NVRM: GPU at PCI:0000:48:00: GPU-5fc0bcec-c2e1-38dc-8994-2a9f9f3b709e", VLLM),
    other("NVRM: GPU Board Serial Number: 1563521020414", VLLM),
    other("NVRM: GPU 0000:91:00.0: GPU serial number is 1653723052734.", f"{GPUD}, sxid/README.md"),
    other(
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build  "
        "(dvs-builder@U22-I3-B10-02-5)  Mon Jun  2 13:13:04 UTC 2025",
        "github.com/NVIDIA/NVSentinel/issues/155",
    ),
    other(
        "NVRM: _kgspLogXid119: Note: Please also check logs above.",
        VLLM,
    ),
)
