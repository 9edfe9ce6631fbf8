"""Explains why collectives timed out: ranks that are behind, that differ or that are missing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from clusterprep.jobs.diagnose.model import Culprits, Evidence, LogFile, LogLine, Place, Weight
from clusterprep.runtime.lazy_dataclass import dataclass

_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)"
    r"(?:, TensorShape=\[(?P<shape>[^\]]*)\])?"
    r"(?:, NumelIn=(?P<numel>\d+))?(?:, NumelOut=(?P<out>\d+))?"
    r"(?:, Timeout\(ms\)=(?P<limit>\d+))?\)",
    re.IGNORECASE,
)
_SAYS_TIMEOUT = re.compile(r"timeout|timed out|milliseconds before", re.IGNORECASE)
_LAST = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+),? "
    r"(?:and )?last completed (?:NCCL )?work: (?P<completed>-?\d+)",
    re.IGNORECASE,
)
_AT = re.compile(
    r"(?:Timeout at NCCL work|watchdog at work(?: sequence id)?): (?P<seq>\d+)", re.IGNORECASE
)
_GROUP = re.compile(r"\[PG (?:ID )?(?P<group>\S+)")
_WORLD = re.compile(r"\bnranks (?P<a>\d+)|\bworld[_ ]size[=: ]+(?P<b>\d+)", re.IGNORECASE)
_RANK_IN_WORDS = re.compile(r"\brank[ :]*(\d{1,5})\b", re.IGNORECASE)
_PREPARING = re.compile(
    r"tokeniz|examples/s|map \(num_proc|preprocess"
    r"|saving (?:[a-z]+ ){0,2}(?:checkpoint|model|state)|checkpoint.{0,30}(?:sav|writ)"
    r"|generating train split|building (?:the )?(?:index|dataset|cache)",
    re.IGNORECASE,
)
WORK_NEEDLES = (
    "tokeniz",
    "examples/s",
    "num_proc",
    "preprocess",
    "saving ",
    "checkpoint",
    "train split",
    "building ",
    "evaluat",
)
_ALL_PRESENT = "all ranks that the log has were in the same collective"
# Collectives after which a job is past its start. Before it ranks differ by their code rather than
# by their data.
LATE = 200
_FIRST_COLLECTIVES = 10  # if one of these never works, the path between GPUs may be at fault
_LARGEST_WORLD = 4096  # a larger number in a log is taken for something else
_MOST_BLAMED = 8  # ranks; if more are missing, none is named
_MOST_TOLD = 4  # ranks whose collectives a note lists
_SMALL_TENSOR = 16  # elements at most of a flag or a counter
_LARGE_TENSOR = 1000  # elements; such a tensor is data of the model
_BARRIERS = frozenset({"BARRIER"})


@dataclass(frozen=True)
class StuckRank:
    """A collective that timed out on one rank."""

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
        return self.op in _BARRIERS


# ---------------------------------------------------------------- which collectives timed out


def stuck(log: LogFile) -> list[StuckRank]:
    """Return the earliest collective that timed out of each rank and process group."""
    first: dict[tuple[str, int | None, int], StuckRank] = {}
    heads = _broken_off_lines(log)
    for line in log.lines_with("worknccl("):
        work = _WORK.search(line.text)
        if work is None or not _SAYS_TIMEOUT.search(line.text):
            continue
        # Some loggers break the message in two; then the rank is in the line before.
        head = heads.get(line.place, line)
        member = _stuck_rank(line, head, work)
        unknown_rank = line.order if member.rank is None else 0
        first.setdefault((member.group, member.rank, unknown_rank), member)
    members = _without_repeated(list(first.values()))
    members.extend(list(_known_by_place(log, members)))
    return members


def _broken_off_lines(log: LogFile) -> dict[Place, LogLine]:
    """Return lines that end before what timed out, by the place of the line that goes on."""
    lines: dict[Place, LogLine] = {}
    for line in log.lines_with("operation timeout:"):
        if not _WORK.search(line.text):
            lines[line.file, line.number + 1] = line
    return lines


def _stuck_rank(line: LogLine, head: LogLine, work: re.Match[str]) -> StuckRank:
    """Return the collective that `line` names; rank and process group are those of `head`."""
    seq = _number(work["seq"])
    op = work["op"].upper()
    numel = _number(work["numel"])
    if numel is None:
        numel = _product(work["shape"])
    group = _group_of(head)
    return StuckRank(
        line,
        head.rank,
        group,
        seq,
        op,
        numel,
    )


def _number(digits: str | None) -> int | None:
    return int(digits) if digits else None


def _group_of(line: LogLine) -> str:
    match = _GROUP.search(line.text)
    return match["group"] if match else ""


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


def _known_by_place(log: LogFile, members: list[StuckRank]) -> Iterator[StuckRank]:
    """Yield ranks that say at which sequence number they timed out, and not in which collective.

    It was the same collective as that of the others at this number.
    """
    present = {(member.group, member.rank) for member in members}
    by_seq = {member.seq: member for member in members}
    for line in log.lines_with("timeout at nccl work", "watchdog at work"):
        match = _AT.search(line.message)
        if match is None or line.rank is None:
            continue
        seq = int(match["seq"])
        member = by_seq.get(seq)
        if member is None:
            continue
        own = (_group_of(line), line.rank)
        same = (member.group, line.rank)
        if own in present or same in present:
            continue
        present.add(own)
        yield replace(member, line=line, rank=line.rank)


# ---------------------------------------------------------------- why they timed out


def detect_timeouts(log: LogFile) -> Iterator[Evidence]:
    """Yield why collectives timed out, for every process group."""
    yield from _gloo(log)
    yield from _fingerprints(log)
    yield from _inconsistent(log)
    yield from _store_key_late(log)
    groups: dict[str, list[StuckRank]] = defaultdict(list)
    for member in stuck(log):
        groups[member.group].append(member)
    for members in groups.values():
        yield from _group(log, members)


def _group(log: LogFile, members: list[StuckRank]) -> Iterator[Evidence]:
    """Yield why the collectives of one process group timed out."""
    seqs = {member.seq for member in members if member.seq is not None}
    ops = {member.op for member in members}
    sizes = {member.numel for member in members}
    if len(seqs) > 1:
        yield from _different_places(members)
    elif len(ops) > 1:
        blamed = _minority([(member.rank, member.op) for member in members])
        note = _whereabouts(members)
        yield from _each(
            members,
            "rank_desync_control_flow",
            Weight.PLAIN,
            blamed,
            note,
        )
    elif len(sizes) > 1:
        yield from _different_sizes(members)
    else:
        yield from _same_collective(log, members)


def _different_sizes(members: list[StuckRank]) -> Iterator[Evidence]:
    """Yield evidence that the ranks are in one collective with tensors of different sizes.

    A flag beside data of the model shows that the ranks ran different lines of the program.
    """
    sizes = [member.numel for member in members if member.numel is not None]
    has_flag = min(sizes) <= _SMALL_TENSOR
    has_data = max(sizes) > _LARGE_TENSOR
    cause = "collective_mismatch"
    if has_flag and has_data:
        cause = "rank_desync_control_flow"
    blamed = _minority([(member.rank, member.numel) for member in members])
    yield from _each(
        members,
        cause,
        Weight.PLAIN,
        blamed,
        _whereabouts(members),
    )


def _different_places(members: list[StuckRank]) -> Iterator[Evidence]:
    """Sequence numbers differ: the ranks at the lowest are to blame if they are the fewer.

    If not, those at the highest are, under the same condition.
    """
    seqs = [member.seq for member in members if member.seq is not None]
    lowest = min(seqs)
    highest = max(seqs)
    half = len(members) / 2
    blamed: Culprits = ()
    if seqs.count(lowest) <= half:
        blamed = _ranks_at(members, lowest)
    if not blamed and seqs.count(highest) <= half:
        blamed = _ranks_at(members, highest)
    cause = "rank_desync_uneven_data" if lowest >= LATE else "rank_desync_control_flow"
    yield from _each(
        members,
        cause,
        Weight.LIKELY,
        blamed,
        _whereabouts(members),
    )


def _ranks_at(members: list[StuckRank], seq: int) -> Culprits:
    return _ranks(member.rank for member in members if member.seq == seq)


def _same_collective(log: LogFile, members: list[StuckRank]) -> Iterator[Evidence]:
    """All were in the same collective: a rank did not come, or the data did not arrive."""
    preparing = _preparing(log)
    missing, all_present = _missing(log, members)
    if not missing and preparing is not None:
        missing = _busy_rank(preparing, members)
    if preparing is not None:
        yield from _slow_work(members, Weight.LIKELY, missing)
    elif not missing and _fails_from_start(members):
        cause = "ib_fabric_unreachable" if len(log.hosts) > 1 else "p2p_acs_iommu"
        yield from _each(
            members,
            cause,
            Weight.SYMPTOM,
            (),
            _ALL_PRESENT,
        )
    elif _is_at_start(members[0]):
        weight = Weight.LIKELY if members[0].is_barrier else Weight.SYMPTOM
        yield from _slow_work(members, weight, missing)
    else:
        yield from _uneven_data(members, missing, all_present=all_present)


def _is_at_start(member: StuckRank) -> bool:
    """Whether a collective is one of those before the first step, or a barrier at an unknown place.

    Late in a run an all-reduce of one element is a flag or a sum, and not the barrier at the start.
    """
    if member.seq is None:
        return member.is_barrier
    return member.seq < LATE


def _slow_work(members: list[StuckRank], weight: Weight, missing: list[int]) -> Iterator[Evidence]:
    blamed = _ranks(missing)
    note = _others_waited(missing)
    yield from _each(
        members,
        "slow_work_exceeds_timeout",
        weight,
        blamed,
        note,
    )


def _uneven_data(
    members: list[StuckRank], missing: list[int], *, all_present: bool
) -> Iterator[Evidence]:
    is_late = members[0].seq is not None
    weight = Weight.LIKELY if is_late and not all_present else Weight.SYMPTOM
    note = _ALL_PRESENT if all_present else _others_waited(missing)
    yield from _each(
        members,
        "rank_desync_uneven_data",
        weight,
        _ranks(missing),
        note,
    )


def _fails_from_start(members: list[StuckRank]) -> bool:
    """Whether several ranks entered one of the first collectives and it never ended."""
    first = members[0]
    if first.seq is None or first.is_barrier:
        return False
    return first.seq <= _FIRST_COLLECTIVES and len(members) > 1


def _preparing(log: LogFile) -> LogLine | None:
    """Return a line that tells of work such as tokenizing or saving.

    The whole text is searched: a progress bar is taken for a prefix of what was written behind it.
    """
    for line in log.lines_with(*WORK_NEEDLES):
        if _PREPARING.search(line.text):
            return line
    return None


def _busy_rank(preparing: LogLine, members: list[StuckRank]) -> list[int]:
    """Return the rank that a line about work names, if it is not one of those that timed out."""
    rank = preparing.rank
    if rank is None:
        match = _RANK_IN_WORDS.search(preparing.text)
        rank = int(match[1]) if match else None
    present = {member.rank for member in members}
    if rank is None or rank in present:
        return []
    return [rank]


def _missing(log: LogFile, members: list[StuckRank]) -> tuple[list[int], bool]:
    """Return ranks that did not time out, and whether all ranks are known to have."""
    present = {member.rank for member in members if member.rank is not None}
    if not present:
        return [], False
    missing = _behind_by_status(log, members)
    if not missing:
        size = max(_world_size(log), max(present) + 1)
        size = min(size, _LARGEST_WORLD)
        known = log.ranks.union(range(size))
        missing = sorted(known - present)
    if not missing:
        return [], len(present) > 1
    are_few = len(missing) <= _MOST_BLAMED
    if are_few and len(missing) < len(present):
        return missing, False
    return [], False


def _world_size(log: LogFile) -> int:
    """Return the largest world size that the log tells, 0 if it tells none."""
    world = 0
    for line in log.lines_with("nranks", "world"):
        match = _WORLD.search(line.message)
        if match:
            number = int(match["a"] or match["b"])
            world = max(world, number)
    return world if world <= _LARGEST_WORLD else 0


def _behind_by_status(log: LogFile, members: list[StuckRank]) -> list[int]:
    """Return ranks that say they have not entered what the others wait in."""
    seqs = [member.seq for member in members if member.seq is not None]
    if not seqs:
        return []
    last_enqueued: dict[int, int] = {}
    for line in log.lines_with("last enqueued"):
        match = _LAST.search(line.text)
        if match and line.rank is not None:
            last_enqueued[line.rank] = int(match["enqueued"])
    lowest = min(seqs)
    return sorted(rank for rank, seq in last_enqueued.items() if seq < lowest)


# ---------------------------------------------------------------- culprits, notes and evidence


def _ranks(ranks: Iterable[int | str | None]) -> Culprits:
    """Return the ranks as culprits, without those that are not known."""
    return tuple(("rank", str(rank)) for rank in ranks if rank is not None)


def _others_waited(ranks: list[int]) -> str:
    if not ranks:
        return ""
    noun = "rank" if len(ranks) == 1 else "ranks"
    listed = ", ".join(str(rank) for rank in ranks)
    return f"the others waited for {noun} {listed}"


def _whereabouts(members: list[StuckRank]) -> str:
    """Return «rank 0 in ALLREDUCE #12 of 4 elements, rank 1 in …», for a few."""
    parts: list[str] = []
    for member in members[:_MOST_TOLD]:
        part = "a rank" if member.rank is None else f"rank {member.rank}"
        part += f" in {member.op}"
        if member.seq is not None:
            part += f" #{member.seq}"
        if member.numel is not None:
            part += f" of {member.numel:,} elements"
        parts.append(part)
    listed = ", ".join(parts)
    return f"{listed} …" if len(members) > _MOST_TOLD else listed


def _minority(values: list[tuple[int | None, object]]) -> Culprits:
    """Return the ranks whose value is not the usual one; none if no value has the majority."""
    counts = Counter(value for _, value in values)
    usual, votes = counts.most_common(1)[0]
    if votes * 2 <= len(values):
        return ()
    return _ranks(rank for rank, value in values if value != usual)


def _each(
    members: list[StuckRank], cause: str, weight: Weight, blamed: Culprits, note: str
) -> Iterator[Evidence]:
    """Yield evidence for every line; the first one has the culprits and the note."""
    yield Evidence(
        cause,
        members[0].line,
        weight,
        blamed,
        note,
    )
    for member in members[1:]:
        yield Evidence(cause, member.line, weight)


# ---------------------------------------------------------------- gloo, without sequence numbers


_GLOO = re.compile(
    r"Timed out waiting \d+ms for (?:recv|send)|Application timeout caused pair closure",
    re.IGNORECASE,
)
_FRAME = re.compile(
    r"distributed_c10d\.py\", line \d+, in (?P<op>all_reduce|broadcast|all_gather\w*"
    r"|reduce_scatter\w*|barrier|all_to_all\w*|gather|scatter|reduce|send|recv"
    r"|broadcast_object_list)$"
)


def _gloo(log: LogFile) -> Iterator[Evidence]:
    """Yield why collectives of gloo timed out: missing ranks, and calls that differ."""
    waiting = log.lines_with("timed out waiting", "application timeout")
    waited = [line for line in waiting if _GLOO.search(line.message)]
    if not waited:
        return
    first = waited[0]
    present = {line.rank for line in waited if line.rank is not None}
    # The rank that gives up first closes its connections, so others that waited as long print
    # that instead.
    closed = log.lines_with("closed by peer", "reset by peer")
    cut_off = {line.rank for line in closed if line.rank is not None}
    calls = _calls(log, present | cut_off)
    if len(set(calls.values())) > 1:
        blamed = _minority(list(calls.items()))
        parts = [f"rank {rank} in {op}" for rank, op in calls.items()]
        note = ", ".join(parts[:_MOST_TOLD])
        yield Evidence(
            "rank_desync_control_flow",
            first,
            Weight.LIKELY,
            blamed,
            note,
        )
    highest = max(present, default=-1)
    size = min(highest + 1, _LARGEST_WORLD)
    known = log.ranks.union(range(size))
    missing = sorted(known - present - cut_off)
    if len(missing) >= len(present):
        missing = []
    weight = Weight.LIKELY if _preparing(log) else Weight.SYMPTOM
    note = _others_waited(missing)
    yield Evidence(
        "slow_work_exceeds_timeout",
        first,
        weight,
        _ranks(missing),
        note,
    )


def _calls(log: LogFile, ranks: set[int]) -> dict[int | None, object]:
    """Return the call of torch.distributed in which the traceback of each rank ends."""
    calls: dict[int | None, object] = {}
    for line in log.lines_with("distributed_c10d.py"):
        match = _FRAME.search(line.message)
        if match and line.rank in ranks:
            calls[line.rank] = match["op"]
    return calls


_STORE = re.compile(
    r"retr(?:ie|ei)ving ncclUniqueId from \[(?P<rank>\d+)\].*(?:time|timed) ?out"
    r"|waitForInput: socket .* timed out after",
    re.IGNORECASE,
)


def _store_key_late(log: LogFile) -> Iterator[Evidence]:
    """Yield evidence of a key of the store that came too late, while a rank prepared its data."""
    if _preparing(log) is None:
        return
    for line in log.lines_with("ncclunique", "waitforinput"):
        match = _STORE.search(line.message)
        if match is None:
            continue
        rank = match["rank"]
        blamed = _ranks([rank]) if rank else ()
        note = f"the others waited for rank {rank}" if rank else ""
        yield Evidence(
            "slow_work_exceeds_timeout",
            line,
            Weight.LIKELY,
            blamed,
            note,
        )


# ------------------------------------- what torch itself compares, with TORCH_DISTRIBUTED_DEBUG


_MISMATCH = re.compile(
    r"Detected mismatch between collectives on ranks\. "
    r"Rank (?P<a>\d+) is running collective: (?P<one>.*?), but "
    r"Rank (?P<b>\d+) is running collective: (?P<other>.*?\))(?:\.|$)",
    re.IGNORECASE,
)
_FINGERPRINT = re.compile(
    r"(?:SequenceNumber=(?P<seq>\d+))?(?:, )?OpType=(?P<op>\w+)", re.IGNORECASE
)


_INCONSISTENT = re.compile(
    r"Detected mismatch between collectives on ranks\. "
    r"Rank (?P<rank>\d+) is running inconsistent collective: "
    r"CollectiveFingerPrint\(.*?OpType=(?P<op>\w+)",
    re.IGNORECASE,
)


def _inconsistent(log: LogFile) -> Iterator[Evidence]:
    """Yield what ranks run that are in different collectives, as torch 1.10 to 1.12 says it.

    These versions name no pair: each rank says what it runs itself.
    """
    lines: list[LogLine] = []
    parts: list[str] = []
    ranks: dict[str, None] = {}  # each once, in order
    ops: set[str] = set()
    for line in log.lines_with("is running inconsistent collective"):
        match = _INCONSISTENT.search(line.message)
        if match is None:
            continue
        rank = match["rank"]
        op = match["op"]
        lines.append(line)
        parts.append(f"rank {rank} is in {op}")
        ranks[rank] = None
        ops.add(op.upper())
    # A barrier has no sizes that could differ.
    other_op = len(ops) > 1 or ops <= _BARRIERS
    cause = "rank_desync_control_flow" if other_op else "collective_mismatch"
    blamed: Culprits = ()
    if len(ranks) == 1:
        blamed = _ranks(ranks)
    elif len(ranks) == 2:
        blamed = (("ranks", " and ".join(ranks)),)
    note = ", ".join(parts[:_MOST_TOLD])
    for line in lines:
        yield Evidence(
            cause,
            line,
            Weight.PLAIN,
            blamed,
            note,
        )


def _fingerprints(log: LogFile) -> Iterator[Evidence]:
    """Yield the two ranks that torch says are in different collectives.

    It may name several pairs; the rank that is in all of them is the one that differs.
    """
    pairs: list[tuple[LogLine, re.Match[str]]] = []
    for line in log.lines_with("detected mismatch between collectives"):
        match = _MISMATCH.search(line.message)
        if match:
            pairs.append((line, match))
    in_all = _in_all_pairs([match for _, match in pairs])
    for line, match in pairs:
        a = match["a"]
        b = match["b"]
        blamed = (("ranks", f"{a} and {b}"),)
        if in_all is not None:
            blamed = (("rank", in_all),)
        one = _FINGERPRINT.search(match["one"])
        other = _FINGERPRINT.search(match["other"])
        cause = "rank_desync_control_flow"
        if _are_same_call(one, other):
            cause = "collective_mismatch"
        call_of_a = _call(one)
        call_of_b = _call(other)
        note = f"rank {a} is in {call_of_a}, rank {b} in {call_of_b}"
        yield Evidence(
            cause,
            line,
            Weight.PLAIN,
            blamed,
            note,
        )


def _in_all_pairs(pairs: list[re.Match[str]]) -> str | None:
    """Return the only rank that is in all pairs `a` and `b`; None for a single pair, or if none is.

    One pair does not tell which of its two ranks differs.
    """
    if len(pairs) < 2:
        return None
    counts: Counter[str] = Counter()
    for pair in pairs:
        counts.update({pair["a"], pair["b"]})
    in_all = [rank for rank, count in counts.items() if count == len(pairs)]
    return in_all[0] if len(in_all) == 1 else None


def _are_same_call(one: re.Match[str] | None, other: re.Match[str] | None) -> bool:
    if one is None or other is None:
        return False
    return one.group("op", "seq") == other.group("op", "seq")


def _call(fingerprint: re.Match[str] | None) -> str:
    if fingerprint is None:
        return "another"
    op, seq = fingerprint.group("op", "seq")
    return f"{op} #{seq}" if seq else str(op)
