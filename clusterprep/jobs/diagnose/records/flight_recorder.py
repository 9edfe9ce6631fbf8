"""Makes values of the dumps that torch's flight recorder writes.

A dump has the collectives that one rank enqueued last, with their state and the stack of the call.
It does not have the rank: that is in the name of the file. The shape differs by version: torch 2.2
wrote a list of entries, later ones a dict with a "version" (2.10 since torch 2.9); `seq_id` became
`collective_seq_id` and `p2p_seq_id` in version 2.0. The JSON form has no stacks. gloo writes dumps
since torch 2.8, without members of groups.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.jobs.diagnose.model import LogLine
from clusterprep.jobs.launch.stacks import Frame

MOST_ENTRIES = 100_000  # torch keeps 2,000 by default
_MOST_FRAMES = 200
_MOST_TENSORS = 64
_MOST_DIMENSIONS = 16
_MOST_TEXT = 200  # characters of a name
COALESCED = "coalesced"
KEYS = ("entries", "pg_config", "pg_status")
NO_SEQ = -1  # of sends and receives before version 2.0, which counted them as collectives
_ENTRY_KEYS = ("profiling_name", "collective_seq_id", "seq_id")
_P2P = re.compile(r"(?P<verb>send|recv) (?P<own>\d+)(?:->|<-)(?P<peer>\d+)")
_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python\d[\d.]*)/|^<frozen |\.(?:cpp|cc|cu|so)\b"
    r"|/torch/(?:distributed|nn|autograd|_dynamo|utils|optim)/"
)

Group = str  # the name that torch gave the process group: "0" is the default one


class Entry(Struct, frozen=True):
    """One collective, or one send or receive, that a rank enqueued."""

    group: Group
    description: str
    seq: int  # among the collectives of the group, or among its sends and receives
    counts: tuple[int, int]  # collectives, and sends and receives: the same for a coalesced group
    op: str  # such as all_reduce
    backend: str  # such as nccl
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    state: str  # scheduled, started or completed
    is_p2p: bool
    verb: str  # send or recv
    own: int  # in a send or receive: this rank, counted within the group
    peer: int  # and the other one
    created: float  # seconds since 1970, 0 if not known
    limit: float  # seconds after which it counts as timed out, 0 if not known
    frames: tuple[Frame, ...]

    @property
    def is_done(self) -> bool:
        return self.state == "completed"

    @property
    def place(self) -> str:
        """Return where the user's program calls it, such as «train.py:88», or an empty text."""
        for frame in self.frames:
            if not _LIBRARY.search(frame.file):
                return f"{posixpath.basename(frame.file)}:{frame.line}"
        return ""

    @property
    def name(self) -> str:
        """Return e.g. «ALLREDUCE #12», in the words that torch's own messages have."""
        op = self.op
        if not self.is_p2p:
            op = op.upper().replace("ALL_TO_ALL", "ALLTOALL").replace("ALL_", "ALL")
        return f"{op} #{self.seq}"


class Dump(Struct, frozen=True):
    """What the flight recorder of one rank wrote. `rank` is made up if the file does not tell."""

    file: str
    rank: int
    is_rank_known: bool
    entries: tuple[Entry, ...]
    members: Mapping[Group, tuple[int, ...]]  # the ranks of each process group, as far as told
    has_all: bool  # nothing was overwritten: it begins with the first call of the rank
    written: float | None  # when the file was written, in seconds since 1970
    line: LogLine

    @property
    def who(self) -> str:
        if self.is_rank_known:
            return f"rank {self.rank}"
        return f"the rank of {posixpath.basename(self.file)}"


def is_dump(value: object) -> bool:
    """Return whether a decoded value is a dump of the flight recorder."""
    if isinstance(value, dict):
        return any(key in value for key in KEYS) and "version" in value
    return isinstance(value, list) and bool(value) and _is_entry(value[0])


def _is_entry(value: object) -> bool:
    return isinstance(value, dict) and any(key in value for key in _ENTRY_KEYS)


def entries_of(value: object) -> tuple[Entry, ...]:
    """Return the entries of a decoded dump, in the order in which they were enqueued."""
    rows = value.get("entries") if isinstance(value, dict) else value
    entries: list[Entry] = []
    if not isinstance(rows, (list, tuple)):
        return ()
    for row in rows[:MOST_ENTRIES]:
        if _is_entry(row):
            entries.append(_entry(row))
    return _without_coalesced(entries)


def _without_coalesced(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the entries without those of whole coalesced groups, which have the state of all.

    torch does not follow the single calls of such a group: they stay «scheduled».
    """
    states: dict[tuple[Group, tuple[int, int]], str] = {}
    for entry in entries:
        if entry.op == COALESCED:
            states[entry.group, entry.counts] = entry.state
    rows: list[Entry] = []
    for entry in entries:
        state = states.get((entry.group, entry.counts), entry.state)
        if entry.op != COALESCED:
            rows.append(entry if state == entry.state else replace(entry, state=state))
    return tuple(rows)


def has_all(value: object) -> bool:
    """Return whether a decoded dump begins with the first call of its rank."""
    rows = value.get("entries") if isinstance(value, dict) else value
    if not isinstance(rows, (list, tuple)) or not rows:
        return True
    first = rows[0]
    return not isinstance(first, dict) or _whole(first.get("record_id")) == 0


def members_of(value: object) -> dict[Group, tuple[int, ...]]:
    """Return the ranks of each process group of a decoded dump."""
    config = value.get("pg_config") if isinstance(value, dict) else None
    members: dict[Group, tuple[int, ...]] = {}
    if not isinstance(config, dict):
        return members
    for name, group in config.items():
        told = group.get("ranks") if isinstance(group, dict) else None
        ranks = tuple(_ranks(told))
        if ranks:
            members[_text(name)] = ranks
    return members


def _ranks(told: object) -> Iterator[int]:
    """Yield ranks of a list, or of its text «[0, 1]»."""
    if isinstance(told, str):
        for digits in re.findall(r"\d{1,7}", told):
            yield int(digits)
    elif isinstance(told, (list, tuple)):
        for rank in told:
            if isinstance(rank, int):
                yield rank


# ---------------------------------------------------------------- one entry


def _entry(row: Mapping[str, Any]) -> Entry:
    group, description = _group(row)
    backend, _, op = _text(row.get("profiling_name")).rpartition(":")
    match = _P2P.search(op)
    is_p2p = bool(row.get("is_p2p", match is not None))
    seq = row.get("p2p_seq_id", NO_SEQ) if is_p2p else row.get("collective_seq_id")
    if seq is None:
        seq = row.get("seq_id")
    inputs = _shapes(row.get("input_sizes"))
    outputs = _shapes(row.get("output_sizes"))
    return Entry(
        group,
        description,
        seq=_whole(seq),
        counts=(_whole(row.get("collective_seq_id")), _whole(row.get("p2p_seq_id"))),
        op=op,
        backend=backend,
        inputs=inputs,
        outputs=outputs,
        types=_types(row),
        state=_state(row, backend),
        is_p2p=is_p2p,
        verb=match["verb"] if match else "",
        own=int(match["own"]) if match else -1,
        peer=int(match["peer"]) if match else -1,
        created=_whole(row.get("time_created_ns")) / 1e9,
        limit=_whole(row.get("timeout_ms")) / 1e3,
        frames=tuple(_frames(row.get("frames"))),
    )


def _group(row: Mapping[str, Any]) -> tuple[Group, str]:
    """Return name and description of the process group; before torch 2.4 it has only a number."""
    told = row.get("process_group")
    if isinstance(told, (list, tuple)) and len(told) == 2:
        return _text(told[0]), _text(told[1])
    return _text(row.get("pg_name", row.get("pg_id", ""))), ""


def _state(row: Mapping[str, Any], backend: str) -> str:
    """Return the state. gloo leaves it at «scheduled» and marks what is done as retired."""
    state = _text(row.get("state"))
    if backend == "gloo" and row.get("retired"):
        return "completed"
    return state


def _types(row: Mapping[str, Any]) -> tuple[str, ...]:
    types: list[str] = []
    for key in ("input_dtypes", "output_dtypes"):
        told = row.get(key)
        if isinstance(told, (list, tuple)):
            types += [_text(name) for name in told[:_MOST_TENSORS]]
    return tuple(types)


def _shapes(told: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(told, (list, tuple)):
        return ()
    shapes: list[tuple[int, ...]] = []
    for shape in told[:_MOST_TENSORS]:
        if isinstance(shape, (list, tuple)):
            shapes.append(tuple(_whole(size) for size in shape[:_MOST_DIMENSIONS]))
    return tuple(shapes)


def _frames(told: object) -> Iterator[Frame]:
    """Yield the frames of the call, innermost first."""
    if not isinstance(told, (list, tuple)):
        return
    for frame in told[:_MOST_FRAMES]:
        if isinstance(frame, dict):
            file = _text(frame.get("filename"))
            yield Frame(file, _whole(frame.get("line")), _text(frame.get("name")))


def _text(value: object) -> str:
    return str(value)[:_MOST_TEXT] if isinstance(value, (str, int)) else ""


def _whole(value: object) -> int:
    if isinstance(value, (int, float)) and abs(value) < 2**63:
        return int(value)
    return 0


# ---------------------------------------------------------------- ranks


def own_rank(entries: Sequence[Entry], members: Mapping[Group, Sequence[int]]) -> int | None:
    """Return the rank that the sends and receives of a dump tell: «send 0->1» is of rank 0."""
    for entry in entries:
        ranks = members.get(entry.group)
        if entry.is_p2p and ranks and 0 <= entry.own < len(ranks):
            return ranks[entry.own]
    return None
