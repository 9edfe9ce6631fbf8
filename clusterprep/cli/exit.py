"""How a command ends: an error as a message and a code, a bug as one line and a file, no waiting for the dead."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from clusterprep.errors import ClusterprepError, InputError, Interrupted, Problem, Refused

if TYPE_CHECKING:
    from clusterprep.model import Report

BUG = 70  # os.EX_SOFTWARE


def ending(command: Callable[[], object], words: Sequence[str], name: str) -> int:
    """Run a command and give its exit code; `words` are those of the command line, `name` the command among them."""
    try:
        command()
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        return _say(InputError.of(error.format_message()), words, name, error)
    except (click.Abort, KeyboardInterrupt):
        return _say(Interrupted("interrupted"), words, name)
    except ClusterprepError as error:
        return _say(error, words, name)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    except BrokenPipeError:
        sys.stdout = None
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets one line and we get the story
        return _bug(error, words)
    return 0


def leave(code: int) -> None:
    """Exit without waiting for threads that still wait for dead nodes; what was printed is flushed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            pass
    os._exit(code)


def _say(
    error: ClusterprepError,
    words: Sequence[str],
    name: str,
    usage: click.ClickException | None = None,
) -> int:
    """One error in the format that was asked for, on stdout, and always a message on stderr."""
    from clusterprep.reports.plain import clean

    code, fmt = error.code, _format(words)
    if fmt:
        from clusterprep.reports import exit_code, render

        report = failed(error, name)
        code = exit_code(report, fmt)
        sys.stdout.write(render(report, fmt))
    context = getattr(usage, "ctx", None)
    if context is not None:
        click.echo(context.get_usage(), err=True)
    # Messages may quote nodes and files of others: what a terminal would obey is taken out, line by line.
    diff = error.diff if isinstance(error, Refused) else ""
    for line in f"clusterprep: {error.message}\n{diff}".splitlines():
        click.echo(clean(line), err=True)
    return code


def failed(error: ClusterprepError, command: str) -> Report:
    """The report of a command that an error ended."""
    where = error.problems[0] if isinstance(error, InputError) else Problem(error.message)
    details = {
        "code": error.code,
        "message": error.message,
        "file": where.file,
        "line": where.line,
        "key": where.key,
    }
    from datetime import datetime, timezone

    from clusterprep.cli.commands.report import VERDICTS
    from clusterprep.model import Report

    now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    return Report(
        command, "", "", now, 0.0, VERDICTS.get(error.code, "error"), error.code, error=details
    )


def _format(words: Sequence[str]) -> str:
    """The format for a program that was asked for; empty where people read, and where there is no such format."""
    following = [after for before, after in itertools.pairwise(words) if before == "--format"]
    asked = [
        *following,
        *(word.removeprefix("--format=") for word in words if word.startswith("--format=")),
    ]
    if not asked or asked[-1] == "console":
        return ""
    from clusterprep.reports import SUFFIXES

    return asked[-1] if asked[-1] in SUFFIXES else ""


def _bug(error: Exception, words: Sequence[str]) -> int:
    """A bug of ours: one line, and the whole story in a file. Nagios takes every other code for an outage."""
    import traceback

    from clusterprep.history import state_folder

    state = state_folder()
    story = "".join(traceback.format_exception(error))
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = state / f"bug-{os.getpid()}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(
            os.open(log, flags, 0o600), "w", encoding="utf-8"
        ) as sink:  # it may quote what nodes said
            sink.write(story)
        click.echo(
            f"clusterprep: a bug of ours ({type(error).__name__}: {error}); the story is in {log}",
            err=True,
        )
    except OSError:
        click.echo(f"clusterprep: a bug of ours\n{story}", err=True)
    if _format(words) != "nagios":
        return BUG
    click.echo("CLUSTERPREP UNKNOWN - a bug of clusterprep")
    return 3
