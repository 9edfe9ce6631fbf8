"""Select checks by name, area and tag, as `--only`, `--skip`, `--tags` and `--skip-tags` say.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from clusterprep.checks import Check
from clusterprep.errors import InputError, Problem
from clusterprep.model.nodeset import nearest


class Selection(Struct, frozen=True):
    """`--only`, `--skip`, `--tags`, `--skip-tags`, as typed."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()


def matches(pattern: str, name: str) -> bool:
    """Return True if a pattern selects the check of this name.

    `env.` and `env` select all checks of the area, `env.shadow` selects one check.
    """
    area = pattern if pattern.endswith(".") else f"{pattern}."
    return name == pattern or name.startswith(area)


def select_checks(
    checks: Mapping[str, Check],
    selection: Selection,
    known: Iterable[str] = (),
    always: Iterable[str] = (),
) -> tuple[Check, ...]:
    """Return the selected checks and those named in `always`, in the order of `checks`.

    `always` names the checks without which a command's answer means nothing. `known` holds further
    names that a pattern may match. Raises InputError, with the nearest name, for each pattern that
    matches none.
    """
    names = {*checks, *known}
    _refuse_unknown((*selection.only, *selection.skip), names)
    wanted = set(always)
    for check in checks.values():
        if _is_selected(check, selection):
            wanted.add(check.name)
    return tuple(check for check in checks.values() if check.name in wanted)


def asked_without_check(
    checks: Mapping[str, Check], selection: Selection, known: Iterable[str]
) -> tuple[str, ...]:
    """Return the names of `known` that `--only` asks for where it matches none of `checks`."""
    patterns = [
        pattern for pattern in selection.only if not any(matches(pattern, name) for name in checks)
    ]
    return tuple(sorted(name for name in known if _matches_any(patterns, name)))


def refuse_unknown_tags(selection: Selection, tags: Iterable[str]) -> None:
    """Raise InputError, with the nearest tag, for each tag that no check has."""
    known = sorted(tags)
    problems: list[Problem] = []
    for option, given in (("--tags", selection.tags), ("--skip-tags", selection.skip_tags)):
        for word in given:
            if word not in known:
                message = f"no check has the tag '{word}'"
                problems.append(Problem(message, key=option, hint=nearest(word, known)))
    if problems:
        raise InputError(tuple(problems))


def _refuse_unknown(patterns: Iterable[str], names: Iterable[str]) -> None:
    """Raise InputError with a problem for each pattern that matches no name."""
    problems: list[Problem] = []
    for pattern in patterns:
        if any(matches(pattern, name) for name in names):
            continue
        problems.append(_no_such_check(pattern, names))
    if problems:
        raise InputError(tuple(problems))


def _no_such_check(pattern: str, names: Iterable[str]) -> Problem:
    import difflib

    near = difflib.get_close_matches(pattern, sorted(names), 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else None
    return Problem(f"there is no check {pattern!r}", hint=hint)


def _is_selected(check: Check, selection: Selection) -> bool:
    area = check.name.split(".")[0]
    tags = {*check.tags, area}
    if selection.only and not _matches_any(selection.only, check.name):
        return False
    if selection.tags and tags.isdisjoint(selection.tags):
        return False
    if _matches_any(selection.skip, check.name):
        return False
    return tags.isdisjoint(selection.skip_tags)


def _matches_any(patterns: Iterable[str], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)
