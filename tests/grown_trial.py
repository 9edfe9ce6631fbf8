"""A trial of a fleet of any size, as its agents would tell it: every rank's milestones, and what a few do instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from clusterprep.model import Finding, VerifyResult
from clusterprep.remote.belongings import variables
from clusterprep.verify.consistency import PARTS
from clusterprep.verify.schedule import TrialPlan
from clusterprep.verify.timeline import Event

BEFORE = ("spawned", "started", "imported", "ready")  # without the others
MEETING = ("store", "joined", "met")
OWN = 0.002  # seconds that a rank needs between collectives


@dataclass(frozen=True)
class Story:
    """Nodes by what becomes of their ranks. Where any is lost, killed or stopped, the first collective hangs."""

    lost: frozenset[str] = frozenset()
    killed: frozenset[str] = frozenset()
    stopped: frozenset[str] = frozenset()
    lame: frozenset[str] = frozenset()  # all others wait for them
    strange: frozenset[str] = frozenset()  # have another version of a package

    @property
    def hangs(self) -> bool:
        return bool(self.lost or self.killed or self.stopped)


def events(plan: TrialPlan, story: Story) -> Iterator[Event]:
    """What the agents tell: data as they come from JSON, equal for many ranks and not the same."""
    for rank in plan.ranks:
        yield from _of_rank(plan, story, rank.rank, rank.node, rank.local_rank)
    yield Event("", "go", 10.5)
    for name in story.lost:
        yield Event(name, "lost", 25.0, None, {"reason": "hung", "detail": "no sign of life", "heard": 20.0})
    yield Event("", "stopping", 90.0)


def _of_rank(plan: TrialPlan, story: Story, rank: int, node: str, local: int) -> Iterator[Event]:
    begun = rank * 1e-6
    for second, what in enumerate(BEFORE):
        gpu = {"uuid": f"GPU-{rank}", "index": local, "pci": f"0000:{local:02x}:00.0", "numa": local // 4}
        yield Event(node, what, second + begun, rank, {"gpu": gpu} if what == "ready" else {}, second + begun + 7.0)
    for part in PARTS:
        yield Event(
            node, "holds", 2.5 + begun, rank, {"part": part, "items": _items(plan, rank, part, node in story.strange)}
        )
    for second, what in enumerate(MEETING):
        yield Event(node, what, 11.0 + second + begun, rank, {}, 18.0 + second + begun)
    gone = node in story.killed | story.stopped and local == 0
    if gone or node in story.lost:
        yield from _ending(story, rank, node) if gone else ()
        return
    yield from _collectives(plan, story, rank, node)


def _items(plan: TrialPlan, rank: int, part: str, strange: bool) -> dict[str, str]:
    if part == "packages":
        return {f"package-{number}": "2.0" if strange and number == 7 else "1.0" for number in range(40)}
    return (
        {"CPython": "3.10.12"}
        if part == "interpreter"
        else variables(dict(plan.ranks[rank].env))
        if part == "environment"
        else {}
    )


def _ending(story: Story, rank: int, node: str) -> Iterator[Event]:
    if node in story.killed:
        yield Event(node, "exit", 20.0, rank, {"signal": 9, "name": "SIGKILL", "output": "", "asked": False})
    else:
        yield Event(node, "state", 20.0, rank, {"state": "stopped"})


def _collectives(plan: TrialPlan, story: Story, rank: int, node: str) -> Iterator[Event]:
    for number, step in enumerate(plan.steps):
        at = 15.0 + number + rank * 1e-6
        of = {"op": step.op, "bytes": step.bytes, "dtype": step.dtype}
        yield Event(node, "entered", at, rank, dict(of), at + 7.0)
        if story.hangs:
            return
        yield Event(node, "warmed", at + 0.3, rank, dict(of), at + 7.3)
        own = 50 * OWN if node in story.lame else OWN
        data = {**of, "seconds": 0.01, "best": 0.009, "wrong": 0, "first": None, "own": own}
        yield Event(node, "left", at + 0.6, rank, data, at + 7.6)
    yield Event(node, "finished", 80.0, rank, {}, 87.0)


def stories(names: list[str]) -> dict[str, Story]:
    """One trial that goes well but for a few slow and a few strange nodes, and one that hangs because of some."""
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
        assert failed == {"nccl.straggler": set(story.lame), "rank.consistency": set(story.strange)}, failed
