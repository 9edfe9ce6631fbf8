"""Jobs that are only simulated: what each rank's flight recorder holds after a fault.

Ranks run their calls in order, some calls ahead of those that have ended, as with NCCL. A call ends
once all members of its group have entered it.
"""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

NOW = 1_790_000_000.0  # seconds since 1970: when the last call ended
TIMEOUT = 600.0
SIZES = (4_096, 8_192, 100_000, 250_000)


@dataclass(frozen=True)
class Call:
    group: str
    op: str
    size: int
    line: int
    dtype: str = "Float"


@dataclass
class Job:
    """The calls of each rank, and the members of each group."""

    groups: dict[str, tuple[int, ...]]
    calls: dict[int, list[Call]]
    ahead: int = 1  # calls that a rank may have entered and not ended
    entered: dict[int, int] = field(default_factory=dict)
    ended: dict[int, set[int]] = field(default_factory=dict)

    def run(self) -> None:
        """Run until no rank can go on."""
        ranks = range(len(self.calls))
        self.entered = dict.fromkeys(ranks, 0)
        self.ended = {rank: set() for rank in ranks}
        moves = True
        while moves:
            moved = [self._step(rank) for rank in ranks]
            moves = any(moved)

    def _step(self, rank: int) -> bool:
        moved = False
        pending = self.entered[rank] - len(self.ended[rank])
        if pending < self.ahead and self.entered[rank] < len(self.calls[rank]):
            self.entered[rank] += 1
            moved = True
        for index in range(self.entered[rank]):
            if index not in self.ended[rank] and self._can_end(rank, index):
                self.ended[rank].add(index)
                moved = True
        return moved

    def _can_end(self, rank: int, index: int) -> bool:
        call = self.calls[rank][index]
        number = self.number(rank, index)
        for other in self.groups[call.group]:
            theirs = [c for c in self.calls[other][: self.entered[other]] if c.group == call.group]
            if len(theirs) < number:
                return False
            match = theirs[number - 1]
            if (match.op, match.size, match.dtype) != (call.op, call.size, call.dtype):
                return False
        earlier = [i for i in range(index) if self.calls[rank][i].group == call.group]
        return all(i in self.ended[rank] for i in earlier)

    def number(self, rank: int, index: int) -> int:
        """Return the sequence number of a call within its group."""
        group = self.calls[rank][index].group
        return sum(call.group == group for call in self.calls[rank][: index + 1])


def healthy(seed: int) -> Job:
    """Return a job of random size with a group of all, groups of pairs, and steps that repeat."""
    draw = random.Random(seed)
    world = draw.choice((2, 3, 4, 6, 8, 16))
    groups: dict[str, tuple[int, ...]] = {"0": tuple(range(world))}
    if world % 2 == 0 and draw.random() < 0.7:
        for first in range(0, world, 2):
            groups[str(1 + first // 2)] = (first, first + 1)
    step = [
        (draw.random() < 0.4, draw.choice(("all_reduce", "_all_gather_base")), draw.choice(SIZES))
        for _ in range(draw.randint(2, 5))
    ]
    steps = draw.randint(3, 9)
    calls: dict[int, list[Call]] = {}
    for rank in range(world):
        pairs = [name for name, members in groups.items() if name != "0" and rank in members]
        rows: list[Call] = []
        for _ in range(steps):
            for line, (in_pair, op, size) in enumerate(step, 40):
                group = pairs[0] if in_pair and pairs else "0"
                rows.append(Call(group, op, size, line))
        calls[rank] = rows
    return Job(groups, calls, ahead=draw.choice((1, 1, 3, 8)))


def world_calls(job: Job, rank: int) -> list[int]:
    """Return the indexes of the rank's calls in the group of all, without the first and last."""
    return [index for index, call in enumerate(job.calls[rank]) if call.group == "0"][1:-1]


def plant(job: Job, fault: str, rank: int, index: int) -> None:
    """Plant a fault at one call of a rank."""
    rows = job.calls[rank]
    call = rows[index]
    if fault == "behind":
        del rows[index:]
    elif fault == "another operation":
        rows[index] = replace(call, op="broadcast", line=90)
    elif fault == "another size":
        rows[index] = replace(call, size=call.size + 128)
    elif fault == "another type":
        rows[index] = replace(call, dtype="BFloat16")
    elif fault == "one more":
        rows.insert(index, Call("0", "barrier", 1, 91))
    else:
        raise ValueError(fault)


# ---------------------------------------------------------------- dumps


def document(job: Job, rank: int, version: str, *, kept: int = 2_000) -> Any:
    """Return what the recorder of a rank holds, in the shape of a version of the format."""
    entries: list[dict[str, Any]] = []
    for index in range(job.entered[rank]):
        entries.append(_entry(job, rank, index, version))
    entries = entries[-kept:]
    if version == "list":
        return entries
    config = {}
    for name, members in job.groups.items():
        if rank in members:
            description = "default_pg" if name == "0" else "undefined"
            config[name] = {"name": name, "desc": description, "ranks": str(list(members))}
    return {"version": version, "entries": entries, "pg_config": config, "pg_status": {}}


def _entry(job: Job, rank: int, index: int, version: str) -> dict[str, Any]:
    call = job.calls[rank][index]
    is_done = index in job.ended[rank]
    last = job.entered[rank]
    created = NOW - (last - index) * 0.2
    number = job.number(rank, index)
    entry: dict[str, Any] = {
        "record_id": index,
        "pg_id": int(call.group),
        "process_group": (call.group, "default_pg" if call.group == "0" else "undefined"),
        "profiling_name": f"nccl:{call.op}",
        "time_created_ns": int(created * 1e9),
        "input_sizes": [[call.size]],
        "output_sizes": [[call.size]],
        "input_dtypes": [call.dtype],
        "output_dtypes": [call.dtype],
        "state": "completed" if is_done else "started",
        "timeout_ms": int(TIMEOUT * 1000),
        "retired": is_done,
        "frames": [
            {
                "name": call.op,
                "filename": "/opt/env/lib/python3.11/site-packages/torch/distributed/c10d.py",
                "line": 7,
            },
            {"name": "step", "filename": "/home/user/train.py", "line": call.line},
        ],
    }
    if version == "list":
        entry["seq_id"] = number
        del entry["process_group"]
    else:
        entry |= {"collective_seq_id": number, "p2p_seq_id": 0, "op_id": index}
    if version not in {"list", "2.0", "2.1"}:
        entry["is_p2p"] = False
    return entry


def write(
    job: Job,
    folder: Path,
    version: str = "2.10",
    *,
    names: str = "nccl_trace_rank_{}",
    as_json: bool = False,
    without: Sequence[int] = (),
    after: float = TIMEOUT,
    kept: int = 2_000,
) -> list[str]:
    """Write the dumps of all ranks and return their names. They are written `after` the stall."""
    files: list[str] = []
    for rank in job.calls:
        if rank in without:
            continue
        content: Mapping[str, Any] = document(job, rank, version, kept=kept)
        path = folder / names.format(rank)
        if as_json:
            entries = content["entries"] if isinstance(content, dict) else content
            for entry in entries:
                del entry["frames"]
            path.write_text(json.dumps(content))
        else:
            path.write_bytes(pickle.dumps(content, protocol=2))
        os.utime(path, (NOW + after, NOW + after))
        files.append(str(path))
    return files


def log(job: Job) -> str:
    """Return what torch 2.5 prints when the calls that did not end time out."""
    rows: list[str] = []
    for rank in job.calls:
        for index in range(job.entered[rank]):
            if index in job.ended[rank]:
                continue
            call = job.calls[rank][index]
            number = job.number(rank, index)
            op = call.op.upper().replace("ALL_", "ALL")
            rows.append(
                f"[rank{rank}]:[E101 12:00:0{rank % 10}.000000000 ProcessGroupNCCL.cpp:616] [Rank "
                f"{rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, "
                f"OpType={op}, NumelIn={call.size}, NumelOut={call.size}, Timeout(ms)=600000) ran "
                "for 600029 milliseconds before timing out."
            )
            break
    return "\n".join(rows) + "\n"
