"""What is done while nodes are dialled, and the end of a budget meanwhile."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Collection, Iterator

from clusterprep.errors import Unreached
from clusterprep.model import Fleet, Inventory, Node
from clusterprep.remote.transports.protocol import Channel
from clusterprep.runtime.budget import Budget
from clusterprep.survey import registry
from clusterprep.survey.fanout import SILENT_LIMIT, Fanout
from clusterprep.survey.queries import plan_queries
from tests.support.patience import eventually
from tests.support.silent import SilentTransport


class EndingBudget(Budget, frozen=True, dict=True):
    """A budget that has a moment left when it is first asked, and then none."""

    @functools.cached_property
    def _moments(self) -> Iterator[float]:
        return iter([0.001])

    def left(self, until: float | None = None) -> float:
        return next(self._moments, 0.0)


class Watch:
    def stage(self, name: str, total: int, nodes: Collection[str] = ()) -> None: ...
    def step(self, node: str, outcome: str, seconds: float | None = None) -> None: ...


def survey_until_the_end() -> tuple[Fleet, float]:
    """Return what a look at a silent node gives within such a budget, and its seconds."""
    inventory = Inventory("ending", (Node("n1", "n1", 0),))
    plan = plan_queries([], registry.facts())
    transports = {"ssh": SilentTransport()}
    budget = EndingBudget(60.0, time.monotonic())
    with Fanout(inventory, transports, 1, lambda node: None, Watch(), budget) as fanout:
        began = time.monotonic()
        fleet = fanout.survey(plan)
        return fleet, time.monotonic() - began


def test_no_node_is_waited_for_once_the_budget_is_over() -> None:
    fleet, _ = survey_until_the_end()
    assert fleet.snapshots["n1"].reason == "timed_out"
    # More than once, for a busy machine may delay one of them by as much.
    assert eventually(lambda: survey_until_the_end()[1] < SILENT_LIMIT, seconds=10)


class WaitingTransport(SilentTransport):
    """Refuses a node once `may_refuse` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_dialled = threading.Event()
        self.may_refuse = threading.Event()

    def open(self, node: Node, command: str) -> Channel:
        self.is_dialled.set()
        assert self.may_refuse.wait(60)
        raise Unreached("refused", "no")


def test_what_can_be_done_meanwhile_is_done_once_while_nodes_are_dialled() -> None:
    inventory = Inventory("waiting", (Node("n1", "n1", 0),))
    transport = WaitingTransport()
    done: list[bool] = []

    def meanwhile() -> None:
        done.append(transport.is_dialled.wait(60))
        transport.may_refuse.set()

    with Fanout(inventory, {"ssh": transport}, 1, lambda node: None, Watch()) as fanout:
        fanout.meanwhile = meanwhile
        for _ in range(2):
            fleet = fanout.survey(plan_queries([], registry.facts()))
            assert fleet.snapshots["n1"].reason == "refused"
    assert done == [True]
