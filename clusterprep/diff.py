"""Wanted files against the files as they are: changes, and rows that people can read. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from clusterprep.model import Absent, ChangeRow, FileChange, FileState, Fleet, Node, Outcome
from clusterprep.playbook import Step
from clusterprep.render import Environment
from clusterprep.resources import known

# The name may stand anywhere in the line, as in «echo export WANDB_API_KEY=…», and be written as YAML or JSON has it.
_SECRET = re.compile(r"^([ +-].*?(?:KEY|TOKEN|SECRET|PASS)[\w.-]*[\"']?\s*[=:]).*$", re.IGNORECASE | re.MULTILINE)
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # str.splitlines would end a line, and its name, at a form feed


def changes(
    fleet: Fleet, steps: Iterable[Step], environment: Environment
) -> tuple[tuple[FileChange, ...], dict[str, str]]:
    """Changes of every step on every node reached, and for each node that cannot be planned the reason."""
    planned: list[FileChange] = []
    gaps: dict[str, str] = {}
    for node in fleet.reached:
        for step in steps:
            states = _states(fleet, node, step)
            if isinstance(states, Absent):
                gaps.setdefault(node.name, f"{states.reason}: {states.detail}")
            elif step.resource.name == "env" and node.name in environment.gaps:
                gaps.setdefault(node.name, environment.gaps[node.name])
            else:
                planned.extend(step.resource.plan(node, step.params, states, environment))
    return tuple(planned), gaps


def gap_code(gaps: Mapping[str, str]) -> int:
    """Not knowing is 3; that a link or a device stands where a file belongs is known."""
    known = any(why.startswith("not_a_file:") for why in gaps.values())
    return 1 if known else 3 if gaps else 0


def _states(fleet: Fleet, node: Node, step: Step) -> dict[str, FileState] | Absent:
    paths = step.resource.paths(step.params, fleet.inventory)
    return known({path: fleet.fact(node.name, f"target:{path}") for path in paths})


def rows(
    planned: Iterable[FileChange], outcomes: Mapping[str, Outcome], details: Mapping[str, str]
) -> tuple[ChangeRow, ...]:
    """Equal changes with equal outcomes in one row; `outcomes` and `details` are by node."""
    folded: dict[tuple[str, ...], list[str]] = {}
    diffs: dict[tuple[str, bytes | None, bytes | None], str] = {}  # most nodes change in the same way
    for change in planned:
        outcome = "unchanged" if change.action == "none" else outcomes.get(change.node, "planned")
        detail = details.get(change.node, "")
        what = (change.path, change.before, change.after)
        if what not in diffs:
            diffs[what] = diff(change)
        key = (change.resource, change.path, change.action, outcome, diffs[what], detail)
        folded.setdefault(key, []).append(change.node)
    return tuple(
        ChangeRow(tuple(nodes), resource, path, action, outcome, text, detail)  # type: ignore[arg-type]
        for (resource, path, action, outcome, text, detail), nodes in folded.items()
    )


def none_started(planned: Iterable[FileChange]) -> dict[str, Outcome]:
    return {change.node: "not-started" for change in planned}


def gap_rows(gaps: Mapping[str, str], steps: Sequence[Step]) -> tuple[ChangeRow, ...]:
    """The nodes that cannot be planned, with the reasons."""
    name = steps[0].resource.name if steps else "env"
    return tuple(ChangeRow((node,), name, "", "none", "not-started", detail=why) for node, why in gaps.items())


def diff(change: FileChange) -> str:
    """A unified diff with secrets of other people's lines blotted out."""
    if change.before == change.after:
        return ""
    before, after = (text(content) for content in (change.before, change.after))
    lines = difflib.unified_diff(before, after, change.path, change.path, n=2)
    return _SECRET.sub(r"\1<redacted>", "".join(line if line.endswith("\n") else line + "\n" for line in lines))


def text(content: bytes | None) -> list[str]:
    return _LINE.findall((content or b"").decode("utf-8", "backslashreplace"))
