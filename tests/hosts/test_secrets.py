"""Canaries: secrets given to a run, looked for in everything that it shows, writes and starts.

The memory of the agent and of the controller is out of reach, and root on a node sees what goes to
sudo there.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
import subprocess
import sys
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clusterprep.reports import SUFFIXES
from tests.remote.transports.sshd import new_key, public
from tests.support.command import CLI
from tests.support.lab import Lab, faults
from tests.support.patience import eventually, killed_on_failure

USER, CONF, STATE = "alice", "/etc/nccl.conf", "/var/lib/clusterprep"
# Of each run its own: a checkout, or what an earlier run left, may lie in a folder that is searched
# for them.
RUN = secrets.token_hex(4)


def of_this_run(place: str) -> bytes:
    return f"canary-of-{place}-{RUN}".encode()


# What is given to us, what stands in the way of what we look at, and what is handed to a job.
SUDO, PHRASE = of_this_run("sudo"), of_this_run("key")
CONTROLLER, FILE, LOGIN = of_this_run("controller"), of_this_run("file"), of_this_run("login")
ALL = (SUDO, PHRASE, CONTROLLER, FILE, LOGIN)
GIVEN = 'exec 3< {0}/sudo 4< {0}/phrase; exec "$@"'
BUG = """\
import clusterprep.cli.commands.check as command
def run(invocation): raise RuntimeError(repr((invocation, invocation.password(None))))
command.run = run
"""
JOB = "import os, time; assert os.environ['WANDB_API_KEY']; time.sleep(0.3); print('trained')"


def canaries(data: bytes) -> set[bytes]:
    return {canary for canary in ALL if canary in data}


# ---------------------------------------------------------------- what processes show


@dataclass
class Watcher:
    """Watch command lines and environments of all processes of this machine, also the hosts'."""

    looks: int = 0
    agents: int = 0
    known: set[tuple[str, bytes]] = field(default_factory=set)
    seen: dict[tuple[str, str], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    _over: threading.Event = field(default_factory=threading.Event)

    def _look(self) -> None:
        for name in filter(str.isdecimal, (path.name for path in Path("/proc").iterdir())):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                if line and (name, line) not in self.known and int(name) != os.getpid():
                    self.known.add((name, line))
                    self._note(line, Path(f"/proc/{name}/environ").read_bytes())
        self.looks += 1

    def _note(self, line: bytes, environment: bytes) -> None:
        words = line.replace(b"\0", b" ").decode(errors="replace")[:200]
        self.agents += b"-ISB" in line
        self.seen["argv", words] |= canaries(line)
        self.seen["environ", words] |= canaries(environment)

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self._look()

    @contextlib.contextmanager
    def watching(self) -> Iterator[Watcher]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def shown(self, part: str) -> dict[str, set[bytes]]:
        return {
            words: found for (where, words), found in self.seen.items() if where == part and found
        }


def test_the_watcher_sees_what_is_there() -> None:
    with Watcher().watching() as watcher:
        words = [sys.executable, "-c", "import time; time.sleep(600)", SUDO.decode()]
        with killed_on_failure(subprocess.Popen(words, env={"A": PHRASE.decode()})) as process:
            looks = watcher.looks
            assert eventually(lambda: watcher.looks >= looks + 2)  # one of them has begun since
            process.kill()
    assert SUDO in set().union(*watcher.shown("argv").values())
    assert PHRASE in set().union(*watcher.shown("environ").values())


# ---------------------------------------------------------------- what stays in files


def unpacked(value: object) -> bytes:
    """A cell of the history as bytes; what is packed as what it holds."""
    data = value if isinstance(value, bytes) else str(value).encode()
    with contextlib.suppress(zlib.error):
        return zlib.decompress(data)
    return data


def rows(database: Path) -> Iterator[bytes]:
    with contextlib.closing(sqlite3.connect(database)) as opened:
        for (table,) in opened.execute(
            "select name from sqlite_master where type = 'table'"
        ).fetchall():
            for row in opened.execute(f"select * from {table}"):  # noqa: S608 - the names are its own
                yield from map(unpacked, row)


def files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path


# ---------------------------------------------------------------- the runs


@dataclass
class Runs:
    """Commands of one controller, with all that they said."""

    lab: Lab
    folder: Path
    said: dict[str, bytes] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)

    def run(self, *words: str, given: str = GIVEN, name: str = "", **env: str) -> None:
        """A command with the secrets in files 3 and 4, or in `env`."""
        numbers = {"CLUSTERPREP_BECOME_PASSWORD_FD": "3", "CLUSTERPREP_KEY_PASSPHRASE_FD": "4"}
        state = {"XDG_STATE_HOME": str(self.folder / "state"), "WANDB_API_KEY": CONTROLLER.decode()}
        line = ["sh", "-c", given.format(self.folder), "sh", *CLI, *words]
        done = self.lab.controller.run(
            line, env={**state, **(numbers if given is GIVEN else {}), **env}, timeout=120
        )
        self.said[name or words[0]] = f"{done.stdout}\0{done.stderr}".encode()
        self.codes[name or words[0]] = done.returncode

    def write(self, command: str, *words: str) -> None:
        """The same with a report in every format."""
        self.run(
            command,
            str(self.folder / "inventory.yaml"),
            "-v",
            *outputs(self.folder / command),
            *words,
        )


def outputs(path: Path) -> list[str]:
    return [f"--output={path}{suffix}" for suffix in SUFFIXES.values()]


@pytest.fixture
def runs(make_lab: Callable[..., Lab], tmp_path: Path) -> Runs:
    """Hosts with secrets of their own, a user with a password, and a key with a passphrase."""
    lab = make_lab(2)
    key = new_key(tmp_path / "key", passphrase=PHRASE.decode())
    for host in lab.hosts:
        faults.add_user(host, USER, "password", SUDO.decode())
        host.write(f"/home/{USER}/.ssh/authorized_keys", f"{public(key)}\n")
        host.write(
            f"/home/{USER}/.profile",
            f'export NCCL_DEBUG=WARN HF_TOKEN="{LOGIN.decode()} {LOGIN.decode()}"\n',
        )
        host.write(CONF, f"# site\nNCCL_SITE_TOKEN={FILE.decode()}\n", 0o600)
    (tmp_path / "sudo").write_bytes(SUDO + b"\n")
    (tmp_path / "phrase").write_bytes(PHRASE + b"\n")
    ssh = {**lab.inventory_content()["ssh"], "user": USER, "identity_file": str(key)}
    lab.inventory(
        tmp_path / "inventory.yaml", ssh=ssh, become=True, job_user=USER, verify={"sizes": ["8"]}
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text(BUG)
    return Runs(lab, tmp_path)


def everything(runs: Runs) -> None:
    """Every command that logs in, each way to end, and every way to show it again."""
    inventory = str(runs.folder / "inventory.yaml")
    runs.write("check")
    runs.run("plan", inventory, "--diff")
    runs.write("apply", "--diff")
    environment = {
        "CLUSTERPREP_BECOME_PASSWORD": SUDO.decode(),
        "CLUSTERPREP_KEY_PASSPHRASE": PHRASE.decode(),
    }
    job = ("--direct", "--no-preflight", "--env", "WANDB_API_KEY", "--", "python", "-c", JOB)
    runs.run("launch", inventory, *job, given='exec "$@"', **environment)
    local = runs.folder / "local.yaml"
    local.write_text("transport: local\nnodes: [{name: here, address: 127.0.0.1}]\n")
    # A local agent is a process of ours and has our variables, but for the two that were given.
    runs.run(
        "check",
        str(local),
        "--only=host.",
        given='exec "$@"',
        name="local",
        **environment,
        WANDB_API_KEY="",
    )
    path = f"{runs.folder}/broken:{Path.cwd()}"
    runs.run("check", inventory, given='exec "$@"', name="bug", PYTHONPATH=path, **environment)
    runs.run("report", "last", *outputs(runs.folder / "again"), name="report")
    runs.run("history", "show", "last")
    runs.run("compare", "last~1", "last")


def hidden(path: Path, top: Path) -> bool:
    """Return whether a folder on the way is closed to other users."""
    return any(
        folder.stat().st_mode & 0o077 == 0 for folder in path.parents if folder.is_relative_to(top)
    )


def on_the_nodes(runs: Runs) -> None:
    """Old bytes alone hold what they held, and only root may read them."""
    mine = {CONF, f"/home/{USER}/.profile"}
    for host in runs.lab.hosts:
        upper = host.folder / "upper"
        found = {
            f"/{path.relative_to(upper)}" for path in files(upper) if canaries(path.read_bytes())
        }
        kept = sorted(found - mine)
        assert len(kept) == 2, kept
        assert all(
            re.fullmatch(rf"{STATE}/runs/[-0-9a-f]+/\d+\.(before|after)", name) for name in kept
        ), kept
        assert set(host.run(["stat", "-c", "%U %a", CONF, *kept]).stdout.splitlines()) == {
            "root 600"
        }
        pattern = "|".join(canary.decode() for canary in ALL)
        scratch = ["grep", "-rlE", pattern, "/run", "/tmp", "/var/tmp", "/dev/shm"]
        assert host.run(scratch, check=False).stdout == ""
        assert canaries((host.folder / "sshd.log").read_bytes()) == set()


@pytest.mark.hosts
def test_no_secret_leaves_the_place_that_it_was_given_to(runs: Runs) -> None:
    with Watcher().watching() as watcher:
        everything(runs)
    assert runs.codes.pop("bug") == 70
    assert set(runs.codes.values()) <= {0, 1, 3}, (runs.codes, runs.said)
    assert b"trained" in runs.said["launch"]
    assert b"<redacted>" in runs.said["plan"]

    assert (watcher.looks > 20, watcher.agents > 4) == (True, True)
    assert watcher.shown("argv") == {}
    # The job's own processes have what they were given, and its user's shells what his files set.
    environments = watcher.shown("environ")
    others = {
        words: found & {SUDO, PHRASE}
        for words, found in environments.items()
        if found & {SUDO, PHRASE}
    }
    assert all("-m clusterprep" in words for words in others), others
    assert not [words for words in environments if "-ISB" in words]

    assert {name: found for name, said in runs.said.items() if (found := canaries(said))} == {}
    state = runs.folder / "state" / "clusterprep"
    given = {runs.folder / "sudo", runs.folder / "phrase"}
    left = {path: canaries(path.read_bytes()) for path in files(runs.folder) if path not in given}
    assert {path: found for path, found in left.items() if found} == {}
    assert sum(path.suffix in SUFFIXES.values() for path in left) == 3 * len(SUFFIXES)
    assert [name for name in left if name.name.startswith("bug-")]
    cells = list(rows(state / "history.sqlite"))
    assert any(b"NCCL_DEBUG" in cell for cell in cells)
    assert set().union(*map(canaries, cells)) == set()
    open_to_others = [
        path for path in files(state) if path.stat().st_mode & 0o077 and not hidden(path, state)
    ]
    assert open_to_others == []
    on_the_nodes(runs)
