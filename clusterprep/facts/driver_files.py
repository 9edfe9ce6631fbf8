"""The user libraries of the NVIDIA driver as files: what the loader's cache names, and its size."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from clusterprep.facts import Fact
from clusterprep.model import Read

_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)")


class DriverLibrary(Struct, frozen=True):
    """A library that programs load; `size` in bytes, None where the file does not exist.

    `version` is that in the name of the file behind the links, None where it has none.
    """

    path: str
    size: int | None
    version: str | None

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


def parse_libraries(rows: Iterable[Any]) -> tuple[DriverLibrary, ...]:
    """Return the libraries in the order of their paths."""
    return tuple(_library(*row) for row in rows)


def _library(path: Any, size: Any, name: Any) -> DriverLibrary:
    """Return one library. Raises ValueError or TypeError for what the agent does not send."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise ValueError(f"no path of a library: {path!r:.80}")
    if size is None:
        return DriverLibrary(path, None, None)
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(f"no size of a file: {size!r:.80}")
    match = _VERSION.search(name)
    return DriverLibrary(path, size, match[1] if match else None)


LIBRARIES = Fact(
    "nv.libraries", lambda node, inventory: (Read("driver_libraries"),), parse_libraries
)
