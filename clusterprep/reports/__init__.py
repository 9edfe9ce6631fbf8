"""Render one report in several formats. The suffix of a file name selects the format.

`render(report, select_format("out.xml"))` returns the report as JUnit XML. Each format is a module
of its own. Imports `inventory` and what stands before it. Begin with `json_report` or `console`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePath
from typing import Protocol, cast, runtime_checkable

from clusterprep.errors import InputError
from clusterprep.model import Report
from clusterprep.model.nodeset import nearest

# Every format of the contract and the suffix by which `--output` selects it.
SUFFIXES = {
    "console": ".txt",
    "json": ".json",
    "junit": ".xml",
    "markdown": ".md",
    "prometheus": ".prom",
    "html": ".html",
    "svg": ".svg",
    "nagios": ".nagios",
}


class Format(Protocol):
    """The module of a format: renders the whole report as text that ends with a newline."""

    def render(
        self, report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool
    ) -> str: ...


@runtime_checkable
class InPieces(Protocol):
    """The module of a format whose text may be too large to hold in memory as a whole."""

    def pieces(self, report: Report) -> Iterator[str]: ...


@runtime_checkable
class Ending(Protocol):
    """The module of a format whose readers expect exit codes of their own."""

    def exit_code(self, report: Report) -> int: ...


def exit_code(report: Report, fmt: str) -> int:
    """Return the exit code of a command that prints its report in this format on stdout."""
    module = load_format(fmt)
    if isinstance(module, Ending):
        return module.exit_code(report)
    return report.code


def render(
    report: Report,
    fmt: str,
    *,
    color: bool = False,
    verbose: int = 0,
    width: int = 80,
    ascii_only: bool = False,
) -> str:
    """Return the report in the format `fmt`. Raise InputError if there is no such format.

    `ascii_only` is for streams that are not UTF-8.
    """
    return load_format(fmt).render(
        report, color=color, verbose=verbose, width=width, ascii_only=ascii_only
    )


def pieces(
    report: Report,
    fmt: str,
    *,
    color: bool = False,
    verbose: int = 0,
    width: int = 80,
    ascii_only: bool = False,
) -> Iterator[str]:
    """Yield the text of `render` in parts, so that a writer never holds all of it.

    Formats that grow with the answers of all nodes come in many parts, the others in one.
    """
    module = load_format(fmt)
    if isinstance(module, InPieces):
        yield from module.pieces(report)
        return
    yield module.render(
        report,
        color=color,
        verbose=verbose,
        width=width,
        ascii_only=ascii_only,
    )


def load_format(fmt: str) -> Format:
    """Import and return the module of a format. Raise InputError if there is no such format."""
    name = _module_of(check_format(fmt))
    return cast("Format", import_module(name))


def select_format(filename: str) -> str:
    """Return the format that a file name's suffix selects. Raise InputError if there is none."""
    suffix = PurePath(filename).suffix.lower()
    for fmt, suffix_of_format in SUFFIXES.items():
        if suffix == suffix_of_format:
            return check_format(fmt)
    choices = ", ".join(SUFFIXES.values())
    raise InputError.of(
        f"'{filename}': the suffix names no report format", hint=f"one of {choices}"
    )


def check_format(fmt: str) -> str:
    """Return `fmt` if it can be rendered, so that a wrong format is refused before anything runs.

    Raises InputError if it cannot.
    """
    if fmt in SUFFIXES:
        return fmt
    hint = nearest(fmt, SUFFIXES)
    if not hint:
        hint = f"one of {', '.join(SUFFIXES)}"
    raise InputError.of(f"'{fmt}' is not a report format", hint=hint)


def _module_of(fmt: str) -> str:
    """Return the full name of a format's module: `….reports.junit`, but `….reports.json_report`.

    A module called `json` or `html` would be mistaken for the standard one.
    """
    name = f"{__name__}.{fmt}"
    if find_spec(name):
        return name
    return f"{name}_report"
