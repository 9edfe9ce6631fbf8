"""A job over gloo whose ranks do, one at a time, what a file on their host says.

«load» reads from a pipe in a data loader until something comes, «other» enters another collective,
«end» ends the job on all hosts.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(sys.argv[1])


class Samples(Dataset[Any]):
    """One sample, which a pipe has."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return len((FOLDER / "pipe").read_bytes())


def command() -> str:
    """Take what this rank is told to do, once."""
    path = FOLDER / "command"
    if not path.exists():
        return ""
    text = path.read_text()
    path.unlink()
    return text


dist.init_process_group("gloo")
flag = torch.zeros(1000)
while not flag[0]:
    told = command()
    if told == "load":
        list(DataLoader(Samples()))
    if told == "other":
        dist.broadcast(flag, 0)
    flag[0] = float(told == "end")
    dist.all_reduce(flag)
    (FOLDER / "begun").touch()
    time.sleep(0.02)
dist.destroy_process_group()
(FOLDER / "ended").touch()
