"""What a watch remembers between looks: a look goes in, the changes come out. Pure.

    state = WatchState(checks, in_part)
    fleet = state.with_earlier(fleet)             # counters of earlier looks, as a fact
    changes = state.look(now, fleet, findings)    # what differs from what was told

`findings` are those of the checks, each with what it follows from. The state of a node that does
not answer stays as it was until it is back. `in_part` names the checks of which only failures are
of use. `recorded` has what recorded runs saw of each node, the newest first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from clusterprep.checks import Check
from clusterprep.facts.host import BOOT_ID
from clusterprep.model import Absent, Finding, Fleet, NodeSnapshot
from clusterprep.survey.consequences import TROUBLE, cause_trees, caused
from clusterprep.survey.watch.changes import Change, folded
from clusterprep.survey.watch.kernel_news import FACTS as LOGS
from clusterprep.survey.watch.kernel_news import KernelNews, News
from clusterprep.survey.watch.past import Kept, Past
from clusterprep.survey.watch.troubles import Trouble, Troubles

REACH = "ssh.reach"  # what this check would say is told as nodes that are down and back
AT_ONCE = ("new", "worse", "changed", "unsteady")  # kinds that a new line of a log may explain


class WatchState:
    """What was told, and what is needed to know what is new."""

    def __init__(
        self,
        checks: Iterable[Check],
        in_part: Collection[str] = (),
        recorded: Mapping[str, Sequence[Kept]] | None = None,
    ) -> None:
        self._of_logs = {
            check.name for check in checks if not set(LOGS).isdisjoint((*check.facts, *check.uses))
        }
        self._in_part = frozenset(in_part)
        self._presence = Troubles()
        self._findings = Troubles()
        self._news = KernelNews()
        self._past = Past(recorded)
        self._boots: dict[str, str] = {}

    @property
    def size(self) -> int:
        """Return how many values are remembered, to see that they do not grow without end."""
        return self._presence.size + self._findings.size + self._past.size + len(self._boots)

    def with_earlier(self, fleet: Fleet) -> Fleet:
        """Return the fleet with the counters of earlier looks, which are remembered here."""
        return self._past.with_earlier(fleet)

    def look(self, now: float, fleet: Fleet, findings: Sequence[Finding]) -> tuple[Change, ...]:
        """Return what has changed since what was told. `now` is of a clock that is never set."""
        reached = {node.name for node in fleet.reached}
        changes = self._of_nodes(now, fleet)
        changes += self._booted(fleet)
        of_checks = self._findings.look(now, self._troubles_of(findings), reached)
        changes += self._with_news(of_checks, fleet)
        return folded(changes)

    def _of_nodes(self, now: float, fleet: Fleet) -> list[Change]:
        """Return which nodes are down, and which are back."""
        lost = []
        for snapshot in fleet.snapshots.values():
            if not snapshot.reached:
                lost.append(Trouble(snapshot.node, _loss(snapshot)))
        changes = []
        for change in self._presence.look(now, lost, fleet.snapshots):
            if change.kind in ("there", "new"):
                changes.append(replace(change, kind="down"))
            elif change.kind == "gone":
                changes.append(replace(change, kind="back", message="", seen="", remedy=""))
            else:
                changes.append(change)
        return changes

    def _booted(self, fleet: Fleet) -> list[Change]:
        """Return which nodes have started anew since they were seen last."""
        changes = []
        for name in (node.name for node in fleet.reached):
            boot = fleet.fact(name, BOOT_ID.name)
            if isinstance(boot, Absent):
                continue
            before = self._boots.get(name, boot)
            self._boots[name] = boot
            if before != boot:
                changes.append(Change("booted", (name,), message="it has booted since"))
        return changes

    def _with_news(self, of_checks: Iterable[Change], fleet: Fleet) -> list[Change]:
        """Return the changes of the checks with the new lines of the kernels' logs.

        A line stands with the finding that came with it, and by itself if none did.
        """
        news: dict[str, News] = {}
        for node in fleet.reached:
            found = self._news.look(node.name, fleet.snapshots[node.name].facts)
            if found is not None:
                news[node.name] = found
        changes = []
        for change in of_checks:
            (name,) = change.nodes
            if change.check in self._of_logs and change.kind in AT_ONCE and name in news:
                changes.append(_with_lines(change, news.pop(name)))
            else:
                changes.append(change)
        for name, found in news.items():
            change = Change("log", (name,), message="the kernel's log has new lines")
            changes.append(_with_lines(change, found))
        return changes

    def _troubles_of(self, findings: Sequence[Finding]) -> list[Trouble]:
        """Return what the findings say of each node, and which of it follows from nothing else."""
        trees = cause_trees(findings)
        troubles = []
        for finding in (tree.finding for tree in trees):
            if self._is_trouble(finding):
                troubles += [Trouble(node, finding) for node in finding.nodes]
        for finding in caused(trees):
            if self._is_trouble(finding):
                troubles += [Trouble(node, finding, counts=False) for node in finding.nodes]
        return troubles

    def _is_trouble(self, finding: Finding) -> bool:
        if finding.check == REACH or finding.silenced is not None:
            return False
        if finding.check in self._in_part:
            return finding.verdict == "fail"
        return finding.verdict in TROUBLE


def _with_lines(change: Change, news: News) -> Change:
    return replace(change, lines=news.lines, left_out=news.left_out)


def _loss(snapshot: NodeSnapshot) -> Finding:
    """Return that a node was not reached, as a finding. The reason may change while it is down."""
    return Finding(
        REACH,
        "fail",
        "error",
        (snapshot.node,),
        "the node is not reached",
        seen=snapshot.detail or snapshot.reason or "",
        remedy=snapshot.remedy,
    )
