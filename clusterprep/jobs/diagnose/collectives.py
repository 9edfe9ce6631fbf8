"""Reads which collectives timed out: rank, process group, sequence number, operation, elements.

The watchdog of torch's process groups writes these lines, for NCCL as for HCCL and others:

* «[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE,
  NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.»
* «[PG ID 2 PG GUID 3(mesh_dp) Rank 1] … detected by watchdog at work: 808, last enqueued NCCL
  work: 811, last completed NCCL work: 807.» Up to torch 2.4 it is «[PG 3 Rank 1]» or «[PG 3
  (mesh_dp) Rank 1]».

The rank in these brackets counts within the group. The rank in the whole job is in «[rank13]:»,
which torch puts before every line since 2.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.jobs.diagnose.exits import failed_workers
from clusterprep.jobs.diagnose.model import LogFile, LogLine, Place

NEEDLES = (
    "ccl(",
    "workcncl(",
    "operation timeout:",
    "before timing out",
    "timing out.",
    "blocking wait",
    "last enqueued",
    "at nccl work",
    "watchdog at work",
    "due to a collective timeout",
    "dump signal",
    "global rank:",
    "nranks",
    "world_size",
    "world size",
)
_WORK = re.compile(
    r"Work[A-Z]*C[CN]*L\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)"
    r"(?:, TensorShape=\[(?P<shape>[^\]]*)\])?"
    r"(?:, NumelIn=(?P<numel>\d+))?(?:, NumelOut=(?P<out>\d+))?"
    r"(?:, Timeout\(ms\)=(?P<limit>\d+))?",
    re.IGNORECASE,
)
# Work(…) is printed for errors too: «Collective WorkNCCL(…) raised the following async exception».
_TIMED_OUT = re.compile(
    r"operation timeout|ran for \d+ (?:milliseconds|ms)\b|before timing out"
    r"|timed out in blocking wait",
    re.IGNORECASE,
)
_LAST = re.compile(
    r"last enqueued (?:\w+ )?work: (?P<enqueued>-?\d+),? "
    r"(?:(?:and )?last started (?:\w+ )?work: -?\d+,? )?"
    r"(?:and )?last completed (?:\w+ )?work: (?P<completed>-?\d+)",
    re.IGNORECASE,
)
_AT = re.compile(
    r"(?:Timeout at \w+ work|watchdog at work(?: sequence id)?): (?P<seq>\d+)", re.IGNORECASE
)
_GROUP = re.compile(
    r"\[PG (?:ID \S+ PG GUID )?(?P<group>[^\s\](]+) ?(?:\((?P<name>[^)]*)\))? ?"
    r"Rank (?P<rank>\d+)\]",
    re.IGNORECASE,
)
_JOB_RANK = re.compile(r"\[rank(?P<prefix>\d+)\]:|\bglobal rank: (?P<told>\d+)")
_OWN_RANK = re.compile(r"\[Rank (\d+)\]")
_SIZE = re.compile(r"\bsize: (?P<size>\d+), global rank:", re.IGNORECASE)
_WORLD = re.compile(r"\bnranks (?P<a>\d+)|\bworld[_ ]size[=: ]+(?P<b>\d+)", re.IGNORECASE)
_LARGEST_WORLD = 4096  # a larger number in a log is taken for something else
_LARGEST_TENSOR = 1 << 60  # elements; coalesced works print the largest number that there is
_SIGABRT = -6
_ANY_OPERATION = "collective"
_DEFAULT_GROUPS = frozenset({"", "0", "default_pg"})

POINT_TO_POINT = frozenset({"SEND", "RECV", "RECVANYSOURCE"})
# All ranks of a group give as many elements to one of these. In others numbers may differ.
_SAME_SIZE = frozenset(
    {"ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
)


class StuckRank(Struct, frozen=True):
    """A collective that timed out on one rank.

    `rank` is that in the whole job, None if it is not known. `group` is "" if the log names none.
    """

    line: LogLine
    rank: int | None
    group: str
    seq: int | None
    op: str
    numel: int | None

    @property
    def is_barrier(self) -> bool:
        """Whether it is a barrier: torch's NCCL barrier is an all-reduce of one element."""
        if self.op == "ALLREDUCE":
            return self.numel == 1
        return self.op == "BARRIER"

    @property
    def is_point_to_point(self) -> bool:
        """Whether it concerns two ranks alone, so that others do not count it."""
        return self.op in POINT_TO_POINT

    @property
    def has_common_size(self) -> bool:
        """Whether all ranks have to be in it with the same number of elements."""
        return self.op in _SAME_SIZE and self.numel is not None


class Progress(Struct, frozen=True):
    """The last collectives of a rank in a group: the one it entered and the one that ended."""

    line: LogLine
    rank: int
    group: str
    enqueued: int
    completed: int


# ---------------------------------------------------------------- process groups


class Groups(Struct, frozen=True):
    """What the log tells of process groups: their names, sizes, and the ranks of their members.

    `ranks` has the rank in the whole job of (group, rank in the group).
    """

    names: Mapping[str, str]
    sizes: Mapping[str, int]
    ranks: Mapping[tuple[str, int], int]
    at: Mapping[tuple[int, int], str]  # the group of (rank, sequence number)

    def rank_of(self, line: LogLine) -> int | None:
        """Return the rank in the whole job of the process that wrote the line."""
        rank = _rank_in_job(line)
        if rank is not None:
            return rank
        match = _GROUP.search(line.text)
        if match is None:
            own = _OWN_RANK.search(line.text)
            return int(own[1]) if own else line.rank
        group = match["group"]
        if group in _DEFAULT_GROUPS:
            return int(match["rank"])
        return self.ranks.get((group, int(match["rank"])))

    def described(self, group: str) -> str:
        """Return « of group mesh_dp», an empty text for the group of all ranks."""
        if group in _DEFAULT_GROUPS or self.names.get(group) == "default_pg":
            return ""
        return f" of group {self.names.get(group) or group}"

    def members(self, group: str) -> set[int]:
        """Return the ranks in the whole job that are known to be in the group."""
        return {rank for (other, _), rank in self.ranks.items() if other == group}


def is_default_group(group: str) -> bool:
    """Whether all ranks of the job are in the group, or no group is named."""
    return group in _DEFAULT_GROUPS


def group_of(line: LogLine) -> str:
    match = _GROUP.search(line.text)
    return match["group"] if match else ""


def groups_of(log: LogFile) -> Groups:
    """Return what all lines together tell of process groups."""
    names: dict[str, str] = {}
    sizes: dict[str, int] = {}
    ranks: dict[tuple[str, int], int] = {}
    at: dict[tuple[int, int], str] = {}
    for line in log.lines_with("[pg "):
        match = _GROUP.search(line.text)
        if match is None:
            continue
        group = match["group"]
        name = (match["name"] or "").strip()
        if name and name != "undefined":
            names[group] = name
        if size := _SIZE.search(line.text):
            sizes[group] = int(size["size"])
        rank = _rank_in_job(line)
        if rank is None:
            continue
        ranks[group, int(match["rank"])] = rank
        if place := _AT.search(line.text):
            at[rank, int(place["seq"])] = group
    return Groups(names, sizes, ranks, at)


def _rank_in_job(line: LogLine) -> int | None:
    """Return the rank in the whole job that the line tells.

    Of several prefixes the last one counts: torchrun may put one with the local rank before it.
    """
    matches = list(_JOB_RANK.finditer(line.text))
    if not matches:
        return None
    last = matches[-1]
    return int(last["told"] or last["prefix"])


# ---------------------------------------------------------------- which collectives timed out


def stuck_ranks(log: LogFile, groups: Groups) -> list[StuckRank]:
    """Return the earliest collective that timed out of each rank and process group."""
    earliest: dict[tuple[str, int | None, int], StuckRank] = {}
    heads = _broken_off_lines(log)
    tails = {line.place: line for line in log.lines_with("timing out", "timeout(ms)")}
    for line in log.lines_with("ccl(", "workcncl("):
        text = _whole_text(line, tails)
        work = _WORK.search(text)
        if work is None or not _TIMED_OUT.search(text):
            continue
        # Some loggers break the message in two; then the rank is in the line before.
        head = heads.get(line.place, line)
        member = _stuck_rank(line, head, work, groups)
        unknown_rank = line.order if member.rank is None else 0
        key = (member.group, member.rank, unknown_rank)
        if _is_earlier(member, earliest.get(key)):
            earliest[key] = member
    members = _without_repeated(list(earliest.values()))
    members.extend(list(_known_by_place(log, members, groups)))
    if not members:
        members = list(_from_dumps(log, groups))
    return _in_known_groups(members)


def _is_earlier(member: StuckRank, other: StuckRank | None) -> bool:
    """Whether a collective comes before another of its rank; the first read if not numbered."""
    if other is None:
        return True
    if member.seq is None or other.seq is None:
        return False
    return member.seq < other.seq


def _from_dumps(log: LogFile, groups: Groups) -> Iterator[StuckRank]:
    """Yield what ranks say of a time-out when they dump their flight recorder.

    These lines do not name the operation. The first one that has not ended is the one that waits.
    """
    present: set[int] = set()
    for line in log.lines_with("due to a collective timeout"):
        last = _LAST.search(line.text)
        rank = groups.rank_of(line)
        is_own = "from this local rank" in line.text
        if not is_own or last is None or rank is None or rank in present:
            continue
        present.add(rank)
        seq = int(last["completed"]) + 1
        yield StuckRank(line, rank, group_of(line), seq, _ANY_OPERATION, None)


def _whole_text(line: LogLine, tails: Mapping[Place, LogLine]) -> str:
    """Return the text of a line, and of the next one if a terminal broke it within WorkNCCL(…)."""
    after = line.text.rpartition("CL(")[2]
    tail = tails.get((line.file, line.number + 1))
    if ")" in after.replace("(ms)", "") or tail is None:
        return line.text
    return line.text + tail.text


def _broken_off_lines(log: LogFile) -> dict[Place, LogLine]:
    """Return lines that end before what timed out, by the place of the line that goes on."""
    lines: dict[Place, LogLine] = {}
    for line in log.lines_with("operation timeout:"):
        if not _WORK.search(line.text):
            lines[line.file, line.number + 1] = line
    return lines


def _stuck_rank(line: LogLine, head: LogLine, work: re.Match[str], groups: Groups) -> StuckRank:
    """Return the collective that `line` names; rank and process group are those of `head`."""
    seq = _number(work["seq"])
    op = work["op"].upper()
    rank = groups.rank_of(head)
    group = group_of(head)
    if not group and rank is not None and seq is not None:
        group = groups.at.get((rank, seq), "")
    return StuckRank(
        line,
        rank,
        group,
        seq,
        op,
        _elements(work),
    )


def _number(digits: str | None) -> int | None:
    return int(digits) if digits else None


def _elements(work: re.Match[str]) -> int | None:
    """Return the number of elements that the rank gives, None if it is not known."""
    numel = _number(work["numel"])
    if numel is None:
        return _product(work["shape"])
    return numel if numel < _LARGEST_TENSOR else None


def _product(shape: str | None) -> int | None:
    """Return the number of elements of a shape such as «4, 1024»."""
    if shape is None:
        return None
    product = 1
    for size in re.findall(r"\d+", shape):
        product *= int(size)
    return product


def _without_repeated(members: list[StuckRank]) -> list[StuckRank]:
    """Drop lines without a rank that repeat a collective that is known with its rank."""
    with_rank = [member for member in members if member.rank is not None]
    known = {(member.seq, member.op) for member in with_rank}
    remaining: list[StuckRank] = []
    for member in members:
        collective = (member.seq, member.op)
        if member.rank is None and collective in known:
            continue
        remaining.append(member)
    return remaining


def _known_by_place(log: LogFile, members: list[StuckRank], groups: Groups) -> Iterator[StuckRank]:
    """Yield ranks that say at which sequence number they timed out, and not in which collective.

    It was the same collective as that of the others at this number.
    """
    present = {(member.group, member.rank) for member in members}
    by_seq = {member.seq: member for member in members}
    for line in log.lines_with("timeout at", "watchdog at work"):
        match = _AT.search(line.message)
        rank = groups.rank_of(line)
        if match is None or rank is None:
            continue
        seq = int(match["seq"])
        member = by_seq.get(seq)
        if member is None:
            continue
        own = (group_of(line), rank)
        same = (member.group, rank)
        if own in present or same in present:
            continue
        present.add(own)
        yield replace(member, line=line, rank=rank, group=own[0] or member.group)


def _in_known_groups(members: list[StuckRank]) -> list[StuckRank]:
    """Return the members with the group of others in the same collective if theirs is not told.

    If the log names one group alone, it is that.
    """
    named = {member.group for member in members if member.group}
    only = named.pop() if len(named) == 1 else ""
    by_collective = {(m.seq, m.op, m.numel): m.group for m in members if m.group}
    rows: list[StuckRank] = []
    for member in members:
        group = member.group
        if not group:
            group = by_collective.get((member.seq, member.op, member.numel), only)
        rows.append(replace(member, group=group))
    return rows


# ---------------------------------------------------------------- which ranks there are


def progress_of(log: LogFile, groups: Groups) -> list[Progress]:
    """Return how far each rank says that it came in each group. The last line of a rank counts."""
    rows: dict[tuple[str, int], Progress] = {}
    for line in log.lines_with("last enqueued"):
        match = _LAST.search(line.text)
        rank = groups.rank_of(line)
        if match is None or rank is None:
            continue
        group = group_of(line)
        enqueued = int(match["enqueued"])
        completed = int(match["completed"])
        rows[group, rank] = Progress(line, rank, group, enqueued, completed)
    return list(rows.values())


def timed_out_ranks(log: LogFile, groups: Groups) -> set[int]:
    """Return the ranks whose watchdog told of a time-out, or that torchrun says ended by SIGABRT.

    Torch ends a process by this signal after one of its collectives timed out.
    """
    ranks: set[int] = set()
    for line in log.lines_with("operation timeout:"):
        rank = groups.rank_of(line)
        if rank is not None:
            ranks.add(rank)
    for worker in failed_workers(log):
        if worker.code == _SIGABRT and worker.culprit and worker.culprit[0] == "rank":
            ranks.add(int(worker.culprit[1]))
    return ranks


def summarised_ranks(log: LogFile) -> set[int]:
    """Return all ranks that torchrun's summary names."""
    ranks: set[int] = set()
    for worker in failed_workers(log):
        if worker.culprit and worker.culprit[0] == "rank":
            ranks.add(int(worker.culprit[1]))
    return ranks


def known_ranks(log: LogFile, present: Iterable[int]) -> set[int]:
    """Return all ranks of the job that the log shows to be there.

    With rank 5 there are ranks 0 to 4 too.
    """
    highest = max([*present, *summarised_ranks(log)], default=-1)
    size = max(world_size(log), highest + 1)
    size = min(size, _LARGEST_WORLD)
    return {*log.ranks, *range(size)}


def world_size(log: LogFile) -> int:
    """Return the largest world size that the log tells, 0 if it tells none."""
    world = 0
    for line in log.lines_with("nranks", "world"):
        match = _WORLD.search(line.message)
        if match:
            number = int(match["a"] or match["b"])
            world = max(world, number)
    return world if world <= _LARGEST_WORLD else 0
