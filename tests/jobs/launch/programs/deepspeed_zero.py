"""A model trained by DeepSpeed's engine with ZeRO, as its getting-started page has it."""

import argparse
import json
import os

import deepspeed
import torch

NAMES = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "NCCL_DEBUG", "WORD"),
)

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
arguments = parser.parse_args()
model = torch.nn.Linear(4, 1)
settings = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}
engine, _, _, _ = deepspeed.initialize(
    model=model, optimizer=torch.optim.AdamW(model.parameters()), config=settings
)
given = {name: os.environ.get(name) for name in NAMES}
given["argument"] = arguments.local_rank
print("table", json.dumps({**given, "node": os.uname().nodename}), flush=True)
steps = 0
for _ in range(3):
    loss = engine(torch.full((2, 4), float(engine.global_rank))).sum()
    engine.backward(loss)
    engine.step()
    steps += 1
print("steps", steps, flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
