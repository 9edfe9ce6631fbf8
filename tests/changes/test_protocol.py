"""Every order of apply, rollback, loss, death, refusal and lie on three nodes, up to a depth.

The nodes run the agent's own code below folders, the controller its own commands. After each
command what was said is compared with the bytes on the nodes, and from each state that can come to
be there has to be one command that makes all nodes equal.

    python -m tests.changes.test_protocol     # prints states, transitions and violations
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.changes.playbook.steps import Step
from clusterprep.changes.resources import file
from clusterprep.cli.commands.stages import Trial
from clusterprep.errors import ClusterprepError, Interrupted
from clusterprep.model import Report
from clusterprep.model.nodeset import expand
from tests.support.commands import new_command, result
from tests.support.written_nodes import KINDS, Cut, Fault, Tree, WrittenAgents, put_tree, tree_of

PLACE = "/etc/motd"
NAMES = ("n1", "n2", "n3")
OLD = b"old\n"
State = tuple[Tree, ...]  # the files of each node

APPLY_OPS = ("lock", "stage", "commit", "undo", "settle")
ROLLBACK_OPS = ("lock", "runs", "stage", "commit", "undo", "settle")
FAULTS = {
    command: [Fault(op, name, kind) for op, name, kind in itertools.product(ops, NAMES, KINDS)]
    for command, ops in (("apply", APPLY_OPS), ("rollback", ROLLBACK_OPS))
}


RUNS_FAULTS = [Fault("runs", name, kind) for name, kind in itertools.product(NAMES, KINDS)]


@dataclass(frozen=True)
class Move:
    """A command. `names` is its --limit, `down` is not reached, `clock` names the run."""

    command: str
    fault: Fault | None = None
    names: tuple[str, ...] = ()
    down: str = ""
    force: bool = False
    run: str = ""  # --run
    interrupted: bool = False  # by a signal, once all was written
    batches: bool = False  # --batches 1,rest
    gate: str = ""  # what happens when the batch of `gate_node` is tried: fails, dies, stops
    gate_node: str = ""
    rollback_all: bool = False

    def __str__(self) -> str:
        words = [self.command]
        if self.names:
            words.append(f"--limit {','.join(self.names)}")
        if self.down:
            words.append(f"--partial without {self.down}")
        if self.force:
            words.append("--force")
        if self.run:
            words.append(f"--run {self.run}")
        if self.interrupted:
            words.append("interrupted")
        if self.batches:
            words.append("--batches 1,rest")
        if self.rollback_all:
            words.append("--on-failure rollback-all")
        if self.gate:
            words.append(f"({self.gate} at the gate of {self.gate_node})")
        if self.fault:
            words.append(f"({self.fault.kind} at {self.fault.op} of {self.fault.node})")
        return " ".join(words)


@dataclass(frozen=True)
class Lie:
    """A manifest of one node that says another state than it should, or a node set up anew."""

    node: str
    state: str  # "" means that the node remembers nothing

    def __str__(self) -> str:
        if not self.state:
            return f"{self.node} is set up anew"
        return f"the journal of {self.node} is made to say {self.state}"


@dataclass
class Ending:
    """What a command said: a report, an error, or nothing, as the controller died."""

    state: State
    content: bytes = b""  # what an apply writes
    report: Report | None = None
    error: BaseException | None = None

    @property
    def said(self) -> str:
        if self.report is not None:
            return "\n".join(self.report.notices)
        if isinstance(self.error, ClusterprepError):
            return self.error.message
        return ""

    @property
    def code(self) -> int | None:
        if self.report is not None:
            return self.report.code
        return self.error.code if isinstance(self.error, ClusterprepError) else None


class World:
    """Three nodes below a folder, which can be put into any state."""

    def __init__(self, folder: Path, keep: int | None = None) -> None:
        self.folder = folder
        self.keep = keep  # runs that a node remembers, if not as many as usual
        self.commands = 0

    def start(self) -> State:
        tree: Tree = (("etc/motd", OLD),)
        return (tree,) * len(NAMES)

    def do(self, state: State, move: Move, depth: int) -> Ending:
        """Begin in a state, do one command, and return what it said and where it led.

        Clocks run backwards: a later run has an earlier name.
        """
        self._put(state)
        self.commands += 1
        agents = WrittenAgents(
            self.folder,
            len(NAMES),
            move.names,
            move.fault,
            self.keep,
        )
        if move.down:
            agents.unreachable.add(move.down)
        if move.interrupted:
            agents.interrupt_during = "second survey"
        content = f"{move.command} {depth}\n"
        step = Step("motd", file.RESOURCE, {"path": PLACE, "content": content}, line=1)
        left_out = tuple(node.name for node in agents.inventory.left_out)
        command = new_command(
            self.folder / "controller",
            agents,
            (step,),
            f"20261121-{99 - depth:02}0000-0000",
            partial=bool(move.down),
            force=move.force,
            left_out=left_out,
            run=move.run or None,
            batches=("1", "rest") if move.batches else (),
            gate="verify" if move.batches else "",
            rollback_all=move.rollback_all,
        )
        started = command.invocation.started - timedelta(days=depth)
        command = dataclasses.replace(
            command, invocation=replace(command.invocation, started=started)
        )
        ending = Ending(state, content.encode())
        try:
            if move.command == "apply":
                ending.report = command.apply(lambda *values: _trial(move, agents, *values))
            else:
                ending.report = command.rollback()
        except (ClusterprepError, Cut) as error:
            ending.error = error
        agents.finish()
        ending.state = self._state()
        return ending

    def lie(self, state: State, lie: Lie) -> State:
        self._put(state)
        root = self.folder / lie.node
        if not lie.state:
            put_tree(root, (("etc/motd", OLD),))
            return self._state()
        for place in root.glob("var/lib/clusterprep/runs/*/manifest.json"):
            manifest = json.loads(place.read_text())
            place.write_text(json.dumps({**manifest, "state": lie.state}))
        return self._state()

    def _put(self, state: State) -> None:
        for name, tree in zip(NAMES, state, strict=True):
            put_tree(self.folder / name, tree)

    def _state(self) -> State:
        return tuple(tree_of(self.folder / name) for name in NAMES)


def _trial(move: Move, agents: WrittenAgents, *values: Any) -> Trial:
    """The all-reduce of one batch, as the move has it."""
    names = {node.name for node in values[2].reached}
    if move.gate_node not in names:
        return Trial(result("pass"))
    if move.gate == "dies":
        agents.dead = True
        raise Cut
    if move.gate == "stops":
        agents.deadline.stop(Interrupted("interrupted by SIGTERM"))
        agents.deadline.check()
    return Trial(result("fail"))


# ---------------------------------------------------------------- what a state says


def contents(state: State) -> dict[str, bytes | None]:
    """What the file holds on each node."""
    return {name: dict(tree).get("etc/motd") for name, tree in zip(NAMES, state, strict=True)}


def manifests(state: State) -> dict[str, dict[str, dict[str, object]]]:
    """Node → run → manifest."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for name, tree in zip(NAMES, state, strict=True):
        found[name] = {}
        for path, data in tree:
            if path.endswith("manifest.json"):
                manifest = json.loads(data)
                found[name][manifest["run"]] = manifest
    return found


def is_settled(state: State) -> bool:
    """Whether `check` would find no run that was cut off."""
    for runs in manifests(state).values():
        for manifest in runs.values():
            if manifest["state"] in ("staged", "committed"):
                return False
    return True


def is_equal(state: State, liar: str = "") -> bool:
    """Whether all nodes but a liar have the same bytes."""
    seen = contents(state)
    seen.pop(liar, None)
    return len(set(seen.values())) == 1


def leftovers(state: State, liar: str) -> list[str]:
    """Files beside the one that is written, where no run is under way that may need them."""
    found = []
    for name, tree in zip(NAMES, state, strict=True):
        for path, _ in tree:
            if name == liar:
                continue
            if path.startswith("etc/") and path != "etc/motd":
                found.append(f"{name}:{path}")
    return found if is_settled(state) else []


# ---------------------------------------------------------------- what must hold


def violations(before: State, move: Move, ending: Ending, liar: str) -> Iterator[str]:
    """What a command said that is not so, or did not say."""
    if isinstance(ending.error, Cut):
        return
    yield from _untrue_about_files(before, ending, liar)
    yield from _untrue_about_undone(before, ending, liar)
    if move.batches:
        yield from _untrue_about_batches(ending, liar)
    # With --partial the user says that those decide who are asked; the others are named.
    if not move.force and move.down not in expand_all(ending.said):
        yield from _settled_by_a_part(before, ending, liar)
    if move.command == "rollback" and not move.run:
        yield from _undid_another_run(before, move, ending)
    if move.command == "apply" and ending.code == 0:
        yield from _forgot_at_once(before, ending)
    if leftovers(ending.state, liar):
        yield f"files are left beside others: {leftovers(ending.state, liar)}"
    is_limited = move.names or move.down
    if is_limited or not is_equal(before, liar) or is_equal(ending.state, liar):
        return
    if ending.code == 0 or not _names_a_node(ending):
        yield f"nodes differ, with code {ending.code} and these words: {ending.said!r}"


def _untrue_about_files(before: State, ending: Ending, liar: str) -> Iterator[str]:
    said = ending.said
    was = contents(before)
    changed = [name for name, data in contents(ending.state).items() if data != was[name]]
    if "nothing was written" in said and changed:
        yield f"nothing was written, and {changed} changed"
    if "put back on all nodes" in said and set(changed) - {liar}:
        yield f"put back on all nodes, and {changed} changed"
    put_back = r"what had been written was put back on (n\S+?)(?: only|;|$)"
    for pattern, untrue in ((put_back, changed), (r"stays on (n\S+?);", [])):
        found = re.search(pattern, said)
        for name in expand(found.group(1)) if found else ():
            if name in untrue:
                yield f"put back on {name}, and it was not"


def _untrue_about_batches(ending: Ending, liar: str) -> Iterator[str]:
    """Look for nodes that have something else than is said, in words or in rows of batches."""
    has_it = {name: data == ending.content for name, data in contents(ending.state).items()}
    said = {
        "new": re.search(r"(n\S+) has what this apply writes", ending.said),
        "old": re.search(r"(n\S+) has what was there before", ending.said),
        "unknown": re.search(r"of (n\S+) it is not known which of both", ending.said),
    }
    told = {what: expand(found.group(1)) if found else [] for what, found in said.items()}
    for what, wanted in (("new", True), ("old", False)):
        for name in told[what]:
            if name != liar and has_it[name] != wanted:
                yield f"{name} is said to have what is {what}, and it has not"
    if ending.report is None or not ending.report.batches:
        return
    named = {name for names in told.values() for name in names}
    if len(set(has_it.values())) > 1 and ending.code != 0 and named != set(NAMES):
        yield f"of {set(NAMES) - named} it is not said what it has"
    for row in ending.report.batches:
        for name in row.nodes:
            if name == liar:
                continue
            if row.outcome in ("rolled-back", "undone", "not-started") and has_it[name]:
                yield f"the batch of {name} is {row.outcome}, and it has the new bytes"
            if row.outcome in ("done", "unchanged") and not has_it[name]:
                yield f"the batch of {name} is {row.outcome}, and it has not the new bytes"


def _untrue_about_undone(before: State, ending: Ending, liar: str) -> Iterator[str]:
    """Look for nodes that a rolled back run wrote to and that are not named."""
    said = re.search(r"^run (\S+) is undone(?: on ([^;\s]+))?", ending.said, re.MULTILINE)
    if said is None:
        return
    run = said.group(1)
    wrote = set()
    for runs in manifests(before).values():
        if run in runs:
            wrote.update(expand(str(runs[run]["nodes"])))
    nodes = set(expand(said.group(2))) if said.group(2) else wrote
    states = {name: _state_of(run, before, ending.state, name) for name in sorted(wrote - {liar})}
    for name, state in states.items():
        if name in nodes and state != "undone":
            yield f"run {run} is said to be undone, and on {name} it is {state}"
        if name not in nodes and state != "undone" and name not in expand_all(ending.said):
            yield f"run {run} stays on {name}, which is not named"


def _undid_another_run(before: State, move: Move, ending: Ending) -> Iterator[str]:
    """Look for a rollback of a run that is not the last. Clocks run backwards here."""
    said = re.search(r"^run (\S+) is undone", ending.said, re.MULTILINE)
    if said is None:
        return
    done = set()
    for name, runs in manifests(before).items():
        if name == move.down or (move.names and name not in move.names):
            continue
        for run, manifest in runs.items():
            if manifest["state"] in ("done", "committed") and not manifest["undoes"]:
                done.add(run)
    if done and said.group(1) != min(done):
        yield f"run {said.group(1)} is undone, and {min(done)} was the last"


def _forgot_at_once(before: State, ending: Ending) -> Iterator[str]:
    """Look for nodes that were written to and do not remember by which run."""
    assert ending.report is not None
    was = contents(before)
    for name, data in contents(ending.state).items():
        if data != was[name] and ending.report.run not in manifests(ending.state)[name]:
            yield f"{name} was written to, and does not remember the run"


def _settled_by_a_part(before: State, ending: Ending, liar: str) -> Iterator[str]:
    """Look for runs that were cut off and are now done on one node and undone on another."""
    for (run, batch), states in _states_by_run(before, liar).items():
        later = _states_by_run(ending.state, liar).get((run, batch), set())
        was_open = bool(states & {"staged", "committed"})
        differed = "done" in states and bool(states & {"staged", "undone"})
        is_told = re.search(rf"run {run} (is undone|.*, and is done on )", ending.said)
        if not was_open or differed or is_told:
            continue
        if {"done", "undone"} <= later:
            yield f"run {run} was cut off, and is now done on some nodes and undone on others"


def _states_by_run(state: State, liar: str) -> dict[tuple[str, object], set[str]]:
    """The states of each run; of a run in batches those of each batch."""
    found: dict[tuple[str, object], set[str]] = {}
    for name, runs in manifests(state).items():
        for run, manifest in runs.items():
            if name == liar:
                continue
            batch = (run, manifest.get("batch", 0))
            found.setdefault(batch, set()).add(str(manifest["state"]))
    return found


def _state_of(run: str, before: State, after: State, name: str) -> str:
    """What a node knows of a run; one that was undone may be forgotten at once."""
    manifest = manifests(after)[name].get(run)
    if manifest is not None:
        return str(manifest["state"])
    return "undone" if run in manifests(before)[name] else "forgotten"


def expand_all(text: str) -> set[str]:
    """All names of nodes in a text."""
    names = set()
    for word in re.findall(r"\bn(?:\d|\[[\d,-]+\])", text):
        names.update(expand(word))
    return names


def _names_a_node(ending: Ending) -> bool:
    """Whether words or rows name a node for which it went otherwise than for the rest."""
    if expand_all(ending.said):
        return True
    rows = (ending.report and ending.report.changes) or ()
    return any(row.outcome in ("failed", "unanswered", "not-started") for row in rows)


def repairs(world: World, known: Known, depth: int) -> None:
    """Do what a user is told to, until all nodes are equal and settled.

    Raises AssertionError if that makes them neither.
    """
    tried = []
    state = known.state
    moves = (Move("rollback"), Move("rollback", force=True), Move("apply"))
    for later, move in enumerate(moves):
        if is_equal(state, known.liar) and is_settled(state):
            return
        ending = world.do(state, move, depth + 2 * later)
        tried.append(f"{move}: {ending.code} {ending.said}")
        state = ending.state
        named = re.search(r"rollback --run (2[\d-]+)", ending.said)
        if named and not is_equal(state, known.liar):
            again = Move("rollback", run=named.group(1), force=True)
            ending = world.do(state, again, depth + 2 * later + 1)
            tried.append(f"{again}: {ending.code} {ending.said}")
            state = ending.state
    assert is_equal(state, known.liar), "\n".join([*tried, repr(contents(state))])
    assert is_settled(state), "\n".join(tried)


# ---------------------------------------------------------------- the exploration


@dataclass(frozen=True)
class Known:
    """A state that can come to be, one story of how, and the node whose journal lies in it."""

    state: State
    story: tuple[str, ...]
    liar: str = ""


@dataclass
class Explored:
    """How much was tried, and what was wrong: a story for each kind of violation."""

    states: int = 0
    commands: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    stories: dict[str, str] = field(default_factory=dict)

    def note(self, what: str, story: Sequence[str]) -> None:
        kind = re.sub(r"20[\d-]+|n\d|n\[\S+\]", "…", what)[:150]
        self.wrong[kind] += 1
        self.stories.setdefault(kind, "\n  ".join([*story, what]))

    def __str__(self) -> str:
        lines = [f"{self.states} states, {self.commands} commands"]
        for kind, number in self.wrong.most_common():
            lines.append(f"\n{number} × {kind}\n  {self.stories[kind]}")
        return "\n".join(lines)


VIEWS = (
    Move(""),
    Move("", names=("n1",)),
    Move("", names=("n2", "n3")),
    Move("", down="n1"),
)
LATER_BATCHES = (
    Move("apply", batches=True),
    Move("apply", batches=True, gate="fails", gate_node="n2"),
)
LIES = [Lie(name, state) for name in NAMES for state in ("done", "undone", "")]


def moves(commands: Sequence[str], views: Sequence[Move], faults: bool) -> Iterator[Move]:
    """These commands with these views of the nodes, and with every fault."""
    for command, view in itertools.product(commands, views):
        yield dataclasses.replace(view, command=command)
        for fault in FAULTS[command] if faults else ():
            yield dataclasses.replace(view, command=command, fault=fault)
            if command == "apply" and fault.op == "undo":
                yield dataclasses.replace(view, command=command, fault=fault, interrupted=True)


def batched_moves() -> Iterator[Move]:
    """An apply in batches with every fault, with and without a gate that fails after it."""
    plain = Move("apply", batches=True)
    ends = [plain]
    for gate, node in itertools.product(("fails", "dies", "stops"), ("n1", "n2")):
        ends.append(dataclasses.replace(plain, gate=gate, gate_node=node))
    for end, rollback_all in itertools.product(ends, (False, True)):
        yield dataclasses.replace(end, rollback_all=rollback_all)
    for fault in (*FAULTS["apply"], *RUNS_FAULTS):
        yield dataclasses.replace(plain, fault=fault)
        failing = dataclasses.replace(plain, fault=fault, gate="fails", gate_node="n2")
        if fault.op in ("undo", "settle"):
            yield failing
        yield dataclasses.replace(failing, rollback_all=True)


def canonical(state: State) -> str:
    """The state as text in which runs have a rank and no name."""
    orders = set()
    for runs in manifests(state).values():
        for run, manifest in runs.items():
            orders.add((manifest["number"], run))
    text = repr(state)
    for rank, (_, run) in enumerate(sorted(orders, key=repr)):
        text = text.replace(str(run), f"run-{rank}")
    return text


def explore(
    world: World,
    depth: int,
    faults_at: Sequence[int] = (),
    lies: bool = False,
    batches: bool = False,
) -> Explored:
    """Begin with equal nodes, and go through all moves from each state, `depth` times.

    `faults_at` are the depths at which commands may go wrong. The first command after the
    beginning is always an apply to all nodes, with `batches` one in batches.
    """
    explored = Explored()
    # One good run that all remember, so that there is an older one that must stay.
    first = Known(world.do(world.start(), Move("apply"), 0).state, ("apply",))
    found = {canonical(first.state): first}
    frontier = [first]
    for level in range(1, depth + 1):
        commands, views = ("apply", "rollback"), VIEWS
        if level == 1:
            commands, views = ("apply",), VIEWS[:1]
        reached = []
        for known in frontier:
            chosen = list(moves(commands, views, level in faults_at))
            if batches:
                chosen = list(batched_moves()) if level == 1 else [*chosen, *LATER_BATCHES]
            for move in chosen:
                after = _after(world, known, move, level, explored)
                if found.setdefault(canonical(after.state), after) is after:
                    reached.append(after)
        if lies and level == 1:
            for known, lie in itertools.product(list(reached), LIES):
                liar = lie.node if lie.state else ""
                state = world.lie(known.state, lie)
                after = Known(state, (*known.story, str(lie)), liar)
                if found.setdefault(canonical(state), after) is after:
                    reached.append(after)
        frontier = reached
    for known in found.values():
        try:
            repairs(world, known, depth + 1)
        except AssertionError as error:
            explored.note(f"no command makes the nodes equal: {error}", known.story)
    explored.states = len(found)
    explored.commands = world.commands
    return explored


def _after(world: World, known: Known, move: Move, level: int, explored: Explored) -> Known:
    """Do a move, note what is wrong, and return where it led."""
    ending = world.do(known.state, move, level)
    story = (*known.story, f"{move} → {ending.code} {ending.said}")
    for what in violations(known.state, move, ending, known.liar):
        explored.note(what, story)
    return Known(ending.state, story, known.liar)


# ---------------------------------------------------------------- tests


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power fails here; tests of the agent hold the order of writes on disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def test_what_is_said_is_so_and_a_command_makes_all_nodes_equal(tmp_path: Path) -> None:
    explored = explore(World(tmp_path), depth=2, faults_at=(1,))
    assert explored.states > 50
    assert not explored.wrong, str(explored)


def test_a_journal_that_lies_harms_no_other_node(tmp_path: Path) -> None:
    explored = explore(World(tmp_path), depth=1, faults_at=(1,), lies=True)
    assert not explored.wrong, str(explored)


def test_what_nodes_have_forgotten(tmp_path: Path) -> None:
    """Each node remembers one run that can be rolled back, so that they soon forget."""
    explored = explore(World(tmp_path, keep=1), depth=3)
    assert not explored.wrong, str(explored)


def test_batches_are_as_they_are_said_to_be_and_one_command_makes_all_nodes_equal(
    tmp_path: Path,
) -> None:
    explored = explore(World(tmp_path), depth=1, batches=True)
    assert explored.states > 20
    assert explored.commands > 250
    assert not explored.wrong, str(explored)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_command_after_batches_that_went_wrong(tmp_path: Path) -> None:
    explored = explore(World(tmp_path), depth=2, batches=True)
    assert not explored.wrong, str(explored)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_batches_beside_a_journal_that_lies(tmp_path: Path) -> None:
    explored = explore(World(tmp_path), depth=1, lies=True, batches=True)
    assert not explored.wrong, str(explored)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_command_after_a_journal_that_lies(tmp_path: Path) -> None:
    explored = explore(World(tmp_path), depth=2, faults_at=(1,), lies=True)
    assert not explored.wrong, str(explored)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_commands_that_go_wrong_one_after_the_other(tmp_path: Path) -> None:
    explored = explore(World(tmp_path), depth=2, faults_at=(1, 2))
    assert not explored.wrong, str(explored)


if __name__ == "__main__":
    begun = time.monotonic()
    deep = "--deep" in sys.argv
    faults = (1, 2) if deep else (1,)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        print(explore(World(Path(name)), 2, faults, lies=not deep))
        print(explore(World(Path(name), keep=1), 3))
    print(f"{time.monotonic() - begun:.0f} s")
