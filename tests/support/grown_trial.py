"""A trial of a fleet of any size, as its agents report it: milestones of ranks, and deviations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from clusterprep.jobs.verify.consistency import PARTS
from clusterprep.jobs.verify.events import Event, SharedEvents
from clusterprep.jobs.verify.schedule import PlannedRank, TrialPlan
from clusterprep.model import Finding, VerifyResult
from clusterprep.remote.agent.belongings import variables

BEFORE = ("spawned", "started", "imported")  # without the others
MEETING = ("store", "joined", "met")
OWN = 0.002  # seconds that a rank needs between collectives


@dataclass(frozen=True)
class Story:
    """Nodes by what becomes of their ranks.

    Where any is lost, killed or stopped, the first collective hangs.
    """

    lost: frozenset[str] = frozenset()
    killed: frozenset[str] = frozenset()
    stopped: frozenset[str] = frozenset()
    lame: frozenset[str] = frozenset()  # all others wait for them
    strange: frozenset[str] = frozenset()  # have another version of a package

    @property
    def hangs(self) -> bool:
        return bool(self.lost or self.killed or self.stopped)


Tell = Callable[..., Event]


def events(plan: TrialPlan, story: Story) -> Iterator[Event]:
    """What the agents tell, kept as it is kept of real ones."""
    kept = SharedEvents()

    def tell(rank: PlannedRank, what: str, at: float, **data: Any) -> Event:
        when = at + rank.rank * 1e-6
        return kept.event(rank.node, what, when, rank.rank, data, when + 7.0)

    for rank in plan.ranks:
        yield from _of_rank(plan, story, rank, tell)
    yield Event("", "go", 10.5)
    for name in story.lost:
        yield Event(
            name, "lost", 25.0, None, {"reason": "hung", "detail": "no sign of life", "heard": 20.0}
        )
    yield Event("", "stopping", 90.0)


def _of_rank(plan: TrialPlan, story: Story, rank: PlannedRank, tell: Tell) -> Iterator[Event]:
    for second, what in enumerate(BEFORE):
        yield tell(rank, what, second)
    local = rank.local_rank
    gpu = {
        "uuid": f"GPU-{rank.rank}",
        "index": local,
        "pci": f"0000:{local:02x}:00.0",
        "numa": local // 4,
    }
    yield tell(rank, "ready", len(BEFORE), gpu=gpu)
    for part in PARTS:
        yield tell(
            rank,
            "holds",
            2.5,
            part=part,
            items=_items(rank, part, strange=rank.node in story.strange),
        )
    for second, what in enumerate(MEETING):
        yield tell(rank, what, 11.0 + second)
    if rank.node in story.lost:
        return
    if local == 0 and rank.node in story.killed:
        yield tell(rank, "exit", 20.0, signal=9, name="SIGKILL", output="", asked=False)
    elif local == 0 and rank.node in story.stopped:
        yield tell(rank, "state", 20.0, state="stopped")
    else:
        yield from _collectives(plan, story, rank, tell)


def _collectives(plan: TrialPlan, story: Story, rank: PlannedRank, tell: Tell) -> Iterator[Event]:
    own = 50 * OWN if rank.node in story.lame else OWN
    for number, step in enumerate(plan.steps):
        of = {"op": step.op, "bytes": step.bytes, "dtype": step.dtype}
        yield tell(rank, "entered", 15.0 + number, **of)
        if story.hangs:
            return
        yield tell(rank, "warmed", 15.3 + number, **of)
        yield tell(
            rank,
            "left",
            15.6 + number,
            **of,
            seconds=0.01,
            best=0.009,
            wrong=0,
            first=None,
            own=own,
        )
    yield tell(rank, "finished", 80.0)


def _items(rank: PlannedRank, part: str, strange: bool) -> dict[str, str]:
    if part == "packages":
        return {
            f"package-{number}": "2.0" if strange and number == 7 else "1.0" for number in range(40)
        }
    return (
        {"CPython": "3.10.12"}
        if part == "interpreter"
        else variables(dict(rank.env))
        if part == "environment"
        else {}
    )


def stories(names: list[str]) -> dict[str, Story]:
    """One trial that goes well but for a few slow and a few odd nodes, and one that hangs."""
    few = max(1, len(names) // 500)
    spread = [frozenset(names[start :: len(names) // few][:few]) for start in (3, 5, 7)]
    return {
        "finished": Story(lame=spread[0], strange=spread[1]),
        "hung": Story(lost=spread[0], killed=spread[1], stopped=spread[2]),
    }


def compare(story: Story, result: VerifyResult, said: Iterable[Finding]) -> None:
    """AssertionError unless exactly what is in the story is blamed."""
    blamed = {name for culprit in result.culprits for name in culprit.nodes}
    assert blamed == story.lost | story.killed | story.stopped, sorted(blamed)[:5]
    failed = {finding.check: set(finding.nodes) for finding in said if finding.verdict == "fail"}
    if story.hangs:
        assert failed["nccl.hang"] <= blamed
    else:
        assert failed == {
            "nccl.straggler": set(story.lame),
            "rank.consistency": set(story.strange),
        }, failed
