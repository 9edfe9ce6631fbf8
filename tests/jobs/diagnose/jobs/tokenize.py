"""Rank 0 prepares the data for all, which takes longer than the others are willing to wait."""

import os
import time
from datetime import timedelta

import torch.distributed as dist


def prepare():
    for share in range(0, 100, 5):
        bar = "#" * (share // 10)
        done = f"{share * 4440}/444000"
        print(f"Running tokenizer on dataset: {share:3}%|{bar:<10}| {done}", flush=True)
        time.sleep(1)


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    if rank == 0:
        prepare()
    dist.barrier()
    print(f"[rank {rank}] dataset ready", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
