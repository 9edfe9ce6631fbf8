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
    from clusterprep.remote.transports.sudo import SudoPassword

PASSWORD, PASSPHRASE = "CLUSTERPREP_BECOME_PASSWORD", "CLUSTERPREP_KEY_PASSPHRASE"
STDERR = 2
LONGEST = 1024  # bytes of a line with a secret
MOST_OF_SUDO = (
    255  # SUDO_CONV_REPL_MAX before 1.8.28; what is left would be the input of the command
)
UNWRITTEN = {
    "nagios": 3
}  # the exit code of a run that went well and whose files could not be written; else 2


def password(words: dict[str, Any]) -> Callable[[Node], SudoPassword | None]:
    """sudo's password: typed with -K, else given by PASSWORD or its _FD, else none. InputError."""
    from clusterprep.remote.transports.sudo import SudoPassword

    given = take_secret(PASSWORD)
    if words.get("ask_become_pass"):
        given = click.prompt("sudo password", hide_input=True, err=True)
    if len(given.encode("utf-8", "surrogateescape")) > MOST_OF_SUDO:
        raise InputError.of(
            f"no sudo takes a password of more than {MOST_OF_SUDO} bytes", key=PASSWORD
        )
    secret = SudoPassword(given) if given else None
    return lambda node: secret


def passphrases() -> Callable[[str], str]:
    """Asks for the passphrase of a key: once what PASSPHRASE or its _FD gave, then whoever sits here. InputError."""
    given, tried = take_secret(PASSPHRASE), set[str]()

    def ask(prompt: str) -> str:
        if given and prompt not in tried:
            tried.add(prompt)
            return given
        if not sys.stdin.isatty():
            return ""
        return str(click.prompt(prompt, hide_input=True, err=True, default="", show_default=False))

    return ask


def take_secret(name: str) -> str:
    """A secret of the environment, or the first line of the open file whose number `name`_FD says; empty without one.

    Neither stays in the environment, or every process that we start would have it: proxies, srun, local agents and
    the ranks of a job. InputError where both are given, or nothing can be read.
    """
    value, number = os.environ.pop(name, ""), os.environ.pop(f"{name}_FD", "")
    if not number:
        return _one_line(value, name)
    key = f"{name}_FD"
    if value:
        raise InputError.of(f"{name} is given as well; one of them will do", key=key)
    if not number.isdecimal():
        raise InputError.of(
            f"'{number}' is not the number of an open file", key=key, hint=f"{key}=3 … 3< FILE"
        )
    try:
        line = _first_line(int(number))
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "there is no such number"
        raise InputError.of(
            f"file {number} cannot be read: {why}", key=key, hint=f"{key}=3 … 3< FILE"
        ) from None
    if not line:
        raise InputError.of(f"the first line of file {number} is empty", key=key)
    return _one_line(line, key)


def _one_line(text: str, key: str) -> str:
    """Without the end of the line, which variables made from files have."""
    line = text.removesuffix("\n").removesuffix("\r")
    if "\n" in line or len(line) >= LONGEST:
        raise InputError.of("it is not one line, as a password is", key=key)
    return line


def _first_line(number: int) -> str:
    """Byte by byte, since what follows may be for another reader; closed afterwards, but for the standard streams."""
    line = b""
    while (letter := os.read(number, 1)) not in (b"", b"\n") and len(line) < LONGEST:
        line += letter
    if number > STDERR:
        os.close(number)
    return line.decode("utf-8", "surrogateescape")


def confirm(rows: Sequence[ChangeRow]) -> bool:
    for row in rows:
        if row.action != "none":
            click.echo(
                f"{row.action} {row.target} on {', '.join(row.nodes)}\n{click.unstyle(row.diff)}",
                err=True,
            )
    return click.confirm("Write this?", err=True)


def progress(words: dict[str, Any]) -> Any:
    from clusterprep.reports.progress import make_progress

    return make_progress(sys.stderr, color=not words["no_color"] and "NO_COLOR" not in os.environ)


def line_on_stderr(text: str) -> None:
    """One line of somebody else's, without what a terminal would obey; nobody may read it any more."""
    from contextlib import suppress

    from clusterprep.reports.plain import clean
    from clusterprep.reports.progress import READER_GONE, encodable

    with suppress(*READER_GONE):
        sys.stderr.write(f"{encodable(sys.stderr, clean(text))}\n")
        sys.stderr.flush()


def show(words: dict[str, Any], code: int, text: Callable[..., Iterable[str]]) -> None:
    """The same for anything that can be rendered: `text` takes a format, and what its page is like.

    What cannot be written is told at the end, for the report on stdout is worth more than the files besides.
    """
    from clusterprep.reports import select_format
    from clusterprep.reports.files import write

    verbose = max(words["verbose"], 1 if words.get("diff") else 0)
    page = {"color": False, "verbose": verbose, "width": 100, "ascii_only": False}
    troubles = [write(name, text(select_format(name), **page)) for name in words["output"]]
    terminal = sys.stdout.isatty()
    color = terminal and not words["no_color"] and "NO_COLOR" not in os.environ
    width = shutil.get_terminal_size().columns if terminal else 80
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    sys.stdout.writelines(
        text(words["fmt"], color=color, verbose=verbose, width=width, ascii_only=not unicode)
    )
    sys.stdout.flush()
    for trouble in filter(None, troubles):
        line_on_stderr(f"clusterprep: {trouble}")
    raise SystemExit(code or (UNWRITTEN.get(words["fmt"], InputError.code) if any(troubles) else 0))
