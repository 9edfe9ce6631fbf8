"""Speeds of earlier verifies: what a run is held against, and what is kept of it for later ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.history.applied import AppliedEnvironments
from clusterprep.model import CollectiveResult, Finding, Fleet, VerifyResult
from clusterprep.model.nodeset import fold
from clusterprep.model.units import format_size

if TYPE_CHECKING:
    from clusterprep.jobs.verify.blame import Judged
    from clusterprep.jobs.verify.hardware_model import Expected
    from clusterprep.jobs.verify.link_verdicts import MeasuredLinks
    from clusterprep.jobs.verify.node_speed import NodeSpeeds
    from clusterprep.jobs.verify.schedule import TrialPlan
    from clusterprep.jobs.verify.speed import Yardsticks


class SpeedRecords(Struct, frozen=True):
    """The speed of one trial among those of earlier runs.

    With `baseline` the user wants this run to be what is normal from now on.
    """

    fleet: Fleet
    plan: TrialPlan
    trial: Judged
    applied: AppliedEnvironments
    run: str
    baseline: bool = False

    def yardsticks(self, measured: MeasuredLinks | None) -> Yardsticks:
        """Return what the speed can be compared with, but for the peers."""
        from clusterprep.jobs.verify.link_verdicts import usual_speed
        from clusterprep.jobs.verify.speed import Baseline, Yardsticks

        earlier: tuple[float, ...] = ()
        normal = None
        key = self._key()
        if key is not None:
            earlier = self.applied.speeds(self._cluster, key)
            recorded = self.applied.baseline(self._cluster, key)
            if recorded is not None:
                run, gbs = recorded
                normal = Baseline(gbs, run)
        links = 0.0
        if measured is not None:
            links = usual_speed(measured.pairs, measured.rated)
        return Yardsticks(
            declared=self.plan.min_busbw,
            model=self._hardware_model(),
            earlier=earlier,
            baseline=normal,
            links=links,
            is_cut_short=self._is_cut_short(),
            is_scaled_down=self._is_scaled_down(),
            says_nothing=says_nothing(self.plan),
            records=self._why_not_recorded() == "" and self.baseline,
        )

    def node_speeds(self, measured: NodeSpeeds) -> NodeSpeeds:
        """Return what was measured of single nodes with their baselines, which it may become."""
        from clusterprep.jobs.verify.speed import Baseline

        baselines: dict[str, Baseline] = {}
        for name, row in measured.rows.items():
            recorded = None
            if row is not None:
                key = self._node_key(name, row)
                recorded = self.applied.baseline(self._cluster, key)
            if recorded is not None:
                run, gbs = recorded
                baselines[name] = Baseline(gbs, run)
        if self.baseline:
            self._record_nodes(measured)
        return replace(measured, baselines=baselines, records=self.baseline)

    def _record_nodes(self, measured: NodeSpeeds) -> None:
        for name, row in measured.rows.items():
            if row is not None:
                key = self._node_key(name, row)
                self.applied.record_baseline(self._cluster, key, self.run, row.busbw_gbs)

    def _node_key(self, name: str, row: CollectiveResult) -> str:
        ranks = len(self.plan.ranks_by_node[name])
        return f"{name} alone {ranks} ranks {self.plan.backend} {row.op} {row.bytes}"

    def remember(self, result: VerifyResult, findings: Iterable[Finding]) -> VerifyResult:
        """Store the speed if it may count as normal; return the result with what was recorded."""
        row = self._row()
        key = self._key()
        if row is not None and key is not None and self._shows_normal_speed(findings):
            self.applied.record_speed(self._cluster, key, self.run, row.busbw_gbs)
        if not self.baseline:
            return result
        sentences = filter(None, [result.message, self._record_baseline(row, key)])
        return replace(result, message="; ".join(sentences))

    def _record_baseline(self, row: CollectiveResult | None, key: str | None) -> str:
        """Store the baseline and return a sentence about it."""
        why_not = self._why_not_recorded()
        if why_not or row is None or key is None:
            return f"no baseline was recorded: {why_not}"
        self.applied.record_baseline(self._cluster, key, self.run, row.busbw_gbs)
        recorded = self.applied.baseline(self._cluster, key)
        if recorded is None or recorded[0] != self.run:
            return "no baseline was recorded: the file of earlier runs cannot be written"
        nodes = fold(node.name for node in self.plan.nodes)
        speed = f"{row.op} of {format_size(row.bytes)} at {row.busbw_gbs:.3g} GB/s"
        renewal = "the next verify with --baseline takes its place"
        return f"recorded as normal for {nodes} over {self.plan.backend}: {speed}; {renewal}"

    @property
    def _cluster(self) -> str:
        return self.fleet.inventory.cluster

    def _row(self) -> CollectiveResult | None:
        from clusterprep.jobs.verify.speed import largest

        return largest(self.trial.collectives)

    def _key(self) -> str | None:
        planned = None
        if self._is_cut_short():
            planned = self._cut_steps()[0]
        return comparable(self.plan, self.trial, planned)

    def _cut_steps(self) -> tuple[int, ...]:
        """Return the planned bytes of the sizes that were cut short, the largest first."""
        from clusterprep.jobs.verify.tally import cut_short_steps

        timeline = self.trial.timeline
        if timeline is None:
            return ()
        sizes = [step.bytes for step in cut_short_steps(timeline)]
        return tuple(sorted(sizes, reverse=True))

    def _is_cut_short(self) -> bool:
        return bool(self._cut_steps())

    def _is_scaled_down(self) -> bool:
        from clusterprep.jobs.verify.tally import steps_that_did_not_fit

        timeline = self.trial.timeline
        return timeline is not None and bool(steps_that_did_not_fit(timeline))

    def _hardware_model(self) -> Expected | None:
        from clusterprep.jobs.verify.hardware_model import expected

        if self.plan.backend != "nccl":
            return None
        counts = {name: len(ranks) for name, ranks in self.plan.ranks_by_node.items()}
        env = {rank.node: rank.env for rank in self.plan.ranks}
        return expected(self.fleet, counts, env)

    def _why_not_recorded(self) -> str:
        """Return why this run cannot be a baseline; empty if it can."""
        why = says_nothing(self.plan)
        if self.trial.verdict != "pass":
            why = "the collectives failed"
        elif self._is_cut_short():
            why = "a size was cut short, as it is far slower than the links"
        elif self._row() is None:
            why = "no all-reduce was timed"
        return why

    def _shows_normal_speed(self, findings: Iterable[Finding]) -> bool:
        """Whether later runs may be compared with this one: it passed and was not slow."""
        from clusterprep.jobs.verify.speed import NAME

        for finding in findings:
            is_slow = finding.verdict == "fail" or finding.reason == "busy"
            if finding.check == NAME and is_slow:
                return False
        return self.trial.verdict == "pass" and not self._is_cut_short()


def says_nothing(plan: TrialPlan) -> str:
    """Return why a trial's speed says nothing about that of a job; empty if it does."""
    if plan.most_sharing > 1:
        return f"{plan.most_sharing} nodes share one GPU, whose ranks take turns"
    if plan.world_size < 2:
        return "one rank alone sends nothing"
    return ""


def comparable(plan: TrialPlan, result: VerifyResult, planned: int | None = None) -> str | None:
    """Return a key that is equal for trials whose speeds can be compared.

    It has nodes, ranks, backend, collective and size, `planned` if the size was cut short. None if
    no collective was timed, or if ranks share GPUs.
    """
    from clusterprep.jobs.verify.speed import largest

    row = largest(result.collectives)
    if row is None or plan.most_sharing > 1:
        return None
    nodes = fold(node.name for node in plan.nodes)
    size = row.bytes if planned is None else planned
    return f"{nodes} {plan.world_size} ranks {plan.backend} {row.op} {size}"
