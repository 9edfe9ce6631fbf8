"""A marked block of lines in a file whose other lines belong to somebody else."""

from __future__ import annotations

import functools
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
from clusterprep.runtime.lazy_dataclass import dataclass

OWN = "clusterprep"  # markers that begin so are those of the blocks that other resources write


@dataclass(frozen=True)
class Marks:
    """The two lines around a block, which say whose it is."""

    begin: bytes
    end: bytes

    @classmethod
    def of(cls, marker: str, comment: str = "#") -> Marks:
        return cls(
            *(
                f"{comment} {word} {marker}: kept by clusterprep".encode()
                for word in ("BEGIN", "END")
            )
        )


def with_block(content: bytes, marks: Marks, block: bytes | None, top: bool = False) -> bytes:
    """The content with this block, where it stood or else at the end; with None as block, without it.

    Every other byte stays, but for a newline that the last line lacked. ValueError where the marks are no pair.
    """
    begins, ends = _places(content, marks.begin), _places(content, marks.end)
    if not begins and not ends:
        return (
            content
            if block is None
            else _added(content, _marked(block, marks, _newline(content)), top)
        )
    if len(begins) != 1 or len(ends) != 1 or begins > ends:
        raise ValueError(
            f"«{marks.begin.decode()}» and its END stand there {len(begins)} and {len(ends)} times"
        )
    ours = b"" if block is None else _marked(block, marks, _newline(content))
    return content[: begins[0][0]] + ours + content[ends[0][1] :]


def _places(content: bytes, mark: bytes) -> list[tuple[int, int]]:
    """Where a line that is this mark begins and ends. Lines end in a newline alone, and a carriage return before it.

    Found without taking the content apart: a block may have a line for each of ten thousand nodes, on each of them.
    """
    found = []
    at = content.find(mark)
    while at >= 0:
        end = content.find(b"\n", at) + 1 or len(content)
        if content[max(at - 1, 0) : at] in (b"", b"\n") and content[at:end].rstrip(b"\r\n") == mark:
            found.append((at, end))
        at = content.find(mark, at + 1)
    return found


def _newline(content: bytes) -> bytes:
    return b"\r\n" if content[: content.find(b"\n") + 1].endswith(b"\r\n") else b"\n"


@functools.lru_cache(16)  # what all nodes are to have is put together once
def _marked(block: bytes, marks: Marks, newline: bytes) -> bytes:
    rows = [marks.begin, *block.rstrip(b"\n").split(b"\n"), marks.end]
    return b"".join(row.rstrip(b"\r") + newline for row in rows)


def _added(content: bytes, block: bytes, top: bool) -> bytes:
    if top:
        return block + content
    missing = _newline(content) if content and not content.endswith(b"\n") else b""
    return content + missing + block


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (str(params["path"]),)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return ((str(params["path"]), str(params["marker"])),)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    absent = params.get("state") == "absent"
    if why := misplaced(str(params["path"])):
        yield "path", why
    if str(params["marker"]).startswith(OWN):
        yield "marker", f"a marker that begins with '{OWN}' is one of the tool's own"
    if "block" not in params and not absent:
        yield "block", "the key 'block' is missing, the lines that are to stand there"
    if "block" in params and absent:
        yield "block", "a block that is to be absent has no lines"
    marks = Marks.of(str(params["marker"]), str(params.get("comment", "#")))
    rows = str(params.get("block", "")).split("\n")
    if {marks.begin.decode(), marks.end.decode()} & set(rows):
        yield "block", "holds the line that marks where it begins or ends"


def plan(params: Params, known: PlanContext) -> Iterable[FileChange]:
    state = known.files[str(params["path"])]
    marks = Marks.of(str(params["marker"]), str(params.get("comment", "#")))
    absent = params.get("state") == "absent"
    block = None if absent else str(params["block"]).encode()
    if state.content is None and absent:
        return
    try:
        wanted = with_block(state.content or b"", marks, block, params.get("position") == "top")
    except ValueError as error:
        raise NoPlan("broken_block", f"{state.path}: {error}; mend it by hand") from None
    yield file_change(known.node, "line", state, wanted, MODE)


RESOURCE = Resource("line", paths, plan, parts=parts, wrong=wrong, variables=("block",))
