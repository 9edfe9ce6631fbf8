"""What Tab offers, asked as the shells ask it; and that bash, zsh and fish take it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from clusterprep.cli.main import cli
from tests.support.command import CLI

INVENTORY = """\
cluster: c
nodes:
  - {name: "a[1-2]", address: "10.0.0.[1-2]"}
  - {name: b1, address: 10.0.0.3}
groups:
  rack1: {nodes: "a[1-2]"}
  rack2: {nodes: b1}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    (tmp_path / "other.yaml").write_text(INVENTORY.replace("a[1-2]", "c[1-2]"))
    (tmp_path / "broken.yaml").write_text("cluster: [")
    program = tmp_path / "program.sh"
    program.write_text("#!/bin/sh\ntouch ran\necho {}\n")
    program.chmod(0o755)
    return tmp_path


def asked(shell: str, words: str, folder: Path) -> list[str]:
    """Return what the program answers to a shell with these words, of which the last is typed."""
    count = words.count(" ")
    env = {**os.environ, "COMP_WORDS": words, "COMP_CWORD": str(count)}
    env.update(_CLUSTERPREP_COMPLETE=f"{shell}_complete", XDG_STATE_HOME=str(folder / "state"))
    done = subprocess.run(CLI, env=env, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def offered(words: str, folder: Path) -> list[str]:
    return [line.split(",", 1)[1] for line in asked("bash", words, folder)]


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ("clusterprep rollb", ["rollback"]),
        ("clusterprep check --onl", ["--only"]),
        ("clusterprep check i --only time.off", ["time.offset"]),
        ("clusterprep check i --only tim", ["time.", "time.daemon"]),
        ("clusterprep check i --skip net.ports,time.off", ["net.ports,time.offset"]),
        ("clusterprep check --limit ra", ["rack1", "rack2"]),
        ("clusterprep check other.yaml --limit c", ["c1", "c2"]),
        ("clusterprep check --limit rack2,a", ["rack2,a1", "rack2,a2"]),
        ("clusterprep explain NCCL_IB_HC", ["NCCL_IB_HCA"]),
        ("clusterprep explain lim.nof", ["lim.nofile"]),
        ("clusterprep plan i --playbook clo", ["clock-sync"]),
        ("clusterprep check i --format jun", ["junit"]),
        ("clusterprep report la", ["last"]),
        ("clusterprep bundle la", ["last"]),
    ],
)
def test_values_are_offered(words: str, some: list[str], folder: Path) -> None:
    values = offered(words, folder)
    assert set(some) <= set(values)
    typed = words.rsplit(" ", 1)[1]
    assert all(value.startswith(typed) for value in values)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("clusterprep check inv", "file"),
        ("clusterprep diagnose some", "file"),
        ("clusterprep bundle inv", "file"),
        ("clusterprep check i --output r", "file"),
        ("clusterprep plan i --playbook ./my", "file"),
        ("clusterprep fetch i /etc/hosts in", "dir"),
    ],
)
def test_the_shell_offers_files(words: str, kind: str, folder: Path) -> None:
    assert asked("bash", words, folder) == [f"{kind},{words.rsplit(' ', 1)[1]}"]


@pytest.mark.parametrize("inventory", ["broken.yaml", "none.yaml", "program.sh", "."])
def test_an_inventory_that_cannot_be_read_offers_nothing(inventory: str, folder: Path) -> None:
    assert asked("bash", f"clusterprep check {inventory} --limit a", folder) == []
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_what_takes_files_nodes_or_checks_offers_them(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    command = cli.commands[name]
    context = click.Context(command, resilient_parsing=True)
    for param in command.params:
        if param.name in ("inventory", "limit", "only", "skip", "output", "playbook"):
            assert param.shell_complete(context, ""), param.name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_read_their_script(shell: str, folder: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    (folder / "script").write_text(script_of(shell))
    done = subprocess.run(
        [program, "-n", "script"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def script_of(shell: str) -> str:
    env = {**os.environ, "_CLUSTERPREP_COMPLETE": f"{shell}_source"}
    return subprocess.run(CLI, env=env, capture_output=True, text=True, check=True).stdout


def test_bash_completes_a_line(folder: Path) -> None:
    program = folder / "clusterprep"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(CLI)} "$@"\n')
    program.chmod(0o755)
    script = f"""{script_of("bash")}
    COMP_WORDS=(./clusterprep check --limit rack2,a)
    COMP_CWORD=3
    _clusterprep_completion ./clusterprep
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["rack2,a1", "rack2,a2"]
