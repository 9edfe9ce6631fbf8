"""Signals at counted moments of every command: exit code, words and bytes agree.

A node is this machine below a root of its own, written to by the real agent. What a signal at one
event may lead to is said in `judge`, from the bytes and the journal that are found afterwards.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.signal_points import Moment, Player, Run

OLD, NEW = "old\n", "new\n"
CHANGES = {"apply": (OLD, NEW), "rollback": (NEW, OLD)}  # by command: before and after it
LOG = "n1:1:2 [0] ibvwrap.c:160 NCCL WARN Call to ibv_create_qp failed\n"
PUT_BACK = "what had been written was put back on all nodes"
STAYS = "what was written stays on "
SHOWN = "when all was done and its result was being shown"


@dataclass
class Place:
    """A node below a root of its own, an inventory, a playbook and what commands read."""

    folder: Path
    player: Player

    @property
    def root(self) -> Path:
        return self.folder / "n1"

    def write(self) -> None:
        inventory = (
            f"cluster: played\ntransport: local\nroot: {self.root}\ngpus: 0\n"
            f"python: {sys.executable}\nnodes: [{{name: n1, address: 127.0.0.1}}]\n"
        )
        (self.folder / "one.yaml").write_text(inventory)
        (self.folder / "book.yaml").write_text('- file: {path: /etc/motd, content: "new\\n"}\n')
        (self.folder / "rank.log").write_text(LOG)
        (self.folder / "nccl.conf").write_text("NCCL_DEBUG=WARN\n")

    def words(self, command: str) -> list[str]:
        """The words of a command, by its name here."""
        inventory = str(self.folder / "one.yaml")
        book = ("--playbook", str(self.folder / "book.yaml"))
        only = ("--only", "state.")
        more: dict[str, Sequence[str]] = {
            "apply": ("apply", inventory, *book, *only, "--no-verify"),
            "plan": ("plan", inventory, *book, *only),
            "rollback": ("rollback", inventory),
            "check": ("check", inventory, "--only", "ssh.,lim.,os."),
            "env": ("env", inventory),
            "verify": ("verify", inventory),
            "launch": ("launch", inventory, "--direct", "--no-preflight", "--", "sleep", "0.3"),
            "validate": ("validate", inventory),
            "lint": ("lint", str(self.folder / "nccl.conf")),
            "diagnose": ("diagnose", str(self.folder / "rank.log")),
            "explain": ("explain", "eth.mtu"),
            "history": ("history",),
            "report": ("report", "last"),
            "compare": ("compare", "last~1", "last"),
            "init": ("init", "closed=127.0.0.1", "--port", "1", "--output", inventory + ".new"),
        }
        return [*more[command], *(("--no-color",) if command != "explain" else ())]

    def reset(self, command: str) -> None:
        """Bring the node to what the command finds: for a rollback, a run that is done."""
        shutil.rmtree(self.root, ignore_errors=True)
        (self.root / "etc").mkdir(parents=True)
        (self.root / "etc/motd").write_text(OLD)
        if command == "rollback":
            kept = self.folder / "applied"
            if not kept.exists():
                self.player.run(self.words("apply"))
                shutil.copytree(self.root, kept)
            shutil.rmtree(self.root)
            shutil.copytree(kept, self.root)

    def bytes_and_states(self) -> tuple[str, list[str]]:
        """The file's content, and the state of every run in the journal, oldest first."""
        runs = sorted((self.root / "var/lib/clusterprep/runs").glob("*/manifest.json"))
        states = [json.loads(path.read_text())["state"] for path in runs]
        return (self.root / "etc/motd").read_text(), states


COMMANDS = (
    "apply", "rollback", "plan", "check", "env", "verify", "launch", "validate", "lint", "diagnose",
    "explain", "history", "report", "compare", "init",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("signals")
    player = Player({"XDG_STATE_HOME": str(folder / "state")})
    made = Place(folder, player)
    made.write()
    for _ in range(2):  # for `compare`
        made.reset("check")
        player.run(made.words("check"))
    yield made
    player.close()


def clean_run(place: Place, command: str) -> Run:
    place.reset(command)
    done = place.player.run(place.words(command))
    assert done.code in (0, 1, 3), done
    assert done.events > 0
    return done


def judge(place: Place, command: str, clean: Run, done: Run) -> str:
    """Return what is wrong with a run that got a signal, or nothing."""
    content, states = place.bytes_and_states()
    before, after = CHANGES.get(command, (OLD, OLD))
    if "Traceback" in done.err or "a bug in clusterprep" in done.err + done.out:
        return "a bug"
    if done.code not in (clean.code, 130):
        return f"exit {done.code}"
    if {"staged", "committed"} & set(states) or content not in (before, after):
        return f"half done: {states}"
    if done.code == clean.code:
        return "" if content == after else "ended well without its bytes"
    return _untrue(done.err, stays=content != before, was_undone=states[-1:] == ["undone"])


def _untrue(said: str, stays: bool, was_undone: bool) -> str:
    """Return what an interrupted command does not say, or says wrongly."""
    if "interrupted" not in said:
        return "130 without a word"
    if stays and STAYS not in said and SHOWN not in said:
        return "its bytes stay, which it does not say"
    if not stays and STAYS in said:
        return "says that its bytes stay"
    if PUT_BACK in said and not was_undone:
        return "says that it was put back"
    return ""


def points(events: int, count: int) -> list[int]:
    """Return `count` events of a run, the first and the last among them."""
    return sorted({1 + (events - 1) * number // (count - 1) for number in range(count)})


def wrong(place: Place, command: str, count: int, moments: Sequence[Moment]) -> list[str]:
    """Run a command with a signal at each of `count` points; return what was wrong.

    The kinds of signals take turns.
    """
    clean = clean_run(place, command)
    found = []
    for number, at in enumerate(points(clean.events, count)):
        kind = moments[number % len(moments)]
        moment = Moment(at, kind.signals, kind.gap, kind.ignored)
        place.reset(command)
        done = place.player.run(place.words(command), moment)
        if kind.ignored:
            trouble = "" if done.code == clean.code else f"exit {done.code} though it is ignored"
        else:
            trouble = judge(place, command, clean, done)
        if trouble:
            found.append(f"{moment}: {trouble}: {done.err[-300:]}")
    return found


KINDS = [
    Moment(0, ("SIGINT",)),
    Moment(0, ("SIGTERM", "SIGHUP"), 0.001),
    Moment(0, ("SIGHUP",)),
    Moment(0, ("SIGINT", "SIGINT"), 0.05),
    Moment(0, ("SIGTERM",)),
    Moment(0, ("SIGINT",), ignored=("SIGINT",)),
]
SOME = {"apply": 10, "rollback": 8, "verify": 2}
MANY = {"verify": 40, "launch": 80}  # a run of theirs takes seconds
LATE = [Moment(0, ("SIGINT", "SIGINT"), 1.1)]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_at_some_moments_of_every_command(place: Place, command: str) -> None:
    assert wrong(place, command, SOME.get(command, 3), KINDS) == []


WRITING = tuple(CHANGES)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join((*kind.signals, *kind.ignored)))
@pytest.mark.parametrize("command", WRITING)
def test_every_signal_at_two_hundred_moments_of_what_writes(
    place: Place, command: str, kind: Moment
) -> None:
    assert wrong(place, command, 200, [kind]) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in WRITING])
def test_signals_at_two_hundred_moments_of_what_only_looks(place: Place, command: str) -> None:
    assert wrong(place, command, MANY.get(command, 200), KINDS) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("command", WRITING)
def test_a_second_signal_after_a_second_leaves_nothing_half_done(
    place: Place, command: str
) -> None:
    assert wrong(place, command, 60, LATE) == []
