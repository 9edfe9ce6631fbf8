"""A marked block of lines in a file whose other lines belong to somebody else."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.frozen import dataclass
from clusterprep.model import Inventory
from clusterprep.resources import Known, NoPlan, Params, Part, Resource, file_change
from clusterprep.resources.file import MODE
from clusterprep.wanted import FileChange

OWN = "clusterprep"  # markers that begin so are those of the blocks that other resources write


@dataclass(frozen=True)
class Marks:
    """The two lines around a block, which say whose it is."""

    begin: bytes
    end: bytes

    @classmethod
    def of(cls, marker: str, comment: str = "#") -> Marks:
        return cls(*(f"{comment} {word} {marker}: kept by clusterprep".encode() for word in ("BEGIN", "END")))


def with_block(content: bytes, marks: Marks, block: bytes | None, top: bool = False) -> bytes:
    """The content with this block, where it stood or else at the end; with None as block, without it.

    Every other byte stays, but for a newline that the last line lacked. ValueError where the marks are no pair.
    """
    lines = content.splitlines(keepends=True) if b"\r" not in content else _lines(content)
    found = [(number, line.rstrip(b"\r\n")) for number, line in enumerate(lines)]
    begins = [number for number, line in found if line == marks.begin]
    ends = [number for number, line in found if line == marks.end]
    if not begins and not ends:
        return content if block is None else _added(lines, _marked(block, marks, _newline(lines)), top)
    if len(begins) != 1 or len(ends) != 1 or begins > ends:
        raise ValueError(f"«{marks.begin.decode()}» and its END stand there {len(begins)} and {len(ends)} times")
    ours = [] if block is None else [_marked(block, marks, _newline(lines))]
    return b"".join([*lines[: begins[0]], *ours, *lines[ends[0] + 1 :]])


def _lines(content: bytes) -> list[bytes]:
    """Lines that end in a newline alone: bytes.splitlines would end one at a lone carriage return too."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _newline(lines: list[bytes]) -> bytes:
    return b"\r\n" if lines and lines[0].endswith(b"\r\n") else b"\n"


def _marked(block: bytes, marks: Marks, newline: bytes) -> bytes:
    rows = [marks.begin, *block.rstrip(b"\n").split(b"\n"), marks.end]
    return b"".join(row.rstrip(b"\r") + newline for row in rows)


def _added(lines: list[bytes], block: bytes, top: bool) -> bytes:
    if top:
        return block + b"".join(lines)
    missing = _newline(lines) if lines and not lines[-1].endswith(b"\n") else b""
    return b"".join(lines) + missing + block


def paths(params: Params, inventory: Inventory) -> tuple[str, ...]:
    return (str(params["path"]),)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return ((str(params["path"]), str(params["marker"])),)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    absent = params.get("state") == "absent"
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


def plan(params: Params, known: Known) -> Iterable[FileChange]:
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
