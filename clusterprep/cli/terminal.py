"""Show reports and progress on the terminal, and ask there for passwords and confirmation."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from clusterprep.cli.output import print_result, say, unwritten_code
from clusterprep.errors import InputError
from clusterprep.runtime.deadline import asking, conclude

if TYPE_CHECKING:
    from clusterprep.cli.commands.opening import Attendance
    from clusterprep.model import ChangeRow, Node
    from clusterprep.remote.transports.sudo import SudoPassword

PASSWORD, PASSPHRASE = "CLUSTERPREP_BECOME_PASSWORD", "CLUSTERPREP_KEY_PASSPHRASE"
STDERR = 2
LONGEST = 1024  # bytes of a line with a secret


def attendance(params: Mapping[str, Any]) -> Attendance:
    """Return how a command talks with the user at the terminal. Raises InputError."""
    from clusterprep.cli.commands.opening import Attendance

    return Attendance(
        passphrase=passphrases(),
        password=lambda nodes: password(params, nodes),
        progress=lambda: progress(params),
        confirm=confirm if params.get("ask") else lambda rows: True,
    )


# ---------------------------------------------------------------- secrets


def password(
    params: Mapping[str, Any], nodes: Iterable[Node] = ()
) -> Callable[[Node], SudoPassword | None]:
    """Return a function that gives sudo's password for a node, or None.

    The password is typed with -K, else it comes from PASSWORD or PASSWORD_FD. Raises InputError for
    a password that sudo cannot take, where it would have to go to one of `nodes` through Slurm, and
    with -K where there is no terminal.
    """
    from clusterprep.cli.commands.sudo_password import password_of_all, refuse_through_slurm

    text = take_secret(PASSWORD)
    if text or params.get("ask_become_pass"):
        refuse_through_slurm(nodes, PASSWORD)
    if params.get("ask_become_pass"):
        _refuse_without_terminal()
        with asking():
            text = click.prompt("sudo password", hide_input=True, err=True)
    return password_of_all(text, PASSWORD)


def _refuse_without_terminal() -> None:
    """Raise InputError if a prompt would find no terminal: getpass would then read any stdin."""
    try:
        Path("/dev/tty").open("rb").close()
    except OSError:
        if sys.stdin is None or not sys.stdin.isatty():
            hint = f"give the password in {PASSWORD}, or in a file with {PASSWORD}_FD"
            message = "there is no terminal to ask for the password at"
            raise InputError.of(message, key="--ask-become-pass", hint=hint) from None


def passphrases() -> Callable[[str], str]:
    """Return a function that asks for the passphrase of a key.

    Its first answer for a key is that of PASSPHRASE or PASSPHRASE_FD, if there is one; then it
    prompts the user. Raises InputError.
    """
    from clusterprep.reports.plain import clean

    given = take_secret(PASSPHRASE)
    tried: set[str] = set()

    def ask(prompt: str) -> str:
        if given and prompt not in tried:
            tried.add(prompt)
            return given
        if not sys.stdin.isatty():
            return ""
        typed = click.prompt(
            clean(prompt),  # it names a file of ssh_config
            hide_input=True,
            err=True,
            default="",
            show_default=False,
        )
        return str(typed)

    return ask


def take_secret(name: str) -> str:
    """Return the secret in the variable `name`, or in the first line of the open file `name`_FD.

    Returns "" if neither is set. Both are removed from the environment, because every process that
    we start would inherit them: proxies, srun, local agents and the ranks of a job. Raises
    InputError if both are set, or the file cannot be read.
    """
    value = os.environ.pop(name, "")
    key = f"{name}_FD"
    number = os.environ.pop(key, "")
    if not number:
        return _one_line(value, name)
    if value:
        raise InputError.of(f"{name} is given as well; one of them will do", key=key)
    example = f"{key}=3 … 3< FILE"
    if not number.isdecimal():
        raise InputError.of(f"'{number}' is not the number of an open file", key=key, hint=example)
    try:
        line = _first_line(int(number))
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "there is no such number"
        message = f"file {number} cannot be read: {why}"
        raise InputError.of(message, key=key, hint=example) from None
    if not line:
        raise InputError.of(f"the first line of file {number} is empty", key=key)
    return _one_line(line, key)


def _one_line(text: str, key: str) -> str:
    """Return a line without its end, which a variable made from a file has. Raises InputError."""
    line = text.removesuffix("\n").removesuffix("\r")
    if "\n" in line or len(line) >= LONGEST:
        raise InputError.of("it is not one line, as a password is", key=key)
    return line


def _first_line(number: int) -> str:
    """Return the first line of the open file with this descriptor; close all but standard streams.

    The line is read byte by byte, because what follows may be for another reader.
    """
    line = b""
    while len(line) < LONGEST:
        byte = os.read(number, 1)
        if byte in (b"", b"\n"):
            break
        line += byte
    if number > STDERR:
        os.close(number)
    return line.decode("utf-8", "surrogateescape")


# ---------------------------------------------------------------- progress and confirmation


def confirm(rows: Sequence[ChangeRow]) -> bool:
    """Show what would be changed and return True if the user agrees."""
    for row in rows:
        if row.action == "none":
            continue
        names = ", ".join(row.nodes)
        say(f"{row.action} {row.target} on {names}")
        # Line by line: the difference has lines of a node, which the user is about to approve.
        say(row.diff)
    with asking():
        return click.confirm("Write this?", err=True)


def progress(params: Mapping[str, Any]) -> Any:
    """Return the progress display that suits stderr."""
    from clusterprep.reports.progress_display import make_progress

    quiet = bool(params.get("quiet"))
    return make_progress(sys.stderr, quiet=quiet, color=_wants_color(params))


# ---------------------------------------------------------------- reports


def show(params: Mapping[str, Any], code: int, render: Callable[..., Iterable[str]]) -> NoReturn:
    """Write the files of --output and print to stdout, then exit.

    `render(format, color=, verbose=, width=, ascii_only=)` returns the text in pieces. Files that
    cannot be written are reported at the end, because the report on stdout matters more.
    """
    verbose = params["verbose"]
    if params.get("diff"):
        verbose = max(verbose, 1)
    conclude()
    problems = _write_files(params["output"], render, verbose)
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 80
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    color = is_terminal and _wants_color(params)
    ascii_only = encoding != "utf8"
    if params.get("quiet"):
        from clusterprep.reports.page import QUIET

        verbose = QUIET
    pieces = render(
        params["fmt"],
        color=color,
        verbose=verbose,
        width=width,
        ascii_only=ascii_only,
    )
    code = print_result(pieces, code, params["fmt"])
    for problem in problems:
        say(f"clusterprep: {problem}")
    if problems:
        code = unwritten_code(code, params["fmt"])
    raise SystemExit(code)


def _write_files(
    names: Iterable[str], render: Callable[..., Iterable[str]], verbose: int
) -> list[str]:
    """Write a report to each file, in the format of its suffix, and return what went wrong."""
    from clusterprep.reports import select_format
    from clusterprep.reports.files import write

    problems: list[str] = []
    for name in names:
        text = render(
            select_format(name), color=False, verbose=verbose, width=100, ascii_only=False
        )
        problem = write(name, text)
        if problem:
            problems.append(problem)
    return problems


def _wants_color(params: Mapping[str, Any]) -> bool:
    is_dumb = os.environ.get("TERM") == "dumb"
    return not (params["no_color"] or is_dumb or "NO_COLOR" in os.environ)
