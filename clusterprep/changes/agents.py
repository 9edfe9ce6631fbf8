"""What a write asks of the agents on the nodes, as a protocol: `Fanout` has it, and so do fakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from clusterprep.errors import LinkLost
from clusterprep.model import Node
from clusterprep.remote.transports.link import Frame, Link
from clusterprep.remote.untrusted import shortened

LONGEST = 4000  # characters of a text that a node sent
# What mends a record of a run that a node cannot read; clusterprep/changes/damaged_runs.py does it.
MOVES_ASIDE = "`clusterprep rollback --force` moves this record aside and changes no other file"
Answer = Frame | LinkLost  # of one node to one request
Answers = Mapping[str, Answer]  # by the name of the node


class Agents(Protocol):
    """The agents on all nodes reached, one link to each."""

    @property
    def links(self) -> Mapping[str, Link]:
        """The nodes that are still connected."""

    def ask(
        self, op: str, bodies: Mapping[str, Mapping[str, Any]], timeout: float
    ) -> Mapping[str, Answer]:
        """Send one request to each node named in `bodies`, and return their answers."""

    def load(self, part: str, names: Iterable[str] | None = None) -> None:
        """Send a further part of the agent to these nodes, or to all."""

    def bear_silence(self, seconds: float) -> None:
        """Set how long an agent may be silent before its node counts as lost."""

    def each(self, items: Iterable[Node], work: Callable[[Node], None]) -> None:
        """Call `work` for many nodes at once, and wait until all are done."""

    def redial(self, node: Node) -> Link:
        """Start a new agent on a node. Raises Unreached."""


def refusals(answers: Answers) -> dict[str, str]:
    """Return the nodes that did not do what they were asked to, and why."""
    failed = {}
    for name, answer in answers.items():
        why = refusal(answer)
        if why is not None:
            failed[name] = why
    return failed


def refusal(answer: Answer) -> str | None:
    """Return why a node did not do what it was asked to, or None if it did."""
    if isinstance(answer, LinkLost):
        return lost_text(answer)
    if "no" not in answer:
        return None
    why = shortened(f"{answer.get('no')}: {answer.get('why')}", LONGEST)
    return f"{why}; {MOVES_ASIDE}" if answer.get("no") == "damaged" else why


def lost_text(lost: LinkLost) -> str:
    """Return the sentence about a node that was lost while it was asked."""
    return f"the node was lost: {lost.message}"
