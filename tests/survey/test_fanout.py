"""The end of a budget while nodes are dialled."""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Iterator

from clusterprep.model import Fleet, Inventory, Node
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
