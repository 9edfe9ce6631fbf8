"""Judge a launch from the events of agents: how each rank ended, and which failure was first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from clusterprep.jobs.launch.display import Source, spans
from clusterprep.jobs.launch.plan import LaunchPlan
from clusterprep.jobs.launch.stacks import (
    Stack,
    awaited_ranks,
    innermost_user_frame,
    stack_of,
)
from clusterprep.jobs.launch.torchrun_summary import exit_codes
from clusterprep.jobs.verify.events import Event
from clusterprep.model import Culprit, LaunchedRank, LaunchResult, Verdict
from clusterprep.remote.agent.processes import signal_name
from clusterprep.remote.untrusted import shortened

TOGETHER = 1.0  # seconds; an end so shortly after the first one may be its consequence
QUOTED = 5  # last lines of a culprit that are quoted
LONGEST_PATH = 4096  # characters; PATH_MAX of Linux
LONGEST_REASON = 2000  # characters of why a node was lost or refused
# States of a process (proc_pid_stat(5)) that explain why a rank hangs.
STATES = {
    "T": "it is stopped (state T), for example by SIGSTOP",
    "t": "a debugger holds it (state t)",
    "D": "it is stuck in the kernel (state D): a driver or a file system does not answer",
}
_ENDED_STATES = "XZ"  # dead, and zombie
_NOISE = "Extension modules: "  # the last line of the fault handler
# Signals that tell a process to end. torchrun sends them to the other ranks when one has failed.
_SENT = frozenset({1, 2, 15})
_SIGABRT = 6
_PRIORITY_SENT = 3
Ending = Literal["done", "failed", "timeout"]
Ended = Literal["finished", "failed", "killed", "with-others"]  # as LaunchedRank.ended


class LaunchRecord(Struct, frozen=True):
    """What was observed of a launch.

    Events of the agents, the last lines of each stream, and the states of ranks at a hang.
    """

    events: Sequence[Event]
    last_lines: Mapping[Source, Iterable[str]]
    ending: Ending
    states: Mapping[int, str] = field(default_factory=dict)
    # Seconds since the start. What ended later was ended by launch, whatever its event says.
    until: float = float("inf")

    def own_exits(self) -> Iterator[Event]:
        """Yield the ends of processes that launch had not asked to end."""
        for event in self.events:
            is_own = not event.data.get("asked") and event.at <= self.until
            if event.what == "exit" and is_own:
                yield event


class RankExit(Struct, frozen=True):
    """The end of one rank by itself; `returncode` is negative for a signal."""

    rank: int
    returncode: int
    at: float

    @property
    def priority(self) -> int:
        """Return how to choose among ends at the same time: the lowest is the likeliest cause.

        A rank whose peer is gone raises, which is exit code 1, or its watchdog aborts it. A rank
        that got a signal to end did so because of another one.
        """
        if -self.returncode in _SENT:
            return _PRIORITY_SENT
        if self.returncode in (1, -_SIGABRT):
            return 1
        return 0


RankExits = Mapping[int, RankExit]  # by rank


def judge(plan: LaunchPlan, record: LaunchRecord) -> LaunchResult:
    """Return the result of a launch, without logs and their diagnosis."""
    exits = _rank_exits(plan, record)
    culprits = _find_culprits(plan, record, exits)
    alike = _alike(plan, record, _failures_before(_lost_events(record), exits))
    lost_nodes = {event.node: event.what for event in _lost_events(record)}
    rows: list[LaunchedRank] = []
    for rank in plan.homes:
        if rank in exits:
            rows.append(_ended_rank(plan, record, exits, rank))
        else:
            rows.append(_rank_without_exit(plan, record, lost_nodes, rank))
    all_finished = all(row.ended == "finished" for row in rows)
    is_timeout = record.ending == "timeout"
    verdict: Verdict = "fail"
    if record.ending == "done" and all_finished:
        verdict = "pass"
    elif is_timeout and not culprits:
        verdict = "unknown"
    return LaunchResult(
        verdict=verdict,
        mode=plan.wanted.mode,
        world_size=plan.world_size,
        nproc_per_node=plan.nproc_per_node,
        rendezvous=plan.rendezvous,
        folders=_folders(record),
        ranks=tuple(rows),
        culprits=culprits,
        timed_out=is_timeout,
        message=_message(plan, record, culprits, alike),
    )


def _folders(record: LaunchRecord) -> dict[str, str]:
    """Return the folder in which the processes of each node ran, by node."""
    folders: dict[str, str] = {}
    for event in record.events:
        if event.what == "begun":
            folder = event.data.get("folder", "")
            folders[event.node] = shortened(folder, LONGEST_PATH)
    return folders


def _lost_events(record: LaunchRecord) -> list[Event]:
    """Return the events of nodes that were lost, or refused to start processes."""
    return [event for event in record.events if event.what in ("lost", "refused")]


# ---------------------------------------------------------------- how each rank ended


def _rank_exits(plan: LaunchPlan, record: LaunchRecord) -> dict[int, RankExit]:
    """Return the ranks that ended by themselves, successful or not."""
    closed_at: dict[int | None, float] = {}
    for event in record.events:
        if event.what == "closed":
            closed_at[event.rank] = event.at
    share_of = {share.node.name: share for share in plan.shares}
    returncodes: dict[int, int] = {}
    ended_at: dict[int, float] = {}
    for event in record.own_exits():
        if event.rank is not None:
            returncodes[event.rank] = _returncode(event)
            ended_at[event.rank] = event.at
            continue
        # A torchrun has ended, and with it the ranks of its node.
        share = share_of[event.node]
        codes: dict[int, int] = {}
        if _returncode(event) == 0:
            codes = dict.fromkeys(share.ranks, 0)
        lines = record.last_lines.get((event.node, None), ())
        codes.update(exit_codes(lines, share.first))
        for rank, code in codes.items():
            returncodes[rank] = code
            ended_at[rank] = closed_at.get(rank, event.at)
    exits: dict[int, RankExit] = {}
    for rank, returncode in returncodes.items():
        if rank in plan.homes:
            exits[rank] = RankExit(rank, returncode, ended_at[rank])
    return exits


def _returncode(event: Event) -> int:
    """Return the exit code of an exit event; the negative number of the signal if there was one."""
    if "signal" in event.data:
        return -int(event.data["signal"])
    return int(event.data.get("code", 0))


def _end_words(returncode: int) -> str:
    if returncode < 0:
        return f"was killed by {signal_name(-returncode)}"
    return f"ended with exit code {returncode}"


def _ended_rank(
    plan: LaunchPlan, record: LaunchRecord, exits: RankExits, rank: int
) -> LaunchedRank:
    """Return how a rank in `exits` ended: by an exit code, a signal, or because others failed."""
    share = plan.homes[rank]
    node = share.node.name
    local_rank = rank - share.first
    rank_exit = exits[rank]
    returncode = rank_exit.returncode
    ended: Ended = "killed"
    code: int | None = None
    signal: str | None = None
    if returncode == 0:
        ended = "finished"
        code = 0
    elif returncode > 0:
        ended = "failed"
        code = returncode
    else:
        signal = signal_name(-returncode)
        was_told_to_end = rank_exit.priority == _PRIORITY_SENT and record.ending == "failed"
        if was_told_to_end and _has_other_cause(rank, exits):
            ended = "with-others"
    return LaunchedRank(
        rank,
        local_rank,
        node,
        ended,
        code,
        signal,
    )


def _has_other_cause(rank: int, exits: RankExits) -> bool:
    """Return True if another rank failed for a reason of its own."""
    for other in exits.values():
        has_failed = other.returncode != 0 and other.priority != _PRIORITY_SENT
        if has_failed and other.rank != rank:
            return True
    return False


def _rank_without_exit(
    plan: LaunchPlan, record: LaunchRecord, lost_nodes: Mapping[str, str], rank: int
) -> LaunchedRank:
    """Return a rank that did not end by itself. `lost_nodes` maps nodes to "lost" or "refused"."""
    share = plan.homes[rank]
    node = share.node.name
    local_rank = rank - share.first
    if lost_nodes.get(node) == "lost":
        return LaunchedRank(rank, local_rank, node, "lost")
    if node in lost_nodes:
        return LaunchedRank(rank, local_rank, node, "not-started")
    if record.ending == "timeout":
        return LaunchedRank(rank, local_rank, node, "hanging")
    return LaunchedRank(rank, local_rank, node, "with-others")


# ---------------------------------------------------------------- who was first


def _find_culprits(plan: LaunchPlan, record: LaunchRecord, exits: RankExits) -> tuple[Culprit, ...]:
    """Return what ended the launch; empty if nothing stands out.

    That is the rank that failed first, else the lost nodes, else a torchrun that failed without its
    ranks, else the ranks that hang.
    """
    lost = _lost_events(record)
    failures = _failures_before(lost, exits)
    if _alike(plan, record, failures):
        return ()
    if failures:
        culprit = _rank_culprit(plan, record, _likeliest_cause(failures))
        return (culprit,)
    if lost:
        return tuple(_node_culprit(event, record) for event in lost)
    for event in record.own_exits():
        if event.rank is None and _returncode(event) != 0:
            return (_torchrun_culprit(event, record),)
    if record.ending == "timeout":
        return _hanging_culprits(plan, record)
    return ()


def _failures_before(lost: Sequence[Event], exits: RankExits) -> list[RankExit]:
    """Return the failed ranks that no lost node explains, earliest first.

    A lost node is noticed seconds after its last message. What its peers did in between follows
    from the loss.
    """
    limit = float("inf")
    for event in lost:
        last_heard = float(event.data.get("heard", event.at))
        limit = min(limit, last_heard - TOGETHER)
    failures: list[RankExit] = []
    for rank_exit in exits.values():
        if rank_exit.returncode != 0 and rank_exit.at < limit:
            failures.append(rank_exit)
    failures.sort(key=lambda failure: failure.at)
    return failures


def _alike(plan: LaunchPlan, record: LaunchRecord, failures: Sequence[RankExit]) -> str:
    """Return how the first ranks failed if they did so alike, on several nodes; else "".

    Then the program fails everywhere, and which rank was the first by milliseconds is chance.
    """
    together = _together(failures)
    nodes = {plan.homes[failure.rank].node.name for failure in together}
    ends = set()
    for failure in together:
        node = plan.homes[failure.rank].node.name
        lines = _evidence(record, node, failure.rank)
        ends.add((failure.returncode, lines[-1] if lines else ""))
    if len(nodes) < 2 or len(ends) > 1:
        return ""
    returncode, line = ends.pop()
    if returncode <= 0 or not line:
        return ""
    ranks = spans(sorted(failure.rank for failure in together))
    return f"ranks {ranks} failed alike, with exit code {returncode} and «{line}»"


def _together(failures: Sequence[RankExit]) -> list[RankExit]:
    """Return the failures of the same time as the first; `failures` are sorted by time."""
    if not failures:
        return []
    first = failures[0]
    return [failure for failure in failures if failure.at - first.at <= TOGETHER]


def _likeliest_cause(failures: Sequence[RankExit]) -> RankExit:
    """Return one of the first failures; `failures` are sorted by time."""
    return min(
        _together(failures), key=lambda failure: failure.priority
    )  # the earliest of equal ones


def _rank_culprit(plan: LaunchPlan, record: LaunchRecord, rank_exit: RankExit) -> Culprit:
    rank = rank_exit.rank
    node = plan.homes[rank].node.name
    confidence = 0.8
    if rank_exit.priority == 0:
        confidence = 0.95  # its way to end is not one that follows from another rank's
    cause = f"rank {rank} on {node} {_end_words(rank_exit.returncode)}"
    evidence = _evidence(record, node, rank)
    return Culprit(
        kind="rank",
        nodes=(node,),
        confidence=confidence,
        cause=cause,
        evidence=evidence,
        rank=rank,
    )


def _node_culprit(event: Event, record: LaunchRecord) -> Culprit:
    """Return the node of an event "lost" or "refused" as the culprit, with the reason."""
    if event.what == "refused":
        failure = "did not start its processes"
    else:
        failure = "was lost while the job ran"
    data = event.data
    reason = data.get("why") or data.get("detail") or data.get("reason") or "no answer"
    cause = f"{event.node} {failure}: {shortened(reason, LONGEST_REASON)}"
    evidence = _evidence(record, event.node, None)
    return Culprit(
        kind="node",
        nodes=(event.node,),
        confidence=0.95,
        cause=cause,
        evidence=evidence,
    )


def _torchrun_culprit(event: Event, record: LaunchRecord) -> Culprit:
    end = _end_words(_returncode(event))
    cause = f"torchrun on {event.node} {end}, before or beside its ranks"
    evidence = _evidence(record, event.node, None)
    return Culprit(
        kind="node",
        nodes=(event.node,),
        confidence=0.9,
        cause=cause,
        evidence=evidence,
    )


def _evidence(record: LaunchRecord, node: str, rank: int | None) -> tuple[str, ...]:
    """Return the last lines of a rank, or of torchrun if `rank` is None, without empty ones."""
    lines: list[str] = []
    for line in record.last_lines.get((node, rank), ()):
        if line.strip() and not line.startswith(_NOISE):
            lines.append(line.rstrip())
    return tuple(lines[-QUOTED:])


def _hanging_culprits(plan: LaunchPlan, record: LaunchRecord) -> tuple[Culprit, ...]:
    """Return the ranks that hang at the time limit.

    These are ranks that are stopped or stuck; if there are none, those that the others wait for.
    """
    culprits: list[Culprit] = []
    for rank, state in record.states.items():
        if state in STATES and rank in plan.homes:
            culprits.append(_hanging_rank(plan, rank, STATES[state], ()))
    if culprits:
        return tuple(culprits)
    stacks = _stacks(plan, record)
    for rank in awaited_ranks(stacks):
        culprits.append(_awaited_rank(plan, stacks, rank))
    return tuple(culprits)


def _awaited_rank(plan: LaunchPlan, stacks: Mapping[int, Stack], rank: int) -> Culprit:
    stack = stacks[rank]
    frame = innermost_user_frame(stack)
    others = sorted(stacks)
    others.remove(rank)
    reason = f"it is at {frame}, and {_are_elsewhere(others)}"
    evidence = tuple(map(str, stack[:QUOTED]))
    return _hanging_rank(plan, rank, reason, evidence)


def _stacks(plan: LaunchPlan, record: LaunchRecord) -> dict[int, Stack]:
    """Return the stack of each rank that still ran when its node was asked for states."""
    stacks: dict[int, Stack] = {}
    for rank, share in plan.homes.items():
        if record.states.get(rank, "X") in _ENDED_STATES:
            continue
        lines = record.last_lines.get((share.node.name, rank), ())
        stacks[rank] = stack_of(lines)
    return stacks


def _are_elsewhere(ranks: list[int]) -> str:
    if len(ranks) > 1:
        return f"ranks {spans(ranks)} are elsewhere"
    return f"rank {spans(ranks)} is elsewhere"


def _hanging_rank(plan: LaunchPlan, rank: int, reason: str, evidence: tuple[str, ...]) -> Culprit:
    node = plan.homes[rank].node.name
    cause = f"rank {rank} on {node} hangs: {reason}"
    return Culprit(
        kind="rank",
        nodes=(node,),
        confidence=0.85,
        cause=cause,
        evidence=evidence,
        rank=rank,
    )


def _message(
    plan: LaunchPlan, record: LaunchRecord, culprits: Sequence[Culprit], alike: str
) -> str:
    """Return what launch itself did at the end; empty if all processes ended by themselves.

    Before it stands how ranks failed alike, if they did.
    """
    if record.ending == "done":
        return alike
    if record.ending == "failed":
        ended = "all other processes were ended"
        return f"{alike}; {ended}" if alike else ended
    limit = ""
    if plan.wanted.limit is not None:
        limit = f" of {plan.wanted.limit:g} s"
    comment = ""
    if not culprits:
        comment = ", and no rank stands out among them"
    return f"--timeout{limit} was reached while ranks ran{comment}; all of them were ended"
