"""Plans a rollback to the old bytes of a run, unless that would destroy later work. Pure.

A rollback needs nothing but the journals of the nodes, not even the machine that ran the apply. It
is refused if a file differs from what the run wrote, or if a newer run wrote the same file. A
rollback that first had to roll back an interrupted run stops there: that run was the last one.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterprep.changes.file_plan import diff_text
from clusterprep.errors import InputError, Refused
from clusterprep.facts.journal import LARGEST_NUMBER, parse_nodes
from clusterprep.model.files import Access, FileChange
from clusterprep.remote.untrusted import as_list, require_integer, require_text

LONGEST_PATH = 4096  # characters; PATH_MAX of Linux
NAMED = 3  # runs that a hint names


class OldFile(Struct, frozen=True):
    """A file that a run wrote: its bytes before and after the run, and now. None means no file.

    `strange` says what stands there instead of a file. `was` has owner and mode from before, if
    the run changed them, and `access` those of now.
    """

    path: str
    mode: int
    before: bytes | None
    after: bytes | None
    now: bytes | None
    strange: str | None = None
    resource: str = "env"
    running: bool = False
    was: Access | None = None
    access: Access | None = None


class OldRun(Struct, frozen=True):
    """A run as a node remembers it; `undoes` names the run that this one rolled back.

    `by` names the rollback that undid this run, which had been interrupted. `number`, `nodes` and
    `node` are those of JournalEntry. `reversible` says whether anything of it can be put back. A
    run in batches has the nodes of each under `batches`, and `batch` is the number of this one.
    """

    run: str
    cluster: str
    state: str
    undoes: str | None
    files: tuple[OldFile, ...]
    by: str | None = None
    number: int = 0
    nodes: tuple[str, ...] = ()
    node: str = ""
    reversible: bool = True
    batch: int = 0
    batches: tuple[tuple[str, ...], ...] = ()

    @property
    def order(self) -> tuple[int, str]:
        """A key by which newer runs come later."""
        return self.number, self.run

    @property
    def is_done(self) -> bool:
        """Whether it is done and can be rolled back: it is no rollback, and changed something."""
        return self.state == "done" and self.undoes is None and self.reversible


RememberedRuns = Mapping[str, Sequence[OldRun]]  # by the name of the node


# ---------------------------------------------------------------- what nodes remember


def parse_runs(answer: Mapping[str, object]) -> tuple[OldRun, ...]:
    """Return the runs in the agent's answer to `runs`.

    Raises KeyError, TypeError or ValueError if it is not such an answer.
    """
    rows = answer["runs"]
    if not isinstance(rows, list):
        raise TypeError("runs is no list")
    return tuple(_parse_run(row) for row in rows)


def _parse_run(row: Mapping[str, object]) -> OldRun:
    files = row["files"]
    if not isinstance(files, list):
        raise TypeError("files is no list")
    parsed = tuple(_parse_file(file) for file in files)
    run = str(row["run"])
    cluster = str(row["cluster"])
    state = str(row["state"])
    undoes = _optional_text(row["undoes"])
    by = _optional_text(row["by"])
    number = require_integer(row["number"], most=LARGEST_NUMBER)
    nodes = parse_nodes(row["nodes"])
    node = str(row["node"])
    reversible = row["reversible"] is True
    batch = require_integer(row.get("batch", 0), most=LARGEST_NUMBER)
    batches = tuple(parse_nodes(nodes) for nodes in as_list(row.get("batches")))
    return OldRun(
        run,
        cluster,
        state,
        undoes,
        parsed,
        by,
        number,
        nodes,
        node,
        reversible,
        batch,
        batches,
    )


def _parse_file(row: Mapping[str, Any]) -> OldFile:
    path = require_text(row["path"], LONGEST_PATH)
    mode = int(row["mode"])
    before = _decoded(row["before"])
    after = _decoded(row["after"])
    now = _decoded(row["now"])
    strange = _optional_text(row["strange"])
    # Runs of old releases have none of the following.
    resource = str(row.get("resource") or "env")
    running = bool(row.get("running"))
    was = _parse_access(row.get("was"))
    access = _parse_access(row.get("access"))
    return OldFile(
        path,
        mode,
        before,
        after,
        now,
        strange,
        resource,
        running,
        was,
        access,
    )


def _parse_access(numbers: Any) -> Access | None:
    if numbers is None:
        return None
    return Access(*(int(number) for number in numbers))


def _optional_text(value: object) -> str | None:
    return None if value is None else str(value)


def _decoded(text: object) -> bytes | None:
    return None if text is None else base64.b64decode(str(text), validate=True)


# ---------------------------------------------------------------- what to roll back


def last_run(remembered: RememberedRuns, cluster: str, wanted: str | None) -> str | None:
    """Return the run to roll back: `wanted`, else the cluster's last that changed something.

    None if there is no such run. A run that could not commit everywhere rolled itself back and
    changed nothing. Raises InputError if no node remembers `wanted`.
    """
    if wanted is not None:
        _require_remembered(remembered, cluster, wanted)
        return wanted
    rolled_back = _rolled_back(remembered, cluster)
    last: OldRun | None = None
    for runs in remembered.values():
        for run in runs:
            # A run that was rolled back counts as well: rolling it back again changes nothing, and
            # the one before it must not be rolled back by mistake.
            is_undone = run.undoes is None and run.run in rolled_back
            if run.cluster != cluster or not (run.is_done or is_undone):
                continue
            if last is None or run.order > last.order:
                last = run
    return None if last is None else last.run


def standing_before(remembered: RememberedRuns, cluster: str, run: str) -> str | None:
    """Return the newest run before `run` that is not undone, or None.

    Only nodes that remember both can tell. It is what a second rollback may be meant for.
    """
    rolled_back = _rolled_back(remembered, cluster)
    last: OldRun | None = None
    for runs in remembered.values():
        orders = [old.order for old in runs if old.run == run]
        for old in runs:
            if old.cluster != cluster or not old.is_done or old.run in rolled_back:
                continue
            is_earlier = bool(orders) and old.order < max(orders)
            if is_earlier and (last is None or old.order > last.order):
                last = old
    return None if last is None else last.run


def _require_remembered(remembered: RememberedRuns, cluster: str, wanted: str) -> None:
    """Raise InputError if no node remembers this run, or if it is a rollback itself."""
    for runs in remembered.values():
        for run in runs:
            if run.run == wanted and run.cluster == cluster and run.undoes is None:
                return
    message = f"no node remembers a run {wanted!r} of cluster {cluster!r}"
    raise InputError.of(message, key="--run", hint=_remembered_names(remembered, cluster))


def _remembered_names(remembered: RememberedRuns, cluster: str) -> str | None:
    """Return the newest runs that could be named, for a hint; None if there are none."""
    orders: dict[str, tuple[int, str]] = {}
    for runs in remembered.values():
        for run in runs:
            if run.cluster == cluster and run.is_done:
                orders[run.run] = run.order
    newest = sorted(orders, key=lambda name: orders[name], reverse=True)[:NAMED]
    return f"they remember {', '.join(newest)}" if newest else None


def _rolled_back(remembered: RememberedRuns, cluster: str) -> set[str | None]:
    """Return the names of the runs that rollbacks have undone, on one node at least."""
    names: set[str | None] = set()
    for runs in remembered.values():
        for run in runs:
            if run.cluster != cluster:
                continue
            if run.state == "done":
                names.add(run.undoes)
            if run.by is not None:
                names.add(run.run)
    return names


class OtherNodes(Struct, frozen=True):
    """The nodes of a run that cannot be rolled back now.

    `forgetful` were asked and remember nothing of it, `not_asked` are all others. Those of a batch
    that may not have begun are `perhaps` if they were asked and remember nothing of it either, and
    else `perhaps_not_asked`. `taken_back` remember nothing of it, and their batch was taken back.
    """

    forgetful: tuple[str, ...] = ()
    not_asked: tuple[str, ...] = ()
    perhaps: tuple[str, ...] = ()
    perhaps_not_asked: tuple[str, ...] = ()
    taken_back: tuple[str, ...] = ()


def other_nodes(remembered: RememberedRuns, run: str) -> OtherNodes:
    """Return the nodes on which a run wrote as well and that do not remember it.

    Runs of old releases do not name their nodes.
    """
    wanted: dict[str, None] = {}
    seen = set()
    parts: list[tuple[OldRun, bool]] = []
    for node, runs in remembered.items():
        for old in runs:
            if old.run == run:
                wanted.update(dict.fromkeys(old.nodes))
                seen.add(old.node or node)
                parts.append((old, any(later.undoes == run for later in runs)))
    begun, later = _nodes_of_batches(parts)
    wanted.update(dict.fromkeys(begun))
    missing = [name for name in wanted if name not in seen]
    possible = [name for name in later if name not in seen and name not in wanted]
    undone = _taken_back(parts)
    forgetful, not_asked = _asked_and_not(missing, remembered)
    perhaps, perhaps_not_asked = _asked_and_not(possible, remembered)
    return OtherNodes(
        forgetful=tuple(name for name in forgetful if name not in undone),
        not_asked=tuple(not_asked),
        perhaps=tuple(perhaps),
        perhaps_not_asked=tuple(perhaps_not_asked),
        taken_back=tuple(name for name in forgetful if name in undone),
    )


def _asked_and_not(names: Iterable[str], asked: Container[str]) -> tuple[list[str], list[str]]:
    """Return the names of nodes that were asked, and the others."""
    found: list[str] = []
    others: list[str] = []
    for name in names:
        if name in asked:
            found.append(name)
        else:
            others.append(name)
    return found, others


def _nodes_of_batches(parts: Iterable[tuple[OldRun, bool]]) -> tuple[list[str], list[str]]:
    """Return the nodes of batches that have begun, and those of batches of which it is not known.

    `parts` are one run as several nodes remember it, each with whether a rollback was there. A
    batch begins once the one before it is done everywhere: so all before one that is remembered
    have begun, and those after it may have, unless it was taken back when it was written.
    """
    last = 0
    taken_back = 0
    all_batches: tuple[tuple[str, ...], ...] = ()
    for old, has_rollback in parts:
        if old.batch > last:
            last = old.batch
            all_batches = old.batches
        if old.state == "undone" and not has_rollback:
            taken_back = max(taken_back, old.batch)
    begun: list[str] = []
    perhaps: list[str] = []
    for number, nodes in enumerate(all_batches, start=1):
        if number <= last:
            begun.extend(nodes)
        elif not taken_back:
            perhaps.extend(nodes)
    return begun, perhaps


def _taken_back(parts: Iterable[tuple[OldRun, bool]]) -> set[str]:
    """Return the nodes of batches that were taken back when they were written.

    One that could not stage its files, as its disk was full, remembers nothing and has nothing.
    `parts` are as in `_nodes_of_batches`.
    """
    standing = set()
    names_by_batch: dict[int, set[str]] = {}
    for old, has_rollback in parts:
        if old.state != "undone" or has_rollback:
            standing.add(old.batch)
        names_by_batch.setdefault(old.batch, set()).update(old.nodes)
    names = set()
    for batch, of_batch in names_by_batch.items():
        if batch and batch not in standing:
            names |= of_batch
    return names


def plan_rollback(remembered: RememberedRuns, run: str, force: bool) -> tuple[FileChange, ...]:
    """Return the changes that put a run's old bytes back.

    Raises Refused if that would destroy later work, unless `force`.
    """
    changes: list[FileChange] = []
    reasons: list[str] = []
    edits: list[FileChange] = []
    for node, runs in remembered.items():
        for old in runs:
            if old.run != run or old.state != "done":
                continue
            for file in old.files:
                if file.strange:
                    raise Refused(f"{node}: {file.strange}; this rollback wrote nothing")
                reason = _later_work(node, runs, old, file)
                if reason:
                    reasons.append(reason)
                    edit = FileChange(
                        node,
                        file.resource,
                        file.path,
                        file.after,
                        file.now,
                    )
                    edits.append(edit)
                changes.append(_change_back(node, file))
    if reasons and not force:
        more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        message = f"{reasons[0]}{more}; --force puts the old bytes back all the same"
        raise Refused(message, diff_text(edits[0]))
    return tuple(changes)


def _change_back(node: str, file: OldFile) -> FileChange:
    """Return the change that puts the old bytes, owner and mode of a file back."""
    access = None if file.before is None else file.was
    return FileChange(
        node=node,
        resource=file.resource,
        path=file.path,
        before=file.now,
        after=file.before,
        mode=file.mode,
        access=access,
        was=file.access,
        running=file.running,
    )


def _later_work(node: str, runs: Sequence[OldRun], old: OldRun, file: OldFile) -> str:
    """Return why putting a file back would destroy later work; empty if it would not."""
    newest = ""
    for run in sorted(runs, key=lambda run: run.order):
        is_later = run.order > old.order and run.state == "done" and run.undoes is None
        if is_later and _wrote(run, file.path):
            newest = run.run
    if newest:
        return f"{node}: run {newest} changed {file.path} after run {old.run}"
    if file.now != file.after:
        return f"{node}: {file.path} was edited after run {old.run}"
    return ""


def _wrote(run: OldRun, path: str) -> bool:
    return any(file.path == path for file in run.files)
