"""Causes of limits: memory of GPU and host, /dev/shm, locked memory, open files."""

from __future__ import annotations

from clusterprep.jobs.diagnose.exits import detect_signals
from clusterprep.jobs.diagnose.launchers import HOSTS
from clusterprep.jobs.diagnose.model import Cause, Sign, Weight
from clusterprep.remedies import shell_line

GPU = Cause(
    "rank_gpu_oom",
    "fatal",
    title="A GPU has no memory left",
    message="One rank ran out of GPU memory; the others then wait for it or lose their connection.",
    looks="«CUDA out of memory» on a rank, NCCL's own «out of memory» while it takes buffers.",
    unlike="A process that the kernel killed ran out of the host's memory: host_oom_kill.",
    remedy=shell_line(
        "nvidia-smi   # look for processes of older jobs; then a smaller batch, or activation "
        "checkpointing"
    ),
    check="gpu.busy",
    finds="memory that other processes hold",
    signs=(
        Sign(
            "out of memory",
            r"CUDA out of memory.*?GPU (?P<device>\d+)",
            "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU "
            "2 has a total capacity",
            culprit="rank {rank}|GPU {device}",
        ),
        Sign(
            "out of memory",
            r"(?:CUDA|HIP)(?: driver)?(?: error:)? out of memory",
            "RuntimeError: CUDA error: out of memory",
            culprit="rank {rank}",
        ),
        Sign(
            "out of memory",
            r"Cuda failure(?: \d+)? '?out of memory",
            "n1:1:2 [3] include/alloc.h:99 NCCL WARN Cuda failure 2 'out of memory'",
            culprit="rank {rank}|GPU {gpu} of {host}",
        ),
        Sign(
            "cuda_error_out_of_memory",
            r"CUDA_ERROR_OUT_OF_MEMORY",
            "cuda_driver.cc:806] failed to allocate 512.00M from device: "
            "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
            culprit="rank {rank}",
        ),
        Sign(
            "out of memory",
            r"RESOURCE_EXHAUSTED: Out of memory|Out of memory error on GPU (?P<device>\d+)",
            "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
            "8589934592 bytes.",
            culprit="rank {rank}",
        ),
        Sign(
            "outofmemoryerror: ",
            r"torch\S*\.OutOfMemoryError: ",
            "[rank2]: torch.OutOfMemoryError: Allocation on device 2 would exceed allowed memory.",
            culprit="rank {rank}",
        ),
        Sign(
            "failed to cuda",
            r"Failed to CUDA (?:calloc|malloc|host alloc)",
            "n1:1:2 [3] include/alloc.h:200 NCCL WARN Failed to CUDA calloc async 608 bytes",
            Weight.LIKELY,
            "rank {rank}|GPU {gpu} of {host}",
        ),
        Sign(
            "_alloc_failed",
            r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
            "[rank2]: RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
            "`cublasCreate(handle)`",
            Weight.LIKELY,
            "rank {rank}",
        ),
    ),
)
# How the names of a job's own processes begin. The kernel may also kill a database or a monitor.
_OF_JOBS = "python|pt_|ray|torch|deepspeed|mpi|srun|train|accelerate|pretrain|main"
HOST = Cause(
    "host_oom_kill",
    "fatal",
    title="The kernel killed a process for memory",
    message="A worker was killed because the host's or the container's memory ran out.",
    doubt=(
        "A process may have been killed, and no line says by what. The memory of the host or of "
        "the container may have run out; a scheduler or a person may have killed it as well."
    ),
    looks=(
        "The kernel's «Out of memory: Killed process», Slurm's oom_kill, «OOMKilled» of "
        "Kubernetes. A worker that ends by signal 9 may be one, and proves nothing."
    ),
    unlike=(
        "Signal 15 and 1 come from people and schedulers: external_termination. A GPU without "
        "memory says «CUDA out of memory»."
    ),
    remedy=shell_line(
        "dmesg -T | grep -i -E 'oom|killed process'   # fewer data loader workers, "
        "or more memory for the job"
    ),
    check="mem.free",
    finds="memory that other processes use",
    signs=(
        Sign(
            "killed process",
            r"(?:out of memory|oom).{0,60}killed process (?P<pid>\d+)\b"
            rf"(?! \((?!{_OF_JOBS}))",
            "Mar  4 12:00:00 n3 kernel: Out of memory: Killed process 4711 (python) total-vm:1kB",
            culprit="host {host}",
        ),
        Sign(
            "killed process",
            r"(?:out of memory|oom).{0,60}killed process (?P<pid>\d+) \((?P<name>[^)]+)\)",
            "Mar  4 12:00:00 n3 kernel: Out of memory: Killed process 912 (mysqld) total-vm:1kB",
            Weight.SYMPTOM,
            "host {host}",
            note="the kernel killed {name}, which may be none of the job's",
        ),
        Sign(
            "out_of_me",
            r"\bState: OUT_OF_MEMORY|JobState=OUT_OF_MEMORY"
            r"|^\d[\w.+-]*\s.*\bOUT_OF_ME(?:MORY|\+)\s+\d+:\d+",
            "State: OUT_OF_MEMORY (exit code 0)",
            note="Slurm says so",
        ),
        Sign(
            "oom_reaper",
            r"oom_reaper: reaped process \d+",
            "[ 77.123456] oom_reaper: reaped process 4711 (python), now anon-rss:0kB",
            culprit="host {host}",
        ),
        Sign(
            "pbs: job killed: ",
            r"PBS: job killed: p?v?mem\b",
            "=>> PBS: job killed: mem 34359738kb exceeded limit 33554432kb",
            note="PBS says so",
        ),
        Sign(
            "term_",
            r"\bTERM_(?:MEMLIMIT|SWAP)\b",
            "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
            note="LSF says so",
        ),
        Sign(
            "oom-kill",
            rf"oom-kill:constraint(?!.*task=(?!{_OF_JOBS}))|oom-kill event",
            "[25357.758221] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,task=pyt"
            "hon,pid=9",
            culprit="host {host}",
        ),
        Sign(
            "first failure: rank",
            r"first failure: rank (?P<number>\d+) on \S+ was killed by SIGKILL",
            "clusterprep launch: first failure: rank 2 on n2 was killed by SIGKILL",
            Weight.SYMPTOM,
            "rank {number}",
        ),
        Sign(
            "killed by the cgroup",
            r"some of your processes may have been killed by the cgroup",
            "Some of your processes may have been killed by the cgroup out-of-memory handler.",
            culprit="host {host}",
        ),
        Sign(
            "oom_kill",
            r"oom_kill event|oom[_-]kill handler",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks "
            "have been OOM Killed.",
            culprit="host {host}",
        ),
        Sign(
            "out of memory",
            rf"srun: error: (?P<node>{HOSTS}): tasks? [\d,-]+: out of memory",
            "srun: error: gpu[03-04]: tasks 16-31: Out Of Memory",
            culprit="host {node}",
        ),
        Sign(
            "srun: error:",
            rf"srun: error: (?P<node>{HOSTS}): tasks? [\d,-]+: Killed",
            "srun: error: gpu-07: task 3: Killed",
            Weight.SYMPTOM,
            "host {node}",
        ),
        Sign(
            "memory",
            r"killed due to (?:the node running low on memory|memory pressure)(?:.{0,200}\bIP: "
            r"(?P<node>[\w.:-]*\w))?|low on resource: memory",
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on "
            "memory.",
            culprit="host {node}",
        ),
        Sign(
            "memory on the node",
            r"Memory on the node \(IP: (?P<node>[\w.:-]*\w),.*exceeds the memory usage threshold",
            "ray.exceptions.OutOfMemoryError: Memory on the node (IP: 10.9.0.7, ID: ab12) where "
            "the task was running was 27.4GB / 28.8GB (0.95), which exceeds the memory usage "
            "threshold of 0.95.",
            culprit="host {node}",
        ),
        Sign(
            "node_out_of_memory",
            r"(?:Worker IP address: (?P<node>[\w.:-]*\w).*)?NODE_OUT_OF_MEMORY",
            "(raylet) A worker died or was killed. Worker IP address: 10.9.0.7 Worker exit type: "
            "NODE_OUT_OF_MEMORY",
            culprit="host {node}",
        ),
        Sign(
            "by oom killer",
            r"(?:Worker IP address: (?P<node>[\w.:-]*\w).*)?killed by SIGKILL by OOM killer due "
            r"to high memory usage",
            "(raylet) Worker IP address: 10.9.0.7 Worker exit type: SYSTEM_ERROR There are some "
            "potential root causes. (1) The process is killed by SIGKILL by OOM killer due to "
            "high memory usage.",
            Weight.SYMPTOM,
            "host {node}",
        ),
        Sign(
            "oomkilled",
            r"\bOOMKilled\b",
            "Last State: Terminated, Reason: OOMKilled, Exit Code: 137",
        ),
        Sign(
            "signal: killed",
            r"DataLoader worker \(pid\(?s?\)? ?(?P<pid>[\d, ]+)\) is killed by signal: Killed",
            "[rank1]: RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.",
            Weight.SYMPTOM,
            "rank {rank}",
        ),
        Sign(
            "return code = -9",
            r"exits? with return code = -9",
            "[INFO] [launch.py:347:main] Process 4711 exits with return code = -9",
            Weight.SYMPTOM,
        ),
        Sign(
            "exited on signal 9",
            r"process rank (?P<number>\d+) with PID \d+ on node (?P<node>\S+) exited on signal 9",
            "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).",
            Weight.SYMPTOM,
            "rank {number}",
        ),
        Sign(
            "killed",
            r"^(?:\S+: line \d+: *\d+ )?Killed\b(?: +\S*python.*)?$|exited on signal 9 \(Killed\)",
            "run.sh: line 12:  4711 Killed                  python train.py",
            Weight.SYMPTOM,
        ),
        Sign(
            "signal",
            r"terminated with signal SIGKILL|exited on signal 9|killed by signal: 9\b"
            r"|Killed \(signal 9\)|died with <Signals\.SIGKILL",
            "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal "
            "SIGKILL",
            Weight.SYMPTOM,
        ),
        Sign(
            "code 137",
            r"exit(?:ed with)? code 137",
            "srun: error: gpu-07: task 3: Exited with exit code 137",
            Weight.SYMPTOM,
            "host {host}",
        ),
        Sign(
            "exit code: 137",
            r"exit code: 137",
            "Last State: Terminated; Reason: Error; Exit Code: 137",
            Weight.SYMPTOM,
            "host {host}",
        ),
        Sign(
            "exit status 137",
            r"exit status 137",
            "mpirun: n1: worker ended with exit status 137",
            Weight.SYMPTOM,
            "host {host}",
        ),
    ),
    detect=detect_signals,
    needles=(
        "exitcode",
        "rank      :",
        "root cause (first",
        "forcefully exiting",
        "other failures",
    ),
)
SHM = Cause(
    "shm_too_small",
    "fatal",
    title="Shared memory is full",
    message=(
        "Shared memory in /dev/shm is too small or full; NCCL and data loaders pass data through "
        "it."
    ),
    doubt=(
        "Shared memory in /dev/shm may be too small or full; NCCL and data loaders pass data "
        "through it."
    ),
    looks=(
        "«No space left on device» for a file of /dev/shm, «Bus error … insufficient shared "
        "memory», exit code -7."
    ),
    unlike="The same words about a file elsewhere are a full disk.",
    remedy=shell_line(
        "docker run --shm-size 16g …   # or --ipc host; in a pod an emptyDir with medium: Memory "
        "on /dev/shm; then see lsof /dev/shm/nccl-*"
    ),
    check="shm.size",
    blames_host=True,
    signs=(
        Sign(
            "no space left on device",
            r"(?:posix_fallocate|/dev/shm|shared memory|ftruncate|shm"
            r"|failed to extend).{0,160}No space left on device"
            r"|No space left on device: ?.?/dev/shm/",
            "n1:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-abc "
            "to 9637892 bytes, error: No space left on device (28)",
            culprit="host {host}",
        ),
        Sign(
            "shared memory",
            r"(?:while creating shared memory segment|failed to create shared memory (?:file"
            r"|mapping))(?!.*error:? (?!No space|Cannot allocate))",
            "n1:1:2 [0] include/shm.h:48 NCCL WARN Error while creating shared memory segment "
            "nccl-shm-recv-0 (size 9637888)",
            culprit="host {host}",
        ),
        Sign(
            "insufficient shared memory",
            r"insufficient shared memory \(shm\)",
            "ERROR: Unexpected bus error encountered in worker. This might be caused by "
            "insufficient shared memory (shm).",
            culprit="host {host}",
        ),
        Sign(
            "</torch_",
            r"unable to (?:write to|mmap|open|resize|allocate).{0,80}</torch_",
            "RuntimeError: unable to write to file </torch_12_34_56>: No space left on device (28)",
            culprit="host {host}",
        ),
        Sign(
            "errno 28",
            r"\[Errno 28\] No space left on device(?!.*'/(?!dev/shm))",
            "OSError: [Errno 28] No space left on device",
            Weight.SYMPTOM,
        ),
        Sign(
            "attaching to shared memory segment",
            r"while attaching to shared memory segment(?!.*No such file)",
            "n1:1:2 [0] misc/shmutils.cc:100 NCCL WARN Error while attaching to shared memory "
            "segment /dev/shm/nccl-abc (size 9)",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "could not map",
            r"Could not map \S+ size \d+, error: ",
            "n1:1:2 [0] os/linux.cc:806 NCCL WARN Error: Could not map /dev/shm/nccl-abc size "
            "4194304, error: Cannot allocate memory (12)",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "bus error",
            r"signal: Bus error|Bus error \(core dumped\)|unexpected bus error"
            r"|caught signal 7 \(Bus error",
            "[rank1]: RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error.",
            Weight.LIKELY,
        ),
        Sign(
            "return code = -7",
            r"(?:--local_rank=(?P<local>\d+)'.*)?exits? with return code = -7\b",
            "[ERROR] [launch.py:325:main] ['python3', '-u', 'train.py', '--local_rank=3'] exits "
            "with return code = -7",
            Weight.LIKELY,
            "local rank {local}",
            note="a worker ended by SIGBUS",
        ),
    ),
)
MEMLOCK = Cause(
    "memlock_limit",
    "fatal",
    title="Too little memory may be locked",
    message="The limit on locked memory is too low for RDMA, which has to lock what it registers.",
    doubt=(
        "RDMA got no memory that is locked, as a rule because the limit (ulimit -l) is too low. "
        "Where the job has it unlimited, look for too many mappings of a process "
        "(vm.max_map_count), too many queues on a card as in an all-to-all of hundreds of nodes, "
        "and memory that the kernel cannot pin (journalctl -k)."
    ),
    looks=(
        "ibv_reg_mr, ibv_create_cq or ibv_create_qp fail with «Cannot allocate memory»; libibverbs "
        "warns of RLIMIT_MEMLOCK, UCX of ulimit -l."
    ),
    unlike=(
        "«Bad address» for GPU memory is a missing nvidia-peermem: gpudirect_rdma_missing. The "
        "same failures with an unlimited ulimit -l in the job have other reasons, which the report "
        "names."
    ),
    remedy=shell_line(
        "ulimit -l   # in the job; unlimited by limits.conf, LimitMEMLOCK=infinity of slurmd and "
        "of containerd, --ulimit memlock=-1"
    ),
    check="lim.memlock",
    finds="a limit that is too low",
    blames_host=True,
    signs=(
        Sign(
            "cannot allocate memory",
            r"(?:\b(?P<hca>\w+\d): )?ibv_\w+(?:\([^)]*\)|\))? failed(?: with error"
            r"| \(with error)?:? ?(?:\d+ )?Cannot allocate memory(?!.*ulimit -l)",
            "n1:1:2 [0] misc/ibvwrap.cc:213 NCCL WARN Call to ibv_reg_mr_iova2 failed with error "
            "Cannot allocate memory",
            # Of 12 public threads with these words 8 ended with the limit.
            Weight.LIKELY,
            "HCA {hca}|host {host}",
        ),
        Sign(
            "rlimit_memlock",
            r"RLIMIT_MEMLOCK is \d+ bytes|RLIMIT_MEMLOCK",
            "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes. This will severely limit memory "
            "registrations.",
            culprit="host {host}",
        ),
        Sign(
            "call to ibv_",
            r"Call to ibv_(?:create_(?:qp|cq)|reg_mr\w*) failed\s*$",
            "n1:1:2 [0] misc/ibvwrap.cc:242 NCCL WARN Call to ibv_create_cq failed",
            Weight.LIKELY,
            "host {host}",
        ),
        Sign(
            "ulimit -l",
            r"(?:\b(?P<hca>\w+): ibv_\w+\(.{0,100}?)?ulimit -l",
            "[17.1] [n1:12:0] ib_log.c:246 UCX ERROR mlx5_0: ibv_create_cq() failed: Cannot "
            "allocate memory. Please set max locked memory (ulimit -l) to 'unlimited' (current: "
            "64 kbytes)",
            culprit="HCA {hca}|host {host}",
        ),
        Sign(
            "ibv_create_qp failed",
            r"ibv_create_qp failed with (?:error )?(?:\d+ )?Invalid argument",
            "n1:1:2 [0] misc/ibvwrap.cc:255 NCCL WARN Call to ibv_create_qp failed with error "
            "Invalid argument",
            Weight.SYMPTOM,
            "host {host}",
        ),
    ),
)
FILES = Cause(
    "fd_limit",
    "fatal",
    title="Too many open files",
    message="The limit on open files is too low for the number of ranks and data loader workers.",
    looks="«Too many open files», «received 0 items of ancdata» of data loaders.",
    unlike="A port that cannot be had is port_in_use.",
    remedy=shell_line(
        "ulimit -n 65536   # in limits.conf, LimitNOFILE= of slurmd, --ulimit nofile=65536 of "
        "docker"
    ),
    check="lim.nofile",
    signs=(
        Sign(
            "too many open files",
            r"Too many open files",
            "n1:1:2 [6] os/linux.cc:204 NCCL WARN ncclOsSocketTryAccept: Accept failed: Too many "
            "open files",
            culprit="host {host}|rank {rank}|device {gpu}",
        ),
        Sign(
            "items of ancdata",
            r"received \d+ items of ancdata",
            "[rank1]: RuntimeError: received 0 items of ancdata",
            culprit="rank {rank}",
        ),
    ),
)
