"""Runs of which a node's journal cannot be read: nothing is written until they are out of the way.

Such a run may have been cut off in the middle, and nothing tells any more. `rollback --force` moves
its folder out of the journal, with the old bytes that are in it, and changes nothing else: what is
then to be done with the files only people can say.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from clusterprep.changes.agents import LONGEST, MOVES_ASIDE, Agents, refusal
from clusterprep.changes.transaction import LIMIT, Transaction
from clusterprep.errors import LinkLost, Refused
from clusterprep.facts.journal import Journal
from clusterprep.model import Fleet
from clusterprep.remote.untrusted import as_list, shortened


class SetAside(Struct, frozen=True):
    """What was moved out of the journals: a sentence for each run; `failed` says where it was not.

    `failed` has why, by the name of the node.
    """

    moved: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Whether there was something to move."""
        return bool(self.moved or self.failed)


def refuse_damaged(fleet: Fleet) -> None:
    """Raise Refused if the journal of a node that was reached has a run that cannot be read."""
    for node in fleet.reached:
        journal = fleet.fact(node.name, "state.journal")
        if not isinstance(journal, Journal) or not journal.damaged:
            continue
        first = journal.damaged[0]
        more = len(journal.damaged) - 1
        further = f" ({more} more there)" if more else ""
        message = (
            f"{node.name}: {shortened(first.why)}{further}; so it is not known how run "
            f"{first.run} ended there; nothing was written. {MOVES_ASIDE}"
        )
        raise Refused(message)


def set_aside(agents: Agents, transaction: Transaction) -> SetAside:
    """Have every node move the folders of its damaged runs aside; return what was moved.

    Nothing is asked where a lock cannot be taken: the command then ends without writing anything.
    """
    if transaction.lock():
        return SetAside()
    failed = {}
    bodies = {name: transaction.request_body(name) for name in agents.links}
    moved = []
    for name, answer in agents.ask("set_aside", bodies, LIMIT).items():
        why = refusal(answer)
        if why is not None:
            failed[name] = why
        elif not isinstance(answer, LinkLost):
            for row in as_list(answer.get("moved")):
                moved.append(_sentence(name, as_list(row)))
    return SetAside(tuple(moved), failed)


def _sentence(node: str, row: list[object]) -> str:
    """Return what was moved on a node, by a row [run, folder now, why] of its answer."""
    run, folder, why = (shortened(value, LONGEST) for value in (*row, "", "", "")[:3])
    return (
        f"{node}: {why}; the record of run {run} is now in {folder}, and the files that this run "
        "wrote were left as they are"
    )
