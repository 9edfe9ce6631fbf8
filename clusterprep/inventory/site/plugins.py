"""Import the Python files of a site: checks, facts and resources as CONTRIBUTING.md describes them.

A file that raises is broken and stops nothing else. What its functions raise later becomes unknown.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from clusterprep.checks import Check
from clusterprep.errors import printable
from clusterprep.facts import Fact
from clusterprep.inventory.site.names import NAME, files_in, name_of_file, names_in
from clusterprep.inventory.site.presence import GROUP, has_entry_points
from clusterprep.inventory.site.trust import Distrusted, trusted_path
from clusterprep.model import Fleet, Inventory, Node, Read
from clusterprep.model.extensions import SITE_MODULES, Broken
from clusterprep.remote.untrusted import shortened


class Plugin(Struct, frozen=True):
    """What one file has: checks, facts and at most one resource, or why it cannot be used."""

    place: str
    checks: tuple[Check, ...] = ()
    facts: tuple[Fact, ...] = ()
    resource: Any = None
    broken: tuple[Broken, ...] = field(default=())


def read_folder(folder: Path) -> Iterator[Plugin]:
    """Yield what each Python file of a folder has, in the order of the files' names."""
    for path in files_in(folder, (".py",)):
        yield read_file(path)


def read_file(path: Path) -> Plugin:
    """Run a file and return what it has. A file that others may change is not run."""
    try:
        trusted_path(path.parent)
        trusted_path(path)
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
    for value in values.values():
        if isinstance(value, Check):
            checks.append(_guarded_check(value, place))
        elif isinstance(value, Fact):
            facts.append(value)
    return Plugin(place, tuple(checks), tuple(facts), values.get("RESOURCE"))


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
        except Exception as error:  # noqa: BLE001
            raise ValueError(f"{place} does not take '{text}': {_raised(error)}") from None

    def grave(fleet: Fleet, node: Node) -> bool:
        try:
            return bool(check.grave(fleet, node))
        except Exception:  # noqa: BLE001 - what cannot be told is taken as grave
            return True

    return replace(check, wants=wants, grave=grave, source=check.source or place)


def guarded_fact(fact: Fact) -> Fact:
    """Return the fact such that what its `reads` raises makes it unknown, and ends no command."""
    failures: list[str] = []

    def reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
        try:
            found = tuple(fact.reads(node, inventory))
            for read in found:
                _check_read(read)
        except Exception as error:  # noqa: BLE001
            failures.append(_raised(error))
            return ()
        return found

    def parse(*answers: Any) -> Any:
        if failures and not answers:
            raise ValueError(f"its reads could not be made: {failures[0]}")
        return fact.parse(*answers)

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
