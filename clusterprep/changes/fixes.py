"""Makes steps of a playbook from what findings ask for, and says what became of each. Pure.

proposed(inventory, reached, findings)  →  Proposal: steps, each for its nodes alone, and the rest
feasible(fleet, proposal, environment)  →  the same without what a node cannot have, and why
final_rows(proposal, findings, failed)   →  FixRows: cured, not cured, by hand

A finding that names no fix is for people, and so is one whose step cannot be planned on its node.
That holds up no other step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from clusterprep.changes.by_hand import reason
from clusterprep.changes.planner import predict_changes
from clusterprep.changes.playbook.steps import Step
from clusterprep.changes.resources import Resource, StepResource
from clusterprep.model import Finding, FixRow, Fleet, Inventory
from clusterprep.model.fixes import WantedState
from clusterprep.nccl.environment import Environment

Resources = Mapping[str, Resource | StepResource]
Place = tuple[str, str]  # a check and a node on which it fails
StateKey = tuple[str, tuple[Any, ...]]

# What has to be there before other steps, and what waits for them; all others stand between.
_EARLY = ("package", "file")
_LATE = ("service", "command", "clock")
# The parameters that say what a step is about: steps that are about the same are one step.
_IDENTITY = ("name", "path", "interface", "run")
NO_ANSWER = "the node gave no answer"
STILL = "the step is done, and the check still fails: {seen}"
FAILED = "the step failed, see the changes"
REFUSED = "it was not confirmed"


class Proposal(Struct, frozen=True):
    """The steps that cure the failures in `wanted`; `left` says why the other ones are for people.

    `wanted` has the steps of each failure, by their places in `steps`.
    """

    steps: tuple[Step, ...] = ()
    wanted: Mapping[Place, tuple[int, ...]] = field(default_factory=dict)
    left: Mapping[Place, str] = field(default_factory=dict)


class _Collected:
    """The states that were asked for: of each one, its parameters on each node, and the checks."""

    def __init__(self) -> None:
        self.params: dict[StateKey, dict[str, dict[str, Any]]] = {}
        self.checks: dict[StateKey, dict[str, None]] = {}
        self.places: dict[Place, dict[StateKey, None]] = {}

    def add(self, place: Place, state: WantedState, nodes: Iterable[str]) -> None:
        """Note that a failure asks for a state on these nodes."""
        check, _ = place
        key = _key(state)
        self.checks.setdefault(key, {})[check] = None
        self.places.setdefault(place, {})[key] = None
        of_key = self.params.setdefault(key, {})
        for node in nodes:
            params = of_key.setdefault(node, {})
            for name, value in state.params:
                params.setdefault(name, value)


def _key(state: WantedState) -> StateKey:
    """Return what a state is about."""
    given = dict(state.params)
    return state.resource, tuple(given.get(name) for name in _IDENTITY)


# ---------------------------------------------------------------- from findings to steps


def proposed(
    inventory: Inventory,
    reached: Sequence[str],
    findings: Iterable[Finding],
    resources: Resources,
) -> Proposal:
    """Return the steps that the failures among these findings ask for, on the nodes reached."""
    collected = _Collected()
    left: dict[Place, str] = {}
    for finding in findings:
        if not is_open(finding):
            continue
        for node in finding.nodes:
            place = (finding.check, node)
            why = _why_by_hand(finding, node, reached, resources, inventory)
            if why or finding.fix is None:
                left.setdefault(place, why)
                continue
            nodes = reached if finding.fix.everywhere else (node,)
            for state in finding.fix.states:
                collected.add(place, state, nodes)
    steps, places_of_key = _steps(collected, resources)
    wanted = {}
    for place, keys in collected.places.items():
        numbers: list[int] = []
        for key in keys:
            numbers.extend(places_of_key[key, place[1]])
        wanted[place] = tuple(sorted(set(numbers)))
    # One of several failures of a check on a node may be a consequence of those that are cured.
    for place in wanted:
        left.pop(place, None)
    return Proposal(steps, wanted, left)


def is_open(finding: Finding) -> bool:
    """Return whether a finding is a failure that counts."""
    return finding.verdict == "fail" and not finding.fixed and finding.silenced is None


def _why_by_hand(
    finding: Finding,
    node: str,
    reached: Collection[str],
    resources: Resources,
    inventory: Inventory,
) -> str:
    """Return why a failure is for people on this node, "" where steps may cure it."""
    if finding.fix is None:
        return reason(finding.check)
    if node not in reached:
        return NO_ANSWER
    for state in finding.fix.states:
        wrong = _wrong_state(state, resources)
        if wrong:
            return f"{state.resource}: {wrong}"
    return ""


def _wrong_state(state: WantedState, resources: Resources) -> str:
    """Return what is wrong with a state, "" where nothing is.

    Its words may be a node's, or those of a check that a site wrote.
    """
    resource = resources.get(state.resource)
    if resource is None:
        return "there is no such resource"
    if not all(_is_plain(value) for _, value in state.params):
        return "a word in it is not plain"
    for _, why in resource.wrong(dict(state.params)):
        return why
    return ""


def _is_plain(value: Any) -> bool:
    """Return whether a value can stand in a step: playbooks would take braces for a variable."""
    if isinstance(value, tuple):
        return all(_is_plain(word) for word in value)
    if isinstance(value, str):
        return "{{" not in value and "\0" not in value
    return True


def _steps(
    collected: _Collected, resources: Resources
) -> tuple[tuple[Step, ...], dict[tuple[StateKey, str], list[int]]]:
    """Return the steps in their order, and the places of those of a state on a node."""
    groups: list[tuple[StateKey, dict[str, Any], list[str]]] = []
    for key, params_by_node in collected.params.items():
        of_key: list[tuple[dict[str, Any], list[str]]] = []
        for node, params in params_by_node.items():
            for other, nodes in of_key:
                if other == params:
                    nodes.append(node)
                    break
            else:
                of_key.append((params, [node]))
        groups.extend((key, params, nodes) for params, nodes in of_key)
    groups.sort(key=lambda group: _rank(group[0][0]))  # a stable sort
    steps = []
    places: dict[tuple[StateKey, str], list[int]] = {}
    for number, (key, params, nodes) in enumerate(groups):
        resource = resources[key[0]]
        normal = resource.normal(params) if isinstance(resource, StepResource) else params
        step = Step(
            ", ".join(collected.checks[key]),
            resource,
            normal,
            nodes=frozenset(nodes),
        )
        steps.append(step)
        for node in nodes:
            places.setdefault((key, node), []).append(number)
    return tuple(steps), places


def _rank(resource: str) -> int:
    if resource in _EARLY:
        return _EARLY.index(resource)
    if resource in _LATE:
        return len(_EARLY) + 1 + _LATE.index(resource)
    return len(_EARLY)


# ---------------------------------------------------------------- what a node can have


def feasible(fleet: Fleet, proposal: Proposal, environment: Environment) -> Proposal:
    """Return the proposal without the steps that some nodes cannot have; there they are `left`.

    What one node cannot have is taken from that node alone, but what is for the whole fleet from
    all of them.
    """
    gaps = predict_changes(fleet, proposal.steps, environment).gaps
    if not gaps:
        return proposal
    impossible: dict[tuple[int, str], str] = {}
    possible: list[Step] = []
    # One step after the other, each behind those that its nodes can have: what a step needs may be
    # what an earlier one brings.
    for number, step in enumerate(proposal.steps):
        nodes = step.nodes or frozenset()
        tried_nodes = nodes.intersection(gaps)  # the other nodes can have every step
        tried = replace(step, nodes=tried_nodes)
        found = predict_changes(fleet, (*possible, tried), environment).gaps
        if found and step.resource.name == "env":
            first = next(iter(found.values()))
            found = dict.fromkeys(nodes, first)
        for node, gap in found.items():
            why = gap.why.detail or gap.why.reason
            impossible[number, node] = f"{step.resource.name}: {why}"
        possible.append(replace(tried, nodes=tried_nodes.difference(found)))
    return _without(proposal, impossible)


def _without(proposal: Proposal, impossible: Mapping[tuple[int, str], str]) -> Proposal:
    """Return the proposal without these steps on these nodes.

    A failure that needs one of them is left whole: half of a fix is none.
    """
    wanted = {}
    left = dict(proposal.left)
    for (check, node), numbers in proposal.wanted.items():
        reasons = [impossible[number, node] for number in numbers if (number, node) in impossible]
        if reasons:
            left[check, node] = reasons[0]
        else:
            wanted[check, node] = numbers
    needed = _needed_nodes(proposal.steps, wanted)
    steps: list[Step] = []
    moved: dict[int, int] = {}
    for number, step in enumerate(proposal.steps):
        if number in needed:
            moved[number] = len(steps)
            steps.append(replace(step, nodes=frozenset(needed[number])))
    renumbered = {}
    for place, numbers in wanted.items():
        renumbered[place] = tuple(moved[number] for number in numbers)
    return Proposal(tuple(steps), renumbered, left)


def _needed_nodes(
    steps: Sequence[Step], wanted: Mapping[Place, Iterable[int]]
) -> dict[int, set[str]]:
    """Return the nodes on which each step is wanted, by its number; others are left out."""
    needed: dict[int, set[str]] = {}
    for (_, node), numbers in wanted.items():
        for number in numbers:
            step = steps[number]
            nodes = needed.setdefault(number, set())
            if step.resource.name == "env":  # for all nodes, whichever failure asks for it
                nodes.update(step.nodes or ())
            else:
                nodes.add(node)
    return needed


# ---------------------------------------------------------------- what became of it


def planned_rows(proposal: Proposal, outcome: Any = "planned", why: str = "") -> tuple[FixRow, ...]:
    """Return what would be cured, or was not as `outcome` says, and what is for people."""
    found = dict.fromkeys(proposal.wanted, (outcome, why))
    return _rows(proposal, found)


def final_rows(
    proposal: Proposal, after: Iterable[Finding], failed: Collection[str]
) -> tuple[FixRow, ...]:
    """Return what the second look says of each failure; a step failed on the nodes `failed`."""
    open_places: dict[Place, str] = {}
    passing: set[Place] = set()
    for finding in after:
        for node in finding.nodes:
            if is_open(finding):
                open_places.setdefault((finding.check, node), finding.seen)
            elif finding.verdict in ("pass", "skip"):
                passing.add((finding.check, node))
    found = {}
    still = {}
    for place, why in proposal.left.items():
        if place in open_places or place not in passing:
            still[place] = why
        else:  # it was a consequence of what was cured
            found[place] = ("cured", "")
    proposal = replace(proposal, left=still)
    for place in proposal.wanted:
        _, node = place
        if place in open_places:
            why = FAILED if node in failed else STILL.format(seen=open_places[place])
            found[place] = ("not cured", why)
        elif place in passing:
            found[place] = ("cured", "")
        else:
            found[place] = ("not cured", "the second look could not tell")
    return _rows(proposal, found)


def _rows(proposal: Proposal, found: Mapping[Place, tuple[Any, str]]) -> tuple[FixRow, ...]:
    """Return a row for the nodes of a check of which the same is to be said."""
    by_hand: dict[Place, tuple[Any, str]] = {}
    for place, why in proposal.left.items():
        by_hand[place] = ("by hand", why)
    nodes_by_row: dict[FixRow, list[str]] = {}
    for outcomes in (found, by_hand):
        for (check, node), (outcome, why) in outcomes.items():
            row = FixRow(check, (), outcome, why)
            nodes_by_row.setdefault(row, []).append(node)
    rows = []
    for row, nodes in nodes_by_row.items():
        rows.append(replace(row, nodes=tuple(nodes)))
    return tuple(rows)
