"""Writes the generated parts of the documents.

These are the run of the demo in docs/start/try.md, the table of checks in docs/howto/check.md,
pictures, and the lists in docs/reference/.

`make format` renews what follows from the code alone, `make docs` the run and the pictures too.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

from rich.text import Text

from clusterprep.checks import Check
from clusterprep.cli.commands.explain import severity_sentence
from clusterprep.jobs.diagnose.known import causes, command_that_finds
from clusterprep.jobs.diagnose.model import Cause
from clusterprep.jobs.verify.pages import PAGES, TrialCheckPage
from clusterprep.survey import registry
from tests.support import (
    man_page,
    pictures,
    privileges_page,
    recording,
    resources_page,
    variables_page,
)
from tests.support.messages import page as messages_page

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
RUN = re.compile(r"(?<=tests/project/test_readme.py compares -->\n```\n).*?(?=\n```\n)", re.DOTALL)
TRY = ROOT / "docs" / "start" / "try.md"
CHECKING = ROOT / "docs" / "howto" / "check.md"
REFERENCE = ROOT / "docs" / "reference"
PAGE = REFERENCE / "checks.md"
CAUSES = REFERENCE / "causes.md"
VARIABLES = REFERENCE / "variables.md"
RESOURCES = REFERENCE / "resources.md"
PRIVILEGES = REFERENCE / "privileges.md"
MESSAGES = REFERENCE / "messages.md"
MAN = ROOT / "docs" / "man" / "clusterprep.1"
TABLE = re.compile(r"(?<=\| area \| checks \|\n\|---\|---\|\n)(?:\|.*\n)+")


def run_shown(text: str) -> str:
    found = RUN.search(text)
    assert found, "docs/start/try.md has no run"
    return found[0]


def rows_shown(text: str) -> list[str]:
    found = TABLE.search(text)
    assert found, "docs/howto/check.md has no table of checks"
    return found[0].splitlines()


def areas() -> dict[str, list[str]]:
    """Names of the checks by area."""
    found: dict[str, list[str]] = {}
    for name in registry.checks():
        found.setdefault(name.split(".")[0], []).append(name)
    return found


def rows() -> list[str]:
    return [
        f"| `{area}.` | {', '.join(name.split('.')[1] for name in names)} |"
        for area, names in areas().items()
    ]


HEAD = """# Every check

Written by `make format` from the checks themselves; `clusterprep explain NAME` prints the same. A
failure of severity error counts for the exit code, a warning only with `--strict`. A failure of
something that the inventory requires is always an error. {count} checks.
"""
TRIAL = """## Checks of the all-reduce

`clusterprep verify`, and apply after it wrote, run an all-reduce over all nodes. These checks are
judged from it alone.
"""


def checks_page() -> str:
    """docs/reference/checks.md."""
    parts = [HEAD.format(count=len(registry.checks()))]
    for area, names in areas().items():
        parts.append(f"## {area}\n")
        parts += [_entry(registry.checks()[name]) for name in names]
    return "\n".join([*parts, TRIAL, *map(_entry, PAGES.values())])


def _entry(about: Check | TrialCheckPage) -> str:
    rows = [
        f"{severity_sentence(about)} {about.why}",
        "",
        f"Measured: {about.how}",
        "",
        f"    {about.remedy}" if about.remedy.is_command else f"Remedy: {about.remedy}.",
    ]
    if about.remedy.note:
        rows += ["", f"Note: {about.remedy.note}."]
    return (
        f"### `{about.name}`: {about.title}\n\n"
        + "\n".join(textwrap.fill(r, 118) if r[:4] != "    " else r for r in rows)
        + "\n"
    )


CAUSES_HEAD = """# Every cause that diagnose knows

Written by `make format` from the causes themselves; `clusterprep explain NAME` prints the same. A
fatal or degraded cause gives exit code 1; only harmless ones give 0. {count} causes.
"""
GRADES_OF_CAUSES = {
    "fatal": "Fatal: the job cannot go on.",
    "degraded": "Degraded: the job runs more slowly than it could.",
    "benign": "Harmless.",
}


def causes_page() -> str:
    """docs/reference/causes.md."""
    return "\n".join(
        [CAUSES_HEAD.format(count=len(causes())), *map(_cause_entry, causes().values())]
    )


def _cause_entry(cause: Cause) -> str:
    command = command_that_finds(cause.check)
    finds = cause.finds or "it"
    found = f" `{cause.check}` of `{command}` finds {finds} before the job starts."
    if not command:
        found = ""
    rows = [
        f"{cause.message} {GRADES_OF_CAUSES[cause.severity]}{found}",
        f"Looks like: {cause.looks}",
        f"Is not: {cause.unlike}",
    ]
    text = "\n\n".join(textwrap.fill(row, 118, break_on_hyphens=False) for row in rows)
    remedy = f"    {cause.remedy}" if cause.remedy.is_command else f"Remedy: {cause.remedy}."
    if cause.remedy.note:
        remedy += f"\n\nNote: {cause.remedy.note}."
    return f"## `{cause.name}`: {cause.title}\n\n{text}\n\n{remedy}\n"


def demo() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def demo_on_a_terminal() -> str:
    """Return what the demo prints on a terminal, with its colours. Exit if it fails."""
    ours, theirs = pty.openpty()
    size = struct.pack("HHHH", recording.ROWS, recording.COLUMNS, 0, 0)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    argv = [sys.executable, "-m", "tests.support.demo"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        shown = b""
        while piece := _read(ours):
            shown += piece
    os.close(ours)
    text = shown.decode().replace("\r\n", "\n")
    if process.returncode:
        sys.exit(text)
    return text


def _read(terminal: int) -> bytes:
    """Return the next bytes of a terminal; at its end Linux answers with an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def screens(output: str) -> str:
    """Return what the demo's two commands printed, without the words of the demo itself."""
    _, first, second = output.split("$ clusterprep apply")
    heading = re.compile(r"\n(?:\x1b\[1m)?==>")
    parts = [heading.split(part, maxsplit=1)[0] for part in (first, second)]
    return "\n".join(f"$ clusterprep apply{part.rstrip()}\n" for part in parts)


def first_report(output: str) -> str:
    """What the first apply of the demo printed."""
    return (
        output.split("$ clusterprep apply", 2)[1]
        .split("\n\n==>", maxsplit=1)[0]
        .split("\n", 2)[2]
        .strip("\n")
    )


def shape(text: str) -> str:
    """Return a text without what differs from run to run: times, speeds, counts, line breaks."""
    numbers = re.sub(r"\d{8}-\d{6}-\w{4}", "RUN", text)
    numbers = re.sub(r"\d+(?:\.\d+)?\s+(?:µs|ms|s|min)(?![a-z])", "TIME", numbers)
    numbers = re.sub(r"(?:<?\d+\.\d+|(?<=\s)0)(?=\s+(?:[<\d.]+\s+)?\d+\n)", "SPEED", numbers)
    # Every new check changes these, and a run on four hosts is not needed to know that.
    counts = re.sub(r"(PASS|SKIP)(\s+)\d+ checks[^;]*; -v", r"\1\2CHECKS; -v", numbers)
    return " ".join(counts.split())


def renew_derived() -> None:
    """Write everything that follows from the code alone, where it has changed."""
    table = "".join(row + "\n" for row in rows())
    _renew(CHECKING, TABLE.sub(lambda _: table, CHECKING.read_text()))
    _renew(PAGE, checks_page())
    _renew(CAUSES, causes_page())
    _renew(VARIABLES, variables_page.page())
    _renew(RESOURCES, resources_page.page())
    _renew(PRIVILEGES, privileges_page.page())
    _renew(MESSAGES, messages_page.page())
    _renew(MAN, man_page.page())
    pictures.renew()


def _renew(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main() -> None:
    """Run the demo and write its first report into its page, then everything else."""
    screen = screens(demo_on_a_terminal())
    pictures.RECORDING.write_text(pictures.recorded(screen))
    run = "$ clusterprep apply inventory.yaml\n\n" + first_report(Text.from_ansi(screen).plain)
    TRY.write_text(RUN.sub(lambda _: run, TRY.read_text()))
    renew_derived()
    pictures.main()


if __name__ == "__main__":
    main()
