"""Write a bundle as tar.gz: the same bytes for the same contents.

Files are sorted, belong to root, and have the time of the run. Only their owner may read the
archive.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from clusterprep.reports.bundle.contents import Member
from clusterprep.runtime import files

LEVEL = 6  # of gzip; more takes several times as long for some percent


def write(path: Path, folder: str, members: Iterable[Member], seconds: int) -> str:
    """Write the members below `folder` of an archive. Return "", or why that failed.

    The archive is there as a whole or not at all. `seconds` since 1970 are the time of all files.
    """
    try:
        place = files.destination(path)
        draft = files.draft_beside(place)
        descriptor = files.open_exclusively(draft, files.PRIVATE)
        try:
            with open(descriptor, "wb") as sink:
                _pack(sink, folder, members, seconds)
                sink.flush()
                os.fsync(sink.fileno())
            draft.replace(place)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
    except OSError as error:
        return f"{path}: cannot be written: {error.strerror}"
    return ""


def _pack(sink: io.BufferedIOBase, folder: str, members: Iterable[Member], seconds: int) -> None:
    with (
        gzip.GzipFile("", "wb", LEVEL, sink, mtime=seconds) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member in sorted(members, key=lambda member: member.path):
            entry = tarfile.TarInfo(f"{folder}/{member.path}")
            entry.size = member.size
            entry.mtime = seconds
            entry.mode = files.PRIVATE
            archive.addfile(entry, io.BytesIO(zlib.decompress(member.packed)))
