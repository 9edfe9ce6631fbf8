"""The stage `groups` of verify: find slow nodes by collectives of a few nodes each.

It runs on the agents that are there, if all nodes together fail or are slow and neither the ranks
nor the links say why. The ranks stay from test to test, as importing torch takes seconds and a test
takes a fraction of one; the ranks of a test that hung are started anew.

The collectives are those of the job's own backend, so a test sees what no TCP stream shows. Ranks
leave their group at «part». All ranks of a group have to say that they parted before any rank joins
another group, or the next group would find the store of the last one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from clusterprep.jobs.verify.collect import StandingRanks, run_verify, stop_standing_ranks
from clusterprep.jobs.verify.group_probes import (
    probe_plan,
    probe_settings,
    probe_speed,
    rdma_devices,
)
from clusterprep.jobs.verify.group_verdicts import BELIEVED, BELIEVED_ON_CPUS, Screened
from clusterprep.jobs.verify.probes import Probe, Steps
from clusterprep.jobs.verify.schedule import TrialPlan
from clusterprep.jobs.verify.screening import Screening, screen
from clusterprep.model import Fleet
from clusterprep.model.pair_schedule import rounds
from clusterprep.nccl.interfaces import choose
from clusterprep.remote.transports.link import Link
from clusterprep.survey.fanout import Fanout

LIMIT = 300.0  # seconds for all of it


def screen_groups(fanout: Fanout, fleet: Fleet, plan: TrialPlan, limit: float = LIMIT) -> Screened:
    """Run the screening on the nodes of `plan`. A node that is lost has no results from then on."""
    names = [node.name for node in plan.nodes]
    schedule = rounds(names, fleet.inventory.cluster)
    settings = probe_settings(plan)
    steps = screen(names, schedule, settings)
    tests = _GroupTests(fanout, fleet, plan)
    return tests.run(steps, limit)


class _GroupTests:
    def __init__(self, fanout: Fanout, fleet: Fleet, plan: TrialPlan) -> None:
        self._fanout = fanout
        self._plan = plan
        self._picks = choose(fleet).picks
        self._standing = StandingRanks()
        self._samples: dict[Probe, list[float]] = {}

    def run(self, steps: Steps[Screening], limit: float) -> Screened:
        began = time.monotonic()
        screening: Screening | None = None
        gave_up = f"they take longer than {limit:g} s"
        try:
            batch = next(steps)
            while time.monotonic() - began < limit:
                speeds = self._run_batch(batch)
                batch = steps.send(speeds)
        except StopIteration as end:
            screening = end.value
            gave_up = ""
        finally:
            self._stop_ranks()
        seconds = time.monotonic() - began
        devices = rdma_devices(self._plan)
        believed = BELIEVED.get(self._plan.backend, BELIEVED_ON_CPUS)
        return Screened(
            screening=screening,
            samples=self._samples,
            seconds=seconds,
            limit=limit,
            gave_up=gave_up,
            devices=devices,
            believed=believed,
        )

    def _stop_ranks(self) -> None:
        names = [node.name for node in self._plan.nodes]
        links = self._links(names)
        stop_standing_ranks(links, self._standing)

    def _links(self, names: Sequence[str]) -> list[Link]:
        """Return the links to the nodes that are still connected."""
        links: list[Link] = []
        for name in names:
            link = self._fanout.links.get(name)
            if link is not None:
                links.append(link)
        return links

    def _run_batch(self, batch: Sequence[Probe]) -> list[float | None]:
        """Run all probes of a batch at once; they have no node in common."""
        rendezvous = self._rendezvous(batch)
        speeds: dict[Probe, float | None] = {}

        def work(probe: Probe) -> None:
            place = rendezvous[probe]
            speeds[probe] = self._run_probe(probe, place)

        self._fanout.each(batch, work)
        for probe, speed in speeds.items():
            if speed is None:
                continue
            samples = self._samples.setdefault(probe, [])
            samples.append(speed)
        return [speeds[probe] for probe in batch]

    def _rendezvous(self, batch: Sequence[Probe]) -> Mapping[Probe, tuple[str, int]]:
        """Return where each probe meets: the usual port, the next ones if nodes share a machine."""
        used: Counter[str] = Counter()
        rendezvous: dict[Probe, tuple[str, int]] = {}
        for probe in batch:
            address = self._plan.address
            pick = self._picks.get(probe.nodes[0])
            if pick is not None:
                address = pick.address
            port = self._plan.port + used[address]
            rendezvous[probe] = (address, port)
            used[address] += 1
        return rendezvous

    def _run_probe(self, probe: Probe, rendezvous: tuple[str, int]) -> float | None:
        links = self._links(probe.nodes)
        if len(links) < len(probe.nodes):
            return None
        plan = probe_plan(self._plan, probe, rendezvous)
        timeline = run_verify(links, plan, self._standing)
        return probe_speed(timeline)
