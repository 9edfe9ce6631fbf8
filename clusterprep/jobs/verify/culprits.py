"""From what was seen to who did it: rules in the order in which their evidence can be trusted.

First comes what only the fault itself can bring about: a process that was killed, a node without a heartbeat, a
stopped process. Crashes come after it, for a rank may crash because a peer did, then connections that nobody answers,
and ranks that never reached the store come last. What a rank says about its peers in a broken collective is no
evidence and is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clusterprep.jobs.verify.evidence import (
    MOST,
    by_node,
    end_words,
    ends,
    how,
    last_words,
    moment,
    quote,
    rank_words,
    states,
)
from clusterprep.jobs.verify.sockets import cuts
from clusterprep.jobs.verify.tally import collective_name, end_of, finished, nth, step_name
from clusterprep.jobs.verify.timeline import Event, Timeline
from clusterprep.model import Culprit
from clusterprep.runtime.lazy_dataclass import dataclass

CRASHES = frozenset(
    {"SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGPIPE", "SIGTRAP"}
)  # a process's own doing
DOING = {  # of a rank that does not need the others yet
    "import": "importing torch",
    "belongings": "looking at its packages and files",
    "device": "binding its device",
}
HOW = {
    "missing": "what this rank gives is missing",
    "doubled": "what this rank gives is there twice",
    "wrong": "what this rank gives is wrong on all others",
}
FAULTY_DATA = (
    "test the device and its memory, PCIe link and network card; look at their error counters"
)
CASCADE = 1.0  # seconds; a crash that follows another within it may be its consequence
FORSAKEN = 5  # exit code of a rank whose agent is gone (remote/trial.py, EXIT_FORSAKEN)


@dataclass(frozen=True)
class Fault(Culprit):
    """A culprit that knows which check fails because of it, when it was seen, and what to do about it."""

    check: str = "nccl.hang"
    at: float = 0.0
    remedy: str = ""
    seen: str = ""


Rule = Callable[[Timeline], Iterable[Fault]]


def faults(timeline: Timeline) -> tuple[Fault, ...]:
    """Everything provable, earliest first. Wrong data stands apart: it never explains why something hangs."""
    if finished(timeline):
        return tuple(wrong_data(timeline))
    found = [fault for rule in CERTAIN for fault in rule(timeline)]
    if not found:
        found = next((likely for rule in LIKELY if (likely := list(rule(timeline)))), [])
    return tuple(sorted([*found, *wrong_data(timeline)], key=lambda fault: fault.at))


def _node(
    name: str, confidence: float, cause: str, evidence: tuple[str, ...], **more: Any
) -> Fault:
    return Fault("node", (name,), confidence, cause, evidence, **{"seen": cause, **more})


def _rank(
    timeline: Timeline,
    rank: int,
    confidence: float,
    cause: str,
    evidence: tuple[str, ...],
    **more: Any,
) -> Fault:
    node = timeline.rank(rank).node
    return Fault("rank", (node,), confidence, cause, evidence, rank=rank, **{"seen": cause, **more})


# ---------------------------------------------------------------- what cannot be a consequence


def refused(timeline: Timeline) -> Iterable[Fault]:
    for event in timeline.of("refused"):
        why = str(event.data.get("why", ""))
        remedy = "correct python and job_user of this node in the inventory"
        evidence = (f"{event.node} answered {event.data.get('no')}: {quote(why)}",)
        yield _node(
            event.node, 0.99, f"no rank can be started: {why}", evidence, at=event.at, remedy=remedy
        )


def torchless(timeline: Timeline) -> Iterable[Fault]:
    pythons = {node.name: node.python for node in timeline.plan.nodes}
    for what in ("no_torch", "no_cuda"):
        for node, events in by_node(timeline, timeline.ranks_with(what)).items():
            python = pythons[node]
            cause = f"{python} has no torch"
            if what == "no_cuda":
                cause = f"torch {events[0].data.get('torch')} of {python} is a build without CUDA"
            evidence = tuple(
                f"rank {event.rank}: {quote(event.data.get('text'))}" for event in events
            )
            remedy = f"install the job's torch for {python}, or correct python in the inventory"
            yield _node(
                node, 0.99, cause, evidence, check="torch.version", at=events[0].at, remedy=remedy
            )


def port_taken(timeline: Timeline) -> Iterable[Fault]:
    """Only rank 0 listens for the others, so that only its own error can say that the port is in use."""
    event = timeline.ranks_with("error").get(0)
    if event is None or event.data.get("stage") != "store":
        return
    text, port = str(event.data.get("text", "")), timeline.plan.port
    if "EADDRINUSE" in text or "address already in use" in text.lower():
        remedy = f"end what listens there (ss -ltnp 'sport = :{port}'), or choose another port with --master-port"
        words, evidence = f"port {port} is already in use", (f"rank 0: {quote(text)}",)
        yield _node(
            event.node, 0.98, words, evidence, check="net.ports", at=event.at, remedy=remedy
        )


def unready(timeline: Timeline) -> Iterable[Fault]:
    """An exception before the rendezvous involves nobody else."""
    for rank, event in timeline.ranks_with("error").items():
        stage = event.data.get("stage")
        if stage in DOING:
            doing = DOING[stage]
            evidence = (f"rank {rank}: {quote(event.data.get('text'))}",)
            remedy = "do the same with this python as job_user on this node"
            cause = f"{event.data.get('type')} while {doing}"
            yield _rank(timeline, rank, 0.95, cause, evidence, at=event.at, remedy=remedy)


def killed(timeline: Timeline) -> Iterable[Fault]:
    """Ends by a signal that no process sends itself; a cascade brings none of those."""
    for rank, event in ends(timeline).items():
        name = str(event.data.get("name", ""))
        if name and name not in CRASHES:
            by_kernel = "see dmesg -T for the kernel's out-of-memory killer"
            remedy = by_kernel if name == "SIGKILL" else f"find who sends {name}"
            evidence = end_words(timeline, rank, event)
            yield _rank(
                timeline,
                rank,
                0.97,
                f"the process was killed by {name}",
                evidence,
                at=event.at,
                remedy=remedy,
            )


def lost(timeline: Timeline) -> Iterable[Fault]:
    for event in timeline.of("lost"):
        heard = float(event.data.get("heard", event.at))
        told = f"last sign of life {moment(heard)}, given up {moment(event.at)}: {quote(event.data.get('detail'))}"
        remedy = "look at the node's console: is it up, is its network, does sshd run?"
        yield _node(event.node, 0.95, "the node fell silent", (told,), at=heard, remedy=remedy)


def stopped(timeline: Timeline) -> Iterable[Fault]:
    for rank, event in states(timeline, "stopped", "traced").items():
        by = "a signal (state T)" if event.data["state"] == "stopped" else "a debugger (state t)"
        evidence = (
            f"rank {rank} is {event.data['state']} since {moment(event.at)[3:]}, {last_words(timeline, rank)}",
        )
        remedy = "kill -CONT the process, and find who stops it"
        yield _rank(
            timeline,
            rank,
            0.97,
            f"the process is stopped by {by}",
            evidence,
            at=event.at,
            remedy=remedy,
        )


CERTAIN: tuple[Rule, ...] = (refused, torchless, port_taken, unready, killed, lost, stopped)


# ---------------------------------------------------------------- what may be a consequence


def crashed(timeline: Timeline) -> Iterable[Fault]:
    """The first end by a crash or without a word; another one within CASCADE makes it less certain."""
    known = {
        **timeline.ranks_with("no_torch"),
        **timeline.ranks_with("no_cuda"),
        **timeline.ranks_with("error"),
    }
    own = {
        r: e for r, e in ends(timeline).items() if r not in known and e.data.get("code") != FORSAKEN
    }
    for rank, first in list(own.items())[:1]:
        alone = len([event for event in own.values() if event.at - first.at <= CASCADE]) == 1
        cause, evidence = f"the process ended with {how(first)}", end_words(timeline, rank, first)
        remedy = "read the last lines that it printed"
        yield _rank(
            timeline, rank, 0.85 if alone else 0.6, cause, evidence, at=first.at, remedy=remedy
        )


def stuck(timeline: Timeline) -> Iterable[Fault]:
    for rank, event in states(timeline, "stuck").items():
        where = event.data.get("where") or "a place that the kernel does not tell"
        evidence = (
            f"rank {rank} waits in {where} since {moment(event.at)[3:]}, {last_words(timeline, rank)}",
        )
        remedy = "see dmesg -T for the driver or file system that it waits for"
        cause = "the process is stuck in the kernel (state D)"
        yield _rank(timeline, rank, 0.75, cause, evidence, at=event.at, remedy=remedy)


def late_start(timeline: Timeline) -> Iterable[Fault]:
    """Ranks that were not ready when the start had used up its limit."""
    if timeline.first("go") is None and (overdue := timeline.first("overdue")):
        ready = timeline.ranks_with("ready")
        remedy = "time the import of torch on this node; a slow file system is the usual reason"
        for rank in timeline.plan.ranks:
            if rank.rank not in ready:
                evidence, cause = (
                    rank_words(timeline, [rank.rank]),
                    "torch was not imported in time",
                )
                yield _rank(timeline, rank.rank, 0.8, cause, evidence, at=overdue.at, remedy=remedy)


def unanswered(timeline: Timeline) -> Iterable[Fault]:
    """What the sockets showed at the hang. A rank that cannot reach the store shows here by which way it could not."""
    remedy = "compare firewalls (nft list ruleset) and routes of the nodes named, then cable and switch port"
    for cut in cuts(timeline):
        yield Fault(
            "node" if len(cut.nodes) == 1 else "link",
            cut.nodes,
            0.85,
            cut.cause,
            cut.evidence,
            source=cut.source,
            target=cut.target,
            at=end_of(timeline),
            remedy=remedy,
            seen=cut.cause,
        )


def storeless(timeline: Timeline) -> Iterable[Fault]:
    """Ranks that never reached the store; ranks stuck between the store and the others prove nothing."""
    arrived = timeline.ranks_with("store")
    missing: dict[str, list[int]] = {}
    for rank in timeline.plan.ranks:
        if rank.rank not in arrived:
            missing.setdefault(rank.node, []).append(rank.rank)
    if timeline.first("go") is None or not missing:
        return
    host = timeline.plan.ranks[0].node
    others = {rank.node for rank in timeline.plan.ranks} - {host}
    if 0 not in arrived:
        remedy = f"check that {timeline.plan.address} is an address of {host} and resolves there"
        cause = f"the store at {timeline.plan.rendezvous} could not be opened"
        yield _node(host, 0.8, cause, rank_words(timeline, [0]), at=end_of(timeline), remedy=remedy)
    elif set(missing) == others:
        yield _unreachable(timeline, host, missing)
    else:
        yield from _cut_off(timeline, missing)


def _unreachable(timeline: Timeline, host: str, missing: Mapping[str, list[int]]) -> Fault:
    """Nobody came. One other node: it may be either end; more: the end that they have in common."""
    cause = f"the store at {timeline.plan.rendezvous} was reached from no other node"
    evidence = rank_words(timeline, [rank for ranks in missing.values() for rank in ranks])
    remedy = f"open port {timeline.plan.port} on {host}, and check that {timeline.plan.address} is its address"
    if len(missing) > 1:
        return _node(host, 0.8, cause, evidence, at=end_of(timeline), remedy=remedy)
    (other,) = missing
    return Fault(
        "link",
        (other, host),
        0.7,
        cause,
        evidence,
        source=other,
        target=host,
        at=end_of(timeline),
        remedy=remedy,
        seen=cause,
    )


def _cut_off(timeline: Timeline, missing: Mapping[str, list[int]]) -> Iterable[Fault]:
    cause = f"the store at {timeline.plan.rendezvous} was not reached, though others reached it"
    more = {
        "at": end_of(timeline),
        "remedy": f"check the way from this node to {timeline.plan.rendezvous}",
    }
    for node, ranks in missing.items():
        if len(ranks) == len(timeline.plan.ranks_by_node[node]):
            yield _node(node, 0.8, cause, rank_words(timeline, ranks), **more)
            continue
        for rank in ranks:
            yield _rank(timeline, rank, 0.8, cause, rank_words(timeline, [rank]), **more)


LIKELY: tuple[Rule, ...] = (crashed, stuck, late_start, unanswered, storeless)


# ---------------------------------------------------------------- wrong results


def wrong_data(timeline: Timeline) -> Iterable[Fault]:
    """Whose data are wrong, where the data themselves say so; else where results are wrong, where that is one place.

    Wrong results on one rank or one node only point there; on more, they may have been wrong before the sum.
    """
    found = list(_spoilers(timeline))
    yield from found or _odd_results(timeline)


def _spoilers(timeline: Timeline) -> Iterable[Fault]:
    """Ranks whose share every other rank found wrong, missing or doubled in the same collective."""
    known: set[int] = set()
    for number, step in enumerate(timeline.plan.steps):
        left = nth(timeline, "left", number)
        named = _named(timeline, left)
        suspects = {
            rank: share for rank, share in named.items() if _all_agree(timeline, left, rank, share)
        }
        if 2 * len(suspects) > timeline.plan.world_size and timeline.plan.world_size > 2:
            continue  # what all are accused of is somebody else's doing
        for rank, share in suspects.items():
            if rank not in known:
                known.add(rank)
                cause = f"{HOW[share]} in {step_name(step)}"
                evidence = tuple(
                    _wrong_words(event) for event in left.values() if event.data.get("wrong")
                )[:MOST]
                at = min(event.at for event in left.values())
                more = {"check": check_of(step.op), "at": at, "remedy": FAULTY_DATA}
                yield _rank(timeline, rank, 0.9, cause, evidence, **more)


def _named(timeline: Timeline, left: Mapping[int, Event]) -> dict[int, str]:
    """Every rank that some rank names after a collective, and what it says of it."""
    accusers = {event.rank for event in timeline.left_with("blame")}
    speaking = (event for rank, event in left.items() if rank in accusers) if accusers else ()
    return {rank: share for event in speaking for rank, share in _accused(event).items()}


def _accused(event: Event) -> dict[int, str]:
    rows = event.data.get("blame")
    pairs = (
        [row for row in rows if isinstance(row, list) and len(row) == 2]
        if isinstance(rows, list)
        else []
    )
    return {rank: str(share) for rank, share in pairs if isinstance(rank, int) and share in HOW}


def _all_agree(timeline: Timeline, left: Mapping[int, Event], rank: int, share: str) -> bool:
    """Between two ranks, wrong data from one of them may as well have been spoiled by the other."""
    world = timeline.plan.world_size
    others = [event for number, event in left.items() if number != rank]
    whole = len(left) == world and 0 <= rank < world and others
    unclear = world == 2 and share == "wrong" and not _accused(left[rank])
    return bool(whole) and not unclear and all(rank in _accused(event) for event in others)


def _odd_results(timeline: Timeline) -> Iterable[Fault]:
    seen = wrong_ranks(timeline)
    nodes = {event.node for event in seen.values()}
    if len(nodes) != 1 or len(seen) == timeline.plan.world_size:
        return
    rank, first = next(iter(seen.items()))
    cause, evidence = (
        "results are wrong here and right elsewhere",
        tuple(map(_wrong_words, seen.values())),
    )
    more = {"check": check_of(first.data["op"]), "at": first.at, "remedy": FAULTY_DATA}
    if len(seen) == 1:
        yield _rank(timeline, rank, 0.7, cause, evidence, **more)
    else:
        yield _node(first.node, 0.7, cause, evidence, **more)


def check_of(op: str) -> str:
    """The check that fails when a collective gives wrong data."""
    return {"broadcast": "nccl.broadcast", "all_gather": "nccl.allgather"}.get(op, "nccl.correct")


def wrong_ranks(timeline: Timeline, check: str = "") -> dict[int, Event]:
    """The first wrong result of every rank that had one, in any collective or in those of one check."""
    seen: dict[int, Event] = {}
    for event in timeline.left_with("wrong"):
        counts = not check or check_of(event.data.get("op", "")) == check
        if event.rank is not None and counts:
            seen.setdefault(event.rank, event)
    return seen


def _wrong_words(event: Event) -> str:
    data, first = event.data, event.data.get("first")
    name = collective_name(data["op"], data["bytes"], data.get("dtype", "float32"))
    where = (
        f", first at element {first['index']}: {first['seen']} instead of {first['wanted']:g}"
        if first
        else ""
    )
    source = (
        f", which rank {first['source']} sent" if first and first.get("source") is not None else ""
    )
    return f"rank {event.rank}: {data['wrong']} wrong elements in {name}{where}{source}"
