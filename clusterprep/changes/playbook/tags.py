"""`--tags` and `--skip-tags` of a command with a playbook. Pure.

A word that is a tag of steps selects steps. Every other word selects checks, as in `check`. If no
word is a tag of a step, all steps stay; if every word is one, all checks stay. So a selection of
checks never leaves out a change, and one of steps never a check.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from clusterprep.changes.playbook.steps import Playbook, Step
from clusterprep.errors import InputError, Problem
from clusterprep.model.nodeset import nearest
from clusterprep.survey.selection import Selection


def select_steps(
    playbook: Playbook, selection: Selection, checks: Collection[str]
) -> tuple[tuple[Step, ...], Selection]:
    """Return the steps that stay, and the selection that remains for checks.

    `checks` has the tags and areas of checks. A handler stays if a step that notifies it does.
    Raises InputError for a word that is neither, and if no step stays.
    """
    _refuse_unknown(playbook, selection, checks)
    wanted = playbook.tags & set(selection.tags)
    unwanted = playbook.tags & set(selection.skip_tags)
    steps = _selected_steps(playbook, wanted, unwanted)
    if not steps:
        option = "--tags" if wanted else "--skip-tags"
        message = f"no step of {playbook.path} is left"
        raise InputError.of(message, key=option)
    tags = [word for word in selection.tags if word not in wanted]
    skipped_steps = unwanted - set(checks)
    skip_tags = [word for word in selection.skip_tags if word not in skipped_steps]
    for_checks = msgspec.structs.replace(selection, tags=tuple(tags), skip_tags=tuple(skip_tags))
    return steps, for_checks


def _refuse_unknown(playbook: Playbook, selection: Selection, checks: Collection[str]) -> None:
    """Raise InputError for words that are tags neither of steps nor of checks."""
    known = sorted({*playbook.tags, *checks})
    problems = []
    for option, given in (("--tags", selection.tags), ("--skip-tags", selection.skip_tags)):
        for word in given:
            if word in known:
                continue
            message = f"neither a step of {playbook.path} nor a check has the tag '{word}'"
            problems.append(Problem(message, key=option, hint=nearest(word, known)))
    if problems:
        raise InputError(tuple(problems))


def _selected_steps(
    playbook: Playbook, wanted: frozenset[str], unwanted: frozenset[str]
) -> tuple[Step, ...]:
    """Return the steps with a wanted tag and no unwanted one, and the handlers they notify.

    Without a wanted tag all steps are wanted. The order is that of the playbook.
    """
    selected = []
    notified: set[str] = set()
    for step in playbook.steps:
        if unwanted.intersection(step.tags):
            continue
        if not wanted or wanted.intersection(step.tags):
            selected.append(step)
            notified.update(step.notify)
    steps = []
    for step in playbook.steps:
        is_due = step.handler and step.name in notified
        if is_due or step in selected:
            steps.append(step)
    return tuple(steps)
