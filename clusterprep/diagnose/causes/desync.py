"""Ranks that are not in the same place: who is behind, who differs, who is missing from the time-outs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from clusterprep.diagnose.model import Cause, Evidence, Line, Log, Sign, Weight

_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, TensorShape=\[(?P<shape>[^\]]*)\])?"
    r"(?:, NumelIn=(?P<numel>\d+))?(?:, NumelOut=(?P<out>\d+))?(?:, Timeout\(ms\)=(?P<limit>\d+))?\)",
    re.IGNORECASE,
)
_LAST = re.compile(
    r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+),? (?:and )?last completed (?:NCCL )?work: (?P<completed>-?\d+)", re.IGNORECASE
)
_GROUP = re.compile(r"\[PG (?:ID )?(?P<group>\S+)")
_WORLD = re.compile(r"\bnranks (?P<a>\d+)|\bworld[_ ]size[=: ]+(?P<b>\d+)", re.IGNORECASE)
_TIMED_OUT = re.compile(r"Watchdog caught collective operation timeout", re.IGNORECASE)
_PREPARING = re.compile(
    r"tokeniz|examples/s|map \(num_proc|preprocess|saving (?:model |the )?(?:checkpoint|model|state)|checkpoint.{0,30}(?:sav|writ)|"
    r"generating train split|building (?:the )?(?:index|dataset|cache)|evaluat",
    re.IGNORECASE,
)
_WORDS_OF_WORK = ("tokeniz", "examples/s", "num_proc", "preprocess", "saving ", "checkpoint", "train split", "building ", "evaluat")
LATE = 200  # collectives after which a job is past its start; before it ranks differ by code rather than by data
_BARRIERS = frozenset({"BARRIER"})


@dataclass(frozen=True)
class Stuck:
    """A collective that timed out on one rank."""

    line: Line
    rank: int | None
    group: str
    seq: int | None
    op: str
    numel: int | None

    @property
    def barrier(self) -> bool:
        """torch's NCCL barrier is an all-reduce of one element."""
        return self.op in _BARRIERS or (self.op == "ALLREDUCE" and self.numel == 1)


def stuck(log: Log) -> list[Stuck]:
    """One for each rank and group: the earliest."""
    found: dict[tuple[str, int | None, int], Stuck] = {}
    opened = {(line.file, line.number + 1): line for line in log.saying("operation timeout:") if not _WORK.search(line.text)}
    for line in log.saying("worknccl("):
        work = _WORK.search(line.text)
        head = opened.get((line.file, line.number), line)  # some loggers break the message in two
        if work is None or not re.search(r"timeout|timed out|milliseconds before", line.text, re.IGNORECASE):
            continue
        group = _GROUP.search(head.text)
        numel = work["numel"] or _product(work["shape"])
        one = Stuck(
            line,
            head.rank,
            group["group"] if group else "",
            int(work["seq"]) if work["seq"] else None,
            work["op"].upper(),
            int(numel) if numel else None,
        )
        alone = line.order if head.rank is None else 0
        found.setdefault((one.group, one.rank, alone), one)
    return list(found.values())


def _product(shape: str | None) -> str | None:
    if shape is None:
        return None
    product = 1
    for size in re.findall(r"\d+", shape):
        product *= int(size)
    return str(product)


def judge(log: Log) -> Iterator[Evidence]:
    """Of every group of processes whose collectives timed out, why."""
    groups: dict[str, list[Stuck]] = defaultdict(list)
    for one in stuck(log):
        groups[one.group].append(one)
    for members in groups.values():
        yield from _group(log, members)


def _group(log: Log, members: list[Stuck]) -> Iterator[Evidence]:
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


def _behind(members: list[Stuck]) -> Iterator[Evidence]:
    """Sequence numbers differ: the lowest are behind, if they are the fewer."""
    counts = Counter(m.seq for m in members if m.seq is not None)
    low, high = min(counts), max(counts)
    blamed = tuple(("rank", str(m.rank)) for m in members if m.seq == low and m.rank is not None)
    blamed = blamed if counts[low] * 2 <= len(members) else ()
    if not blamed and counts[high] * 2 <= len(members):
        blamed = tuple(("rank", str(m.rank)) for m in members if m.seq == high and m.rank is not None)
    name = "rank_desync_uneven_data" if low >= LATE else "rank_desync_control_flow"
    yield from _each(members, name, Weight.LIKELY, blamed, _told(members))


def _missing(log: Log, members: list[Stuck]) -> Iterator[Evidence]:
    """All that timed out were in the same collective, so somebody did not come, or it went wrong on the way."""
    first = members[0]
    blamed, all_there = _absent(log, members)
    late = first.seq is not None and first.seq >= LATE
    preparing = next((line for line in log.saying(*_WORDS_OF_WORK) if _PREPARING.search(line.said)), None)
    early = first.seq is not None and first.seq <= 10 and len(members) > 1 and not blamed
    if all_there or (early and not first.barrier and preparing is None):
        if first.op != "BROADCAST" and not late and (first.barrier or preparing):
            yield from _each(members, "slow_work_exceeds_timeout", Weight.SYMPTOM, (), "")
        else:
            across = len(log.hosts) > 1
            name = "ib_fabric_unreachable" if across else "p2p_acs_iommu"
            yield from _each(members, name, Weight.SYMPTOM, (), "all ranks were in the same collective, and none got through")
    elif preparing is not None or first.barrier or (not late and first.seq is not None):
        weight = Weight.LIKELY if preparing is not None or first.barrier else Weight.SYMPTOM
        yield from _each(members, "slow_work_exceeds_timeout", weight, blamed, _who(blamed))
    else:
        weight = Weight.LIKELY if late else Weight.SYMPTOM
        yield from _each(members, "rank_desync_uneven_data", weight, blamed, _who(blamed))


def _absent(log: Log, members: list[Stuck]) -> tuple[tuple[tuple[str, str], ...], bool]:
    """Ranks that did not time out, and whether all ranks are known to have."""
    there = {m.rank for m in members if m.rank is not None}
    if not there:
        return (), False
    world = max((int(f["a"] or f["b"]) for line in log.saying("nranks", "world") if (f := _WORLD.search(line.said))), default=0)
    known = set(range(world)) if 0 < world <= 4096 else set(log.ranks)
    gone = sorted(known - there)
    if gone and len(gone) * 2 <= len(known) and len(gone) <= 8:
        return tuple(("rank", str(rank)) for rank in gone), False
    complete = not gone and (world > 0 or (len(there) > 1 and there == set(range(max(there) + 1))))
    return (), complete


def _who(blamed: tuple[tuple[str, str], ...]) -> str:
    ranks = ", ".join(name for _, name in blamed)
    return f"the others waited for {'rank' if len(blamed) == 1 else 'ranks'} {ranks}" if blamed else ""


def _told(members: list[Stuck]) -> str:
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
    return tuple(("rank", str(rank)) for rank, value in values if value != usual and rank is not None)


def _each(
    members: list[Stuck], name: str, weight: Weight, blamed: tuple[tuple[str, str], ...], note: str
) -> Iterator[Evidence]:
    for number, member in enumerate(members):
        yield Evidence(name, member.line, weight, blamed if not number else (), note if not number else "")


UNEVEN = Cause(
    "rank_desync_uneven_data",
    "fatal",
    "Ranks with different numbers of steps",
    "Ranks run different numbers of steps: some entered a collective that others never reach.",
    "A collective that times out late in a run, on some ranks and not on others, or with sequence numbers that differ.",
    "Different kinds of collectives at one place are the program's order: rank_desync_control_flow. A time-out at the "
    "first barrier is slow work.",
    "One explicit seed for every generator (torch, NumPy, random), drop_last=True or DDP's "
    "join(); compare the number of samples of all ranks. It is not the network",
    "rank.consistency",
    signs=(
        Sign(
            "exhausted inputs",
            r"detected at least one rank that exhausted inputs",
            "[rank0]: RuntimeError: Detected at least one rank that exhausted inputs. Throwing across all ranks.",
        ),
    ),
    look=judge,
    needles=("worknccl(", "nranks", "world_size", "world size", *_WORDS_OF_WORK),
)
FLOW = Cause(
    "rank_desync_control_flow",
    "fatal",
    "Ranks in different places of the program",
    "Ranks take different ways through the program, so that they meet in different collectives.",
    "Different operations at one sequence number, «Detected mismatch between collectives», a rank that never joins.",
    "One operation with different sizes is collective_mismatch; different numbers of steps are rank_desync_uneven_data.",
    "TORCH_DISTRIBUTED_DEBUG=DETAIL   # on all ranks, with a short run: it names the first collective that differs",
    "rank.consistency",
    signs=(
        Sign(
            "detected mismatch between collectives",
            r"Detected mismatch between collectives on ranks\. Rank (?P<a>\d+) is running collective: \w+\((?:SequenceNumber=\d+, )?"
            r"OpType=(?P<op>\w+).*?but Rank (?P<b>\d+) is running collective: \w+\((?:SequenceNumber=\d+, )?OpType=(?!(?P=op)\b)(?P<other>\w+)",
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=9, OpType=ALLREDUCE, TensorShape=[4]), but Rank 1 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=9, OpType=BROADCAST, TensorShape=[4]).",
            culprit="ranks {a} and {b}",
            note="rank {a} is in {op}, rank {b} in {other}",
        ),
        Sign(
            "never joined any collectives",
            r"ranks \[(?P<ranks>[\d, ]+)\] are the lagging ranks that caused this timeout",
            "- To our best knowledge, ranks [2, 5] are the lagging ranks that caused this timeout. They never joined any collectives",
            culprit="ranks {ranks}",
        ),
        Sign(
            "but didn't join collective",
            r"\[(?P<ranks>[\d, ]+)\] finished collective #\d+, but didn't join collective",
            "  - [2] finished collective #4, but didn't join collective #5 (count from 1)",
            culprit="ranks {ranks}",
        ),
        Sign(
            "failed to pass monitoredbarrier",
            r"(?:Ranks?|ranks?) (?P<ranks>\d[\d, ]*) failed to pass monitoredBarrier",
            "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 30000 ms",
            Weight.LIKELY,
            "ranks {ranks}",
        ),
        Sign(
            "finished reduction in the prior iteration",
            r"Expected to have finished reduction in the prior iteration",
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
            Weight.LIKELY,
            "rank {rank}",
        ),
        Sign(
            "without a matching",
            r"Trying to (?:send|recv) (?:to|from) self without a matching",
            "n1:1:2 [0] enqueue.cc:1160 NCCL WARN Trying to send to self without a matching recv",
            Weight.LIKELY,
        ),
        Sign(
            "not in a group call",
            r"ncclGroupEnd: not in a group call",
            "n1:1:2 [0] group.cc:776 NCCL WARN ncclGroupEnd: not in a group call.",
            Weight.LIKELY,
        ),
    ),
)
SIZES = Cause(
    "collective_mismatch",
    "fatal",
    "One collective, different tensors",
    "Ranks entered the same collective with tensors of different shape, size or type.",
    "One operation and sequence number with different NumelIn, «Tensor shapes» that differ, DDP models that are not alike.",
    "NCCL's «collective mismatch error» between nodes comes from settings or versions: env_or_version_mismatch.",
    "Print the tensor's shape and dtype on all ranks before that call; the same code and checkpoint on all nodes",
    "rank.consistency",
    signs=(
        Sign(
            "detected mismatch between collectives",
            r"Detected mismatch between collectives on ranks\. Rank (?P<a>\d+) is running collective: \w+\((?:SequenceNumber=\d+, )?"
            r"OpType=(?P<op>\w+).*?but Rank (?P<b>\d+) is running collective: \w+\((?:SequenceNumber=\d+, )?OpType=(?P=op)\b",
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=9, OpType=ALLREDUCE, TensorShape=[4]), but Rank 1 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=9, OpType=ALLREDUCE, TensorShape=[8]).",
            culprit="ranks {a} and {b}",
        ),
        Sign(
            "ddp expects same model",
            r"DDP expects same model across all ranks, but Rank (?P<number>\d+) has",
            "RuntimeError: DDP expects same model across all ranks, but Rank 3 has 165 params, while rank 0 has inconsistent 166 params.",
            culprit="rank {number}",
        ),
        Sign(
            "appears not to match",
            r"params\[\d+\] in this process.{0,80}appears not to match",
            "RuntimeError: [3]: params[0] in this process with sizes [4, 2] appears not to match sizes of the same param in process 0.",
        ),
        Sign(
            "message truncated",
            r"NET/Socket : peer (?P<peer>[\w.:%-]+?)(?:<\d+>)? message truncated",
            "n1:1:2 [0] NCCL WARN NET/Socket : peer 10.9.0.7<40001> message truncated : receiving 4096 bytes instead of 1024",
            Weight.LIKELY,
            "peer {peer}",
        ),
        Sign(
            "got completion",
            r"Got completion.*(?:error (?:9|10|11)\b|status=(?:\w+\()?(?:9|10|11)\b|IBV_WC_REM_(?:INV_REQ|ACCESS|OP)_ERR)",
            "n1:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.9.0.7<40001> with status=IBV_WC_REM_INV_REQ_ERR(9) opcode=0",
            Weight.SYMPTOM,
        ),
        Sign(
            "mismatch",
            r"(?:gloo|all_?reduce|all_?gather|broadcast|reduce_scatter).{0,80}(?:size|shape|dtype|numel).{0,20}mismatch",
            "RuntimeError: [gloo] allreduce: tensor size mismatch; error",
            Weight.LIKELY,
        ),
        Sign(
            "op.preamble.length",
            r"op\.preamble\.length <= op\.nbytes",
            "terminate called after throwing an instance of 'gloo::EnforceNotMet' [enforce fail at pair.cc:446] "
            "op.preamble.length <= op.nbytes. 8 vs 4, error",
        ),
    ),
)
SLOW = Cause(
    "slow_work_exceeds_timeout",
    "fatal",
    "Work that takes longer than the limit",
    "One rank was busy with honest work (tokenizing, loading, saving) for longer than the others may wait.",
    "A barrier or the first collective times out while one rank prepares data or writes a checkpoint.",
    "A time-out late in a run, with ranks that differ, is rank_desync_uneven_data.",
    "init_process_group(timeout=timedelta(hours=2))   # or do that work before init_process_group, once, and load it after",
    "fs.mount",
    signs=(
        Sign(
            "watchdog got stuck",
            r"watchdog got stuck for (?P<seconds>\d+) seconds|watchdog hang|Heartbeat monitor timed out",
            "[rank1]:[F304 12:00:00.000000000 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0 Rank 1] Process group "
            "watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.",
            Weight.SYMPTOM,
            "rank {rank}",
        ),
        Sign(
            "watchdog hang",
            r"watchdog hang",
            "[rank1]: [PG ID 0 PG GUID 0 Rank 1] ProcessGroupNCCL's watchdog hang; failed",
            Weight.SYMPTOM,
            "rank {rank}",
        ),
        Sign(
            "main_process_first",
            r"(?:with |in )\S*main_process_first\b",
            "    with training_args.main_process_first(desc='dataset map'):  # examples/s",
            Weight.LIKELY,
            "rank 0",
        ),
        Sign(
            "wait_for_everyone",
            r"\bwait_for_everyone\(",
            "    accelerator.wait_for_everyone()",
            Weight.SYMPTOM,
        ),
        Sign(
            "timed out waiting",
            r"Timed out waiting \d+ms for (?:recv|send) operation to complete",
            "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
            Weight.SYMPTOM,
        ),
    ),
)
