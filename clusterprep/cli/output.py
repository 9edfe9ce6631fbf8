"""Write results to stdout and sentences to stderr: all that the command line shows goes this way.

Either may be full, closed or gone. The exit code is that of the command, however its output is
read: a reader that has enough is no failure (`check … | head`), and a full disk is said, in words
and as a code.

What is shown may quote nodes and files of others, whose escapes would act on the terminal: set its
clipboard, clear the screen over a difference that is being approved. So sentences lose their
control characters here, line by line, and formats of reports remove them where they escape.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable

from clusterprep.cli.exit_codes import OK, UNKNOWN
from clusterprep.errors import InputError
from clusterprep.runtime.deadline import conclude

# Exit codes by format if a run succeeded and its result could not be written; else that of
# InputError. Nagios takes every code but its own for an outage.
UNWRITTEN = {"nagios": UNKNOWN}
TAB = "\t"


def print_result(pieces: Iterable[str], code: int, fmt: str = "") -> int:
    """Write the result of a command to stdout and return the exit code.

    That is `code`, unless the command succeeded and its result is lost.
    """
    conclude()
    return print_last(pieces, code, fmt)


def print_last(pieces: Iterable[str], code: int, fmt: str = "") -> int:
    """Do the same for a command that has ended, or that the main thread has left."""
    problem = write_stdout(pieces)
    if not problem:
        return code
    say(f"clusterprep: stdout cannot be written: {problem}")
    return unwritten_code(code, fmt)


def write_stdout(pieces: Iterable[str]) -> str:
    """Write to stdout; return why that failed, or nothing. A reader that has left is no failure."""
    if sys.stdout is None:
        return os.strerror(errno.EBADF)
    try:
        sys.stdout.writelines(pieces)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        return error.strerror or str(error)
    return ""


def unwritten_code(code: int, fmt: str) -> int:
    """Return the exit code of a command whose result is lost; a failure keeps its own."""
    return UNWRITTEN.get(fmt, InputError.code) if code == OK else code


def shown_text(text: str) -> str:
    """Return for stdout what is no report, such as the file of `env --target`.

    A pipe gets every byte. A terminal gets no control characters but tabs and ends of lines.
    """
    if sys.stdout is not None and sys.stdout.isatty():
        return without_controls(text)
    return text


def without_controls(text: str) -> str:
    """Return the lines of a text, also the tabs in them, without other control characters."""
    from clusterprep.reports.plain import clean

    lines = []
    for line in text.split("\n"):
        parts = [clean(part) for part in line.split(TAB)]
        lines.append(TAB.join(parts))
    return "\n".join(lines)


def say(text: str) -> None:
    """Write lines to stderr without control characters, as they may quote nodes and files.

    A stderr that is closed or full is no error: the exit code still tells.
    """
    for line in text.removesuffix("\n").split("\n"):
        say_line(line)


def say_line(text: str) -> None:
    """Write one line to stderr, whatever a node puts into it. As `say`, it never raises."""
    from clusterprep.reports.plain import clean
    from clusterprep.reports.progress import READER_GONE, encodable

    if sys.stderr is None:
        return
    with contextlib.suppress(*READER_GONE):
        sys.stderr.write(f"{encodable(sys.stderr, clean(text))}\n")
        sys.stderr.flush()


def print_line(text: str) -> None:
    """Write one line to stdout while a command runs, without control characters but tabs.

    A reader that has left is no failure.
    """
    from clusterprep.reports.progress import encodable

    if sys.stdout is not None:
        write_stdout((f"{encodable(sys.stdout, without_controls(text))}\n",))


def _discard_stdout() -> None:
    """Have nothing written there any more: what is in its buffer could not be either."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
