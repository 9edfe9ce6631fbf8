"""Sentences about what nodes did, made from what each of them answered. Pure.

A command that says «put back» or «undone» takes the sentence from here, so that a node that refused
or gave no answer is named in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from clusterprep.changes.agents import Answers, lost_text, refusal
from clusterprep.errors import LinkLost
from clusterprep.model.nodeset import fold

MOST_REASONS = 5  # nodes whose reason is said; the others are named without one


class NodeAnswers(Struct, frozen=True):
    """What nodes answered to one request: those that did it, and why the others did not.

    `refused` has the nodes that answered that they did not, `lost` those that gave no answer: of
    these it is not known.
    """

    done: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every node that was asked did it."""
        return not self.refused and not self.lost

    def joined(self, later: NodeAnswers) -> NodeAnswers:
        """Return these answers with those to a later request; of one node the worse one holds."""
        lost = {**self.lost, **later.lost}
        refused = {}
        for name, why in {**later.refused, **self.refused}.items():
            if name not in lost:
                refused[name] = why
        done = []
        for name in dict.fromkeys((*self.done, *later.done)):
            if name not in lost and name not in refused:
                done.append(name)
        return NodeAnswers(tuple(done), refused, lost)


def undo_answers(answers: Answers) -> NodeAnswers:
    """Return what nodes answered to `undo`.

    A node on which the run had not begun, or which had put its files back by itself, has the old
    bytes as well. One that says that the run is done there has the new ones.
    """
    given = node_answers(answers)
    refused = dict(given.refused)
    for name in given.done:
        answer = answers[name]
        if not isinstance(answer, LinkLost) and answer.get("nothing") == "done":
            refused[name] = "it says that the run is done there"
    done = tuple(name for name in given.done if name not in refused)
    return NodeAnswers(done, refused, given.lost)


def node_answers(answers: Answers) -> NodeAnswers:
    """Return which nodes did what they were asked to."""
    done = []
    refused = {}
    lost = {}
    for name, answer in answers.items():
        why = refusal(answer)
        if isinstance(answer, LinkLost):
            lost[name] = lost_text(answer)
        elif why is not None:
            refused[name] = why
        else:
            done.append(name)
    return NodeAnswers(tuple(done), refused, lost)


NOT_PUT_BACK = (
    "what had been written could not be put back, and of no node is it known what it has; "
    "`clusterprep rollback` does that"
)


def put_back_text(answers: NodeAnswers, of_batch: bool = False) -> str:
    """Return what became of files that a command tried to put back.

    `of_batch` says that it asked the nodes of one batch, and others keep what they have.
    """
    if answers.complete and of_batch:
        return f"what had been written was put back on {fold(answers.done)}"
    if answers.complete:
        return "what had been written was put back on all nodes"
    if answers.done:
        text = f"what had been written was put back on {fold(answers.done)} only"
    else:
        text = "what had been written was put back on no node"
    parts = [text]
    if answers.refused:
        nodes = fold(answers.refused)
        parts.append(f"{nodes} may have it still ({_reasons(answers.refused)})")
    if answers.lost:
        nodes = fold(answers.lost)
        parts.append(f"of {nodes} it is not known ({_reasons(answers.lost)})")
    parts.append("`clusterprep rollback` goes on where it stopped")
    return "; ".join(parts)


def stays_text(answers: NodeAnswers) -> str:
    """Return what became of files that a command wrote and made final."""
    if answers.complete:
        return f"what was written stays on {fold(answers.done)}"
    parts = []
    if answers.done:
        parts.append(f"what was written stays on {fold(answers.done)}")
    unsure = {**answers.refused, **answers.lost}
    nodes = fold(unsure)
    parts.append(f"{nodes} did not confirm it ({_reasons(unsure)}); the next apply settles that")
    return "; ".join(parts)


def _reasons(reasons: Mapping[str, str]) -> str:
    """Return the reasons, each with its nodes; equal ones once, and MOST_REASONS of them."""
    nodes_by_reason: dict[str, list[str]] = {}
    for name, why in reasons.items():
        nodes_by_reason.setdefault(why, []).append(name)
    if len(nodes_by_reason) == 1:
        return next(iter(nodes_by_reason))
    parts = [f"{fold(nodes)}: {why}" for why, nodes in nodes_by_reason.items()]
    more = len(parts) - MOST_REASONS
    shown = parts[:MOST_REASONS]
    if more > 0:
        shown.append(f"and {more} more reasons")
    return ", ".join(shown)
