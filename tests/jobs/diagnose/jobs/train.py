"""Data-parallel steps on the CPU. REST is a pause after each step, LOAD one before the first."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

STEPS = int(os.environ.get("STEPS", "30"))


def main():
    rank = int(os.environ["RANK"])
    print(f"[rank {rank}] loading the data", flush=True)
    time.sleep(float(os.environ.get(f"LOAD{rank}", os.environ.get("LOAD", "0"))))
    limit = timedelta(seconds=float(os.environ.get("LIMIT", "15")))
    dist.init_process_group("gloo", timeout=limit)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 256)).square().mean()
        loss.backward()
        optimizer.step()
        print(f"[rank {rank}] step {step} loss {loss.item():.6f}", flush=True)
        time.sleep(float(os.environ.get("REST", "0.3")))
    dist.destroy_process_group()
    print(f"[rank {rank}] done", flush=True)


if __name__ == "__main__":
    main()
