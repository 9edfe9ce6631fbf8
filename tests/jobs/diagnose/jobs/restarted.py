"""A job that fails once under torchrun's `--max-restarts 1`, and ends well the second time."""

import os

import torch
import torch.distributed as dist


def main():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("the first attempt fails")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(6):
        value = torch.ones(1)
        dist.all_reduce(value)
        print(f"[rank {rank}] step {step} sum {value.item():.0f}", flush=True)
    dist.destroy_process_group()
    print(f"[rank {rank}] Training completed", flush=True)


if __name__ == "__main__":
    main()
