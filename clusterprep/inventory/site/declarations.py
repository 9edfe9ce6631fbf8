"""Read checks.d/*.yaml: the checks that a site declares."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from clusterprep.checks import Check
from clusterprep.errors import InputError, Problem, printable
from clusterprep.facts import Fact
from clusterprep.inventory.document import Document, read_document
from clusterprep.inventory.schema import check_against_schema
from clusterprep.inventory.site.declared import (
    FILE_LIMIT,
    Declaration,
    check_of,
    check_wanted,
    endless_example,
    fact_of,
    wrong_examples,
)
from clusterprep.inventory.site.names import NAME, files_in, name_of_file, names_in
from clusterprep.inventory.site.trust import Distrusted, trusted_file
from clusterprep.model.extensions import Broken
from clusterprep.model.units import parse_duration
from clusterprep.remedies import check_site_template
from clusterprep.survey.parse_process import ParseProcess

SUFFIXES = (".yaml", ".yml")
SOURCES = ("file", "command", "module")
LONGEST_LIMIT = 60.0  # seconds for one command
MOST_COMMAND = 4096  # characters of all words of a command
# Below these keys scalars are text as written: 2.10 stays "2.10".
_TEXTS = dict.fromkeys(
    ("name", "title", "file", "command", "module", "why", "remedy", "advice", "limit", "examples"),
    True,
)
_OPERANDS = ("equals", "at_least", "at_most", "one_of", "matches", "version", "same")
WRITTEN: Any = [
    {
        **_TEXTS,
        "take": True,
        "when": True,
        "expect": dict.fromkeys(_OPERANDS, True),
    }
]
# `take: loaded` and the like, which need no argument.
_PLAIN_FORMS = {
    "file": ("text",),
    "command": ("text", "exit_code"),
    "module": ("loaded", "version"),
}
_FORMS_WITH_ARGUMENT = {
    "file": ("regex", "json"),
    "command": ("regex", "json"),
    "module": ("parameter",),
}


class Declared(Struct, frozen=True):
    """One check of a file, or why it is none."""

    check: Check | None = None
    fact: Fact | None = None
    group: str = ""
    place: str = ""
    broken: Broken | None = None


def read_declarations(folder: Path) -> Iterator[Declared]:
    """Yield the checks of all files of a folder `checks.d`, in the order of the files' names."""
    try:
        paths = files_in(folder, SUFFIXES)
    except OSError as error:
        yield from _broken_file(folder, str(folder), f"it cannot be read: {error.strerror}")
        return
    with contextlib.closing(ParseProcess()) as parser:
        for path in paths:
            yield from read_file(path, parser)


def read_file(path: Path, parser: ParseProcess) -> Iterator[Declared]:
    """Yield the checks of one file. What is wrong with it is yielded as broken checks."""
    try:
        trusted_file(path)
        document = read_document(path, WRITTEN, "a list of site checks", top="list")
    except Distrusted as error:
        yield from _broken_file(path, str(path), f"it is not used: {error}")
        return
    except OSError as error:
        yield from _broken_file(path, str(path), f"it cannot be read: {error.strerror}")
        return
    except InputError as error:
        for problem in error.problems:
            yield from _broken_file(path, _place_of(problem), _text_of(problem))
        return
    invalid = check_against_schema(document, "site_checks", document.data)
    spoilt = {place[0] for place in invalid if place}
    for number, row in enumerate(document.data):
        declaration = None
        if number not in spoilt:
            declaration = _declaration(document, number, row, parser)
        problems = _problems_of(document, number)
        if declaration is None or problems:
            yield Declared(broken=_broken_row(document, number, row, problems))
        else:
            yield Declared(
                check_of(declaration),
                fact_of(declaration),
                declaration.group,
                declaration.place,
            )


# ---------------------------------------------------------------- what is broken


def _broken_file(path: Path, place: str, why: str) -> Iterator[Declared]:
    """Yield every check that the file seems to declare as broken, or one in the file's name."""
    for name in names_in(path) or [name_of_file(path)]:
        yield Declared(broken=Broken(name, place, why))


def _broken_row(document: Document, number: int, row: Any, problems: list[Problem]) -> Broken:
    name = row.get("name") if isinstance(row, Mapping) else None
    if not isinstance(name, str) or not NAME.fullmatch(name):
        name = name_of_file(Path(document.path))
    place = f"{document.path}:{document.line((number,))}"
    if problems:
        place = _place_of(problems[0])
    texts = dict.fromkeys(_text_of(problem) for problem in problems)
    why = "; ".join(texts) or "it cannot be read"
    return Broken(name, place, why)


def _place_of(problem: Problem) -> str:
    return f"{problem.file}:{problem.line}" if problem.line else str(problem.file)


def _text_of(problem: Problem) -> str:
    """Return a problem without its place: the key, what is wrong, what to do."""
    _, _, key = (problem.key or "").partition(".")  # without the number of the row
    return printable(str(Problem(problem.message, key=key or None, hint=problem.hint)))


def _problems_of(document: Document, number: int) -> list[Problem]:
    """Return what was said about one row of the document, or about the document as a whole."""
    start = f"[{number}]"
    found = []
    for problem in dict.fromkeys(document.problems):
        key = problem.key or ""
        if key == start or key.startswith(f"{start}.") or not key:
            found.append(problem)
    return found


# ---------------------------------------------------------------- one check


def _declaration(
    document: Document, number: int, row: Mapping[str, Any], parser: ParseProcess
) -> Declaration | None:
    """Return the declaration of a row; what is wrong with it is complained about."""

    def complain(message: str, *keys: str | int, hint: str | None = None) -> None:
        document.complain((number, *keys), message, hint)

    sources = [key for key in SOURCES if key in row]
    if len(sources) != 1:
        seen = " and ".join(sources) or "none of them"
        complain(f"a check reads one of file, command and module; this one has {seen}")
        return None
    source: Any = sources[0]
    taken = _read_take(source, row, complain)
    if taken is None:
        return None
    form, argument = taken
    ((meaning, operand),) = row["expect"].items()
    subject = tuple(row["command"]) if source == "command" else (row[source],)
    when = row.get("when", {})
    examples = row.get("examples", {})
    remedy = row.get("remedy", row.get("advice", ""))
    declaration = Declaration(
        name=row["name"],
        title=row.get("title", row["name"]),
        source=source,
        subject=subject,
        meaning=meaning,
        wanted=_operand(operand),
        place=f"{document.path}:{document.line((number,))}",
        form=form,
        argument=argument,
        limit=_read_limit(source, row, complain),
        missing=row.get("missing", "fail"),
        severity=row.get("severity", "error"),
        follows=tuple(row.get("follows", ())),
        why=row.get("why", ""),
        remedy=remedy,
        is_command="remedy" in row,
        group=when.get("group", ""),
        with_file=when.get("file", ""),
        with_module=when.get("module", ""),
        passes=tuple(examples.get("pass", ())),
        fails=tuple(examples.get("fail", ())),
        moves=row.get("moves", False),
    )
    _complain_of(declaration, row, complain)
    if _problems_of(document, number):
        return None
    _complain_of_examples(declaration, parser, complain)
    return declaration


def _complain_of_examples(
    declaration: Declaration, parser: ParseProcess, complain: Callable[..., None]
) -> None:
    """Complain of examples that do not do as they say, and of one over which no end is found."""
    endless = endless_example(declaration, parser.parse)
    if endless is not None:
        key, position = endless
        complain("the expression takes too long for this example", "examples", key, position)
        return
    for key, position, message in wrong_examples(declaration):
        complain(message, "examples", key, position)


def _operand(value: Any) -> str:
    """Return what is wanted as text: lists with commas, true and false as words."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(value)
    return str(value)


def _read_take(
    source: str, row: Mapping[str, Any], complain: Callable[..., None]
) -> tuple[Any, str] | None:
    """Return how a value is taken from the answer, and the argument of that."""
    plain = _PLAIN_FORMS[source]
    take = row.get("take", plain[0])
    if isinstance(take, str):
        if take in plain:
            return take, ""
        form = take
    else:
        ((form, argument),) = take.items()
        if form in _FORMS_WITH_ARGUMENT[source]:
            return form, argument
    known = ", ".join((*plain, *(f"{name}: …" for name in _FORMS_WITH_ARGUMENT[source])))
    complain(f"of a {source} can be taken: {known}; seen {form}", "take")
    return None


def _read_limit(source: str, row: Mapping[str, Any], complain: Callable[..., None]) -> float:
    """Return the seconds that the read may take."""
    if "limit" not in row:
        return FILE_LIMIT
    if source == "module":
        complain("a kernel module has no limit: its files answer at once", "limit")
        return FILE_LIMIT
    try:
        seconds = parse_duration(row["limit"])
    except ValueError as error:
        complain(str(error), "limit")
        return FILE_LIMIT
    if not 0 < seconds <= LONGEST_LIMIT:
        complain(f"expected at most {LONGEST_LIMIT:g} s; seen '{row['limit']}'", "limit")
    return seconds


def _complain_of(
    declaration: Declaration, row: Mapping[str, Any], complain: Callable[..., None]
) -> None:
    """Complain of what the schema cannot express."""
    if not _complain_of_expressions(declaration, complain):
        return
    _complain_of_source(declaration, row, complain)
    try:
        check_wanted(declaration)
    except ValueError as error:
        complain(str(error), "expect", declaration.meaning)
    _complain_of_remedy(declaration, row, complain)


def _complain_of_expressions(declaration: Declaration, complain: Callable[..., None]) -> bool:
    """Complain of an expression that is none. Return whether all can be used."""
    expressions = []
    if declaration.form == "regex":
        expressions.append((declaration.argument, ("take", "regex")))
    if declaration.meaning == "matches":
        expressions.append((declaration.wanted, ("expect", "matches")))
    for expression, keys in expressions:
        try:
            re.compile(expression)
        except (re.error, OverflowError, RecursionError) as error:
            complain(f"not a regular expression: {error}", *keys)
            return False
    return True


def _complain_of_source(
    declaration: Declaration, row: Mapping[str, Any], complain: Callable[..., None]
) -> None:
    """Complain of a meaning that does not fit what is read, and of a command that is too long."""
    meaning = declaration.meaning
    is_command = declaration.source == "command"
    if meaning == "exists" and is_command and declaration.form in ("text", "exit_code"):
        complain("what a command prints is always there; expected another meaning", "expect")
    if is_command and sum(map(len, row["command"])) > MOST_COMMAND:
        complain(f"a command has at most {MOST_COMMAND:,} characters", "command")
    if meaning == "one_of" and any("," in word for word in row["expect"]["one_of"]):
        complain("a value with a comma cannot be one of several", "expect", "one_of")


def _complain_of_remedy(
    declaration: Declaration, row: Mapping[str, Any], complain: Callable[..., None]
) -> None:
    if "remedy" in row and "advice" in row:
        complain("a check has either remedy, a line for a shell, or advice, a sentence", "advice")
    try:
        check_site_template(declaration.remedy)
    except ValueError as error:
        complain(str(error), "remedy" if declaration.is_command else "advice")
