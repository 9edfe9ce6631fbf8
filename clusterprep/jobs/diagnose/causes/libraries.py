"""Causes of libnccl: another one than torch was built for, or none."""

from __future__ import annotations

from collections.abc import Iterator

from clusterprep.jobs.diagnose.launchers import NEEDLES, host_that_exited
from clusterprep.jobs.diagnose.model import Cause, Evidence, LogFile, Sign, Weight
from clusterprep.remedies import shell_line


def detect_host(log: LogFile) -> Iterator[Evidence]:
    """Yield missing symbols of NCCL with the host that srun names, where the line names none."""
    culprits = host_that_exited(log)
    if not culprits:
        return
    for line in log.lines_with("undefined symbol: nccl"):
        if not line.host:
            yield Evidence("nccl_library_conflict", line, Weight.PLAIN, culprits)


LIBRARY = Cause(
    "nccl_library_conflict",
    "fatal",
    title="Another libnccl than torch was built for",
    message="The loader found another libnccl than the one that torch was built with.",
    looks=(
        "Undefined symbols that begin with nccl, «NCCL library is too old», a libnccl.so.2 that "
        "is not found."
    ),
    unlike="libnccl-net.so is NCCL's optional plug-in: benign_no_net_plugin.",
    remedy=shell_line(
        "unset LD_LIBRARY_PATH LD_PRELOAD; ldd $(python -c 'import torch; "
        "print(torch.__path__[0])')/lib/libtorch_cuda.so | grep nccl"
    ),
    check="nccl.torch",
    signs=(
        Sign(
            "undefined symbol: nccl",
            r"undefined symbol: (?P<symbol>nccl\w+)",
            "ImportError: libtorch_cuda.so: undefined symbol: ncclCommWindowRegister",
            note="{symbol} is missing in the libnccl that was loaded",
        ),
        Sign(
            "undefined symbol: ",
            r"libnccl\.so[.\d]*: undefined symbol: (?P<symbol>\w+)",
            "OSError: /usr/local/nccl/lib/libnccl.so.2: undefined symbol: __cudaRegisterFatBinary",
            Weight.LIKELY,
            note="that libnccl needs {symbol}, which no loaded library has",
        ),
        Sign(
            "undefined symbol: ",
            r"undefined symbol: (?P<symbol>_Z\w*[Nn]ccl\w*)",
            "ImportError: libtorch_python.so: undefined symbol: _ZN5torch4cuda4nccl7versionEv",
            Weight.LIKELY,
            note="the libraries of torch are of different builds",
        ),
        Sign(
            "nccl library is too old",
            r"NCCL library is too old",
            "n1:1:2 [0] NCCL WARN NCCL library is too old. This application was compiled with "
            "NCCL version 2.28.3",
        ),
        Sign(
            "unable to load nccl library",
            r"Unable to load NCCL library",
            "nccl_utils.cc:133: NCCL operation ncclGetUniqueId(&id) failed: Unable to load NCCL "
            "library.",
        ),
        Sign(
            "attribute value -2147483648",
            r"Invalid config .{0,40}attribute value -2147483648",
            "n1:1:2 [0] init.cc:1405 NCCL WARN Invalid config blocking attribute value -2147483648",
            Weight.LIKELY,
            note="«undefined» of a newer nccl.h, which an older library takes for a value",
        ),
        Sign(
            "failed to load nccl library",
            r"Failed to load NCCL library from (?P<path>\S+?)\.? ",
            "Failed to load NCCL library from libnccl.so.2. It is expected if you are not running "
            "on NVIDIA/AMD GPUs.",
            Weight.LIKELY,
            note="the library that vLLM looked for is {path}",
        ),
        Sign(
            "libnccl.so",
            r"libnccl\.so[.\d]*: (?:cannot open shared object|version `|file too short)",
            "ImportError: libnccl.so.2: cannot open shared object file: No such file or directory",
        ),
    ),
    doubt="The loader may have found another libnccl than the one that torch was built with.",
    detect=detect_host,
    needles=("undefined symbol: nccl", *NEEDLES),
    blames_host=True,
)
NOT_BUILT = Cause(
    "nccl_not_built",
    "fatal",
    title="A torch without NCCL",
    message="This torch build has no NCCL back-end.",
    looks="«Distributed package doesn't have NCCL built in».",
    unlike="A torch with NCCL that sees no GPU says so: invalid_device_ordinal.",
    remedy=shell_line(
        "pip install torch --index-url URL_OF_A_CUDA_BUILD   # or backend='gloo' on machines "
        "without NVIDIA GPUs"
    ),
    check="torch.version",
    finds="another torch than that of the other nodes",
    signs=(
        Sign(
            "have nccl",
            r"Distributed package doesn't have NCCL",
            "RuntimeError: Distributed package doesn't have NCCL built in",
            culprit="rank {rank}",
        ),
        Sign(
            "processgroupnccl",
            r"(?:cannot import name|no attribute) 'ProcessGroupNCCL'",
            "ImportError: cannot import name 'ProcessGroupNCCL' from 'torch.distributed'",
        ),
        Sign(
            "init_process_group",
            r"(?:cannot import name|no attribute) 'init_process_group'",
            "AttributeError: module 'torch.distributed' has no attribute 'init_process_group'",
        ),
        Sign(
            "not available",
            r"\bnccl\b(?! (?:INFO|WARN)).{0,40}is not available",
            "ValueError: Backend nccl is not available on this platform",
            Weight.LIKELY,
        ),
        Sign(
            "without libuv",
            r"use_libuv was requested but PyTorch was buil[dt] without libuv",
            "RuntimeError: use_libuv was requested but PyTorch was build without libuv support",
            Weight.LIKELY,
        ),
    ),
)
