"""For training scripts: stop all ranks at once, with a reason, before they hang.

    from clusterprep.guard import rank_table, same_on_all_ranks, seed_everything

    seed_everything()                              # the seed of `clusterprep launch --seed`
    batches = same_on_all_ranks(len(loader), "batches")
    print(rank_table())

A collective that one rank does not enter hangs on all the others until a watchdog ends it and
blames the network. Ranks fall out of step when they have different amounts of data, so compare that
before the loop.

This file needs only torch and the standard library and is Python 3.8, so it can be copied into old
environments. Ranks meet in the store of torch.distributed. No collective is run, so any backend
will do and no rank can hang.

It imports nothing of clusterprep, and clusterprep imports nothing of it, because it runs in the
job's interpreter. Digests are its own: equal values may have unequal pickles.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import random
import reprlib
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

__all__ = ["GuardError", "rank_table", "same_on_all_ranks", "seed_everything"]

LIMIT = 5.0  # seconds that a rank waits for the others
SEED = "CLUSTERPREP_SEED"
_GRACE = 2.0  # seconds for a verdict to reach all ranks
_LONGEST = 200  # characters of a value in a message
# Seconds between two looks at the store at most. A thousand ranks then ask 20,000 times a second.
_SLOWEST = 0.05
_SIMPLE = frozenset({int, bool, float, complex, str, bytes, type(None)})

Value = TypeVar("Value")
Row = Any  # what a rank gives, or the verdict over all: a dictionary that json.dumps takes


class GuardError(RuntimeError):
    """Raised on every rank at once.

    `ranks` are those at fault, `values` is rank → its value, shortened.
    """

    def __init__(
        self, message: str, ranks: Sequence[int] = (), values: dict[int, str] | None = None
    ) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.values = values or {}


def same_on_all_ranks(
    value: Value, name: str = "", group: Any = None, limit: float = LIMIT
) -> Value:
    """Return the value if all ranks have the same. Raises GuardError on all ranks otherwise.

    The value may be a tensor, an array or anything that can be pickled. Values are the same if
    their types and contents are, on whatever device a tensor is, and in whatever order a dict or
    set is. Ranks that do not come within `limit` seconds of the first one are named too. `group` is
    a process group; ranks outside of it get the value back without a comparison.
    """
    own = {
        "rank": _rank(),
        "name": name,
        "digest": digest(value),
        "value": _shown(value),
    }
    verdict = _meet(
        own,
        _compare,
        name,
        group,
        limit,
    )
    if verdict is None or not verdict["message"]:
        return value
    message = verdict["message"]
    if not verdict.get("absent"):
        message += _differing_keys(value, name, group, limit)
    values = {}
    for rank, shown in verdict["values"].items():
        values[int(rank)] = shown  # JSON has made the ranks text
    raise GuardError(message, verdict["ranks"], values)


def seed_everything(seed: int | None = None) -> int:
    """Seed `random`, NumPy if it is installed, and torch with all its devices. Return the seed.

    The default is CLUSTERPREP_SEED, which `clusterprep launch --seed` sets. The order of sets and
    of other things that depend on hash() follows PYTHONHASHSEED, which Python reads when it starts.
    So a warning says if it was not set.
    """
    if seed is None:
        seed = _seed_of_launch()
    random.seed(seed)
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that most code uses
    torch.manual_seed(seed)  # all devices, also those that are first used later
    hash_seed = os.environ.get("PYTHONHASHSEED", "")
    if sys.flags.hash_randomization and not hash_seed.isdigit():
        message = "the order of sets of text differs from rank to rank"
        advice = "set PYTHONHASHSEED before Python starts"
        warnings.warn(f"{message}: {advice}", stacklevel=2)
    return seed


def _seed_of_launch() -> int:
    """Return the seed of `clusterprep launch --seed`. Raises GuardError if it is not set."""
    text = os.environ.get(SEED, "")
    if text.isdecimal():
        return int(text)
    seen = f"'{text}'" if text else "not set"
    advice = "give one, or start with `clusterprep launch --seed N`"
    raise GuardError(f"no seed: {advice} ({SEED} is {seen})")


class RankTable(list):  # type: ignore[type-arg]
    """One mapping for each rank, in order of ranks; as text it is a table."""

    def __str__(self) -> str:
        names = list(self[0])
        rows = [names]
        for row in self:
            rows.append([str(row[name]) for name in names])
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = []
        for row in rows:
            cells = map(str.ljust, row, widths)
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


def rank_table(group: Any = None, limit: float = LIMIT) -> RankTable:
    """Return a row per rank: rank, local rank, node, pid and GPU. The same table on all ranks."""
    own = {
        "rank": _rank(),
        "local_rank": int(os.environ.get("LOCAL_RANK", "0")),
        "node": os.uname().nodename,
        "pid": os.getpid(),
    }
    own.update(_device())
    answer = _meet(
        own,
        lambda rows: {"table": list(rows)},
        "rank_table",
        group,
        limit,
    )
    if answer is None:
        return RankTable([own])
    if "table" not in answer:
        raise GuardError(answer["message"], answer["ranks"])
    return RankTable(answer["table"])


def _device() -> dict[str, Any]:
    """Return name and UUID of the GPU that this process uses by default."""
    if not torch.cuda.is_available():
        return {
            "device": "cpu",
            "uuid": None,
        }
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None) or "not told"  # torch has it since 2.3
    return {
        "device": f"cuda:{index} {properties.name}",
        "uuid": str(uuid),
    }


# ---------------------------------------------------------------- digests of values


def digest(value: object, above: tuple[int, ...] = ()) -> str:
    """Return the SHA-256 of a value's type and content.

    Pickles are not compared, because equal values may have different ones. `above` holds the ids of
    the values around this one.
    """
    checksum = hashlib.sha256()
    for piece in _pieces(value, above):
        checksum.update(piece)
    return checksum.hexdigest()


def _pieces(value: Any, above: tuple[int, ...]) -> Iterator[Any]:
    """Yield the bytes of a value, each part after its kind and length.

    A value that contains itself is written as how many levels above it is.
    """
    if id(value) in above:
        levels = len(above) - above.index(id(value))
        yield b"circle%d;" % levels
        return
    kind = _name(type(value)).encode()
    plain = _plain(value)
    if plain is not None:
        yield b"%s %d;" % (kind, len(plain))
        yield plain
    elif isinstance(value, torch.Tensor):
        yield from _tensor_pieces(value)
    elif _is_array(value):
        yield from _array_pieces(value, above)
    else:
        yield b"%s(" % kind
        yield from _parts(value, (*above, id(value)))
        yield b")"


def _is_array(value: Any) -> bool:
    """Return whether a value is of NumPy. If NumPy was not imported, no value is."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _array_pieces(value: Any, above: tuple[int, ...]) -> Iterator[Any]:
    """Yield type, shape and content of a NumPy array or number."""
    yield f"array {value.dtype.str} {value.shape};".encode()
    if value.dtype.hasobject:
        yield from _pieces(value.tolist(), above)
    else:
        yield value.tobytes()


def _parts(value: Any, above: tuple[int, ...]) -> Iterator[Any]:
    """Yield the bytes of a container's items, or of an object's state."""
    kind = type(value)
    if kind in (dict, set, frozenset):
        items = value.items() if kind is dict else value
        digests = [digest(item, above).encode() for item in items]
        # The order of the items means nothing, so their digests are sorted.
        yield from sorted(digests)
        return
    items = value if kind in (list, tuple) else _reduced(value)
    for item in items:
        yield from _pieces(item, above)
        yield b","


def _plain(value: Any) -> bytes | None:
    """Return Python's notation of a simple value, which is unique, or None for other kinds."""
    kind = type(value)
    if kind in _SIMPLE:
        return repr(value).encode()
    if kind in (list, tuple) and set(map(type, value)) <= _SIMPLE:
        return repr(value).encode()
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return _name(value).encode()
    return None


def _tensor_pieces(value: torch.Tensor) -> Iterator[Any]:
    """Yield type, shape and bytes of a tensor; a meta tensor has no bytes."""
    yield f"tensor {value.dtype} {tuple(value.shape)};".encode()
    if value.is_meta:
        return
    dense = value.detach()
    if dense.layout is not torch.strided:
        dense = dense.to_dense()
    resolved = dense.cpu().resolve_conj().resolve_neg()
    local = resolved.contiguous()
    size = local.numel() * local.element_size()
    if size:
        # The memory itself needs no copy, and no NumPy, which has no bfloat16.
        memory = (ctypes.c_char * size).from_address(local.data_ptr())
        yield memoryview(memory)


def _reduced(value: Any) -> Sequence[Any]:
    """Return what pickle keeps of an object: how to make it, its state, its items."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception as error:
        kind = _name(type(value))
        message = f"{kind} cannot be compared between ranks, as it cannot be pickled: {error}"
        raise TypeError(message) from error
    if isinstance(reduced, str):
        return (reduced,)
    make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    return make, arguments, state, list(items or ()), dict(pairs or ())


def _name(thing: Any) -> str:
    module = getattr(thing, "__module__", "")
    qualified = getattr(thing, "__qualname__", repr(type(thing)))
    return f"{module}.{qualified}"


def _shown(value: Any) -> str:
    """Return a value as a message shows it: short, without writing all of a large one first."""
    if isinstance(value, torch.Tensor):
        return _shown_tensor(value)[:_LONGEST]
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _LONGEST // 2
    short.maxdict = short.maxlist = short.maxtuple = short.maxset = 8
    text = short.repr(value)
    if len(text) <= _LONGEST:
        return text
    return text[: _LONGEST - 1] + "…"


def _shown_tensor(value: torch.Tensor) -> str:
    first: list[Any] = []
    if not value.is_meta and value.layout is torch.strided:
        flat = value.detach().flatten()
        first = flat[:6].tolist()
    numbers = ", ".join(map(str, first))
    if value.numel() > len(first):
        numbers += ", …"
    shape = tuple(value.shape)
    return f"tensor of {shape}, {value.dtype}: {numbers}"


# ---------------------------------------------------------------- verdicts


def _compare(rows: Sequence[Row]) -> Row:
    """Return the verdict about the rows of all ranks, with an empty message if they are equal."""
    ranks_by_name: dict[str, list[int]] = {}
    ranks_by_digest: dict[str, list[int]] = {}
    by_rank: dict[int, Row] = {}
    values: dict[int, str] = {}
    for row in rows:
        rank = row["rank"]
        ranks_by_name.setdefault(row["name"], []).append(rank)
        ranks_by_digest.setdefault(row["digest"], []).append(rank)
        by_rank[rank] = row
        values[rank] = row["value"]
    if len(ranks_by_name) > 1:
        return _verdict(_out_of_step(ranks_by_name), _minority(ranks_by_name), values)
    if len(ranks_by_digest) == 1:
        return _verdict("", (), {})
    name = rows[0]["name"]
    subject = f"'{name}'" if name else "a value"
    message = f"{subject} is not the same on all ranks"
    blamed = _minority(ranks_by_digest)
    if len(blamed) < len(rows):
        verb = "differs" if len(blamed) == 1 else "differ"
        message += f"; {ranks_text(blamed)} {verb} from most"
    parts = []
    for ranks in sorted(ranks_by_digest.values(), key=len):  # the smallest group first
        parts.append(_has(ranks, by_rank[ranks[0]]))
    return _verdict(f"{message}: {'; '.join(parts)}", blamed, values)


def _out_of_step(ranks_by_name: dict[str, list[int]]) -> str:
    """Return the message for ranks that are at guards of different names."""
    places = []
    for name, ranks in ranks_by_name.items():
        places.append(f"{ranks_text(ranks)} at '{name}'")
    return f"the ranks are at different guards, so they are out of step: {'; '.join(places)}"


def _differing_keys(value: Any, name: str, group: Any, limit: float) -> str:
    """Return at which keys dictionaries differ, as the end of a message.

    All ranks know that their values differ, so all of them come here and compare the parts.
    """
    digests = {}
    if type(value) is dict:
        for key, part in value.items():
            text = str(key)[:_LONGEST]
            digests[text] = digest(part)[:16]
    keys: list[str] = []
    with contextlib.suppress(GuardError):
        verdict = _meet(
            digests,
            _compare_keys,
            name,
            group,
            limit,
        )
        keys = verdict.get("keys", [])
    if not keys:
        return ""
    text = ", ".join(keys[:8])
    if len(keys) > 8:
        text += ", …"
    return f"; they differ at {text}"


def _compare_keys(rows: Sequence[Row]) -> Row:
    """Return the verdict about rows of key → digest: the keys that differ between ranks."""
    digests: dict[str, set[str | None]] = {}
    for row in rows:
        for key in row:
            if key not in digests:
                digests[key] = {other.get(key) for other in rows}
    differing = [key for key, distinct in digests.items() if len(distinct) > 1]
    return {"keys": differing}


def _has(ranks: Sequence[int], row: Row) -> str:
    """Return "rank 3 has VALUE (sha256 DIGEST)" for ranks with equal rows."""
    verb = "has" if len(ranks) == 1 else "have"
    checksum = row["digest"][:8]
    return f"{ranks_text(ranks)} {verb} {row['value']} (sha256 {checksum})"


def _minority(groups: dict[str, list[int]]) -> list[int]:
    """Return the ranks outside a strict majority, or all ranks if there is none."""
    total = sum(map(len, groups.values()))
    largest = max(groups.values(), key=len)
    has_majority = 2 * len(largest) > total
    ranks: list[int] = []
    for members in groups.values():
        if members is not largest or not has_majority:
            ranks.extend(members)
    return sorted(ranks)


def _verdict(message: str, ranks: Sequence[int], values: dict[int, str]) -> Row:
    """Return a verdict: an empty message, or what is wrong, the ranks at fault, value by rank."""
    return {
        "message": message,
        "ranks": list(ranks),
        "values": values,
    }


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as 'ranks 0-2,5'."""
    texts: list[str] = []
    first = last = -2  # no rank, and no neighbour of one
    for rank in sorted(ranks):
        if rank == last + 1:
            texts[-1] = f"{first}-{rank}"
        else:
            first = rank
            texts.append(str(rank))
        last = rank
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {','.join(texts)}"


# ---------------------------------------------------------------- how ranks meet


# How often the ranks of a group have met.
_calls: dict[tuple[int, ...], int] = {}


def _initialised() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def _rank() -> int:
    if _initialised():
        return int(dist.get_rank())
    return int(os.environ.get("RANK", "0"))


def _meet(
    own: Row, judge: Callable[[Sequence[Row]], Row], name: str, group: Any, limit: float
) -> Row:
    """Return the verdict about the rows of all ranks, the same on all; None without other ranks.

    It is done in a thread, because a store whose host is gone or hangs would block for minutes.
    """
    ranks = _ranks(group)
    if len(ranks) < 2:
        return None
    _calls[ranks] = _calls.get(ranks, 0) + 1
    meeting = Meeting(
        _store(),
        ranks,
        _calls[ranks],
        name,
        limit,
    )
    answers: list[Any] = []

    def run() -> None:
        try:
            answer = meeting.verdict(own, judge)
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread
            answer = error
        answers.append(answer)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit + 2 * _GRACE)
    store = "the store of torch.distributed, mostly on rank 0,"
    message = f"no answer at {_guard_text(name)}: {store}"
    if not answers:
        raise GuardError(f"{message} stands still")
    answer = answers[0]
    if isinstance(answer, Exception):
        # torch 2.0 gives up a slow connection with these words; newer releases wait longer than
        # this.
        state = "stands still" if "Socket Timeout" in str(answer) else "is gone"
        raise GuardError(f"{message} {state} ({answer})") from answer
    return answer


def _guard_text(name: str) -> str:
    return f"the guard '{name}'" if name else "a guard"


def _ranks(group: Any) -> tuple[int, ...]:
    """Return the global ranks of a group; none if this process is not in it, or is alone."""
    if not _initialised():
        world = os.environ.get("WORLD_SIZE", "1")
        if world == "1":
            return ()
        message = f"there are {world} ranks and no process group yet"
        raise GuardError(f"{message}: call init_process_group first")
    if group is None:
        return tuple(range(dist.get_world_size()))
    if dist.get_rank(group) < 0:
        return ()
    return tuple(dist.get_process_group_ranks(group))


def _store() -> Any:
    # torch has no public way to the store of its own groups.
    from torch.distributed import distributed_c10d

    default = distributed_c10d._get_default_store()  # noqa: SLF001
    return dist.PrefixStore("clusterprep-guard", default)


class Meeting:
    """One meeting of some ranks in a store, of which it uses only set, get and add.

    The last rank to come, or the first whose time is over, judges for all. The others poll for its
    verdict.
    """

    def __init__(
        self, store: Any, ranks: tuple[int, ...], number: int, name: str, limit: float
    ) -> None:
        self.store = store
        self.ranks = ranks
        self.name = name
        self.limit = limit
        self.place = ranks.index(dist.get_rank())
        group = hashlib.sha256(repr(ranks).encode())
        self.prefix = f"{group.hexdigest()[:12]}/{number}"

    def verdict(self, own: Row, judge: Callable[[Sequence[Row]], Row]) -> Row:
        """Return the verdict, the same on all ranks. `own` is the row of this rank."""
        end = time.monotonic() + self.limit
        self.write(f"row{self.place}", own)
        self.add(f"here{self.place}", 1)
        if self.add("arrived", 1) == len(self.ranks):
            self.decide(lambda: judge(self.rows()))
        pause = 0.001
        while not self.add("decided", 0):
            if time.monotonic() > end:
                self.decide(self.judge_absent)
                end += _GRACE
            time.sleep(pause)
            pause = min(2 * pause, _SLOWEST)
        answer = self.read("verdict")
        self.leave(len(answer.get("absent", ())))
        return answer

    def key(self, what: str) -> str:
        return f"{self.prefix}/{what}"

    def add(self, what: str, amount: int) -> int:
        """Add to a counter of this meeting, and return its value."""
        value: int = self.store.add(self.key(what), amount)
        return value

    def write(self, what: str, row: Row) -> None:
        self.store.set(self.key(what), json.dumps(row))

    def read(self, what: str) -> Row:
        """Return what a rank writes. Waits until it is written."""
        return json.loads(self.store.get(self.key(what)))

    def decide(self, judge: Callable[[], Row]) -> None:
        """Publish a verdict, if no other rank does."""
        if self.add("judges", 1) == 1:
            self.write("verdict", judge())
            self.add("decided", 1)

    def rows(self) -> list[Row]:
        return [self.read(f"row{place}") for place in range(len(self.ranks))]

    def judge_absent(self) -> Row:
        """Return the verdict when the time is over: the ranks that did not come are at fault."""
        absent: list[int] = []
        present: list[int] = []
        for place, rank in enumerate(self.ranks):
            if self.add(f"here{place}", 0):
                present.append(rank)
            else:
                absent.append(rank)
        guard = _guard_text(self.name)
        message = f"{ranks_text(absent)} did not come to {guard}"
        message += f" within {self.limit:g} s of {ranks_text(present)}"
        verdict = _verdict(message, absent, {})
        verdict["absent"] = absent
        return verdict

    def leave(self, absent: int) -> None:
        """Leave the meeting, to which `absent` ranks did not come.

        The first rank, which mostly hosts the store, waits for the others and clears up.
        """
        parted = self.add("parted", 1)
        if self.place != 0:
            return
        present = len(self.ranks) - absent
        end = time.monotonic() + _GRACE
        while parted < present and time.monotonic() < end:
            time.sleep(0.001)
            parted = self.add("parted", 0)
        if parted == len(self.ranks):
            self.clear()

    def clear(self) -> None:
        """Delete the keys of this meeting."""
        keys = ["arrived", "judges", "decided", "verdict", "parted"]
        for place in range(len(self.ranks)):
            keys += [f"row{place}", f"here{place}"]
        for key in keys:
            # Not every store can delete, and nothing depends on it.
            with contextlib.suppress(RuntimeError):
                self.store.delete_key(self.key(key))
