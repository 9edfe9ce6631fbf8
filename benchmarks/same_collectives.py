"""A plain script for torchrun: the collectives that verify does, a warm-up and five repetitions of each, unchecked."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

REPETITIONS = 6  # with the warm-up; as many as verify does of what is quick


def run(op: str, size: int, world: int) -> Any:
    """One collective of `size` bytes as a function without arguments."""
    share = max(1, -(-size // 4 // world))
    whole, part = torch.ones(share * world), torch.ones(share)
    one = torch.ones(max(1, -(-size // 4)))
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
    for op, size in json.loads(plan):
        once = run(op, size, world)
        for _ in range(REPETITIONS):
            dist.barrier()
            once()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
