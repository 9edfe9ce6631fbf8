"""Ends a command: an error becomes a message and a code, a bug one line and a log file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from clusterprep.cli.exit_codes import INTERNAL_ERROR, OK, UNKNOWN
from clusterprep.cli.output import say, write_stdout
from clusterprep.errors import ClusterprepError, InputError, Interrupted, Refused

FORMAT = "--format"


def ending(command: Callable[[], object], arguments: Sequence[str], name: str) -> int:
    """Run a command and return its exit code.

    `arguments` are those of the command line, `name` the command among them.
    """
    try:
        command()
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        return _print_error(InputError.of(error.format_message()), arguments, name, error)
    except (click.Abort, KeyboardInterrupt):
        return _print_error(Interrupted("interrupted"), arguments, name)
    except ClusterprepError as error:
        return _print_error(error, arguments, name)
    except SystemExit as leaving:
        return int(leaving.code or OK)
    except BrokenPipeError:
        sys.stdout = None
    except Exception as error:  # noqa: BLE001 - the user gets one line, the log the rest
        return _log_bug(error, arguments)
    return OK


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
    write_stdout((render(report, fmt),))
    return code


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
    write_stdout(("CLUSTERPREP UNKNOWN - a bug in clusterprep\n",))
    return UNKNOWN


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
