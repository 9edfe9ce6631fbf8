"""`clusterprep watch`: looks again and again with the cheap checks, and tells what changes."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import Check
from clusterprep.checks.firewall import FIREWALL
from clusterprep.checks.net import PORTS
from clusterprep.cli import exit_codes
from clusterprep.cli.commands.report import new_report, with_causes_of
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import chosen_checks, one_by_one, plan_survey
from clusterprep.errors import InputError
from clusterprep.facts.host import BOOT_ID, UPTIME
from clusterprep.facts.kernel_log import LOG
from clusterprep.history.samples import recorded_looks
from clusterprep.jobs.live.command import answers_of, ask
from clusterprep.jobs.live.job_watch import LEAST, JobWatch
from clusterprep.jobs.live.target import Target
from clusterprep.model import Finding, Fleet, NodeSnapshot, Report
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout
from clusterprep.survey.judge import judge
from clusterprep.survey.node_lists import limited_fleet
from clusterprep.survey.port_matrix import knock, with_knocks
from clusterprep.survey.queries import QueryPlan, plan_queries
from clusterprep.survey.watch.changes import Change
from clusterprep.survey.watch.kernel_news import FACTS as LOGS
from clusterprep.survey.watch.light_plan import (
    in_part,
    light_checks,
    light_plan,
    without_partial_passes,
)
from clusterprep.survey.watch.ring import Ring
from clusterprep.survey.watch.schedule import Backoff, Moment, unseen_seconds, with_last_words
from clusterprep.survey.watch.state import REACH, WatchState

PAUSE = 0.2  # seconds between two looks at whether the command is to end


class Look(Struct, frozen=True):
    """One look at all nodes, and what has changed since the one before.

    `is_last`: the job that is followed has ended.
    """

    at: datetime
    seconds: float
    fleet: Fleet
    findings: tuple[Finding, ...]
    changes: tuple[Change, ...]
    is_last: bool = False


Tell = Callable[[Look], None]


def plan_watch(invocation: Invocation, *, with_log: bool = False) -> QueryPlan:
    """Return what is asked in every look: the selected checks that are cheap enough for it.

    `with_log`: the kernel's log too, also if no check looks at it.

    Raises InputError if no check is left.
    """
    inventory = invocation.inventory
    known = registry.of(inventory)
    selected = plan_survey(invocation).checks
    named = chosen_checks(invocation, selected) if invocation.settings.selection.only else ()
    for_days = [check for check in selected if not check.before_job or check.name in named]
    checks = light_checks(for_days, known.facts, inventory)
    if not chosen_checks(invocation, checks):
        names = ", ".join(check.name for check in selected[:3])
        raise InputError.of(
            f"no check is left: {names} and the like cost a node too much to be repeated",
            key="--only",
            hint="`clusterprep check` looks once with all checks",
        )
    extra = [known.facts[BOOT_ID.name], known.facts[UPTIME.name]]
    if with_log or any(not set(LOGS).isdisjoint((*check.facts, *check.uses)) for check in checks):
        extra.append(known.facts[LOG.name])
    return light_plan(plan_queries(checks, known.facts, extra), inventory)


def run(
    invocation: Invocation,
    every: float,
    plan: QueryPlan,
    tell: Tell,
    target: Target | None = None,
) -> None:
    """Look at the nodes every so many seconds and call `tell` with each look, until interrupted.

    With a target the job that it names is followed too, until that has ended.
    """
    with invocation.fanout() as fanout:
        watcher = _Watcher(invocation, fanout, plan, every)
        if target is not None:
            watcher.follow(target)
        before: Moment | None = None
        while True:
            started = time.monotonic()
            if before is not None:
                watcher.note_time(before)
            look = watcher.look()
            tell(look)
            if look.is_last:
                return
            _tidy(is_first=before is None)
            before = _moment()
            _wait_until(fanout, started + every)


def report_of(invocation: Invocation, look: Look) -> Report:
    """Return the state of all nodes after a look as a report, its facts left out."""
    findings_code = exit_codes.findings_code(look.findings, invocation.settings.strict)
    nodes = [replace(snapshot, facts={}) for snapshot in look.fleet.snapshots.values()]
    return new_report(
        "watch",
        findings_code,
        cluster=invocation.inventory.cluster,
        run=invocation.run,
        started=look.at,
        seconds=round(look.seconds, 3),
        nodes=tuple(nodes),
        findings=look.findings,
    )


def _tidy(*, is_first: bool) -> None:
    """Free what the look has left in cycles.

    The command line has Python look for cycles so seldom that a watch would grow for a thousand
    looks. What was there after the first look stays, and is not searched again.
    """
    gc.collect()
    if is_first:
        gc.freeze()


class _Watcher:
    """Looks at the nodes, and remembers what was seen last."""

    def __init__(
        self, invocation: Invocation, fanout: Fanout, plan: QueryPlan, every: float
    ) -> None:
        self._invocation = invocation
        self._inventory = invocation.inventory
        self._fanout = fanout
        self._plan = plan
        self._every = every
        facts = registry.of(invocation.inventory).facts
        partial = in_part(plan.checks, facts, invocation.inventory)
        recorded: Mapping[str, Sequence[Mapping[str, Any]]] = {}
        if "history" in plan.stages:
            recorded = recorded_looks(invocation.runs, self._inventory.cluster, invocation.started)
        self._state = WatchState(plan.checks, partial, recorded)
        # A look dials few pairs, and not whether the rendezvous port is free.
        self._partial = {*partial, PORTS.name}
        self._backoff = Backoff(every)
        self._snapshots: dict[str, NodeSnapshot] = {}  # of the last try of each node
        self._heard: dict[str, NodeSnapshot] = {}  # what each node said last
        self._unseen: list[Change] = []
        self._ports = _check_of_ports(invocation)
        self._ring = Ring()
        if self._ports is not None:
            fanout.keep_part("dial")
        self._job: JobWatch | None = None
        self._job_seen = -math.inf  # when the job was looked at last

    def follow(self, target: Target) -> None:
        """Follow a job from the next look on."""
        self._job = JobWatch(target)

    def note_time(self, before: Moment) -> None:
        """Note if there was no look for longer than there should have been.

        The agents on the nodes have ended themselves then, so all nodes are logged in to anew.
        """
        unseen = unseen_seconds(before, _moment(), self._every)
        if unseen is None:
            return
        self._fanout.log_out()
        message = "this machine slept, or its clock was set: what came and went meanwhile is unseen"
        self._unseen.append(Change("unseen", message=message, seconds=abs(unseen)))

    def look(self) -> Look:
        """Look at all nodes that are due, judge them and return what has changed."""
        started = time.monotonic()
        at = datetime.now(timezone.utc)
        due = self._backoff.due(self._inventory.nodes, started)
        self._ask({node.name for node in due})
        self._backoff.note([self._snapshots[node.name] for node in due], started)
        in_order = {node.name: self._snapshots[node.name] for node in self._inventory.nodes}
        fleet = self._state.with_earlier(Fleet(self._inventory, in_order))
        findings = self._judge(fleet)
        changes = (*self._unseen, *self._state.look(started, fleet, findings))
        self._unseen.clear()
        for node in fleet.reached:
            self._heard[node.name] = fleet.snapshots[node.name]
        changes += self._look_at_job(fleet)
        is_last = self._job is not None and self._job.ended
        seconds = time.monotonic() - started
        return Look(at, seconds, fleet, findings, changes, is_last)

    def _look_at_job(self, fleet: Fleet) -> tuple[Change, ...]:
        """Return what has changed with the job, at most every LEAST seconds."""
        now = time.monotonic()
        if self._job is None or now - self._job_seen < LEAST:
            return ()
        self._job_seen = now
        logs = {
            node.name: fleet.fact(node.name, LOG.name)
            for node in fleet.reached
            if LOG.name in fleet.snapshots[node.name].facts
        }
        return self._job.look(now, answers_of(ask(self._fanout, fleet)), logs)

    def _ask(self, names: Collection[str]) -> None:
        """Ask these nodes. One whose connection is lost is logged in to anew before it is down."""
        if not names:
            return
        linked = set(self._fanout.links)
        asked = self._fanout.survey(self._plan, names=names)
        self._snapshots.update(asked.snapshots)
        lost = {name for name in linked if not self._snapshots[name].reached}
        if lost:
            again = self._fanout.survey(self._plan, names=lost)
            self._snapshots.update(again.snapshots)

    def _judge(self, fleet: Fleet) -> tuple[Finding, ...]:
        """Return the findings, each with what it follows from.

        Nodes that do not answer now take part with what they said last, and nothing is said of
        them but that they are not reached.
        """
        today = datetime.now(timezone.utc).date()
        of_reach = [check for check in self._plan.checks if check.name == REACH]
        found = list(judge(fleet, of_reach, today))
        found += self._judge_answers(fleet, today)
        found += self._judge_ports(fleet, found, today)
        known = without_partial_passes(found, self._partial)
        return with_causes_of(self._inventory, known)

    def _judge_answers(self, fleet: Fleet, today: date) -> Iterable[Finding]:
        """Return what the checks, but for that of reach, say of the nodes that answered."""
        others = [check for check in self._plan.checks if check.name != REACH]
        voices = with_last_words(fleet, self._heard)
        names = {node.name for node in voices.reached}
        if not names:
            return ()
        checks = one_by_one(self._invocation, others)
        judged = judge(limited_fleet(voices, names), checks, today, by_message=True)
        return _about(judged, {node.name for node in fleet.reached})

    def _judge_ports(
        self, fleet: Fleet, found: Iterable[Finding], today: date
    ) -> tuple[Finding, ...]:
        """Have each node dial a few others, and return what the check of ports says of it.

        `found` are the other findings of this look.
        """
        if self._ports is None or len(fleet.reached) < 2:
            return ()
        filtered: set[str] = set()
        for finding in found:
            if finding.check == FIREWALL.name and finding.verdict == "fail":
                filtered.update(finding.nodes)
        dials = self._ring.counted(knock(self._fanout, fleet, self._ring.pairs), filtered)
        names = {node.name for node in fleet.reached}
        dialled = with_knocks(limited_fleet(fleet, names), dials)
        return judge(dialled, [self._ports], today)


def _check_of_ports(invocation: Invocation) -> Check | None:
    """Return the check of ports, None if it is not selected."""
    for check in plan_survey(invocation).checks:
        if check.name == PORTS.name:
            return check
    return None


def _about(findings: Iterable[Finding], names: Collection[str]) -> Iterator[Finding]:
    """Yield what the findings say of these nodes."""
    for finding in findings:
        nodes = tuple(name for name in finding.nodes if name in names)
        if nodes or not finding.nodes:
            yield replace(finding, nodes=nodes)


def _moment() -> Moment:
    return Moment(time.time(), time.monotonic())


def _wait_until(fanout: Fanout, end: float) -> None:
    """Wait until a moment of the monotonic clock. Raises what ends the command."""
    while True:
        fanout.check()
        remaining = end - time.monotonic()
        if remaining <= 0:
            return
        time.sleep(min(PAUSE, remaining))
