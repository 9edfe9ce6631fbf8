"""Every rank opens all the shards of its data set at once."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    shards = [open(f"/tmp/shard-{rank}-{number:04}.bin", "w+b") for number in range(500)]  # noqa: SIM115
    print(f"[rank {rank}] {len(shards)} shards", flush=True)
    for step in range(5):
        loss = torch.ones(1000)
        dist.all_reduce(loss)
        print(f"[rank {rank}] step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
