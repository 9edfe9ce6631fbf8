"""`clusterprep exec`, `copy` and `fetch`: what they do on all nodes, and the report about it."""

from __future__ import annotations

import posixpath
import re
import stat
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from clusterprep.cli import exit_codes
from clusterprep.cli.commands.report import new_report
from clusterprep.errors import InputError
from clusterprep.fabric import execute, program
from clusterprep.fabric.fleet import Fleet
from clusterprep.fabric.printed import Hear
from clusterprep.fabric.program import ShellProgram
from clusterprep.fabric.results import Answer, compared, fold_answers, snapshots
from clusterprep.model import Inventory, Report
from clusterprep.model.nodeset import fold

if TYPE_CHECKING:  # `exec` needs none of them
    from clusterprep.fabric.transfers import CopyRequest

MOST_SCRIPT = 16 << 20  # bytes
_PLACEHOLDER = re.compile(r"\{\w*\}")


class Errand(Struct, frozen=True):
    """One run of one of these commands."""

    command: str
    inventory: Inventory
    fleet: Fleet
    started: datetime
    clock: float = field(default_factory=time.monotonic)


# ---------------------------------------------------------------- exec


def program_of(argv: tuple[str, ...], script: str | None) -> ShellProgram:
    """Return what the nodes are to run. Raises InputError for a file that cannot be read."""
    if script is None:
        if argv[0].startswith("-") or not argv[0]:
            raise InputError.of(f"'{argv[0]}' is not a command", hint="exec INVENTORY -- CMD…")
        return program.of_command(argv)
    path = Path(script)
    try:
        with path.open("rb") as source:
            content = source.read(MOST_SCRIPT + 1)
    except OSError as error:
        raise InputError.of(f"{error.strerror}", file=script, key="--script") from None
    if len(content) > MOST_SCRIPT:
        raise InputError.of(
            f"a script of more than {MOST_SCRIPT >> 20} MiB", file=script, key="--script"
        )
    return program.of_script(path.name, content)


def run_program(errand: Errand, shell_program: ShellProgram, hear: Hear | None) -> Report:
    """Run a command on all nodes and return its report."""
    outcomes, timed_out = execute.run_program(errand.fleet, shell_program, hear)
    report = _command_report(errand, outcomes, timed_out)
    if hear is not None:
        return without_output(report)
    return report


def run_task(errand: Errand, text: str, show: Callable[[str], None]) -> Report:
    """Call a Fabric task with all nodes and return its report. Raises InputError.

    `show` writes lines of the task that belong to no node.
    """
    from clusterprep.fabric import tasks

    outcomes, timed_out = tasks.run_task(errand.fleet, tasks.find_task(text), show)
    return _command_report(errand, outcomes, timed_out)


def without_output(report: Report) -> Report:
    """Return the report of a command whose lines were shown already: how it ended, and where."""
    results = [msgspec.structs.replace(row, stdout="", stderr="") for row in report.results or ()]
    answers = {}
    for row in results:
        for name in row.nodes:
            answers[name] = Answer(row.exit_code, "", "", row.seconds, row.reason, row.left_out)
    return msgspec.structs.replace(report, results=fold_answers(answers))


def with_differences(report: Report) -> Report:
    """Return the report with outputs as differences from the most frequent one."""
    return msgspec.structs.replace(report, results=compared(report.results or ()))


def _command_report(errand: Errand, outcomes: Mapping[str, Any], timed_out: bool) -> Report:
    answers = {name: answer for name, answer in outcomes.items() if isinstance(answer, Answer)}
    results = fold_answers(answers)
    nodes = snapshots(errand.fleet.nodes, outcomes)
    code = exit_codes.results_code(results, nodes)
    return report_of(errand, code, nodes, timed_out, results=results)


# ---------------------------------------------------------------- copy and fetch


def copy_request(source: str, destination: str, mode: str | None, owner: str | None) -> CopyRequest:
    """Return what is to be copied, and to where. Raises InputError."""
    from clusterprep.fabric.transfers import CopyRequest, sum_of

    if not destination.startswith("/"):
        raise InputError.of(
            f"'{destination}' is not the same place on all nodes", key="DEST", hint="begin with /"
        )
    path = posixpath.normpath(destination)
    if destination.endswith("/"):
        path = posixpath.join(path, Path(source).name)
    try:
        state = Path(source).stat()
        if not stat.S_ISREG(state.st_mode):
            raise InputError.of(
                "it is not a regular file", file=source, key="SRC", hint="of a folder, copy a tar"
            )
        total = sum_of(Path(source))
    except OSError as error:
        raise InputError.of(f"{error.strerror}", file=source, key="SRC") from None
    user, _, group = (owner or "").partition(":")
    return CopyRequest(
        source=Path(source),
        size=state.st_size,
        sha=total,
        path=path,
        mode=_mode_of(mode, state.st_mode),
        user=user or None,
        group=group or None,
    )


def _mode_of(text: str | None, mode: int) -> int:
    """Return the mode that --mode gives, else that of the file without setuid and sticky bits."""
    if text is None:
        return mode & 0o777
    try:
        given = int(text, 8)
    except ValueError:
        given = -1
    if not 0 <= given <= 0o7777:
        raise InputError.of(f"'{text}' is not a mode", key="--mode", hint="such as 0644")
    return given


def copy(errand: Errand, request: CopyRequest) -> Report:
    """Copy a file to all nodes and return the report."""
    from clusterprep.fabric import transfers

    outcomes, timed_out = transfers.copy(errand.fleet, request)
    return _transfer_report(errand, outcomes, timed_out)


def fetch(errand: Errand, source: str, folder: str) -> Report:
    """Fetch files from all nodes and return the report. Raises InputError."""
    from clusterprep.fabric import transfers

    if not source.startswith("/"):
        raise InputError.of(
            f"'{source}' is not the same place on all nodes", key="SRC", hint="begin with /"
        )
    refuse_folder(folder)
    outcomes, timed_out = transfers.fetch(errand.fleet, posixpath.normpath(source), folder)
    return _transfer_report(errand, outcomes, timed_out)


def refuse_folder(folder: str) -> None:
    """Raise InputError for a DIR of fetch in which there can be no folder of a node."""
    from clusterprep.fabric.transfers import NODE, base_of

    if not folder:
        raise InputError.of("an empty value names no folder", key="DIR")
    for name in _PLACEHOLDER.findall(folder):
        if name != NODE:
            raise InputError.of(f"'{name}' stands for nothing", key="DIR", hint=f"{NODE} does")
    base = base_of(folder)
    if base.exists() and not base.is_dir():
        raise InputError.of("it is here already, and is no folder", file=str(base), key="DIR")


def _transfer_report(errand: Errand, outcomes: Mapping[str, Any], timed_out: bool) -> Report:
    from clusterprep.fabric.transfers import rows_of

    rows = rows_of(errand.command, outcomes)
    nodes = snapshots(errand.fleet.nodes, outcomes)
    code = exit_codes.copied_code(rows, nodes)
    return report_of(errand, code, nodes, timed_out, changes=rows)


def report_of(errand: Errand, code: int, nodes: Any, timed_out: bool, **sections: Any) -> Report:
    """Return a report with the nodes that were reached, and the notices that they all have."""
    inventory = errand.inventory
    notices = list(inventory.warnings)
    if inventory.left_out:
        notices.append(f"limited to {fold(node.name for node in inventory.nodes)}")
    if timed_out:
        notices.append("--timeout was reached; this is what was known by then")
    return new_report(
        errand.command,
        code,
        cluster=inventory.cluster,
        started=errand.started,
        seconds=round(time.monotonic() - errand.clock, 3),
        nodes=nodes,
        notices=tuple(notices),
        **sections,
    )
