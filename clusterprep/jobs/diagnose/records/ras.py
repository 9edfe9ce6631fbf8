"""Reads what NCCL's RAS tells about a running job: text since NCCL 2.24, JSON since 2.28.9.

It counts the collectives that each rank has launched in each communicator. Ranks of a job that runs
are one or two apart at any moment, so that a single look proves little. Two looks with the same
counts do, and so does a time-out in the same log. The text is that of src/ras/client_support.cc.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.jobs.diagnose.model import Culprit, Culprits, Evidence, LogFile, LogLine, Weight
from clusterprep.jobs.diagnose.stuck import stuck

_HEADS = ("#0-0 (", "#0-00 (", "#0-000 (", "#00-0 (", "#00-00 (")  # of communicators
_GONE = ("missing communicator data", "considered dead (")
NEEDLES = (
    *_HEADS,
    *_GONE,
    "communicators... (",
    "ranks have different ",
    "launched up to operation",
    "not launched any operations",
    "ranks have status ",
    "ranks reported ",
    "asynchronous error",
    "initialization error",
    " managed by process ",
    " managing gpu",
    "the missing rank",
    "the unknown ranks",
    "[process information not found]",
)
_LOOK = re.compile(r"Communicators\.\.\. \([\d.]+s\)")
_COMMUNICATOR = re.compile(
    r"^#(?P<group>\d+)-(?P<number>\d+) \((?P<hash>[0-9a-f]+)\) (?:INCOMPLETE|ERROR|MISMATCH)$"
)
_DIFFERENT = re.compile(r"^Communicator ranks have different (?P<what>\w+)")
_ERRORS = re.compile(r"^(?:Initialization|Asynchronous) errors? on \d+ ranks?$")
_MISSING = re.compile(r"^Missing communicator data from \d+ (?:job process(?:es)?|ranks?)$")
_DEAD = re.compile(r"^\d+ job process(?:es are| is) considered dead")
_VALUE = (
    r"(?:launched up to operation (?P<count>\d+)|not launched any operations"
    r"|status (?P<status>\w+)|reported (?P<error>[\w ]+?))"
)
_MANY = re.compile(rf"^(?P<ranks>\d+) ranks (?:have )?{_VALUE}$")
_PLACE = (
    r"(?:GPU (?P<gpu>\d+)(?: \(NVML \d+\))? managed by process (?P<pid>\d+) on node (?P<node>\S+)"
    r"|\[process information not found\])$"
)
_ONE = re.compile(rf"^Rank (?P<rank>\d+) (?:(?:has )?{_VALUE} )?-- {_PLACE}")
_LISTED = re.compile(r"^The (?:missing|unknown) ranks?: (?P<ranks>[\d, ]+)$")
_PROCESS = re.compile(r"^Process (?P<pid>\d+) on node (?P<node>\S+) managing GPUs? ")
_JSON_KEYS = (b'"nccl_version"', b'"communicators_count"')
# ncclResult_t of nccl.h; 0 is success, 7 in progress.
_RESULTS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}
_CAUSE_OF_ERROR = {
    "Unhandled CUDA error": "gpu_hardware_fault",
    "System error": "ib_fabric_unreachable",
}
_MOST_BLAMED = 8
_MOST_RANKS = 1_000_000


class Member(Struct, frozen=True):
    """A rank of a communicator. `rank` counts within it; `process` is known in most outputs."""

    rank: int | None
    process: str = ""  # such as «323032 on 10.137.190.124»
    line: LogLine | None = None


class Value(Struct, frozen=True):
    """What some ranks of a communicator have in common. Not all of them are named."""

    text: str  # a count, a status or an error
    size: int  # number of ranks
    named: tuple[Member, ...]


class Difference(Struct, frozen=True):
    """Ranks of one communicator differ in `what`: status, error, or the name of a collective."""

    communicator: str
    is_world: bool  # its ranks are those of the job
    what: str
    values: tuple[Value, ...]
    line: LogLine


class Gone(Struct, frozen=True):
    """A rank or a process that does not answer."""

    member: Member
    is_dead: bool
    line: LogLine


class RasReport(Struct, frozen=True):
    """One look at a job. `lines` stand for it if it is no part of a log."""

    differences: tuple[Difference, ...] = ()
    gone: tuple[Gone, ...] = ()
    lines: tuple[LogLine, ...] = ()


# ---------------------------------------------------------------- text


def reports_of(log: LogFile) -> list[RasReport]:
    """Return the outputs of ncclras that stand in a log."""
    heads = log.lines_with(*_HEADS)
    has_head = any(_COMMUNICATOR.match(line.message.strip()) for line in heads)
    if not has_head and not log.lines_with(*_GONE):
        return []
    files: dict[str, list[LogLine]] = {}
    for line in log.lines_with(*NEEDLES):
        files.setdefault(line.file, []).append(line)
    reports: list[RasReport] = []
    for lines in files.values():
        for part in _looks(lines):
            report = _Reader().read(part)
            if report.differences or report.gone:
                reports.append(report)
    return reports


def _looks(lines: Iterable[LogLine]) -> Iterator[list[LogLine]]:
    """Yield the lines of each output: several may follow each other in a file."""
    part: list[LogLine] = []
    for line in lines:
        if _LOOK.search(line.message) and part:
            yield part
            part = []
        part.append(line)
    yield part


class _Reader:
    """Reads the lines of one output in order."""

    def __init__(self) -> None:
        self.communicator = ""
        self.is_world = False
        self.what = ""
        self.line: LogLine | None = None
        self.values: dict[str, tuple[int, list[Member]]] = {}
        self.current = ""  # the value to which the next named ranks belong
        self.gone_is_dead: bool | None = None  # None: named ranks are not gone
        self.differences: list[Difference] = []
        self.gone: list[Gone] = []

    def read(self, lines: Iterable[LogLine]) -> RasReport:
        for line in lines:
            self._read_line(line, line.message.strip())
        self._close()
        return RasReport(tuple(self.differences), tuple(self.gone))

    def _read_line(self, line: LogLine, text: str) -> None:
        if match := _COMMUNICATOR.match(text):
            self._close()
            self.communicator = match["hash"]
            self.is_world = match["group"] == "0" and match["number"] == "0"
        elif match := _DIFFERENT.match(text):
            self._open(line, match["what"])
        elif _ERRORS.match(text):
            self._open(line, "error")
        elif _MISSING.match(text) or _DEAD.match(text):
            self._close()
            self.gone_is_dead = "dead" in text
        elif match := _MANY.match(text):
            self.current = _value(match)
            self.values[self.current] = (int(match["ranks"]), [])
        else:
            self._read_named(line, text)

    def _read_named(self, line: LogLine, text: str) -> None:
        if match := _ONE.match(text):
            process = _process(match)
            # Within a part of the job ranks are counted anew; the process says more.
            rank = None if process and not self.is_world else int(match["rank"])
            self._add(line, Member(rank, process, line), _value(match))
        elif match := _PROCESS.match(text):
            self._add(line, Member(None, _process(match), line), "")
        elif match := _LISTED.match(text):
            for digits in re.findall(r"\d{1,7}", match["ranks"]):
                self._add(line, Member(int(digits), "", line), "")

    def _add(self, line: LogLine, member: Member, value: str) -> None:
        if (member.rank or 0) >= _MOST_RANKS:
            return  # NCCL 2.27 printed memory that held no rank
        if self.gone_is_dead is not None:
            self.gone.append(Gone(member, self.gone_is_dead, line))
            return
        if value:
            _, named = self.values.setdefault(value, (1, []))
        else:
            _, named = self.values.setdefault(self.current, (0, []))
        named.append(member)

    def _open(self, line: LogLine, what: str) -> None:
        self._close()
        self.line = line
        self.what = what

    def _close(self) -> None:
        if self.line is not None and self.values:
            values = [
                Value(text, size, tuple(named)) for text, (size, named) in self.values.items()
            ]
            self.differences.append(
                Difference(
                    self.communicator,
                    self.is_world,
                    self.what,
                    tuple(values),
                    self.line,
                )
            )
        self.line = None
        self.values = {}
        self.current = ""
        self.gone_is_dead = None


def _value(match: re.Match[str]) -> str:
    for name in ("count", "status", "error"):
        if match[name]:
            return match[name]
    return "0" if "not launched any" in match[0] else ""


def _process(match: re.Match[str]) -> str:
    if not match["pid"]:
        return ""
    return f"{match['pid']} on {match['node']}"


# ---------------------------------------------------------------- JSON


def is_json(head: bytes) -> bool:
    """Return whether a file that begins so is the JSON output of ncclras."""
    return all(key in head for key in _JSON_KEYS)


def is_report(value: object) -> bool:
    """Return whether a JSON document is the output of ncclras."""
    return isinstance(value, dict) and isinstance(value.get("communicators"), list)


def of_json(file: str, document: Any, first_order: int) -> RasReport:
    """Return the JSON output of ncclras. A line in words stands for each communicator."""
    communicators = [part for part in document["communicators"] if isinstance(part, dict)]
    sizes = Counter(_whole(part.get("size")) for part in communicators)
    largest = max(sizes, default=0)
    lines: list[LogLine] = []
    differences: list[Difference] = []
    gone: list[Gone] = []
    for part in communicators:
        size = _whole(part.get("size"))
        name = str(part.get("hash", ""))[:40]
        is_world = size == largest and sizes[size] == 1
        ranks = _rows(part.get("ranks"))
        missing = _rows(part.get("missing_ranks"))
        text = f"communicator {name}: {len(ranks)} of {size} ranks answer; {_counted(ranks)}"
        line = LogLine(file, 1, text, text, order=first_order + len(lines))
        lines.append(line)
        differences += _differences(name, ranks, line, is_world=is_world)
        for row in missing:
            status = row.get("status")
            is_dead = isinstance(status, dict) and bool(status.get("considered_dead"))
            gone.append(Gone(_member(row, line, is_world=is_world), is_dead, line))
    return RasReport(tuple(differences), tuple(gone), tuple(lines))


def _rows(told: object) -> list[Mapping[str, Any]]:
    if not isinstance(told, list):
        return []
    return [row for row in told[:_MOST_RANKS] if isinstance(row, dict)]


def _member(row: Mapping[str, Any], line: LogLine, *, is_world: bool) -> Member:
    rank = row.get("rank")
    process = f"{_whole(row.get('pid'))} on {str(row.get('host', ''))[:64]}"
    return Member(rank if is_world and isinstance(rank, int) else None, process, line)


def _differences(
    name: str, ranks: Sequence[Mapping[str, Any]], line: LogLine, *, is_world: bool
) -> Iterator[Difference]:
    """Yield what ranks differ in: counts of each collective, and errors."""
    by_what: dict[str, dict[str, list[Member]]] = defaultdict(lambda: defaultdict(list))
    for row in ranks:
        member = _member(row, line, is_world=is_world)
        counts = row.get("collective_counts")
        if isinstance(counts, dict):
            for what, count in counts.items():
                by_what[str(what)[:40]][str(_whole(count))].append(member)
        status = row.get("status")
        if isinstance(status, dict):
            for key in ("init_state", "async_error"):
                error = _RESULTS.get(_whole(status.get(key)))
                if error:
                    by_what["error"][error].append(member)
    for what, values in by_what.items():
        if len(values) > 1 or what == "error":
            told = [Value(text, len(named), tuple(named)) for text, named in values.items()]
            yield Difference(
                name,
                is_world,
                what,
                tuple(told),
                line,
            )


def _counted(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return the counts that differ, such as «AllReduce 640 on 7, 639 on 1»."""
    by_what: dict[str, Counter[int]] = defaultdict(Counter)
    for row in ranks:
        counts = row.get("collective_counts")
        if isinstance(counts, dict):
            for what, count in counts.items():
                by_what[str(what)[:40]][_whole(count)] += 1
    parts: list[str] = []
    for what, counter in by_what.items():
        if len(counter) > 1:
            values = ", ".join(f"{count} on {ranks}" for count, ranks in counter.most_common(4))
            parts.append(f"{what} {values}")
    return "; ".join(parts) or "all have launched as many collectives"


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


# ---------------------------------------------------------------- evidence


def evidence(reports: Sequence[RasReport], log: LogFile) -> Iterator[Evidence]:
    """Yield what the looks at the job tell of ranks that are behind, gone or in error."""
    if not reports:
        return
    looks: dict[tuple[str, str], list[Difference]] = defaultdict(list)
    for report in reports:
        for difference in report.differences:
            looks[difference.communicator, difference.what].append(difference)
    gone = reports[-1].gone
    ranked = [one for one in gone if one.member.rank is not None]
    for one in ranked or gone:  # a process that is gone is told again as a rank
        yield _of_gone(one)
    times_out = bool(stuck(log))
    for (_, what), differences in looks.items():
        last = differences[-1]
        if what == "error":
            yield from _of_errors(last)
        elif what == "status":
            yield from _of_status(last)
        elif len(differences) == 1 or _counts(differences[0]) == _counts(last):
            is_proven = len(differences) > 1 or times_out
            yield from _of_counts(last, is_proven=is_proven)


def _counts(difference: Difference) -> set[tuple[str, int]]:
    return {(value.text, value.size) for value in difference.values}


def _of_gone(gone: Gone) -> Evidence:
    how = "is considered dead" if gone.is_dead else "does not answer"
    note = f"{_who(gone.member)} {how}: it ended, is stopped, or its node cannot be reached"
    return Evidence(
        "rank_desync_control_flow",
        gone.line,
        Weight.SYMPTOM,
        _culprits([gone.member]),
        note,
    )


def _of_errors(difference: Difference) -> Iterator[Evidence]:
    """Yield ranks with an error of their own. That the other end is gone is none."""
    for value in difference.values:
        if value.text == "Remote process error" or not value.named:
            continue
        cause = _CAUSE_OF_ERROR.get(value.text, "nccl_bug_or_version")
        note = f"{_listed(value.named)} reported «{value.text}» to RAS"
        culprits = _culprits(value.named)
        for member in value.named:
            yield Evidence(
                cause,
                member.line or difference.line,
                Weight.SYMPTOM,
                culprits,
                note,
            )


def _of_status(difference: Difference) -> Iterator[Evidence]:
    """Yield the few ranks that still set up a communicator, or end it, while the others use it."""
    for value in difference.values:
        if value.text in {"RUNNING", "ABORT"} or not value.named:
            continue
        note = f"{_listed(value.named)} has status {value.text}, others do not"
        yield Evidence(
            "rank_desync_control_flow",
            value.named[0].line or difference.line,
            Weight.SYMPTOM,
            _culprits(value.named),
            note,
        )


def _of_counts(difference: Difference, *, is_proven: bool) -> Iterator[Evidence]:
    """Yield the ranks whose count is not that of most: those behind, if they are known."""
    total = sum(max(value.size, len(value.named)) for value in difference.values)
    few = [value for value in difference.values if 2 * len(value.named) <= total and value.named]
    if not few:
        return
    odd = min(few, key=lambda value: _whole_text(value.text))
    lowest = min(_whole_text(value.text) for value in difference.values)
    is_behind = _whole_text(odd.text) == lowest
    where = "behind" if is_behind else "ahead of"
    note = (
        f"{_listed(odd.named)} launched {odd.text} {difference.what} operations and is {where} the "
        "other ranks"
    )
    if not is_proven:
        note += "; if a second look shows the same counts, it is stuck there"
    weight = Weight.LIKELY if is_proven and is_behind else Weight.SYMPTOM
    culprits = _culprits(odd.named)
    for line in [difference.line, *(member.line for member in odd.named[:3])]:
        if line is not None:
            yield Evidence(
                "rank_desync_control_flow",
                line,
                weight,
                culprits,
                note,
            )


def _whole_text(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _who(member: Member) -> str:
    if member.rank is not None:
        return f"rank {member.rank}"
    return f"process {member.process}"


def _listed(members: Sequence[Member]) -> str:
    if len(members) == 1:
        return _who(members[0])
    if len(members) > _MOST_BLAMED:
        return f"each of {len(members)} ranks"
    return "each of " + ", ".join(_who(member) for member in members)


def _culprits(members: Sequence[Member]) -> Culprits:
    if len(members) > _MOST_BLAMED:
        return ()
    culprits: list[Culprit] = []
    for member in members:
        if member.rank is not None:
            culprits.append(("rank", str(member.rank)))
        elif member.process:
            culprits.append(("process", member.process))
    if len(culprits) == 2 and all(kind == "rank" for kind, _ in culprits):
        return (("ranks", " and ".join(rank for _, rank in culprits)),)
    return tuple(culprits)
