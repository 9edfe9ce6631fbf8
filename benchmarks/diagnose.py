"""Measure how fast lines that matter are found in a large log, by several ways.

    python benchmarks/diagnose.py [MEGABYTES]

It makes four logs of its own (NCCL's INFO lines and steps, one warning a million times, random
hexadecimal digits, prose) and prints for each way seconds of CPU a gigabyte and the ratio to
`diagnose`. The first three ways say where the time would go; none of them finds everything that the
last one does.

Then it runs the command on logs of 2,048 ranks with NCCL_DEBUG=INFO of which one runs out of
memory, in one file, in a file for each rank and with a gigabyte of steps, and prints what was
wanted, what was seen and whether that holds.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clusterprep.jobs.diagnose.forms import WORDS
from clusterprep.jobs.diagnose.ranking import needles
from clusterprep.jobs.diagnose.sources import read
from tests.support.large_jobs import lines_of_rank, steps, traceback

BAD = "[rank3]: RuntimeError: CUDA error: invalid device ordinal\n"
ANY = re.compile(b"|".join(re.escape(word) for word in WORDS), re.IGNORECASE)


def info(source: random.Random, number: int) -> str:
    if number % 2:
        time = f"2031-02-{number % 28:02} 14:51:{number % 60:02}"
        return f"[{time}] [INFO] step {number} loss {source.random():.4f}"
    peers = f"{number % 8}[{number % 8}] -> {(number + 1) % 8}[{(number + 1) % 8}]"
    who = f"gpu-{source.randrange(64):02}:{source.randrange(99999)}:7 [{number % 8}]"
    return f"{who} NCCL INFO Channel 00/0 : {peers} via P2P"


def warnings(source: random.Random, number: int) -> str:
    return (
        f"gpu-{source.randrange(64):02}:{source.randrange(99999)}:7 [{number % 8}] "
        "misc/socket.cc:533 NCCL WARN socketPollConnect: "
        f"Connect to 10.9.0.{source.randrange(255)}<{source.randrange(60000)}> "
        "returned 113(No route to host)"
    )


def digits(source: random.Random, number: int) -> str:
    return f"tensor {source.randbytes(20).hex()} step {number}"


VOCABULARY = [
    f"{a}{b}{c}"
    for a in "bdfklmnprst"
    for b in "aeiou"
    for c in ("n", "rt", "st", "lling", "ck", "")
]


def prose(source: random.Random, number: int) -> str:
    return " ".join(source.choices([*VOCABULARY, "error", "invalid", "cannot", "closed"], k=14))


def every_line(path: Path) -> None:
    """A regular expression on each line."""
    with path.open("rb") as stream:
        for line in stream:
            ANY.search(line)


def whole_blocks(path: Path) -> None:
    """The same expression on blocks of four megabytes."""
    with path.open("rb") as stream:
        while block := stream.read(4 << 20):
            ANY.findall(block)


def each_word(path: Path) -> None:
    """bytes.find for each word on blocks of small letters."""
    with path.open("rb") as stream:
        while block := stream.read(4 << 20):
            low = block.lower()
            for word in WORDS:
                low.count(word)


def diagnose(path: Path) -> None:
    assert any(BAD.strip().encode() in row.text for row in read([str(path)], needles()).kept)


WAYS: tuple[Callable[[Path], None], ...] = (every_line, whole_blocks, each_word, diagnose)


def written(folder: Path, kind: Callable[[random.Random, int], str], size: int) -> Path:
    source, path = random.Random(3), folder / kind.__name__
    with path.open("w") as sink:
        while sink.tell() < size:
            sink.write("\n".join(kind(source, number) for number in range(10_000)) + "\n")
        sink.write(BAD)
    return path


RANKS = 2_048
FAILED = 1_777  # the rank that runs out of memory
# Runs the command and writes its peak of memory. It runs as a process of its own, because a process
# begins with the peak of the one that forked it.
MEASURED = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "clusterprep", "diagnose", "--format", "json", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""
ANSWER = ("rank_gpu_oom", f"rank {FAILED}")


@dataclass(frozen=True)
class Wanted:
    """A log, and the most seconds and MiB of memory that the command may take for it."""

    text: str
    make: Callable[[Path, int], Sequence[Path]]
    seconds: float
    memory: int


def one_file(folder: Path, size: int) -> Sequence[Path]:
    path = folder / "job.log"
    lines = [line for rank in range(RANKS) for line in lines_of_rank(rank, RANKS)]
    path.write_text("\n".join([*lines, *traceback(FAILED)]) + "\n")
    return (path,)


def file_of_each_rank(folder: Path, size: int) -> Sequence[Path]:
    paths: list[Path] = []
    for rank in range(RANKS):
        lines = lines_of_rank(rank, RANKS)
        if rank == FAILED:
            lines += traceback(rank)
        path = folder / f"{rank}.log"
        path.write_text("\n".join(lines) + "\n")
        paths.append(path)
    return paths


def large_file(folder: Path, size: int) -> Sequence[Path]:
    (path,) = one_file(folder, size)
    with path.open("a") as sink:
        number = 0
        while sink.tell() < size:
            sink.write("\n".join(steps(range(RANKS), number)) + "\n")
            number += 1
        sink.write("\n".join(traceback(FAILED)) + "\n")
    return (path,)


WANTED = (
    Wanted("2,048 ranks, one file", one_file, 5, 300),
    Wanted("2,048 ranks, 2,048 files", file_of_each_rank, 5, 300),
    Wanted("1 GB of 2,048 ranks", large_file, 10, 300),
)


def check(wanted: Wanted) -> bool:
    """Run the command on a log, print what was wanted and seen, and return whether that holds."""
    with tempfile.TemporaryDirectory() as folder:
        paths = wanted.make(Path(folder), 1_000_000_000)
        size = sum(path.stat().st_size for path in paths)
        started = time.monotonic()
        ran = subprocess.run(
            [sys.executable, "-c", MEASURED, *map(str, paths)],
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = time.monotonic() - started
    first = json.loads(ran.stdout)["causes"][0]
    right = (first["cause"], first["culprit"]) == ANSWER
    memory = int(ran.stderr) >> 10
    holds = right and seconds <= wanted.seconds and memory <= wanted.memory
    print(f"{wanted.text}, {size / 1e6:,.0f} MB")
    print(f"  wanted: {' '.join(ANSWER)}, {wanted.seconds} s, {wanted.memory} MiB")
    print(f"  seen:   {first['cause']} {first['culprit']}, {seconds:.1f} s, {memory} MiB")
    print(f"  {'holds' if holds else 'does not hold'}", flush=True)
    return holds


def main(megabytes: int = 100) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind in (info, warnings, digits, prose):
            path = written(Path(folder), kind, megabytes << 20)
            seconds = {}
            for way in WAYS:
                started = time.process_time()
                way(path)
                seconds[way.__name__] = (time.process_time() - started) / path.stat().st_size * 1e9
            own = seconds["diagnose"]
            row = "  ".join(
                f"{name} {took:6.1f} s/GB ({took / own:4.1f}x)" for name, took in seconds.items()
            )
            print(f"{kind.__name__:9} {row}", flush=True)
            path.unlink()
    held = [check(wanted) for wanted in WANTED]
    if not all(held):
        raise SystemExit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
