"""Causes of GPUs that processes take: the same one twice, or one that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import Cause, Culprits, Evidence, LogFile, Sign, Weight
from clusterprep.remedies import sentence, shell_line

_TWICE = re.compile(
    r"Duplicate GPU detected : rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device "
    r"(?P<device>[0-9a-fA-F]+)",
    re.IGNORECASE,
)
_GUESS = re.compile(
    r"using (?:best-guess )?GPU (?P<gpu>\d+) (?:to perform barrier )?as "
    r"(?:the )?devices? used by this process (?:is|are) currently unknown",
    re.IGNORECASE,
)
_GUESS_NEW = re.compile(r"Guessing device ID based on global rank", re.IGNORECASE)


def detect_duplicates(log: LogFile) -> Iterator[Evidence]:
    """Yield pairs of ranks on one GPU, as NCCL reports them."""
    for line in log.lines_with("duplicate gpu"):
        match = _TWICE.search(line.message)
        if match:
            a = int(match["a"])
            b = int(match["b"])
            culprits = _pair(a, b, f"CUDA device {match['device']}")
            yield Evidence("duplicate_gpu", line, Weight.PLAIN, culprits)


def _pair(a: int, b: int, where: str) -> Culprits:
    """Return two ranks as culprits: «ranks 0 and 1 on GPU 3»."""
    kind = f"rank {{}} on {where}"
    first, second = sorted((a, b))
    return ((kind, str(first)), (kind, str(second)))


_HostAndGpu = tuple[str, int]


def detect_guesses(log: LogFile) -> Iterator[Evidence]:
    """Yield GPUs that torch guessed from the rank.

    If two ranks of one host have the same guess, it is wrong; otherwise the guess is only told.
    """
    rank_of_gpu: dict[_HostAndGpu, int | None] = {}
    for line in log.lines_with("currently unknown", "guessing device"):
        match = _GUESS.search(line.message)
        if match is None:
            if _GUESS_NEW.search(line.message):
                yield Evidence("benign_device_unknown_barrier", line, Weight.PLAIN)
            continue
        gpu = match["gpu"]
        place = (line.host or "", int(gpu))
        rank = line.rank
        first_rank = rank_of_gpu.setdefault(place, rank)
        if rank is None:
            yield Evidence("benign_device_unknown_barrier", line, Weight.PLAIN)
        elif line.host and first_rank is not None and first_rank != rank:
            culprits = _pair(first_rank, rank, f"GPU {gpu} of {line.host}")
            yield Evidence("duplicate_gpu", line, Weight.LIKELY, culprits)
        else:
            note = f"rank {rank} uses GPU {gpu}"
            yield Evidence("benign_device_unknown_barrier", line, Weight.PLAIN, note=note)


DUPLICATE = Cause(
    "duplicate_gpu",
    "fatal",
    title="Two ranks on one GPU",
    message="Two ranks of one communicator use the same GPU.",
    looks="«Duplicate GPU detected», in newer NCCL «using the same GPU».",
    unlike="An index that does not exist is invalid_device_ordinal.",
    remedy=sentence(
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), in every process, before the "
        "first CUDA call"
    ),
    check="env.cuda_visible",
    finds="lists of GPUs that differ or have holes",
    signs=(
        Sign(
            "using the same gpu",
            r"multiple ranks (?:detected|are) using the same GPU",
            "n1:1:2 [0] init.cc:1057 NCCL WARN Multiple Ranks are using the same GPU/Partition. "
            "Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this",
        ),
        Sign(
            "multiple ranks using the same nvml device",
            r"multiple ranks using the same NVML device",
            'n1:1:2 [0] transport/nvls.cc:254 NCCL WARN NCCL_NVLS_ENABLE has been set to "1" and '
            "communicator has multiple ranks using the same NVML device.",
        ),
    ),
    detect=detect_duplicates,
    needles=("duplicate gpu detected",),
)
ORDINAL = Cause(
    "invalid_device_ordinal",
    "fatal",
    title="A GPU that is not there",
    message=(
        "A process asks for a GPU that it cannot see: more processes than GPUs, or another list of "
        "visible devices."
    ),
    doubt=(
        "A process cannot use a GPU: it is not there, not visible to the process, taken by "
        "another one, or its driver does not answer."
    ),
    looks="«invalid device ordinal», «no GPUs found», an assertion about the number of GPUs.",
    unlike="A GPU that was there and is lost is gpu_hardware_fault.",
    remedy=shell_line(
        "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L   # --nproc-per-node may not exceed what is "
        "visible"
    ),
    check="launch.nproc",
    finds="more processes than GPUs",
    blames_host=True,
    signs=(
        Sign(
            "invalid device ordinal",
            # Of memory of other nodes it tells of the IMEX channel: fabric_manager_down.
            r"^(?!.*(?:p2p|mnnvl|allocator)\.cc:\d).*invalid device ordinal",
            "[rank5]: RuntimeError: CUDA error: invalid device ordinal",
            culprit="rank {rank}",
            searches_whole_line=True,
        ),
        Sign(
            "device < num_gpus",
            r"device >= 0 && device < num_gpus",
            "RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "
            "CUDAContext.cpp:49",
            culprit="rank {rank}",
        ),
        Sign(
            "invalid device id",
            r"(?:AssertionError|RuntimeError|DeferredCudaCallError).*invalid device id",
            "AssertionError: Invalid device id",
            culprit="rank {rank}",
        ),
        Sign(
            "no gpus found",
            r"only supported with GPUs, no GPUs found",
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            culprit="rank {rank}",
        ),
        Sign(
            "no cuda gpus are available",
            r"No CUDA GPUs are available",
            "RuntimeError: No CUDA GPUs are available",
            Weight.LIKELY,
            "rank {rank}",
        ),
        Sign(
            "no cuda-capable device",
            r"no CUDA-capable device is detected",
            "RuntimeError: CUDA error: no CUDA-capable device is detected",
            Weight.LIKELY,
            "rank {rank}",
        ),
        Sign(
            "your machine only has",
            r"You requested gpu:? .*your machine only has",
            "MisconfigurationException: You requested gpu: [0, 1, 2, 3] But your machine only "
            "has: [0, 1]",
        ),
        Sign(
            "no slot '",
            r"No slot '\d+' specified on host '(?P<node>[\w.-]+)'",
            "ValueError: No slot '3' specified on host 'worker-1'",
            culprit="host {node}",
        ),
        Sign(
            "number of available gpus",
            r"number of required GPUs exceeds the total number of available GPUs",
            "ValueError: The number of required GPUs exceeds the total number of available GPUs "
            "in the placement group.",
        ),
        Sign(
            "busy or unavailable",
            r"CUDA-capable device(?:\(s\) is/are|s are) busy or unavailable",
            "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            Weight.SYMPTOM,
            "rank {rank}",
        ),
        Sign(
            "nvml",
            r"(?:Failed to initialize NVML|nvmlInit\w*\(\) failed): Unknown Error",
            "Failed to initialize NVML: Unknown Error",
            Weight.SYMPTOM,
            "host {host}",
            note=(
                "in a container the GPUs are lost so when systemd reloads: "
                "it has to be started with its devices named"
            ),
        ),
        Sign(
            "mismatchs with nccl device",
            r"allocated on device (?P<device>\d+) mismatchs with NCCL device (?P<wanted>\d+)",
            "n1:1:2 [0] NCCL WARN AllReduce : sendbuff allocated on device 1 mismatchs with NCCL "
            "device 0",
            Weight.LIKELY,
            "rank {rank}",
        ),
        Sign(
            "not on device passed to init_process_group",
            r"tensor not on device passed to init_process_group",
            "ValueError: Attempt to perform collective on tensor not on device passed to "
            "init_process_group",
            Weight.LIKELY,
            "rank {rank}",
        ),
        Sign(
            "nvidia-ml",
            r"Failed to open libnvidia-ml\.so",
            "n1:1:2 [0] misc/nvmlwrap.cc:99 NCCL WARN Failed to open libnvidia-ml.so.1",
            Weight.LIKELY,
            "host {host}",
        ),
    ),
)
GUESSED = Cause(
    "benign_device_unknown_barrier",
    "benign",
    title="torch guesses the GPU of a barrier",
    message=(
        "torch took the GPU for a barrier from the rank, as the process had not said which is its "
        "own. This is harmless where rank and GPU agree; where CUDA_VISIBLE_DEVICES differs "
        "between ranks or ranks skip GPUs, the guess is wrong and hangs."
    ),
    looks="«using GPU 3 to perform barrier as devices used by this process are currently unknown».",
    unlike="Two ranks of one host that guess the same GPU are duplicate_gpu.",
    remedy=sentence(
        "init_process_group('nccl', device_id=torch.device('cuda', LOCAL_RANK)), or "
        "torch.cuda.set_device(LOCAL_RANK) before it"
    ),
    check="env.cuda_visible",
    finds="lists of GPUs that differ or have holes",
    detect=detect_guesses,
    needles=("currently unknown", "guessing device id"),
)
