"""The look that an inventory is written from: the agents and facts of `check`, and new host keys on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clusterprep import registry
from clusterprep.fanout import Fanout, Watch
from clusterprep.frozen import dataclass
from clusterprep.init.draft import FACTS
from clusterprep.model import Fleet, Inventory, Node, Sighting
from clusterprep.plan import make_plan
from clusterprep.transports import Transport, transports_for
from clusterprep.transports.link import Password

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
        strange = [node for node in nodes if fleet.sightings[node.name].reason == UNKNOWN_KEY]
        for node in strange:
            self.say(_about_key(fleet.sightings[node.name], accept_new))
        if not (strange and accept_new):
            return fleet
        again = self._survey(tuple(replace(n, ssh=replace(n.ssh, host_keys="accept-new")) for n in strange))
        return Fleet(fleet.inventory, {**fleet.sightings, **again.sightings})

    def _survey(self, nodes: tuple[Node, ...]) -> Fleet:
        inventory = Inventory(cluster="", nodes=nodes, path="init")
        transports: dict[str, Transport] = transports_for(inventory, self.passphrase)
        plan = make_plan((), registry.facts(), [registry.facts()[name] for name in FACTS])
        with Fanout(inventory, transports, self.forks, self.password, self.watch) as fanout:
            return fanout.survey(plan)


def _about_key(sighting: Sighting, accepted: bool) -> str:
    said = sighting.detail.split("; ")[0]
    doing = "accepted and written to known_hosts" if accepted else "compare it, then run this again with --accept-new"
    return f"{sighting.node}: {said}: {doing}"
