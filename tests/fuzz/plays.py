"""The inputs of each target: seeds, earlier findings, and for some seconds mutations of both."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

TARGETS = ("agent", "inventory", "playbook", "conf", "logs")
FINDINGS = Path(__file__).parent / "findings"
LONGEST = 4096  # bytes of an input that is made


def target(name: str) -> Any:
    return import_module(f"tests.fuzz.{name}")


def found(name: str) -> list[Path]:
    """Every finding that was kept."""
    return sorted(path for path in (FINDINGS / name).glob("*") if path.name != ".keep")


def mutants(seeds: Sequence[bytes], words: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Yield mutations of the seeds without end, the same ones for the same seed number.

    A few times something is put into a seed, taken out, doubled or changed.
    """
    draw = random.Random(seed)
    while True:
        data = bytearray(draw.choice(seeds))
        for _ in range(draw.choice((1, 1, 2, 3, 5))):
            _change(draw, data, seeds, words)
        yield bytes(data[:LONGEST])


def _change(
    draw: random.Random, data: bytearray, seeds: Sequence[bytes], words: Sequence[bytes]
) -> None:
    at = draw.randrange(len(data) + 1)
    upto = min(len(data), at + draw.choice((1, 1, 4, 16, 64)))
    kind = draw.randrange(5)
    if kind == 0:
        data[at:upto] = b""
    elif kind == 1:
        data[at:at] = draw.choice(words)
    elif kind == 2:
        data[at:upto] = draw.choice(words)
    elif kind == 3:
        data[at:at] = data[at:upto] * draw.choice((1, 2, 50))
    elif at < len(data):
        data[at] = draw.randrange(256)
