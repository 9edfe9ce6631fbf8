"""One rank writes where it must not, as a broken extension does."""

import ctypes
import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    for step in range(5):
        if (rank, step) == (1, 3):
            ctypes.memset(8, 0, 1)
        loss = torch.ones(1000)
        dist.all_reduce(loss)
        print(f"[rank {rank}] step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
