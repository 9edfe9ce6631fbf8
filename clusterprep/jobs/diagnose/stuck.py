"""Explains why collectives timed out: ranks that are behind, that differ or that are missing.

A time-out alone does not say why a rank did not come. Then the rank that is missing is named as far
as the log tells, with what to collect, and the cause is a symptom: one of several that look alike.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from clusterprep.jobs.diagnose import clues
from clusterprep.jobs.diagnose.collectives import (
    Groups,
    Progress,
    StuckRank,
    groups_of,
    is_default_group,
    known_ranks,
    progress_of,
    stuck_ranks,
    summarised_ranks,
    timed_out_ranks,
)
from clusterprep.jobs.diagnose.model import Culprits, Evidence, LogFile, LogLine, Weight
from clusterprep.jobs.diagnose.trouble import has_network_trouble, waits

# Collectives after which a job is past its start. Before it ranks differ by their code rather than
# by their data.
LATE = 200
_FIRST_COLLECTIVES = 10  # if one of these never works, the path between GPUs may be at fault
_MOST_BLAMED = 8  # ranks; if more are missing, none is named
_MOST_UNSEEN = 2  # ranks without any line; if more are missing, none is named
_MOST_TOLD = 4  # ranks whose collectives a note lists
_SMALL_TENSOR = 16  # elements at most of a flag or a counter
_LARGE_TENSOR = 1000  # elements; such a tensor is data of the model
_BARRIERS = frozenset({"BARRIER"})
_RAN_FOR = re.compile(
    r"(?:ran for|timed out after) (?P<ms>\d+) ?(?:milliseconds|ms)|Timeout\(ms\)=(?P<limit>\d+)"
)
_COLLECT = (
    "To see why, collect the logs of all ranks, `py-spy dump` of the processes while they hang, "
    "and torch's flight recorder (TORCH_NCCL_TRACE_BUFFER_SIZE=2000, "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1)"
)


# ---------------------------------------------------------------- what several lines tell


class _Scene(Struct, frozen=True):
    """What is known of all ranks, for the judgement of each process group."""

    log: LogFile
    groups: Groups
    progress: Sequence[Progress]
    timed_out: frozenset[int]  # ranks of which the log says that a collective timed out
    has_network_trouble: bool


class _Absent(Struct, frozen=True):
    """Ranks that did not come to a collective.

    `are_seen`: their own lines show that they were elsewhere. `all_present`: no rank is missing.
    """

    ranks: tuple[int, ...] = ()
    are_seen: bool = False
    all_present: bool = False


def stuck(log: LogFile) -> list[StuckRank]:
    """Return the earliest collective that timed out of each rank and process group."""
    return stuck_ranks(log, groups_of(log))


def detect_timeouts(log: LogFile) -> Iterator[Evidence]:
    """Yield why collectives timed out, for every process group."""
    yield from _gloo(log)
    yield from _fingerprints(log)
    yield from _inconsistent(log)
    yield from _store_key_late(log)
    yield from _cut_off_work(log)
    yield from _main_process_first(log)
    groups = groups_of(log)
    members_of: dict[str, list[StuckRank]] = defaultdict(list)
    for member in stuck_ranks(log, groups):
        members_of[member.group].append(member)
    if not members_of:
        return
    scene = _Scene(
        log,
        groups,
        progress_of(log, groups),
        frozenset(timed_out_ranks(log, groups)),
        has_network_trouble(log),
    )
    for members in members_of.values():
        yield from _group(scene, members)


def _group(scene: _Scene, members: list[StuckRank]) -> Iterator[Evidence]:
    """Yield why the collectives of one process group timed out."""
    collectives = [member for member in members if not member.is_point_to_point]
    if not collectives:
        yield from _point_to_point(scene, members)
        return
    seqs = {member.seq for member in collectives if member.seq is not None}
    ops = {member.op for member in collectives}
    sizes = {member.numel for member in collectives if member.has_common_size}
    if len(seqs) > 1:
        yield from _different_places(scene, collectives)
    elif len(ops) > 1:
        yield from _different_operations(collectives)
    elif len(sizes) > 1:
        yield from _different_sizes(collectives)
    else:
        yield from _same_collective(scene, collectives)


# ---------------------------------------------------------------- ranks in different collectives


def _different_operations(members: list[StuckRank]) -> Iterator[Evidence]:
    """Different operations at one place of one group. Without a place they may be far apart."""
    first = members[0]
    weight = _weight_of_one_place(first)
    if first.seq is None:
        weight = Weight.SYMPTOM
    blamed = _minority([(member.rank, member.op) for member in members])
    yield from _each(
        members,
        "rank_desync_control_flow",
        weight,
        blamed,
        _whereabouts(members),
    )


def _weight_of_one_place(member: StuckRank) -> Weight:
    """Return how much it says that ranks differ at one sequence number.

    Where no group is named, the same number of two groups may be compared.
    """
    return Weight.PLAIN if member.group else Weight.LIKELY


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
        _weight_of_one_place(members[0]),
        blamed,
        _whereabouts(members),
    )


def _different_places(scene: _Scene, members: list[StuckRank]) -> Iterator[Evidence]:
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
    note = _whereabouts(members)
    uneven = clues.uneven_data(scene.log)
    if uneven is not None and lowest >= LATE:
        yield Evidence("rank_desync_uneven_data", uneven.line, Weight.LIKELY)
        yield from _each(
            members,
            "rank_desync_uneven_data",
            Weight.LIKELY,
            _ranks(uneven.ranks) or blamed,
            f"{uneven.note}; {note}",
        )
        return
    # Ranks may be one collective apart because data did not arrive: one has what it needs and goes
    # on, the other waits.
    weight = Weight.LIKELY if highest - lowest > 1 else Weight.SYMPTOM
    if not _are_comparable(members):
        weight = Weight.SYMPTOM
        blamed = ()
    yield from _each(
        members,
        "rank_desync_control_flow",
        weight,
        blamed,
        note,
    )


def _are_comparable(members: list[StuckRank]) -> bool:
    """Whether sequence numbers are of one group.

    Up to torch 2.1 no group is named, and each group counts by itself. Then only equal calls speak
    for one group.
    """
    calls = {(member.op, member.numel) for member in members}
    is_one_call = len(calls) == 1 and members[0].numel is not None
    return bool(members[0].group) or is_one_call


def _ranks_at(members: list[StuckRank], seq: int) -> Culprits:
    return _ranks(member.rank for member in members if member.seq == seq)


def _point_to_point(scene: _Scene, members: list[StuckRank]) -> Iterator[Evidence]:
    """Yield evidence of sends and receives that waited, with both ends as far as they are known."""
    first = members[0]
    waiting = {member.rank for member in members if member.rank is not None}
    ends = scene.groups.members(first.group) if first.group else set()
    if len(ends) != 2:
        ends = waiting
    blamed: Culprits = ()
    partners = ends - waiting
    if len(ends) == 2:
        blamed = _ranks(partners) or (("ranks", " and ".join(map(str, sorted(ends)))),)
    where = _whereabouts(members) + scene.groups.described(first.group)
    note = f"{where} had no answer from the other end"
    yield from _each(
        members,
        "rank_desync_control_flow",
        Weight.SYMPTOM,
        blamed,
        note,
    )
    yield Evidence("rank_desync_control_flow", first.line, Weight.SYMPTOM, note=_COLLECT)


# ---------------------------------------------------------------- ranks in the same collective


def _same_collective(scene: _Scene, members: list[StuckRank]) -> Iterator[Evidence]:
    """All were in the same collective: a rank did not come, or the data did not arrive."""
    first = members[0]
    absent = _absent(scene, members)
    if _is_elsewhere(scene, first, absent):
        yield from _each(
            members,
            "rank_desync_control_flow",
            Weight.LIKELY,
            _ranks(absent.ranks),
            _waited_for(scene, members, absent),
        )
        return
    present = {member.rank for member in members if member.rank is not None}
    uneven = _uneven_data(scene.log, present)
    if uneven is not None and not absent.all_present and not first.is_barrier:
        yield Evidence("rank_desync_uneven_data", uneven.line, Weight.LIKELY)
        yield from _each(
            members,
            "rank_desync_uneven_data",
            Weight.LIKELY,
            _ranks(absent.ranks or uneven.ranks),
            uneven.note,
        )
        return
    work = clues.work_before(scene.log, first.line, _waited(first.line), present)
    if work is not None:
        yield from _slow_work(scene, members, absent, work)
        return
    if absent.are_seen:
        # Their own lines tell that they are alive and have not entered it.
        yield from _each(
            members,
            "rank_desync_control_flow",
            Weight.LIKELY,
            _ranks(absent.ranks),
            _waited_for(scene, members, absent),
        )
        yield Evidence("rank_desync_control_flow", first.line, Weight.LIKELY, note=_COLLECT)
        return
    yield from _lone_timeout(scene, members, absent)


def _uneven_data(log: LogFile, present: set[int]) -> clues.UnevenData | None:
    """Return what shows that a rank had fewer data, unless that rank waits with the others."""
    uneven = clues.uneven_data(log)
    if uneven is None or (uneven.ranks and present.issuperset(uneven.ranks)):
        return None
    return uneven


def _is_elsewhere(scene: _Scene, member: StuckRank, absent: _Absent) -> bool:
    """Whether tracebacks show every absent rank that has one in another collective."""
    found = clues.calls(scene.log, set(absent.ranks))
    if not found:
        return False
    return not any(clues.is_call_of(call, member.op) for call in found.values())


def _slow_work(
    scene: _Scene, members: list[StuckRank], absent: _Absent, work: clues.Work
) -> Iterator[Evidence]:
    """Yield evidence of work that was told while the others waited."""
    ranks = absent.ranks
    if work.rank is not None:
        ranks = (work.rank,)
    weight = _weight_of_work(work, members[0].line)
    yield Evidence("slow_work_exceeds_timeout", work.line, weight)
    yield from _each(
        members,
        "slow_work_exceeds_timeout",
        weight,
        _ranks(ranks),
        _waited_for(scene, members, _Absent(ranks, are_seen=True)),
    )


def _weight_of_work(work: clues.Work, line: LogLine) -> Weight:
    """Return how sure it is that work was going on when the time-out in `line` fired."""
    has_times = line.time is not None and work.line.time is not None
    is_sure = work.is_unfinished or work.lasted or has_times
    return Weight.LIKELY if is_sure else Weight.SYMPTOM


def _lone_timeout(scene: _Scene, members: list[StuckRank], absent: _Absent) -> Iterator[Evidence]:
    """Yield evidence of a time-out for which nothing in the log gives a reason.

    Where lines tell of trouble in the network, that is rather the reason.
    """
    weight = Weight.ECHO if scene.has_network_trouble else Weight.SYMPTOM
    first = members[0]
    if absent.all_present and _fails_from_start(members):
        cause = "ib_fabric_unreachable" if len(scene.log.hosts) > 1 else "p2p_acs_iommu"
    elif _is_at_start(first):
        cause = "slow_work_exceeds_timeout"
    else:
        cause = "rank_desync_uneven_data"
    note = _waited_for(scene, members, absent) + _network_worked(scene, members)
    yield from _each(members, cause, weight, _ranks(absent.ranks), note)
    yield Evidence(cause, first.line, weight, note=_COLLECT)


def _is_at_start(member: StuckRank) -> bool:
    """Whether a collective is one of those before the first step, or a barrier at an unknown place.

    Late in a run an all-reduce of one element is a flag or a sum, and not the barrier at the start.
    """
    if member.seq is None:
        return member.is_barrier
    return member.seq < LATE


def _fails_from_start(members: list[StuckRank]) -> bool:
    """Whether several ranks entered one of the first collectives and it never ended."""
    first = members[0]
    if first.seq is None:
        return False
    return first.seq <= _FIRST_COLLECTIVES and len(members) > 1


def _waited(line: LogLine) -> float | None:
    """Return how many seconds the rank waited before the limit fired, None if it is not told."""
    match = _RAN_FOR.search(line.text)
    if match is None:
        return None
    return int(match["ms"] or match["limit"]) / 1000


# ---------------------------------------------------------------- which ranks did not come


def _absent(scene: _Scene, members: list[StuckRank]) -> _Absent:
    """Return the ranks that did not come to the collective of the members."""
    present = {member.rank for member in members if member.rank is not None}
    if not present:
        return _Absent()
    behind = _behind(scene, members)
    if behind:
        return _Absent(behind, are_seen=True)
    group = members[0].group
    if is_default_group(group) or not scene.groups.members(group):
        expected = known_ranks(scene.log, present)
        present |= scene.timed_out
    else:
        expected = scene.groups.members(group)
    missing = sorted(expected - present)
    if not missing:
        return _Absent(all_present=len(present) > 1)
    if len(missing) > _MOST_BLAMED or len(missing) >= len(present):
        return _Absent()
    # Several ranks of which there is no line at all may be those of a log that was not given.
    unseen = set(missing) - scene.log.ranks - summarised_ranks(scene.log)
    if len(unseen) > _MOST_UNSEEN:
        return _Absent()
    return _Absent(tuple(missing))


def _behind(scene: _Scene, members: list[StuckRank]) -> tuple[int, ...]:
    """Return ranks that say they have not entered what the others of their group wait in."""
    seqs = [member.seq for member in members if member.seq is not None]
    if not seqs:
        return ()
    group = members[0].group
    lowest = min(seqs)
    ranks = {
        row.rank
        for row in scene.progress
        if row.enqueued < lowest and (row.group == group or not row.group or not group)
    }
    return tuple(sorted(ranks))


def _network_worked(scene: _Scene, members: list[StuckRank]) -> str:
    """Return that earlier collectives of the group had ended, if the ranks say so."""
    if scene.has_network_trouble:
        return ""
    group = members[0].group
    completed = [row.completed for row in scene.progress if row.group == group]
    if not completed or min(completed) < 1:
        return ""
    last = min(completed)
    return f"; the collectives up to #{last} of the same group had ended, so the network had worked"


def _waited_for(scene: _Scene, members: list[StuckRank], absent: _Absent) -> str:
    """Return which ranks waited, in what and for which, as far as the log tells."""
    first = members[0]
    collective = _collective(first) + scene.groups.described(first.group)
    waiting = _listed(sorted({m.rank for m in members if m.rank is not None}))
    if absent.ranks:
        ranks = _listed(absent.ranks)
        told = "" if absent.are_seen else ", and says nothing of it in this log"
        return f"{ranks} did not come to {collective}, in which {waiting} waited{told}"
    if absent.all_present:
        return f"all ranks that the log has were in the same collective, {collective}"
    who = waiting or "a rank"
    return f"{who} waited in {collective}, and the log does not show which rank did not come to it"


def _listed(ranks: Sequence[int]) -> str:
    """Return «rank 2» or «ranks 0, 1, 3 …», an empty text for none."""
    if not ranks:
        return ""
    noun = "rank" if len(ranks) == 1 else "ranks"
    listed = ", ".join(str(rank) for rank in ranks[:_MOST_BLAMED])
    more = " …" if len(ranks) > _MOST_BLAMED else ""
    return f"{noun} {listed}{more}"


# ---------------------------------------------------------------- culprits, notes and evidence


def _ranks(ranks: Iterable[int | str | None]) -> Culprits:
    """Return the ranks as culprits, without those that are not known."""
    return tuple(("rank", str(rank)) for rank in ranks if rank is not None)


def _collective(member: StuckRank) -> str:
    """Return «ALLREDUCE #12 of 4 elements»."""
    text = member.op
    if member.seq is not None:
        text += f" #{member.seq}"
    if member.numel is not None:
        noun = "element" if member.numel == 1 else "elements"
        text += f" of {member.numel:,} {noun}"
    return text


def _whereabouts(members: list[StuckRank]) -> str:
    """Return «rank 0 in ALLREDUCE #12 of 4 elements, rank 1 in …», for a few."""
    parts: list[str] = []
    for member in members[:_MOST_TOLD]:
        who = "a rank" if member.rank is None else f"rank {member.rank}"
        parts.append(f"{who} in {_collective(member)}")
    listed = ", ".join(parts)
    return f"{listed} …" if len(members) > _MOST_TOLD else listed


def _minority(values: Sequence[tuple[int | None, object]]) -> Culprits:
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
    r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send)"
    r"|Application timeout caused pair closure",
    re.IGNORECASE,
)


def _gloo(log: LogFile) -> Iterator[Evidence]:
    """Yield why collectives of gloo timed out: missing ranks, and calls that differ."""
    waited: list[tuple[LogLine, re.Match[str]]] = []
    for line in log.lines_with("timed out waiting", "application timeout"):
        match = _GLOO.search(line.message)
        if match:
            waited.append((line, match))
    if not waited:
        return
    first, match = waited[0]
    present = {line.rank for line, _ in waited if line.rank is not None}
    # The rank that gives up first closes its connections, so others that waited as long print
    # that instead.
    closed = log.lines_with("closed by peer", "reset by peer")
    cut_off = {line.rank for line in closed if line.rank is not None}
    calls = clues.calls(log, present | cut_off)
    if len(set(calls.values())) > 1:
        yield _different_calls(first, calls)
    missing = sorted(known_ranks(log, present) - present - cut_off)
    if len(missing) >= len(present):
        missing = []
    seconds = int(match["ms"]) / 1000 if match["ms"] else None
    yield from _gloo_alone(log, first, present, missing, seconds)


def _different_calls(line: LogLine, calls: dict[int, str]) -> Evidence:
    """Return evidence that the tracebacks of ranks end in different collectives."""
    blamed = _minority(list(calls.items()))
    parts = [f"rank {rank} in {op}" for rank, op in calls.items()]
    note = ", ".join(parts[:_MOST_TOLD])
    return Evidence(
        "rank_desync_control_flow",
        line,
        Weight.LIKELY,
        blamed,
        note,
    )


def _gloo_alone(
    log: LogFile, line: LogLine, present: set[int], missing: list[int], seconds: float | None
) -> Iterator[Evidence]:
    """Yield what a time-out of gloo says by itself, and with work or uneven data beside it."""
    note = ""
    if missing:
        note = f"the others waited for {_listed(missing)}"
    uneven = _uneven_data(log, present)
    if uneven is not None:
        yield Evidence(
            "rank_desync_uneven_data",
            uneven.line,
            Weight.LIKELY,
            _ranks(uneven.ranks),
            uneven.note,
        )
        yield Evidence("rank_desync_uneven_data", line, Weight.LIKELY)
        return
    work = clues.work_before(log, line, seconds, present)
    if work is not None:
        weight = _weight_of_work(work, line)
        yield Evidence("slow_work_exceeds_timeout", work.line, weight)
        ranks = missing if work.rank is None else [work.rank]
        yield Evidence(
            "slow_work_exceeds_timeout",
            line,
            weight,
            _ranks(ranks),
            note,
        )
        return
    weight = Weight.ECHO if has_network_trouble(log) else Weight.SYMPTOM
    yield Evidence("slow_work_exceeds_timeout", line, weight, _ranks(missing), note)
    yield Evidence("slow_work_exceeds_timeout", line, weight, note=_COLLECT)


# ---------------------------------------------------------------- work that is cut off


_STORE = re.compile(
    r"retr(?:ie|ei)ving ncclUniqueId from \[(?P<rank>\d+)\].*(?:time|timed) ?out"
    r"|waitForInput: socket .* timed out after"
    r"|(?:Error|error): Socket Timeout",
    re.IGNORECASE,
)


def _cut_off_work(log: LogFile) -> Iterator[Evidence]:
    """Yield evidence of a progress bar that breaks off when a usual limit has just passed."""
    line = clues.cut_off_work(log)
    if line is not None:
        note = "the bar breaks off with a traceback when one of torch's usual limits has passed"
        yield Evidence("slow_work_exceeds_timeout", line, Weight.LIKELY, note=note)


_MAIN_FIRST = re.compile(r"(?:with |in )\S*main_process_first\b", re.IGNORECASE)


def _main_process_first(log: LogFile) -> Iterator[Evidence]:
    """Yield evidence of ranks that waited in vain for the main process to be ready first."""
    if not waits(log):
        return
    for line in log.lines_with("main_process_first"):
        if _MAIN_FIRST.search(line.message):
            yield Evidence("slow_work_exceeds_timeout", line, Weight.LIKELY, _ranks([0]))


def _store_key_late(log: LogFile) -> Iterator[Evidence]:
    """Yield evidence of a key of the store that came too late, while a rank prepared its data."""
    for line in log.lines_with("ncclunique", "waitforinput", "socket timeout"):
        match = _STORE.search(line.message)
        if match is None or clues.work_before(log, line, _waited(line), set()) is None:
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
