"""Runs an all-reduce within each node alone, on all nodes at once.

The ranks are started anew: those of the trial before have said what they have to say once they end,
NCCL's log among it, and a group of their own would mix its lines with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from clusterprep.jobs.verify.collect import run_verify
from clusterprep.jobs.verify.node_speed import NodeSpeeds, node_step
from clusterprep.jobs.verify.schedule import TrialPlan, plan_subset
from clusterprep.jobs.verify.tally import all_finished, timed_collectives
from clusterprep.model import CollectiveResult, Fleet
from clusterprep.nccl.interfaces import choose
from clusterprep.survey.fanout import Fanout


def measure_nodes(
    fanout: Fanout, fleet: Fleet, plan: TrialPlan, names: Sequence[str]
) -> NodeSpeeds:
    """Return the speed of each of these nodes; one whose ranks do not finish has none."""
    plans = _plans(fleet, plan, names)
    rows: dict[str, CollectiveResult | None] = dict.fromkeys(names)

    def work(name: str) -> None:
        link = fanout.links.get(name)
        if link is None:
            return
        timeline = run_verify([link], plans[name])
        measured = timed_collectives(timeline)
        if measured and all_finished(timeline):
            rows[name] = measured[-1]

    fanout.each(names, work)
    return NodeSpeeds(rows)


def _plans(fleet: Fleet, plan: TrialPlan, names: Sequence[str]) -> Mapping[str, TrialPlan]:
    """Return a trial for each node alone; those on one machine have ports one after the other."""
    picks = choose(fleet).picks
    step = node_step(plan.backend)
    used: Counter[str] = Counter()
    plans: dict[str, TrialPlan] = {}
    for name in names:
        address = plan.address
        if name in picks:
            address = picks[name].address
        rendezvous = (address, plan.port + used[address])
        used[address] += 1
        plans[name] = plan_subset(plan, [name], rendezvous, (step,), plan.timeout)
    return plans
