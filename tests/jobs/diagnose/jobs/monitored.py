"""A monitored barrier before the first step; one rank loads a checkpoint and comes late."""

import os
import time
from datetime import timedelta

import torch.distributed as dist


def load_checkpoint(rank):
    print(f"[rank {rank}] loading /data/ckpt/step-4000/shard-{rank}.pt", flush=True)
    time.sleep(40 if rank == 2 else 1)


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    load_checkpoint(rank)
    dist.monitored_barrier(timeout=timedelta(seconds=8), wait_all_ranks=True)
    print(f"[rank {rank}] resumed", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
