"""For training scripts: stops all ranks at once, with a reason, where they would otherwise wait for each other.

    from clusterprep.guard import rank_table, same_on_all_ranks, seed_everything

    seed_everything()                              # the seed of `clusterprep launch --seed`
    batches = same_on_all_ranks(len(loader), "batches")
    print(rank_table())

A collective that one rank does not enter hangs on all the others until a watchdog ends it and blames the network. Ranks
fall out of step when they hold different amounts of data, so compare that before the loop.

This file needs torch and the standard library alone and is Python 3.8, so that it can be copied into old environments.
Ranks meet in the store of torch.distributed: no collective is run, so that any backend will do and nobody can hang.
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
_GRACE = 2.0  # seconds for the answer to reach everybody, once there is one
_LONGEST = 200  # letters of a value in a message
_SLOWEST = 0.05  # seconds between two looks; a thousand ranks then ask 20,000 times a second
_SIMPLE = frozenset({int, bool, float, complex, str, bytes, type(None)})

Value = TypeVar("Value")
Row = Any  # what json can hold


class GuardError(RuntimeError):
    """Raised on every rank at once. `ranks` are those at fault, `values` what each rank had, shortened."""

    def __init__(
        self, message: str, ranks: Sequence[int] = (), values: dict[int, str] | None = None
    ) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.values = values or {}


def same_on_all_ranks(
    value: Value, name: str = "", group: Any = None, limit: float = LIMIT
) -> Value:
    """Gives the value back where all ranks have the same; else raises GuardError on all of them.

    The value may be a tensor, an array or anything that can be pickled. Two are the same where their types and contents
    are, wherever a tensor lies and whatever the order of a dictionary or a set. Ranks that are not there `limit`
    seconds after the first one are named too. `group` is a process group; whoever is outside gets the value unseen.
    """
    own = {"rank": _rank(), "name": name, "digest": digest(value), "value": _shown(value)}
    verdict = _meet(own, _compare, name, group, limit)
    if verdict is not None and verdict["message"]:
        values = {int(rank): shown for rank, shown in verdict["values"].items()}
        where = "" if verdict.get("absent") else _where(value, name, group, limit)
        raise GuardError(verdict["message"] + where, verdict["ranks"], values)
    return value


def seed_everything(seed: int | None = None) -> int:
    """Seeds `random`, NumPy where it is installed, and torch with all its devices; gives the seed.

    The default is CLUSTERPREP_SEED, which `clusterprep launch --seed` sets. The order of sets and of other things that
    depend on hash() follows PYTHONHASHSEED, which Python reads when it starts, so a warning says where it was not set.
    """
    text = os.environ.get(SEED, "")
    if seed is None and not text.isdecimal():
        seen = f"'{text}'" if text else "not set"
        raise GuardError(
            f"no seed: give one, or start with `clusterprep launch --seed N` ({SEED} is {seen})"
        )
    seed = int(text) if seed is None else seed
    random.seed(seed)
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.seed(seed % 2**32)  # noqa: NPY002 - the one that everybody uses without a word
    torch.manual_seed(seed)  # all devices, also those that are first used later
    if sys.flags.hash_randomization and not os.environ.get("PYTHONHASHSEED", "").isdigit():
        message = "the order of sets of text differs from rank to rank: set PYTHONHASHSEED before Python starts"
        warnings.warn(message, stacklevel=2)
    return seed


class RankTable(list):  # type: ignore[type-arg]
    """One mapping for each rank, in order of ranks; as text it is a table."""

    def __str__(self) -> str:
        names = list(self[0])
        rows = [names, *([str(row[name]) for name in names] for row in self)]
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def rank_table(group: Any = None, limit: float = LIMIT) -> RankTable:
    """Where every rank runs: rank, local rank, node, pid, and its GPU. The same table on all ranks."""
    own = {
        "rank": _rank(),
        "local_rank": int(os.environ.get("LOCAL_RANK", "0")),
        "node": os.uname().nodename,
    }
    own.update(pid=os.getpid(), **_device())
    answer = _meet(own, lambda rows: {"table": list(rows)}, "rank_table", group, limit)
    if answer is not None and "table" not in answer:
        raise GuardError(answer["message"], answer["ranks"])
    return RankTable([own] if answer is None else answer["table"])


def _device() -> dict[str, Any]:
    """The GPU that this process would use now."""
    if not torch.cuda.is_available():
        return {"device": "cpu", "uuid": None}
    index = torch.cuda.current_device()
    about = torch.cuda.get_device_properties(index)
    return {
        "device": f"cuda:{index} {about.name}",
        "uuid": str(getattr(about, "uuid", None) or "not told"),
    }


# ---------------------------------------------------------------- what is alike


def digest(value: object, above: tuple[int, ...] = ()) -> str:
    """SHA-256 of type and content. Pickles are not used: equal values may have unequal ones."""
    found = hashlib.sha256()
    for piece in _pieces(value, above):
        found.update(piece)
    return found.hexdigest()


def _pieces(value: Any, above: tuple[int, ...]) -> Iterator[Any]:
    """The bytes that make up a value, each part with its kind and length in front; `above` finds circles."""
    if id(value) in above:
        yield b"circle%d;" % (len(above) - above.index(id(value)))
        return
    plain = _plain(value)
    if plain is not None:
        yield b"%s %d;" % (_name(type(value)).encode(), len(plain))
        yield plain
    elif isinstance(value, torch.Tensor):
        yield from _tensor(value)
    elif "numpy" in sys.modules and isinstance(
        value, (sys.modules["numpy"].ndarray, sys.modules["numpy"].generic)
    ):
        yield f"array {value.dtype.str} {value.shape};".encode()
        yield from _pieces(value.tolist(), above) if value.dtype.hasobject else (value.tobytes(),)
    else:
        yield b"%s(" % _name(type(value)).encode()
        if type(value) in (dict, set, frozenset):
            parts = value.items() if type(value) is dict else value  # their order means nothing
            yield from sorted(digest(part, (*above, id(value))).encode() for part in parts)
        else:
            for part in value if type(value) in (list, tuple) else _reduced(value):
                yield from _pieces(part, (*above, id(value)))
                yield b","
        yield b")"


def _plain(value: Any) -> bytes | None:
    """What Python writes such a value as, which tells all of them apart; None for other kinds."""
    kind = type(value)
    if kind in _SIMPLE or (kind in (list, tuple) and set(map(type, value)) <= _SIMPLE):
        return repr(value).encode()
    named = isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
    return _name(value).encode() if named else None


def _tensor(value: torch.Tensor) -> Iterator[Any]:
    yield f"tensor {value.dtype} {tuple(value.shape)};".encode()
    if value.is_meta:
        return
    dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
    here = dense.cpu().resolve_conj().resolve_neg().contiguous()
    size = here.numel() * here.element_size()
    if size:
        # The memory itself: it asks neither for NumPy, which knows no bfloat16, nor for a copy.
        yield memoryview((ctypes.c_char * size).from_address(here.data_ptr()))


def _reduced(value: Any) -> Sequence[Any]:
    """What pickle would keep: how to make the object, its state, its items."""
    try:
        kept = value.__reduce_ex__(4)
    except Exception as error:
        message = f"{_name(type(value))} cannot be compared between ranks, as it cannot be pickled: {error}"
        raise TypeError(message) from error
    if isinstance(kept, str):
        return (kept,)
    make, arguments, state, items, pairs = (*kept, None, None, None)[:5]
    return make, arguments, state, list(items or ()), dict(pairs or ())


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', repr(type(thing)))}"


def _shown(value: Any) -> str:
    """A value in a message: short, and without the work of writing all of a large one."""
    if isinstance(value, torch.Tensor):
        first = (
            []
            if value.is_meta or value.layout is not torch.strided
            else value.detach().flatten()[:6].tolist()
        )
        more = ", …" if value.numel() > len(first) else ""
        return f"tensor of {tuple(value.shape)}, {value.dtype}: {', '.join(map(str, first))}{more}"[
            :_LONGEST
        ]
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _LONGEST // 2
    short.maxdict = short.maxlist = short.maxtuple = short.maxset = 8
    text = short.repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


# ---------------------------------------------------------------- what follows


def _compare(rows: Sequence[Row]) -> Row:
    """The verdict about all ranks' rows: an empty message where they are alike."""
    names: dict[str, list[int]] = {}
    digests: dict[str, list[int]] = {}
    for row in rows:
        names.setdefault(row["name"], []).append(row["rank"])
        digests.setdefault(row["digest"], []).append(row["rank"])
    of = {row["rank"]: row for row in rows}
    values = {rank: row["value"] for rank, row in of.items()}
    if len(names) > 1:
        said = "; ".join(f"{ranks_text(ranks)} at '{name}'" for name, ranks in names.items())
        return _verdict(
            f"the ranks are at different guards, so they are out of step: {said}",
            _odd(names),
            values,
        )
    if len(digests) == 1:
        return _verdict("", (), {})
    what = f"'{rows[0]['name']}'" if rows[0]["name"] else "a value"
    said = "; ".join(_has(ranks, of[ranks[0]]) for ranks in sorted(digests.values(), key=len))
    odd = _odd(digests)
    blamed = (
        f"; {ranks_text(odd)} differ{'s' if len(odd) == 1 else ''} from most"
        if len(odd) < len(rows)
        else ""
    )
    return _verdict(f"{what} is not the same on all ranks{blamed}: {said}", odd, values)


def _where(value: Any, name: str, group: Any, limit: float) -> str:
    """The keys at which dictionaries differ: all ranks know by now that something does, and tell the parts."""

    def differing(rows: Sequence[Row]) -> Row:
        every = {key: {row.get(key) for row in rows} for asked in rows for key in asked}
        return {"keys": [key for key, digests in every.items() if len(digests) > 1]}

    parts = (
        {str(key)[:_LONGEST]: digest(part)[:16] for key, part in value.items()}
        if type(value) is dict
        else {}
    )
    keys: list[str] = []
    with contextlib.suppress(GuardError):
        keys = _meet(parts, differing, name, group, limit).get("keys", [])
    return f"; they differ at {', '.join(keys[:8])}{', …' if len(keys) > 8 else ''}" if keys else ""


def _has(ranks: Sequence[int], row: Row) -> str:
    return f"{ranks_text(ranks)} {'has' if len(ranks) == 1 else 'have'} {row['value']} (sha256 {row['digest'][:8]})"


def _odd(groups: dict[str, list[int]]) -> list[int]:
    """Everybody outside a strict majority; all of them where there is none, as nobody knows who is right."""
    total = sum(map(len, groups.values()))
    most = max(groups.values(), key=len)
    return sorted(
        rank
        for ranks in groups.values()
        if ranks is not most or 2 * len(most) <= total
        for rank in ranks
    )


def _verdict(message: str, ranks: Sequence[int], values: dict[int, str]) -> Row:
    return {"message": message, "ranks": list(ranks), "values": values}


def ranks_text(ranks: Sequence[int]) -> str:
    """'ranks 0-2,5'."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if not runs or rank > runs[-1][1] + 1:
            runs.append([rank, rank])
        runs[-1][1] = rank
    numbers = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank{'' if len(ranks) == 1 else 's'} {numbers}"


# ---------------------------------------------------------------- how ranks meet


_calls: dict[tuple[int, ...], int] = {}  # how often the ranks of a group have met


def _initialised() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def _rank() -> int:
    return dist.get_rank() if _initialised() else int(os.environ.get("RANK", "0"))


def _meet(
    own: Row, judge: Callable[[Sequence[Row]], Row], name: str, group: Any, limit: float
) -> Row:
    """The verdict about the rows of all ranks, the same for everybody; None where this process is alone.

    All of it happens in a thread, as a store whose host has gone or stands still would hold it for minutes.
    """
    ranks = _ranks(group)
    if len(ranks) < 2:
        return None
    number = _calls[ranks] = _calls.get(ranks, 0) + 1
    meeting = Meeting(_store(), ranks, number, name, limit)
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(meeting.verdict(own, judge))
        except Exception as error:  # noqa: BLE001 - told in the caller's thread
            answers.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit + 2 * _GRACE)
    where = f"the guard '{name}'" if name else "a guard"
    if not answers:
        raise GuardError(
            f"no answer at {where}: the store of torch.distributed, mostly on rank 0, stands still"
        )
    if isinstance(answers[0], Exception):
        # torch 2.0 gives up a connection that takes long in these words; newer ones wait longer than we do.
        how = "stands still" if "Socket Timeout" in str(answers[0]) else "is gone"
        message = f"no answer at {where}: the store of torch.distributed, mostly on rank 0, {how} ({answers[0]})"
        raise GuardError(message) from answers[0]
    return answers[0]


def _ranks(group: Any) -> tuple[int, ...]:
    """Global ranks of a group; nobody where this process is not in it, or alone."""
    if not _initialised():
        world = os.environ.get("WORLD_SIZE", "1")
        if world != "1":
            raise GuardError(
                f"there are {world} ranks and no process group yet: call init_process_group first"
            )
        return ()
    if group is None:
        return tuple(range(dist.get_world_size()))
    return tuple(dist.get_process_group_ranks(group)) if dist.get_rank(group) >= 0 else ()


def _store() -> Any:
    # torch has no public way to the store that its own groups are made with.
    from torch.distributed import distributed_c10d

    return dist.PrefixStore("clusterprep-guard", distributed_c10d._get_default_store())  # noqa: SLF001


class Meeting:
    """One meeting of some ranks in the store, which needs no more than set, get and add of it.

    Whoever comes last, or first runs out of patience, judges for all; the others look for that verdict.
    """

    def __init__(
        self, store: Any, ranks: tuple[int, ...], number: int, name: str, limit: float
    ) -> None:
        self.store, self.ranks, self.name, self.limit = store, ranks, name, limit
        self.place = ranks.index(dist.get_rank())
        self.prefix = f"{hashlib.sha256(repr(ranks).encode()).hexdigest()[:12]}/{number}"

    def verdict(self, own: Row, judge: Callable[[Sequence[Row]], Row]) -> Row:
        end = time.monotonic() + self.limit
        self.store.set(self.key(f"row{self.place}"), json.dumps(own))
        self.store.add(self.key(f"here{self.place}"), 1)
        if self.store.add(self.key("arrived"), 1) == len(self.ranks):
            self.decide(lambda: judge(self.rows()))
        pause = 0.001
        while not self.store.add(self.key("decided"), 0):
            if time.monotonic() > end:
                self.decide(self.missing)
                end += _GRACE
            time.sleep(pause)
            pause = min(2 * pause, _SLOWEST)
        answer = json.loads(self.store.get(self.key("verdict")))
        self.part(len(answer.get("absent", ())))
        return answer

    def key(self, what: str) -> str:
        return f"{self.prefix}/{what}"

    def decide(self, judge: Callable[[], Row]) -> None:
        if self.store.add(self.key("judges"), 1) == 1:
            self.store.set(self.key("verdict"), json.dumps(judge()))
            self.store.add(self.key("decided"), 1)

    def rows(self) -> list[Row]:
        return [
            json.loads(self.store.get(self.key(f"row{place}"))) for place in range(len(self.ranks))
        ]

    def missing(self) -> Row:
        """The verdict when the time is up; the rows are in order of places, and people know ranks."""
        absent = [
            rank
            for place, rank in enumerate(self.ranks)
            if not self.store.add(self.key(f"here{place}"), 0)
        ]
        others = [rank for rank in self.ranks if rank not in absent]
        where = f"the guard '{self.name}'" if self.name else "a guard"
        said = f"{ranks_text(absent)} did not come to {where} within {self.limit:g} s of {ranks_text(others)}"
        return {**_verdict(said, absent, {}), "absent": absent}

    def part(self, absent: int) -> None:
        """The first rank, which mostly hosts the store, stays until all know the verdict, and clears up."""
        gone, end = self.store.add(self.key("parted"), 1), time.monotonic() + _GRACE
        while self.place == 0 and gone < len(self.ranks) - absent and time.monotonic() < end:
            time.sleep(0.001)
            gone = self.store.add(self.key("parted"), 0)
        if self.place == 0 and gone == len(self.ranks):
            each = [
                f"{what}{place}" for what in ("row", "here") for place in range(len(self.ranks))
            ]
            for what in (*each, "arrived", "judges", "decided", "verdict", "parted"):
                with contextlib.suppress(
                    RuntimeError
                ):  # not every store can, and nothing depends on it
                    self.store.delete_key(self.key(what))
