"""Ends a command: an error becomes a message and a code, a bug one line and a log file."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from clusterprep.cli.exit_codes import INTERNAL_ERROR, OK, UNKNOWN
from clusterprep.cli.output import print_last, say, unwritten_code, write_stdout
from clusterprep.errors import ClusterprepError, InputError, Interrupted, Refused
from clusterprep.runtime.deadline import conclude
from clusterprep.runtime.signals import SignalPipe
from clusterprep.runtime.supervisor import Supervisor

FORMAT = "--format"
LEAVING_LIMIT = 1.0  # seconds for telling that a command was left; the output may not be read


def run_supervised(pipe: SignalPipe, arguments: Sequence[str], command: Callable[[], int]) -> None:
    """Run a command line in a thread and exit with its code."""
    restore_terminal = _terminal_restorer()

    def give_up(error: ClusterprepError, shown: bool) -> int:
        # What is left may be printing: its lock is held, and a second report would follow half of
        # the first one.
        told = () if shown else arguments
        codes = [error.code]
        telling = threading.Thread(
            target=lambda: codes.append(_print_error(error, told, command_of(arguments))),
            daemon=True,
        )
        telling.start()
        telling.join(LEAVING_LIMIT)
        restore_terminal()
        os._exit(codes[-1])

    code = Supervisor(pipe, give_up).run(command)
    restore_terminal()
    leave(code)


def command_of(arguments: Sequence[str]) -> str:
    """Return the name of the command as far as it is known without a parser."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0]
    return "clusterprep"


def _terminal_restorer() -> Callable[[], None]:
    """Return a function that has the terminal show again what is typed.

    A command may be left while it asks for a password.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        return lambda: None
    import termios

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def restore() -> None:
        with contextlib.suppress(OSError, termios.error):
            if termios.tcgetattr(descriptor) != before:
                termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

    return restore


def ending(command: Callable[[], object], arguments: Sequence[str], name: str) -> int:
    """Run a command and return its exit code.

    `arguments` are those of the command line, `name` the command among them.
    """
    stdout = sys.stdout
    try:
        command()
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        conclude(failed=True)
        return _print_error(InputError.of(error.format_message()), arguments, name, error)
    except click.Abort:  # a question to the user has no answer
        return _print_error(Interrupted("interrupted"), arguments, name)
    except ClusterprepError as error:
        conclude(failed=True)
        return _print_error(error, arguments, name)
    except SystemExit as leaving:
        # click ends with 1 when the reader of a help text has left, which is no failure.
        return OK if sys.stdout is not stdout else int(leaving.code or OK)
    except Exception as error:  # noqa: BLE001 - the user gets one line, the log the rest
        return _unexpected(error, arguments)
    return OK


def _unexpected(error: Exception, arguments: Sequence[str]) -> int:
    """Tell of a stdout that cannot be written, or of a bug; return the exit code.

    click writes help texts by itself, and what it could not write is still in the buffer.
    """
    problem = write_stdout(()) if isinstance(error, OSError) else ""
    if not problem:
        return _log_bug(error, arguments)
    say(f"clusterprep: stdout cannot be written: {problem}")
    return unwritten_code(OK, "")


def leave(code: int) -> None:
    """Flush what was printed, and exit without waiting for threads.

    They may still wait for nodes that do not answer.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            pass
    os._exit(code)


def _print_error(
    error: ClusterprepError,
    arguments: Sequence[str],
    name: str,
    usage: click.ClickException | None = None,
) -> int:
    """Print an error and return its exit code.

    A message goes to stderr, and a report to stdout if a format for programs was asked for.
    """
    code = error.code
    fmt = _machine_format(arguments)
    if fmt:
        code = _print_report(error, name, fmt)
    context = getattr(usage, "ctx", None)
    if context is not None:
        say(context.get_usage())
    diff = error.diff if isinstance(error, Refused) else ""
    say(f"clusterprep: {error.message}\n{diff}")
    return code


def _print_report(error: ClusterprepError, name: str, fmt: str) -> int:
    """Print the report of a failed command; return its exit code, which a format may define."""
    from clusterprep.cli.commands.report import error_report
    from clusterprep.reports import exit_code, render

    report = error_report(error, name)
    code = exit_code(report, fmt)
    return print_last((render(report, fmt),), code, fmt)


def _machine_format(arguments: Sequence[str]) -> str:
    """Return the format for programs that was asked for.

    Empty for the console, and for a format that does not exist. The command line may be the
    reason of the error, so it is searched without click's parser.
    """
    asked = _asked_format(arguments)
    if asked in ("", "console"):
        return ""
    from clusterprep.reports import SUFFIXES

    return asked if asked in SUFFIXES else ""


def _asked_format(arguments: Sequence[str]) -> str:
    """Return the value of the last `--format=VALUE`, else of the last `--format VALUE`."""
    separate = ""
    joined = None
    previous = ""
    for argument in arguments:
        if previous == FORMAT:
            separate = argument
        if argument.startswith(f"{FORMAT}="):
            joined = argument.removeprefix(f"{FORMAT}=")
        previous = argument
    return separate if joined is None else joined


def _log_bug(error: Exception, arguments: Sequence[str]) -> int:
    """Print one line about a bug in clusterprep, and write its traceback to a file.

    Nagios takes every code but its own for an outage, so it gets UNKNOWN.
    """
    import traceback

    from clusterprep.history import state_folder

    state = state_folder()
    details = "".join(traceback.format_exception(error))
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = state / f"bug-{os.getpid()}.log"
        _write_private(str(log), details)
    except OSError:
        say(f"clusterprep: a bug in clusterprep\n{details}")
    else:
        # One line, also if the exception quotes several of a node.
        summary = " ".join(f"{type(error).__name__}: {error}".split())
        say(f"clusterprep: a bug in clusterprep ({summary}); details are in {log}")
    if _machine_format(arguments) != "nagios":
        return INTERNAL_ERROR
    return print_last(("CLUSTERPREP UNKNOWN - a bug in clusterprep\n",), UNKNOWN)


def _write_private(path: str, text: str) -> None:
    """Write a file that only its owner may read: a traceback may quote answers of nodes.

    Raises OSError. A disk that is full then has no half of it.
    """
    from clusterprep.runtime import files

    descriptor = files.open_emptied(path)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as sink:
            sink.write(text)
    except OSError:
        Path(path).unlink(missing_ok=True)
        raise
