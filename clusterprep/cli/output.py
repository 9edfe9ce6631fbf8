"""Write results to stdout and sentences to stderr: all that the command line shows goes this way.

What is shown may quote nodes and files of others, whose escapes would act on the terminal: set its
clipboard, clear the screen over a difference that is being approved. So sentences lose their
control characters here, line by line, and formats of reports remove them where they escape.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable

TAB = "\t"


def write_stdout(pieces: Iterable[str]) -> None:
    """Write a report, in whose texts its format has escaped what nodes said, to stdout."""
    sys.stdout.writelines(pieces)
    sys.stdout.flush()


def show_text(text: str) -> None:
    """Write to stdout what is no report, such as the file of `env --target`.

    A pipe gets every byte. A terminal gets no control characters but tabs and ends of lines.
    """
    if sys.stdout.isatty():
        text = without_controls(text)
    write_stdout((text,))


def without_controls(text: str) -> str:
    """Return the lines of a text, also the tabs in them, without other control characters."""
    from clusterprep.reports.plain import clean

    lines = []
    for line in text.split("\n"):
        parts = [clean(part) for part in line.split(TAB)]
        lines.append(TAB.join(parts))
    return "\n".join(lines)


def say(text: str) -> None:
    """Write lines to stderr without control characters. A closed stderr is no error."""
    for line in text.removesuffix("\n").split("\n"):
        say_line(line)


def say_line(text: str) -> None:
    """Write one line to stderr, whatever a node puts into it. A closed stderr is no error."""
    from clusterprep.reports.plain import clean
    from clusterprep.reports.progress import READER_GONE, encodable

    if sys.stderr is None:
        return
    with contextlib.suppress(*READER_GONE):
        sys.stderr.write(f"{encodable(sys.stderr, clean(text))}\n")
        sys.stderr.flush()
