"""A file for each rank of a launch on the controller, with both of its streams in the order in which they came."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from clusterprep.errors import InputError
from clusterprep.jobs.launch.display import Source

KEPT = 20  # runs whose logs stay in the state folder
_RUN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


class Logs:
    """The files of one run, each made when there is a first line for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[Source, TextIO] = {}
        self.trouble = ""  # why lines are missing, where some are
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError.of(
                f"{folder} cannot be made: {error.strerror}", key="--log-dir"
            ) from None

    def write(self, source: Source, lines: Iterable[str]) -> None:
        """A full disk must not end the job."""
        try:
            if source not in self._open:
                self._open[source] = self.path(source).open(
                    "w", encoding="utf-8", errors="replace", newline="\n"
                )
            self._open[source].writelines(f"{line}\n" for line in lines)
        except OSError as error:
            self.trouble = self.trouble or f"{self.folder} lacks lines: {error.strerror}"

    def path(self, source: Source) -> Path:
        node, rank = source
        return self.folder / (f"torchrun-{node}.log" if rank is None else f"rank-{rank}.log")

    def flush(self) -> None:
        for file in self._open.values():
            try:
                file.flush()
            except OSError as error:
                self.trouble = self.trouble or f"{self.folder} lacks lines: {error.strerror}"

    def close(self) -> tuple[Path, ...]:
        """The files that there are, those of ranks first."""
        self.flush()
        for file in self._open.values():
            try:
                file.close()
            except OSError:
                continue
        return tuple(self.path(source) for source in sorted(self._open, key=_order))


def _order(source: Source) -> tuple[bool, int, str]:
    node, rank = source
    return (rank is None, rank or 0, node)


def forget_old(folder: Path) -> None:
    """Leave the newest runs in a folder of runs; what is no run of ours stays."""
    runs = (
        sorted(path for path in folder.glob("*") if _RUN.fullmatch(path.name))
        if folder.is_dir()
        else []
    )
    for path in runs[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)
