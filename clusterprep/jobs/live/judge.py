"""Says whether a job moves, and who holds it up: facts of ranks become causes with culprits. Pure.

The surest comes first: a rank that is stopped, blocked or gone, data that is lost between nodes.
Then come the ranks that are not where the others wait. A step that is long and goes on is no hang,
so what still changes between the looks must have been waited for by the others for some seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from clusterprep.jobs.diagnose.model import Cause, DiagnosedCause, LogLine
from clusterprep.jobs.live import causes, connections, ras
from clusterprep.jobs.live.connections import Connection
from clusterprep.jobs.live.model import Job, JobRow, NodeLook, Rank, RankRow, State
from clusterprep.jobs.live.places import Place, frame_words, place_in_program, place_of
from clusterprep.model.units import pluralize

PLAIN, LIKELY, SYMPTOM = 0.95, 0.75, 0.45
ANSWERED = 0.5  # below it a cause is a guess, and the state of the job is not known
PATIENCE = 5.0  # seconds that others must have waited for a rank that goes on
SHOWN = 5  # lines of a cause
SHOWN_FRAMES = 4  # of a stack
# Collectives of two ranks: with pipelines other ranks are elsewhere for good reason.
_PAIRWISE = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
Located = tuple[Rank, Place]


class JobVerdict(Struct, frozen=True):
    """Whether a job moves, what holds it up, and sentences about what is not known."""

    job: JobRow
    causes: tuple[DiagnosedCause, ...]
    notices: tuple[str, ...] = ()


class Situation(Struct, frozen=True):
    """A job with where its ranks are, its connections, and the looks of all nodes.

    `passed`: bytes between ranks during the look, `quiet`: seconds since any last came; None: not
    known.
    """

    job: Job
    located: tuple[Located, ...]
    connections: tuple[Connection, ...]
    looks: Mapping[str, NodeLook]
    lost_nodes: tuple[str, ...]
    passed: int | None
    quiet: float | None

    @property
    def moves(self) -> bool:
        """True if data passes between ranks, or if each of them goes on."""
        if self.passed is not None and self.passed >= connections.HEARTBEATS:
            return True
        return all(place.goes_on for _, place in self.located)

    @property
    def has_waited(self) -> bool:
        """True if no data came for so long that a rank which goes on holds the others up."""
        return self.quiet is None or self.quiet >= PATIENCE


def judge(
    job: Job,
    looks: Mapping[str, NodeLook],
    all_connections: Iterable[Connection],
    lost_nodes: Sequence[str] = (),
) -> JobVerdict:
    """Return the verdict on one job. `lost_nodes` are those that gave no answer."""
    situation = _situation(job, looks, all_connections, lost_nodes)
    found, notices = _sure_causes(situation)
    if not found and not situation.moves:
        found = _causes_by_place(situation)
    if not found and not situation.moves:
        found = _causes_by_connections(situation)
    state = _state(situation, found)
    if state == "unknown" and not found:
        notices.append(_unknown_notice(situation))
    if state == "moving":
        notices.append(_moving_notice(situation))
        found = []
    rows = [
        RankRow(rank.process.rank, rank.node, rank.process.pid, place.does)
        for rank, place in situation.located
    ]
    row = JobRow(job.name, state, job.size, tuple(rows))
    return JobVerdict(row, tuple(found), tuple(f"{job.name}: {text}" for text in notices))


def _situation(
    job: Job,
    looks: Mapping[str, NodeLook],
    all_connections: Iterable[Connection],
    lost_nodes: Sequence[str],
) -> Situation:
    located: list[Located] = []
    for rank in job.ranks:
        look = looks[rank.node]
        located.append((rank, place_of(rank.process, look.hz, look.seconds)))
    places = {rank.place for rank in job.ranks}
    own = connections.of_places(all_connections, places)
    return Situation(
        job=job,
        located=tuple(located),
        connections=own,
        looks=looks,
        lost_nodes=tuple(lost_nodes),
        passed=connections.passed_bytes(own, job.port),
        quiet=connections.quiet_seconds(own, job.port),
    )


def _state(situation: Situation, found: Sequence[DiagnosedCause]) -> State:
    if any(cause.confidence >= ANSWERED for cause in found):
        return "stuck"
    if found:
        return "unknown"
    moves = situation.moves or _one_goes_on(situation) or _has_ended(situation)
    return "moving" if moves else "unknown"


def _has_ended(situation: Situation) -> bool:
    """Return whether the whole job ended between the looks."""
    return all(place.kind == "gone" for _, place in situation.located)


def _one_goes_on(situation: Situation) -> bool:
    """Return whether a rank goes on and the others have not waited long for it."""
    return not situation.has_waited and any(place.goes_on for _, place in situation.located)


# ---------------------------------------------------------------- what is sure


def _sure_causes(situation: Situation) -> tuple[list[DiagnosedCause], list[str]]:
    found: list[DiagnosedCause] = []
    notices: list[str] = []
    by_kind: dict[str, list[Located]] = {}
    for one in situation.located:
        by_kind.setdefault(one[1].kind, []).append(one)
    for kind, cause in (("stopped", causes.STOPPED), ("blocked", causes.BLOCKED)):
        if by_kind.get(kind) and (kind == "stopped" or not situation.moves):
            found.append(_of_ranks(situation, cause, by_kind[kind], PLAIN))
    ended = by_kind.get("gone", [])
    if ended and len(ended) < len(situation.located):
        found.append(_of_ranks(situation, causes.GONE, ended, PLAIN))
    missing = _missing(situation.job)
    if missing and not situation.moves:
        _add_missing(situation, missing, found, notices)
    if not situation.moves:
        found += _lost_links(situation)
    return found, notices


def _missing(job: Job) -> list[int]:
    """Return the ranks that the launcher counted and that no node has."""
    if job.size is None:
        return []
    present = {rank.process.rank for rank in job.ranks}
    return [number for number in range(min(job.size, 100_000)) if number not in present]


def _add_missing(
    situation: Situation, missing: list[int], found: list[DiagnosedCause], notices: list[str]
) -> None:
    """Name ranks that no node has as gone, unless they may be where this look does not see."""
    names = _numbers(missing)
    why = _why_not_seen(situation)
    if why:
        notices.append(f"{names} were not found: {why}")
        return
    text = f"{names}: no process with such a number on {', '.join(situation.looks)}"
    lines = [_line("inventory", text)]
    lines += _waiting_lines(situation, set(), 2)
    found.append(_cause(causes.GONE, LIKELY, names, lines, text))


def _why_not_seen(situation: Situation) -> str:
    if situation.lost_nodes:
        return f"{', '.join(situation.lost_nodes)} gave no answer"
    hidden = [node for node, look in situation.looks.items() if look.hidden or look.more]
    if hidden:
        return f"not all processes of {', '.join(hidden)} may be looked at (-b asks as root)"
    outside = sorted({one.socket.peer for one in situation.connections if one.peer_node is None})
    if outside:
        return f"ranks here are connected with {outside[0]}, which is no node of the inventory"
    return ""


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8])
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {shown}{more}"


def _lost_links(situation: Situation) -> list[DiagnosedCause]:
    """Return the links on which data gets lost, and the node that all of them have, if one does."""
    lost = connections.lost(situation.connections)
    if not lost:
        return []
    names = {rank.place: rank.name for rank, _ in situation.located}
    node = connections.common_node(lost)
    pairs = sorted({tuple(sorted((one.node, _peer(one)))) for one in lost})
    culprit = f"host {node}" if node else _pair_words(pairs)
    is_sure = any(_is_certain(one) for one in lost)
    confidence = PLAIN if is_sure else LIKELY
    lines: list[LogLine] = []
    for one in lost[:SHOWN]:
        lines.append(_line(one.places[0], _lost_words(one, names)))
    message = f"{causes.LINK.message} {_pair_words(pairs)}."
    return [_cause(causes.LINK, confidence, culprit, lines, message, len(lost))]


def _is_certain(one: Connection) -> bool:
    return one.socket.again >= connections.CERTAIN or one.socket.passed == 0


def _peer(one: Connection) -> str:
    return one.peer_node or one.socket.peer


def _pair_words(pairs: Sequence[Sequence[str]]) -> str:
    words = [f"{one} - {other}" for one, other in pairs[:4]]
    more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
    return f"{'link' if len(pairs) == 1 else 'links'} {', '.join(words)}{more}"


def _lost_words(one: Connection, names: Mapping[str, str]) -> str:
    socket = one.socket
    here, there = one.places
    if socket.state == connections.SYN_SENT:
        return f"{one.ends} on {_peer(one)}: no answer to a new connection, asked for again"
    to = names.get(there, _peer(one))
    who = names.get(here, here)
    held = "the other end has the socket" if one.peer_socket else "the other end has no such socket"
    data = f"{pluralize(socket.sendq, 'byte')} not acknowledged"
    if socket.again:
        data += f", sent again {pluralize(socket.again, 'time')}"
    return f"{who} to {to}, {one.ends}: {data}; {held}"


# ---------------------------------------------------------------- where ranks are


def _causes_by_place(situation: Situation) -> list[DiagnosedCause]:
    """Return the ranks that are not where the others wait; none if all wait alike."""
    waiting = [one for one in situation.located if one[1].kind in ("collective", "waiting")]
    away = [one for one in situation.located if one[1].kind == "elsewhere"]
    running = [one for one in situation.located if one[1].kind == "running"]
    if not waiting:
        return _odd_places(situation, [*away, *running])
    if away:
        still = [one for one in away if not one[1].goes_on]
        if still or situation.has_waited:
            return [_elsewhere(situation, still or away, waiting)]
        return []
    if running:
        return _running(situation, running, waiting)
    return _other_collectives(situation, waiting)


def _elsewhere(
    situation: Situation, away: Sequence[Located], waiting: Sequence[Located]
) -> DiagnosedCause:
    """Return the cause for ranks that are in no collective while others wait."""
    known = all(place.known for _, place in away)
    in_collective = any(place.kind == "collective" for _, place in waiting)
    confidence = PLAIN if known and in_collective else LIKELY
    if any(place.goes_on for _, place in away):
        confidence = LIKELY
    if len(away) > len(waiting):
        confidence = SYMPTOM  # the few that wait may be the ones that hurried ahead
    return _of_ranks(situation, causes.ELSEWHERE, away, confidence)


def _running(
    situation: Situation, running: Sequence[Located], waiting: Sequence[Located]
) -> list[DiagnosedCause]:
    """Return the ranks that compute while most wait; with GPUs a rank that waits computes too."""
    if not situation.has_waited:
        return []
    known = [one for one in waiting if one[1].kind == "collective"]
    with_gpus = any(rank.process.gpus for rank, _ in situation.located)
    if with_gpus and not (known and all(place.known for _, place in running)):
        return []
    if len(running) >= len(waiting):
        return [_of_ranks(situation, causes.BUSY, running, SYMPTOM)]
    return [_of_ranks(situation, causes.BUSY, running, LIKELY)]


def _odd_places(situation: Situation, others: Sequence[Located]) -> list[DiagnosedCause]:
    """Return the ranks that are at another place of the program than most, where none waits."""
    stacks: dict[object, list[Located]] = {}
    for one in others:
        look = one[0].process.second
        if look is None or not look.stack:
            return []
        stacks.setdefault(place_in_program(look.stack), []).append(one)
    largest = max(stacks.values(), key=len, default=[])
    odd: list[Located] = []
    for group in stacks.values():
        if group is not largest:
            odd += group
    is_majority = 2 * len(largest) > len(others)
    if not odd or not is_majority or any(place.goes_on for _, place in others):
        return []
    # With a GPU the others wait for it in any call that wants a result of it.
    is_sure = all(place.kind == "elsewhere" for _, place in odd)
    confidence = LIKELY if is_sure else SYMPTOM
    return [_of_ranks(situation, causes.ELSEWHERE, odd, confidence)]


def _other_collectives(situation: Situation, waiting: Sequence[Located]) -> list[DiagnosedCause]:
    """Return the ranks that wait in another collective than most do."""
    operations = Counter(place.operation for _, place in waiting if place.operation)
    if len(operations) < 2:
        return []
    (first, count), *_ = operations.most_common()
    odd = [one for one in waiting if one[1].operation not in ("", first)]
    confidence = PLAIN
    if 2 * count <= sum(operations.values()):
        odd = [one for one in waiting if one[1].operation]
        confidence = LIKELY
    if len(operations) > 2 or any(name in _PAIRWISE for name in operations):
        confidence = SYMPTOM
    names = ", ".join(f"{name} ({count})" for name, count in operations.most_common(4))
    message = f"{causes.OTHER.message} They wait in {names}."
    return [_of_ranks(situation, causes.OTHER, odd, confidence, message)]


# ---------------------------------------------------------------- what else shows it


def _causes_by_connections(situation: Situation) -> list[DiagnosedCause]:
    """Return what NCCL or the sockets say where all ranks wait alike; none if they do not wait."""
    waiting = [one for one in situation.located if one[1].kind in ("collective", "waiting")]
    if not situation.has_waited and not waiting:
        return []
    found = _by_ras(situation)
    if not found:
        found = _half_gone(situation)
    if found:
        return found
    if len(waiting) < len(situation.located) or not _is_certain_to_wait(situation):
        return []
    lines = _waiting_lines(situation, set(), SHOWN)
    operations = {place.operation for _, place in waiting}
    message = causes.ALL_WAIT.message
    confidence = SYMPTOM
    if len(operations) == 1 and "" not in operations:
        message = f"All ranks wait in {operations.pop()}. {message}"
        confidence = LIKELY
    return [_cause(causes.ALL_WAIT, confidence, None, lines, message + _quiet_words(situation))]


def _is_certain_to_wait(situation: Situation) -> bool:
    """Return whether no data came for long; without counters nothing shows that."""
    return situation.quiet is not None and situation.quiet >= PATIENCE


def _by_ras(situation: Situation) -> list[DiagnosedCause]:
    """Return the ranks of which NCCL counts fewer operations than of most."""
    by_pid = {(rank.node, rank.process.pid): rank for rank, _ in situation.located}
    addresses = {one.socket.address: one.node for one in situation.connections}
    for look in situation.looks.values():
        odd: list[Rank] = []
        lines: list[LogLine] = []
        for outlier in ras.outliers(look.ras or ""):
            rank = by_pid.get((addresses.get(outlier.address, ""), outlier.pid))
            if rank is None or rank in odd:
                continue
            odd.append(rank)
            lines.append(_line(rank.place, outlier.text))
        if odd and len(odd) < len(situation.located):
            culprit = _names(odd)
            message = f"NCCL counts other operations of {culprit} than of the others."
            return [_cause(causes.OTHER, LIKELY, culprit, lines[:SHOWN], message, len(lines))]
    return []


def _half_gone(situation: Situation) -> list[DiagnosedCause]:
    """Return the connections of the job of which one end alone is left."""
    half = connections.half_gone(situation.connections, situation.looks)
    if not half:
        return []
    names = {rank.place: rank.name for rank, _ in situation.located}
    lines: list[LogLine] = []
    for one in half[:SHOWN]:
        here = one.places[0]
        who = names.get(here, here)
        state = f"{_peer(one)} has no such socket"
        if one.socket.state == connections.CLOSE_WAIT:
            state = "closed by the other end"
        lines.append(_line(here, f"{who}, {one.ends}: {state}"))
    peers = sorted({_peer(one) for one in half})
    culprit = f"host {peers[0]}" if len(peers) == 1 else None
    return [_cause(causes.HALF, LIKELY, culprit, lines, causes.HALF.message, len(half))]


# ---------------------------------------------------------------- words


def _of_ranks(
    situation: Situation,
    cause: Cause,
    odd: Sequence[Located],
    confidence: float,
    message: str = "",
) -> DiagnosedCause:
    """Return the cause with these ranks as culprits, their lines, and lines of some that wait."""
    lines: list[LogLine] = []
    for rank, place in odd[: SHOWN - 1]:
        lines.append(_line(rank.place, _rank_words(rank, place)))
    culprits = {rank.place for rank, _ in odd}
    lines += _waiting_lines(situation, culprits, SHOWN - len(lines))
    if not message:
        first, place = odd[0]
        message = f"{first.name} {place.does}. {cause.message}"
    others = _others_there(situation, culprits)
    culprit = _names([rank for rank, _ in odd])
    text = f"{message} {others}{_quiet_words(situation)}"
    return _cause(cause, confidence, culprit, lines, text)


def _others_there(situation: Situation, culprits: set[str]) -> str:
    """Return how many ranks wait besides the culprits, as a sentence."""
    count = 0
    for rank, place in situation.located:
        if place.kind in ("collective", "waiting") and rank.place not in culprits:
            count += 1
    verb = "is" if count == 1 else "are"
    return f"{pluralize(count, 'other rank')} of this job {verb} there."


def _names(ranks: Sequence[Rank]) -> str:
    shown = " and ".join(rank.name for rank in ranks[:3])
    return shown + (f" and {len(ranks) - 3} more" if len(ranks) > 3 else "")


def _quiet_words(situation: Situation) -> str:
    if situation.quiet is None:
        return ""
    return f" No data came to a rank for {situation.quiet:.0f} s."


def _waiting_lines(situation: Situation, culprits: set[str], most: int) -> list[LogLine]:
    """Return a line for each of some ranks that are no culprits, those in collectives first."""
    others = [one for one in situation.located if one[0].place not in culprits]
    others.sort(key=lambda one: one[1].kind != "collective")
    return [_line(rank.place, _rank_words(rank, place)) for rank, place in others[:most]]


def _rank_words(rank: Rank, place: Place) -> str:
    """Return what is known of a rank in one line: where it is, its state, and its stack."""
    look = rank.process.second or rank.process.first
    words = f"{rank.name} {place.does}"
    if look is None or look.main is None:
        return words
    words += f"; state {look.state}"
    if look.main.wchan:
        words += f", {look.main.wchan}"
    frames = [frame_words(frame) for frame in look.stack[:SHOWN_FRAMES]]
    if frames:
        words += f"; Python: {' < '.join(frames)}"
    return words


def _line(place: str, text: str) -> LogLine:
    return LogLine(file=place, number=1, text=text, message=text)


def _cause(
    cause: Cause,
    confidence: float,
    culprit: str | None,
    lines: Sequence[LogLine],
    message: str,
    count: int = 0,
) -> DiagnosedCause:
    return DiagnosedCause(
        cause=cause,
        severity=cause.severity,
        confidence=confidence,
        culprit=culprit,
        lines=tuple(lines),
        message=message,
        more=max(0, count - len(lines)),
    )


def _moving_notice(situation: Situation) -> str:
    if _has_ended(situation):
        return "it ended during the look"
    if situation.passed is not None and situation.passed >= connections.HEARTBEATS:
        return f"it moves: {situation.passed:,} bytes passed between ranks during the look"
    if situation.moves:
        return "it moves: all ranks went on during the look"
    names = _names([rank for rank, place in situation.located if place.goes_on])
    return f"it moves: {names} went on, and the others have waited for less than {PATIENCE:.0f} s"


def _unknown_notice(situation: Situation) -> str:
    """Say why it is not known whether the job moves, and what would make it known."""
    without = [rank for rank, _ in situation.located if not _has_stack(rank)]
    if not without:
        return "no rank is elsewhere and none goes on: look again in a minute"
    look = without[0].process.second
    why = look.no_stack if look is not None else "it has ended"
    return (
        f"whether it moves is not known; {pluralize(len(without), 'rank')} showed no Python stack "
        f"({why}): ask as root (-b), or install py-spy there"
    )


def _has_stack(rank: Rank) -> bool:
    look = rank.process.second
    return look is not None and bool(look.stack)
