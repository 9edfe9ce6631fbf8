"""What the tools of `clusterprep mcp` return. None of them writes on nodes or outside the history.

The arguments come from a language model, which may have read the words of a hostile node. So it
chooses among inventories and folders that the user has named: an inventory may be a program, and a
log may be any file. Answers are bounded, and without control characters.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct

from clusterprep import reports
from clusterprep.cli.commands import check as check_command
from clusterprep.cli.commands import explain as pages
from clusterprep.cli.commands import record
from clusterprep.cli.commands.opening import failure_noted, opened
from clusterprep.cli.commands.report import findings_report, new_report
from clusterprep.cli.commands.unattended import Secrets, unattended
from clusterprep.cli.exit_codes import OK
from clusterprep.cli.output import without_controls
from clusterprep.errors import InputError
from clusterprep.history import state_folder
from clusterprep.history.database import Unusable
from clusterprep.history.runs import Runs
from clusterprep.inventory.extensions import installed_extensions
from clusterprep.inventory.load import Overrides, load_inventory
from clusterprep.jobs.diagnose import command as diagnose_command
from clusterprep.model import Report
from clusterprep.model.units import format_size
from clusterprep.reports import diagnosis as diagnosis_pages
from clusterprep.runtime.deadline import Deadline

Form = Literal["text", "json"]
Answer = TypeVar("Answer")

LONGEST = 60_000  # characters of an answer: some 15,000 tokens
MOST_FILES = 64  # of one diagnosis
LARGEST = 256 << 20  # bytes of all its files: a minute of reading
LARGEST_PACKED = 4 << 20  # of a compressed one, which may be a thousand times as large
PACKED = b"\x1f\x8b"  # how gzip begins, which is all that is unpacked
WIDTH = 100  # columns of a text


class Scope(Struct, frozen=True):
    """What the user lets the tools look at: inventories by name, and folders of logs."""

    inventories: Mapping[str, str]
    folders: tuple[Path, ...]
    secrets: Secrets

    def inventory(self, name: str) -> str:
        """Return the file of an inventory, or of the only one for an empty name.

        Raises InputError.
        """
        if not self.inventories:
            raise InputError.of(
                "this server was started without an inventory",
                key="inventory",
                hint="clusterprep mcp INVENTORY",
            )
        if not name and len(self.inventories) == 1:
            return next(iter(self.inventories.values()))
        if name not in self.inventories:
            names = ", ".join(self.inventories)
            raise InputError.of(f"{name!r} is no inventory of this server", hint=f"one of {names}")
        return self.inventories[name]


class CheckRequest(Struct, frozen=True):
    """What a check is to look at: options of `clusterprep check`."""

    inventory: str = ""
    limit: str = ""
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


# ---------------------------------------------------------------- earlier runs


def history(cluster: str, limit: int) -> str:
    """Return the newest runs, of one cluster or of all."""
    runs = _read(lambda runs: tuple(runs.all(cluster or None, limit)))
    return _shown(new_report("history", OK, cluster=cluster, runs=runs), "text")


def report(run: str, check: str, form: Form) -> str:
    """Return the report of a run, or what one check found in it."""

    def read(runs: Runs) -> Report:
        whole = runs.report(runs.named(run).run)
        return findings_report(whole, check) if check else whole

    found = _read(read)
    return _shown(found, form, verbose=1 if check else 0)


# ---------------------------------------------------------------- pages and logs


def explain(scope: Scope, topic: str, inventory: str) -> str:
    """Return the page of a check, a variable or a cause; the list of all if `topic` is empty."""
    extensions = installed_extensions()
    if inventory:
        extensions = load_inventory(scope.inventory(inventory)).extensions
    return bounded(pages.render(topic or None, extensions, "console"))


def diagnose(scope: Scope, files: Sequence[str]) -> str:
    """Return the causes that logs of NCCL and torch.distributed show."""
    if not 1 <= len(files) <= MOST_FILES:
        raise InputError.of(f"give 1 to {MOST_FILES} files", key="files")
    logs = [_log(scope, name) for name in files]
    size = sum(path.stat().st_size for path in logs)
    if size > LARGEST:
        raise InputError.of(
            f"{format_size(size)} are more than the {format_size(LARGEST)} that are read",
            key="files",
            hint="clusterprep diagnose in a shell reads logs of any size",
        )
    found, _ = diagnose_command.diagnose([str(path) for path in logs])
    text = diagnosis_pages.render(
        found,
        "console",
        color=False,
        verbose=0,
        width=WIDTH,
        ascii_only=False,
    )
    return bounded(text)


def _log(scope: Scope, name: str) -> Path:
    """Return a regular file in one of the folders of logs, links followed. Raises InputError."""
    if not scope.folders:
        raise InputError.of(
            "this server was started without a folder of logs",
            key="files",
            hint="clusterprep mcp --logs DIR",
        )
    for folder in scope.folders:
        try:
            path = (folder / name).resolve(strict=True)
            status = path.stat()
        except (OSError, ValueError, RuntimeError):
            continue
        if not path.is_relative_to(folder) or not stat.S_ISREG(status.st_mode):
            continue
        _refuse_large_packed(path, status.st_size)
        return path
    folders = ", ".join(map(str, scope.folders))
    raise InputError.of(f"{name!r} is no file in {folders}", key="files")


def _refuse_large_packed(path: Path, size: int) -> None:
    if size <= LARGEST_PACKED:
        return
    with path.open("rb") as source:
        is_packed = source.read(len(PACKED)) == PACKED
    if is_packed:
        raise InputError.of(
            f"{path.name} is compressed, and larger than {format_size(LARGEST_PACKED)}",
            key="files",
            hint="clusterprep diagnose in a shell reads it",
        )


# ---------------------------------------------------------------- nodes


def check(scope: Scope, request: CheckRequest, form: Form, deadline: Deadline) -> str:
    """Log in to the nodes of an inventory and return what they are like. Nothing is written there.

    Host keys that are not known yet are refused, as learning them would write them down here.
    """
    inventory = load_inventory(scope.inventory(request.inventory), Overrides(host_keys="strict"))
    params = {
        "limit": request.limit or None,
        "only": ",".join(request.only),
        "skip": ",".join(request.skip),
    }
    with deadline:
        opening = opened(
            "check",
            params,
            inventory,
            unattended(scope.secrets),
            deadline,
        )
        with opening as invocation, failure_noted(invocation):
            found = check_command.run(invocation)
    return _shown(record.recorded(invocation, found), form)


# ---------------------------------------------------------------- texts


def bounded(text: str) -> str:
    """Return the lines of a text without control characters, as many as an answer may have."""
    text = without_controls(text)
    if len(text) <= LONGEST:
        return text
    kept = text[:LONGEST].rpartition("\n")[0] or text[:LONGEST]
    return f"{kept}\n… cut: the whole has {len(text):,} characters\n"


def _shown(found: Report, form: Form, verbose: int = 0) -> str:
    """Return a report as bounded text, or as its whole JSON. Raises InputError if that is large."""
    if form == "text":
        return bounded(reports.render(found, "console", verbose=verbose, width=WIDTH))
    size = 0
    pieces: list[str] = []
    for piece in reports.pieces(found, "json"):
        size += len(piece)
        if size > LONGEST:
            raise InputError.of(
                f"the document has more than {LONGEST:,} characters",
                key="form",
                hint="take form=text, or the findings of one check",
            )
        pieces.append(piece)
    return "".join(pieces)


def _read(ask: Callable[[Runs], Answer]) -> Answer:
    """Return what `ask` reads from the recorded runs. Raises InputError if they cannot be read."""
    try:
        return ask(Runs(state_folder()))
    except Unusable as error:
        raise InputError.of(str(error)) from None


def scope_of(inventories: Sequence[str], folders: Sequence[str], secrets: Secrets) -> Scope:
    """Return the scope of a server. Raises InputError for what is not there."""
    named: dict[str, str] = {}
    for name in inventories:
        if not Path(name).is_file():
            raise InputError.of("there is no such file", key=name)
        named[name] = str(Path(name).absolute())
    resolved = []
    for name in folders:
        folder = Path(name).resolve()
        if not folder.is_dir():
            raise InputError.of("there is no such folder", key=f"--logs {name}")
        resolved.append(folder)
    return Scope(named, tuple(resolved), secrets)
