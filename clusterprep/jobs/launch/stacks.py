"""Find the ranks that the others wait for, from the stacks that Python's fault handler prints.

At the time limit agents send SIGABRT, because the fault handler then prints stacks without a tool
on the node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

_HEAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.+)$')
_LIBRARY = re.compile(r"/(?:site-packages|dist-packages|lib/python\d[\d.]*)/|^<frozen ")
# Where Python code of torch waits for other ranks: in a collective, in the store, or in DDP's
# backward pass.
_WAITS = re.compile(r"/torch/(?:distributed/|autograd/graph\.py$|nn/parallel/distributed\.py$)")
_DUMP_BEGINS = "Fatal Python error: Aborted"


class Frame(Struct, frozen=True):
    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file} line {self.line} in {self.name}"


Stack = tuple[Frame, ...]


def stack_of(lines: Iterable[str]) -> Stack:
    """Return the frames of the main thread, innermost first; empty if no stack was printed.

    The fault handler prints the main thread last; of several dumps the last one counts.
    """
    frames: list[Frame] = []
    in_dump = False
    for line in lines:
        if line.endswith(_DUMP_BEGINS):
            in_dump = True
            frames = []
            continue
        if _HEAD.match(line):
            frames = []
            continue
        match = _FRAME.match(line) if in_dump else None
        if match:
            line_number = int(match["line"])
            frames.append(Frame(match["file"], line_number, match["name"]))
    return tuple(frames)


def innermost_user_frame(stack: Stack) -> Frame | None:
    """Return the innermost frame of the user's own program, else the innermost one of all."""
    for frame in stack:
        if not _LIBRARY.search(frame.file):
            return frame
    if stack:
        return stack[0]
    return None


def is_waiting(stack: Stack) -> bool:
    """Return True if the rank waits for other ranks."""
    return any(_WAITS.search(frame.file) for frame in stack)


def awaited_ranks(stacks: Mapping[int, Stack]) -> tuple[int, ...]:
    """Return the ranks that the others wait for.

    They are in another place than the waiting ones, and do not wait themselves. If the stacks show
    no such difference, they are the minority; empty if there is no majority.
    """
    places: dict[int, Frame | None] = {}
    for rank, stack in stacks.items():
        if stack:
            places[rank] = innermost_user_frame(stack)
    if len(set(places.values())) < 2:
        return ()
    busy: list[int] = []
    for rank in places:
        if not is_waiting(stacks[rank]):
            busy.append(rank)
    if 0 < len(busy) < len(places):
        return tuple(busy)
    common_place, count = Counter(places.values()).most_common(1)[0]
    if 2 * count <= len(places):
        return ()
    return tuple(rank for rank, place in places.items() if place != common_place)
