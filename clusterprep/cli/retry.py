"""`--retry-failed RUN`: the nodes that failed in an earlier run, from this machine's history.

failed_nodes(History(applied, runs, "demo"), "last")  →  ("gpu07", "gpu11")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:  # `--help` imports no history
    from clusterprep.history.applied import AppliedEnvironments
    from clusterprep.history.runs import Runs
    from clusterprep.model import Inventory


class History(Struct, frozen=True):
    """What is recorded on this machine about one cluster: its applies, and all runs."""

    applied: AppliedEnvironments
    runs: Runs
    cluster: str


def failed_nodes(history: History, run: str) -> tuple[str, ...]:
    """Return the nodes that failed in a recorded apply, check, verify or launch.

    A node failed if it was not reached, not written, or is named by an error or as a culprit. `run`
    is the name of the run, the beginning of it, or `last`. Raises InputError if it is not recorded.
    A node of which an error could not be determined counts as failed: it is to be tried again.
    """
    from clusterprep.history.recall import failed_in

    return failed_in(history.applied, history.runs, history.cluster, run)


def limited_to_failed(
    inventory: Inventory, history: History, run: str, *, peers: bool = False
) -> Inventory:
    """Return the inventory with only the nodes that failed in a run. Raises InputError if none.

    With `peers` it also has enough others of their kind to compare them with.
    """
    from clusterprep.history.recall import run_of
    from clusterprep.inventory.limit import limit_to_failed

    name = run_of(history.applied, history.runs, history.cluster, run)
    return limit_to_failed(inventory, failed_nodes(history, name), name, peers=peers)
