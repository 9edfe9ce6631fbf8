"""Tells records of a job that hangs by their content, and reads them; all other files are logs."""

from __future__ import annotations

import io
import json
import re
import sys
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct, field
from msgspec.structs import replace

from clusterprep.errors import InputError, Problem
from clusterprep.jobs.diagnose.model import LogLine
from clusterprep.jobs.diagnose.records import flight_recorder, pickled, ras, stacks, waiting
from clusterprep.jobs.diagnose.records.file_names import ranks_of
from clusterprep.jobs.diagnose.records.flight_recorder import Dump
from clusterprep.jobs.diagnose.records.records import Records

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEAD = 64 << 10  # bytes by which a file is told to be a record
# Bytes of a record. A dump of the default 2,000 entries has 0.5 MB, with stacks of C++ some more.
LARGEST = 128 << 20
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_OLD_PICKLE = re.compile(rb"[\]}]q\x00|\([dl]p\d+\n")  # protocols 1 and 0
_JSON = re.compile(rb"\s*[\[{]")
_DUMP_KEYS = (b'"collective_seq_id"', b'"pg_config"', b'"pg_status"', b'"profiling_name"')
_GZIP = b"\x1f\x8b"
_GZIP_BITS = 31  # zlib's number for the largest window and a header of gzip
_FIRST_ORDER = 1 << 40  # lines of records come after all lines of logs
_FIRST_UNKNOWN = 1 << 20  # made-up ranks of dumps whose file does not tell one


class _Found(Struct):
    """What was found so far."""

    logs: list[str] = field(default_factory=list)
    stdin: BinaryIO | None = None
    decoded: dict[str, object] = field(default_factory=dict)  # dumps of the flight recorder
    reports: list[ras.RasReport] = field(default_factory=list)
    processes: list[stacks.ProcessStack] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)


def read(names: Sequence[str], stdin: BinaryIO | None = None) -> Records:
    """Read the records among the files and return them with the names of the others.

    `-` is standard input. Raises InputError that names every record that cannot be read.
    """
    found = _Found()
    problems: list[Problem] = []
    for name in dict.fromkeys(names):
        try:
            _read_one(name, found, stdin)
        except InputError as error:
            problems += error.problems
        except OSError:
            found.logs.append(name)  # the reader of logs says what is wrong with it
    if problems:
        raise InputError(tuple(problems))
    dumps, notices = _dumps(found.decoded)
    return Records(
        tuple(found.logs),
        found.stdin,
        dumps,
        tuple(found.reports),
        tuple(stacks.with_ranks(found.processes)),
        tuple(notices),
        {**found.files, **{dump.file: 1 for dump in dumps}},
    )


def _read_one(name: str, found: _Found, stdin: BinaryIO | None) -> None:
    if name != "-":
        if not Path(name).is_file():
            found.logs.append(name)
            return
        with open(name, "rb") as stream:
            head = _unzipped_head(stream.read(HEAD))
            rest: Sequence[bytes] = ()
            if _may_be_record(head):
                stream.seek(0)
                rest = [stream.read(LARGEST + 1)]
        _take(name, head, b"".join(rest), found)
        return
    source = stdin or sys.stdin.buffer
    head = source.read(HEAD)
    if _may_be_record(_unzipped_head(head)):
        whole = head + source.read(LARGEST + 1 - len(head))
        found.stdin = io.BytesIO(whole)
        _take(name, _unzipped_head(head), whole, found)
        return
    found.stdin = io.BufferedReader(_Rejoined(head, source))
    found.logs.append(name)


class _Rejoined(io.RawIOBase):
    """A stream of which the beginning was read already."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        target = memoryview(buffer)
        taken = self._head[: len(target)] or self._rest.read(len(target))
        self._head = self._head[len(taken) :]
        target[: len(taken)] = taken
        return len(taken)


# ---------------------------------------------------------------- kinds of records


def _unzipped_head(head: bytes) -> bytes:
    if not head.startswith(_GZIP):
        return head
    try:
        return zlib.decompressobj(_GZIP_BITS).decompress(head, HEAD)
    except zlib.error:
        return b""


def _may_be_record(head: bytes) -> bool:
    return _is_pickle(head) or _is_json_record(head) or stacks.is_py_spy(head)


def _is_pickle(head: bytes) -> bool:
    return bool(_PICKLE.match(head) or _OLD_PICKLE.match(head))


def _is_json_record(head: bytes) -> bool:
    if not _JSON.match(head):
        return False
    if any(key in head for key in _DUMP_KEYS):
        return True
    return ras.is_json(head) or stacks.is_py_spy_json(head)


def _take(name: str, head: bytes, data: bytes, found: _Found) -> None:
    """Add what a file has to what was found."""
    if not data:
        found.logs.append(name)
        return
    data = _whole(name, data)
    if _is_pickle(head):
        found.decoded[name] = _checked(name, _unpickled(name, data))
    elif _is_json_record(head):
        _take_json(name, data, found)
    else:
        found.processes += stacks.of_text(name, data.decode("utf-8", "replace"), _order(found))
        found.logs.append(name)


def _whole(name: str, data: bytes) -> bytes:
    """Return the data of a record, unpacked. Raises InputError if there is too much of it."""
    if data.startswith(_GZIP):
        try:
            data = zlib.decompressobj(_GZIP_BITS).decompress(data, LARGEST + 1)
        except zlib.error as error:
            raise _refused(name, f"the gzip file is damaged ({error})") from error
    if len(data) > LARGEST:
        raise _refused(name, f"is larger than {LARGEST >> 20} MiB")
    return data


def _unpickled(name: str, data: bytes) -> object:
    try:
        return pickled.loads(data)
    except pickled.PickleError as error:
        raise _refused(name, str(error)) from error


def _checked(name: str, value: object) -> object:
    if not flight_recorder.is_dump(value):
        hint = "give what torch wrote at TORCH_NCCL_DEBUG_INFO_TEMP_FILE, and logs"
        raise InputError.of("is a pickle, and no dump of a flight recorder", file=name, hint=hint)
    return value


def _take_json(name: str, data: bytes, found: _Found) -> None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        lines = data.count(b"\n{")
        if lines > 1:  # a log with one JSON document in each line
            found.logs.append(name)
            return
        raise _refused(name, f"is no complete JSON document ({error})") from error
    if flight_recorder.is_dump(value):
        found.decoded[name] = value
    elif ras.is_report(value):
        found.reports.append(ras.of_json(name, value, _order(found)))
        found.files[name] = data.count(b"\n") + 1
    elif stacks.are_traces(value):
        found.processes += stacks.of_json(name, value, _order(found))
        found.files[name] = data.count(b"\n") + 1
    else:
        found.logs.append(name)


def _refused(name: str, what: str) -> InputError:
    hint = "have the dump written again, or leave this file out"
    return InputError.of(f"is a dump that cannot be read: {what}", file=name, hint=hint)


def _order(found: _Found) -> int:
    lines = sum(len(report.lines) for report in found.reports) + len(found.processes)
    return _FIRST_ORDER + lines


# ---------------------------------------------------------------- dumps of the flight recorder


def _dumps(decoded: dict[str, object]) -> tuple[tuple[Dump, ...], list[str]]:
    """Return one dump for each rank, and what is to be said about the files."""
    parts = {name: _dump(name, value) for name, value in decoded.items()}
    members: set[int] = set()
    for dump in parts.values():
        for of_group in dump.members.values():
            members.update(of_group)
    ranks = ranks_of(list(parts), members)
    notices: list[str] = []
    by_rank: dict[int, Dump] = {}
    for number, (name, dump) in enumerate(parts.items()):
        rank = ranks.get(name)
        if rank is None:
            rank = flight_recorder.own_rank(dump.entries, dump.members)
        if rank is None:
            notices.append(f"{name}: neither name nor content tells its rank: name it rank3.pkl")
        placed = _placed(dump, rank, number)
        other = by_rank.get(placed.rank)
        if other is not None:
            notices.append(
                f"{other.file} and {name} are both of {placed.who}: the later one counts"
            )
            placed = max((other, placed), key=_last_call)
        by_rank[placed.rank] = placed
    by_rank = _with_only_one_left(by_rank, members)
    return tuple(by_rank[rank] for rank in sorted(by_rank)), notices


def _dump(name: str, value: object) -> Dump:
    entries = flight_recorder.entries_of(value)
    line = LogLine(name, 1, "", "")
    return Dump(
        name,
        0,
        is_rank_known=False,
        entries=entries,
        members=flight_recorder.members_of(value),
        has_all=flight_recorder.has_all(value),
        written=_written(name),
        line=line,
    )


def _written(name: str) -> float | None:
    """Return when a file was written, which is never before the dump was made; None if unknown."""
    try:
        return Path(name).stat().st_mtime
    except OSError:
        return None


def _placed(dump: Dump, rank: int | None, number: int) -> Dump:
    """Return the dump with its rank, or a made-up one, and with the line that stands for it."""
    is_known = rank is not None
    placed = replace(
        dump,
        rank=_FIRST_UNKNOWN + number if rank is None else rank,
        is_rank_known=is_known,
    )
    text = waiting.summary(placed.entries, placed.who)
    order = (2 << 40) + number
    line = LogLine(dump.file, 1, text, text, order=order, rank=rank)
    return replace(placed, line=line)


def _last_call(dump: Dump) -> float:
    return dump.entries[-1].created if dump.entries else 0.0


def _with_only_one_left(by_rank: dict[int, Dump], members: Iterable[int]) -> dict[int, Dump]:
    """Return the dumps with the rank of the one that is unknown, if only one rank remains."""
    unknown = [rank for rank, dump in by_rank.items() if not dump.is_rank_known]
    free = set(members) - by_rank.keys()
    if len(unknown) != 1 or len(free) != 1:
        return by_rank
    dump = by_rank.pop(unknown[0])
    rank = free.pop()
    by_rank[rank] = _placed(dump, rank, unknown[0] - _FIRST_UNKNOWN)
    return by_rank
