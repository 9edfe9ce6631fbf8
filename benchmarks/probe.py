"""Measure what one full look costs a node, in CPU time and memory of the agent and all it starts.

    python benchmarks/probe.py [--repeat N]

Prints medians of N looks at this machine with every check's reads, and the same for an interpreter
that only starts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clusterprep.model import Inventory, Node, Read
from clusterprep.remote import bootstrap
from clusterprep.remote.transports.link import FrameReader
from clusterprep.survey import registry
from clusterprep.survey.queries import Queries, plan_queries

NONCE = "0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class Cost:
    wall: float  # seconds
    cpu: float  # seconds, user and system, with all children
    # MiB, the most that the agent itself held; what it starts shares its pages or is smaller
    memory: float


def all_reads() -> tuple[Read, ...]:
    """What `check` asks of a node with this interpreter as the job's."""
    node = Node("here", "127.0.0.1", 0, python=sys.executable)
    plan = plan_queries(tuple(registry.checks().values()), registry.facts())
    return Queries(plan, Inventory("here", (node,))).of(node).reads


def look(asked: tuple[Read, ...]) -> Callable[[], Cost]:
    import json

    parts = (*bootstrap.parts_for({read.kind for read in asked}), "dial")
    request = {
        "id": 1,
        "op": "look",
        "reads": [[read.kind, list(read.args), read.limit] for read in asked],
    }
    source = bootstrap.payload(NONCE, parts) + json.dumps(request).encode() + b"\n"

    def run() -> Cost:
        return measured(["/bin/sh", "-c", bootstrap.command()], source)

    return run


def measured(argv: list[str], source: bytes) -> Cost:
    """Run to the first answer, or to the end, and count every process that was reaped."""
    began = time.monotonic()
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(source)
    process.stdin.flush()
    reader, answered = FrameReader(NONCE), not source
    while not answered:
        answered = any(
            "id" in frame for frame in reader.feed(os.read(process.stdout.fileno(), 1 << 16))
        )
    if not source:
        time.sleep(0.03)
    wall = time.monotonic() - began
    memory = peak(process.pid)
    process.stdin.close()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    process.stdout.close()
    return Cost(wall, usage.ru_utime + usage.ru_stime, memory)


def peak(pid: int) -> float:
    """MiB; not the rusage of wait4, which remembers what this process held when it forked."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=9)
    repeat = parser.parse_args().repeat
    asked = all_reads()
    contenders = {
        f"a look with {len(asked)} reads": look(asked),
        "an interpreter that only starts": lambda: measured(
            ["/usr/bin/python3", "-ISB", "-c", "import time; time.sleep(0.05)"], b""
        ),
    }
    for name, contender in contenders.items():
        costs = [contender() for _ in range(repeat)]
        wall, cpu, memory = (
            statistics.median(getattr(c, key) for c in costs) for key in ("wall", "cpu", "memory")
        )
        print(f"{name:34} {wall * 1000:7.0f} ms  {cpu * 1000:7.0f} ms CPU  {memory:6.1f} MiB")


if __name__ == "__main__":
    main()
