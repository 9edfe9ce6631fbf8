"""Fold what a command printed on many nodes, and compare it. Pure."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.errors import Unreached
from clusterprep.fabric.printed import Kept
from clusterprep.model import CommandResult, Node, NodeSnapshot
from clusterprep.remote.transports.secret_filter import SecretFilter
from clusterprep.remote.transports.sudo import SudoPassword


class Answer(Struct, frozen=True):
    """How a command ended on one node, and what it printed. See CommandResult."""

    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float
    reason: str | None = None
    left_out: int = 0


Outcome = Answer | Unreached

# In place of a difference, as `diff` writes «\\ No newline at end of file».
TOO_MUCH = (
    "\\ {before:,} lines become {after:,}: too many of them differ, or are alike, to show which\n"
)
MOST_LINES = 5000  # of each output, and pairs of equal lines, that are given to difflib
MOST_PAIRS = 200_000
SAME_LINES = "\\ the same lines, which end in another way\n"


def answer_of(
    kept: Mapping[str, Kept],
    secret: SudoPassword | None,
    code: int | None,
    reason: str | None,
    left_out: int,
    seconds: float,
) -> Answer:
    """Return the answer of a node without the password of sudo in it."""
    for stream in kept.values():
        stream.end()
    clean = SecretFilter().text if secret is None else secret.filter.text
    dropped = left_out + sum(stream.left_out for stream in kept.values())
    out, err = clean(kept["out"].text), clean(kept["err"].text)
    return Answer(code, out, err, seconds, reason, dropped)


def fold_answers(answers: Mapping[str, Answer]) -> tuple[CommandResult, ...]:
    """Return the results of nodes, equal ones as one, the most frequent first.

    `answers` are by node, in the order of the inventory, which also decides between results that
    are as frequent.
    """
    nodes_by_result: dict[tuple[object, ...], list[str]] = {}
    for name, answer in answers.items():
        key = (answer.exit_code, answer.reason, answer.stdout, answer.stderr, answer.left_out)
        nodes_by_result.setdefault(key, []).append(name)
    results = []
    for nodes in nodes_by_result.values():
        answer = answers[nodes[0]]
        longest = max(answers[name].seconds for name in nodes)
        results.append(
            CommandResult(
                tuple(nodes),
                answer.exit_code,
                answer.stdout,
                answer.stderr,
                round(longest, 3),
                answer.reason,
                answer.left_out,
            )
        )
    return tuple(sorted(results, key=lambda result: -len(result.nodes)))


def compared(results: tuple[CommandResult, ...]) -> tuple[CommandResult, ...]:
    """Return the results with the output of all others as a difference from the most frequent.

    That comes first. It is one of a command that has ended: what was lost or still running is no
    measure. Where none has ended the results are returned as they are.
    """
    ended = [result for result in results if result.exit_code is not None]
    if not ended:
        return results
    most = ended[0]
    differing = []
    for other in results:
        if other is most:
            continue
        stdout = _difference(most.stdout, other.stdout)
        stderr = _difference(most.stderr, other.stderr)
        differing.append(replace(other, stdout=stdout, stderr=stderr))
    return (most, *differing)


def _difference(most: str, other: str) -> str:
    """Return the lines of a unified difference without its head; empty where there is none."""
    if most == other:
        return ""
    before, after = most.splitlines(), other.splitlines()
    start = _equal_at_start(before, after)
    end = _equal_at_start(before[start:][::-1], after[start:][::-1])
    before, after = before[start : len(before) - end], after[start : len(after) - end]
    if not _is_short(before, after):
        return TOO_MUCH.format(before=len(before), after=len(after))
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    lines = []
    for tag, first, last, new_first, new_last in matcher.get_opcodes():
        if tag == "equal":
            continue
        old_place = _place(start + first, last - first)
        new_place = _place(start + new_first, new_last - new_first)
        lines.append(f"@@ -{old_place} +{new_place} @@")
        lines.extend(f"-{line}" for line in before[first:last])
        lines.extend(f"+{line}" for line in after[new_first:new_last])
    return "".join(f"{line}\n" for line in lines) or SAME_LINES


def _equal_at_start(before: Sequence[str], after: Sequence[str]) -> int:
    """Return how many lines are the same at the beginning of both."""
    pairs = zip(before, after, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _is_short(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether difflib is quick: it compares each line with all that equal it."""
    counts = Counter(after)
    pairs = sum(counts[line] for line in before)
    return max(len(before), len(after)) <= MOST_LINES and pairs <= MOST_PAIRS


def _place(start: int, count: int) -> str:
    """Return lines as a unified difference names them: `3`, `3,2`, and `2,0` behind line 2."""
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"


def snapshots(nodes: Iterable[Node], outcomes: Mapping[str, object]) -> tuple[NodeSnapshot, ...]:
    """Return which nodes were reached, as a report has it. A node without an outcome was not."""
    rows = []
    for node in nodes:
        outcome = outcomes.get(node.name)
        if outcome is None:
            row = _unanswered(node)
        elif not isinstance(outcome, Unreached):
            row = NodeSnapshot(node.name, node.address, reached=True)
        else:
            row = NodeSnapshot(
                node.name,
                node.address,
                reached=False,
                reason=outcome.reason,
                detail=outcome.message,
                remedy=outcome.remedy,
                answered=outcome.answered,
            )
        rows.append(row)
    return tuple(rows)


def _unanswered(node: Node) -> NodeSnapshot:
    return NodeSnapshot(
        node.name,
        node.address,
        reached=False,
        reason="timed_out",
        detail="the time was over before it answered",
        answered=False,
    )
