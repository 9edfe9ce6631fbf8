"""Settings that people try when a job hangs: which there are, which to try next, and what the tries show. Pure.

Each is tried alone. Where none alone helps, all are tried together, and then as many are left out as can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from clusterprep.jobs.verify.schedule import TrialPlan
from clusterprep.model import CollectiveResult, VerifyResult, Workaround
from clusterprep.model.nodeset import fold
from clusterprep.model.units import format_size
from clusterprep.runtime.lazy_dataclass import dataclass

# What keeps NCCL off a path that may be broken: peer access, RDMA, shared memory, NVLink SHARP, trees.
SWITCHES = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_ALGO": "Ring",
}
INTERFACES = {"nccl": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}
FASTER = 2.0  # a factor under which a slow trial is not called cured: less comes and goes by itself


@dataclass(frozen=True)
class Knob:
    """One setting, its value on every node of the trial; interfaces may be called differently."""

    variable: str
    values: tuple[tuple[str, str], ...]  # node, value

    @property
    def words(self) -> str:
        different = dict.fromkeys(value for _, value in self.values)
        if len(different) == 1:
            return f"{self.variable}={next(iter(different))}"
        nodes = {
            value: fold(name for name, one in self.values if one == value) for value in different
        }
        return ", ".join(f"{self.variable}={value} on {names}" for value, names in nodes.items())


Knobs = tuple[Knob, ...]


@dataclass(frozen=True)
class Try:
    """One more trial, with these knobs over the environment; none is the same trial again."""

    knobs: Knobs
    works: bool
    speed: CollectiveResult | None = None  # the largest message that all ranks exchanged
    why: str = ""


def knobs(plan: TrialPlan, networks: Sequence[Mapping[str, str]]) -> Knobs:
    """Those that change something for this trial. `networks` has the interface of every node in each of them."""
    switches = SWITCHES if plan.backend == "nccl" else {}
    nodes = [node.name for node in plan.nodes]
    found = [Knob(name, tuple((node, value) for node in nodes)) for name, value in switches.items()]
    if variable := INTERFACES.get(plan.backend):
        # A = in front makes NCCL take a name as a whole, which is all that gloo does.
        cut = "=" if plan.backend == "gloo" else ""
        found += [
            Knob(variable, tuple((n, there[n].removeprefix(cut)) for n in nodes))
            for there in networks
        ]
    return tuple(knob for knob in found if _changes(plan, knob))


def _changes(plan: TrialPlan, knob: Knob) -> bool:
    values = dict(knob.values)
    return any(
        rank.env.get(knob.variable, "").lstrip("=") != values[rank.node].lstrip("=")
        for rank in plan.ranks
    )


def turned(plan: TrialPlan, chosen: Knobs) -> TrialPlan:
    """The same trial with these knobs over the environment of every rank."""
    over: dict[str, dict[str, str]] = {node.name: {} for node in plan.nodes}
    for knob in chosen:
        for node, value in knob.values:
            over[node][knob.variable] = value
    return replace(
        plan, ranks=tuple(replace(rank, env={**rank.env, **over[rank.node]}) for rank in plan.ranks)
    )


# ---------------------------------------------------------------- which to try next


def next_try(known: Knobs, tried: Sequence[Try]) -> Knobs | None:
    """The knobs to try next, None when all is known that there is to know.

    First the same trial again: where that works the fault has gone by itself, and no knob would be its cure.
    """
    seen = {one.knobs: one.works for one in tried}
    if seen.get(()):
        return None
    singles: list[Knobs] = [(), *((knob,) for knob in known)]
    for one in singles:
        if one not in seen:
            return one
    if any(seen[one] for one in singles):
        return None
    for whole in _together(known):
        if whole not in seen:
            return whole
        if seen[whole]:
            return next((less for less in _fewer(_least(whole, seen)) if less not in seen), None)
    return None


def _together(known: Knobs) -> Iterator[Knobs]:
    """All that can be set at once: every switch with each of the networks, for a variable has one value."""
    switches = tuple(knob for knob in known if knob.variable in SWITCHES)
    networks = [knob for knob in known if knob.variable not in SWITCHES]
    wholes = [(*switches, network) for network in networks] or [switches]
    return (whole for whole in wholes if len(whole) > 1)


def _least(whole: Knobs, seen: Mapping[Knobs, bool]) -> Knobs:
    """The smallest combination that works so far."""
    return min((one for one, works in seen.items() if works and set(one) <= set(whole)), key=len)


def _fewer(chosen: Knobs) -> Iterator[Knobs]:
    """Each with one knob less; a single one was tried alone."""
    if len(chosen) > 2:
        yield from (tuple(knob for knob in chosen if knob != left) for left in chosen)


# ---------------------------------------------------------------- what it showed


def judged(chosen: Knobs, result: VerifyResult, before: VerifyResult) -> Try:
    """Whether the trial works now: it passes, and is faster by FASTER where it was only slow or lame before."""
    speed, base = fastest(result), fastest(before)
    works = result.verdict == "pass"
    whole = base is not None and len(before.collectives) == len(result.collectives)
    if (
        works
        and whole
        and speed is not None
        and base is not None
        and speed.busbw_gbs < FASTER * base.busbw_gbs
    ):
        return Try(chosen, False, speed, "it is as slow as before")
    return Try(chosen, works, speed, "" if works else result.message or "it is still too slow")


def fastest(result: VerifyResult) -> CollectiveResult | None:
    """The collective whose speed counts: that of the largest message that all ranks exchanged."""
    return max(result.collectives, key=lambda row: row.bytes, default=None)


def told(tried: Sequence[Try]) -> tuple[Workaround, ...]:
    """The rows of the report; the share is of the fastest of those that work at the same size."""
    rates = [one.speed.busbw_gbs for one in tried if one.works and one.speed is not None]
    best = max(rates, default=0.0)
    rows = []
    for one in tried:
        rate = one.speed.busbw_gbs if one.speed is not None else None
        share = rate / best if rate is not None and one.works and best else None
        size = one.speed.bytes if one.speed is not None else None
        rows.append(
            Workaround(
                tuple(knob.words for knob in one.knobs), one.works, rate, size, share, one.why
            )
        )
    return tuple(rows)


def conclusion(known: Knobs, tried: Sequence[Try]) -> str:
    """One sentence for the report's message."""
    if any(one.works and not one.knobs for one in tried):
        return "the same trial again passed, so no setting is needed: the fault comes and goes"
    working = [one for one in tried if one.works]
    if not known:
        return "there is no setting to try: the nodes share no other network"
    if not working:
        return f"none of {len(known)} settings makes it work, alone or together"
    few = min(len(one.knobs) for one in working)
    best = max(
        (one for one in working if len(one.knobs) == few),
        key=lambda one: one.speed.busbw_gbs if one.speed else 0.0,
    )
    names = " and ".join(knob.words for knob in best.knobs)
    cost = (
        f" at {best.speed.busbw_gbs:.3g} GB/s for {format_size(best.speed.bytes)}"
        if best.speed
        else ""
    )
    return f"it works with {names}{cost}; nothing was written"
