"""Collectives that timed out: who is behind, who differs, who is missing, and so why."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from clusterprep.jobs.diagnose.model import Evidence, LogFile, LogLine, Weight
from clusterprep.runtime.lazy_dataclass import dataclass

_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, TensorShape=\[(?P<shape>[^\]]*)\])?"
    r"(?:, NumelIn=(?P<numel>\d+))?(?:, NumelOut=(?P<out>\d+))?(?:, Timeout\(ms\)=(?P<limit>\d+))?\)",
    re.IGNORECASE,
)
_LAST = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+),? (?:and )?last completed (?:NCCL )?work: (?P<completed>-?\d+)",
    re.IGNORECASE,
)
_AT = re.compile(
    r"(?:Timeout at NCCL work|watchdog at work(?: sequence id)?): (?P<seq>\d+)", re.IGNORECASE
)
_GROUP = re.compile(r"\[PG (?:ID )?(?P<group>\S+)")
_WORLD = re.compile(r"\bnranks (?P<a>\d+)|\bworld[_ ]size[=: ]+(?P<b>\d+)", re.IGNORECASE)
_TIMED_OUT = re.compile(r"Watchdog caught collective operation timeout", re.IGNORECASE)
_PREPARING = re.compile(
    r"tokeniz|examples/s|map \(num_proc|preprocess|saving (?:[a-z]+ ){0,2}(?:checkpoint|model|state)|"
    r"checkpoint.{0,30}(?:sav|writ)|"
    r"generating train split|building (?:the )?(?:index|dataset|cache)",
    re.IGNORECASE,
)
WORDS_OF_WORK = (
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
_ALL_THERE = "all ranks that the log has were in the same collective"
LATE = 200  # collectives after which a job is past its start; before it ranks differ by code rather than by data
_BARRIERS = frozenset({"BARRIER"})


@dataclass(frozen=True)
class StuckRanks:
    """A collective that timed out on one rank."""

    line: LogLine
    rank: int | None
    group: str
    seq: int | None
    op: str
    numel: int | None

    @property
    def barrier(self) -> bool:
        """torch's NCCL barrier is an all-reduce of one element."""
        return self.op in _BARRIERS or (self.op == "ALLREDUCE" and self.numel == 1)


def stuck(log: LogFile) -> list[StuckRanks]:
    """One for each rank and group: the earliest."""
    found: dict[tuple[str, int | None, int], StuckRanks] = {}
    opened = {
        (line.file, line.number + 1): line
        for line in log.saying("operation timeout:")
        if not _WORK.search(line.text)
    }
    for line in log.saying("worknccl("):
        work = _WORK.search(line.text)
        head = opened.get((line.file, line.number), line)  # some loggers break the message in two
        if work is None or not re.search(
            r"timeout|timed out|milliseconds before", line.text, re.IGNORECASE
        ):
            continue
        group = _GROUP.search(head.text)
        numel = work["numel"] or _product(work["shape"])
        one = StuckRanks(
            line,
            head.rank,
            group["group"] if group else "",
            int(work["seq"]) if work["seq"] else None,
            work["op"].upper(),
            int(numel) if numel else None,
        )
        alone = line.order if head.rank is None else 0
        found.setdefault((one.group, one.rank, alone), one)
    named = {(one.seq, one.op) for one in found.values() if one.rank is not None}
    members = [
        one for one in found.values() if one.rank is not None or (one.seq, one.op) not in named
    ]
    return [*members, *_also(log, members)]


def _also(log: LogFile, members: list[StuckRanks]) -> Iterator[StuckRanks]:
    """Ranks that say where they were when they timed out, and not in what: in the same as others at that place."""
    there = {(one.group, one.rank) for one in members}
    alike = {one.seq: one for one in members}
    for line in log.saying("timeout at nccl work", "watchdog at work"):
        found, group = _AT.search(line.said), _GROUP.search(line.text)
        place = (group["group"] if group else "", line.rank)
        one = alike.get(int(found["seq"])) if found else None
        if one is None or line.rank is None or place in there or (one.group, line.rank) in there:
            continue
        there.add(place)
        yield replace(one, line=line, rank=line.rank)


def _product(shape: str | None) -> str | None:
    if shape is None:
        return None
    product = 1
    for size in re.findall(r"\d+", shape):
        product *= int(size)
    return str(product)


def judge(log: LogFile) -> Iterator[Evidence]:
    """Of every group of processes whose collectives timed out, why."""
    yield from _gloo(log)
    yield from _fingerprints(log)
    yield from _inconsistent(log)
    yield from _kept_waiting(log)
    groups: dict[str, list[StuckRanks]] = defaultdict(list)
    for one in stuck(log):
        groups[one.group].append(one)
    for members in groups.values():
        yield from _group(log, members)


def _group(log: LogFile, members: list[StuckRanks]) -> Iterator[Evidence]:
    seqs = {m.seq for m in members if m.seq is not None}
    kinds = {(m.op, m.numel) for m in members}
    ops = {m.op for m in members}
    if len(seqs) > 1:
        yield from _behind(members)
    elif len(ops) > 1:
        blamed = _minority([(m.rank, m.op) for m in members])
        yield from _each(members, "rank_desync_control_flow", Weight.PLAIN, blamed, _told(members))
    elif len(kinds) > 1:
        sizes = [m.numel for m in members if m.numel is not None]
        apart = min(sizes) <= 16 and max(sizes) > 1000
        name = "rank_desync_control_flow" if apart else "collective_mismatch"
        blamed = _minority([(m.rank, m.numel) for m in members])
        yield from _each(members, name, Weight.PLAIN, blamed, _told(members))
    else:
        yield from _missing(log, members)


def _behind(members: list[StuckRanks]) -> Iterator[Evidence]:
    """Sequence numbers differ: the lowest are behind, if they are the fewer."""
    counts = Counter(m.seq for m in members if m.seq is not None)
    low, high = min(counts), max(counts)
    blamed = tuple(("rank", str(m.rank)) for m in members if m.seq == low and m.rank is not None)
    blamed = blamed if counts[low] * 2 <= len(members) else ()
    if not blamed and counts[high] * 2 <= len(members):
        blamed = tuple(
            ("rank", str(m.rank)) for m in members if m.seq == high and m.rank is not None
        )
    name = "rank_desync_uneven_data" if low >= LATE else "rank_desync_control_flow"
    yield from _each(members, name, Weight.LIKELY, blamed, _told(members))


def _missing(log: LogFile, members: list[StuckRanks]) -> Iterator[Evidence]:
    """All that timed out were in the same collective, so somebody did not come, or it went wrong on the way."""
    first = members[0]
    blamed, all_there = _absent(log, members)
    there = {m.rank for m in members}
    late = first.seq is not None and first.seq >= LATE
    preparing = _preparing(log)
    if (
        not blamed
        and preparing is not None
        and (busy := _rank_of(preparing)) is not None
        and busy not in there
    ):
        blamed = (("rank", str(busy)),)
    early = first.seq is not None and first.seq <= 10 and len(members) > 1 and not blamed
    if early and not first.barrier and preparing is None:
        name = "ib_fabric_unreachable" if len(log.hosts) > 1 else "p2p_acs_iommu"
        yield from _each(members, name, Weight.SYMPTOM, (), _ALL_THERE)
    elif (
        preparing is not None
        or (first.barrier and not late)
        or (not late and first.seq is not None)
    ):
        # an all-reduce of one element in the midst of a run is a flag or a sum, not the barrier before the start
        weight = Weight.LIKELY if preparing is not None or first.barrier else Weight.SYMPTOM
        yield from _each(members, "slow_work_exceeds_timeout", weight, blamed, _who(blamed))
    else:
        weight = Weight.LIKELY if late and not all_there else Weight.SYMPTOM
        note = _ALL_THERE if all_there else _who(blamed)
        yield from _each(members, "rank_desync_uneven_data", weight, blamed, note)


def _preparing(log: LogFile) -> LogLine | None:
    """A line of honest work; a progress bar is taken for a prefix of what was written behind it."""
    return next((line for line in log.saying(*WORDS_OF_WORK) if _PREPARING.search(line.text)), None)


def _absent(log: LogFile, members: list[StuckRanks]) -> tuple[tuple[tuple[str, str], ...], bool]:
    """Ranks that did not time out, and whether all ranks are known to have."""
    there = {m.rank for m in members if m.rank is not None}
    if not there:
        return (), False
    world = max(
        (
            int(f["a"] or f["b"])
            for line in log.saying("nranks", "world")
            if (f := _WORLD.search(line.said))
        ),
        default=0,
    )
    behind = _behind_by_status(log, members)
    known = set(range(max(world if world <= 4096 else 0, max(there) + 1))) | log.ranks
    gone = behind or sorted(known - there)
    if gone and len(gone) < len(there) and len(gone) <= 8:
        return tuple(("rank", str(rank)) for rank in gone), False
    return (), not gone and len(there) > 1


def _behind_by_status(log: LogFile, members: list[StuckRanks]) -> list[int]:
    """Ranks that say they have not entered what the others wait in."""
    seqs = [m.seq for m in members if m.seq is not None]
    if not seqs:
        return []
    found = {
        line.rank: f
        for line in log.saying("last enqueued")
        if line.rank is not None and (f := _LAST.search(line.text))
    }
    return sorted(rank for rank, last in found.items() if int(last["enqueued"]) < min(seqs))


def _rank_of(line: LogLine) -> int | None:
    """Of a line that says what somebody does: the prefix's rank, or one in words."""
    found = re.search(r"\brank[ :]*(\d{1,5})\b", line.text, re.IGNORECASE)
    return line.rank if line.rank is not None else int(found[1]) if found else None


def _who(blamed: tuple[tuple[str, str], ...]) -> str:
    ranks = ", ".join(name for _, name in blamed)
    return (
        f"the others waited for {'rank' if len(blamed) == 1 else 'ranks'} {ranks}" if blamed else ""
    )


def _told(members: list[StuckRanks]) -> str:
    """«rank 0 in ALLREDUCE #12 of 4 elements, rank 1 in …», for a few."""
    parts = []
    for m in members[:4]:
        who = f"rank {m.rank}" if m.rank is not None else "a rank"
        where = f" #{m.seq}" if m.seq is not None else ""
        size = f" of {m.numel:,} elements" if m.numel is not None else ""
        parts.append(f"{who} in {m.op}{where}{size}")
    return ", ".join(parts) + (" …" if len(members) > 4 else "")


def _minority(values: list[tuple[int | None, object]]) -> tuple[tuple[str, str], ...]:
    counts = Counter(value for _, value in values)
    usual, votes = counts.most_common(1)[0]
    if votes * 2 <= len(values):
        return ()
    return tuple(
        ("rank", str(rank)) for rank, value in values if value != usual and rank is not None
    )


def _each(
    members: list[StuckRanks],
    name: str,
    weight: Weight,
    blamed: tuple[tuple[str, str], ...],
    note: str,
) -> Iterator[Evidence]:
    for number, member in enumerate(members):
        yield Evidence(
            name, member.line, weight, blamed if not number else (), note if not number else ""
        )


# ---------------------------------------------------------------- gloo, which has no sequence numbers


_GLOO = re.compile(
    r"Timed out waiting \d+ms for (?:recv|send)|Application timeout caused pair closure",
    re.IGNORECASE,
)
_FRAME = re.compile(
    r"distributed_c10d\.py\", line \d+, in (?P<op>all_reduce|broadcast|all_gather\w*|reduce_scatter\w*|barrier|"
    r"all_to_all\w*|"
    r"gather|scatter|reduce|send|recv|broadcast_object_list)$"
)


def _gloo(log: LogFile) -> Iterator[Evidence]:
    """Ranks whose waiting ended, those that are missing among them, and in which calls their tracebacks are."""
    waited = [
        line
        for line in log.saying("timed out waiting", "application timeout")
        if _GLOO.search(line.said)
    ]
    there = {line.rank for line in waited if line.rank is not None}
    if not waited:
        return
    # Whoever gives up first closes its connections, so others that waited as long tell of that instead.
    cut = {
        line.rank for line in log.saying("closed by peer", "reset by peer") if line.rank is not None
    }
    calls = {
        line.rank: f["op"]
        for line in log.saying("distributed_c00d.py")
        if line.rank in there | cut and (f := _FRAME.search(line.said))
    }
    if len(set(calls.values())) > 1:
        blamed = _minority(list(calls.items()))
        told = ", ".join(f"rank {rank} in {op}" for rank, op in list(calls.items())[:4])
        yield Evidence("rank_desync_control_flow", waited[0], Weight.LIKELY, blamed, told)
    preparing = _preparing(log)
    known = log.ranks | set(range(max(there, default=-1) + 1))
    gone = sorted(known - there - cut)
    blamed = tuple(("rank", str(rank)) for rank in gone) if gone and len(gone) < len(there) else ()
    weight = Weight.LIKELY if preparing else Weight.SYMPTOM
    yield Evidence("slow_work_exceeds_timeout", waited[0], weight, blamed, _who(blamed))


_STORE = re.compile(
    r"retr(?:ie|ei)ving ncclUniqueId from \[(?P<rank>\d+)\].*(?:time|timed) ?out"
    r"|waitForInput: socket .* timed out after",
    re.IGNORECASE,
)


def _kept_waiting(log: LogFile) -> Iterator[Evidence]:
    """A key of the store that came too late, while somebody was at honest work."""
    if _preparing(log) is None:
        return
    for line in log.saying("ncclunique", "waitforinput"):
        if found := _STORE.search(line.said):
            blamed = (("rank", found["rank"]),) if found["rank"] else ()
            yield Evidence("slow_work_exceeds_timeout", line, Weight.LIKELY, blamed, _who(blamed))


# ---------------------------------------------------------------- what torch itself compares, where it is asked to


_MISMATCH = re.compile(
    r"Detected mismatch between collectives on ranks\. Rank (?P<a>\d+) is running collective: (?P<one>.*?), but Rank "
    r"(?P<b>\d+) "
    r"is running collective: (?P<other>.*?\))(?:\.|$)",
    re.IGNORECASE,
)
_PRINT = re.compile(r"(?:SequenceNumber=(?P<seq>\d+))?(?:, )?OpType=(?P<op>\w+)", re.IGNORECASE)


_OLD = re.compile(
    r"Detected mismatch between collectives on ranks\. Rank (?P<rank>\d+) is running inconsistent collective: "
    r"CollectiveFingerPrint\(.*?OpType=(?P<op>\w+)",
    re.IGNORECASE,
)


def _inconsistent(log: LogFile) -> Iterator[Evidence]:
    """torch 1.10 to 1.12 names no pair: each rank says what it runs itself."""
    rows = [
        (line, f)
        for line in log.saying("is running inconsistent collective")
        if (f := _OLD.search(line.said))
    ]
    ranks = list(dict.fromkeys(f["rank"] for _, f in rows))
    ops = {f["op"].upper() for _, f in rows}
    apart = len(ops) > 1 or ops <= _BARRIERS  # a barrier has no sizes that could differ
    blamed = (
        ("ranks", " and ".join(ranks))
        if len(ranks) == 2
        else ("rank", ranks[0])
        if len(ranks) == 1
        else None
    )
    told = ", ".join(f"rank {f['rank']} is in {f['op']}" for _, f in rows[:4])
    for line, _ in rows:
        name = "rank_desync_control_flow" if apart else "collective_mismatch"
        yield Evidence(name, line, Weight.PLAIN, (blamed,) if blamed else (), told)


def _fingerprints(log: LogFile) -> Iterator[Evidence]:
    """torch names two ranks that differ. Who is in most of the pairs is the odd one, for torch may name each pair."""
    pairs = [
        (line, f)
        for line in log.saying("detected mismatch between collectives")
        if (f := _MISMATCH.search(line.said))
    ]
    counts = Counter(rank for _, f in pairs for rank in {f["a"], f["b"]})
    odd = [rank for rank, times in counts.items() if times == len(pairs)] if len(pairs) > 1 else []
    for line, found in pairs:
        one, other = _PRINT.search(found["one"]), _PRINT.search(found["other"])
        same = one is not None and other is not None and one["op"] == other["op"]
        apart = same and one is not None and other is not None and one["seq"] != other["seq"]
        name = "collective_mismatch" if same and not apart else "rank_desync_control_flow"
        blamed = ("rank", odd[0]) if len(odd) == 1 else ("ranks", f"{found['a']} and {found['b']}")
        told = f"rank {found['a']} is in {_in_words(one)}, rank {found['b']} in {_in_words(other)}"
        yield Evidence(name, line, Weight.PLAIN, (blamed,), told)


def _in_words(found: re.Match[str] | None) -> str:
    if found is None:
        return "another"
    return found["op"] + (f" #{found['seq']}" if found["seq"] else "")
