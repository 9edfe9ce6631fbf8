"""Causes of RDMA devices and plug-ins: containers, GPUDirect, and harmless warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import (
    Cause,
    Culprits,
    Evidence,
    LogFile,
    LogLine,
    Sign,
    Weight,
)
from clusterprep.remedies import sentence, shell_line

_NO_DEVICE = re.compile(
    r"NET/IB : No device found|Failed to open libibverbs|not open libibverbs"
    r"|libibverbs\.so[.\d]*: cannot open",
    re.IGNORECASE,
)
_PLUGIN = re.compile(
    r"lib[nr]ccl-(?:net|tuner|profiler)\S*|No plugin found|Could not find: lib"
    r"|ncclNetPlugin\w* symbol|ncclCollNetPlugin\w* symbol|ncclTunerPlugin\w* symbol",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"could not find|cannot open|no plugin found|failed to find|returned \d|not found",
    re.IGNORECASE,
)
# What libraries print when they look for RDMA devices and find none.
_PROBE = re.compile(
    r"libibverbs: Warning|librdmacm: (?:Warning|Fatal)|CMA: unable to"
    r"|error initializing an OpenFabrics|no preset parameters were found"
    r"|unable to find any relevant network interfaces|no userspace device-specific driver"
    r"|couldn't load driver|mca_btl_openib|unable to open RDMA device",
    re.IGNORECASE,
)
_WANTS_RDMA = re.compile(
    r"NCCL_IB_HCA set|NCCL_NET set (?:by environment )?to IB"
    # «NET/IB : Using [RO]; OOB eth0» is what NCCL writes where there is no card.
    r"|NCCL_IB_DISABLE set by environment to 0|NET/IB : Using \[\d|via NET/IB",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"Unable to open device|/dev/infiniband/\S+.{0,60}(?:denied|no such|not permitted|cannot|fail)"
    r"|(?:denied|no such|not permitted|cannot open|failed to open).{0,60}/dev/infiniband"
    r"|ibv_open_device.{0,20}fail|ibv_get_device_list.{0,20}fail",
    re.IGNORECASE,
)
_NEEDLES = (
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


def detect_missing_devices(log: LogFile) -> Iterator[Evidence]:
    """Yield lines about missing RDMA devices and plug-ins.

    They are harmless where no RDMA is wanted. Where other hosts of the job have a device, or where
    opening one was refused, the job is slow.
    """
    hosts_with_rdma = _hosts_with_rdma(log)
    about_devices = log.lines_with("infiniband", "unable to open device", "ibv_")
    was_refused = any(_REFUSED.search(line.message) for line in about_devices)
    for line in log.lines_with(*_NEEDLES):
        message = line.message
        if _NO_DEVICE.search(message):
            if was_refused or _is_wanted(line, hosts_with_rdma):
                yield _cannot_open(line)
            else:
                yield Evidence("benign_no_net_plugin", line, Weight.PLAIN)
        elif _PLUGIN.search(message) and _MISSING.search(message):
            yield Evidence("benign_no_net_plugin", line, Weight.PLAIN)
        elif _is_probe(message):
            is_of_a_driver = "load driver" in message  # of another card than the host has
            if was_refused or (hosts_with_rdma and not is_of_a_driver):
                yield _cannot_open(line)
            else:
                yield Evidence("benign_rdma_probe_noise", line, Weight.PLAIN)


def _hosts_with_rdma(log: LogFile) -> set[str | None]:
    """Return the hosts whose lines say that NCCL uses RDMA or is told to."""
    lines = log.lines_with("nccl_ib_", "nccl_net set", "net/ib")
    return {line.host for line in lines if _WANTS_RDMA.search(line.message)}


def _is_wanted(line: LogLine, hosts_with_rdma: set[str | None]) -> bool:
    """Whether the job wants the RDMA device that is missing: other hosts of it use RDMA.

    On a host that uses RDMA itself only NCCL's own «No device found» counts.
    """
    if not hosts_with_rdma:
        return False
    return line.host not in hosts_with_rdma or "NET/IB : No device" in line.message


def _is_probe(message: str) -> bool:
    """Whether a library found no device. A warning of RLIMIT_MEMLOCK is about the limit."""
    return "RLIMIT_MEMLOCK" not in message and bool(_PROBE.search(message))


def _cannot_open(line: LogLine) -> Evidence:
    culprits: Culprits = (("host", line.host),) if line.host else ()
    return Evidence("rdma_device_not_in_container", line, Weight.LIKELY, culprits)


CONTAINER = Cause(
    "rdma_device_not_in_container",
    "degraded",
    title="The HCA cannot be opened",
    message=(
        "The process cannot open the RDMA device: it is not passed into the container, or its file "
        "may not be opened."
    ),
    looks=(
        "«Unable to open device», errors about /dev/infiniband, «No device found» on some ranks "
        "while NCCL_IB_HCA is set."
    ),
    unlike=(
        "On a host that has no RDMA the same lines are harmless: benign_no_net_plugin, "
        "benign_rdma_probe_noise."
    ),
    remedy=shell_line(
        "docker run --device /dev/infiniband --cap-add IPC_LOCK --network host …   # and "
        "rdma-core in the image"
    ),
    check="ib.chardev",
    finds="cards that the job's user may not open",
    signs=(
        Sign(
            "net/ib : unable to",
            r"NET/IB : Unable to (?:open|query) device (?P<hca>[\w.-]+)",
            "n1:1:2 [0] NCCL WARN NET/IB : Unable to open device mlx5_0",
            culprit="HCA {hca} on {host}|HCA {hca} of rank {rank}|HCA {hca}",
        ),
        Sign(
            "/dev/infiniband",
            r"(?:denied|no such|not permitted|cannot|fail|unable|could ?n).*/dev/infiniband/"
            r"(?P<file>\w+)|/dev/infiniband/(?P<other>\w+).*(?:denied|no such|not permitted|cannot"
            r"|fail)",
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
    detect=detect_missing_devices,
    needles=(
        *_NEEDLES,
        "nccl_ib_hca set",
        "nccl_net set",
        "nccl_ib_disable set",
        "net/ib : using",
        "/dev/infiniband",
    ),
)
# «for GPU 0 / HCA 4 (distance 9 > 4)» is a card that is far from that GPU, as most are.
_GPUDIRECT_DISABLED = re.compile(
    r"GPU Direct RDMA Disabled for (?:HCA|NIC) ?\d*(?: '?(?P<name>\w+)'?)?(?! / HCA)", re.IGNORECASE
)


_ON_ONE_HOST = re.compile(r"nNodes 1 localRanks \d", re.IGNORECASE)


def _stays_on_its_host(log: LogFile) -> bool:
    """Whether NCCL says that all ranks are on one host, as it does from 2.19 on."""
    sizes = log.lines_with("nnodes 0 localranks")
    return bool(sizes) and all(_ON_ONE_HOST.search(line.message) for line in sizes)


def detect_gpudirect(log: LogFile) -> Iterator[Evidence]:
    """Yield cards that cannot reach GPU memory, unless the job needs no network."""
    if _stays_on_its_host(log):
        return
    for line in log.lines_with("gpu direct rdma disabled"):
        match = _GPUDIRECT_DISABLED.search(line.message)
        if match is None:
            continue
        culprit = ("host", line.host) if line.host else ("HCA", match["name"])
        yield Evidence("gpudirect_rdma_missing", line, Weight.PLAIN, (culprit,))


GPUDIRECT = Cause(
    "gpudirect_rdma_missing",
    "degraded",
    title="No GPUDirect RDMA",
    message=(
        "The RDMA card cannot reach GPU memory: neither nvidia-peermem nor DMA-BUF is there. It "
        "works through the host, slowly."
    ),
    looks=(
        "«GPU Direct RDMA Disabled for HCA», «Peermem is not supported», registering GPU memory "
        "fails with «Bad address»."
    ),
    unlike="«Cannot allocate memory» there is the limit on locked memory: memlock_limit.",
    remedy=shell_line(
        "modprobe nvidia-peermem   # or a kernel from 5.12 with the open driver modules, for "
        "DMA-BUF"
    ),
    check="rdma.peermem",
    detect=detect_gpudirect,
    needles=("gpu direct rdma disabled", "nnodes 0 localranks"),
    signs=(
        Sign(
            "bad address",
            r"ibv_reg_(?:mr|dmabuf_mr)\w*(?: ?\([^)]*\))? failed.*Bad address",
            "n1:1:2 [0] misc/ibvwrap.cc:213 NCCL WARN Call to ibv_reg_mr_iova2 failed with error "
            "Bad address",
            culprit="host {host}",
            severity="fatal",
        ),
        Sign(
            "ibv_reg_",
            r"ibv_reg_(?:mr|dmabuf_mr)\w*(?: ?\([^)]*\))? failed"
            r".*(?:Invalid argument|Operation not supported)",
            "n1:1:2 [0] misc/ibvwrap.cc:213 NCCL WARN Call to ibv_reg_mr_iova2 failed with error "
            "Invalid argument",
            Weight.LIKELY,
            "host {host}",
            severity="fatal",
        ),
        Sign(
            "peermem",
            r"^(?!.*\bINFO\b).*peermem.{0,60}(?:not (?:loaded|found|supported|running)|missing"
            r"|fail)",
            "n1:1:2 [0] NCCL WARN Unable to use GIN: Peermem is not supported, and device 0 does "
            "not support DMA-BUF.",
            culprit="host {host}",
            searches_whole_line=True,
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
NO_PLUGIN = Cause(
    "benign_no_net_plugin",
    "benign",
    title="No external network plug-in",
    message=(
        "NCCL looked for an optional plug-in or for InfiniBand and found none; it uses what it "
        "has built in."
    ),
    looks=(
        "«libnccl-net.so: cannot open shared object file», «No plugin found», «NET/IB : No device "
        "found»."
    ),
    unlike=(
        "On a host that should have InfiniBand the latter is serious; `clusterprep check --only "
        "ib.` says whether it has."
    ),
    remedy=sentence("nothing, unless this host should have InfiniBand or EFA"),
    check="nccl.plugin",
)
NOISE = Cause(
    "benign_rdma_probe_noise",
    "benign",
    title="A library looks for RDMA that is not used",
    message=(
        "libibverbs, librdmacm or MPI complain about RDMA devices on a host where none is used."
    ),
    looks=(
        "«libibverbs: Warning: couldn't load driver», «librdmacm: Fatal: unable to open RDMA "
        "device», notes of Open MPI."
    ),
    unlike="Where the job should use RDMA it is rdma_device_not_in_container.",
    remedy=sentence("nothing, unless the job should use RDMA here"),
    check="ib.present",
)
