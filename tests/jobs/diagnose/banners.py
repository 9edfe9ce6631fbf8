"""What jobs print of their settings before they begin: words of failures that tell of none.

Composed after what argparse, Hydra, transformers, DeepSpeed, Megatron, Slurm prologues and `env`
print; each has names and values that also occur in messages of failures.
"""

from __future__ import annotations

BANNERS = {
    "namespace": (
        "Namespace(backend='nccl', ddp_timeout=1800, timeout=600, nccl_timeout_s=7200, "
        "abort_on_error=True, max_retries=3, error_file=None, resume_from='ckpt-last', "
        "oom_score=0, kill_after=30, rdzv_timeout=900, ignore_failed_steps=False, seed=42)\n"
    ),
    "training-arguments": (
        "TrainingArguments(\n_n_gpu=1,\nddp_backend=nccl,\nddp_bucket_cap_mb=None,\n"
        "ddp_timeout=1800,\nddp_find_unused_parameters=False,\nignore_data_skip=False,\n"
        "log_level=warning,\nlogging_nan_inf_filter=True,\nskip_memory_metrics=True,\n"
        "torch_empty_cache_steps=None,\nfp16_full_eval=False,\n)\n"
    ),
    "json": (
        '{"train_batch_size": 64, "timeout": 900, "zero_optimization": {"stage": 3, '
        '"offload_optimizer": {"device": "cpu", "pin_memory": true}}, "fp16": {"enabled": true, '
        '"loss_scale": 0, "hysteresis": 2, "consecutive_hysteresis": false, "min_loss_scale": 1}, '
        '"comms_logger": {"enabled": false}, "elasticity": {"ignore_non_elastic_batch_info": '
        'false}, "nebula": {"persistent_time_interval": 100}, "error_on_missing": false}\n'
    ),
    "environment": (
        "NCCL_DEBUG=WARN\nNCCL_IB_TIMEOUT=22\nNCCL_IB_RETRY_CNT=7\nNCCL_SOCKET_IFNAME=eth0\n"
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1\nTORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1200\n"
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1\nTORCHELASTIC_ERROR_FILE=/opt/job/error.json\n"
        "SLURM_JOB_KILL_ON_BAD_EXIT=1\nPYTHONFAULTHANDLER=1\nHYDRA_FULL_ERROR=1\n"
        "CUDA_LAUNCH_BLOCKING=0\nMASTER_ADDR=10.4.0.11\nMASTER_PORT=29500\n"
    ),
    "trace": (
        "+ export NCCL_IB_TIMEOUT=23\n+ NCCL_IB_TIMEOUT=23\n+ ulimit -l unlimited\n"
        "+ srun --kill-on-bad-exit=1 --signal=TERM@120 python train.py --on-oom abort "
        "--error-policy raise --watchdog-timeout 600 --retry-on-timeout\n"
    ),
    "megatron": (
        "------------------------ arguments ------------------------\n"
        "  adlr_autoresume ................................. False\n"
        "  check_for_nan_in_loss_and_grad .................. True\n"
        "  distributed_timeout_minutes ..................... 10\n"
        "  error_injection_rate ............................ 0\n"
        "  exit_signal_handler ............................. False\n"
        "  exit_on_missing_checkpoint ...................... False\n"
        "  inprocess_hard_timeout .......................... 90\n"
        "  rerun_mode ...................................... disabled\n"
        "-------------------- end of arguments ---------------------\n"
    ),
    "yaml": (
        "trainer:\n  strategy: ddp\n  timeout: 0:30:00\n  on_exception: raise\n  fail_fast: true\n"
        "fault_tolerance:\n  max_restarts: 3\n  kill_timeout_s: 60\n  abort_hung_ranks: true\n"
        "logging:\n  level: ERROR\n  file: errors.log\nerror_rate_limit: 0.0\n"
    ),
    "help": (
        "usage: train.py [-h] [--timeout SECONDS] [--on-error {abort,skip}] [--oom-retries N]\n\n"
        "options:\n  --timeout SECONDS      give up after this long; a rank that timed out is "
        "restarted\n  --on-error {abort,skip}\n                         what to do with a sample "
        "that cannot be read\n  --oom-retries N        halve the batch if CUDA is out of memory\n"
    ),
    "notes": (
        "# README of this run\n# If you see 'CUDA out of memory' take a smaller batch.\n"
        "# If it hangs with 'Watchdog caught collective operation timeout' look at rank 0 first.\n"
    ),
}
