"""Ranks over gloo that stop in a way of choice, and dump their flight recorder and stacks."""

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

play, out = sys.argv[1:3]
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
world = dist.get_world_size()
pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
mine = pairs[rank // 2]
stacks = open(f"{out}/{play}-fault-rank{rank}.txt", "w")  # noqa: SIM115 - open to the end
faulthandler.register(signal.SIGUSR1, file=stacks)


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(30)
        return index


def watch():
    time.sleep(float(os.environ.get("AFTER", "6")))
    with open(f"{out}/{play}-{rank}.pkl", "wb") as file:
        file.write(_dump_fr_trace())
    with open(f"{out}/{play}-{rank}.json", "wb") as file:
        file.write(_dump_fr_trace_json())
    os.kill(os.getpid(), signal.SIGUSR1)
    if spy := os.environ.get("PYSPY"):
        for flag, name in (("", "txt"), ("--json", "json")):
            with open(f"{out}/{play}-spy-{rank}.{name}", "w") as file:
                argv = [spy, "dump", *flag.split(), "--pid", str(os.getpid())]
                subprocess.run(argv, stdout=file, check=False)
    time.sleep(float(os.environ.get("LINGER", "2")))
    os._exit(0)


def step(batch):
    dist.all_reduce(batch)
    dist.all_reduce(batch, group=mine)


def evaluate(batch):
    dist.broadcast(batch, 0)


def train():
    batch = torch.ones(2048)
    for _ in range(5):
        step(batch)
    if play == "loads" and rank == 2:
        for _ in torch.utils.data.DataLoader(Slow(), batch_size=2):
            pass
    if play == "evaluates" and rank == 1:
        evaluate(batch)
    if play == "leaves" and rank == 1:
        time.sleep(30)
    if play == "crossed" and rank in (0, 1):
        # The two groups in another order on one rank.
        groups = [None, mine] if rank == 0 else [mine, None]
        for group in groups:
            dist.all_reduce(batch, group=group)
    if play == "first" and rank == 0:
        dist.barrier()
    step(batch)


threading.Thread(target=watch, daemon=True).start()
try:
    train()
except RuntimeError as error:
    print(rank, error)
if play == "healthy":
    dist.barrier()
time.sleep(30)
