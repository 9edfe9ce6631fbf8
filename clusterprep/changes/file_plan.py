"""Compares wanted files with the files as they are: changes, and rows of them for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.changes.playbook.steps import Owners, Step, at_once, resource_fact_names
from clusterprep.changes.resources import NoPlan, Params, PlanContext, StepResource, known_states
from clusterprep.changes.unified_diff import unified_diff
from clusterprep.errors import InputError, Problem
from clusterprep.model import Absent, ChangeRow, Fleet, Node, StepOutcome
from clusterprep.model.files import FileChange, FileState
from clusterprep.model.secrets import redacted
from clusterprep.nccl.environment import Environment

# Reasons that are obstacles on the node, which people have to remove; all others mean that a state
# could not be determined. "cannot" is the word for an obstacle that has none of its own.
_OBSTACLES = frozenset(
    {
        "not_a_file",
        "not_ours",
        "no_such_key",
        "fixed",
        "no_such_user",
        "broken_block",
        "cannot",
    }
)


class Gap(Struct, frozen=True):
    """Why a step cannot be planned on a node. `step` is its name, empty where none is at fault."""

    resource: str
    why: Absent
    step: str = ""

    def __str__(self) -> str:
        return f"{self.why.reason}: {self.why.detail}"

    @property
    def is_known_obstacle(self) -> bool:
        """True if the obstacle is known, False if the state could not be determined."""
        return self.why.reason in _OBSTACLES


# ---------------------------------------------------------------- planning


def plan_file_changes(
    fleet: Fleet, steps: Sequence[Step], environment: Environment
) -> tuple[tuple[FileChange, ...], dict[str, Gap]]:
    """Return the changes of every step that is all or none, and why some nodes cannot be planned.

    A step is planned against what the steps before it leave. Raises InputError if two steps want
    the same part of a file on a node; for steps with `when` that only shows here.
    """
    file_steps = at_once(steps)
    names_by_step = [resource_fact_names(step, fleet.inventory) for step in file_steps]
    has_conditions = any(step.when for step in file_steps)
    planned: list[FileChange] = []
    gaps: dict[str, Gap] = {}
    # Equal contents share one object: what many nodes are to have is in memory once.
    contents: dict[bytes | None, bytes | None] = {}
    for node in fleet.reached:
        files: dict[str, FileState] = {}
        owners = Owners()
        context = PlanContext(
            fleet,
            node,
            files,
            {},
            environment,
        )
        for step, fact_names in zip(file_steps, names_by_step, strict=True):
            result = plan_step(context, step, fact_names)
            if result is None:
                continue
            if isinstance(result, Absent):
                gaps.setdefault(node.name, Gap(step.resource.name, result, step.name))
                continue
            if has_conditions:
                refuse_conflict(owners, step, node, fleet)
            for change in result:
                content = contents.setdefault(change.after, change.after)
                planned.append(replace(change, after=content, notify=step.notify))
                files[change.path] = state_after(change)
    return tuple(planned), gaps


def plan_step(
    context: PlanContext, step: Step, fact_names: Iterable[str]
) -> tuple[Any, ...] | Absent | None:
    """Return the changes or step actions of one step on one node.

    Absent says why they are not known; None means that the step is not for this node. `context`
    has the files that the steps before leave, and no facts: `fact_names` are those of the step's
    resource, which are added to it.
    """
    applies = step.applies(context.node, context.fleet)
    if applies is False:
        return None
    if isinstance(applies, Absent):
        return applies
    params = step.filled(context.node, context.fleet)
    if isinstance(params, Absent):
        return params
    complete = _complete_context(context, step, params, fact_names)
    if isinstance(complete, Absent):
        return complete
    try:
        return tuple(step.resource.plan(params, complete))
    except NoPlan as error:
        return error.absent


def _complete_context(
    context: PlanContext, step: Step, params: Params, fact_names: Iterable[str]
) -> PlanContext | Absent:
    """Return the context with all files and facts of the step; Absent if one is not known."""
    paths = step.resource.paths(params, context.fleet.inventory)
    files = _current_files(context, paths)
    if isinstance(files, Absent):
        return files
    facts = _fact_values(context, step, fact_names)
    if isinstance(facts, Absent):
        return facts
    if step.resource.name == "env":
        gap = _environment_gap(context)
        if gap is not None:
            return gap
    return replace(context, files=files, facts=facts)


def _current_files(context: PlanContext, paths: Iterable[str]) -> dict[str, FileState] | Absent:
    """Return each file as the steps before leave it, else as the node has it.

    Absent says why the first file that is not known is not.
    """
    states = {}
    for path in paths:
        state = context.files.get(path)
        if state is None:
            state = context.fleet.fact(context.node.name, f"target:{path}")
        states[path] = state
    return known_states(states)


def _fact_values(context: PlanContext, step: Step, names: Iterable[str]) -> dict[str, Any] | Absent:
    """Return the facts of the node by name; Absent says why the first unknown one is unknown.

    That a fact is not about this machine is known, and some resources take it as an answer.
    """
    resource = step.resource
    takes_inapplicable = isinstance(resource, StepResource) and resource.inapplicable
    names = list(names)
    own = [name for name in names if name.startswith(f"{resource.name}:")]
    values = {}
    for name in names:
        value = context.fleet.fact(context.node.name, name)
        if isinstance(value, Absent):
            if value.reason == "not_applicable" and takes_inapplicable:
                values[name] = value
                continue
            # The one fact that the resource asks for is about what the step names anyhow.
            is_only = own == [name]
            return Absent(value.reason, value.detail if is_only else f"{name}: {value.detail}")
        values[name] = value
    return values


def _environment_gap(context: PlanContext) -> Absent | None:
    """Return which variable could not be derived for the node, and why; None if all could."""
    gap = context.environment.gaps.get(context.node.name)
    if gap is None:
        return None
    variable, _, why = gap.partition(": ")  # a gap is «NCCL_IB_HCA: why»
    return Absent(variable, why)


def state_after(change: FileChange) -> FileState:
    """Return a file as a change leaves it."""
    path = change.path
    content = change.after
    access = change.access or change.was
    if access is None or content is None:
        return FileState(path, content, change.mode)
    return FileState(
        path,
        content,
        access.mode,
        access.uid,
        access.gid,
    )


def refuse_conflict(owners: Owners, step: Step, node: Node, fleet: Fleet) -> None:
    """Raise InputError if another step has a part of what this one wants on a node."""
    parts = step.resource.owned(step.params, fleet.inventory)
    conflict = owners.take(step, parts)
    if conflict is None:
        return
    first, part = conflict
    verb = step.resource.verb
    message = f"on {node.name} {part} is {verb} already by the step in line {first.line}"
    problem = Problem(message, step.file, step.line, hint="their conditions hold both")
    raise InputError((problem,))


def nodes_with_resource(resource: str, planned: Iterable[FileChange]) -> tuple[str, ...]:
    """Return the nodes on which a file step of this resource was planned, each once."""
    names: dict[str, None] = {}
    for change in planned:
        if change.resource == resource:
            names[change.node] = None
    return tuple(names)


# ---------------------------------------------------------------- rows for people


def change_rows(
    planned: Iterable[FileChange],
    outcomes: Mapping[str, StepOutcome],
    details: Mapping[str, str],
) -> tuple[ChangeRow, ...]:
    """Return equal changes with equal outcomes in one row.

    `outcomes` and `details` are by node; a change without an outcome is planned.
    """
    nodes_by_row: dict[ChangeRow, list[str]] = {}
    diffs: dict[FileChange, str] = {}
    for change in planned:
        # A diff is made once for all nodes with the same change.
        without_node = replace(change, node="")
        if without_node not in diffs:
            diffs[without_node] = diff_text(change)
        outcome = outcomes.get(change.node, "planned")
        action = change.action
        if action == "none":
            outcome = "unchanged"
        diff = diffs[without_node]
        detail = details.get(change.node, "")
        row = ChangeRow(
            (),
            change.resource,
            change.path,
            action,
            outcome,
            diff,
            detail,
        )
        nodes = nodes_by_row.setdefault(row, [])
        # Two steps that leave the same file as it is give two equal changes.
        if change.node not in nodes[-1:]:
            nodes.append(change.node)
    return tuple(replace(row, nodes=tuple(nodes)) for row, nodes in nodes_by_row.items())


def gap_rows(gaps: Mapping[str, Gap]) -> tuple[ChangeRow, ...]:
    """Return one row for all nodes that cannot be planned for the same reason."""
    nodes_by_gap: dict[tuple[str, str, str], list[str]] = {}
    for node, gap in gaps.items():
        nodes_by_gap.setdefault((gap.resource, gap.step, str(gap)), []).append(node)
    rows = []
    for (resource, step, detail), nodes in nodes_by_gap.items():
        row = ChangeRow(
            tuple(nodes),
            resource,
            step,
            "none",
            "not-started",
            detail=detail,
        )
        rows.append(row)
    return tuple(rows)


_PRIVATE_KEY = b"PRIVATE KEY-----"  # of the first line of every format


def diff_text(change: FileChange) -> str:
    """Return a unified diff, below a line that says what changes of owner and mode.

    Secrets in lines of others are redacted.
    """
    head = ""
    if change.access not in (None, change.was):
        head = f"{change.path}: {change.was or 'new'} → {change.access}\n"
    if change.before == change.after:
        return head
    if _PRIVATE_KEY in (change.after or b"") or _PRIVATE_KEY in (change.before or b""):
        return f"{head}{change.path}: a private key, which is not shown\n"
    lines = unified_diff(change.path, change.before or b"", change.after or b"")
    return head + redacted(lines)
