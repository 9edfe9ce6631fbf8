"""Rules that find who did it, in the order in which their evidence can be trusted.

First comes what only the fault itself can bring about: a process that was killed, a node without a
heartbeat, a stopped process. Crashes come after it, for a rank may crash because a peer did, then
connections without an answer. Ranks that never reached the store come last. What a rank says about
its peers in a broken collective is no evidence and is not read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.evidence import (
    MOST,
    by_node,
    end_words,
    exit_words,
    last_words,
    quote,
    rank_words,
    ranks_in_state,
    time_words,
    unexpected_exits,
)
from clusterprep.jobs.verify.schedule import ScheduledTest
from clusterprep.jobs.verify.sockets import cuts
from clusterprep.jobs.verify.tally import (
    all_finished,
    collective_name,
    end_time,
    step_name,
)
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.model import Culprit
from clusterprep.remedies import NO_REMEDY, Remedy, sentence, shell_line

# Signals that a process brings about itself.
CRASHES = frozenset({"SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGPIPE", "SIGTRAP"})
EARLY_STAGES = {  # what a rank does while it does not need the others yet
    "import": "importing torch",
    "belongings": "looking at its packages and files",
    "device": "binding its device",
}
FAULTY_SHARE = {
    "missing": "what this rank gives is missing",
    "doubled": "what this rank gives is there twice",
    "wrong": "what this rank gives is wrong on all others",
}
FAULTY_DATA = sentence(
    "test the device and its memory, PCIe link and network card; look at their error counters"
)
CASCADE = 1.0  # seconds; a crash that follows another within it may be its consequence
ORPHANED_EXIT = 5  # exit code of a rank whose agent is gone (remote/trial.py, EXIT_FORSAKEN)


class Confidence:
    """How certain a rule is that its culprit is the cause, from 0 to 1.

    The more other causes show in the same way, the less certain it is.
    """

    REFUSED = 0.99
    NO_TORCH = 0.99
    PORT_TAKEN = 0.98
    KILLED = 0.97
    STOPPED = 0.97
    FAILED_EARLY = 0.95
    LOST = 0.95
    FAULTY_RANK = 0.9
    CRASHED_ALONE = 0.85
    UNANSWERED = 0.85
    LATE_START = 0.8
    NO_STORE = 0.8
    STUCK = 0.75
    NO_STORE_LINK = 0.7  # of two nodes, either may be the end at fault
    WRONG_RESULTS = 0.7
    CRASHED_AMONG_OTHERS = 0.6


class Fault(Culprit, frozen=True):
    """A culprit with the check that it fails, when it was seen, and what to do about it."""

    check: str = "nccl.hang"
    at: float = 0.0
    remedy: Remedy = NO_REMEDY
    seen: str = ""


Rule = Callable[[Timeline], Iterable[Fault]]


def find_faults(timeline: Timeline) -> tuple[Fault, ...]:
    """Return every fault that can be proven, earliest first.

    Wrong data are looked for in any case: they never explain why something hangs.
    """
    wrong = list(wrong_data(timeline))
    if all_finished(timeline):
        return tuple(wrong)
    faults = _hang_faults(timeline)
    faults.extend(wrong)
    faults.sort(key=_time)
    return tuple(faults)


def _hang_faults(timeline: Timeline) -> list[Fault]:
    """Return what the certain rules find, else what the first likely rule with a result finds."""
    faults: list[Fault] = []
    for rule in CERTAIN_RULES:
        faults.extend(rule(timeline))
    for rule in LIKELY_RULES:
        if faults:
            break
        faults.extend(rule(timeline))
    return faults


def _time(fault: Fault) -> float:
    return fault.at


def _node_fault(
    name: str, confidence: float, cause: str, evidence: tuple[str, ...], **fields: Any
) -> Fault:
    """Return a fault of a node. What was seen is the cause itself, unless `fields` has it."""
    fields.setdefault("seen", cause)
    return Fault(
        "node",
        (name,),
        confidence,
        cause,
        evidence,
        **fields,
    )


def _link_fault(
    ends: tuple[str, ...],
    confidence: float,
    cause: str,
    evidence: tuple[str, ...],
    **fields: Any,
) -> Fault:
    """Return a fault of the link between two nodes, as `_node_fault` does for one."""
    fields.setdefault("seen", cause)
    return Fault(
        "link",
        ends,
        confidence,
        cause,
        evidence,
        **fields,
    )


def _rank_fault(
    timeline: Timeline,
    rank: int,
    confidence: float,
    cause: str,
    evidence: tuple[str, ...],
    **fields: Any,
) -> Fault:
    """Return a fault of a rank and the node that runs it, as `_node_fault` does for a node."""
    node = timeline.rank(rank).node
    fields.setdefault("seen", cause)
    return Fault(
        "rank",
        (node,),
        confidence,
        cause,
        evidence,
        rank,
        **fields,
    )


# ---------------------------------------------------------------- what cannot be a consequence


def refused_starts(timeline: Timeline) -> Iterable[Fault]:
    remedy = sentence("correct python and job_user of this node in the inventory")
    for event in timeline.of("refused"):
        answer = event.data.get("no")
        why = str(event.data.get("why", ""))
        cause = f"no rank can be started: {why}"
        evidence = (f"{event.node} answered {answer}: {quote(why)}",)
        yield _node_fault(
            event.node,
            Confidence.REFUSED,
            cause,
            evidence,
            at=event.at,
            remedy=remedy,
        )


def nodes_without_torch(timeline: Timeline) -> Iterable[Fault]:
    pythons = {node.name: node.python for node in timeline.plan.nodes}
    for what in ("no_torch", "no_cuda"):
        events_by_node = by_node(timeline, timeline.ranks_with(what))
        for node, events in events_by_node.items():
            yield _without_torch(node, pythons[node], events)


def _without_torch(node: str, python: str, events: Sequence[Event]) -> Fault:
    first = events[0]
    cause = f"{python} has no torch"
    if first.what == "no_cuda":
        cause = f"torch {first.data.get('torch')} of {python} is a build without CUDA"
    evidence: list[str] = []
    for event in events:
        text = quote(event.data.get("text"))
        evidence.append(f"rank {event.rank}: {text}")
    remedy = sentence(
        "install the job's torch for {python}, or correct python in the inventory", python=python
    )
    check = "torch.version"
    return _node_fault(
        node,
        Confidence.NO_TORCH,
        cause,
        tuple(evidence),
        check=check,
        at=first.at,
        remedy=remedy,
    )


def port_taken(timeline: Timeline) -> Iterable[Fault]:
    """Read the error of rank 0: only it listens for the others, so only it can find a used port."""
    event = timeline.ranks_with("error").get(0)
    if event is None or event.data.get("stage") != "store":
        return
    text = str(event.data.get("text", ""))
    if "EADDRINUSE" not in text and "address already in use" not in text.lower():
        return
    port = timeline.plan.port
    remedy = shell_line(
        "ss -ltnp {filter}   # end what listens there, or choose another port with --master-port",
        filter=f"sport = :{port}",
    )
    cause = f"port {port} is already in use"
    evidence = (f"rank 0: {quote(text)}",)
    check = "net.ports"
    yield _node_fault(
        event.node,
        Confidence.PORT_TAKEN,
        cause,
        evidence,
        check=check,
        at=event.at,
        remedy=remedy,
    )


def failed_before_rendezvous(timeline: Timeline) -> Iterable[Fault]:
    """Find exceptions before the rendezvous: no other rank can have caused them."""
    remedy = sentence("do the same with this python as job_user on this node")
    for rank, event in timeline.ranks_with("error").items():
        doing = EARLY_STAGES.get(str(event.data.get("stage")))
        if doing is None:
            continue
        cause = f"{event.data.get('type')} while {doing}"
        text = quote(event.data.get("text"))
        evidence = (f"rank {rank}: {text}",)
        yield _rank_fault(
            timeline,
            rank,
            Confidence.FAILED_EARLY,
            cause,
            evidence,
            at=event.at,
            remedy=remedy,
        )


def killed_ranks(timeline: Timeline) -> Iterable[Fault]:
    """Find ends by a signal that no process sends itself; a cascade of crashes has none."""
    for rank, event in unexpected_exits(timeline).items():
        name = str(event.data.get("name", ""))
        if not name or name in CRASHES:
            continue
        remedy = sentence("find who sends {name}", name=name)
        if name == "SIGKILL":
            remedy = sentence("see dmesg -T for the kernel's out-of-memory killer")
        cause = f"the process was killed by {name}"
        evidence = end_words(timeline, rank, event)
        yield _rank_fault(
            timeline,
            rank,
            Confidence.KILLED,
            cause,
            evidence,
            at=event.at,
            remedy=remedy,
        )


def lost_nodes(timeline: Timeline) -> Iterable[Fault]:
    remedy = sentence("look at the node's console: is it up, is its network, does sshd run?")
    cause = "the node fell silent"
    for event in timeline.of("lost"):
        heard = float(event.data.get("heard", event.at))
        detail = quote(event.data.get("detail"))
        times = f"last sign of life {time_words(heard)}, given up {time_words(event.at)}"
        evidence = (f"{times}: {detail}",)
        yield _node_fault(
            event.node,
            Confidence.LOST,
            cause,
            evidence,
            at=heard,
            remedy=remedy,
        )


def stopped_ranks(timeline: Timeline) -> Iterable[Fault]:
    remedy = sentence("let the process go on (kill -CONT), and find who stops it")
    for rank, event in ranks_in_state(timeline, "stopped", "traced").items():
        state = event.data["state"]
        cause = "the process is stopped by a debugger (state t)"
        if state == "stopped":
            cause = "the process is stopped by a signal (state T)"
        since = _since(event)
        last = last_words(timeline, rank)
        evidence = (f"rank {rank} is {state} {since}, {last}",)
        yield _rank_fault(
            timeline,
            rank,
            Confidence.STOPPED,
            cause,
            evidence,
            at=event.at,
            remedy=remedy,
        )


def _since(event: Event) -> str:
    time = time_words(event.at).removeprefix("at ")
    return f"since {time}"


CERTAIN_RULES: tuple[Rule, ...] = (
    refused_starts,
    nodes_without_torch,
    port_taken,
    failed_before_rendezvous,
    killed_ranks,
    lost_nodes,
    stopped_ranks,
)


# ---------------------------------------------------------------- what may be a consequence


def first_crash(timeline: Timeline) -> Iterable[Fault]:
    """Find the first end by a crash or without an error message.

    A second one within CASCADE makes it less certain.
    """
    crashes = _unexplained_exits(timeline)
    if not crashes:
        return
    rank, first = crashes[0]
    confidence = Confidence.CRASHED_ALONE
    for _, later in crashes[1:]:
        if later.at - first.at <= CASCADE:
            confidence = Confidence.CRASHED_AMONG_OTHERS
    cause = f"the process ended with {exit_words(first)}"
    evidence = end_words(timeline, rank, first)
    remedy = sentence("read the last lines that it printed")
    yield _rank_fault(
        timeline,
        rank,
        confidence,
        cause,
        evidence,
        at=first.at,
        remedy=remedy,
    )


def _unexplained_exits(timeline: Timeline) -> list[tuple[int, Event]]:
    """Return the unexpected exits of ranks that told no error themselves, earliest first."""
    explained: set[int] = set()
    for what in ("no_torch", "no_cuda", "error"):
        explained.update(timeline.ranks_with(what))
    exits: list[tuple[int, Event]] = []
    for rank, event in unexpected_exits(timeline).items():
        is_orphaned = event.data.get("code") == ORPHANED_EXIT
        if rank not in explained and not is_orphaned:
            exits.append((rank, event))
    return exits


def stuck_ranks(timeline: Timeline) -> Iterable[Fault]:
    remedy = sentence("see dmesg -T for the driver or file system that it waits for")
    cause = "the process is stuck in the kernel (state D)"
    for rank, event in ranks_in_state(timeline, "stuck").items():
        where = event.data.get("where")
        if not where:
            where = "a place that the kernel does not tell"
        since = _since(event)
        last = last_words(timeline, rank)
        evidence = (f"rank {rank} waits in {where} {since}, {last}",)
        yield _rank_fault(
            timeline,
            rank,
            Confidence.STUCK,
            cause,
            evidence,
            at=event.at,
            remedy=remedy,
        )


def late_start(timeline: Timeline) -> Iterable[Fault]:
    """Find ranks that were not ready when the start had used up its limit."""
    overdue = timeline.first("overdue")
    if overdue is None or timeline.first("go") is not None:
        return
    ready = timeline.ranks_with("ready")
    imported = timeline.ranks_with("imported")
    for rank in timeline.plan.ranks:
        if rank.rank in ready:
            continue
        remedy = sentence(
            "time the import of torch on this node; a slow file system is the usual reason"
        )
        cause = "torch was not imported in time"
        if rank.rank in imported:
            cause = "torch was imported, and the device did not come up in time"
            remedy = sentence(
                "look whether nvidia-smi answers on this node and how long it takes; without "
                "persistence mode the driver wakes the GPUs each time"
            )
        evidence = rank_words(timeline, [rank.rank])
        yield _rank_fault(
            timeline,
            rank.rank,
            Confidence.LATE_START,
            cause,
            evidence,
            at=overdue.at,
            remedy=remedy,
        )


def unanswered_connections(timeline: Timeline) -> Iterable[Fault]:
    """Find what the sockets showed at the hang, also why a rank could not reach the store."""
    remedy = shell_line(
        "nft list ruleset; ip route"
        "   # compare firewalls and routes of the nodes named, then cable and switch port"
    )
    at = end_time(timeline)
    for cut in cuts(timeline):
        if len(cut.nodes) == 1:
            (name,) = cut.nodes
            yield _node_fault(
                name,
                Confidence.UNANSWERED,
                cut.cause,
                cut.evidence,
                at=at,
                remedy=remedy,
            )
            continue
        yield _link_fault(
            cut.nodes,
            Confidence.UNANSWERED,
            cut.cause,
            cut.evidence,
            source=cut.source,
            target=cut.target,
            at=at,
            remedy=remedy,
        )


def ranks_without_store(timeline: Timeline) -> Iterable[Fault]:
    """Find ranks that never reached the store; ranks stuck after the store prove nothing."""
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
        yield _store_not_opened(timeline, host)
    elif set(missing) == others:
        yield _store_unreachable(timeline, host, missing)
    else:
        yield from _store_not_reached_by_some(timeline, missing)


def _store_not_opened(timeline: Timeline, host: str) -> Fault:
    plan = timeline.plan
    remedy = sentence(
        "check that {address} is an address of {host} and resolves there",
        address=plan.address,
        host=host,
    )
    cause = f"the store at {plan.rendezvous} could not be opened"
    evidence = rank_words(timeline, [0])
    return _node_fault(
        host,
        Confidence.NO_STORE,
        cause,
        evidence,
        at=end_time(timeline),
        remedy=remedy,
    )


def _store_unreachable(timeline: Timeline, host: str, missing: Mapping[str, list[int]]) -> Fault:
    """Blame for a store that no other node reached.

    One other node: either end may be at fault. More of them: the end that they have in common is.
    """
    plan = timeline.plan
    at = end_time(timeline)
    cause = f"the store at {plan.rendezvous} was reached from no other node"
    ranks = itertools.chain(*missing.values())
    evidence = rank_words(timeline, ranks)
    remedy = sentence(
        "open port {port} on {host}, and check that {address} is its address",
        port=plan.port,
        host=host,
        address=plan.address,
    )
    if len(missing) > 1:
        return _node_fault(
            host,
            Confidence.NO_STORE,
            cause,
            evidence,
            at=at,
            remedy=remedy,
        )
    (other,) = missing
    ends = (other, host)
    return _link_fault(
        ends,
        Confidence.NO_STORE_LINK,
        cause,
        evidence,
        source=other,
        target=host,
        at=at,
        remedy=remedy,
    )


def _store_not_reached_by_some(
    timeline: Timeline, missing: Mapping[str, list[int]]
) -> Iterable[Fault]:
    store = timeline.plan.rendezvous
    cause = f"the store at {store} was not reached, though others reached it"
    at = end_time(timeline)
    remedy = sentence("check the way from this node to {store}", store=store)
    for node, ranks in missing.items():
        if len(ranks) == len(timeline.plan.ranks_by_node[node]):
            evidence = rank_words(timeline, ranks)
            yield _node_fault(
                node,
                Confidence.NO_STORE,
                cause,
                evidence,
                at=at,
                remedy=remedy,
            )
            continue
        for rank in ranks:
            evidence = rank_words(timeline, [rank])
            yield _rank_fault(
                timeline,
                rank,
                Confidence.NO_STORE,
                cause,
                evidence,
                at=at,
                remedy=remedy,
            )


LIKELY_RULES: tuple[Rule, ...] = (
    first_crash,
    stuck_ranks,
    late_start,
    unanswered_connections,
    ranks_without_store,
)


# ---------------------------------------------------------------- wrong results


def wrong_data(timeline: Timeline) -> Iterable[Fault]:
    """Return the ranks that spoil data if the data show it, else the place of wrong results.

    Wrong results on one rank or one node only point there; on more, they may have been wrong before
    the sum.
    """
    spoilers = list(_spoilers(timeline))
    if spoilers:
        return spoilers
    return _place_of_wrong_results(timeline)


def _spoilers(timeline: Timeline) -> Iterable[Fault]:
    """Find ranks whose share all others found wrong, missing or doubled in the same collective."""
    known: set[int] = set()
    world = timeline.plan.world_size
    for number, step in enumerate(timeline.plan.steps):
        left = timeline.turn("left", number)
        suspects = _suspects(timeline, left)
        if world > 2 and 2 * len(suspects) > world:
            continue  # if most ranks are accused, something else is at fault
        for rank, share in suspects.items():
            if rank in known:
                continue
            known.add(rank)
            yield _spoiler(
                timeline,
                rank,
                share,
                step,
                left,
            )


def _suspects(timeline: Timeline, left: Mapping[int, Event]) -> dict[int, str]:
    """Return the ranks that all others accuse after a collective, and of what."""
    suspects: dict[int, str] = {}
    for rank, share in _accused_ranks(timeline, left).items():
        if not _all_agree(timeline, left, rank, share):
            continue
        suspects[rank] = share
    return suspects


def _spoiler(
    timeline: Timeline, rank: int, share: str, step: ScheduledTest, left: Mapping[int, Event]
) -> Fault:
    wrong: list[Event] = []
    for event in left.values():
        if not event.data.get("wrong"):
            continue
        wrong.append(event)
    evidence = tuple(map(_wrong_words, wrong[:MOST]))
    cause = f"{FAULTY_SHARE[share]} in {step_name(step)}"
    check = check_of(step.op)
    at = min(event.at for event in left.values())
    return _rank_fault(
        timeline,
        rank,
        Confidence.FAULTY_RANK,
        cause,
        evidence,
        check=check,
        at=at,
        remedy=FAULTY_DATA,
    )


def _accused_ranks(timeline: Timeline, left: Mapping[int, Event]) -> dict[int, str]:
    """Return every rank that some rank accuses after a collective, and of what."""
    accused: dict[int, str] = {}
    accusers = {event.rank for event in timeline.left_with("blame")}
    if not accusers:  # as usual; then the ranks, of which there may be thousands, are not looked at
        return accused
    for rank, event in left.items():
        if rank in accusers:
            accused.update(_accused_by(event))
    return accused


def _accused_by(event: Event) -> dict[int, str]:
    accused: dict[int, str] = {}
    rows = event.data.get("blame")
    if not isinstance(rows, list):
        return accused
    for row in rows:
        if not isinstance(row, list) or len(row) != 2:
            continue
        rank, share = row
        if isinstance(rank, int) and share in FAULTY_SHARE:
            accused[rank] = str(share)
    return accused


def _all_agree(timeline: Timeline, left: Mapping[int, Event], rank: int, share: str) -> bool:
    """Whether all other ranks accuse this one.

    Between two ranks, wrong data from one of them may as well have been spoiled by the other.
    """
    world = timeline.plan.world_size
    is_complete = len(left) == world
    if not is_complete or world < 2 or rank not in range(world):
        return False
    if world == 2 and share == "wrong" and not _accused_by(left[rank]):
        return False
    for other, event in left.items():
        if other != rank and rank not in _accused_by(event):
            return False
    return True


def _place_of_wrong_results(timeline: Timeline) -> Iterable[Fault]:
    wrong = wrong_ranks(timeline)
    nodes = {event.node for event in wrong.values()}
    if len(nodes) != 1 or len(wrong) == timeline.plan.world_size:
        return
    rank, first = next(iter(wrong.items()))
    at = first.at
    check = check_of(first.data["op"])
    cause = "results are wrong here and right elsewhere"
    evidence = tuple(map(_wrong_words, wrong.values()))
    if len(wrong) == 1:
        yield _rank_fault(
            timeline,
            rank,
            Confidence.WRONG_RESULTS,
            cause,
            evidence,
            check=check,
            at=at,
            remedy=FAULTY_DATA,
        )
        return
    yield _node_fault(
        first.node,
        Confidence.WRONG_RESULTS,
        cause,
        evidence,
        check=check,
        at=at,
        remedy=FAULTY_DATA,
    )


def check_of(op: str) -> str:
    """Return the check that fails if a collective gives wrong data."""
    if op == "broadcast":
        return "nccl.broadcast"
    if op == "all_gather":
        return "nccl.allgather"
    return "nccl.correct"


def wrong_ranks(timeline: Timeline, check: str = "") -> dict[int, Event]:
    """Return the first wrong result of every rank that had one.

    With `check` only the collectives of that check are looked at.
    """
    first: dict[int, Event] = {}
    for event in timeline.left_with("wrong"):
        op = event.data.get("op", "")
        counts = not check or check_of(op) == check
        if event.rank is not None and counts:
            first.setdefault(event.rank, event)
    return first


def _wrong_words(event: Event) -> str:
    data = event.data
    dtype = data.get("dtype", "float32")
    name = collective_name(data["op"], data["bytes"], dtype)
    sentence = f"rank {event.rank}: {data['wrong']} wrong elements in {name}"
    first = data.get("first")
    if not first:
        return sentence
    value = f"{first['seen']} instead of {first['wanted']:g}"
    sentence += f", first at element {first['index']}: {value}"
    if first.get("source") is not None:
        sentence += f", which rank {first['source']} sent"
    return sentence
