"""Where ranks hang, from what Python's fault handler prints of each: who waits for others is not the one waited for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from clusterprep.runtime.lazy_dataclass import dataclass

_HEAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.+)$')
_LIBRARY = re.compile(r"/(?:site-packages|dist-packages|lib/python\d[\d.]*)/|^<frozen ")
# Where Python code of torch waits for other ranks: in a collective, in the store, or in a backward of DDP.
_WAITS = re.compile(r"/torch/(?:distributed/|autograd/graph\.py$|nn/parallel/distributed\.py$)")
_DUMPED = "Fatal Python error: Aborted"


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file} line {self.line} in {self.name}"


def stack_of(lines: Iterable[str]) -> tuple[Frame, ...]:
    """Frames of the main thread, innermost first: the last one of the last dump; empty where there is none."""
    frames: list[Frame] = []
    dumped = False
    for line in lines:
        if line.endswith(_DUMPED):
            dumped, frames = True, []
        elif _HEAD.match(line):
            frames = []
        elif dumped and (found := _FRAME.match(line)):
            frames.append(Frame(found["file"], int(found["line"]), found["name"]))
    return tuple(frames)


def own(stack: tuple[Frame, ...]) -> Frame | None:
    """The innermost line of the user's own program."""
    return next(
        (frame for frame in stack if not _LIBRARY.search(frame.file)), stack[0] if stack else None
    )


def waits(stack: tuple[Frame, ...]) -> bool:
    """Whether it waits for other ranks."""
    return any(_WAITS.search(frame.file) for frame in stack)


def odd(stacks: Mapping[int, tuple[Frame, ...]]) -> tuple[int, ...]:
    """The ranks that the others wait for: elsewhere than they are, and not waiting; without such, the minority."""
    places = {rank: own(stack) for rank, stack in stacks.items() if stack}
    if len(set(places.values())) < 2:
        return ()
    waiting = [rank for rank in places if waits(stacks[rank])]
    if waiting and len(waiting) < len(places):
        return tuple(rank for rank in places if rank not in waiting)
    place, count = Counter(places.values()).most_common(1)[0]
    return (
        tuple(rank for rank, mine in places.items() if mine != place)
        if 2 * count > len(places)
        else ()
    )
