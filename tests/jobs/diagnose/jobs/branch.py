"""One rank finds its loss not finite and takes another way than the others."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def skip_batch(loss):
    """All ranks should hear of it; but only who skips calls this."""
    dist.broadcast(loss, src=0)


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    for step in range(5):
        loss = torch.tensor([float("nan") if (rank, step) == (1, 3) else 0.5])
        if loss.isfinite():
            dist.all_reduce(loss)
        else:
            skip_batch(loss)
        print(f"[rank {rank}] step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
