"""Compares the flight-recorder dumps of all ranks: which rank is not where the others wait.

Calls of one process group are compared by their sequence numbers. If the calls at a number differ,
the ranks ran different code or have different tensors. Else every rank that has not ended a call
waits for the members of the group that have not entered it; a rank that others wait for, and that
waits for none itself, is the one to look at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from clusterprep.jobs.diagnose.model import Culprits, Evidence, Weight
from clusterprep.jobs.diagnose.records.flight_recorder import NO_SEQ, Dump, Entry, Group

# Seconds that a call must be pending when the dump is written. Less is a call that is under way: a
# healthy job has some at any time. Half the limit of the group, if that is shorter.
PENDING = 5.0
# Seconds. A file that is older by more than its calls has its time from elsewhere: an archive, or a
# machine with another clock. Then nothing is known of how long they were pending.
_SKEW = 60.0
_MOST_BLAMED = 8
_MOST_TOLD = 4
_SMALL_TENSOR = 16  # elements at most of a flag or a counter
_LARGE_TENSOR = 1000  # elements; such a tensor is data of the model
# Operations that need tensors of the same size on all ranks.
_EVEN = frozenset(
    [
        "all_reduce",
        "allreduce",
        "allreduce_coalesced",
        "all_reduce_barrier",
        "barrier",
        "broadcast",
        "reduce",
        "_all_gather_base",
        "_reduce_scatter_base",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter_tensor_coalesced",
    ]
)
# Functions that let one rank do its work first, while the others wait in a barrier.
_WAITS_FOR_WORK = ("main_process_first", "rank_zero_first", "local_main_process_first")

_GroupKey = tuple[Group, tuple[int, ...]]


class _Calls(Struct, frozen=True):
    """The calls of one process group: by rank, and by sequence number."""

    name: str
    members: tuple[int, ...]
    is_told: bool  # the dumps say who the members are
    collectives: Mapping[int, Mapping[int, tuple[Entry, ...]]]


def evidence(dumps: Sequence[Dump]) -> Iterator[Evidence]:
    """Yield what the dumps of a job prove about the ranks that others wait for."""
    by_rank = {dump.rank: dump for dump in dumps}
    groups = _groups(dumps)
    alike: list[_Calls] = []
    for calls in groups.values():
        different = list(_differences(calls, by_rank))
        yield from different
        if not different:
            alike.append(calls)
    if len(alike) == len(groups):
        yield from _waits(alike, by_rank)


def summary(entries: Sequence[Entry], who: str) -> str:
    """Return a line that stands for a dump: what the rank waits in, or what it called last."""
    if not entries:
        return f"{who}: has called no collective"
    for entry in entries:
        if not entry.is_done:
            return f"{who}: in {_told(entry)}, {entry.state}"
    return f"{who}: last called {_told(entries[-1])}, {entries[-1].state}"


def _told(entry: Entry) -> str:
    group = entry.description
    if group in {"", "undefined"}:
        group = f"group {entry.group}"
    place = entry.place
    return f"{entry.name} of {group}" + (f" at {place}" if place else "")


# ---------------------------------------------------------------- process groups


def _groups(dumps: Sequence[Dump]) -> dict[_GroupKey, _Calls]:
    """Return the calls of each process group. Groups of one name with other members are others."""
    rows: dict[_GroupKey, dict[int, dict[int, list[Entry]]]] = {}
    shared_count: set[_GroupKey] = set()
    for dump in dumps:
        for entry in dump.entries:
            key = (entry.group, dump.members.get(entry.group, ()))
            of_rank = rows.setdefault(key, {}).setdefault(dump.rank, {})
            if not entry.is_p2p:
                of_rank.setdefault(entry.seq, []).append(entry)
            elif entry.seq == NO_SEQ:
                shared_count.add(key)
    groups: dict[_GroupKey, _Calls] = {}
    for key, by_rank in rows.items():
        if key in shared_count:
            continue
        name, members = key
        collectives: dict[int, dict[int, tuple[Entry, ...]]] = {}
        for rank, by_seq in by_rank.items():
            collectives[rank] = {seq: tuple(entries) for seq, entries in by_seq.items()}
        everyone = _with_unknown(members, by_rank, dumps) or tuple(sorted(by_rank))
        groups[key] = _Calls(
            name,
            everyone,
            is_told=bool(members),
            collectives=collectives,
        )
    return groups


def _with_unknown(
    members: tuple[int, ...], present: Collection[int], dumps: Sequence[Dump]
) -> tuple[int, ...]:
    """Return the members, with dumps of unknown ranks instead of the ranks that have no dump."""
    known = {dump.rank for dump in dumps if dump.is_rank_known}
    unknown = sorted(set(present) - known)
    if not unknown:
        return members
    return (*(rank for rank in members if rank in known), *unknown)


# ---------------------------------------------------------------- calls that differ


def _differences(calls: _Calls, dumps: Mapping[int, Dump]) -> Iterator[Evidence]:
    """Yield evidence of the first collective of the group in which ranks differ."""
    numbers: set[int] = set()
    for by_seq in calls.collectives.values():
        numbers |= by_seq.keys()
    for seq in sorted(numbers):
        present: dict[int, tuple[Entry, ...]] = {}
        for rank, by_seq in calls.collectives.items():
            # A recorder that was full may have lost a part of the first group of calls.
            is_whole = dumps[rank].has_all or seq > min(by_seq)
            if seq in by_seq and is_whole:
                present[rank] = by_seq[seq]
        if len(present) < 2:
            continue
        ops = {rank: _ops(entries) for rank, entries in present.items()}
        if len(set(ops.values())) > 1:
            yield from _different(present, ops, dumps, "rank_desync_control_flow")
            return
        sizes = {rank: _sizes(entries) for rank, entries in present.items()}
        if len(set(sizes.values())) > 1:
            cause = _cause_of_sizes(calls, seq, sizes)
            yield from _different(present, sizes, dumps, cause)
            return


def _ops(entries: Sequence[Entry]) -> str:
    """Return the operations of one number. A coalesced group has several."""
    return "+".join(entry.op for entry in entries)


def _sizes(entries: Sequence[Entry]) -> tuple[object, ...]:
    """Return numbers of elements and types, where they must be the same on all ranks."""
    sizes: list[object] = []
    for entry in entries:
        if entry.op in _EVEN:
            sizes.append((_elements(entry.inputs), _elements(entry.outputs), entry.types))
    return tuple(sizes)


def _elements(shapes: Sequence[Sequence[int]]) -> int:
    total = 0
    for shape in shapes:
        count = 1
        for size in shape:
            count *= size
        total += count
    return total


def _cause_of_sizes(calls: _Calls, seq: int, sizes: Mapping[int, tuple[object, ...]]) -> str:
    """Return whether tensors differ at one call, or whether the ranks are at different calls.

    They are if the program calls from different lines, if a flag meets data of the model, or if
    the calls of one rank are those of another one, shifted by one.
    """
    places: set[str] = set()
    counts: list[int] = []
    for rank in sizes:
        first = calls.collectives[rank][seq][0]
        places.add(first.place)
        counts.append(_elements(first.inputs))
    elsewhere = len(places - {""}) > 1
    flag_and_data = min(counts) <= _SMALL_TENSOR and max(counts) > _LARGE_TENSOR
    if elsewhere or flag_and_data or _is_shifted(calls, seq, sizes):
        return "rank_desync_control_flow"
    return "collective_mismatch"


def _is_shifted(calls: _Calls, seq: int, sizes: Mapping[int, tuple[object, ...]]) -> bool:
    """Return whether a rank left one call out: its calls here are the next ones of another rank."""
    commonest, _ = Counter(sizes.values()).most_common(1)[0]
    usual = next(rank for rank, value in sizes.items() if value == commonest)
    for rank, value in sizes.items():
        if value == commonest:
            continue
        own = _run(calls, rank, seq)
        if len(own) > 1 and own == _run(calls, usual, seq + 1)[: len(own)]:
            return True
        others = _run(calls, usual, seq)
        if len(others) > 1 and others == _run(calls, rank, seq + 1)[: len(others)]:
            return True
    return False


def _run(calls: _Calls, rank: int, seq: int) -> list[tuple[str, tuple[object, ...]]]:
    """Return the calls of a rank from a number on, three at most."""
    run: list[tuple[str, tuple[object, ...]]] = []
    for number in range(seq, seq + 3):
        entries = calls.collectives[rank].get(number)
        if entries is None:
            break
        run.append((_ops(entries), _sizes(entries)))
    return run


def _different(
    present: Mapping[int, tuple[Entry, ...]],
    values: Mapping[int, object],
    dumps: Mapping[int, Dump],
    cause: str,
) -> Iterator[Evidence]:
    """Yield the ranks whose value at one number is not that of the majority."""
    ranks = sorted(values)
    commonest, count = Counter(values.values()).most_common(1)[0]
    odd = [rank for rank in ranks if values[rank] != commonest]
    usual = next(rank for rank in ranks if values[rank] == commonest)
    has_majority = 2 * count > len(ranks)
    blamed = _culprits(odd, dumps) if has_majority else _pair(ranks, dumps)
    shown = [*odd[:_MOST_TOLD], usual]
    parts: list[str] = []
    for rank in shown[-3:]:
        where = _with_size(present[rank][0])
        parts.append(f"{dumps[rank].who} is in {where}")
    note = ", ".join(parts)
    yield from _for_lines(shown, dumps, cause, Weight.PLAIN, blamed, note)


def _pair(ranks: Sequence[int], dumps: Mapping[int, Dump]) -> Culprits:
    """Return two ranks that differ, of which either may be at fault; none if there are more."""
    if len(ranks) != 2 or not all(dumps[rank].is_rank_known for rank in ranks):
        return ()
    return (("ranks", f"{ranks[0]} and {ranks[1]}"),)


def _with_size(entry: Entry) -> str:
    place = f" at {entry.place}" if entry.place else ""
    types = sorted(set(entry.types))
    kind = f" {types[0]}" if len(types) == 1 else ""
    return f"{entry.name} of {_elements(entry.inputs):,}{kind}{place}"


# ---------------------------------------------------------------- which ranks wait for which


class _Wait(Struct, frozen=True):
    """A rank waits in a call for others."""

    rank: int
    entry: Entry
    missing: tuple[int, ...]


def _waits(groups: Sequence[_Calls], dumps: Mapping[int, Dump]) -> Iterator[Evidence]:
    """Yield the ranks that others wait for and that wait for none themselves."""
    waits: list[_Wait] = []
    together: list[tuple[_Calls, Entry]] = []
    for calls in groups:
        for rank, entry in _pending(calls, dumps):
            missing = _missing(calls, entry.seq, dumps)
            if missing:
                waits.append(_Wait(rank, entry, missing))
            else:
                together.append((calls, entry))
    waits += _waits_for_peers(dumps)
    if waits:
        yield from _awaited(waits, dumps)
    elif together:
        yield from _all_present(together, dumps)


def _pending(calls: _Calls, dumps: Mapping[int, Dump]) -> Iterator[tuple[int, Entry]]:
    """Yield the first collective of the group that each rank has not ended and is stuck in."""
    for rank, by_seq in calls.collectives.items():
        for seq in sorted(by_seq):
            entry = by_seq[seq][0]
            if not entry.is_done:
                if _is_stuck(entry, dumps[rank]):
                    yield rank, entry
                break


def _is_stuck(entry: Entry, dump: Dump) -> bool:
    """Return whether a call was pending for long when the dump was written."""
    if dump.written is None or not entry.created:
        return True
    limit = PENDING
    if entry.limit:
        limit = min(limit, entry.limit / 2)
    pending = dump.written - entry.created
    return pending >= limit or pending < -_SKEW


def _missing(calls: _Calls, seq: int, dumps: Mapping[int, Dump]) -> tuple[int, ...]:
    """Return the members of a group that have not called so many collectives.

    A rank without calls of the group is not known to be behind if its recorder has overwritten
    some.
    """
    missing: list[int] = []
    for rank in calls.members:
        dump = dumps.get(rank)
        by_seq = calls.collectives.get(rank)
        if by_seq:
            if max(by_seq) < seq:
                missing.append(rank)
        elif dump is None or dump.has_all:
            missing.append(rank)
    return tuple(missing)


def _waits_for_peers(dumps: Mapping[int, Dump]) -> Iterator[_Wait]:
    """Yield sends and receives that do not end, because the other rank has none that fits."""
    pending: dict[tuple[int, int, str], list[Entry]] = defaultdict(list)
    for rank, dump in dumps.items():
        for entry in dump.entries:
            peer = _peer_waited_for(entry, dump)
            if peer is not None:
                pending[rank, peer, entry.verb].append(entry)
    for (rank, peer, verb), entries in pending.items():
        other_verb = "recv" if verb == "send" else "send"
        fitting = pending.get((peer, rank, other_verb), [])
        if len(fitting) < len(entries):
            yield _Wait(rank, entries[0], (peer,))


def _peer_waited_for(entry: Entry, dump: Dump) -> int | None:
    """Return the rank at the other end of a send or receive that does not end, if it is known."""
    if not entry.is_p2p or entry.is_done:
        return None
    members = dump.members.get(entry.group, ())
    if not 0 <= entry.peer < len(members):
        return None
    return members[entry.peer] if _is_stuck(entry, dump) else None


def _awaited(waits: Sequence[_Wait], dumps: Mapping[int, Dump]) -> Iterator[Evidence]:
    waiting = {wait.rank for wait in waits}
    awaited: set[int] = set()
    for wait in waits:
        awaited.update(wait.missing)
    last = awaited - waiting  # the ends of the chains
    behind = sorted(rank for rank in last if rank in dumps)
    absent = sorted(last - set(behind))
    if behind:
        yield from _behind(behind, waits, dumps)
    elif absent:
        yield from _absent(absent, waits, dumps)
    else:
        yield from _cycle(waits, dumps)


def _behind(
    behind: Sequence[int], waits: Sequence[_Wait], dumps: Mapping[int, Dump]
) -> Iterator[Evidence]:
    """Yield the ranks that have not called what the others wait in; the few, if they are many."""
    first = _first_wait_for(behind, waits)
    waiting = sorted({wait.rank for wait in waits})
    awaited = sorted(set(behind) & set(first.missing))
    calls = first.entry.name
    place = f" at {first.entry.place}" if first.entry.place else ""
    verb = "waits" if len(waiting) == 1 else "wait"
    note = f"{_listed(waiting, dumps)} {verb} in {calls}{place} for {_listed(awaited, dumps)}"
    blamed: Sequence[int] = awaited
    if len(awaited) > len(waiting):
        blamed = waiting
        note += ": a call that most ranks did not make"
    else:
        note += _last_call(awaited, dumps)
    cause = "rank_desync_control_flow"
    if any(name in frame.name for frame in first.entry.frames for name in _WAITS_FOR_WORK):
        cause = "slow_work_exceeds_timeout"
    culprits = _culprits(blamed, dumps)
    shown = [*awaited[:_MOST_TOLD], first.rank]
    yield from _for_lines(shown, dumps, cause, Weight.LIKELY, culprits, note)


def _first_wait_for(ranks: Sequence[int], waits: Sequence[_Wait]) -> _Wait:
    """Return the earliest wait for one of the ranks."""
    fitting = [wait for wait in waits if not set(wait.missing).isdisjoint(ranks)]
    return min(fitting, key=lambda wait: (wait.entry.created, wait.entry.seq, wait.rank))


def _last_call(ranks: Sequence[int], dumps: Mapping[int, Dump]) -> str:
    if len(ranks) != 1 or not dumps[ranks[0]].entries:
        return ""
    last = dumps[ranks[0]].entries[-1]
    return f", which called {_told(last)} last"


def _absent(
    absent: Sequence[int], waits: Sequence[_Wait], dumps: Mapping[int, Dump]
) -> Iterator[Evidence]:
    """Yield ranks without a dump, if the dumps of most others are there."""
    if len(absent) >= len(dumps) or len(absent) > _MOST_BLAMED:
        return
    first = _first_wait_for(absent, waits)
    listed = ", ".join(str(rank) for rank in absent)
    noun = "rank" if len(absent) == 1 else "ranks"
    note = (
        f"the others wait in {first.entry.name}, and there is no dump of {noun} {listed}: it ended "
        "before, or its dump was not given"
    )
    culprits = tuple(("rank", str(rank)) for rank in absent)
    cause = "rank_desync_control_flow"
    yield from _for_lines([first.rank], dumps, cause, Weight.SYMPTOM, culprits, note)


def _cycle(waits: Sequence[_Wait], dumps: Mapping[int, Dump]) -> Iterator[Evidence]:
    """Yield ranks that wait for each other in different calls: they call in another order."""
    followed: dict[int, _Wait] = {}
    for wait in waits:
        followed.setdefault(wait.rank, wait)
    rank = min(followed)
    path: list[int] = []
    while rank in followed and rank not in path:
        path.append(rank)
        rank = followed[rank].missing[0]
    if rank not in path:
        return
    circle = path[path.index(rank) :]
    parts: list[str] = []
    for member in circle[:_MOST_TOLD]:
        wait = followed[member]
        target = dumps[wait.missing[0]].who
        parts.append(f"{dumps[member].who} waits in {_told(wait.entry)} for {target}")
    culprits = _culprits(circle, dumps)
    if len(circle) == 2 and len(culprits) == 2:
        culprits = (("ranks", f"{min(circle)} and {max(circle)}"),)
    cause = "rank_desync_control_flow"
    note = ", ".join(parts)
    yield from _for_lines(sorted(circle), dumps, cause, Weight.PLAIN, culprits, note)


def _all_present(
    together: Sequence[tuple[_Calls, Entry]], dumps: Mapping[int, Dump]
) -> Iterator[Evidence]:
    """All members are in the call and it does not end; the GPU of some may not have begun it."""
    calls, entry = min(together, key=lambda row: (row[1].created, row[1].seq))
    if entry.backend == "gloo" or not calls.is_told or not set(calls.members) <= dumps.keys():
        return
    states: dict[int, str] = {}
    for rank in calls.members:
        at_number = calls.collectives[rank].get(entry.seq)
        if at_number is None:
            return
        states[rank] = at_number[0].state
    not_begun = [rank for rank, state in states.items() if state == "scheduled"]
    begun = [rank for rank, state in states.items() if state == "started"]
    cause = "ib_fabric_unreachable"
    culprits: Culprits = ()
    note = f"all {len(states)} ranks of the group called {entry.name}, so none of them is behind"
    if begun and not_begun and len(not_begun) < len(states) / 2:
        cause = "rank_desync_control_flow"
        culprits = _culprits(not_begun, dumps)
        listed = _listed(not_begun, dumps)
        note = f"{note}, and the GPU of {listed} has not begun it: something before it does not end"
    shown = [*not_begun[:_MOST_TOLD], *begun[:1]] or list(states)[:1]
    yield from _for_lines(shown, dumps, cause, Weight.SYMPTOM, culprits, note)


# ---------------------------------------------------------------- evidence


def _culprits(ranks: Collection[int], dumps: Mapping[int, Dump]) -> Culprits:
    """Return ranks as culprits; a dump whose rank is not known by its file."""
    if len(ranks) > _MOST_BLAMED:
        return ()
    culprits: list[tuple[str, str]] = []
    for rank in ranks:
        dump = dumps[rank]
        culprits.append(("rank", str(rank)) if dump.is_rank_known else ("file", dump.file))
    return tuple(culprits)


def _listed(ranks: Sequence[int], dumps: Mapping[int, Dump]) -> str:
    if len(ranks) > _MOST_TOLD:
        return f"{len(ranks)} ranks"
    if len(ranks) == 1 or not all(dumps[rank].is_rank_known for rank in ranks):
        return " and ".join(dumps[rank].who for rank in ranks)
    return "ranks " + ", ".join(str(rank) for rank in ranks)


def _for_lines(
    ranks: Sequence[int],
    dumps: Mapping[int, Dump],
    cause: str,
    weight: Weight,
    culprits: Culprits,
    note: str,
) -> Iterator[Evidence]:
    """Yield the evidence once for the line of each rank."""
    for rank in dict.fromkeys(ranks):
        yield Evidence(
            cause,
            dumps[rank].line,
            weight,
            culprits,
            note,
        )
