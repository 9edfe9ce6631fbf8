"""A data-parallel training script as in torch's tutorials, without anything of clusterprep."""

import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

NAMES = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "NCCL_DEBUG", "WORD"),
)

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
print(
    "table",
    json.dumps({**{name: os.environ.get(name) for name in NAMES}, "node": os.uname().nodename}),
    flush=True,
)
for step in range(3):
    optimiser.zero_grad()
    model(torch.full((2, 4), float(dist.get_rank()))).sum().backward()
    optimiser.step()
    print("step", step, flush=True)
total = torch.tensor([dist.get_rank()])
dist.all_reduce(total)
print("sum of ranks", int(total), flush=True)
dist.destroy_process_group()
