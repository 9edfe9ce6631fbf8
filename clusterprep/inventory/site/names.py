"""Files of a site, and the names of checks in them: also of a file that cannot be used.

Its checks are then unknown and not gone.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

NAME = re.compile(r"[a-z][a-z0-9_]{0,31}\.[a-z0-9][a-z0-9_]{0,63}", re.ASCII)
LARGEST = 1 << 20  # bytes of a file that are looked at
# `- name: site.thing` of YAML and `Check("site.thing"` of Python. The file may be another user's,
# so no name is looked for over several lines: time would grow by the square of empty ones.
_NAMES = re.compile(
    r"""(?:^[- \t]*name:[ \t]*["']?|\bCheck\(\s*(?:name\s*=\s*)?["'])"""
    r"([a-z][a-z0-9_]{0,31}\.[a-z0-9][a-z0-9_]{0,63})(?![\w.])",
    re.MULTILINE | re.ASCII,
)


def files_in(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the files of a folder with these suffixes, in the order of their names.

    Those that begin with a dot or an underscore, and tests, are left out.
    """
    if not folder.is_dir():
        return []
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix in suffixes and not path.name.startswith((".", "_", "test_")):
            found.append(path)
    return found


def name_of_file(path: Path) -> str:
    """Return the name of a check that stands for a file in reports: site.STEM."""
    word = re.sub(r"[^a-z0-9]+", "_", path.stem.lower()).strip("_")
    return f"site.{word[:64] or 'unnamed'}"


def names_in(path: Path) -> list[str]:
    """Return the names of checks that a file seems to have, each once; none if it has no text.

    Nothing of the file is run, and a pipe is not waited for.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return []
            content = stream.read(LARGEST)
    except OSError:
        return []
    text = content.decode("utf-8", "replace")
    return list(dict.fromkeys(_NAMES.findall(text)))
