"""Checks: one module per area. A check is a pure function from the facts of many nodes to outcomes.

Imports `facts`, `nccl` and what stands before them. Begin with `Check` below and `memory` as an
example.

A judge sees only the nodes that know every fact it needs; the engine answers «unknown» for the
others. A judge of one node at a time reads like this:

    def uptime(context: CheckContext, node: Node, seconds: float) -> Outcome:
        if seconds > 600:
            return passed(node, "the node has been up for a while", f"{seconds} s")
        return failed(node, "the node booted lately", f"{seconds} s", "more than 600 s")
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from clusterprep.model import NOT_ASKED, Fleet, Inventory, Json, Node, Read, Severity, Verdict
from clusterprep.model.alike import alike_nodes
from clusterprep.model.fact_columns import Part, columns, positions
from clusterprep.model.fixes import Fix
from clusterprep.model.memoize import once_per_fleet
from clusterprep.model.nodeset import fold
from clusterprep.remedies import Remedy, sentence

EQUAL = "equal on all nodes"
NO_PEER = "fewer than two nodes have a value to compare"  # a reason
# Without a majority none of the values is known to be the right one.
UNDECIDED = sentence(
    "no value has a majority: decide which one is right, and give it to the other nodes"
)
COUNT_DIGITS = 18  # of a count in `require:`; more is a typing error, and int() may refuse it


class Outcome(Struct, frozen=True):
    """What a check says about some nodes.

    `severity`, `remedy` and `fix` default to the check's own.
    """

    verdict: Verdict
    nodes: tuple[str, ...]
    message: str
    seen: str = ""
    wanted: str = ""
    remedy: Remedy | None = None
    reason: str | None = None
    severity: Severity | None = None
    fix: Fix | None = None


class CheckContext(Struct, frozen=True):
    """What a check may look at: the nodes that know every fact it needs, and those facts.

    `facts` names all that the check needs or uses. It is empty if that is not known.
    """

    fleet: Fleet
    nodes: tuple[Node, ...]
    check: str
    facts: tuple[str, ...] = ()

    @property
    def inventory(self) -> Inventory:
        """Return the inventory of the fleet, with the nodes that were not reached too."""
        return self.fleet.inventory

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the nodes of this context."""
        return names_of(self.nodes)

    def value(self, node: Node, fact: str) -> Any:
        """Return the value of a fact on a node, or the Absent that says why it is not known."""
        facts = self.fleet.snapshots[node.name].facts
        return facts.get(fact, NOT_ASKED)

    def values(self, fact: str) -> dict[str, Any]:
        """Return the value of a fact for each node of this context, by the node's name."""
        if len(self.nodes) == 1:
            return {node.name: self.value(node, fact) for node in self.nodes}
        column = columns(self.fleet).values_of(fact)
        if self.nodes is self.fleet.reached:
            return dict(zip(self.names, column, strict=True))
        place_of = positions(self.fleet)
        return {name: column[place_of[name]] for name in self.names}

    def alike_by(
        self, of: Callable[[Node], Hashable], *looked_at: str | Part
    ) -> Iterable[tuple[Node, ...]]:
        """Return the nodes in classes with the same settings and the same `of(node)`.

        For what follows from several facts that differ on each node, such as the growth of counters
        of cards that are found by their serial numbers. The nodes of a class are alike in the facts
        and parts of facts in `looked_at` too. As with `alike`, each node of a site's check is a
        class of its own.
        """
        if not self.facts:
            return [(node,) for node in self.nodes]
        classes: dict[Hashable, list[Node]] = {}
        for number, nodes in enumerate(alike_nodes(self.fleet, self.nodes, looked_at)):
            for node in nodes:
                classes.setdefault((number, of(node)), []).append(node)
        in_order = sorted(classes.values(), key=lambda members: members[0].index)
        return map(tuple, in_order)

    def wanted(self, node: Node) -> str | None:
        """Return what `require:` of the inventory says about this check and node, as written."""
        return node.require.get(self.check)

    @property
    def requires_anything(self) -> bool:
        """Return whether `require:` says something about this check for any node."""
        return any(self.check in node.require for node in self.nodes)

    def alike(self, *facts: str, parts: Iterable[Part] = ()) -> Iterable[tuple[Node, ...]]:
        """Return the nodes in classes that the check cannot tell apart by the facts that it names.

        The nodes of a class are alike in their settings too. `facts` are all that is looked at, if
        that is not all that the check names, and `parts` all that is looked at of their facts. Each
        node is a class of its own if it is not known what the check may look at.
        """
        if not self.facts:
            return [(node,) for node in self.nodes]
        looked_at: dict[str, str | Part] = {fact: fact for fact in facts or self.facts}
        looked_at |= {part.fact: part for part in parts}
        return alike_nodes(self.fleet, self.nodes, tuple(looked_at.values()))


# ---------------------------------------------------------------- outcomes about one node


def passed(node: Node, message: str, seen: str = "", wanted: str = "") -> Outcome:
    """Return a pass of one node."""
    return Outcome(
        "pass",
        (node.name,),
        message,
        seen,
        wanted,
    )


def failed(
    node: Node,
    message: str,
    seen: str = "",
    wanted: str = "",
    remedy: Remedy | None = None,
    severity: Severity | None = None,
    fix: Fix | None = None,
) -> Outcome:
    """Return a failure of one node. `remedy`, `severity` and `fix` default to the check's own."""
    nodes = (node.name,)
    return Outcome(
        "fail",
        nodes,
        message,
        seen,
        wanted,
        remedy,
        severity=severity,
        fix=fix,
    )


def unknown(
    node: Node,
    message: str,
    reason: str,
    seen: str = "",
    wanted: str = "",
    remedy: Remedy | None = None,
    severity: Severity | None = None,
) -> Outcome:
    """Return that one node could not be judged, and the reason."""
    nodes = (node.name,)
    return Outcome(
        "unknown",
        nodes,
        message,
        seen,
        wanted,
        remedy,
        reason,
        severity,
    )


def skipped(
    node: Node, message: str, seen: str = "", wanted: str = "", reason: str = "not_applicable"
) -> Outcome:
    """Return that the check does not apply to one node."""
    return Outcome(
        "skip",
        (node.name,),
        message,
        seen,
        wanted,
        reason=reason,
    )


def names_of(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the names of nodes."""
    return tuple([node.name for node in nodes])


def about_all(nodes: Sequence[Node], outcomes: Iterable[Outcome]) -> Iterable[Outcome]:
    """Yield the outcomes about one node of a class as outcomes about all nodes of it."""
    if len(nodes) == 1:
        yield from outcomes
        return
    names = names_of(nodes)
    for outcome in outcomes:
        yield replace(outcome, nodes=names)


# ---------------------------------------------------------------- kinds of machines


def machine(node: Node) -> object:
    """Return the declared kind of machine: number and model of GPUs.

    Nodes that declare no GPUs are one kind.
    """
    if node.gpus is None:
        return None
    return node.gpus.count, node.gpus.model


def kinds(context: CheckContext, of: Callable[[Node], object] = machine) -> Iterable[CheckContext]:
    """Yield a context for each kind of node, as if the fleet had no other nodes.

    With it a check compares only nodes that should be alike.
    """
    fleets = _machines(context.fleet) if of is machine else _split(context.fleet, of)
    if len(fleets) < 2:
        yield context
        return
    for fleet in fleets:
        names = {node.name for node in fleet.inventory.nodes}
        known = tuple(node for node in context.nodes if node.name in names)
        yield replace(context, fleet=fleet, nodes=known)


@once_per_fleet
def _machines(fleet: Fleet) -> tuple[Fleet, ...]:
    """Return a fleet for each declared kind of machine; most checks compare these."""
    return _split(fleet, machine)


def _split(fleet: Fleet, of: Callable[[Node], object]) -> tuple[Fleet, ...]:
    """Return a fleet for each kind of node, as if there were no others."""
    members: dict[object, list[Node]] = {}
    for node in fleet.inventory.nodes:
        members.setdefault(of(node), []).append(node)
    if len(members) < 2:
        return (fleet,)
    fleets = []
    for nodes in members.values():
        inventory = replace(fleet.inventory, nodes=tuple(nodes))
        fleets.append(replace(fleet, inventory=inventory))
    return tuple(fleets)


# ---------------------------------------------------------------- the check


class Proof(Struct, frozen=True, eq=False):
    """How `clusterprep selftest` shows that a check fires: a recorded fact, made bad on one node.

    `turn` gets the recorded value and returns the bad one; with an empty `fact` it gets the node's
    whole NodeSnapshot. Exactly this check must then answer otherwise than before, with `verdict` on
    that node, and no other check. `fleet` is the recording: some faults need a special machine.
    With `between` a fault shows at both ends of a pair: turn(recorded value, name of the bad node)
    is called for every node.

    If the check reads something that no described machine has, `machine` says what a healthy one
    has: {"files": {path: text}, "commands": {"chronyc -c tracking": stdout}}. `make format` records
    it. Of a site's check nothing is recorded: there `machine`, or `answers` with the raw value of
    each read, is what `selftest` answers with.
    """

    fact: str
    turn: Callable[..., Any]
    verdict: Verdict = "fail"
    fleet: str = "hgx-h100-ib"
    between: bool = False
    machine: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answers: Mapping[Read, Json] = field(default_factory=dict)


class Check(Struct, frozen=True):
    """A check: the facts it needs, how it judges, and its page for `explain`.

    `judge(context)` is called once, with every node that knows all `facts`; the engine answers
    «unknown» for the others. `severity` is that of a failure and of «unknown»; where `grave` is
    true «unknown» is an error although `severity` is "warning". What `require:` declares is always
    an error. `wants` parses it when the inventory is loaded, and raises a ValueError that says what
    is expected. `uses` names facts that are asked for too, and that the check can do without.
    `proof` shows that the check can fail. `grade` says in words how severe a failure is, if that
    depends on something: "an error over 1 s, else a warning". `follows` names the checks that may
    explain a failure or an «unknown» of this one: where one of them is in trouble on the same node,
    this one is told below it and does not count by itself. `source` is the file of a site's check,
    and empty for ours. `fix` is what cures every failure of the check, for the command of that
    name; where it depends on what was seen, the outcome has it. With `before_job` it says whether a
    job could start now, which says nothing while one runs: a watch of days leaves it out.
    """

    name: str
    facts: tuple[str, ...]
    judge: Callable[[CheckContext], Iterable[Outcome]]
    severity: Severity
    title: str
    why: str
    how: str
    remedy: Remedy
    tags: tuple[str, ...] = ()
    grave: Callable[[Fleet, Node], bool] = lambda fleet, node: False
    wants: Callable[[str], object] = str
    uses: tuple[str, ...] = ()
    proof: Proof | None = None
    grade: str = ""
    follows: tuple[str, ...] = ()
    source: str = ""
    fix: Fix | None = None
    before_job: bool = False


class NodeJudge(Struct, frozen=True):
    """Judges each node by itself, and is what `each` returns.

    Nodes that are alike in all that the check may look at get one answer together.
    """

    judge: Callable[..., Outcome | Iterable[Outcome] | None]
    facts: tuple[str, ...]
    per_node: bool
    parts: tuple[Part, ...] = ()
    parts_by_default: tuple[Part, ...] = ()

    def __call__(self, context: CheckContext) -> Iterable[Outcome]:
        """Yield the outcomes about the nodes of a context."""
        if self.per_node or not context.facts:
            for node in context.nodes:
                yield from self.outcomes_of(context, node)
            return
        parts = self.parts
        if self.parts_by_default and not context.requires_anything:
            parts += self.parts_by_default
        for nodes in context.alike(*context.facts, *self.facts, parts=parts):
            yield from about_all(nodes, self.outcomes_of(context, nodes[0]))

    def outcomes_of(self, context: CheckContext, node: Node) -> Iterable[Outcome]:
        """Return what the judge says about one node."""
        values = [context.value(node, fact) for fact in self.facts]
        outcomes = self.judge(context, node, *values)
        if outcomes is None:
            return ()
        if isinstance(outcomes, Outcome):
            return (outcomes,)
        return outcomes


def each(
    judge: Callable[..., Outcome | Iterable[Outcome] | None],
    *facts: str,
    per_node: bool = False,
    parts: tuple[Part, ...] = (),
    parts_by_default: tuple[Part, ...] = (),
) -> NodeJudge:
    """Return a judge of all nodes by `judge(context, node, *values of the facts)`.

    `judge` returns one outcome, several, or None. It is called once for all nodes that are alike in
    their settings and in the facts that the check names. If it looks at anything else of a node,
    such as its name, its address, its position or facts that the check does not name, `per_node`
    says so, and it is called for every node. `parts` are all that it looks at of their facts, and
    `parts_by_default` are so where `require:` says nothing about the check: our own limits are
    known beforehand.
    """
    return NodeJudge(judge, facts, per_node, parts, parts_by_default)


def parse_count(
    text: str,
    expected: str = "a whole number, such as 8",
    minimum: int = 0,
    maximum: int | None = None,
) -> int:
    """Parse a count of a `require:` value: ASCII digits alone.

    Raises ValueError, saying what is `expected`, for other text and for a number outside of
    `minimum` to `maximum`.
    """
    if text.isascii() and text.isdigit() and len(text) <= COUNT_DIGITS:
        number = int(text)
        too_large = maximum is not None and number > maximum
        if number >= minimum and not too_large:
            return number
    raise ValueError(f"expected {expected}; seen '{text}'")


# ---------------------------------------------------------------- values that should be equal


def by_value(values: Mapping[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return each value with the names that have it: frequent values first, else as they appear."""
    distinct = set(values.values())
    if len(distinct) == 1:  # as it mostly is: ten thousand names need not be told apart
        return [(distinct.pop(), tuple(values))]
    names_by_value: dict[str, list[str]] = {}
    for name, value in values.items():
        names_by_value.setdefault(value, []).append(name)
    groups = [(value, tuple(names)) for value, names in names_by_value.items()]
    groups.sort(key=lambda group: -len(group[1]))  # a stable sort
    return groups


def with_nodes(groups: Iterable[tuple[str, tuple[str, ...]]]) -> str:
    """Return «9000 on gpu[01-07]; 1500 on gpu08» of the groups that `by_value` returns."""
    return "; ".join(f"{value} on {fold(names)}" for value, names in groups)


def uniform(
    values: Mapping[str, str],
    what: str,
    fleet_size: int,
    remedy: Remedy | None = None,
    about: Collection[str] | None = None,
) -> list[Outcome]:
    """Return whether a value is equal on all nodes, where no right value is declared.

    `values` holds the nodes whose value is known, out of `fleet_size` that should have one. If more
    than half of them agree, the others fail; without such a majority all of them fail. `about`
    limits the answers to some nodes: a node whose value is declared counts towards the majority and
    is not judged by it.
    """
    outcomes = _compare(values, what, fleet_size, remedy)
    if about is None:
        return outcomes
    limited = []
    for outcome in outcomes:
        names = tuple(name for name in outcome.nodes if name in about)
        if names:
            limited.append(replace(outcome, nodes=names))
    return limited


def uniform_by_kind(
    context: CheckContext,
    values: Mapping[str, str],
    what: str,
    remedy: Remedy | None = None,
    about: Collection[str] | None = None,
    exempt: Collection[str] = (),
) -> Iterable[Outcome]:
    """Yield `uniform` for the machines of each kind. Nodes named in `exempt` need no value."""
    for part in kinds(context):
        fleet_size = 0
        values_of_kind = {}
        for node in part.inventory.nodes:
            if node.name in exempt:
                continue
            fleet_size += 1
            if node.name in values:
                values_of_kind[node.name] = values[node.name]
        if values_of_kind:
            yield from uniform(
                values_of_kind,
                what,
                fleet_size,
                remedy,
                about,
            )


def as_wanted(
    context: CheckContext,
    values: Mapping[str, str],
    satisfied: Callable[[str, str], bool],
    what: str,
    exempt: int = 0,
    cure: Callable[[str], Remedy] | None = None,
) -> Iterable[Outcome]:
    """Judge nodes by what `require:` declares for them, and compare the other nodes by `uniform`.

    `values` holds the value of each node that has one, and `satisfied(seen, wanted)` compares it
    with what is declared. `exempt` is the number of nodes that need no value. `cure(wanted)`
    returns what brings the value that is declared, or that most nodes have.
    """
    known = [node for node in context.nodes if node.name in values]
    declared = [node for node in known if context.check in node.require]
    for node in declared:
        seen = values[node.name]
        wanted = node.require[context.check]
        if satisfied(seen, wanted):
            yield passed(node, f"{what} is as required", seen, wanted)
        else:
            remedy = cure(wanted) if cure else None
            yield failed(node, f"{what} is not what the inventory requires", seen, wanted, remedy)
    if len(declared) == len(known):
        return
    fleet_size = len(context.inventory.nodes) - exempt
    about = None
    if declared or len(known) < len(values):
        names = {node.name for node in known}
        about = names.difference([node.name for node in declared])
    for outcome in uniform(values, what, fleet_size, about=about):
        if outcome.verdict != "fail" or outcome.wanted == EQUAL or cure is None:
            yield outcome
        else:
            yield replace(outcome, remedy=cure(outcome.wanted))


def _compare(
    values: Mapping[str, str], what: str, fleet_size: int, remedy: Remedy | None
) -> list[Outcome]:
    """Return `uniform` for all nodes: one outcome if they agree or have no majority, else two."""
    nodes = tuple(values)
    if len(nodes) < 2:
        return [_nothing_to_compare(values, what, fleet_size)]
    groups = by_value(values)
    usual, majority = groups[0]
    if len(groups) == 1:
        return [
            Outcome(
                "pass",
                nodes,
                f"{what} is {EQUAL}",
                usual,
                EQUAL,
            )
        ]
    seen = with_nodes(groups)
    if 2 * len(majority) <= len(nodes):
        message = f"{what} differs, and no value has a majority"
        return [
            Outcome(
                "fail",
                nodes,
                message,
                seen,
                EQUAL,
                remedy or UNDECIDED,
            )
        ]
    usual_nodes = frozenset(majority)
    deviating = tuple(node for node in nodes if node not in usual_nodes)
    message = f"{what} differs from the other nodes"
    return [
        Outcome(
            "fail",
            deviating,
            message,
            seen,
            usual,
            remedy,
        ),
        Outcome(
            "pass",
            majority,
            f"{what} is that of the majority",
            usual,
            usual,
        ),
    ]


def _nothing_to_compare(values: Mapping[str, str], what: str, fleet_size: int) -> Outcome:
    """Return the outcome for fewer than two values: skip for a fleet of one node, else unknown."""
    nodes = tuple(values)
    seen = next(iter(values.values()), "")
    if fleet_size < 2:
        message = f"{what} has nothing to be compared with"
        return Outcome(
            "skip",
            nodes,
            message,
            seen,
            reason="not_applicable",
        )
    message = f"{what} could not be compared"
    reason = NO_PEER
    return Outcome(
        "unknown",
        nodes,
        message,
        seen,
        EQUAL,
        reason=reason,
    )
