"""Import the Python files of a site: checks, facts and resources as CONTRIBUTING.md describes them.

A file that raises is broken and stops nothing else. What its functions raise later becomes unknown.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof
from clusterprep.errors import printable
from clusterprep.facts import Fact
from clusterprep.inventory.site.names import NAME, files_in, name_of_file, names_in
from clusterprep.inventory.site.presence import GROUP, has_entry_points
from clusterprep.inventory.site.trust import Distrusted, trusted_file
from clusterprep.model import Fleet, Inventory, Node, Read, Severity, Verdict
from clusterprep.model.extensions import SITE_MODULES, Broken
from clusterprep.remedies import Remedy
from clusterprep.remote.untrusted import shortened


class Plugin(Struct, frozen=True):
    """What one file has: checks, facts and at most one resource, or why it cannot be used."""

    place: str
    checks: tuple[Check, ...] = ()
    facts: tuple[Fact, ...] = ()
    resource: Any = None
    broken: tuple[Broken, ...] = ()


def read_folder(folder: Path) -> Iterator[Plugin]:
    """Yield what each Python file of a folder has, in the order of the files' names."""
    try:
        paths = files_in(folder, (".py",))
    except OSError as error:
        yield _broken(folder, str(folder), f"it cannot be read: {error.strerror}")
        return
    for path in paths:
        yield read_file(path)


def read_file(path: Path) -> Plugin:
    """Run a file and return what it has. A file that others may change is not run."""
    try:
        trusted_file(path)
        source = path.read_bytes()
    except Distrusted as error:
        return _broken(path, str(path), f"its code is not run: {error}")
    except OSError as error:
        return _broken(path, str(path), f"it cannot be read: {error.strerror}")
    name = _module_name(path)
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # where annotations of its functions are looked up
    try:
        # Without a file of bytecode: what lies in __pycache__ may be another user's.
        exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102
    except BaseException as error:  # noqa: BLE001 - also sys.exit() of it stops nothing else
        del sys.modules[name]
        line = _line_of(error, str(path))
        return _broken(path, f"{path}:{line}" if line else str(path), _raised(error))
    return _plugin_of(vars(module), str(path))


def _module_name(path: Path) -> str:
    mark = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:12]
    return f"{SITE_MODULES}{mark}_{path.stem}"


def _plugin_of(values: Mapping[str, Any], place: str) -> Plugin:
    checks: list[Check] = []
    facts: list[Fact] = []
    broken: list[Broken] = []
    for value in values.values():
        if not isinstance(value, Check | Fact):
            continue
        problem = field_problem(value)
        if problem:
            name = value.name if name_problem(value.name) is None else name_of_file(Path(place))
            broken.append(Broken(name, place, problem))
        elif isinstance(value, Check):
            checks.append(_guarded_check(value, place))
        else:
            facts.append(value)
    return Plugin(
        place,
        tuple(checks),
        tuple(facts),
        values.get("RESOURCE"),
        tuple(broken),
    )


def _broken(path: Path, place: str, why: str) -> Plugin:
    names = names_in(path) or [name_of_file(path)]
    return Plugin(str(path), broken=tuple(Broken(name, place, why) for name in names))


def _raised(error: BaseException) -> str:
    """Return what a file raised, for a message."""
    what = error.msg if isinstance(error, SyntaxError) else error
    text = f"{type(error).__name__}: {what}"
    return printable(shortened(text))


def _line_of(error: BaseException, file: str) -> int | None:
    """Return the line of a file at which an error was raised, None if it is not in there."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    return lines[-1] if lines else None


# ---------------------------------------------------------------- what its fields hold


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


def _is_severity(value: object) -> bool:
    return value in get_args(Severity)


def _is_remedy(value: object) -> bool:
    return isinstance(value, Remedy)


# Fields by name: what each has to hold, in words and as a function.
_Fields = Mapping[str, tuple[str, Callable[[object], bool]]]
_TEXT = ("a text", _is_text)
_TEXTS = ("a tuple of texts", _are_texts)
_FUNCTION = ("a function", callable)
_SEVERITY = (" or ".join(get_args(Severity)), _is_severity)
_REMEDY = ("what shell_line() or sentence() of clusterprep.remedies returns", _is_remedy)
_CHECK_FIELDS: _Fields = {
    "facts": _TEXTS,
    "judge": _FUNCTION,
    "severity": _SEVERITY,
    "title": _TEXT,
    "why": _TEXT,
    "how": _TEXT,
    "remedy": _REMEDY,
    "tags": _TEXTS,
    "grave": _FUNCTION,
    "wants": _FUNCTION,
    "uses": _TEXTS,
    "proof": ("a Proof", lambda value: value is None or isinstance(value, Proof)),
    "grade": _TEXT,
    "follows": _TEXTS,
    "source": _TEXT,
}
_FACT_FIELDS: _Fields = {
    "reads": _FUNCTION,
    "parse": _FUNCTION,
    "narrow": ("a function", lambda value: value is None or callable(value)),
    "pieces": ("an empty tuple", lambda value: value == ()),
}
_OUTCOME_FIELDS: _Fields = {
    "verdict": (" or ".join(get_args(Verdict)), lambda value: value in get_args(Verdict)),
    "nodes": _TEXTS,
    "message": _TEXT,
    "seen": _TEXT,
    "wanted": _TEXT,
    "remedy": (_REMEDY[0], lambda value: value is None or _is_remedy(value)),
    "reason": ("a text", lambda value: value is None or _is_text(value)),
    "severity": (_SEVERITY[0], lambda value: value is None or _is_severity(value)),
}


def field_problem(value: Check | Fact) -> str | None:
    """Return what is wrong with a field of a check or a fact of a plug-in, or None."""
    return _problem_of(value, _CHECK_FIELDS if isinstance(value, Check) else _FACT_FIELDS)


def _problem_of(value: object, fields: _Fields) -> str | None:
    for name, (wanted, is_right) in fields.items():
        seen = getattr(value, name)
        if not is_right(seen):
            shown = printable(f"{seen!r:.80}")
            return f"{name}: expected {wanted}; seen {shown}"
    return None


# ---------------------------------------------------------------- what its functions raise later


def name_problem(name: object) -> str | None:
    """Return what is wrong with the name of a check or a fact of a plug-in, or None."""
    if isinstance(name, str) and NAME.fullmatch(name):
        return None
    return f"expected a name such as site.thing of lower-case letters; seen {name!r:.80}"


def _guarded_check(check: Check, place: str) -> Check:
    """Return the check with its file; what `wants` and `grave` raise ends no command."""

    def wants(text: str) -> object:
        try:
            return check.wants(text)
        except ValueError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001
            raise ValueError(f"{place} does not take '{text}': {_raised(error)}") from None

    def grave(fleet: Fleet, node: Node) -> bool:
        try:
            return bool(check.grave(fleet, node))
        except (Exception, SystemExit):  # noqa: BLE001 - what cannot be told is taken as grave
            return True

    def judge(context: CheckContext) -> Iterator[Outcome]:
        try:
            for outcome in check.judge(context):
                _refuse_wrong_outcome(outcome)
                yield outcome
        except SystemExit as error:  # it would end the command as if all were well
            raise RuntimeError(_raised(error)) from None

    return replace(
        check,
        judge=judge,
        wants=wants,
        grave=grave,
        source=check.source or place,
    )


def _refuse_wrong_outcome(outcome: object) -> None:
    """Raise TypeError for what a judge of a plug-in returned and no report can show."""
    if not isinstance(outcome, Outcome):
        raise TypeError(f"expected an Outcome; seen {outcome!r:.80}")
    problem = _problem_of(outcome, _OUTCOME_FIELDS)
    if problem:
        raise TypeError(problem)


def guarded_fact(fact: Fact) -> Fact:
    """Return the fact such that what its `reads` raises makes it unknown, and ends no command."""
    failures: list[str] = []

    def reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
        try:
            found = tuple(fact.reads(node, inventory))
            for read in found:
                _check_read(read)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            failures.append(_raised(error))
            return ()
        return found

    def parse(*answers: Any) -> Any:
        if failures and not answers:
            raise ValueError(f"its reads could not be made: {failures[0]}")
        try:
            return fact.parse(*answers)
        except SystemExit as error:
            raise ValueError(_raised(error)) from None

    if isinstance(fact.parse, FunctionType):
        functools.update_wrapper(parse, fact.parse)  # its value is checked by its annotation
    return replace(fact, reads=reads, parse=parse)


def _check_read(read: object) -> None:
    """Raise TypeError or ValueError for what cannot be sent to a node."""
    if not isinstance(read, Read):
        raise TypeError(f"{read!r:.80} is no Read")
    hash(read)
    json.dumps([read.kind, read.args, read.limit])


# ---------------------------------------------------------------- installed packages


def read_packages() -> Iterator[Plugin]:
    """Yield what installed packages offer as entry points of the group `clusterprep.checks`.

    An entry point names a module, or one check or fact in it. Packages stand where
    clusterprep itself does, so whose they are is not asked.
    """
    if not has_entry_points():
        return
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        package = point.dist.name if point.dist is not None else point.value
        place = f"{package} (entry point {point.name} = {point.value})"
        try:
            found = point.load()
        except BaseException as error:  # noqa: BLE001 - also sys.exit() of it stops nothing else
            stem = name_of_file(Path(f"{point.name}.py"))
            yield Plugin(place, broken=(Broken(stem, place, _raised(error)),))
            continue
        values = vars(found) if isinstance(found, ModuleType) else {"found": found}
        yield _plugin_of(values, place)
