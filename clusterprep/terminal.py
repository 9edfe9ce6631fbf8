"""What is shown to the person at the terminal and asked there: reports, progress, passwords, a yes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from clusterprep.errors import InputError

if TYPE_CHECKING:
    from clusterprep.model import ChangeRow, Node

UNWRITTEN = {"nagios": 3}  # the exit code of a run that went well and whose files could not be written; else 2


def password(words: dict[str, Any]) -> Callable[[Node], str | None]:
    secret = os.environ.get("CLUSTERPREP_BECOME_PASSWORD")
    if words.get("ask_become_pass"):
        secret = click.prompt("sudo password", hide_input=True, err=True)
    return lambda node: secret


def ask_passphrase(prompt: str) -> str:
    if not sys.stdin.isatty():
        return ""
    return str(click.prompt(prompt, hide_input=True, err=True, default="", show_default=False))


def confirm(rows: Sequence[ChangeRow]) -> bool:
    for row in rows:
        if row.action != "none":
            click.echo(f"{row.action} {row.target} on {', '.join(row.nodes)}\n{click.unstyle(row.diff)}", err=True)
    return click.confirm("Write this?", err=True)


def progress(words: dict[str, Any]) -> Any:
    from clusterprep.reports.progress import progress_on

    return progress_on(sys.stderr, color=not words["no_color"] and "NO_COLOR" not in os.environ)


def line_on_stderr(text: str) -> None:
    """One line of somebody else's, without what a terminal would obey; nobody may read it any more."""
    from contextlib import suppress

    from clusterprep.reports.plain import clean
    from clusterprep.reports.progress import GONE, in_encoding_of

    with suppress(*GONE):
        sys.stderr.write(f"{in_encoding_of(sys.stderr, clean(text))}\n")
        sys.stderr.flush()


def show(words: dict[str, Any], code: int, text: Callable[..., Iterable[str]]) -> None:
    """The same for anything that can be rendered: `text` takes a format, and what its page is like.

    What cannot be written is told at the end, for the report on stdout is worth more than the files besides.
    """
    from clusterprep.outputs import write
    from clusterprep.reports import format_of

    verbose = max(words["verbose"], 1 if words.get("diff") else 0)
    page = {"color": False, "verbose": verbose, "width": 100, "ascii_only": False}
    troubles = [write(name, text(format_of(name), **page)) for name in words["output"]]
    terminal = sys.stdout.isatty()
    color = terminal and not words["no_color"] and "NO_COLOR" not in os.environ
    width = shutil.get_terminal_size().columns if terminal else 80
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    sys.stdout.writelines(text(words["fmt"], color=color, verbose=verbose, width=width, ascii_only=not unicode))
    sys.stdout.flush()
    for trouble in filter(None, troubles):
        line_on_stderr(f"clusterprep: {trouble}")
    raise SystemExit(code or (UNWRITTEN.get(words["fmt"], InputError.code) if any(troubles) else 0))
