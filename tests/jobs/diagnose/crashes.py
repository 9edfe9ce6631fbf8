"""Logs of jobs that their own program ended, written anew from public threads.

`source` is the thread; names of people, hosts and paths are others. The root of each is confirmed
by the thread or stands in the log itself.
"""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

from dataclasses import dataclass

SUMMARY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-03-04_05:06:07
  host      : gpu1
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : {traceback}
============================================================"""
NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


def summary(rank: int, code: int, pid: int = 4711, traceback: str = NO_TRACEBACK) -> str:
    """What torchrun prints of one worker that failed."""
    failed = (
        f"E0304 05:06:07.000000 12 site-packages/torch/distributed/elastic/multiprocessing/api.py:874] "
        f"failed (exitcode: {code}) local_rank: {rank} (pid: {pid}) of binary: /opt/env/bin/python"
    )
    table = SUMMARY.format(rank=rank, code=code, pid=pid, traceback=traceback)
    return f"{failed}\n{table}"


@dataclass(frozen=True)
class Seen:
    """A log, the cause that its thread tells, and the culprits that are right (None: nothing)."""

    name: str
    source: str
    log: str
    cause: str | None = "program"
    culprits: tuple[str | None, ...] = (None,)
    said: str = ""  # part of the message


PUBLIC = [
    Seen(
        "recursion",
        "instructlab/training#217",
        f"""\
[0] about to throw an error
Traceback (most recent call last):
  File "/home/u/training/test-error.py", line 12, in <module>
    recurse_and_error(5)
  File "/home/u/training/test-error.py", line 7, in recurse_and_error
    recurse_and_error(depth - 1)
  [Previous line repeated 2 more times]
  File "/home/u/training/test-error.py", line 4, in recurse_and_error
    raise ValueError("Oops! Hit a crazy error!")
ValueError: Oops! Hit a crazy error!
{summary(0, 1)}""",
        culprits=("rank 0", None),
        said="ValueError",
    ),
    Seen(
        "key-error-in-a-loader",
        "cure-lab/MagicDrive#91",
        """\
Traceback (most recent call last):
  File "tools/train.py", line 131, in main
    runner.run()
  File "./magic/runner/base.py", line 365, in run
    for step, batch in enumerate(self.train_dataloader):
  File "/opt/conda/envs/m/lib/python3.7/site-packages/torch/utils/data/dataloader.py", line 521, in __next__
    data = self._next_data()
  File "/opt/conda/envs/m/lib/python3.7/site-packages/torch/_utils.py", line 434, in reraise
    raise exception
KeyError: Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/opt/conda/envs/m/lib/python3.7/site-packages/torch/utils/data/_utils/worker.py", line 287, in _worker_loop
    data = fetcher.fetch(index)
  File "./magic/dataset/nuscenes.py", line 88, in __getitem__
    return self.infos[index]["cams"]
KeyError: 'cams'

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.""",
        said="nuscenes.py:88",
    ),
    Seen(
        "died-with-a-signal",
        "pytorch/pytorch#29889",
        """\
Traceback (most recent call last):
  File "/home/u/.conda/envs/p/lib/python3.7/runpy.py", line 193, in _run_module_as_main
    "__main__", mod_spec)
  File "/home/u/.conda/envs/p/lib/python3.7/site-packages/torch/distributed/launch.py", line 249, in main
    cmd=cmd)
subprocess.CalledProcessError: Command '['/opt/python3', '-u', 'train.py', '--local_rank=7']' died with <Signals.SIGSEGV: 11>.""",
    ),
    Seen(
        "a-process-of-spawn-died",
        "NVlabs/stylegan2-ada-pytorch#190",
        """\
Evaluating metrics...
Traceback (most recent call last):
  File "train.py", line 548, in main
    torch.multiprocessing.spawn(fn=subprocess_fn, args=(args, temp_dir), nprocs=args.num_gpus)
  File "/opt/env/lib/python3.7/site-packages/torch/multiprocessing/spawn.py", line 130, in join
    signal_name=name
torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGSEGV""",
        culprits=(None, "process 0"),
    ),
    Seen(
        "a-segfault-with-its-stack",
        "pytorch/pytorch#135486",
        """\
0: g1002:2128869:2128880 [0] NCCL INFO Setting affinity for GPU 0 to ffff0000,00000000,ffff0000,00000000
0: Fatal Python error: Segmentation fault
0:
0: Thread 0x000014844b65d740 (most recent call first):
0:   File "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3938 in barrier
0:   File "/work/test/1.basic.py", line 11 in Main
0:
0: Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
0: E0909 14:03:50.013000 22579342468928 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -11) local_rank: 0 (pid: 2128869) of binary: /opt/env/bin/python""",
        culprits=("rank 0", "local rank 0", None),
    ),
    Seen(
        "exitcode-11-alone",
        "NVIDIA/Megatron-LM#1880",
        summary(0, -11, 6421, "Signal 11 (SIGSEGV) received by PID 6421"),
        culprits=("rank 0",),
    ),
    Seen(
        "a-loader-that-ends-without-a-word",
        "hpcaitech/Open-Sora#815",
        """\
[rank0]:   File "/opt/conda/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1144, in _try_get_data
[rank0]:     raise RuntimeError(f'DataLoader worker (pid(s) {pids_str}) exited unexpectedly') from e
[rank0]: RuntimeError: DataLoader worker (pid(s) 8864) exited unexpectedly
[rank0]:[W617 03:17:50.058147529 ProcessGroupNCCL.cpp:1168] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group
W0617 03:17:51.687000 140319081027392 torch/distributed/elastic/multiprocessing/api.py:858] Sending process 44 closing signal SIGTERM
E0617 03:17:51.725000 140319081027392 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: 1) local_rank: 0 (pid: 43) of binary: /opt/conda/bin/python""",
        culprits=("rank 0",),
    ),
    Seen(
        "a-device-side-assert",
        "modelscope/ms-swift#8371",
        """\
/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:413: masked_scatter_size_check: block: [0,0,0], thread: [0,0,0] Assertion `totalElements <= srcSize` failed.
[rank11]:[E318 09:26:18.141499142 ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0(default_pg) Rank 11] Process group watchdog thread terminated with exception: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Exception raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:42 (most recent call first):
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 11] Process group watchdog thread terminated with exception: CUDA error: device-side assert triggered""",
        culprits=("rank 11", None),
    ),
    Seen(
        "an-assert-that-the-watchdog-tells",
        "sgl-project/sglang#271",
        """\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG 1 Rank 1] Process group watchdog thread terminated with exception: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1.""",
        culprits=("rank 1", None),
    ),
    Seen(
        "nccl-meets-a-device-side-assert",
        "NVIDIA/nccl#1504",
        """\
678c7278cb2d:26024:27098 [1] include/alloc.h:125 NCCL WARN Cuda failure 710 'device-side assert triggered'
678c7278cb2d:26024:27098 [1] NCCL INFO include/alloc.h:246 -> 1
678c7278cb2d:26024:27098 [1] include/alloc.h:125 NCCL WARN Cuda failure 710 'device-side assert triggered'""",
        culprits=(None, "host 678c7278cb2d"),
    ),
    Seen(
        "an-argument-that-torch-2-writes-otherwise",
        "skycrapers/TecoGAN-PyTorch#31",
        """\
main.py: error: unrecognized arguments: --local-rank=0
main.py: error: unrecognized arguments: --local-rank=1
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 2) local_rank: 0 (pid: 622423) of binary: /opt/env/bin/python""",
        culprits=(None, "local rank 0"),
    ),
    Seen(
        "usage-and-no-torchrun",
        "FudanNLP/CPT#65",
        """\
usage: train_adgen.py [-h] [--model_path MODEL_PATH] [--dataset DATASET]
                      [--lr LR] [--batch_size BATCH_SIZE] [--epoch EPOCH]
train_adgen.py: error: unrecognized arguments: --local_rank=2
usage: train_adgen.py [-h] [--model_path MODEL_PATH] [--dataset DATASET]
train_adgen.py: error: unrecognized arguments: --local_rank=0
Traceback (most recent call last):
  File "/opt/miniconda/lib/python3.6/site-packages/torch/distributed/launch.py", line 260, in <module>
    main()
subprocess.CalledProcessError: Command '['/opt/miniconda/bin/python', '-u', 'train_adgen.py', '--local_rank=3']' returned non-zero exit status 2.""",
    ),
    Seen(
        "a-quota",
        "open-mmlab/mmdetection#12069",
        """\
12/09 06:49:23 - mmengine - INFO - Saving checkpoint at 14 epochs
Traceback (most recent call last):
  File "tools/train.py", line 122, in <module>
    main()
  File "/opt/env/lib/python3.8/site-packages/mmengine/hooks/checkpoint_hook.py", line 476, in _save_checkpoint
    runner.save_checkpoint(
OSError: [Errno 122] Disk quota exceeded""",
        said="OSError",
    ),
    Seen(
        "a-full-disk",
        "hiyouga/LlamaFactory#5155",
        f"""\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/src/train.py", line 9, in <module>
[rank1]:     main()
[rank1]:   File "/opt/env/lib/python3.10/site-packages/safetensors/torch.py", line 286, in save_file
[rank1]:     serialize_file(_flatten(tensors), filename, metadata=metadata)
[rank1]: safetensors_rust.SafetensorError: Error while serializing: IoError(Os {{ code: 28, kind: StorageFull, message: "No space left on device" }})
{summary(1, 1)}""",
        culprits=("rank 1",),
    ),
    Seen(
        "errno-28-while-a-checkpoint-is-written",
        "databrickslabs/dolly#139",
        """\
2023-04-29 06:01:12 ERROR [__main__] main failed
Traceback (most recent call last):
  File "/opt/conda/lib/python3.7/site-packages/torch/serialization.py", line 379, in save
    _save(obj, opened_zipfile, pickle_module, pickle_protocol)
  File "/opt/conda/lib/python3.7/site-packages/torch/serialization.py", line 604, in _save
    zip_file.write_record(name, storage.data_ptr(), num_bytes)
OSError: [Errno 28] No space left on device""",
    ),
    Seen(
        "open-mpi-and-a-segfault",
        "horovod/horovod#786",
        """\
[good:02773] *** Process received signal ***
[good:02773] Signal: Segmentation fault (11)
[good:02773] Signal code: Invalid permissions (2)
[good:02773] Failing at address: 0x7f1246cb4a00
[good:02773] [ 0] /lib/x86_64-linux-gnu/libpthread.so.0(+0x11390)[0x7f732e9c3390]""",
        culprits=(None, "host good"),
    ),
    Seen(
        "glibc-finds-its-heap-damaged",
        "horovod/horovod#4020",
        """\
free(): invalid next size (normal)
[node-0:391803] *** Process received signal ***
[node-0:391803] Signal: Aborted (6)
[node-0:391803] Signal code:  (-6)""",
        culprits=(None, "host node-0"),
    ),
    Seen(
        "hydra-ends-a-process-for-a-segfault",
        "openai/jukebox#155",
        """\
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 9665 RUNNING AT box
=   EXIT CODE: 139
=   CLEANING UP REMAINING PROCESSES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)""",
    ),
    Seen(
        "an-exception-that-mpi-ends-the-job-for",
        "horovod/horovod#1421",
        """\
[1,0]<stderr>:Traceback (most recent call last):
[1,0]<stderr>:  File "train.py", line 96, in <module>
[1,0]<stderr>:    app.run()
[1,0]<stderr>:  File "train.py", line 40, in main
[1,0]<stderr>:    model.load_weights(path)
[1,0]<stderr>:IndexError: list index out of range
[1,1]<stderr>:Aborted: Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished execution.
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[29973,1],0]
  Exit code:    1""",
        culprits=("rank 0",),
        said="train.py:40",
    ),
    Seen(
        "ray-and-an-import",
        "verl-project/verl#2593",
        """\
Error executing job with overrides: ['algorithm.adv_estimator=grpo']
Traceback (most recent call last):
  File "/src/verl/trainer/main_ppo.py", line 64, in main
    run_ppo(config)
  File "/opt/env/lib/python3.10/site-packages/ray/_private/worker.py", line 919, in get_objects
    raise value
ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, ray::WorkerDict.__init__() (pid=88, ip=10.9.0.7, actor_id=ab)
  File "/src/verl/workers/fsdp_workers.py", line 37, in <module>
    from verl.utils.model import compute_position_id_with_mask
ImportError: cannot import name 'compute_position_id_with_mask' from 'verl.utils.model'""",
        culprits=(None, "host 10.9.0.7"),
        said="ImportError",
    ),
    Seen(
        "a-box-of-rich",
        "bmaltais/kohya_ss#897",
        """\
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /src/train_network.py:974 in <module>                                         │
│ ❱ 974 │   trainer.train(args)                                                 │
│ /src/train_network.py:196 in train                                            │
│   195 │   │   if not torch.isfinite(loss):                                    │
│ ❱ 196 │   │   │   raise ValueError("loss is nan")                             │
╰──────────────────────────────────────────────────────────────────────────────╯
ValueError: loss is nan
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /opt/env/bin/accelerate:8 in <module>                                         │
│   245 │   │   │   raise ChildFailedError(                                     │
╰──────────────────────────────────────────────────────────────────────────────╯
ChildFailedError:
============================================================
train_network.py FAILED""",
        said="ValueError",
    ),
    Seen(
        "killed-alone",
        "lmzpai/roboMamba#10",
        summary(5, -9, 2630, "Signal 9 (SIGKILL) received by PID 2630"),
        cause="host_oom_kill",
        culprits=("rank 5",),
    ),
    Seen(
        "killed-alone-by-mpi",
        "Kay1794/Aware-of-the-history#2",
        """\
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
mpirun noticed that process rank 1 with PID 77 on node box exited on signal 9 (Killed).""",
        cause="host_oom_kill",
        culprits=("rank 1",),
    ),
]

# Seen after the rules were written.
LATER = [
    Seen(
        "lsf-tells-the-end-first",
        "a job's output under LSF",
        """\
Your job looked like:
# LSBATCH: User input
#BSUB -R "rusage[mem=20G]"
python main.py $LSB_PROJECT_NAME
Exited with exit code 1.
Resource usage summary:
    CPU time :                                   1.56 sec.
The output (if any) is above this job summary.

Traceback (most recent call last):
  File "main.py", line 28, in <module>
    debugger(nGames, addAgent, Thename, mainplayer)
  File "/home/u/game/debug.py", line 77, in debugger
    run(games)
AttributeError: 'Game' object has no attribute 'moves'""",
        said="debug.py:77",
    ),
    Seen(
        "lsf-and-memory",
        "a job's output under LSF",
        """\
Terminated at Thu Apr 30 15:53:57 2020
python main.py $LSB_PROJECT_NAME

TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.
Exited with exit code 137.""",
        cause="host_oom_kill",
    ),
    Seen(
        "a-variable-of-slurm",
        "facebookresearch/nougat#46",
        """\
Traceback (most recent call last):
  File "train.py", line 220, in <module>
    train(config)
  File "train.py", line 173, in train
    trainer = pl.Trainer(
  File "/opt/env/lib/python3.8/site-packages/pytorch_lightning/strategies/parallel.py", line 60, in node_rank
    return self.cluster_environment.node_rank() if self.cluster_environment is not None else 0
  File "/opt/env/lib/python3.8/site-packages/lightning_fabric/plugins/environments/slurm.py", line 133, in node_rank
    return int(os.environ["SLURM_NODEID"])
KeyError: 'SLURM_NODEID'""",
        said="train.py:173",
    ),
    Seen(
        "four-ranks-write-at-once",
        "a job's output under torchrun",
        f"""\
                     ^ with open(yaml_filename) as _file: ^
 ^  ^^  ^^^ ^^^ ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
^^^^^^FileNotFoundError^^^:
^[Errno 2] No such file or directory: '/work/u/config/e3sm.yaml'^
FileNotFoundErrorFileNotFoundError^: : ^[Errno 2] No such file or directory: '/work/u/config/e3sm.yaml'
^^^^
FileNotFoundError: [Errno 2] No such file or directory: '/work/u/config/e3sm.yaml'
{summary(0, 1)}""",
    ),
    Seen(
        "types-that-differ",
        "a job's output under torchrun",
        f"""\
  File "/opt/envs/far/lib/python3.8/site-packages/torch/nn/modules/linear.py", line 116, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: mat1 and mat2 must have the same dtype, but got Long and Half
    index = self.index_cond_embed(index)
  File "/opt/envs/far/lib/python3.8/site-packages/torch/nn/modules/linear.py", line 116, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: mat1 and mat2 must have the same dtype, but got Long and Half
{summary(0, 1)}""",
    ),
    Seen(
        "a-library-that-catches-signals",
        "cmusatyalab/openface#361",
        """\
Epoch: [2][14/250]
Magick: abort due to signal 11 (SIGSEGV) "Segmentation Fault"...
Aborted""",
    ),
    Seen(
        "a-loader-that-ended-with-code-1",
        "GrayboxTech/weightslab#111",
        """\
Step:   2%|    | 110/5000 [04:56<1:33:50,  1.15s/it, acc=33.20%]
03/03/2026-11:02:57.450 ERROR:backend.dataloader_interface:_next_batch: Error in _next_batch: DataLoader worker (pid 2804708) exited unexpectedly with exit code 1. Details are lost due to multiprocessing.
Traceback (most recent call last):
  File "/home/u/weightslab/backend/dataloader_interface.py", line 653, in _next_batch
    batch = next(self._iterator)
  File "/opt/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1437, in _next_data
    idx, data = self._get_data()
RuntimeError: DataLoader worker (pid 2804708) exited unexpectedly with exit code 1. Details are lost due to multiprocessing. Rerunning with num_workers=0 may give better error trace.""",
    ),
    Seen(
        "a-quota-at-exit",
        "a job's output under DeepSpeed",
        """\
[2024-09-21 14:30:55,673] [INFO] [launch.py:347:main] Process 4711 exits successfully.
Error in atexit._run_exitfuncs:
Traceback (most recent call last):
  File "/opt/env/lib/python3.9/site-packages/deepspeed/ops/transformer/inference/triton/matmul_ext.py", line 96, in put
    with open(self.file_path + ".tmp", 'wb') as handle:
OSError: [Errno 122] Disk quota exceeded: '/home/u/.triton/autotune/Fp16Matmul_2d_kernel.pickle.tmp'""",
        cause=None,
    ),
    Seen(
        "a-container-that-does-not-start",
        "NVIDIA/pyxis#138",
        """\
slurmstepd: error: pyxis: container start failed with error code: 1
slurmstepd: error: pyxis: printing enroot log file:
slurmstepd: error: pyxis:     nvidia-container-cli: container error: file lookup failed: permission denied
slurmstepd: error: pyxis: couldn't start container
slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
srun: error: gpu-1: task 0: Exited with exit code 1""",
        cause="processes_not_started",
        said="pyxis could not start the container",
    ),
    Seen(
        "a-broken-data-set-on-one-rank",
        "a job's output under torchrun",
        """\
[rank3]:     raise exception
[rank3]: soundfile.LibsndfileError: <exception str() failed>
W0921 00:45:35.396792 495335 site-packages/torch/distributed/elastic/multiprocessing/api.py:900] Sending process 495396 closing signal SIGTERM
E0921 00:45:35.400784 495335 site-packages/torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 3 (pid: 495404) of binary: /opt/env/bin/python3.9""",
        culprits=("rank 3",),
    ),
]
