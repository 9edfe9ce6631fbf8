"""A script for GPUs, which fails without CUDA; with BACKEND the group is made before."""

import os

import torch
import torch.distributed as dist


def main():
    rank = int(os.environ["LOCAL_RANK"])
    if "BACKEND" in os.environ:
        dist.init_process_group(os.environ["BACKEND"])
    torch.cuda.set_device(rank)
    print(f"[rank {rank}] on {torch.cuda.get_device_name()}", flush=True)


if __name__ == "__main__":
    main()
