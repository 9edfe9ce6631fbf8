"""The stage `groups` of verify: collectives of a few nodes each, on the agents that are there, to find who is slow.

Run where all nodes together fail or are slow and neither the ranks nor the links say why. The ranks stand from test to
test, for torch is imported in seconds and a test takes a fraction of one; those of a test that hung are started anew.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from clusterprep.jobs.verify.collect import Standing, dismiss, run_verify
from clusterprep.jobs.verify.groups import (
    BELIEVED,
    BELIEVED_ON_CPUS,
    Screened,
    cards,
    measured,
    probe_plan,
    settings,
)
from clusterprep.jobs.verify.probes import Probe, Steps
from clusterprep.jobs.verify.schedule import TrialPlan
from clusterprep.jobs.verify.screening import Screening, screen
from clusterprep.model import Fleet
from clusterprep.model.pair_schedule import rounds
from clusterprep.nccl.interfaces import choose
from clusterprep.survey.fanout import Fanout

LIMIT = 300.0  # seconds for all of it


def screen_groups(fanout: Fanout, fleet: Fleet, plan: TrialPlan, limit: float = LIMIT) -> Screened:
    """Play the screening against the nodes of `plan`. A node that is lost gives no answers from then on."""
    names = [node.name for node in plan.nodes]
    asked = screen(names, rounds(names, fleet.inventory.cluster), settings(plan))
    return _Tests(fanout, fleet, plan).play(asked, limit)


class _Tests:
    def __init__(self, fanout: Fanout, fleet: Fleet, plan: TrialPlan) -> None:
        self._fanout, self._plan = fanout, plan
        self._addresses = {name: pick.address for name, pick in choose(fleet).picks.items()}
        self._standing = Standing()
        self._samples: dict[Probe, list[float]] = {}

    def play(self, asked: Steps[Screening], limit: float) -> Screened:
        began = time.monotonic()
        found, why = None, f"they take longer than {limit:g} s"
        try:
            batch = next(asked)
            while time.monotonic() - began < limit:
                batch = asked.send(self._batch(batch))
        except StopIteration as end:
            found, why = end.value, ""
        finally:
            links = [
                self._fanout.links[n.name] for n in self._plan.nodes if n.name in self._fanout.links
            ]
            dismiss(links, self._standing)
        seconds, share = (
            time.monotonic() - began,
            BELIEVED.get(self._plan.backend, BELIEVED_ON_CPUS),
        )
        return Screened(found, self._samples, seconds, limit, why, cards(self._plan), share)

    def _batch(self, batch: Sequence[Probe]) -> list[float | None]:
        """All probes of a batch at once; they have no node in common."""
        meets = self._meets(batch)
        speeds: dict[Probe, float | None] = {}

        def work(probe: Probe) -> None:
            speeds[probe] = self._probe(probe, meets[probe])

        self._fanout.each(batch, work)
        for probe, speed in speeds.items():
            if speed is not None:
                self._samples.setdefault(probe, []).append(speed)
        return [speeds[probe] for probe in batch]

    def _meets(self, batch: Sequence[Probe]) -> Mapping[Probe, tuple[str, int]]:
        """Where each one has its rendezvous: the usual port, and the next ones where nodes share a machine."""
        taken: Counter[str] = Counter()
        found = {}
        for probe in batch:
            address = self._addresses.get(probe.nodes[0], self._plan.address)
            found[probe] = (address, self._plan.port + taken[address])
            taken[address] += 1
        return found

    def _probe(self, probe: Probe, meet: tuple[str, int]) -> float | None:
        links = [self._fanout.links.get(name) for name in probe.nodes]
        there = [link for link in links if link is not None]
        if len(there) < len(links):
            return None
        return measured(
            run_verify(there, probe_plan(self._plan, probe, meet), standing=self._standing)
        )
