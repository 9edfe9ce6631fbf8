"""What NCCL printed for people who then asked about it.

Lines of single ranks, each with its source.

Where no log was found the line is written as the source of NCCL forms it, and named after file and
release.
"""

from __future__ import annotations

# NVIDIA/nccl issue 1052: 2.18.5, RoCE, a list of one HCA.
ROCE = """\
node2:14159:14159 [0] NCCL INFO Bootstrap : Using enp24s0np0:10.10.10.1<0>
node2:14159:14159 [0] NCCL INFO NET/Plugin : No plugin found, using internal implementation
node2:14159:14159 [0] NCCL INFO cudaDriverVersion 12020
NCCL version 2.18.5+cuda12.0
node2:14159:14168 [0] NCCL INFO NCCL_IB_HCA set to mlx5_4
node2:14159:14168 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/RoCE [RO]; OOB enp24s0np0:10.10.10.1<0>
node2:14159:14168 [0] NCCL INFO Using network IB
"""
# NVIDIA/nccl-tests issue 185: 2.19.3, RoCE, two HCAs.
TWO_ROCE = """\
dgxh100-4:460770:460770 [0] NCCL INFO Bootstrap : Using enp220s0np0:11.1.128.136<0>
dgxh100-4:460770:460842 [0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB \
enp220s0np0:11.1.128.136<0>
dgxh100-4:460770:460842 [0] NCCL INFO Using non-device net plugin version 0
dgxh100-4:460770:460842 [0] NCCL INFO Using network IB
"""
# NVIDIA/nccl issue 1189, 2.21 or near it: GPUDirect RDMA between nodes, CUDA memory within.
GPUDIRECT = """\
H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 00/0 : 1[1] -> 3[1] [receive] via NET/IB/2/GDRDMA
H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 02/0 : 1[1] -> 3[1] [receive] via NET/IB/2/GDRDMA
H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 01/0 : 3[1] -> 1[1] [send] via NET/IB/2/GDRDMA
H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM
"""
# NVIDIA/nccl issue 1584: 2.24.3, HPC-X's plug-in, SHARP and NVLS; the reporter had cut the prefixes
# off.
SHARP = """\
n:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
n:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.7.147.73<0>
n:1:1 [0] NCCL INFO NET/Plugin: Loaded net plugin NCCL RDMA Plugin v8 (v8)
n:1:1 [0] NCCL INFO P2P plugin IBext_v8
n:1:1 [0] NCCL INFO NCCL_IB_PCI_RELAXED_ORDERING set by environment to 1.
n:1:1 [0] NCCL INFO NET/IB : Using [0]ibp0:1/IB/SHARP [1]ibp1:1/IB/SHARP [RO]; OOB eth0:10.7.147.73<0>
n:1:1 [0] NCCL INFO Using network IBext_v8
n:1:1 [0] NCCL INFO NVLS multicast support is available on dev 0
"""  # noqa: E501 - lines as NCCL printed them
# NVIDIA/nccl issue 1814: the same plug-in without GPUDirect.
PLUG_IN = """\
hostname-test:980:980 [0] NCCL INFO Bootstrap : Using bond0:172.36.134.184<0>
hostname-test:980:1265 [0] NCCL INFO Channel 00/0 : 25[1] -> 32[0] [receive] via NET/IBext_v8/7
hostname-test:980:1265 [0] NCCL INFO Channel 08/0 : 25[1] -> 32[0] [receive] via NET/IBext_v8/7
hostname-test:980:1265 [0] NCCL INFO Channel 00/0 : 32[0] -> 39[7] via P2P/CUMEM
"""
# NVIDIA/nccl issue 1925: 2.28 or near it, the words in which a network is chosen since 2.27.
ASSIGNED = """\
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO NCCL_IB_DISABLE set by environment to 0.
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO NCCL_IB_HCA set to mlx5_0
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:172.25.30.42<0>
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO Initialized NET plugin IB
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO Assigned NET plugin IB to comm
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO Assigned GIN plugin GIN_IB_GDAKI to comm
nccl-sleep-c7d759db6-2bp29:2620971:2620971 [3] NCCL INFO Using network IB
"""  # noqa: E501 - lines as NCCL printed them
# NVIDIA/nccl issue 952: IPoIB carries what InfiniBand should.
SOCKETS = """\
head:926:926 [7] NCCL INFO Bootstrap : Using ibp12s0:10.149.0.32<0>
head:926:1151 [7] NCCL INFO NET/IB : No device found.
head:926:1151 [7] NCCL INFO NET/Socket : Using [0]ibp12s0:10.149.0.32<0> [1]ibp18s0:10.149.1.32<0>
head:926:1151 [7] NCCL INFO Using network Socket
head:926:1151 [7] NCCL INFO Channel 03/0 : 15[7] -> 6[6] [send] via NET/Socket/3
head:926:1151 [7] NCCL INFO Channel 07/0 : 15[7] -> 6[6] [send] via NET/Socket/3
head:926:1151 [7] NCCL INFO Channel 00/0 : 15[7] -> 14[6] via P2P/IPC/read
"""
# Oneflow-Inc/oneflow issue 3586: a release before 2.12, addresses of buses instead of indices, an
# IPv6 address.
OLD = """\
worker:20608:20608 [0] NCCL INFO Bootstrap : Using [0]eno1:172.28.40.41<0> [1]veth7d10c2a:fe80::1c0d:b1ff:fe5b:54d2\
%veth7d10c2a<0>
worker:20608:20608 [0] NCCL INFO NET/IB : No device found.
worker:20608:20608 [0] NCCL INFO NET/Socket : Using [0]eno1:172.28.40.41<0> [1]veth7d10c2a:fe80::1c0d:b1ff:fe5b:54d2\
%veth7d10c2a<0>
worker:20608:20608 [0] NCCL INFO Using network Socket
worker:20608:20647 [0] NCCL INFO Channel 00 : 0[18000] -> 1[18000] [receive] via NET/Socket/1
worker:20608:20647 [0] NCCL INFO Call to connect returned Connection timed out, retrying
"""  # noqa: E501 - lines as NCCL printed them
# NVIDIA/nccl issue 1597 (EFA) and NVIDIA/nccl-tests issue 139 (Slingshot): a plug-in whose name has
# a blank.
LIBFABRIC = """\
8h200-2:14630:14695 [1] NCCL INFO Channel 05/0 : 0[0] -> 1[1] [receive] via NET/AWS Libfabric/1/GDRDMA
8h200-2:14630:14695 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/AWS Libfabric/1/GDRDMA
nid1:42907:42938 [0] NCCL INFO Channel 04/1 : 7[c1000] -> 1[3000] [receive] via NET/AWS Libfabric/7/GDRDMA/Shared
nid1:42907:42938 [0] NCCL INFO Channel 00/1 : 1[3000] -> 5[41000] via P2P/direct pointer/read
"""  # noqa: E501 - lines as NCCL printed them
# NVIDIA/nccl-tests issue 166: shared memory; NVIDIA/nccl issue 1219: SHARP's collectives.
SHARED = """\
ubuntu:9621:9687 [2] NCCL INFO Channel 13 : 10[2] -> 11[3] via SHM/direct/direct
ubuntu:9621:9687 [2] NCCL INFO Channel 14 : 10[2] -> 11[3] via SHM/direct/direct
node:176:4360 [5] NCCL INFO CollNet 05/0 : 10 [receive] via COLLNET/SHARP/5/GDRDMA
"""
# As net.cc and net_ib/init.cc of 2.30.7 and net_ib.cc of 2.21.5 form them: PXN, GPUDirect over
# PCIe, rails and planes, devices that NCCL made one of.
FORMED = """\
n:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 9[1] [send] via NET/IB/1(1)/GDRDMA(PCI)/Shared
n:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/MNNVL/read/CE
n:1:2 [0] NCCL INFO Channel 02/0 : 0[0] -> 2[2] via P2P/indirect/3[3]/read
n:1:2 [0] NCCL INFO Channel 03 : 0[0] -> 3[3] via SHM/direct
n:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1:2:0/IB [1]mlx5_1:1::1/RoCE [2]={[2] mlx5_2:1/IB, [3] mlx5_3:2/IB} ; \
OOB eth0:1:10.0.0.1<0>
"""  # noqa: E501 - lines as NCCL printed them

# ---------------------------------------------------------------- NVLink SHARP

# openfabric-systems/simllm, vastai_hgx_h200_8x: 2.27.3 on eight H200; the second line took the
# first one back.
NVLS_REFUSED = """\
6e79c7194e8d:2394:2506 [0] NCCL INFO Using network Socket
6e79c7194e8d:2394:2506 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)
6e79c7194e8d:2394:2506 [0] NCCL INFO Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'. Proceeding without NVLS support.
6e79c7194e8d:2394:2535 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
"""  # noqa: E501 - lines as NCCL printed them
# A public log of eight GPUs in a node nf5688m7: 2.18 or 2.19, whose line has no CollNet channels.
NVLS_USED = """\
nf5688m7-1:422771:422786 [0] NCCL INFO Using network Socket
nf5688m7-1:422771:422786 [0] NCCL INFO NVLS multicast support is available on dev 0
nf5688m7-1:422771:422786 [0] NCCL INFO 16 coll channels, 16 nvls channels, 16 p2p channels, 16 p2p channels per peer
"""  # noqa: E501 - lines as NCCL printed them
# A public log of a p5.48xlarge, 2.27 or later, with the line of 2.21 and later.
NVLS_CHANNELS = """\
gpu-dev-57704f5a:1798:1798 [5] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer
"""  # noqa: E501 - lines as NCCL printed them
# NVIDIA/nccl issue 892: 2.18.3 on eight H800 whose driver had no multicast.
NVLS_MISSING = """\
036260b61d3a:33347:33360 [0] NCCL INFO Bootstrap : Using eth0:172.17.0.2<0>
036260b61d3a:33347:33360 [0] NCCL INFO NVLS multicast support is not available on dev 0
036260b61d3a:33347:33366 [6] NCCL INFO 16 coll channels, 0 nvls channels, 16 p2p channels, 16 p2p channels per peer
"""  # noqa: E501 - lines as NCCL printed them
# A public log of a p4d.24xlarge (A100), 2.24 or later.
NVLS_BEFORE_HOPPER = """\
llama-3-8b-node-0-0:193:727 [2] NCCL INFO NVLS multicast support is not available on dev 2 (NVLS_NCHANNELS 0)
llama-3-8b-node-0-0:193:727 [2] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 1 p2p channels per peer
"""  # noqa: E501 - lines as NCCL printed them
# A public log of four GB200 in one tray: 2.30.7, where NVLink of one tray has the same name.
ONE_TRAY = """\
watchtower-navy-cn13:2619530:2619530 [0] NCCL INFO NCCL version 2.30.7+cuda13.3
watchtower-navy-cn13:2619530:2619530 [0] NCCL INFO Using network IB
watchtower-navy-cn13:2619530:2619530 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL
"""
# A public log of two nodes with eight GPUs each: rank 9 sends through the card of rank 8 (PXN).
THROUGH_ANOTHER = """\
tpgds-aihub0008:181412:181412 [1] NCCL INFO Channel 00/0 : 9[1] -> 0[0] [send] via NET/IB/0(8)/GDRDMA
tpgds-aihub0008:181411:181411 [0] NCCL INFO Channel 00/0 : 1[1] -> 8[0] [receive] via NET/IB/0/GDRDMA
"""  # noqa: E501 - lines as NCCL printed them
# A public log of two trays of GB200 in one NVLink domain: NCCL counts them as one node.
MULTI_NODE = """\
bi4ua-2:1:1 [0] NCCL INFO Using network IB
bi4ua-2:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/MNNVL
"""
