"""Plays the rounds of a soak over a lab: breaks, runs, looks, judges, counts."""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.soak import observer, verdict
from tests.soak.commands import OwnProcess, Place, Resident, Running
from tests.soak.harm import Passing, planted
from tests.soak.observer import TARGETS, Seen, Templates, Versions
from tests.soak.schedule import FIRST_VALUE, Harm, Round, rounds
from tests.soak.table import Tally
from tests.soak.verdict import Case, Told
from tests.support.lab import Lab

FORKS = 16  # logins at once; two processors serve both ends of each
CHECKS = "ssh.,host.identity,time.offset,eth.mtu,state."
GRACE = 5.0  # seconds for what ends with a command to be gone
PATIENCE = 45.0  # seconds for agents without a connection, which end themselves after 30
USUAL = {
    "check": 3.0,
    "apply": 6.0,
    "rollback": 4.0,
    "verify": 10.0,
}  # seconds, until there are measured ones


@dataclass(frozen=True)
class Wanted:
    """What the caller asked for. `seed`, `nodes` and `share` make the schedule."""

    seed: int
    nodes: int
    share: float
    seconds: float


class Soak:
    """One soak: `play` until the time is over, then `finish`."""

    def __init__(
        self, lab: Lab, folder: Path, wanted: Wanted, say: Callable[[str], object] = print
    ) -> None:
        self.lab, self.wanted, self.tally, self._say = lab, wanted, Tally(), say
        self.nodes = [host.name for host in lab.hosts]
        self._token = uuid.uuid4().hex
        self._place = Place.below(folder)
        self._folder = folder
        self._resident = Resident(lab, self._place, self._token)
        self._history: dict[str, dict[str, set[Versions]]] = {}
        self._seconds: dict[str, list[float]] = {}
        self._forms: Templates = (b"", b"")
        self._seen: dict[str, Seen] = {}
        self._baseline: dict[str, frozenset[str]] = {}

    def play(self) -> None:
        """Play rounds, first one without any harm, until the time is over or ten violations."""
        schedule = rounds(self.wanted.seed, self.nodes, self.wanted.share)
        self._begin(next(schedule))
        end = time.monotonic() + self.wanted.seconds
        for turn in schedule:
            self._round(turn)
            if time.monotonic() > end or len(self.tally.wrong) >= 10:
                return

    def finish(self) -> None:
        """With nothing wrong any more all has to work at once, and in the end nothing is left."""
        self._until_quiet()
        for command in (
            "apply",
            "check",
            "rollback",
            "apply",
        ):  # a rollback brings back what applies with --partial left
            case = self._round(Round(-1, command, (), FIRST_VALUE - 1))
            if case.told.code != 0:
                self._wrong(
                    case.round,
                    [f"at the end, with nothing wrong: exit {case.told.code}: {_story(case.told)}"],
                )
        versions = {seen.versions for seen in self._seen.values()}
        pending = sorted(name for name, seen in self._seen.items() if seen.pending or seen.locked)
        if len(versions) > 1 or pending:
            self.tally.wrong.append(
                f"at the end: versions {versions}, not settled or locked: {pending}"
            )
        self._sizes()
        self._resident.close()
        self.tally.wrong += [
            *(f"still there at the end: {words}" for words in observer.with_token(self._token)),
            *verdict.leaks(self.tally.sizes),
            *verdict.trend(
                "the memory of one process that runs checks",
                [size.rss for size in self.tally.sizes[1:]],
            ),
        ]
        for command, peaks in self.tally.peaks.items():
            self.tally.wrong += verdict.trend(f"the peak memory of {command}", peaks)

    # ------------------------------------------------------------ rounds

    def _begin(self, first: Round) -> None:
        """Do the first apply, with nothing wrong.

        All later files must be like its files, byte for byte.
        """
        self._baseline = {name: seen.stray for name, seen in self._look().items()}
        self._seen = self._look()
        told = self._command(first).wait()
        files = [observer.bytes_of(self.lab.hosts[0], path) for path in TARGETS]
        if told.code not in (0, 1) or None in files:
            raise RuntimeError(f"the first apply did not work: exit {told.code}: {_story(told)}")
        self._forms = tuple(observer.template_of(data or b"", FIRST_VALUE) for data in files)
        before, self._seen = self._seen, self._look()
        self._remember(before)
        if {seen.versions for seen in self._seen.values()} != {(FIRST_VALUE, FIRST_VALUE)}:
            raise RuntimeError(f"the first apply did not write the same everywhere: {self._seen}")

    def _round(self, turn: Round) -> Case:
        before = self._seen
        started = time.monotonic()
        with planted(self.lab, turn.harms):
            began = time.monotonic()
            running = self._command(turn)
            harms = [self._passing(turn, harm, running) for harm in turn.harms if harm.at]
            told = running.wait()
            took = time.monotonic() - began
            left = self._processes(turn, told)
        for harm in harms:
            harm.join(60)
        trouble = [harm.trouble for harm in harms if harm.trouble]
        self._until_up()
        self._seen = self._look()
        self._remember(before)
        case = Case(turn, told, self.nodes, before, self._seen, self._history)
        wrong = [
            *verdict.violations(case),
            *left,
            *self._left_here(),
            *verdict.leftovers(self._baseline, self._seen),
        ]
        self._baseline = {
            name: self._baseline[name] | seen.stray for name, seen in self._seen.items()
        }  # told once
        self._note(turn, running, told, took)
        struck = [h.kind for h in turn.harms if not h.at] + [
            harm.harm.kind for harm in harms if harm.struck
        ]
        self.tally.count(turn.command, struck, [])
        self._wrong(turn, wrong, struck)
        self.tally.looked_at += (
            len(case.healthy) if told.report and "findings" in told.report else 0
        )
        missed = verdict.unreached(case)
        self.tally.unreached += len(missed)
        quiet = f", {len(missed)} healthy not reached ({','.join(missed[:4])})" if missed else ""
        told_harms = ", ".join(f"{h.kind} {h.node}".strip() for h in turn.harms) or "nothing wrong"
        self._say(
            f"{turn.number:4} {turn.command:8} exit {told.code:4} {took:5.1f} s "
            f"of {time.monotonic() - started:5.1f} s"
            f"{quiet}: {told_harms}{''.join(f' [{t}]' for t in trouble)}"
        )
        return case

    def _wrong(self, turn: Round, wrong: list[str], struck: list[str] | None = None) -> None:
        if not wrong:
            return
        for kind in struck or ():
            self.tally.survived[kind, turn.command] -= 1
        rows = [f"round {turn.number} ({turn.command}): {text}" for text in wrong]
        self.tally.wrong += rows
        for row in rows:
            self._say(f"     WRONG {row}")

    def _note(self, turn: Round, running: Running, told: Told, took: float) -> None:
        self.tally.codes[turn.command, told.code] += 1
        if told.killed or told.code == 130:
            return
        self._seconds.setdefault(turn.command, []).append(took)
        if isinstance(running, OwnProcess):
            self.tally.peaks.setdefault(turn.command, []).append(running.peak)

    def _remember(self, before: dict[str, Seen]) -> None:
        """What each node had before a run of which it now has a folder."""
        for name, seen in self._seen.items():
            for run in set(seen.runs) - set(before[name].runs):
                self._history.setdefault(run, {}).setdefault(name, verdict.bases(before[name]))

    # ------------------------------------------------------------ commands

    def _command(self, turn: Round) -> Running:
        words = [
            turn.command,
            str(self._inventory(turn)),
            "--format",
            "json",
            "--forks",
            str(FORKS),
        ]
        if turn.command == "check":
            words += ["--only", CHECKS]
            if not any(
                not harm.node for harm in turn.harms
            ):  # what is done to the command itself ends it
                self._sizes()
                return self._resident.start(words)
        elif turn.command == "apply":
            words += ["--only", CHECKS, "--no-verify", *(["--partial"] if turn.partial else [])]
        elif turn.command == "verify":
            words += ["--limit", ",".join(turn.nodes)]
        return OwnProcess(self.lab, self._place, self._token, words)

    def _inventory(self, turn: Round) -> Path:
        env = {observer.NAME: str(turn.value)}
        python = (
            sys.executable if turn.command == "verify" else "/usr/bin/python3"
        )  # importing torch takes a second
        checked = {"sizes": ["8", "1K"], "timeout": 20}
        return self.lab.inventory(
            self._folder / "inventory.yaml", env=env, python=python, verify=checked
        )

    def _passing(self, turn: Round, harm: Harm, running: Running) -> Passing:
        known = sorted(self._seconds.get(turn.command) or [USUAL[turn.command]])
        usual = known[
            len(known) // 4
        ]  # what comes later than a quick command takes would seldom meet one
        passing = Passing(self.lab, harm, running.pid, running.ended, usual)
        passing.start()
        return passing

    # ------------------------------------------------------------ looking

    def _look(self) -> dict[str, Seen]:
        return observer.look(self.lab.hosts, self._forms)

    def _sizes(self) -> None:
        self.tally.sizes.append(observer.size_of(self._resident.pid))

    def _processes(self, turn: Round, told: Told) -> list[str]:
        """Once it has returned, nothing of a command runs on healthy nodes, and nothing here."""
        hosts = [self.lab.host(name) for name in self.nodes if name not in turn.harmed()]
        found: list[str] = []
        for _ in _until(GRACE):
            running = observer.processes(hosts)
            found = [
                f"runs on {name} after the command: {w}"
                for name, words in running.items()
                for w in words
            ]
            if not found:
                break
        return found

    def _left_here(self) -> list[str]:
        found: list[str] = []
        for _ in _until(GRACE):
            others = [
                row
                for row in observer.with_token(self._token)
                if not row.startswith(f"{self._resident.pid} ")
            ]
            files = [path.name for path in self._place.scratch.iterdir()]
            found = [f"left on the controller: {what}" for what in (*others, *files)]
            if not found:
                break
        return found

    def _until_up(self) -> None:
        for _ in _until(30.0):
            if all(
                host.alive() and Path(f"/proc/{host.pid}/root/run/sshd.pid").exists()
                for host in self.lab.hosts
            ):
                return
        raise RuntimeError("a host of the lab did not come back")

    def _until_quiet(self) -> None:
        """Agents whose controller was killed while they could not be told end themselves."""
        for _ in _until(PATIENCE):
            running = observer.processes(self.lab.hosts)
            if not any(running.values()):
                return
        left = [f"{name}: {words}" for name, rows in running.items() for words in rows]
        self.tally.wrong += [
            f"still runs {PATIENCE:.0f} s after the last command: {row}" for row in left
        ]


def _until(seconds: float, pause: float = 0.1) -> Iterator[None]:
    """Turns with a pause between them until the time is over, one at least."""
    end = time.monotonic() + seconds
    while True:
        yield
        if time.monotonic() > end:
            return
        time.sleep(pause)


def _story(told: Told) -> str:
    with contextlib.suppress(KeyError, TypeError):
        return str((told.report or {})["error"]["message"])
    rows = (told.report or {}).get("findings", ())
    bad = [
        f"{row['check']} {row['verdict']} on {row['nodes']}"
        for row in rows
        if row["verdict"] in ("fail", "unknown")
    ]
    return "; ".join(bad) or told.stderr[-500:]
