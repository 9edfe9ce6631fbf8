"""RDMA devices and plug-ins: what a container lacks, GPUDirect, EFA, and what complains where nobody needs it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import Cause, Evidence, LogFile, Sign, Weight

_ABSENT = re.compile(
    r"NET/IB : No device found|Failed to open libibverbs|not open libibverbs|libibverbs\.so[.\d]*: cannot open",
    re.IGNORECASE,
)
_NO_PLUGIN = re.compile(
    r"lib[nr]ccl-(?:net|tuner|profiler)\S*|No plugin found|Could not find: lib|ncclNetPlugin\w* symbol|"
    r"ncclCollNetPlugin\w* symbol|"
    r"ncclTunerPlugin\w* symbol",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"could not find|cannot open|no plugin found|failed to find|returned \d|not found",
    re.IGNORECASE,
)
_PROBE = re.compile(
    r"libibverbs: Warning|librdmacm: (?:Warning|Fatal)|CMA: unable to|error initializing an OpenFabrics|"
    r"no preset parameters were found|unable to find any relevant network interfaces|no userspace device-specific "
    r"driver|"
    r"couldn't load driver|mca_btl_openib|unable to open RDMA device",
    re.IGNORECASE,
)
_MEANT = re.compile(
    r"NCCL_IB_HCA set|NCCL_NET set (?:by environment )?to IB|NCCL_IB_DISABLE set by environment to 0|NET/IB : Using|"
    r"via NET/IB",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"Unable to open device|/dev/infiniband/\S+.{0,60}(?:denied|no such|not permitted|cannot|fail)|"
    r"(?:denied|no such|not permitted|cannot open|failed to open).{0,60}/dev/infiniband|ibv_open_device.{0,20}fail|"
    r"ibv_get_device_list.{0,20}fail",
    re.IGNORECASE,
)


_ASKED = (
    "net/ib : no device",
    "libibverbs",
    "libnccl-",
    "librccl-",
    "no plugin found",
    "plugin_v",
    "plugin symbol",
    "librdmacm",
    "cma: unable",
    "openfabrics",
    "no preset parameters",
    "relevant network interfaces",
    "couldn't load driver",
    "rdma device",
    "userspace device-specific driver",
)


def absent(log: LogFile) -> Iterator[Evidence]:
    """No RDMA device: harmless where none is wanted, and a slow job where others of the job have one."""
    meant = {
        line.host
        for line in log.saying("nccl_ib_", "nccl_net set", "net/ib")
        if _MEANT.search(line.said)
    }
    refused = any(
        _REFUSED.search(line.said)
        for line in log.saying("infiniband", "unable to open device", "ibv_")
    )
    for line in log.saying(*_ASKED):
        if _ABSENT.search(line.said):
            if refused or (meant and (line.host not in meant or "NET/IB : No device" in line.said)):
                blamed = (("host", line.host),) if line.host else ()
                yield Evidence("rdma_device_not_in_container", line, Weight.LIKELY, blamed)
            else:
                yield Evidence("benign_no_net_plugin", line, Weight.PLAIN)
        elif _NO_PLUGIN.search(line.said) and _MISSING.search(line.said):
            yield Evidence("benign_no_net_plugin", line, Weight.PLAIN)
        elif _PROBE.search(line.said) and "RLIMIT_MEMLOCK" not in line.said:
            if meant or refused:
                blamed = (("host", line.host),) if line.host else ()
                yield Evidence("rdma_device_not_in_container", line, Weight.LIKELY, blamed)
            else:
                yield Evidence("benign_rdma_probe_noise", line, Weight.PLAIN)


CONTAINER = Cause(
    "rdma_device_not_in_container",
    "degraded",
    "The HCA cannot be opened",
    "The process cannot open the RDMA device: it is not passed into the container, or its file may not be opened.",
    "«Unable to open device», errors about /dev/infiniband, «No device found» on some ranks while NCCL_IB_HCA is set.",
    "On a host that has no RDMA the same lines are harmless: benign_no_net_plugin, benign_rdma_probe_noise.",
    "docker run --device /dev/infiniband --cap-add IPC_LOCK --network host …   # and rdma-core in the image",
    "ib.chardev",
    signs=(
        Sign(
            "net/ib : unable to",
            r"NET/IB : Unable to (?:open|query) device (?P<hca>[\w.-]+)",
            "n1:1:2 [0] NCCL WARN NET/IB : Unable to open device mlx5_0",
            culprit="HCA {hca}",
        ),
        Sign(
            "/dev/infiniband",
            r"(?:denied|no such|not permitted|cannot|fail|unable|could ?n).*/dev/infiniband/(?P<file>\w+)|"
            r"/dev/infiniband/(?P<other>\w+).*(?:denied|no such|not permitted|cannot|fail)",
            "libibverbs: Warning: couldn't open /dev/infiniband/uverbs0: Permission denied",
            culprit="host {host}",
        ),
        Sign(
            "ibv_open_device",
            r"ibv_open_device.{0,20}fail",
            "n1:1:2 [0] misc/ibvwrap.cc:90 NCCL WARN Call to ibv_open_device failed",
            culprit="host {host}",
        ),
        Sign(
            "ibv_get_device_list",
            r"ibv_get_device_list.{0,20}fail",
            "n1:1:2 [0] misc/ibvwrap.cc:80 NCCL WARN Call to ibv_get_device_list failed",
            culprit="host {host}",
        ),
    ),
    look=absent,
    needles=(
        *_ASKED,
        "nccl_ib_hca set",
        "nccl_net set",
        "nccl_ib_disable set",
        "net/ib : using",
        "/dev/infiniband",
    ),
)
GPUDIRECT = Cause(
    "gpudirect_rdma_missing",
    "degraded",
    "No GPUDirect RDMA",
    "The RDMA card cannot reach GPU memory: neither nvidia-peermem nor DMA-BUF is there. It works through the host, "
    "slowly.",
    "«GPU Direct RDMA Disabled for HCA», «Peermem is not supported», registering GPU memory fails with «Bad address».",
    "«Cannot allocate memory» there is the limit on locked memory: memlock_limit.",
    "modprobe nvidia-peermem   # or a kernel from 5.12 with the open driver modules, for DMA-BUF",
    "rdma.peermem",
    signs=(
        Sign(
            "gpu direct rdma disabled",
            r"GPU Direct RDMA Disabled for (?:HCA|GPU|NIC)? ?(?P<hca>\d+)?(?: ?/ ?HCA (?P<other>\d+))?(?: "
            r"'?(?P<name>mlx\w+)'?)?",
            "n1:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
            culprit="HCA {name}",
        ),
        Sign(
            "bad address",
            r"ibv_reg_(?:mr|dmabuf_mr)\w* failed.*Bad address",
            "n1:1:2 [0] misc/ibvwrap.cc:213 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address",
            culprit="host {host}",
            severity="fatal",
        ),
        Sign(
            "ibv_reg_",
            r"ibv_reg_(?:mr|dmabuf_mr)\w* failed.*(?:Invalid argument|Operation not supported)",
            "n1:1:2 [0] misc/ibvwrap.cc:213 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Invalid argument",
            Weight.LIKELY,
            "host {host}",
            severity="fatal",
        ),
        Sign(
            "peermem",
            r"peermem.{0,60}(?:not (?:loaded|found|supported|running)|missing|fail)",
            "n1:1:2 [0] NCCL WARN Unable to use GIN: Peermem is not supported, and device 0 does not support DMA-BUF.",
            culprit="host {host}",
        ),
        Sign(
            "nv_peer_mem",
            r"nv_peer_mem.{0,60}(?:not (?:loaded|found|supported|running)|missing|fail)",
            "modinfo: ERROR: Module nv_peer_mem not found.",
            culprit="host {host}",
        ),
        Sign(
            "modprobe",
            r"modprobe: (?:ERROR|FATAL).*(?:nvidia[-_]peermem|nv_peer_mem)",
            "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument",
            culprit="host {host}",
        ),
    ),
)
EFA = Cause(
    "efa_provider",
    "fatal",
    "libfabric finds no provider",
    "The plug-in for EFA was loaded and libfabric has no provider for it, or the network that NCCL_NET forces is not "
    "there.",
    "NET/OFI errors about providers or protocols, fi_getinfo without data, «Failed to initialize any NET plugin».",
    "A plug-in that is absent and not asked for is harmless: benign_no_net_plugin.",
    "fi_info -p efa   # EFA driver, libfabric and /dev/infiniband/uverbs* in the container; unset NCCL_NET and "
    "FI_PROVIDER",
    "nccl.plugin",
    signs=(
        Sign(
            "net/ofi",
            r"^(?!.*\bINFO\b).*NET/OFI.*(?:\bunable\b|could ?n.t|could not|no eligible|fail|\berror\b|\binvalid\b|only "
            r"EFA provider)",
            "n1:1:2 [0] nccl_net_ofi_init:334 NCCL WARN NET/OFI Unable to find a protocol that worked.  Failing "
            "initialization.",
            Weight.LIKELY,
            "host {host}",
            whole=True,
        ),
        Sign(
            "libfabric provider",
            r"(?:unable|failed|could not|couldn't).{0,20}find.{0,20}libfabric provider",
            "n1:1:2 [0] NCCL WARN NET/OFI Unable to find libfabric provider",
            culprit="host {host}",
        ),
        Sign(
            "fi_getinfo",
            r"fi_getinfo.{0,80}(?:-61|no data|fail|output empty list)",
            "n1:1:2 [0] NCCL WARN NET/OFI fi_getinfo failed: -61 (No data available)",
            culprit="host {host}",
        ),
        Sign(
            "libfabric.so",
            r"libfabric\.so[.\d]*: cannot open",
            "n1:1:2 [0] NCCL INFO NET/Plugin: libfabric.so.1: cannot open shared object file: No such file or "
            "directory",
            culprit="host {host}",
        ),
        Sign(
            "ofi_nccl_",
            r"(?P<name>OFI_NCCL_\w+) set to invalid value",
            "WARNING: OFI_NCCL_PROTOCOL set to invalid value",
            note="the setting is {name}",
        ),
        Sign(
            "initialize any net plugin",
            r"Failed to initialize any NET plugin",
            "n1:1:2 [0] plugin/net.cc:349 NCCL WARN Failed to initialize any NET plugin",
            Weight.LIKELY,
        ),
        Sign(
            "error: network ",
            r"Error: network (?P<name>.+?) not found",
            "n1:1:2 [0] net.cc:480 NCCL WARN Error: network AWS Libfabric not found.",
            Weight.LIKELY,
        ),
        Sign(
            "failed to initialize net",
            r"Failed to initialize NET",
            "n1:1:2 [0] net.cc:480 NCCL WARN Failed to initialize NET plugin Libfabric",
            Weight.LIKELY,
        ),
    ),
)
NO_PLUGIN = Cause(
    "benign_no_net_plugin",
    "benign",
    "No external network plug-in",
    "NCCL looked for an optional plug-in or for InfiniBand and found none; it uses what it has built in.",
    "«libnccl-net.so: cannot open shared object file», «No plugin found», «NET/IB : No device found».",
    "On a host that should have InfiniBand the latter is serious; `clusterprep check --only ib.` says whether it has.",
    "nothing, unless this host should have InfiniBand or EFA",
    "nccl.plugin",
)
NOISE = Cause(
    "benign_rdma_probe_noise",
    "benign",
    "A library looks for RDMA that is not used",
    "libibverbs, librdmacm or MPI complain about RDMA devices on a host where none is used.",
    "«libibverbs: Warning: couldn't load driver», «librdmacm: Fatal: unable to open RDMA device», notes of Open MPI.",
    "Where the job should use RDMA it is rdma_device_not_in_container.",
    "nothing, unless the job should use RDMA here",
    "ib.present",
)
