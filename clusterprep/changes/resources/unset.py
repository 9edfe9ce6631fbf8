"""A variable that a file no longer sets: its lines become comments, all others stay."""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusterprep.changes.resources import (
    NoPlan,
    Params,
    Part,
    PlanContext,
    Resource,
    file_change,
    misplaced,
)
from clusterprep.changes.resources.file import MODE
from clusterprep.model import Inventory
from clusterprep.model.files import FileChange

OFF = "# switched off by clusterprep: "
# In a shell a comment is no statement: `if …; then` with nothing but comments is a mistake.
SHELL_OFF = ": " + OFF
_SHELL_FILE = re.compile(r"(/\.?\w*(rc|profile|login|logout|env)|\.sh)$")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# A value of one word, so that nothing else of the line is switched off with it.
_VALUE = r"""(?:"[^"\\]*"|'[^'\\]*'|[^\s"';&|\\]*)"""


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (str(params["path"]),)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return ((str(params["path"]), f"unset {params['name']}"),)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    why = misplaced(str(params["path"]))
    if why:
        yield "path", why
    if not _NAME.fullmatch(str(params["name"])):
        yield "name", "expected the name of a variable, such as NCCL_DEBUG"


def without_setting(path: str, content: bytes, name: str) -> bytes:
    """Return the file with each line that only sets this variable as a comment.

    Raises ValueError for a line that sets it and does more.
    """
    off = SHELL_OFF if _SHELL_FILE.search(path) else OFF
    word = re.escape(name)
    alone = rf"""\s*(?:export\s+|Environment=)?["']?{word}={_VALUE}["']?\s*(?:\s#.*)?"""
    only_sets = re.compile(alone.encode())
    sets = re.compile(rf"""[^#]*(?<![\w$])(?<!\${{){word}=""".encode())
    lines = []
    continues = False  # the line before ends with a backslash
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        text = line.rstrip(b"\r\n")
        if only_sets.fullmatch(text) and not continues:
            lines.append(off.encode() + line)
        elif sets.match(text) and not text.startswith(SHELL_OFF.encode()):
            raise ValueError(f"line {number} sets {name} and does more")
        else:
            lines.append(line)
        continues = text.endswith(b"\\")
    return b"".join(lines)


def plan(params: Params, context: PlanContext) -> Iterable[FileChange]:
    state = context.files[str(params["path"])]
    if state.content is None:
        return
    try:
        wanted = without_setting(state.path, state.content, str(params["name"]))
    except ValueError as error:
        raise NoPlan("cannot", f"{state.path}: {error}; change it by hand") from None
    yield file_change(
        context.node,
        "unset",
        state,
        wanted,
        MODE,
    )


RESOURCE = Resource("unset", paths, plan, parts=parts, wrong=wrong)
