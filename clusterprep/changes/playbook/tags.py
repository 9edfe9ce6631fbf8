"""`--tags` and `--skip-tags` of a command with a playbook: a word that steps have as a tag selects steps. Pure.

Every other word selects checks, as it does in `check`. Where no word is a tag of a step, all steps stay, and where all
are, all checks; so a selection of checks never leaves out a change, and one of steps never a check.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from clusterprep.changes.playbook.steps import Playbook, Step
from clusterprep.errors import InputError, Problem
from clusterprep.model.nodeset import nearest
from clusterprep.survey.selection import Selection


def chosen(
    playbook: Playbook, selection: Selection, checks: Collection[str]
) -> tuple[tuple[Step, ...], Selection]:
    """The steps that stay, and the selection of checks that is left; `checks` are the tags and areas of checks.

    A handler stays, too, where a step that notifies it does.

    Raises InputError for a word that is neither, and where no step stays.
    """
    known = sorted({*playbook.tags, *checks})
    wrong = [
        Problem(
            f"neither a step of {playbook.path} nor a check has the tag '{word}'",
            key=option,
            hint=nearest(word, known),
        )
        for option, words in (("--tags", selection.tags), ("--skip-tags", selection.skip_tags))
        for word in words
        if word not in known
    ]
    if wrong:
        raise InputError(tuple(wrong))
    wanted, unwanted = playbook.tags & set(selection.tags), playbook.tags & set(selection.skip_tags)
    steps = tuple(
        s
        for s in playbook.steps
        if (not wanted or wanted & set(s.tags)) and not unwanted & set(s.tags)
    )
    due = {name for step in steps for name in step.notify}
    steps = tuple(
        step for step in playbook.steps if step in steps or (step.handler and step.name in due)
    )
    if not steps:
        raise InputError.of(
            f"no step of {playbook.path} is left", key="--tags" if wanted else "--skip-tags"
        )
    return steps, dataclasses.replace(
        selection,
        tags=tuple(word for word in selection.tags if word not in wanted),
        skip_tags=tuple(
            word for word in selection.skip_tags if word not in unwanted or word in checks
        ),
    )
