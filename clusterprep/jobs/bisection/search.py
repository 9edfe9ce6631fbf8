"""Find the nodes with which a command fails, by running it on some of them. Pure.

search = Search(["n1", "n2", "n3", "n4"])
search.next  →  ("n1", "n2", "n3", "n4")
search.take(Outcome("failed", 3.1))
search.next  →  ("n1", "n2")

A fault is a smallest set of nodes with which the command fails: a node, or two nodes that fail
together only. What takes more nodes is undecided.

1. All nodes. If they fail, a half or a quarter is found that passes: these nodes are good.
2. The others join the good ones, as many at once as go well. Halving finds the first one with which
   they fail: the suspect. All before it are good from now on.
3. The suspect runs beside few good nodes. If it fails with different ones, and these pass without
   it, it is at fault alone. Else halving finds the good node that it fails with.
4. Without one node of each fault all others have to pass, in all ways; else the next fault is
   among them.
5. If all nodes pass, groups of one size are timed, because the time of a step depends on the number
   of nodes. Nodes of a slow group are searched likewise, filled up with nodes of fast groups. A
   group of two whose nodes are quick with others is a slow pair; pairs across groups are not timed.

In the end the faults have to explain every run: where one contradicts them the result is undecided.
Sets whose outcome follows from earlier runs are not run. What is next depends on the outcomes
alone, so a search that was cut off goes on when they are given to a new one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterable, Sequence
from typing import Literal, TypeVar

from msgspec import Struct

from clusterprep.jobs.bisection.evidence import Evidence, Fault, Outcome, hitting_sets
from clusterprep.jobs.bisection.pace import lower_median, most_are_slow, slow_above
from clusterprep.model.nodeset import fold

LEAST = 2  # nodes of a run: most faults of a network do not show on one node alone
FEW = 5  # nodes; of so many all pairs can be run
GROUPS = 8  # that are timed, at most
FEWEST_GROUPS = 3  # of which one can be told to be slow
BLOCKS = (2, 4)  # in so many parts the nodes are run to find good ones
# Runs that have to fail before a node is blamed, and a pair.
NODE_FAILURES = 3
PAIR_FAILURES = 2
# Of a pair that is slow: other work makes runs slower. Where that is so for one run of ten, two
# slow runs blamed a pair of healthy nodes in 4 to 9 % of the searches, five in less than 0.1 %.
SLOW_PAIR_RUNS = 5
MOST_FAULTS = 4  # what has more is no matter of single nodes

T = TypeVar("T")
Steps = Generator[tuple[str, ...], Outcome, T]


class Found(Struct, frozen=True):
    """What a search has found. `undecided` says why it is not complete; empty if it is."""

    faults: tuple[Fault, ...] = ()
    undecided: str = ""
    notes: tuple[str, ...] = ()


class Run(Struct, frozen=True):
    """A run that was made. `slow` says that it ended well and took too long."""

    nodes: tuple[str, ...]
    outcome: Outcome
    slow: bool = False

    @property
    def ended(self) -> Literal["passed", "failed", "hung", "slow"]:
        return "slow" if self.slow else self.outcome.ended


class Search:
    """Says on which nodes to run next, and takes how that ended. `found` is there at the end."""

    def __init__(self, nodes: Sequence[str], least: int = LEAST) -> None:
        self._work = _Work(nodes, least)
        self._steps = self._work.find()
        self.found: Found | None = None
        self.next: tuple[str, ...] = ()
        self._advance(None)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that were made, those slow that are known to be."""
        return tuple(self._work.runs)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults that are known by now."""
        return tuple(self._work.faults)

    def take(self, outcome: Outcome) -> None:
        """Go on after the run on `next`."""
        self._advance(outcome)

    def _advance(self, outcome: Outcome | None) -> None:
        try:
            # A generator is started by None.
            self.next = self._steps.send(outcome)  # type: ignore[arg-type]
        except StopIteration as end:
            self.found = end.value
            self.next = ()


def groups_of(nodes: Sequence[str], least: int) -> list[tuple[str, ...]]:
    """Return the groups of one size that are timed; empty if there are too few nodes.

    Of few nodes these are all pairs: with two slow nodes one of them is still fast.
    """
    count = len(nodes)
    if count <= FEW:
        has_pairs = count > FEWEST_GROUPS and least <= LEAST
        return list(itertools.combinations(nodes, least)) if has_pairs else []
    size = max(least, math.ceil(count / GROUPS))
    if count // size < FEWEST_GROUPS:
        return []
    return blocks_of(nodes, size)


def blocks_of(nodes: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Return neighbours in blocks of one size that hold all nodes; the last may overlap."""
    blocks: list[tuple[str, ...]] = []
    for start in range(0, len(nodes), size):
        first = min(start, len(nodes) - size)
        blocks.append(tuple(nodes[first : first + size]))
    return blocks


class _Undecided(Exception):
    """No node or pair explains all runs; the text says why."""


class _Work:
    """One search. Its methods are generators: they yield sets to run and are sent outcomes."""

    def __init__(self, nodes: Sequence[str], least: int) -> None:
        self.nodes = tuple(nodes)
        self.runs: list[Run] = []
        self.faults: list[Fault] = []
        self._evidence = Evidence()
        self._size = least  # nodes of a small run
        self._slow_above: float | None = None  # seconds; None: times are not compared
        self._notes: list[str] = []

    def find(self) -> Steps[Found]:
        """Search until it is decided, or known that it cannot be."""
        undecided = ""
        try:
            if (yield from self._fails(self.nodes)):
                yield from self._find_failing()
            else:
                yield from self._find_slow()
            self._explain()
        except _Undecided as why:
            undecided = str(why)
        return Found(tuple(self.faults), undecided, tuple(self._notes))

    def _explain(self) -> None:
        """Raise _Undecided if a run contradicts the faults."""
        found = self._evidence.contradiction(self.faults)
        if found is None:
            return
        nodes, failed = found
        names = ", ".join(fold(fault.nodes) for fault in self.faults) or "no node"
        seen = "was bad" if failed else "went well"
        self.faults = []
        raise _Undecided(
            f"the runs contradict each other: {names} would be at fault, and the run on "
            f"{fold(self._in_order(nodes))} {seen}"
        )

    # ------------------------------------------------------------ what fails

    def _find_failing(self) -> Steps[None]:
        """Find all faults of nodes that fail together."""
        good = yield from self._find_good()
        while True:
            rest = yield from self._failing_rest()
            if rest is None:
                return
            if len(self.faults) >= MOST_FAULTS:
                raise _Undecided(f"without {MOST_FAULTS} faults it still fails")
            base = [node for node in good if node in rest]
            others = [node for node in rest if node not in base]
            if len(base) < self._size:
                raise _Undecided("too few good nodes are left to try the others with")
            count = yield from self._smallest(base, others)
            good = (*base, *others[: count - 1])
            fault = yield from self._classified(others[count - 1], good, others[count:])
            self.faults.append(fault)

    def _find_good(self) -> Steps[tuple[str, ...]]:
        """Return nodes that pass together, where all nodes fail."""
        for nodes in self._candidates():
            if not (yield from self._fails(nodes)):
                return nodes
        raise _Undecided(
            "no run has passed on any nodes: the command itself may be at fault, or most nodes, or "
            "it needs more of them (--min-nodes)"
        )

    def _candidates(self) -> Iterable[tuple[str, ...]]:
        """Yield sets of which one passes if there are two faults at most."""
        for parts in BLOCKS:
            size = max(self._size, -(-len(self.nodes) // parts))
            yield from blocks_of(self.nodes, size)
        if len(self.nodes) <= FEW:
            yield from itertools.combinations(self.nodes, self._size)

    def _failing_rest(self) -> Steps[tuple[str, ...] | None]:
        """Return nodes that fail and hold no fault that is known; None if there are none."""
        for removed in hitting_sets(self.faults):
            rest = tuple(node for node in self.nodes if node not in removed)
            if len(rest) >= self._size and (yield from self._fails(rest)):
                return rest
        return None

    def _smallest(
        self, base: Sequence[str], others: Sequence[str], filler: Sequence[str] = ()
    ) -> Steps[int]:
        """Return how many of `others` it takes for a failure beside `base`; with all it fails.

        What is smaller than a small run is filled up with nodes of `filler`.
        """
        passes, fails = 0, len(others)
        while fails - passes > 1:
            middle = (passes + fails) // 2
            nodes = self._filled([*base, *others[:middle]], filler)
            if (yield from self._fails(nodes)):
                fails = middle
            else:
                passes = middle
        return fails

    def _filled(self, nodes: Sequence[str], good: Sequence[str]) -> tuple[str, ...]:
        """Return a set with the first good nodes in it, so that it has the size of a small run."""
        lacking = max(0, self._size - len(nodes))
        if lacking > len(good):
            raise _Undecided("too few good nodes are left to try the others with")
        return self._in_order([*nodes, *good[:lacking]])

    # ------------------------------------------------------------ a suspect

    def _classified(
        self, suspect: str, good: Sequence[str], untried: Sequence[str]
    ) -> Steps[Fault]:
        """Return the fault that holds the suspect, which fails beside all of these good nodes."""
        sets = self._with_partners(suspect, good, untried)
        first = sets[0]
        if not (yield from self._fails(first)):
            return (yield from self._pair(suspect, good, self._in_order([suspect, *good])))
        for nodes in sets[1:]:
            if not (yield from self._fails(nodes)):
                return (yield from self._pair(suspect, good, first))
        yield from self._control(suspect, good)
        yield from self._confirm(first, NODE_FAILURES - len(sets) + 1)
        return Fault((suspect,))

    def _with_partners(
        self, suspect: str, good: Sequence[str], untried: Sequence[str]
    ) -> list[tuple[str, ...]]:
        """Return small sets of the suspect and good nodes: other ones each time, if there are.

        A node that was not tried yet may be the third one: if that set passes it proves as much.
        """
        half = len(good) // 2
        orders = [good, good[::-1], [*good[half:], *good[:half]], [*untried, *good]]
        sets = dict.fromkeys(self._filled([suspect], order) for order in orders)
        return list(sets)[:NODE_FAILURES]

    def _control(self, suspect: str, good: Sequence[str]) -> Steps[None]:
        """Have small sets of good nodes pass. Raises _Undecided if one fails.

        A command that needs more nodes, or fails at times, would else be blamed on the suspect.
        """
        sets = dict.fromkeys((self._filled((), good), self._filled((), good[::-1])))
        for nodes in sets:
            if (yield from self._fails_now(nodes)):
                raise _Undecided(
                    f"it fails with {suspect}, and on {fold(nodes)} alone it fails too: it needs "
                    "more nodes (--min-nodes), or fails at times"
                )

    def _pair(self, suspect: str, good: Sequence[str], failing: tuple[str, ...]) -> Steps[Fault]:
        """Return the pair of the suspect and one of the good nodes, within a set that failed."""
        candidates = [node for node in good if node in failing]
        filler = [node for node in reversed(good) if node not in candidates]
        count = yield from self._smallest([suspect], candidates, filler)
        partner = candidates[count - 1]
        others = [node for node in good if node != partner]
        pair = self._in_order([suspect, partner])
        nodes = self._filled(pair, others[::-1])
        if not (yield from self._fails(nodes)):
            yield from self._refuse_more(failing)
        yield from self._confirm(nodes, PAIR_FAILURES)
        for node in (suspect, partner):
            yield from self._acquit(node, others)
        self._refuse_shared(pair)
        return Fault(pair)

    def _acquit(self, node: str, good: Sequence[str]) -> Steps[None]:
        """Have a node of a pair pass beside other nodes, twice. Raises _Undecided if it fails."""
        for order in (good, good[::-1]):
            nodes = self._filled([node], order)
            if not self._has_run(nodes) and (yield from self._fails_now(nodes)):
                raise _Undecided(
                    f"{node} has passed with others, and on {fold(nodes)} it fails: it fails at "
                    "times, or more pairs do"
                )

    def _has_run(self, nodes: tuple[str, ...]) -> bool:
        return any(run.nodes == nodes for run in self.runs)

    def _refuse_shared(self, pair: tuple[str, ...]) -> None:
        """Raise _Undecided if another pair has one of these nodes: neither pair is told then.

        It may be the node itself, which fails at times.
        """
        for fault in self.faults:
            for node in pair:
                if node in fault.nodes:
                    self.faults = []
                    raise _Undecided(
                        f"it fails on {fold(fault.nodes)} and on {fold(pair)}, and {node} has "
                        "passed with others: one fault does not explain that"
                    )

    def _refuse_more(self, failing: tuple[str, ...]) -> Steps[None]:
        """Raise _Undecided about a set that failed, and of which no node and no pair does."""
        if (yield from self._fails_now(failing)):
            raise _Undecided(
                f"on {fold(failing)} it fails, and no node and no pair of them does: it takes more "
                "than two nodes together"
            )
        raise _Undecided(f"on {fold(failing)} it failed once and did not fail again")

    def _confirm(self, nodes: tuple[str, ...], times: int) -> Steps[None]:
        """Have a set fail so many times. Raises _Undecided if it does not."""
        failed = 0
        for run in self.runs:
            if run.nodes == nodes and run.ended != "passed":
                failed += 1
        for _ in range(times - failed):
            if (yield from self._fails_now(nodes)):
                continue
            seen = "it failed and then passed: it fails at times"
            if self._slow_above is not None:
                seen = "it was slow and then quick: it is slow at times"
            raise _Undecided(f"on {fold(nodes)} {seen}")

    # ------------------------------------------------------------ what is slow

    def _find_slow(self) -> Steps[None]:
        """Time groups of one size, and search those that are slow."""
        together = self.runs[0].outcome.seconds
        groups = groups_of(self.nodes, self._size)
        if not groups:
            self._notes.append("there are too few nodes to tell which of them are slow")
            return
        times: list[float] = []
        for group in groups:
            times.append((yield from self._timed(group)))
        if most_are_slow(times):
            raise _Undecided(
                f"groups of {len(groups[0])} nodes took {min(times):.1f} to {max(times):.1f} s, "
                "and most of them are slow: which time is usual is not known"
            )
        usual, limit = lower_median(times), slow_above(times)
        self._begin_timing(len(groups[0]), limit)
        yield from self._search_slow(groups, times)
        if not self.faults and together > usual + 2 * (limit - usual):
            raise _Undecided(
                f"all {len(self.nodes)} nodes took {together:.1f} s, and groups of {self._size} "
                f"{usual:.1f} s: a larger job takes longer, or nodes of different groups are slow "
                "together"
            )

    def _begin_timing(self, size: int, limit: float) -> None:
        """Have a run count as bad from now on if it takes longer, and forget what passed."""
        self._size = size
        self._slow_above = limit
        self._evidence = Evidence()
        for number, run in enumerate(self.runs):
            if len(run.nodes) == size:
                self.runs[number] = Run(run.nodes, run.outcome, run.outcome.seconds > limit)

    def _timed(self, group: tuple[str, ...]) -> Steps[float]:
        """Return the time of a group. All nodes passed together, so it has to end well."""
        outcome = yield from self._outcome(group)
        return outcome.seconds

    def _search_slow(
        self, groups: Sequence[tuple[str, ...]], times: Sequence[float]
    ) -> Steps[None]:
        """Search the groups that are slow once more."""
        good: list[str] = []
        slow: list[tuple[str, ...]] = []
        for group, seconds in zip(groups, times, strict=True):
            if seconds <= (self._slow_above or 0.0):
                self._evidence.add(group, bad=False)
                good.extend(node for node in group if node not in good)
            else:
                slow.append(group)
        for group in slow:
            others = [node for node in group if node not in good and not self._is_blamed(node)]
            while others and (yield from self._fails(self._filled(others, good))):
                count = yield from self._smallest((), others, tuple(good))
                good.extend(others[: count - 1])
                suspect = others[count - 1]
                outside = [node for node in good if node not in group]
                if (yield from self._is_slow(suspect, outside)):
                    self.faults.append(Fault((suspect,), slow=True))
                else:
                    good.append(suspect)
                others = others[count:]
            good.extend(others)
            if (yield from self._is_slow_pair(group, good)):
                self.faults.append(Fault(group, slow=True))

    def _is_blamed(self, node: str) -> bool:
        return any(node in fault.nodes for fault in self.faults)

    def _is_slow(self, suspect: str, good: Sequence[str]) -> Steps[bool]:
        """Return whether the suspect is slow with different good nodes, and not with one alone.

        Raises _Undecided if it is slow with some of them, or beside more nodes than one.
        """
        first, second = self._filled([suspect], good), self._filled([suspect], good[::-1])
        slow_with_first = yield from self._fails(first)
        if not slow_with_first and self._size > LEAST:
            raise _Undecided(f"{suspect} is slow with some nodes, and not on {fold(first)}")
        slow_with_second = yield from self._fails(second)
        if slow_with_first != slow_with_second:
            quick = second if slow_with_first else first
            raise _Undecided(f"{suspect} is slow with some nodes, and not on {fold(quick)}")
        return slow_with_first

    def _is_slow_pair(self, group: tuple[str, ...], good: Sequence[str]) -> Steps[bool]:
        """Return whether a group is two nodes that are slow together, and each quick with others.

        Raises _Undecided if another such pair has one of them.
        """
        if len(group) != LEAST or not all(node in good for node in group):
            return False
        is_slow = yield from self._fails(group)
        if is_slow:
            yield from self._confirm(group, SLOW_PAIR_RUNS)
            self._refuse_shared(group)
        return is_slow

    # ------------------------------------------------------------ one run

    def _fails(self, nodes: tuple[str, ...]) -> Steps[bool]:
        """Return whether a set fails, by what is known or else by a run."""
        known = self._evidence.implied(nodes)
        if known is not None:
            return known
        return (yield from self._fails_now(nodes))

    def _fails_now(self, nodes: tuple[str, ...]) -> Steps[bool]:
        """Run a set and return whether it fails. Where times are compared it is slow only twice.

        Other work makes runs slower and none faster.
        """
        was_slow = any(run.slow and run.nodes == nodes for run in self.runs)
        bad = self._is_bad((yield from self._outcome(nodes)))
        if bad and self._slow_above is not None and not was_slow:
            bad = self._is_bad((yield from self._outcome(nodes)))
        self._evidence.add(nodes, bad)
        return bad

    def _outcome(self, nodes: tuple[str, ...]) -> Steps[Outcome]:
        outcome = yield nodes
        is_slow = outcome.ended == "passed" and self._is_bad(outcome)
        self.runs.append(Run(nodes, outcome, is_slow))
        if outcome.ended != "passed" and self.runs[0].outcome.ended == "passed":
            raise _Undecided(
                f"on all nodes it passes, and on {fold(nodes)} alone it {outcome.ended}: it needs "
                "more nodes (--min-nodes), or fails at times"
            )
        return outcome

    def _is_bad(self, outcome: Outcome) -> bool:
        if outcome.ended != "passed":
            return True
        return self._slow_above is not None and outcome.seconds > self._slow_above

    def _in_order(self, nodes: Iterable[str]) -> tuple[str, ...]:
        chosen = frozenset(nodes)
        return tuple(node for node in self.nodes if node in chosen)
