"""Trials of a few nodes each: what a probe of the screening runs, and what it measured. Pure.

A probe is a real collective by the ranks of its nodes, over the network that the job itself would
use: a fault of it need not show between two sockets of TCP.
"""

from __future__ import annotations

from msgspec.structs import replace

from clusterprep.jobs.verify.events import Event
from clusterprep.jobs.verify.probes import Probe, ProbeSettings
from clusterprep.jobs.verify.schedule import ScheduledTest, TrialPlan, plan_subset
from clusterprep.jobs.verify.tally import all_finished
from clusterprep.jobs.verify.timeline import Timeline
from clusterprep.nccl.interfaces import name_list

TIMEOUT = 20.0  # seconds for one collective; what takes longer is slow enough
# Bytes; large enough for bandwidth to count and small enough for dozens of tests.
LARGEST = {"nccl": 256 << 20}
LARGEST_ON_CPUS = 1 << 20
LEAST = 64 << 10  # bytes; less measures latency
ON_GPUS = ProbeSettings()
# Ranks on processors share them with each other and with other programs: a factor of two proves
# nothing there.
ON_CPUS = ProbeSettings(slow=0.35, noise=0.2, clip=3.0)


def probe_settings(plan: TrialPlan) -> ProbeSettings:
    """Return what counts as slow for the backend of a trial, and how many rails it has."""
    if plan.backend != "nccl":
        return ON_CPUS
    return replace(ON_GPUS, rails=len(rdma_devices(plan)))


def rdma_devices(plan: TrialPlan) -> tuple[str, ...]:
    """Return the RDMA devices of the ranks, if all ranks list the same ones, two at least.

    Only then each device can be tried alone.
    """
    values: set[str] = set()
    for rank in plan.ranks:
        if rank.env.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
            return ()
        values.add(rank.env.get("NCCL_IB_HCA", ""))
    if len(values) != 1:
        return ()
    devices = name_list(values.pop())
    if devices is None or devices.negated or len(devices.items) < 2:
        return ()
    return devices.items


def probe_plan(plan: TrialPlan, probe: Probe, rendezvous: tuple[str, int]) -> TrialPlan:
    """Return the trial of one probe.

    A direction is a broadcast from the first node, a rail is a pair on one device alone.
    """
    sizes = [step.bytes for step in plan.steps if step.op == "all_reduce"]
    largest = LARGEST.get(plan.backend, LARGEST_ON_CPUS)
    size = min(max(sizes, default=LEAST), largest)
    op = "broadcast" if probe.kind == "way" else "all_reduce"
    step = ScheduledTest(op, max(LEAST, size))
    env: dict[str, str] = {}
    if probe.rail is not None:
        device = rdma_devices(plan)[probe.rail]
        env["NCCL_IB_HCA"] = f"={device}"
    timeout = min(plan.timeout, TIMEOUT)
    return plan_subset(
        plan,
        probe.nodes,
        rendezvous,
        (step,),
        timeout,
        **env,
    )


def probe_speed(timeline: Timeline) -> float | None:
    """Return GB/s; 0 if the collective hung or broke, None if its ranks could not be started.

    The quickest repetition counts: a broken part is slow each time, while a rank that only had to
    wait for a core is not.
    """
    for what in ("refused", "no_torch", "lost"):
        if timeline.first(what):
            return None
    left = timeline.turn("left", 0)
    if not left or not all_finished(timeline):
        return 0.0
    return min(map(_best_speed, left.values()))


def _best_speed(left: Event) -> float:
    seconds = max(float(left.data["best"]), 1e-9)
    return int(left.data["bytes"]) / seconds / 1e9
