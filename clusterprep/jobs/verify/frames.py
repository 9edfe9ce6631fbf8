"""What agents tell of processes, held to what an agent of ours writes: a node may be anybody's. Pure.

A node speaks of its own ranks alone, in words that are known, and what is judged by has the type that it is judged as.
Whatever else a frame holds is left as it is: it is shown and never counted with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from clusterprep.remote.untrusted import require_integer, require_number, require_text

FRAME_KEYS = ("rank", "what", "mono", "wall")
MOST_BYTES = (
    64 << 20
)  # that a node may say in one trial; thousands of steps of eight ranks are some megabytes
LONGEST = 4096  # characters of one word for word
MOST_LINES = 4096  # lines in one message
SIGNALS = 64
Value = Callable[[Any], object]


def _or_none(value: Value) -> Value:
    return lambda given: None if given is None else value(given)


def _word(given: Any) -> object:
    return require_text(given, LONGEST)


def _size(given: Any) -> object:
    return require_integer(given)


def _lines(given: Any) -> object:
    if (
        not isinstance(given, list)
        or len(given) > MOST_LINES
        or not all(isinstance(line, str) for line in given)
    ):
        raise ValueError(f"{given!r:.40} is no list of lines")
    return given


def _items(given: Any) -> object:
    if not isinstance(given, dict) or not all(map(_is_item, given.values())):
        raise ValueError(f"{given!r:.40} are no belongings")
    return given


def _is_item(item: Any) -> bool:
    """A text, or why there is none, which is a list of one (remote/belongings.py)."""
    return isinstance(item, (str, type(None))) or (
        isinstance(item, list) and all(isinstance(w, str) for w in item)
    )


def _first(given: Any) -> object:
    """The first wrong element of a collective."""
    keys: Mapping[str, Value] = {
        "index": _size,
        "seen": _word,
        "wanted": float,
        "source": _or_none(_size),
    }
    return _held(given, keys)


def _gpu(given: Any) -> object:
    return _held(
        given,
        {
            "uuid": _word,
            "index": _size,
            "pci": _word,
            "numa": _or_none(lambda numa: require_integer(numa, -1)),
        },
    )


def _held(given: Any, keys: Mapping[str, Value]) -> object:
    if not isinstance(given, dict):
        raise ValueError(f"{given!r:.40} is no object")  # noqa: TRY004 - bad data, not a bad call
    for key, value in keys.items():
        value(given.get(key))
    return given


_COLLECTIVE: Mapping[str, Value] = {"op": _word, "bytes": _size}
# Of each kind of event what has to be there, and below what may be.
NEEDED: Mapping[str, Mapping[str, Value]] = {
    **{
        what: {}
        for what in (
            "spawned",
            "started",
            "no_torch",
            "imported",
            "no_cuda",
            "ready",
            "store",
            "joined",
        )
    },
    **{
        what: {}
        for what in ("met", "finished", "error", "parted", "holds", "nccl", "exit", "closed")
    },
    **dict.fromkeys(("entered", "warmed"), _COLLECTIVE),
    "left": {**_COLLECTIVE, "seconds": require_number, "wrong": _size},
    "state": {"state": _word},
    "lines": {"lines": _lines},
}
ALLOWED: Mapping[str, Value] = {
    "dtype": _word,
    "best": require_number,
    "own": require_number,
    "first": _or_none(_first),
    "gpu": _or_none(_gpu),
    "part": _word,
    "items": _items,
    "lines": _lines,
    "cut": _size,
    "left_out": _size,
    "name": _word,
    "signal": lambda given: require_integer(given, 1, SIGNALS),
    "code": lambda given: require_integer(given, -SIGNALS, 255),
    "output": lambda given: require_text(given, 1 << 20),
}


def event_of(
    frame: Mapping[str, Any], ranks: Collection[int]
) -> tuple[str, int | None, dict[str, Any]]:
    """What, of which rank, and the rest of a frame. Raises ValueError for what no agent tells of these ranks."""
    what, rank = require_text(frame.get("what"), 20), frame.get("rank")
    if what not in NEEDED:
        raise ValueError(f"an event {what!r}, which is none")
    if rank is not None and (type(rank) is not int or rank not in ranks):
        raise ValueError(f"an event of rank {rank!r:.20}, which is not there")
    data = {key: value for key, value in frame.items() if key not in FRAME_KEYS}
    for key, value in NEEDED[what].items():
        value(data.get(key))
    for key, given in data.items():
        if key in ALLOWED:
            ALLOWED[key](given)
    if what == "exit" and not {"signal", "code"} & set(data):
        raise ValueError("an end without a number")
    return what, rank, data
