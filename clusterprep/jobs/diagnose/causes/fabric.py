"""Causes inside a node: broken GPUs, PCIe, NVLink, NVSwitch, and files that describe them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import Cause, Evidence, LogFile, Sign, Weight
from clusterprep.jobs.diagnose.trouble import collective_timeouts
from clusterprep.jobs.diagnose.xids import NEEDLES as XIDS
from clusterprep.jobs.diagnose.xids import detect_xids
from clusterprep.remedies import shell_line

_FILE_SET = re.compile(
    r"NCCL_(?P<kind>TOPO|GRAPH)_FILE (?:set (?:by environment )?to|environment variable to) "
    r"(?P<path>\S+)",
    re.IGNORECASE,
)
_ABOUT_FILE = re.compile(
    r"(?P<graph>XML (?:Import|Export) Channel|XML Graph)|XML"
    r"|Could not find (?:id|gpu rank|net id|NET with id|node of type)"
    r"|Attribute \S+ of node|real path",
    re.IGNORECASE,
)


def detect_bad_files(log: LogFile) -> Iterator[Evidence]:
    """Yield errors about XML with the topology or graph file that was set."""
    paths: dict[str, str] = {}
    for line in log.lines_with("_file set", "_file environment variable"):
        match = _FILE_SET.search(line.message)
        if match:
            paths[match["kind"].upper()] = match["path"]
    if not paths:
        return
    any_path = next(iter(paths.values()))
    for line in log.lines_with("xml ", "attribute ", "could not find "):
        match = _ABOUT_FILE.search(line.message)
        if match is None or line.level == "INFO":
            continue
        kind = "GRAPH" if match["graph"] else "TOPO"
        path = paths.get(kind, any_path)
        yield Evidence("topo_or_graph_file_bad", line, Weight.PLAIN, (("file", path),))


_PEER_FAILURES = ("cuda ipc handle", "cudaipc", "peer access is not supported")
_PEER_HINTS = ("could not enable p2p", "iommu=pt")
_CHANNEL = re.compile(r": (?P<a>\d+)\[\w+\] -> (?P<b>\d+)\[\w+\].* via P2P/IPC")


def detect_peers(log: LogFile) -> Iterator[Evidence]:
    """Yield failures of peer access with the two GPUs, and hints at it where a collective hangs.

    The two GPUs are those of the channel that the process was setting up. The hints are what every
    job of such a machine prints, so they say nothing without a failure.
    """
    pair_of: dict[tuple[str | None, int | None], str] = {}
    for line in log.lines_with("via p2p/ipc", *_PEER_FAILURES):
        process = (line.host, line.pid)
        channel = _CHANNEL.search(line.message)
        if channel:
            pair_of[process] = f"{channel['a']}-{channel['b']}"
        elif process in pair_of and line.level != "INFO":
            is_plain = "peer access is not supported" in line.message
            weight = Weight.PLAIN if is_plain else Weight.LIKELY
            yield Evidence("p2p_acs_iommu", line, weight, (("GPU pair", pair_of[process]),))
    if collective_timeouts(log):
        for line in log.lines_with(*_PEER_HINTS):
            yield Evidence("p2p_acs_iommu", line, Weight.SYMPTOM)


# A GPU by its address on the bus, which many hosts have.
_GPU = "GPU {pci} on {host}|GPU {pci}"
HARDWARE = Cause(
    "gpu_hardware_fault",
    "fatal",
    title="A GPU is broken or lost",
    message="A GPU failed: an uncorrectable memory error, a fatal Xid, or it is lost from the bus.",
    doubt=(
        "A GPU, or the NVSwitch or the PCI Express between GPUs, may have failed; the lines do not "
        "prove it."
    ),
    looks=(
        "Xid 48, 64, 74, 79, 94, 95, 119 in the kernel's log, a fatal SXid, «GPU is lost», "
        "«uncorrectable ECC error»."
    ),
    unlike=(
        "An illegal memory access alone is a bug of a program as a rule; Xid 13, 31, 43 and 45 "
        "come from programs too."
    ),
    remedy=shell_line(
        "nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg -T | grep -i xid   # drain the node and reset or "
        "replace the GPU"
    ),
    check="gpu.xid",
    finds="earlier errors of a GPU",
    signs=(
        Sign(
            "fallen off the bus",
            r"^(?!.*\bXid \()(?:.*?GPU (?:at )?(?:PCI:)?"
            r"(?P<pci>[0-9a-fA-F:.]{6,}[0-9a-fA-F]))?.*fallen off the bus"
            r"(?:.{0,40}PCI:(?P<place>[0-9a-fA-F:.]*[0-9a-fA-F]))?",
            "[ 9.000000] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus",
            culprit=f"{_GPU}|GPU {{place}} on {{host}}|GPU {{place}}",
        ),
        Sign(
            "uncorrectable ecc error",
            r"uncorrectable ECC error",
            "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered",
            culprit="rank {rank}|host {host}",
        ),
        Sign(
            "nvlink",
            r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable",
            "n1:1:2 [0] NCCL WARN Cuda failure 'uncorrectable NVLink error detected during the "
            "execution'",
            culprit="rank {rank}|host {host}",
        ),
        Sign(
            "uncorrectable nvlink error",
            r"uncorrectable NVLink error",
            "[rank5]: RuntimeError: CUDA error: uncorrectable NVLink error detected during the "
            "execution",
            culprit="rank {rank}",
        ),
        Sign(
            "over nvlink or a hardware error",
            r"Invalid access of peer GPU memory over nvlink or a hardware error",
            "[rank5]: RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or "
            "a hardware error",
            Weight.LIKELY,
            "rank {rank}|host {host}",
        ),
        Sign(
            "nvlinkuncorrectable",
            r"(?:cudaError|CUDA_ERROR_)NvlinkUncorrectable",
            "[rank5]: RuntimeError: cudaErrorNvlinkUncorrectable",
            culprit="rank {rank}",
        ),
        Sign(
            "gpu_is_lost",
            r"ERROR_GPU_IS_LOST",
            "nvmlDeviceGetTemperature failed: NVML_ERROR_GPU_IS_LOST",
        ),
        Sign(
            "gpu requires re",
            r"(?:(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F:.]+[0-9a-fA-F])\b.*)?"
            r"GPU requires (?:reset|restart)",
            "| 00000000:3B:00.0 Off | GPU requires reset |",
            Weight.LIKELY,
            _GPU,
        ),
        Sign(
            "eccuncorrectable",
            r"ECCUncorrectable",
            "[rank5]: RuntimeError: cudaErrorECCUncorrectable",
            culprit="rank {rank}",
        ),
        Sign(
            "nvrm: the nvidia gpu",
            r"NVRM: The NVIDIA GPU (?P<pci>[0-9a-fA-F:.]*[0-9a-fA-F])\s*$",
            "[ 9.000000] NVRM: The NVIDIA GPU 0000:3b:00.0",
            Weight.SYMPTOM,
            _GPU,
        ),
        Sign(
            "gpu is lost",
            r"(?:nvmlDeviceGetHandleByIndex\((?P<index>\d+)\).*)?GPU is lost",
            "n1:1:2 [0] misc/nvmlwrap.cc:166 NCCL WARN nvmlDeviceGetHandleByIndex(5) failed: GPU "
            "is lost",
            culprit="GPU {index} of {host}|GPU {index}",
        ),
        Sign(
            "nvmldevicegethandlebyindex",
            r"nvmlDeviceGetHandleByIndex\((?P<index>\d+)\) failed: (?!.*is lost)",
            "n1:1:2 [0] misc/nvmlwrap.cc:166 NCCL WARN nvmlDeviceGetHandleByIndex(5) failed: "
            "Unknown Error",
            Weight.LIKELY,
            "GPU {index} of {host}|GPU {index}",
        ),
        Sign(
            "determine the device handle",
            r"Unable to determine the device handle for GPU ?(?P<pci>[0-9a-fA-F:.]*[0-9a-fA-F])",
            "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error",
            culprit=_GPU,
        ),
        Sign(
            "hardware stack error",
            r"hardware stack error",
            "[rank5]: RuntimeError: CUDA error: hardware stack error",
            Weight.LIKELY,
            "rank {rank}|host {host}",
        ),
        Sign(
            "rminitadapter failed",
            r"NVRM: (?:GPU (?P<pci>[0-9a-fA-F:.]*[0-9a-fA-F]):? )?RmInitAdapter failed",
            "[    9.000000] NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x24:0xffff:1484)",
            Weight.LIKELY,
            _GPU,
        ),
        Sign(
            "rm_init_adapter failed",
            r"NVRM: (?:GPU (?P<pci>[0-9a-fA-F:.]*[0-9a-fA-F]):? )?rm_init_adapter failed",
            "[    9.000000] NVRM: GPU 0000:3b:00.0: rm_init_adapter failed, device minor number 0",
            Weight.LIKELY,
            _GPU,
        ),
        Sign(
            "severity=uncorrect",
            r"PCIe Bus Error: severity=Uncorrect(?:ed|able)",
            "[    9.000000] nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), "
            "type=Transaction Layer",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "memory access",
            r"an illegal memory access was encountered",
            "[rank5]: RuntimeError: CUDA error: an illegal memory access was encountered",
            Weight.SYMPTOM,
            "rank {rank}|host {host}",
        ),
        Sign(
            "unspecified launch failure",
            r"unspecified launch failure",
            "[rank5]: RuntimeError: CUDA error: unspecified launch failure",
            Weight.SYMPTOM,
            "rank {rank}|host {host}",
        ),
    ),
    detect=detect_xids,
    needles=XIDS,
)
PEERS = Cause(
    "p2p_acs_iommu",
    "fatal",
    title="GPUs cannot reach each other",
    message=(
        "GPUs of one node cannot reach each other's memory: ACS, the IOMMU, a virtual machine or a "
        "driver stands between."
    ),
    doubt=(
        "GPUs of one node, or a GPU and a card, may not reach each other's memory: ACS, the IOMMU, "
        "a virtual machine or a driver may stand between."
    ),
    looks=(
        "«peer access is not supported», CUDA IPC that fails, DMA faults of the IOMMU, a hang or "
        "wrong data over P2P."
    ),
    unlike="A hang in which a rank is missing is that rank's.",
    remedy=shell_line(
        "NCCL_P2P_DISABLE=1   # to prove it; then iommu=pt, and ACS off on the PCIe switches "
        "between the GPUs"
    ),
    check="gpu.p2p",
    blames_host=True,
    signs=(
        Sign(
            "failed to peer with device",
            r"failed to peer with device (?P<device>\d+)",
            "n1:1:2 [0] transport/p2p.cc:355 NCCL WARN failed to peer with device 1(=2000): 217 "
            "peer access is not supported",
            culprit="GPU pair {gpu}-{device}",
        ),
        Sign(
            "peer access is not supported",
            r"peer access is not supported between these two devices",
            "n1:1:2 [0] NCCL WARN Cuda failure 'peer access is not supported between these two "
            "devices'",
        ),
        Sign(
            "p2p is disabled between nvlink connected",
            r"P2P is disabled between NVLINK connected GPUs (?P<a>\d+) and (?P<b>\d+)",
            "n1:1:2 [0] graph/paths.cc:396 NCCL WARN P2P is disabled between NVLINK connected "
            "GPUs 0 and 1",
            culprit="GPU pair {a}-{b}",
        ),
        Sign(
            "ipc",
            r"cudaIpc(?:Get|Open)MemHandle failed|failed to (?:open|get) CUDA IPC handle",
            "n1:1:2 [0] transport/p2p.cc:250 NCCL WARN cudaIpcGetMemHandle failed : invalid "
            "argument",
            Weight.LIKELY,
        ),
        Sign(
            "acsctl",
            r"ACSCtl:\s*SrcValid\+.*ReqRedir\+",
            "ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- "
            "DirectTrans-",
            Weight.SYMPTOM,
        ),
        Sign(
            "peer mapping resources exhausted",
            r"peer mapping resources exhausted",
            "n1:1:2 [0] NCCL WARN Cuda failure 'peer mapping resources exhausted'",
            Weight.LIKELY,
        ),
        Sign(
            "dmar",
            r"(?:DMAR).{0,80}(?:fault)",
            "[ 9.000000] DMAR: [DMA Read] Request device [3b:00.0] fault addr 0x1000 [fault "
            "reason 06]",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "io_page_fault",
            r"IO_PAGE_FAULT",
            "[ 9.000000] nvidia 0000:3b:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x12 "
            "address=0x1 flags=0x0020]",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "got completion",
            r"Got completion.*(?:error 4\b|status=(?:\w+\()?4\b|IBV_WC_LOC_PROT_ERR)",
            "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.9.0.7<40001> with "
            "status=IBV_WC_LOC_PROT_ERR(4) opcode=0",
            Weight.SYMPTOM,
        ),
        Sign(
            "out of bounds values",
            r"Out of bounds values : [1-9]\d* FAILED",
            "# Out of bounds values : 8 FAILED",
            Weight.LIKELY,
        ),
    ),
    detect=detect_peers,
    needles=(*_PEER_HINTS, "via p2p/ipc", *_PEER_FAILURES),
)
MANAGER = Cause(
    "fabric_manager_down",
    "fatal",
    title="The NVSwitch fabric is not ready",
    message=(
        "The fabric manager (or IMEX, between nodes) does not run, or was restarted under GPUs in "
        "use."
    ),
    doubt=(
        "NVLink through NVSwitches does not work as it should: the fabric manager (or IMEX, "
        "between nodes) may not run, or may have been restarted under GPUs in use."
    ),
    looks=(
        "CUDA error 802 «system not yet initialized», NVLS memory that cannot be bound, MNNVL that "
        "does not work."
    ),
    unlike="Machines without NVSwitch have no fabric manager.",
    remedy=shell_line(
        "systemctl status nvidia-fabricmanager   # restart it, of the driver's own version, with "
        "no process on the GPUs"
    ),
    check="gpu.fabricmanager",
    blames_host=True,
    signs=(
        Sign(
            "system not yet initialized",
            r"system not yet initialized",
            "n1:1:2 [0] NCCL WARN Cuda failure 802 'system not yet initialized'",
            culprit="host {host}",
        ),
        Sign(
            "cudaerrorsystemnotready",
            r"cudaErrorSystemNotReady",
            "RuntimeError: cudaErrorSystemNotReady",
            culprit="host {host}",
        ),
        Sign(
            "cuda_error_system_not_ready",
            r"CUDA_ERROR_SYSTEM_NOT_READY",
            "cuMulticastBindMem returned CUDA_ERROR_SYSTEM_NOT_READY",
            culprit="host {host}",
        ),
        Sign(
            "multicast memory",
            r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory(?!.*CUDA error 2\b)"
            r".*Proceeding without",
            "n1:1:2 [0] NCCL INFO Failed to bind NVLink SHARP (NVLS) Multicast memory of size "
            "2097152 : CUDA error 401 'the operation cannot be performed in the present state'. "
            "Proceeding without NVLS support.",
            Weight.LIKELY,
            "host {host}",
            note="NCCL went on without NVLink SHARP, which is slower",
            severity="degraded",
        ),
        Sign(
            "multicast memory",
            r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory(?!.*CUDA error 2\b)",
            "n1:1:2 [0] transport/nvls.cc:376 NCCL WARN Failed to bind NVLink SHARP (NVLS) "
            "Multicast memory of size 2097152 : CUDA error 1 'invalid argument'.",
            culprit="host {host}",
        ),
        Sign(
            "cumulticast",
            r"cuMulticast(?:Create|AddDevice|BindMem|BindAddr)\b.{0,80}(?:fail|error)",
            "RuntimeError: cuMulticastBindMem failed: CUDA_ERROR_INVALID_VALUE",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "transport/nvls.cc",
            r"transport/nvls\.cc:\d+ +(?:\(\w+\) )?NCCL WARN Cuda failure (?!2\b|'out of memory)",
            "n1:1:2 [0] transport/nvls.cc:99 NCCL WARN Cuda failure 1 'invalid argument'",
            Weight.LIKELY,
            "host {host}",
            searches_whole_line=True,
        ),
        Sign(
            "imex",
            r"is available but not working on this system\. Check the IMEX",
            "n1:1:2 [0] mnnvl.cc:74 NCCL WARN MNNVL (cliqueSize 8) is available but not working "
            "on this system. Check the IMEX configuration",
            culprit="host {host}",
        ),
        Sign(
            "imex",
            r"nvidia-imex\S*: .{0,80}(?:fail|exited|error)|"
            r"IMEX (?:daemon|channel|domain|service)\w*.{0,60}(?:not (?:running|ready|found"
            r"|available|configured)|fail|missing)",
            "nvidia-imex.service: Main process exited, code=exited, status=1/FAILURE",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "mnnvl is not supported",
            r"^(?!.*\bINFO\b).*MNNVL is not supported on this system",
            "n1:1:2 [0] mnnvl.cc:40 NCCL WARN MNNVL is not supported on this system",
            Weight.SYMPTOM,
            "host {host}",
            note="NCCL_MNNVL_ENABLE=1 asks for NVLink between nodes, which this host has not",
            searches_whole_line=True,
        ),
        Sign(
            "permitted",
            r"CUDA_ERROR_NOT_PERMITTED.{0,80}cuMem(?:Create|(?:Import|Export)\w*ShareableHandle)|"
            r"cuMem(?:Create|(?:Import|Export)\w*ShareableHandle).{0,80}(?:NOT_PERMITTED"
            r"|operation not permitted)",
            "[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression "
            "cuMemCreate(&handle, roundedUpAllocationSize, &prop, 0 )",
            Weight.LIKELY,
            "host {host}",
            note="memory for other nodes needs an IMEX channel, which the process may not open",
        ),
        Sign(
            "cuda failure 000",
            r"(?:p2p|mnnvl|allocator)\.cc:\d+ +(?:\(\w+\) )?NCCL WARN Cuda failure "
            r"(?:80[01]|101)\b",
            "n1:1:2 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 800 'operation not permitted'",
            Weight.SYMPTOM,
            "host {host}",
            note="memory of another node was not mapped, as it is without an IMEX domain",
            searches_whole_line=True,
        ),
        Sign(
            "match with driver version",
            r"fabric manager .{0,80}version \S+ don'?t match with driver version",
            "fabric manager NVIDIA GPU driver interface version 550.54.14 don't match with driver "
            "version 550.54.15. Please update with matching NVIDIA driver package.",
            Weight.LIKELY,
            "host {host}",
            note="the fabric manager is of another version than the driver",
        ),
        Sign(
            "fabricmanager",
            r"fabricmanager(?:\S*: (?:Failed with result|Main process exited)|.{0,40}not running)",
            "systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.",
            culprit="host {host}",
        ),
        Sign(
            "fabricmanager",
            r"fabricmanager.{0,80}(?:fail|exited|\berror:|stopped|mismatch)",
            "nvidia-fabricmanager: mismatch of versions",
            Weight.LIKELY,
            "host {host}",
        ),
    ),
)
TOPOLOGY = Cause(
    "topo_or_graph_file_bad",
    "fatal",
    title="A topology file is wrong",
    message=(
        "NCCL_TOPO_FILE or NCCL_GRAPH_FILE names a file that is missing, of another release, or "
        "no proper XML."
    ),
    looks="NCCL's errors about XML, «could not find» of nodes that the file describes.",
    unlike=(
        "Without such a file a search that fails is a matter of the NCCL version: "
        "nccl_bug_or_version."
    ),
    remedy=shell_line(
        "unset NCCL_TOPO_FILE NCCL_GRAPH_FILE   # or the file that the provider has for this "
        "machine and release"
    ),
    check="fabric.topology",
    blames_host=True,
    signs=(
        Sign(
            "xml",
            r"XML (?:Topology|Graph) has wrong version|Could not open XML graph file|XML "
            r"(?:Mismatch|Parse)|Error : (?:XML parser|too many XML)|ncclTopoGetSystemFromXml"
            r"|XML (?:Import|Export) Channel",
            "n1:1:2 [0] graph/xml.cc:394 NCCL WARN XML Topology has wrong version 2, 1 needed",
        ),
        Sign(
            "attribute ",
            r"Attribute \S+ of node \S+ not found",
            "n1:1:2 [0] graph/xml.h:80 NCCL WARN Attribute busid of node nic not found",
            Weight.LIKELY,
        ),
        Sign(
            "xml topology file",
            r"Could not open XML topology file (?P<file>\S+)",
            "n1:1:2 [0] NCCL INFO Could not open XML topology file /etc/topo.xml : No such file "
            "or directory",
            Weight.SYMPTOM,
        ),
        Sign(
            "real path",
            r"^(?!.*\bINFO\b).*Could not find real path of (?P<path>\S+)",
            "n1:1:2 [0] os/linux.cc:637 NCCL WARN Could not find real path of "
            "/sys/class/pci_bus/0000:3b/../../0000:3b:00.0",
            Weight.LIKELY,
            searches_whole_line=True,
        ),
    ),
    detect=detect_bad_files,
    needles=("nccl_topo_file set", "nccl_graph_file set", "nccl_topo_file environment variable"),
)
