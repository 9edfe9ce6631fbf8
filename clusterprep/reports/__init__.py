"""One report, several readers: finds the format that was asked for by the name of its file."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePath
from threading import Thread
from typing import Protocol, cast, runtime_checkable

from clusterprep.errors import InputError
from clusterprep.model import Report
from clusterprep.model.nodeset import nearest

# Every format of the contract and the suffix that `--output` knows it by.
SUFFIXES = {
    "console": ".txt",
    "json": ".json",
    "junit": ".xml",
    "markdown": ".md",
    "prometheus": ".prom",
    "html": ".html",
    "nagios": ".nagios",
}


class Format(Protocol):
    """What a format's module offers: the whole report as text that ends with a newline."""

    def render(
        self, report: Report, *, color: bool, verbose: int, width: int, ascii_only: bool
    ) -> str: ...


@runtime_checkable
class InPieces(Protocol):
    """What a format's module offers besides where its text can be too large to be there as a whole."""

    def pieces(self, report: Report) -> Iterator[str]: ...


@runtime_checkable
class Ending(Protocol):
    """What a format's module offers besides where those who read it have exit codes of their own."""

    def exit_code(self, report: Report) -> int: ...


def exit_code(report: Report, fmt: str) -> int:
    """What a command ends with that shows its report in this format on stdout."""
    module = load_format(fmt)
    return module.exit_code(report) if isinstance(module, Ending) else report.code


def render(
    report: Report,
    fmt: str,
    *,
    color: bool = False,
    verbose: int = 0,
    width: int = 80,
    ascii_only: bool = False,
) -> str:
    """The report in the format `fmt`; InputError when there is none. `ascii_only`: for streams that are not UTF-8."""
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
    """The same text in parts, for those who write it: of a format that grows with what all nodes answered, many."""
    module = load_format(fmt)
    if isinstance(module, InPieces):
        yield from module.pieces(report)
    else:
        yield module.render(
            report, color=color, verbose=verbose, width=width, ascii_only=ascii_only
        )


def load_format(fmt: str) -> Format:
    """The module of a format, imported when first asked for; InputError when there is none."""
    return cast("Format", import_module(_module_of(check_format(fmt))))


def load_early(fmt: str) -> None:
    """Import what will show the report while the nodes are asked, for until then the controller mostly waits."""
    Thread(target=load_format, args=(fmt,), daemon=True).start()


def format_of(filename: str) -> str:
    """The format that a file name's suffix asks for; InputError when it names none."""
    suffix = PurePath(filename).suffix.lower()
    for fmt, known in SUFFIXES.items():
        if suffix == known:
            return check_format(fmt)
    raise InputError.of(
        f"'{filename}': the suffix names no report format",
        hint=f"one of {', '.join(SUFFIXES.values())}",
    )


def check_format(fmt: str) -> str:
    """`fmt` itself when it can be rendered, so that a wrong one is refused before anything has run."""
    if fmt not in SUFFIXES:
        hint = nearest(fmt, SUFFIXES) or f"one of {', '.join(SUFFIXES)}"
        raise InputError.of(f"'{fmt}' is not a report format", hint=hint)
    return fmt


def _module_of(fmt: str) -> str:
    """`json_report` stands for `json`: a module named after a standard one would be mistaken for it."""
    for name in (f"{__name__}.{fmt}", f"{__name__}.{fmt}_report"):
        if find_spec(name):
            return name
    return ""
