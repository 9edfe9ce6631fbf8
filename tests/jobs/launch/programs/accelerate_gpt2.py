"""A tiny GPT-2 of Hugging Face with random weights, trained by accelerate."""

import json
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

accelerator = Accelerator(cpu=True)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2))
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = DataLoader([torch.randint(0, 32, (16,)) for _ in range(32)], batch_size=2)
model, optimiser, data = accelerator.prepare(model, optimiser, data)
steps = 0
for batch in data:
    loss = model(input_ids=batch, labels=batch).loss
    accelerator.backward(loss)
    optimiser.step()
    optimiser.zero_grad()
    steps += 1
where = {"RANK": accelerator.process_index, "LOCAL_RANK": accelerator.local_process_index}
print(
    "table",
    json.dumps({**where, "WORLD_SIZE": accelerator.num_processes, "node": os.uname().nodename}),
    flush=True,
)
print("steps", steps, flush=True)
accelerator.end_training()
