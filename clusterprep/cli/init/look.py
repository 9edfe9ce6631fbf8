"""Look at the hosts of a new inventory, as `check` does, and learn new host keys on request."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.cli.init.draft import FACTS
from clusterprep.model import Fleet, Inventory, Node, NodeSnapshot
from clusterprep.remote.transports import transports_for, usable_cores
from clusterprep.remote.transports.link import Password
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey import registry
from clusterprep.survey.fanout import Fanout, Watch
from clusterprep.survey.queries import plan_queries

UNKNOWN_KEY = "host_key_unknown"


class Looker(Struct, frozen=True):
    """Looks at hosts. `passphrase` asks for that of a key, `say` shows a line to the user.

    `deadline` may end the look.
    """

    forks: int
    password: Password
    watch: Watch
    passphrase: Callable[[str], str]
    say: Callable[[str], None]
    deadline: Deadline

    def look(self, nodes: tuple[Node, ...], accept_new: bool) -> Fleet:
        """Return the facts of all nodes.

        Unknown host keys are shown, and learned with `accept_new`.
        """
        fleet = self._survey(nodes)
        accepting: list[Node] = []
        for node in nodes:
            snapshot = fleet.snapshots[node.name]
            if snapshot.reason == UNKNOWN_KEY:
                self.say(_about_key(snapshot, accept_new))
                accepting.append(_accepting_new_key(node))
        if not accepting or not accept_new:
            return fleet
        again = self._survey(tuple(accepting))
        return Fleet(
            fleet.inventory,
            {
                **fleet.snapshots,
                **again.snapshots,
            },
        )

    def _survey(self, nodes: tuple[Node, ...]) -> Fleet:
        inventory = Inventory(cluster="", nodes=nodes, path="init")
        transports = transports_for(inventory, self.passphrase, usable_cores())
        facts = registry.facts()
        extra = [facts[name] for name in FACTS]
        plan = plan_queries((), facts, extra)
        with Fanout(
            inventory,
            transports,
            self.forks,
            self.password,
            self.watch,
            deadline=self.deadline,
        ) as fanout:
            return fanout.survey(plan)


def _accepting_new_key(node: Node) -> Node:
    ssh = replace(node.ssh, host_keys="accept-new")
    return replace(node, ssh=ssh)


def _about_key(snapshot: NodeSnapshot, accepted: bool) -> str:
    key = snapshot.detail.split("; ")[0]
    action = "compare it, then run this again with --accept-new"
    if accepted:
        action = "accepted and written to known_hosts"
    return f"{snapshot.node}: {key}: {action}"
