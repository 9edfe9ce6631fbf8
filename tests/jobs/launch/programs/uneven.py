"""Train on data of which rank 2 has less. With the argument «guarded» compare it first."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from clusterprep.guard import same_on_all_ranks

dist.init_process_group("gloo", timeout=timedelta(seconds=8))
batches = 4 if dist.get_rank() == 2 else 6
began = time.monotonic()
try:
    if sys.argv[1:] == ["guarded"]:
        same_on_all_ranks(batches, "batches")
    for _ in range(batches):
        dist.all_reduce(torch.ones(1000))
    dist.barrier()
    print("trained", flush=True)
finally:
    print(f"waited {time.monotonic() - began:.1f} s", flush=True)
