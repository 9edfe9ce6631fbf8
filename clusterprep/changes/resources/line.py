"""A marked block of lines in a file whose other lines stay as they are."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from msgspec import Struct

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

OWN = "clusterprep"  # markers that begin so are those of the blocks that other resources write


class Marks(Struct, frozen=True):
    """The lines above and below a block, which name its owner."""

    begin: bytes
    end: bytes

    @classmethod
    def of(cls, marker: str, comment: str = "#") -> Marks:
        begin = f"{comment} BEGIN {marker}: kept by clusterprep"
        end = f"{comment} END {marker}: kept by clusterprep"
        return cls(begin.encode(), end.encode())


def with_block(content: bytes, marks: Marks, block: bytes | None, top: bool = False) -> bytes:
    """Return the content with this block in place of the former one; None removes it.

    A new block goes to the end, or with `top` to the beginning. Every other byte stays, except that
    a last line without a newline gets one. Raises ValueError where the marks are no pair.
    """
    begins = _places(content, marks.begin)
    ends = _places(content, marks.end)
    lines = b""
    if block is not None:
        newline = _newline(content)
        lines = _marked(block, marks, newline)
    if not begins and not ends:
        return _added(content, lines, top)
    if len(begins) != 1 or len(ends) != 1 or begins > ends:
        mark = marks.begin.decode()
        counts = f"{len(begins)} and {len(ends)}"
        raise ValueError(f"«{mark}» and its END stand there {counts} times")
    start, _ = begins[0]
    _, end = ends[0]
    return content[:start] + lines + content[end:]


def _places(content: bytes, mark: bytes) -> list[tuple[int, int]]:
    """Return where each line that is this mark begins and ends.

    Lines end in a newline, and maybe a carriage return before it. The content is not split into
    lines, because a block may have a line for each of ten thousand nodes, on each of them.
    """
    places = []
    at = content.find(mark)
    while at >= 0:
        end = content.find(b"\n", at) + 1
        if end == 0:
            end = len(content)
        begins_line = at == 0 or content[at - 1 : at] == b"\n"
        if begins_line and content[at:end].rstrip(b"\r\n") == mark:
            places.append((at, end))
        at = content.find(mark, at + 1)
    return places


def _newline(content: bytes) -> bytes:
    """Return the end of the first line, which a block then uses too."""
    first_line = content[: content.find(b"\n") + 1]
    return b"\r\n" if first_line.endswith(b"\r\n") else b"\n"


@functools.lru_cache(16)  # the block is the same on all nodes
def _marked(block: bytes, marks: Marks, newline: bytes) -> bytes:
    rows = block.rstrip(b"\n").split(b"\n")
    lines = [marks.begin]
    lines.extend(row.rstrip(b"\r") for row in rows)
    lines.append(marks.end)
    return newline.join(lines) + newline


def _added(content: bytes, block: bytes, top: bool) -> bytes:
    if not block:
        return content
    if top:
        return block + content
    if not content or content.endswith(b"\n"):
        return content + block
    return content + _newline(content) + block


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (str(params["path"]),)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return ((str(params["path"]), str(params["marker"])),)


def _marks(params: Params) -> Marks:
    marker = str(params["marker"])
    comment = str(params.get("comment", "#"))
    return Marks.of(marker, comment)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    why = misplaced(str(params["path"]))
    if why:
        yield "path", why
    if str(params["marker"]).startswith(OWN):
        yield "marker", f"a marker that begins with '{OWN}' is one of the tool's own"
    absent = params.get("state") == "absent"
    if "block" not in params and not absent:
        yield "block", "the key 'block' is missing, the lines that are to stand there"
    if "block" in params and absent:
        yield "block", "a block that is to be absent has no lines"
    marks = _marks(params)
    rows = str(params.get("block", "")).split("\n")
    if marks.begin.decode() in rows or marks.end.decode() in rows:
        yield "block", "holds the line that marks where it begins or ends"


def plan(params: Params, context: PlanContext) -> Iterable[FileChange]:
    path = str(params["path"])
    state = context.files[path]
    block = None
    if params.get("state") != "absent":
        block = str(params["block"]).encode()
    if state.content is None and block is None:
        return
    content = state.content or b""
    top = params.get("position") == "top"
    try:
        wanted = with_block(content, _marks(params), block, top)
    except ValueError as error:
        raise NoPlan("broken_block", f"{state.path}: {error}; mend it by hand") from None
    yield file_change(
        context.node,
        "line",
        state,
        wanted,
        MODE,
    )


RESOURCE = Resource("line", paths, plan, parts=parts, wrong=wrong, variables=("block",))
