"""Causes of libraries and drivers that do not fit the machine or each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose import compared
from clusterprep.jobs.diagnose.model import Cause, Evidence, LogFile, Sign, Weight
from clusterprep.jobs.diagnose.trouble import collective_timeouts
from clusterprep.remedies import shell_line

_RAY_NODE = re.compile(r"This process on node (?P<node>[\w.:-]+) was started with", re.IGNORECASE)
_KERNEL = re.compile(
    r"Detected kernel version (?P<kernel>\d+\.\d+\S*), which is below the recommended minimum",
    re.IGNORECASE,
)


def detect_differences(log: LogFile) -> Iterator[Evidence]:
    """Yield what differs between the hosts of a log, and what Ray says of different versions."""
    yield from compared.differences(log)
    yield from _different_rays(log)


def _different_rays(log: LogFile) -> Iterator[Evidence]:
    """Yield the node that runs another Ray or Python than the cluster.

    Ray only warns of versions of Python that differ in their last number.
    """
    refused = [
        line
        for line in log.lines_with("the cluster was started with")
        if "patch version" not in line.message
    ]
    for line in refused:
        yield Evidence("env_or_version_mismatch", line, Weight.PLAIN)
    if not refused:
        return
    for line in log.lines_with("this process on node"):
        match = _RAY_NODE.search(line.message)
        if match:
            note = f"Ray or Python on {match['node']} is another one than the cluster's"
            culprits = (("host", match["node"]),)
            yield Evidence("env_or_version_mismatch", line, Weight.PLAIN, culprits, note)


def detect_old_kernel(log: LogFile) -> Iterator[Evidence]:
    """Yield kernels that accelerate warns of, if a collective hangs.

    Processes may hang on such kernels, so an upgrade is the first thing to try.
    """
    if not collective_timeouts(log):
        return
    for line in log.lines_with("detected kernel version"):
        match = _KERNEL.search(line.message)
        if match is None:
            continue
        kernel = match["kernel"].rstrip(",.")
        note = (
            f"the kernel {kernel} is older than the minimum that is recommended, "
            "and processes may hang on it"
        )
        yield Evidence("nccl_bug_or_version", line, Weight.LIKELY, note=note)


DRIVER = Cause(
    "driver_too_old",
    "fatal",
    title="The driver is too old",
    message=(
        "The NVIDIA driver is older than the CUDA that the program was built with, or than its "
        "own libraries."
    ),
    looks=(
        "«driver version is insufficient for CUDA runtime version», «driver on your system is too "
        "old», a PTX error."
    ),
    unlike=(
        "A GPU that is too new or too old for the library asks for another NCCL or torch: "
        "nccl_bug_or_version. «Driver/library version mismatch» is a driver that was replaced: "
        "driver_not_reloaded."
    ),
    remedy=shell_line(
        "nvidia-smi   # install a driver for that CUDA, or a torch for this driver; reboot after a "
        "driver package was upgraded"
    ),
    check="cuda.runtime_vs_driver",
    blames_host=True,
    yields_to=frozenset({"driver_not_reloaded"}),
    signs=(
        Sign(
            "driver version is insufficient",
            r"driver version is insufficient for CUDA runtime version",
            "n1:1:2 [0] init.cc:50 NCCL WARN Cuda failure 'CUDA driver version is insufficient "
            "for CUDA runtime version'",
            culprit="host {host}",
        ),
        Sign(
            "driver on your system is too old",
            r"NVIDIA driver on your system is too old(?: \(found version (?P<found>\d+)\))?",
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
            culprit="host {host}",
            note="the driver is for CUDA {found}, where 12040 stands for 12.4",
        ),
        Sign(
            "installed cuda driver < r",
            r"NCCL cannot be captured in a graph if .*installed CUDA driver < R\d+",
            "n1:1:2 [0] misc/strongstream.cc:53 NCCL WARN NCCL cannot be captured in a graph if "
            "either it wasn't built with CUDA runtime >= 11.3 or if the installed CUDA driver < "
            "R465.",
            Weight.LIKELY,
        ),
        Sign(
            "minimum requirement",
            r"CUDA Driver version found is (?P<found>\d+)\. Minimum requirement is (?P<wanted>\d+)",
            "n1:1:2 [0] misc/cudawrap.cc:240 NCCL WARN CUDA Driver version found is 11000. "
            "Minimum requirement is 11030",
            culprit="host {host}",
            note="the driver is for CUDA {found} and NCCL needs {wanted}, where 12040 is 12.4",
        ),
        Sign(
            "unsupported toolchain",
            r"provided PTX was compiled with an unsupported toolchain",
            "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported "
            "toolchain.",
            culprit="host {host}",
        ),
        Sign(
            "please update your driver",
            r"please update your driver to a newer version",
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please "
            "update your driver to a newer version",
        ),
        Sign(
            "not supported in the installed cuda driver",
            r"API call is not supported in the installed CUDA driver",
            "n1:1:2 [0] NCCL WARN Cuda failure 36 'API call is not supported in the installed "
            "CUDA driver'",
            culprit="host {host}",
        ),
        Sign(
            "display driver / cuda driver combination",
            r"unsupported display driver / cuda driver combination",
            "RuntimeError: CUDA error 803: system has unsupported display driver / cuda driver "
            "combination",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "system_driver_mismatch",
            r"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "systemdrivermismatch",
            r"cudaErrorSystemDriverMismatch",
            "cudaErrorSystemDriverMismatch: system has unsupported versions",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "insufficientdriver",
            r"cudaErrorInsufficientDriver",
            "cudaErrorInsufficientDriver",
            culprit="host {host}",
        ),
        Sign(
            "pfn functions not found",
            r"some PFN functions not found",
            "n1:1:2 [0] misc/cudawrap.cc:292 NCCL WARN CUDA some PFN functions not found in the "
            "library",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "forward compatibility was attempted",
            r"forward compatibility was attempted on non supported HW",
            "RuntimeError: CUDA error 804: forward compatibility was attempted on non supported HW",
            Weight.LIKELY,
            "host {host}",
        ),
    ),
)
RELOAD = Cause(
    "driver_not_reloaded",
    "fatal",
    title="The driver was replaced and not loaded anew",
    message=(
        "The libraries of the NVIDIA driver are of another version than its kernel module, as "
        "after an update without a reboot, or in a container that brings its own."
    ),
    looks="«Driver/library version mismatch» of NVML, «API mismatch» in the kernel's log.",
    unlike="A driver that is older than the CUDA of the program: driver_too_old.",
    remedy=shell_line(
        "cat /proc/driver/nvidia/version; modinfo -F version nvidia   # reboot, or load the module "
        "anew with nothing on the GPUs; a container takes the libraries of its host"
    ),
    check="nv.module_vs_lib",
    blames_host=True,
    signs=(
        Sign(
            "driver/library version mismatch",
            r"driver/library version mismatch",
            "Failed to initialize NVML: Driver/library version mismatch",
            culprit="host {host}",
        ),
        Sign(
            "nvrm: api mismatch",
            r"NVRM: API mismatch(?:: the client has the version (?P<client>[\d.]+\d), but.* "
            r"(?P<module>\d+\.[\d.]+\d))?",
            "[    9.000000] NVRM: API mismatch: the client has the version 550.90.07, but this "
            "kernel module has 535.54.03",
            culprit="host {host}",
            note="the libraries are of driver {client} and the kernel module is {module}",
        ),
    ),
)
MISMATCH = Cause(
    "env_or_version_mismatch",
    "fatal",
    title="Nodes that are not alike",
    message=(
        "Ranks or nodes differ in NCCL, torch, CUDA or in NCCL's settings, or a setting cannot be "
        "used."
    ),
    looks=(
        "«Mismatched NCCL version», messages of another length than expected, different «NCCL "
        "version» lines, values of NCCL_* that do not parse."
    ),
    unlike="Different shapes of one tensor are the program's: collective_mismatch.",
    remedy=shell_line(
        "clusterprep check INVENTORY --only nccl.,torch.,env.   # the same versions and the same "
        "NCCL_* everywhere"
    ),
    check="nccl.torch",
    finds="versions of NCCL that differ",
    signs=(
        Sign(
            "mismatched nccl version",
            r"Mismatched NCCL version detected : rank (?P<a>\d+) version (?P<va>\d+) rank "
            r"(?P<b>\d+) version (?P<vb>\d+)",
            "n1:1:2 [0] init.cc:1043 NCCL WARN Mismatched NCCL version detected : rank 4 version "
            "22105 rank 0 version 22703",
            culprit="ranks {a} and {b}",
            note="version {va} on rank {a} and {vb} on rank {b}",
        ),
        Sign(
            "message truncated",
            r"Message truncated : received [\d,]+ bytes instead of",
            "n1:1:2 [0] bootstrap.cc:224 NCCL WARN Message truncated : received 1024 bytes "
            "instead of 256",
            Weight.LIKELY,
        ),
        Sign(
            "collective mismatch error",
            r"(?:peer (?P<peer>[\w.:%-]+?)(?:<\d+>)? )?collective mismatch error,? local size \d+ "
            r"remote (?:size )?\d+",
            "n1:1:2 [0] transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer "
            "10.9.0.7<40001> collective mismatch error, local size 4096 remote size 65536",
            culprit="peer {peer}|host {host}",
        ),
        Sign(
            "posted incorrect receive info",
            r"peer (?P<peer>[\w.:%-]+?)(?:<\d+>)? posted incorrect receive info",
            "n1:1:2 [0] NCCL WARN NET/IB : req 0/1 tag 1 peer 10.9.0.7<40001> posted incorrect "
            "receive info: size 9 addr 0",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "incompatible devices",
            r"Attempted to (?:connect|merge) incompatible devices",
            "n1:1:2 [0] NCCL WARN NET/IB : Attempted to connect incompatible devices: "
            "[0]mlx5_0:1/IB and [0]mlx5_1:1/RoCE. Try selecting NICs of one link layer",
            Weight.LIKELY,
        ),
        Sign(
            "incompatible with the local",
            r"Remote \S+ device is incompatible with the local",
            "n1:1:2 [0] NCCL WARN NET/IB : Remote RoCE device is incompatible with the local "
            "[0]mlx5_0:1/IB.",
            Weight.LIKELY,
        ),
        Sign(
            "ooo rq",
            r"OOO RQ is (?:force )?enabled but",
            "n1:1:2 [0] NCCL WARN NET/IB: OOO RQ is force enabled but the remote has it off",
            Weight.LIKELY,
            note="the setting is NCCL_IB_OOO_RQ",
        ),
        Sign(
            "detected mixed local",
            r"WARN.*Detected mixed local (?:CollNet|Net) device counts|^Detected mixed local "
            r"(?:CollNet|Net) device counts",
            "n1:1:2 [0] init.cc:1335 NCCL WARN Detected mixed local Net device counts across "
            "ranks (min 1, max 2).",
            Weight.LIKELY,
            searches_whole_line=True,
        ),
        Sign(
            "failed to determine",
            r"Failed to determine (?:local|intra proc) ranks rank",
            "n1:1:2 [0] init.cc:1415 NCCL WARN Failed to determine local ranks rank 1 hostHash 12 "
            "pidHash 34",
            Weight.LIKELY,
        ),
        Sign(
            "when parsing",
            r"Unrecognized (?:element|prefix) token \"?(?P<word>[^\"]+)\"? when parsing",
            'n1:1:2 [0] graph/tuning.cc:109 NCCL WARN Unrecognized element token "Rings" when '
            'parsing "Rings"',
            note="the value that does not parse is {word}",
        ),
        Sign(
            "must have a prefix",
            r"All entries except the first must have a prefix",
            "n1:1:2 [0] graph/tuning.cc:73 NCCL WARN All entries except the first must have a "
            'prefix: "Ring;Tree"',
        ),
        Sign(
            "no algorithm/protocol available",
            r"No algorithm/protocol available for function",
            "n1:1:2 [0] enqueue.cc:2063 NCCL WARN No algorithm/protocol available for function "
            "AllReduce with datatype 7",
            Weight.LIKELY,
            note="the setting is NCCL_ALGO",
        ),
        Sign(
            "no transport found",
            r"No transport found(?: for rank (?P<a>\d+)\[\w+\] -> rank (?P<b>\d+)| !)",
            "n1:1:2 [0] transport.cc:39 NCCL WARN No transport found for rank 0[1000] -> rank "
            "1[2000]",
            Weight.LIKELY,
            "ranks {a} and {b}",
        ),
        Sign(
            "invalid value for environment variable",
            r"Invalid value for environment variable: (?P<name>\w+)",
            "RuntimeError: Invalid value for environment variable: TORCH_NCCL_BLOCKING_WAIT",
            note="the setting is {name}",
        ),
        Sign(
            "torch_distributed_debug must be",
            r"value of TORCH_DISTRIBUTED_DEBUG must be",
            "RuntimeError: The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL.",
            note="the setting is TORCH_DISTRIBUTED_DEBUG",
        ),
        Sign(
            "are not allowed in the same group",
            r"Blocking and nonblocking communicators are not allowed in the same group",
            "n1:1:2 [0] group.cc:61 NCCL WARN Blocking and nonblocking communicators are not "
            "allowed in the same group.",
            Weight.LIKELY,
        ),
        Sign(
            "peer connected to wrong nccl socket",
            r"wrong socket type.*peer connected to wrong NCCL socket",
            "n1:1:2 [0] misc/socket.cc:380 NCCL WARN wrong socket type 3, peer connected to wrong "
            "NCCL socket",
            Weight.LIKELY,
        ),
        Sign(
            "wrong type ",
            r"wrong type (?:3 != 4|4 != 3)",
            "n1:1:2 [0] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 3 != 4",
            note=(
                "3 is the network of sockets and 4 that of InfiniBand: "
                "this rank and its peer chose different ones"
            ),
        ),
        Sign(
            "wrong type ",
            r"wrong type \d+ != \d+",
            "n1:1:2 [0] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 2 != 1",
            Weight.LIKELY,
        ),
    ),
    doubt=(
        "Ranks or nodes may differ in NCCL, torch, CUDA or NCCL's settings, or in what they send."
    ),
    detect=detect_differences,
    needles=(*compared.NEEDLES, "the cluster was started with", "this process on node"),
    yields_to=frozenset({"world_size_mismatch"}),
)
BUG = Cause(
    "nccl_bug_or_version",
    "fatal",
    title="This version cannot do it",
    message=(
        "The NCCL, driver or kernel in use has a known defect here, or does not know this hardware."
    ),
    looks=(
        "«no kernel image is available», topology searches that fail, an internal error without "
        "another message."
    ),
    unlike="An internal error with a line before it that says more is what that line says.",
    remedy=shell_line(
        "python -c 'import torch; print(torch.version.cuda, torch.cuda.nccl.version())'   "
        "# take a newer torch or NCCL"
    ),
    check="sw.known_bad",
    finds="versions with a known defect",
    blames_host=True,
    signs=(
        Sign(
            "no kernel image is available",
            r"no kernel image is available for execution on the device",
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        ),
        Sign(
            "not compatible with the current pytorch",
            r"with CUDA capability sm_\d+ is not compatible with the current PyTorch",
            "UserWarning: GPU with CUDA capability sm_120 is not compatible with the current "
            "PyTorch installation.",
        ),
        Sign(
            "failed to find reverse path",
            r"Failed to find reverse path from",
            "n1:1:2 [0] graph/paths.cc:110 NCCL WARN Failed to find reverse path from remNode "
            "0/1000 nlinks 2 to node 0/2000",
        ),
        Sign(
            "could not find",
            r"Could not find (?:rev link for|intermediate GPU between|NIC for rank \d+ in NVLS"
            r"|any local path from gpu|node of type|gpu rank|net id|NET with id"
            r"|local GPU with rank)",
            "n1:1:2 [0] graph/topo.cc:80 NCCL WARN Could not find rev link for 0/4096 -> 1/8192",
            Weight.LIKELY,
        ),
        Sign(
            "unable to find gpu/cpu",
            r"unable to find GPU/CPU for rank \d+",
            "n1:1:2 [0] graph/topo.cc:605 NCCL WARN Set CPU affinity : unable to find GPU/CPU for "
            "rank 0",
            Weight.LIKELY,
        ),
        Sign(
            "no path computed",
            r"No path computed to go",
            "n1:1:2 [0] graph/paths.cc:90 NCCL WARN No path computed to go from GPU/1000 to NET/0",
            Weight.LIKELY,
        ),
        Sign(
            "error : ",
            r"Error : (?:ring \d+ does not|tree already has|tried to create too many nodes"
            r"|too many Topo links|could not find CPU)",
            "n1:1:2 [0] graph/rings.cc:40 NCCL WARN Error : ring 0 does not contain rank 3",
            Weight.LIKELY,
        ),
        Sign(
            "fp8 reduction",
            r"FP8 reduction support begins with sm90",
            "n1:1:2 [0] enqueue.cc:3029 NCCL WARN FP8 reduction support begins with sm90 capable "
            "devices.",
        ),
        Sign(
            "libnccl.so",
            r"(?:segfault|general protection).* in libnccl\.so|libnccl\.so[.\d]*\(\+0x",
            "[ 100.000000] python[12]: segfault at 10 ip 00007f in libnccl.so.2[7f+1000] error 4",
            Weight.LIKELY,
        ),
        Sign(
            "corrupted comm object",
            r"corrupted comm object detected",
            "n1:1:2 [0] misc/argcheck.cc:41 NCCL WARN Error: corrupted comm object detected",
            Weight.LIKELY,
        ),
        Sign(
            "internal",
            r"internal error - please report this issue to the NCCL developers"
            r"|NCCL error in: \S+, internal error|ncclInternalError",
            "ncclInternalError: internal error - please report this issue to the NCCL developers",
            Weight.SYMPTOM,
        ),
        Sign(
            "cuda failure",
            r"Cuda failure.*(?:named symbol not found|invalid device function"
            r"|device kernel image is invalid)",
            "n1:1:2 [0] enqueue.cc:110 NCCL WARN Cuda failure 500 'named symbol not found'",
            Weight.LIKELY,
        ),
        Sign(
            "unhandled cuda error",
            r"unhandled cuda error",
            "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1269, unhandled cuda error, NCCL "
            "version 2.14.3",
            Weight.SYMPTOM,
        ),
        Sign(
            "cuda failure",
            r"Cuda failure(?: \d+)? '?(?:operation not (?:permitted|supported)|invalid argument"
            r"|unknown error)",
            "n1:1:2 [0] misc/cudawrap.cc:60 NCCL WARN Cuda failure 801 'operation not supported'",
            Weight.SYMPTOM,
        ),
        Sign(
            "too many connections",
            r"\[Proxy service\] Too many connections|Too many connections \(\d+ max\)",
            "n1:1:2 [0] proxy.cc:1816 NCCL WARN [Proxy service] Too many connections (128 max)",
            Weight.LIKELY,
        ),
    ),
    doubt=(
        "The NCCL, driver or kernel in use may have a defect here, or may not know this hardware."
    ),
    detect=detect_old_kernel,
    needles=("detected kernel version", "collective operation timeout"),
)
