"""Write one file per rank of a launch on the controller, with both of its streams in order."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from clusterprep.errors import InputError
from clusterprep.jobs.launch.display import Source
from clusterprep.runtime import files

KEPT = 20  # runs whose logs stay in the state folder
_RUN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


class Logs:
    """The log files of one run. Each is created with its first line.

    Raises InputError if the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
        try:
            file = self._file(source)
            file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            self._note(source, error)

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
        self.flush()
        for file in self._open.values():
            try:
                file.close()
            except OSError:
                continue
        sources = sorted(self._open, key=_ranks_first)
        return tuple(self.path(source) for source in sources)


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
