"""What happened in a launch, from what the agents told: which rank ended how, and which of all ends came first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal

from clusterprep.jobs.launch.display import Source, spans
from clusterprep.jobs.launch.ends import codes
from clusterprep.jobs.launch.plan import LaunchPlan
from clusterprep.jobs.launch.stacks import odd, own, stack_of
from clusterprep.jobs.verify.timeline import Event
from clusterprep.model import Culprit, LaunchedRank, LaunchResult
from clusterprep.remote.agent.processes import signal_name
from clusterprep.remote.untrusted import shortened
from clusterprep.runtime.lazy_dataclass import dataclass

TOGETHER = 1.0  # seconds; what ends so shortly after the first end may be its consequence
QUOTED = 5  # lines that a culprit printed last
STATES = {
    "T": "it is stopped (state T): somebody sent it SIGSTOP",
    "t": "a debugger holds it (state t)",
}
STATES["D"] = "it is stuck in the kernel (state D): a driver or a file system does not answer"
_NOISE = "Extension modules: "  # what the fault handler ends with
_SENT = frozenset({1, 2, 15})  # signals that somebody sends: torchrun, to those that are left
Why = Literal["done", "failed", "timeout"]


@dataclass(frozen=True)
class Told:
    """All that came of a launch: what agents told, what was printed last, and the states of ranks at a hang."""

    events: Sequence[Event]
    printed: Mapping[Source, Sequence[str]]
    why: Why
    states: Mapping[int, str] = field(default_factory=dict)
    until: float = float(
        "inf"
    )  # seconds since the start; what ended later was ended by us, whoever says otherwise

    def exits(self) -> Iterator[Event]:
        """Processes that ended by themselves."""
        return (
            e
            for e in self.events
            if e.what == "exit" and not e.data.get("asked") and e.at <= self.until
        )


@dataclass(frozen=True)
class End:
    """How one rank ended by itself; `number` is its exit code, negative for a signal."""

    rank: int
    number: int
    at: float

    @property
    def weight(self) -> int:
        """How likely it is a consequence, for ends that are close: 0 is the least likely.

        A rank whose peer is gone raises, which is 1, or is aborted by its watchdog; one that was told to end was told.
        """
        if -self.number in _SENT:
            return 3
        return 1 if self.number in (1, -6) else 0

    @property
    def words(self) -> str:
        if self.number < 0:
            return f"was killed by {signal_name(-self.number)}"
        return f"ended with exit code {self.number}"


def judge(plan: LaunchPlan, told: Told) -> LaunchResult:
    """The result without logs and their diagnosis."""
    ends = _ends(plan, told)
    culprits = _culprits(plan, told, ends)
    rows = tuple(_row(plan, told, rank, ends.get(rank)) for rank in plan.homes)
    well = told.why == "done" and all(row.ended == "finished" for row in rows)
    return LaunchResult(
        verdict="pass" if well else "unknown" if told.why == "timeout" and not culprits else "fail",
        mode="direct" if plan.wanted.direct else "torchrun",
        world_size=plan.world_size,
        nproc_per_node=plan.nproc_per_node,
        rendezvous=plan.rendezvous,
        folders={
            event.node: shortened(event.data.get("folder", ""), 4096)
            for event in told.events
            if event.what == "begun"
        },
        ranks=rows,
        culprits=culprits,
        timed_out=told.why == "timeout",
        message=_message(plan, told, culprits),
    )


# ---------------------------------------------------------------- how each rank ended


def _ends(plan: LaunchPlan, told: Told) -> dict[int, End]:
    """Ranks that ended by themselves, the good ends too."""
    found: dict[int, End] = {}
    closed = {event.rank: event.at for event in told.events if event.what == "closed"}
    first = {share.node.name: share for share in plan.shares}
    for event in told.exits():
        if event.rank is not None:
            found[event.rank] = End(event.rank, _number(event), event.at)
            continue
        share = first[event.node]
        if _number(event) == 0:
            found.update((rank, End(rank, 0, closed.get(rank, event.at))) for rank in share.ranks)
        for rank, code in codes(told.printed.get((event.node, None), ()), share.first).items():
            found[rank] = End(rank, code, closed.get(rank, event.at))
    return {rank: end for rank, end in found.items() if rank in plan.homes}


def _number(event: Event) -> int:
    return -int(event.data["signal"]) if "signal" in event.data else int(event.data.get("code", 0))


def _row(plan: LaunchPlan, told: Told, rank: int, end: End | None) -> LaunchedRank:
    share = plan.homes[rank]
    where = (rank, rank - share.first, share.node.name)
    lost = {event.node: event.what for event in told.events if event.what in ("lost", "refused")}
    if (
        end is not None
        and end.weight == 3
        and told.why == "failed"
        and not _alone(rank, told, plan)
    ):
        return LaunchedRank(*where, "with-others", None, signal_name(-end.number))
    if end is not None and end.number < 0:
        return LaunchedRank(*where, "killed", None, signal_name(-end.number))
    if end is not None:
        return LaunchedRank(*where, "failed" if end.number else "finished", end.number)
    if share.node.name in lost:
        return LaunchedRank(*where, "lost" if lost[share.node.name] == "lost" else "not-started")
    return LaunchedRank(*where, "hanging" if told.why == "timeout" else "with-others")


def _alone(rank: int, told: Told, plan: LaunchPlan) -> bool:
    """Whether nobody else ended badly for a reason of its own."""
    return all(
        end.weight == 3 or not end.number for end in _ends(plan, told).values() if end.rank != rank
    )


# ---------------------------------------------------------------- who was first


def _culprits(plan: LaunchPlan, told: Told, ends: Mapping[int, End]) -> tuple[Culprit, ...]:
    bad = sorted((end for end in ends.values() if end.number), key=lambda end: end.at)
    gone = [event for event in told.events if event.what in ("lost", "refused")]
    # A node is noticed to be gone seconds after its last word, and what its peers said in between follows from it.
    before = [end for end in bad if all(end.at < _last_word(event) - TOGETHER for event in gone)]
    if gone and not before:
        return tuple(_node(event, told) for event in gone)
    if before:
        close = [end for end in before if end.at - before[0].at <= TOGETHER]
        least = min(end.weight for end in close)
        return (_rank(plan, told, next(end for end in close if end.weight == least)),)
    if torchruns := [event for event in told.exits() if event.rank is None and _number(event) != 0]:
        return (_torchrun(torchruns[0], told),)
    return _hanging(plan, told) if told.why == "timeout" else ()


def _last_word(event: Event) -> float:
    return float(event.data.get("heard", event.at))


def _rank(plan: LaunchPlan, told: Told, end: End) -> Culprit:
    node = plan.homes[end.rank].node.name
    cause = f"rank {end.rank} on {node} {end.words}"
    return Culprit(
        "rank",
        (node,),
        0.95 if end.weight == 0 else 0.8,
        cause,
        _last(told, node, end.rank),
        end.rank,
    )


def _node(event: Event, told: Told) -> Culprit:
    reason = shortened(
        event.data.get("why")
        or event.data.get("detail")
        or event.data.get("reason")
        or "no answer",
        2000,
    )
    what = (
        "did not start its processes" if event.what == "refused" else "was lost while the job ran"
    )
    return Culprit(
        "node", (event.node,), 0.95, f"{event.node} {what}: {reason}", _last(told, event.node, None)
    )


def _torchrun(event: Event, told: Told) -> Culprit:
    how = End(0, _number(event), event.at).words
    evidence = _last(told, event.node, None)
    return Culprit(
        "node",
        (event.node,),
        0.9,
        f"torchrun on {event.node} {how}, before or beside its ranks",
        evidence,
    )


def _last(told: Told, node: str, rank: int | None) -> tuple[str, ...]:
    """The last lines that say something, of a rank, or of torchrun where the rank said nothing."""
    lines = [
        line.rstrip()
        for line in told.printed.get((node, rank), ())
        if line.strip() and not line.startswith(_NOISE)
    ]
    return tuple(lines[-QUOTED:])


def _hanging(plan: LaunchPlan, told: Told) -> tuple[Culprit, ...]:
    """At the time limit: who is stopped or stuck, else who is elsewhere than those that wait."""
    held = {
        rank: STATES[state]
        for rank, state in told.states.items()
        if state in STATES and rank in plan.homes
    }
    if held:
        return tuple(_held(plan, rank, words, ()) for rank, words in held.items())
    stacks = {
        rank: stack_of(told.printed.get((share.node.name, rank), ()))
        for rank, share in plan.homes.items()
        if told.states.get(rank, "X") not in "XZ"
    }
    found = []
    for rank in odd(stacks):
        frame = own(stacks[rank])
        evidence = tuple(str(one) for one in stacks[rank][:QUOTED])
        found.append(_held(plan, rank, f"it is at {frame}, and {_others(stacks, rank)}", evidence))
    return tuple(found)


def _others(stacks: Mapping[int, object], rank: int) -> str:
    others = sorted(other for other in stacks if other != rank)
    return f"rank{'s' if len(others) > 1 else ''} {spans(others)} {'are' if len(others) > 1 else 'is'} elsewhere"


def _held(plan: LaunchPlan, rank: int, words: str, evidence: tuple[str, ...]) -> Culprit:
    node = plan.homes[rank].node.name
    return Culprit("rank", (node,), 0.85, f"rank {rank} on {node} hangs: {words}", evidence, rank)


def _message(plan: LaunchPlan, told: Told, culprits: Iterable[Culprit]) -> str:
    if told.why == "timeout":
        limit = "" if plan.wanted.limit is None else f" of {plan.wanted.limit:g} s"
        named = "" if tuple(culprits) else ", and no rank stands out among them"
        return f"--timeout{limit} was reached while ranks ran{named}; all of them were ended"
    return "" if told.why == "done" else "all other processes were ended"
