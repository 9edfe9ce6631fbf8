"""Validate what agents tell of processes: a node may run any program in place of our agent. Pure.

A node may speak of its own ranks alone, in kinds of events that are known, and every value that is
judged has its type checked. All other values of a frame stay as they are: they are shown and never
computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from clusterprep.remote.untrusted import require_integer, require_number, require_text

FRAME_KEYS = ("rank", "what", "mono", "wall")
# Bytes that a node may send in one trial, and values and keys in them. Eight ranks that run a
# hundred collectives send 300 KB with 20,000 values.
MOST_BYTES = 8 << 20
MOST_VALUES = 400_000
LONGEST = 4096  # characters of a short text
LONGEST_LINE = 64 << 10  # characters; an agent of ours sends longer ones in pieces
LONGEST_OUTPUT = 64 << 10  # characters of what a process printed last
MOST_LINES = 4096  # lines in one message
SIGNALS = 64
Check = Callable[[Any], object]  # raises ValueError for a value of the wrong type or size


def _or_none(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _short_text(value: Any) -> object:
    return require_text(value, LONGEST)


def _output(value: Any) -> object:
    return require_text(value, LONGEST_OUTPUT)


def _size(value: Any) -> object:
    return require_integer(value)


def _numa_node(value: Any) -> object:
    return require_integer(value, -1)


def _signal(value: Any) -> object:
    return require_integer(value, 1, SIGNALS)


def _exit_code(value: Any) -> object:
    return require_integer(value, -SIGNALS, 255)


def _lines(value: Any) -> object:
    if not _is_list_of_texts(value) or len(value) > MOST_LINES:
        raise ValueError(f"{value!r:.40} is no list of lines")
    if any(len(line) > LONGEST_LINE for line in value):
        raise ValueError(f"a line has more than {LONGEST_LINE:,} characters")
    return value


def _items(value: Any) -> object:
    if not isinstance(value, dict) or not all(map(_is_item, value.values())):
        raise ValueError(f"{value!r:.40} are no belongings")
    return value


def _is_item(item: Any) -> bool:
    """Accept a text, or why there is none, which is a list of one (remote/belongings.py)."""
    if item is None or isinstance(item, str):
        return True
    return _is_list_of_texts(item)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


_FIRST_WRONG: Mapping[str, Check] = {
    "index": _size,
    "seen": _short_text,
    "wanted": float,
    "source": _or_none(_size),
}
_GPU: Mapping[str, Check] = {
    "uuid": _short_text,
    "index": _or_none(_size),
    "pci": _short_text,
    "numa": _or_none(_numa_node),
}


def _first_wrong_element(value: Any) -> object:
    return _object(value, _FIRST_WRONG)


def _gpu(value: Any) -> object:
    return _object(value, _GPU)


def _object(value: Any, checks: Mapping[str, Check]) -> object:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.40} is no object")  # noqa: TRY004 - bad data, not a bad call
    for key, check in checks.items():
        check(value.get(key))
    return value


# Kinds of events without data that must be there.
_PLAIN = (
    "spawned",
    "started",
    "no_torch",
    "imported",
    "no_cuda",
    "ready",
    "store",
    "joined",
    "met",
    "finished",
    "error",
    "parted",
    "working",
    "holds",
    "nccl",
    "exit",
    "closed",
)
_NOTHING: Mapping[str, Check] = {}
_COLLECTIVE: Mapping[str, Check] = {"op": _short_text, "bytes": _size}
# For each kind of event the data that must be there.
NEEDED: Mapping[str, Mapping[str, Check]] = {
    **dict.fromkeys(_PLAIN, _NOTHING),
    "entered": _COLLECTIVE,
    "warmed": _COLLECTIVE,
    "left": {**_COLLECTIVE, "seconds": require_number, "wrong": _size},
    "state": {"state": _short_text},
    "lines": {"lines": _lines},
}
# For all events the data that may be there and are computed with.
ALLOWED: Mapping[str, Check] = {
    "dtype": _short_text,
    "best": require_number,
    "own": require_number,
    "first": _or_none(_first_wrong_element),
    "gpu": _or_none(_gpu),
    "part": _short_text,
    "items": _items,
    "lines": _lines,
    "cut": _size,
    "left_out": _size,
    "name": _short_text,
    "signal": _signal,
    "code": _exit_code,
    "output": _output,
}


def parse_frame(
    frame: Mapping[str, Any], ranks: Collection[int]
) -> tuple[str, int | None, dict[str, Any]]:
    """Return the kind of an event, its rank, and the other data of a frame.

    Raises ValueError for what an agent of ours never sends about these ranks.
    """
    what = require_text(frame.get("what"), 20)
    if what not in NEEDED:
        raise ValueError(f"an event {what!r}, which is none")
    rank = frame.get("rank")
    if rank is not None:
        is_number = type(rank) is int  # True and False are none
        if not is_number or rank not in ranks:
            raise ValueError(f"an event of rank {rank!r:.20}, which is not there")
    data = {key: value for key, value in frame.items() if key not in FRAME_KEYS}
    for key, check in NEEDED[what].items():
        check(data.get(key))
    for key, value in data.items():
        if key in ALLOWED:
            ALLOWED[key](value)
    has_number = "signal" in data or "code" in data
    if what == "exit" and not has_number:
        raise ValueError("an end without a number")
    return what, rank, data
