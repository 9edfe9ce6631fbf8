"""The look that an inventory is written from: the agents and facts of `check`, and new host keys on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clusterprep.cli.init.draft import FACTS
from clusterprep.model import Fleet, Inventory, Node, NodeSnapshot
from clusterprep.remote.transports import Transport, transports_for
from clusterprep.remote.transports.link import Password
from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout, Watch
from clusterprep.survey.queries import plan_queries

UNKNOWN_KEY = "host_key_unknown"


@dataclass(frozen=True)
class Looker:
    """What a look needs of the world."""

    forks: int
    password: Password
    watch: Watch
    passphrase: Callable[[str], str]
    say: Callable[[str], None]

    def look(self, nodes: tuple[Node, ...], accept_new: bool) -> Fleet:
        """All nodes, each once. A host key that nobody knows is shown, and learned only with `accept_new`."""
        fleet = self._survey(nodes)
        strange = [node for node in nodes if fleet.snapshots[node.name].reason == UNKNOWN_KEY]
        for node in strange:
            self.say(_about_key(fleet.snapshots[node.name], accept_new))
        if not (strange and accept_new):
            return fleet
        again = self._survey(
            tuple(replace(n, ssh=replace(n.ssh, host_keys="accept-new")) for n in strange)
        )
        return Fleet(fleet.inventory, {**fleet.snapshots, **again.snapshots})

    def _survey(self, nodes: tuple[Node, ...]) -> Fleet:
        inventory = Inventory(cluster="", nodes=nodes, path="init")
        transports: dict[str, Transport] = transports_for(inventory, self.passphrase)
        plan = plan_queries((), registry.facts(), [registry.facts()[name] for name in FACTS])
        with Fanout(inventory, transports, self.forks, self.password, self.watch) as fanout:
            return fanout.survey(plan)


def _about_key(snapshot: NodeSnapshot, accepted: bool) -> str:
    said = snapshot.detail.split("; ")[0]
    doing = (
        "accepted and written to known_hosts"
        if accepted
        else "compare it, then run this again with --accept-new"
    )
    return f"{snapshot.node}: {said}: {doing}"
