"""What NCCL prints at INFO on healthy machines of several kinds: no cause, whatever stands in it.

The lines are those of NCCL 2.18 to 2.30 and of aws-ofi-nccl 1.13 as public logs of such machines have them; names,
addresses and numbers are invented.
"""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from tests.jobs.diagnose.test_fabric import grave

H800 = """\
# nThread 1 nGpus 8 minBytes 4 maxBytes 2147483648 step: 2(factor) warmup iters: 50 iters: 100 agg iters: 1 validation: 0 graph: 0
#  Rank  0 Group  0 Pid 422771 on hgx1 device  0 [0x0f] NVIDIA H800
hgx1:422771:422771 [0] NCCL INFO Bootstrap : Using eno1:10.59.6.30<0>
hgx1:422771:422771 [0] NCCL INFO NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory
hgx1:422771:422771 [0] NCCL INFO NET/Plugin : No plugin found, using internal implementation
hgx1:422771:422771 [7] NCCL INFO cudaDriverVersion 12020
NCCL version 2.18.3+cuda12.2
hgx1:422771:422791 [5] NCCL INFO NET/IB : No device found.
hgx1:422771:422791 [5] NCCL INFO NET/Socket : Using [0]eno1:10.59.6.30<0>
hgx1:422771:422791 [5] NCCL INFO Using network Socket
hgx1:422771:422788 [2] NCCL INFO comm 0x5598478aaae0 rank 2 nranks 8 cudaDev 2 nvmlDev 2 busId 48000 commId 0xefdd95e4ad4062d9 - Init START
hgx1:422771:422790 [4] NCCL INFO Setting affinity for GPU 4 to 0f,ffffff00,00000000,00000000,000fffff,ff000000,00000000
hgx1:422771:422790 [4] NCCL INFO NVLS multicast support is available on dev 4
hgx1:422771:422788 [2] NCCL INFO Trees [0] 4/-1/-1->2->1 [1] 4/-1/-1->2->1
hgx1:422771:422788 [2] NCCL INFO P2P Chunksize set to 524288
hgx1:422771:422787 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/direct pointer
hgx1:422771:422792 [6] NCCL INFO Connected all rings
hgx1:422771:422792 [6] NCCL INFO Connected all trees
hgx1:422771:422792 [6] NCCL INFO Connected NVLS tree
hgx1:422771:422792 [6] NCCL INFO threadThresholds 8/8/64 | 64/8/64 | 512 | 512
hgx1:422771:422792 [6] NCCL INFO comm 0x5598478c1e60 rank 6 nranks 8 cudaDev 6 nvmlDev 6 busId c2000 commId 0xefdd95e4ad4062d9 - Init COMPLETE
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 83.8755
"""
H200 = """\
gpu09:2520136:2520136 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to bond0
gpu09:2520136:2520136 [0] NCCL INFO Bootstrap: Using bond0:10.141.0.9<0>
gpu09:2520136:2520234 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.
gpu09:2520136:2520234 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0,mlx5_3
gpu09:2520136:2520234 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_3:1/IB/SHARP [RO]; OOB bond0:10.141.0.9<0>
gpu09:2520136:2520234 [0] NCCL INFO PROFILER/Plugin: Could not find: libnccl-profiler.so.
gpu09:2520136:2520234 [0] NCCL INFO Using network IB
gpu09:2520136:2520234 [0] NCCL INFO DMA-BUF is available on GPU device 0
gpu09:2520136:2520234 [0] NCCL INFO ncclCommInitRank comm 0x5c2e9bbbb3f0 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 18000 commId 0x550eec01d7c8e9ff - Init START
gpu19:2471267:2471510 [0] NCCL INFO RAS client listening socket at 127.0.0.1<28028>
gpu09:2520136:2520234 [0] NCCL INFO Bootstrap timings total 0.363082 (create 0.000076, send 0.000606, recv 0.280064, ring 0.065835, delay 0.000001)
gpu09:2520136:2520234 [0] NCCL INFO MNNVL busId 0x18000 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x0
gpu09:2520136:2520234 [0] NCCL INFO NVLS multicast support is available on dev 0
gpu09:2520136:2520234 [0] NCCL INFO comm 0x5c2e9bbbb3f0 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
gpu09:2520136:2520234 [0] NCCL INFO NVLS Head  0:  0  8
gpu09:2520136:2520234 [0] NCCL INFO GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 4 <= 4), read 1 mode Default
gpu09:2520136:2520234 [0] NCCL INFO GPU Direct RDMA Disabled for GPU 0 / HCA 1 (distance 9 > 4)
gpu09:2520136:2520234 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
gpu09:2520136:2520234 [0] NCCL INFO Channel 00/0 : 0[0] -> 7[7] via P2P/CUMEM
gpu09:2520136:2520234 [0] NCCL INFO NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 290 mtu 5 LID 12 subnet-prefix 18338657682652659712  FLID 0 fifoRkey=0x1f fifoLkey=0x1f
gpu09:2520136:2520234 [0] NCCL INFO Connected NVLS tree
gpu09:2520136:2520234 [0] NCCL INFO TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin.
gpu09:2520136:2520234 [0] NCCL INFO Init timings - ncclCommInitRank: rank 0 nranks 16 total 1.48 (kernels 0.18, alloc 0.83, bootstrap 0.40, allgathers 0.00, topo 0.06, graphs 0.00, connections 0.00, rest 0.00)
"""
B200 = """\
[2026-04-28 14:14:47] job-worker-0:2338:3737 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
[2026-04-28 14:14:47] job-worker-0:2338:3737 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
[2026-04-28 14:14:47] job-worker-0:2338:3737 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.9.0.4<0>
[2026-04-28 14:14:47] job-worker-0:2338:3737 [0] NCCL INFO Initialized NET plugin IB
[2026-04-28 14:14:47] job-worker-0:2338:3737 [0] NCCL INFO Assigned NET plugin IB to comm
[2026-04-28 14:14:47] job-worker-0:2338:3737 [0] NCCL INFO Failed to initialize NET plugin IBext_v8
[2026-04-28 14:14:47] job-worker-0:2338:3737 [0] NCCL INFO Unable to use GIN: Peermem is not supported, nor DMA-BUF.
[2026-04-28 14:14:47] job-worker-0:2338:3737 [0] NCCL INFO MNNVL busId 0x1b000 fabric UUID 0.0 cliqueId 0x0 state 3 healthMask 0x80
[2026-04-28 14:14:47] job-worker-0:2338:3737 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 24)
[2026-04-28 14:14:47] job-worker-0:2338:3737 [0] NCCL INFO comm 0x7f rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
[2026-04-28 14:14:47] job-worker-0:2338:3737 [0] NCCL INFO NVLS comm 0x7f headRank 0 nHeads 8 nvlsRanks 8 buffSize 1048576 nvlsPerRankSize 201326592 nvlsTotalSize 1610612736
[2026-04-28 14:14:47] job-worker-0:2338:3737 [0] NCCL INFO ncclCommInitRankConfig comm 0x7f rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init COMPLETE
"""
A100 = """\
<host>:922:1149 [3] NCCL INFO comm 0x55555d812aa0 rank 11 nranks 16 cudaDev 3 nvmlDev 3 busId 4e000 commId 0xf03f81dc1a49efab - Init START
<host>:923:1147 [4] NCCL INFO NVLS multicast support is not available on dev 4 (NVLS_NCHANNELS 0)
nid1:923:1147 [0] NCCL INFO NVLS multicast support is not available on dev 0
nid1:923:1147 [0] NCCL INFO Channel 00/0 : 4[0] -> 3[3] [send] via NET/IB/0(3)/GDRDMA
nid1:923:1147 [0] NCCL INFO 4 coll channels, 4 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer
nid1:923:1147 [0] NCCL INFO CC Off, workFifoBytes 1048576
nid1:923:1147 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
nid1:923:1147 [0] NCCL INFO comm 0x55 rank 0 nranks 16 cudaDev 0 busId 100000 - Destroy COMPLETE
"""
GB200 = """\
rack1:510:900 [2] NCCL INFO MNNVL busId 0x1801000 fabric UUID 814d3a.b5b7 cliqueId 0x7ffe state 3 healthMask 0x0
rack1:510:900 [2] NCCL INFO MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 2
rack1:510:900 [2] NCCL INFO NVLS multicast support is available on dev 2 (NVLS_NCHANNELS 24)
rack1:510:900 [2] NCCL INFO comm 0xaa rank 2 nRanks 8 nNodes 1 localRanks 8 localRank 2 MNNVL 1
rack1:510:900 [2] NCCL INFO Channel 00/0 : 4[0] -> 3[3] via P2P/MNNVL
rack1:510:900 [2] NCCL INFO Setting affinity for GPU 2 to 72-143
rack1:510:900 [2] NCCL INFO [Proxy Service UDS] Device 2 CPU core 96
nvidia-imex[12]: IMEX daemon is ready
"""
EFA = """\
ip-10-0-1-7:14:14 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.13.2-aws
ip-10-0-1-7:14:14 [0] NCCL INFO NET/OFI Using Libfabric version 2.4
ip-10-0-1-7:14:14 [0] NCCL INFO NET/OFI Using CUDA driver version 13000 with runtime 12090
ip-10-0-1-7:14:14 [0] NCCL INFO NET/OFI Setting FI_EFA_FORK_SAFE environment variable to 1
ip-10-0-1-7:14:14 [0] NCCL INFO NET/OFI Plugin selected platform: AWS
ip-10-0-1-7:14:14 [0] NCCL INFO NET/OFI Using transport protocol RDMA (user set)
ip-10-0-1-7:14:14 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)
ip-10-0-1-7:14:14 [0] NCCL INFO NET/OFI Failed to initialize GDRCopy: Failed to open gdr handle
libfabric:462:1673041636:efa:core:rxr_info_to_rxr():506<warn> FI_HMEM capability requires RDMA, which this device does not support.
libfabric:85:1747438790::core:core:fi_getinfo_():1392<info> Found provider with the highest priority efa, must_use_util_prov = 0
ip-10-0-1-7:14:14 [0] NCCL INFO Using network Libfabric
ip-10-0-1-7:14:14 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA
"""
RTX = """\
lab:14072:14862 [0] NCCL INFO NET/IB : No device found.
lab:14072:14862 [0] NCCL INFO NET/IB : Using [RO]; OOB eno1:10.201.24.89<0>
lab:14072:14862 [0] NCCL INFO Could not enable P2P between dev 0(=100000) and dev 3(=400000)
lab:14072:14862 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.
lab:14072:14862 [0] NCCL INFO Channel 00 : 3[400000] -> 0[100000] via SHM/direct/direct
lab:14072:14862 [0] NCCL INFO Check P2P Type intraNodeP2pSupport 0 directMode 1
"""
MI300 = """\
[2026-08-23 09:56:58] amd1:7:9 [0] /app/rccl/init.cc:213 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!
amd1:7:9 [0] NCCL INFO Dmabuf feature disabled without NCCL_DMABUF_ENABLE=1
amd1:7:9 [0] NCCL INFO NET/IB : No device found.
amd1:7:9 [0] NCCL INFO comm 0x7f rank 0 nranks 8 cudaDev 0 busId c000 - Init COMPLETE
"""
KERNEL = """\
[Wed Jul 31 23:14:18 2024] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024
[Wed Jul 31 23:14:18 2024] NVRM: GPU at PCI:0000:00:05: GPU-efbdfde9-5798-a6e7-4c46-12518fa15375
[Wed Jul 31 23:14:18 2024] NVRM: GPU Board Serial Number: 1650423013443
[Wed Jul 31 23:14:18 2024] NVRM: Xid (PCI:0000:00:05): 43, pid=1045242, name=pt_main_thread, Ch 00000008
[588564.100800] NVRM: kceIsGenXorHigherSupported_GH100: Could not get root gen speed - check for GPU gen speed!
[588579.265375] NVRM: nvAssertFailedNoLog: Assertion failed: !rmapiLockIsOwner() @ rmapi.c:563
[588579.265375] nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
[588579.265375] nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00
"""
MACHINES = {
    "h800": H800,
    "h200": H200,
    "b200": B200,
    "a100": A100,
    "gb200": GB200,
    "efa": EFA,
    "rtx": RTX,
    "mi300": MI300,
    "kernel": KERNEL,
}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_healthy_machine_has_no_cause(machine: str) -> None:
    assert grave(MACHINES[machine]) == []


@pytest.mark.parametrize("machine", MACHINES)
def test_no_line_by_itself_is_a_cause(machine: str) -> None:
    for line in MACHINES[machine].splitlines():
        assert grave(f"{line}\n") == [], line


def test_all_machines_in_one_log_have_no_cause() -> None:
    """That hosts of one log are unlike is a hint at most where nothing failed."""
    without_cards = ("h800", "rtx", "mi300")
    log = "".join(log for name, log in MACHINES.items() if name not in without_cards)
    assert [found for found in grave(log) if found.confidence >= 0.5] == []


@pytest.mark.parametrize("machine", MACHINES)
def test_a_failure_after_a_healthy_start_is_the_only_cause(machine: str) -> None:
    log = MACHINES[machine] + "[rank2]: torch.OutOfMemoryError: CUDA out of memory. GPU 2 has\n"
    assert [found.cause.name for found in grave(log)] == ["rank_gpu_oom"]
