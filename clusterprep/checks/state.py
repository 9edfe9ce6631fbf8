"""Judges whether earlier invocations left unfinished writes on a node."""

from __future__ import annotations

from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed, passed, skipped
from clusterprep.facts.journal import Journal, JournalEntry
from clusterprep.model import Node
from clusterprep.model.units import pluralize
from clusterprep.remedies import Remedy, sentence, shell_line

WANTED = "no run that was cut off"


def journal(context: CheckContext, node: Node, journal: Journal) -> Outcome:
    """Judge the journal of a node.

    An invocation that is still at work holds the lock; its entry may be unsettled.
    """
    if journal.damaged:
        return _damaged(context, node, journal)
    unsettled = journal.unsettled
    if not unsettled:
        message = "every run that wrote here was settled"
        return passed(node, message, _count_runs(len(journal.entries)), WANTED)
    if journal.holder is not None:
        holders = journal.holder.split()
        if all(entry.run in holders for entry in unsettled):
            return passed(node, "a run is at work", journal.holder, WANTED)
        message = "another run is at work, and settles what it finds"
        return skipped(
            node,
            message,
            journal.holder,
            WANTED,
            "busy",
        )
    seen = ", ".join(_describe_entry(entry) for entry in unsettled)
    message = "a run was cut off while it wrote here: nodes may differ"
    cure = _settling_command(context, unsettled[-1])
    return failed(
        node,
        message,
        seen,
        WANTED,
        cure,
    )


def _damaged(context: CheckContext, node: Node, journal: Journal) -> Outcome:
    """Fail: a record is damaged, so what it stands for may be finished or not."""
    message = "the record of a run is damaged: it may have been cut off, and nothing is written"
    seen = "; ".join(each.why for each in journal.damaged)
    cure = shell_line(
        "clusterprep rollback {inventory} --force"
        "   # moves the record aside and changes no other file",
        inventory=context.inventory.path,
    )
    return failed(
        node,
        message,
        seen,
        WANTED,
        cure,
    )


def _settling_command(context: CheckContext, entry: JournalEntry) -> Remedy:
    """Return a command that settles a run.

    The run is named: once it is settled, a rollback without a name would undo the run before it.
    """
    if entry.cluster != context.inventory.cluster:
        return sentence(
            "roll back or apply with the inventory of cluster {cluster}: it settles this run first",
            cluster=entry.cluster,
        )
    return shell_line(
        "clusterprep rollback {inventory} --run {run}   # settles it first; so does apply",
        inventory=context.inventory.path,
        run=entry.run,
    )


def _describe_entry(entry: JournalEntry) -> str:
    return f"run {entry.run} of cluster {entry.cluster} is {entry.state}"


def _count_runs(number: int) -> str:
    if number == 0:
        return "none"
    return pluralize(number, "run")


def _cut_off(journal: Journal) -> Journal:
    """Return the journal with an entry that was committed and never finalized; for the proof."""
    entry = JournalEntry("20261121-093000-4f2a", "demo", "committed")
    return replace(journal, entries=(*journal.entries, entry))


JOURNAL = Check(
    "state.journal",
    facts=("state.journal",),
    judge=each(journal, "state.journal"),
    severity="error",
    title="Every write is settled",
    why="apply writes in two phases, and says at the end of both that the run is done. Where the "
    "controller died or a node was lost in between, some nodes may have new files and some old "
    "ones, and a job on them hangs.",
    how="The journal in /var/lib/clusterprep/runs and the lock beside it. A run that still works "
    "holds the lock.",
    remedy=shell_line(
        "clusterprep rollback INVENTORY --run RUN   # or apply: each first settles what was cut "
        "off; with --force it only moves a damaged record aside"
    ),
    proof=Proof("state.journal", _cut_off),
)
