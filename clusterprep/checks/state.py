"""What runs of ours have left behind."""

from __future__ import annotations

from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each
from clusterprep.facts.journal import Journal, JournalEntry
from clusterprep.model import Node

WANTED = "every run done or undone"


def journal(context: CheckContext, node: Node, found: Journal) -> Outcome:
    """A run that is at work has a journal that is not settled, and that is as it should be."""
    left = found.unsettled
    if not left:
        number = len(found.entries)
        seen = f"{number} runs" if number != 1 else "1 run"
        return Outcome(
            "pass",
            (node.name,),
            "every run that wrote here was settled",
            seen if number else "none",
            WANTED,
        )
    if found.holder is not None:
        if all(entry.run in found.holder.split() for entry in left):
            return Outcome("pass", (node.name,), "a run is at work", found.holder, WANTED)
        message = "another run is at work, and settles what it finds"
        return Outcome("skip", (node.name,), message, found.holder, WANTED, reason="busy")
    seen = ", ".join(
        f"run {entry.run} of cluster {entry.cluster} is {entry.state}" for entry in left
    )
    message = "a run was cut off while it wrote here: nodes may differ"
    cure = f"clusterprep rollback {context.inventory.path}   # settles it first; so does apply"
    return Outcome("fail", (node.name,), message, seen, WANTED, cure)


JOURNAL = Check(
    "state.journal",
    facts=("state.journal",),
    judge=each(journal, "state.journal"),
    severity="error",
    title="Every write is settled",
    why="apply writes in two phases, and says at the end of both that the run is done. Where the controller died or a "
    "node was lost in between, some nodes may have new files and some old ones, and a job on them hangs.",
    how="The journal in /var/lib/clusterprep/runs and the lock beside it. A run that still works holds the lock.",
    remedy="clusterprep rollback INVENTORY   # or apply: each first settles what was cut off",
    proof=Proof(
        "state.journal",
        lambda found: replace(
            found,
            entries=(*found.entries, JournalEntry("20261121-093000-4f2a", "demo", "committed")),
        ),
    ),
)
