"""Measure how fast lines that matter are found in a large log, by several ways.

    python benchmarks/diagnose.py [MEGABYTES]

It makes four logs of its own (NCCL's INFO lines and steps, one warning a million times, random
hexadecimal digits, prose) and prints for each way seconds of CPU a gigabyte and the ratio to
`diagnose`. The first three ways say where the time would go; none of them finds everything that the
last one does.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from clusterprep.jobs.diagnose.ranking import needles
from clusterprep.jobs.diagnose.sources import WORDS, read

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
            print(f"{kind.__name__:9} {row}")
            path.unlink()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
