"""Wanted files against the files as they are: changes, and rows that people can read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterprep.changes.playbook.steps import Owners, Step, at_once
from clusterprep.changes.resources import NoPlan, Params, PlanContext, known
from clusterprep.changes.unified_diff import unified_diff
from clusterprep.errors import InputError, Problem
from clusterprep.model import Absent, ChangeRow, Fleet, Node, StepOutcome
from clusterprep.model.files import FileChange, FileState
from clusterprep.model.secrets import redacted
from clusterprep.nccl.environment import Environment
from clusterprep.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Gap:
    """Why a step cannot be planned on a node."""

    resource: str
    why: Absent

    def __str__(self) -> str:
        return f"{self.why.reason}: {self.why.detail}"


# What is known and not as it could be planned, unlike what is not known: the node would have to be changed by hand.
# "cannot" is the word for what has none of its own.
_KNOWN = frozenset(
    {"not_a_file", "not_ours", "no_such_key", "fixed", "no_such_user", "broken_block", "cannot"}
)


def changes(
    fleet: Fleet, steps: Sequence[Step], environment: Environment
) -> tuple[tuple[FileChange, ...], dict[str, Gap]]:
    """Changes of every step that is all or none on every node reached, and for each node that cannot be planned why.

    A step is planned against what the steps before it leave. Raises InputError where two steps want the same part of a
    file on a node, which for steps with `when` only shows there.
    """
    steps = at_once(steps)
    planned: list[FileChange] = []
    gaps: dict[str, Gap] = {}
    contents: dict[bytes | None, bytes | None] = {}  # what many nodes are to have is in memory once
    asked = [
        [fact.name for fact in step.resource.facts(step.params, fleet.inventory)] for step in steps
    ]
    watched = any(step.when for step in steps)
    for node in fleet.reached:
        files: dict[str, FileState] = {}
        owners = Owners()
        for step, facts in zip(steps, asked, strict=True):
            found = planned_changes(
                PlanContext(fleet, node, files, dict.fromkeys(facts), environment), step
            )
            if isinstance(found, Absent):
                gaps.setdefault(node.name, Gap(step.resource.name, found))
            elif found is not None:
                if watched:
                    refuse_doubles(owners, step, node, fleet)
                for change in found:
                    after = contents.setdefault(change.after, change.after)
                    planned.append(replace(change, after=after, notify=step.notify))
                    files[change.path] = pending_changes(change)
    return tuple(planned), gaps


def planned_changes(so_far: PlanContext, step: Step) -> tuple[Any, ...] | Absent | None:
    """The changes or deeds of one step on one node, why they are not known, or None where it is not for this node.

    `so_far` has the files that steps before it leave, and by name the facts that the step needs.
    """
    applies = step.applies(so_far.node, so_far.fleet)
    if applies is False:
        return None
    if isinstance(applies, Absent):
        return applies
    params = step.filled(so_far.node, so_far.fleet)
    if isinstance(params, Absent):
        return params
    against = _known(so_far, step, params)
    if isinstance(against, Absent):
        return against
    try:
        return tuple(step.resource.plan(params, against))
    except NoPlan as error:
        return error.absent


def _known(so_far: PlanContext, step: Step, params: Params) -> PlanContext | Absent:
    """All that a step is planned against, or the first of it that is not known."""
    fleet, node, gaps = so_far.fleet, so_far.node.name, so_far.environment.gaps
    paths = step.resource.paths(params, fleet.inventory)
    states = known(
        {path: so_far.files.get(path) or fleet.fact(node, f"target:{path}") for path in paths}
    )
    if isinstance(states, Absent):
        return states
    facts = {name: fleet.fact(node, name) for name in so_far.facts}
    for name, value in facts.items():
        if isinstance(value, Absent):
            return Absent(value.reason, f"{name}: {value.detail}")
    if step.resource.name == "env" and node in gaps:
        variable, _, why = gaps[node].partition(": ")
        return Absent(variable, why)
    return replace(so_far, files=states, facts=facts)


def pending_changes(change: FileChange) -> FileState:
    """A file as a step leaves it."""
    access = change.access or change.was
    if access is None or change.after is None:
        return FileState(change.path, change.after, change.mode)
    return FileState(change.path, change.after, access.mode, access.uid, access.gid)


def refuse_doubles(owners: Owners, step: Step, node: Node, fleet: Fleet) -> None:
    double = owners.take(step, step.resource.owned(step.params, fleet.inventory))
    if double is not None:
        first, where = double
        message = f"on {node.name} {where} is {step.resource.verb} already by the step in line {first.line}"
        raise InputError(
            (Problem(message, step.file, step.line, hint="their conditions hold both"),)
        )


def gap_code(gaps: Mapping[str, Gap]) -> int:
    """Not knowing is 3; that a link or a device stands where a file belongs is known."""
    return 1 if any(gap.why.reason in _KNOWN for gap in gaps.values()) else 3 if gaps else 0


def change_rows(
    planned: Iterable[FileChange], outcomes: Mapping[str, StepOutcome], details: Mapping[str, str]
) -> tuple[ChangeRow, ...]:
    """Equal changes with equal outcomes in one row; `outcomes` and `details` are by node."""
    folded: dict[tuple[str, ...], list[str]] = {}
    diffs: dict[FileChange, str] = {}
    for change in planned:
        outcome = "unchanged" if change.action == "none" else outcomes.get(change.node, "planned")
        detail = details.get(change.node, "")
        anywhere = replace(change, node="")
        if anywhere not in diffs:
            diffs[anywhere] = plan_files(change)
        key = (change.resource, change.path, change.action, outcome, diffs[anywhere], detail)
        nodes = folded.setdefault(key, [])
        if change.node not in nodes[-1:]:  # two steps that leave the same file as it is
            nodes.append(change.node)
    return tuple(
        ChangeRow(tuple(nodes), resource, path, action, outcome, text, detail)  # type: ignore[arg-type]
        for (resource, path, action, outcome, text, detail), nodes in folded.items()
    )


def nodes_of(resource: str, planned: Iterable[FileChange]) -> tuple[str, ...]:
    """The nodes on which a step has this resource: a playbook may be about other things, or say which nodes."""
    return tuple(dict.fromkeys(change.node for change in planned if change.resource == resource))


def gap_rows(gaps: Mapping[str, Gap]) -> tuple[ChangeRow, ...]:
    """The nodes that cannot be planned, with the reasons."""
    return tuple(
        ChangeRow((node,), gap.resource, "", "none", "not-started", detail=str(gap))
        for node, gap in gaps.items()
    )


def plan_files(change: FileChange) -> str:
    """A unified diff with secrets of other people's lines blotted out; above it what becomes of owner and mode."""
    head = ""
    if change.access not in (None, change.was):
        head = f"{change.path}: {change.was or 'new'} → {change.access}\n"
    if change.before == change.after:
        return head
    lines = unified_diff(change.path, change.before or b"", change.after or b"")
    return head + redacted(lines)
