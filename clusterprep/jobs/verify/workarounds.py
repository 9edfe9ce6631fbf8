"""Settings that people try when a job hangs: what to try next, and what the attempts show. Pure.

Each is tried alone. If none alone helps, all are tried together, and then as many are left out as
can be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.jobs.verify.schedule import PlannedRank, TrialPlan
from clusterprep.model import CollectiveResult, VerifyResult, Workaround
from clusterprep.model.nodeset import fold
from clusterprep.model.units import format_size

# What keeps NCCL off a path that may be broken: peer access, RDMA, shared memory, NVLink SHARP,
# trees.
SWITCHES = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_ALGO": "Ring",
}
INTERFACES = {"nccl": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}
# A factor: a slow trial that gains less is not called cured, as less comes and goes by itself.
FASTER = 2.0


class Setting(Struct, frozen=True):
    """One variable and its value on every node, as interfaces may have other names there."""

    variable: str
    values: tuple[tuple[str, str], ...]  # node, value

    @property
    def assignment(self) -> str:
        nodes_by_value: dict[str, list[str]] = {}
        for node, value in self.values:
            nodes_by_value.setdefault(value, []).append(node)
        if len(nodes_by_value) == 1:
            (value,) = nodes_by_value
            return f"{self.variable}={value}"
        parts: list[str] = []
        for value, nodes in nodes_by_value.items():
            part = f"{self.variable}={value} on {fold(nodes)}"
            parts.append(part)
        return ", ".join(parts)


Settings = tuple[Setting, ...]


class Attempt(Struct, frozen=True):
    """One more trial, with these settings over the environment; none is the same trial again."""

    settings: Settings
    works: bool
    speed: CollectiveResult | None = None  # the largest message that all ranks exchanged
    why: str = ""


def available_settings(plan: TrialPlan, networks: Sequence[Mapping[str, str]]) -> Settings:
    """Return the settings that change something for this trial.

    `networks` has the interface of every node in each network.
    """
    candidates = _switch_settings(plan)
    candidates += _interface_settings(plan, networks)
    return tuple(setting for setting in candidates if _changes(plan, setting))


def _switch_settings(plan: TrialPlan) -> list[Setting]:
    """Return each of SWITCHES as set on all nodes; nothing for backends other than NCCL."""
    settings: list[Setting] = []
    if plan.backend == "nccl":
        for name, value in SWITCHES.items():
            values = tuple((node.name, value) for node in plan.nodes)
            settings.append(Setting(name, values))
    return settings


def _interface_settings(plan: TrialPlan, networks: Sequence[Mapping[str, str]]) -> list[Setting]:
    """Return what moves the trial to each of these networks."""
    variable = INTERFACES.get(plan.backend)
    if variable is None:
        return []
    # A = in front makes NCCL take a name as a whole, which is all that gloo does.
    mark = "=" if plan.backend == "gloo" else ""
    settings: list[Setting] = []
    for network in networks:
        interfaces: list[tuple[str, str]] = []
        for node in plan.nodes:
            interface = network[node.name].removeprefix(mark)
            interfaces.append((node.name, interface))
        settings.append(Setting(variable, tuple(interfaces)))
    return settings


def _changes(plan: TrialPlan, setting: Setting) -> bool:
    """Return whether a setting gives a rank another value than it has."""
    values = dict(setting.values)
    for rank in plan.ranks:
        before = rank.env.get(setting.variable, "")
        if before.lstrip("=") != values[rank.node].lstrip("="):
            return True
    return False


def with_settings(plan: TrialPlan, chosen: Settings) -> TrialPlan:
    """Return the same trial with these settings over the environment of every rank."""
    ranks: list[PlannedRank] = []
    for rank in plan.ranks:
        env = dict(rank.env)
        for setting in chosen:
            values = dict(setting.values)
            env[setting.variable] = values[rank.node]
        ranks.append(replace(rank, env=env))
    return replace(plan, ranks=tuple(ranks))


# ---------------------------------------------------------------- which to try next


def next_settings(known: Settings, attempts: Sequence[Attempt]) -> Settings | None:
    """Return the settings to try next, None if the search is over.

    First comes the same trial again: if it works, the fault has gone by itself, and no setting
    would be its cure.
    """
    works = {attempt.settings: attempt.works for attempt in attempts}
    if works.get(()):
        return None
    singles: list[Settings] = [(), *zip(known)]
    for single in singles:
        if single not in works:
            return single
    if any(works[single] for single in singles):
        return None
    for combination in _combinations(known):
        if combination not in works:
            return combination
        if works[combination]:
            return _next_smaller(combination, works)
    return None


def _combinations(known: Settings) -> Iterator[Settings]:
    """Yield all that can be set at once: the switches with one of the networks."""
    switches: list[Setting] = []
    networks: list[Setting] = []
    for setting in known:
        settings = switches if setting.variable in SWITCHES else networks
        settings.append(setting)
    if not networks and len(switches) > 1:
        yield tuple(switches)
    for network in networks:
        if switches:
            yield (*switches, network)


def _next_smaller(combination: Settings, works: Mapping[Settings, bool]) -> Settings | None:
    """Leave one setting out of the smallest part of `combination` that works.

    Returns None if all such parts were tried.
    """
    smallest = combination
    for settings, is_working in works.items():
        is_part = set(settings) <= set(combination)
        if is_working and is_part and len(settings) < len(smallest):
            smallest = settings
    if len(smallest) <= 2:  # single settings were tried alone
        return None
    for omitted in smallest:
        smaller = tuple(setting for setting in smallest if setting != omitted)
        if smaller not in works:
            return smaller
    return None


# ---------------------------------------------------------------- what it showed


def judge_attempt(chosen: Settings, result: VerifyResult, before: VerifyResult) -> Attempt:
    """Judge whether the trial works now: it passes, and faster by FASTER if it was only slow."""
    speed = fastest(result)
    if result.verdict != "pass":
        return Attempt(chosen, False, speed, result.message or "it is still too slow")
    speed_before = fastest(before)
    was_complete = len(before.collectives) == len(result.collectives)
    if was_complete and speed is not None and speed_before is not None:
        gain = FASTER * speed_before.busbw_gbs
        if speed.busbw_gbs < gain:
            return Attempt(chosen, False, speed, "it is as slow as before")
    return Attempt(chosen, True, speed)


def fastest(result: VerifyResult) -> CollectiveResult | None:
    """Return the collective whose speed counts: the largest message that all ranks exchanged."""
    return max(result.collectives, key=lambda row: row.bytes, default=None)


def workaround_rows(attempts: Sequence[Attempt]) -> tuple[Workaround, ...]:
    """Return the rows of the report; a share is of the fastest working attempt at the same size."""
    best = 0.0
    for attempt in attempts:
        if attempt.works:
            best = max(best, _rate(attempt))
    rows: list[Workaround] = []
    for attempt in attempts:
        rate = size = share = None
        if attempt.speed is not None:
            rate = attempt.speed.busbw_gbs
            size = attempt.speed.bytes
            if attempt.works and best:
                share = rate / best
        row = Workaround(
            settings=tuple(setting.assignment for setting in attempt.settings),
            works=attempt.works,
            busbw_gbs=rate,
            bytes=size,
            share=share,
            why=attempt.why,
        )
        rows.append(row)
    return tuple(rows)


def _rate(attempt: Attempt) -> float:
    if attempt.speed is None:
        return 0.0
    return attempt.speed.busbw_gbs


def conclusion(known: Settings, attempts: Sequence[Attempt]) -> str:
    """Return one sentence for the message of the report."""
    best: Attempt | None = None
    for attempt in attempts:
        if not attempt.works:
            continue
        if not attempt.settings:
            return "the same trial again passed, so no setting is needed: the fault comes and goes"
        if best is None or _preference(attempt) > _preference(best):
            best = attempt
    if not known:
        return "there is no setting to try: the nodes share no other network"
    if best is None:
        return f"none of {len(known)} settings makes it work, alone or together"
    names = " and ".join(setting.assignment for setting in best.settings)
    cost = ""
    if best.speed:
        size = format_size(best.speed.bytes)
        cost = f" at {best.speed.busbw_gbs:.3g} GB/s for {size}"
    return f"it works with {names}{cost}; nothing was written"


def _preference(attempt: Attempt) -> tuple[int, float]:
    """Prefer few settings, then speed."""
    return -len(attempt.settings), _rate(attempt)
