"""Values about earlier runs: recorded runs, what changed since one, what differs between two.

They stand in the model because a report may carry them, so `history` and `compare` return reports
and every format can show them.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

Json = Any  # what json.loads gives


class Turn(Struct, frozen=True):
    """A check whose verdict on some nodes changed since an earlier run.

    `verdict` is that of now.
    """

    check: str
    verdict: str
    severity: str
    nodes: tuple[str, ...]


class Since(Struct, frozen=True):
    """What changed since an earlier run, among the checks and nodes that both judged."""

    run: str
    started: str  # RFC 3339, UTC
    new: tuple[Turn, ...] = ()
    fixed: tuple[Turn, ...] = ()


class RecordedRun(Struct, frozen=True):
    """A row of the list of runs. `errors` and `warnings` count the checks that fail."""

    run: str
    command: str
    cluster: str
    inventory: str  # path as it was given
    started: str  # RFC 3339, UTC
    seconds: float
    verdict: str
    code: int
    nodes: int
    reached: int
    errors: int
    warnings: int
    unknown: int
    tool: str = ""  # the version that wrote it
    size: int = 0  # bytes that it takes in the history


class FactChange(Struct, frozen=True):
    """A changed part of a fact on some nodes. `key` says which part; "" is the whole fact."""

    fact: str
    key: str
    before: Json
    after: Json
    nodes: tuple[str, ...]


class EnvChange(Struct, frozen=True):
    """A changed variable on some nodes. None means that it was or is not set."""

    name: str
    before: str | None
    after: str | None
    nodes: tuple[str, ...]


class SpeedChange(Struct, frozen=True):
    """Bus bandwidth in GB/s of one collective at one size, in both runs."""

    op: str
    dtype: str
    bytes: int
    before: float
    after: float


class PartPlace(Struct, frozen=True):
    """Where a part is. `slot` is a PCI address, "" for a disk, of which only the node is known."""

    node: str
    slot: str


class PartMove(Struct, frozen=True):
    """A part that is not where it was. It came if there is no place before, and went if none after.

    `kind` is gpu, rdma or disk; `part` is its UUID, GUID or serial number.
    """

    kind: str
    part: str
    before: PartPlace | None
    after: PartPlace | None


class Comparison(Struct, frozen=True):
    """What differs between two runs."""

    before: RecordedRun
    after: RecordedRun
    new: tuple[Turn, ...] = ()
    fixed: tuple[Turn, ...] = ()
    facts: tuple[FactChange, ...] = ()
    env: tuple[EnvChange, ...] = ()
    speeds: tuple[SpeedChange, ...] = ()
    came: tuple[str, ...] = ()  # nodes of the later run alone
    went: tuple[str, ...] = ()  # nodes of the earlier run alone
    parts: tuple[PartMove, ...] = ()
    beside: tuple[str, ...] = ()  # facts that only one of the two asked for
