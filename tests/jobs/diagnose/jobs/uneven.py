"""One rank has fewer samples, so it begins its evaluation while the others have one more batch."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def evaluate(rank):
    print(f"[rank {rank}] evaluating", flush=True)
    time.sleep(60)


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    samples = torch.arange(rank, 40 if rank == 3 else 44, 4)
    print(f"[rank {rank}] {len(samples)} samples", flush=True)
    total = torch.zeros(1000)
    for step, sample in enumerate(samples):
        gradient = torch.full((1000,), float(sample))
        dist.all_reduce(gradient)
        total += gradient
        print(f"[rank {rank}] batch {step + 1}/{len(samples)}", flush=True)
    evaluate(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
