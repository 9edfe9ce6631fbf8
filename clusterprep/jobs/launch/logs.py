"""Write one file per rank of a launch on the controller, with both of its streams in order.

A file has QUOTA bytes at most, so that no rank fills the disk. Behind them come its last lines
alone, because these say how it ended; the log itself and the report say that lines are missing.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from clusterprep.errors import InputError
from clusterprep.jobs.launch import summary
from clusterprep.jobs.launch.display import Source
from clusterprep.jobs.launch.last_lines import LastLines
from clusterprep.model.units import format_size, pluralize
from clusterprep.runtime import files

KEPT = 20  # runs whose logs stay in the state folder
QUOTA = 256 << 20  # bytes of one file
NAMED = 5  # files that lack lines
_RUN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


class Logs:
    """The log files of one run. Each is created with its first line.

    Raises InputError if the folder cannot be made.
    """

    def __init__(self, folder: Path, quota: int = QUOTA) -> None:
        self.folder = folder
        self._quota = quota
        self._sizes: dict[Source, int] = {}  # bytes of each file
        # Of files that are full: how many lines are missing, and the last of them.
        self._missing: dict[Source, int] = {}
        self._last_lines: dict[Source, LastLines] = {}
        self.trouble = ""  # why lines are missing, if some are
        self._open: dict[Source, TextIO] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError.of(
                f"{folder} cannot be made: {error.strerror}", key="--log-dir"
            ) from None

    def write(self, source: Source, lines: Iterable[str]) -> None:
        """Append lines. An error is noted in `trouble`: a full disk must not end the job."""
        fitting = self._fitting(source, lines)
        try:
            file = self._file(source)
            file.writelines(f"{line}\n" for line in fitting)
        except OSError as error:
            self._note(source, error)

    def is_full(self, source: Source) -> bool:
        """Return whether further lines of this source are not written, but for the last ones."""
        return source in self._missing

    def _fitting(self, source: Source, lines: Iterable[str]) -> list[str]:
        """Return the lines that there is room for. Of the others the last are kept for the end."""
        fitting = []
        for line in lines:
            size = self._sizes.get(source, 0) + len(line.encode("utf-8", "replace")) + 1
            if source not in self._missing and size <= self._quota:
                self._sizes[source] = size
                fitting.append(line)
                continue
            self._missing[source] = self._missing.get(source, 0) + 1
            self._last_lines.setdefault(source, LastLines()).extend([line])
        return fitting

    def _write_ends(self) -> None:
        """Write the last lines of the files that are full, and how many are missing before them."""
        names = []
        for source, last_lines in self._last_lines.items():
            missing = self._missing[source] - len(last_lines)
            size = format_size(self._quota)
            notice = f"clusterprep: {missing:,} lines are missing here: the log has reached {size}"
            try:
                self._file(source).writelines(f"{line}\n" for line in [notice, *last_lines])
            except OSError as error:
                self._note(source, error)
            names.append(self.path(source).name)
        if names and not self.trouble:
            listed = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
            size = format_size(self._quota)
            logs = pluralize(len(names), "log")
            self.trouble = f"{self.folder} lacks lines of {logs} at the limit of {size}: {listed}"

    def _file(self, source: Source) -> TextIO:
        file = self._open.get(source)
        if file is None:
            # The folder may be one in which another user has laid a link under this name.
            descriptor = files.open_emptied(self.path(source), files.SHARED)
            file = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="\n")
            self._open[source] = file
        return file

    def _note(self, source: Source, error: OSError) -> None:
        if not self.trouble:
            self.trouble = f"{self.path(source)} lacks lines: {error.strerror}"

    def path(self, source: Source) -> Path:
        node, rank = source
        if rank is None:
            return self.folder / f"torchrun-{node}.log"
        return self.folder / f"rank-{rank}.log"

    def flush(self) -> None:
        for source, file in self._open.items():
            try:
                file.flush()
            except OSError as error:
                self._note(source, error)

    def close(self) -> tuple[Path, ...]:
        """Close the files and return their paths, those of ranks first."""
        self._write_ends()
        self.flush()
        for file in self._open.values():
            try:
                file.close()
            except OSError:
                continue
        sources = sorted(self._open, key=_ranks_first)
        return tuple(self.path(source) for source in sources)

    def write_summary(self, lines: Iterable[str]) -> tuple[Path, ...]:
        """Write how the launch ended into a file beside the logs. Return its path, () if it fails.

        Call it after `close`.
        """
        path = self.folder / summary.NAME
        try:
            descriptor = files.open_emptied(path, files.SHARED)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
                file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            if not self.trouble:
                self.trouble = f"{path} lacks lines: {error.strerror}"
            return ()
        return (path,)


def _ranks_first(source: Source) -> tuple[bool, int, str]:
    node, rank = source
    return (rank is None, rank or 0, node)


def forget_old(folder: Path) -> None:
    """Delete all but the newest runs of a folder. Files that are not of a run stay."""
    if not folder.is_dir():
        return
    runs: list[Path] = []
    for path in folder.glob("*"):
        if _RUN.fullmatch(path.name):
            runs.append(path)
    runs.sort()
    for path in runs[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)
