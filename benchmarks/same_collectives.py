"""A plain script for torchrun with the collectives of verify.

They have the same types and are done as often, and their results are not checked.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist


def run(op: str, size: int, dtype: torch.dtype, world: int) -> Any:
    """One collective of `size` bytes as a function without arguments."""
    count = max(1, -(-size // dtype.itemsize))
    share = max(1, -(-count // world))
    whole, part = torch.ones(share * world, dtype=dtype), torch.ones(share, dtype=dtype)
    one = torch.ones(count, dtype=dtype)
    known = {
        "all_reduce": lambda: dist.all_reduce(one),
        "broadcast": lambda: dist.broadcast(one, 0),
        "all_gather": lambda: dist.all_gather(list(whole.chunk(world)), part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "barrier": dist.barrier,
    }
    return known[op]


def main(plan: str) -> None:
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    for op, size, dtype, repetitions in json.loads(plan):
        once = run(op, size, getattr(torch, dtype), world)
        for _ in range(1 + repetitions):
            dist.barrier()
            once()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
