"""Printed launches, each started on real hosts by the program that it is for.

accelerate and Lightning are fetched by the tests. DeepSpeed, pdsh and Open MPI are taken from PATH,
where they are installed: `pip install deepspeed`, `apt install pdsh openmpi-bin`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.launch import PROGRAMS
from tests.support import training
from tests.support.command import CLI
from tests.support.lab import Lab
from tests.support.lab.fixtures import require_lab

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
LIMIT = 150  # seconds for a job
SCRIPT = "/root/launch.sh"
ODD = 'it\'s $HOME; "$(id)" \\ %h 100%'
# Rank, local rank and host, in the order of the ranks.
PLACES = [(0, 0, "n1"), (1, 1, "n1"), (2, 0, "n2"), (3, 1, "n2")]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    require_lab()
    with Lab(2) as two:
        yield two


def needed(*programs: str) -> None:
    """Skip the test where a program is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def printed(lab: Lab, form: str, python: str, *words: str) -> Path:
    """Return a file with the launch as text. Hosts have it as SCRIPT."""
    inventory = lab.inventory(nproc_per_node=2, python=python)
    done = lab.controller.run([*CLI, "launch", str(inventory), "--print", form, *words])
    assert done.returncode == 0, done.stderr
    script = lab.folder / f"{form}.sh"
    script.write_text(done.stdout)
    for host in lab.hosts:
        host.write(SCRIPT, done.stdout)
    return script


def on_every_host(lab: Lab, commands: dict[str, list[str]]) -> str:
    """Run a command on each host at once, and return what all printed."""
    running = {}
    for name, command in commands.items():
        running[name] = lab.host(name).popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    said = {name: process.communicate(timeout=LIMIT)[0] for name, process in running.items()}
    codes = {name: process.returncode for name, process in running.items()}
    assert set(codes.values()) == {0}, said
    return "".join(said.values())


def over_ssh(lab: Lab, script: Path, *more: str) -> str:
    """Run a script on the controller, whose ssh knows the lab's keys; return what it printed."""
    folder = lab.folder / "bin"
    folder.mkdir(exist_ok=True)
    words = lab.ssh(lab.host("n1"))
    options = shlex.join(["/usr/bin/ssh", *words[1:-1]])
    ssh = folder / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {options} "$@"\n')
    ssh.chmod(0o755)
    env = {"PATH": ":".join([str(folder), *more, os.environ["PATH"]])}
    done = lab.controller.run(["bash", str(script)], env=env, timeout=LIMIT, cwd=Path("/"))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tables(text: str) -> list[dict[str, Any]]:
    """Return what the ranks said of themselves, in their order.

    Words of several ranks may share a line, as each is written by itself; a table is one word.
    """
    rows = [json.loads(row) for row in re.findall(r'\{"RANK"[^}]*\}', text)]
    return sorted(rows, key=lambda row: int(row["RANK"]))


def places(rows: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    return [(int(row["RANK"]), int(row["LOCAL_RANK"]), row["node"]) for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + training.LIMIT)
def test_accelerate_trains(lab: Lab) -> None:
    printed(lab, "accelerate", training.required(), "--", str(PROGRAMS / "accelerate_gpt2.py"))
    text = on_every_host(lab, {name: ["bash", SCRIPT] for name in ("n1", "n2")})
    rows = tables(text)
    assert (places(rows), {row["WORLD_SIZE"] for row in rows}) == (PLACES, {4})
    assert len(re.findall(r"\bsteps\b", text)) == 4


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + training.LIMIT)
def test_lightning_trains_without_torchrun(lab: Lab) -> None:
    script = printed(
        lab, "lightning", training.required(), "--", str(PROGRAMS / "lightning_ddp.py")
    )
    lines = [line for line in script.read_text().splitlines() if line[:1] not in ("", "#")]
    commands = dict(zip(("n1", "n2"), lines, strict=True))
    text = on_every_host(lab, {name: ["sh", "-c", line] for name, line in commands.items()})
    rows = tables(text)
    assert (places(rows), {row["NODE_RANK"] for row in rows}) == (PLACES, {0, 1})
    assert len(re.findall(r"\bsteps\b", text)) == 4


@pytest.mark.timeout(LIMIT + 30)
def test_mpirun_starts_ranks_of_torch(lab: Lab) -> None:
    needed("mpirun")
    python = str(lab.inventory_content()["python"])
    words = ("--env", f"WORD={ODD}", "--", str(PROGRAMS / "ddp.py"))
    text = over_ssh(lab, printed(lab, "mpirun", python, *words))
    rows = tables(text)
    assert places(rows) == PLACES
    assert [row["NODE_RANK"] for row in rows] == ["0", "0", "1", "1"]
    assert {(row["WORD"], row["NCCL_DEBUG"], row["MASTER_ADDR"]) for row in rows} == {
        (ODD, "WARN", "10.77.0.2")
    }
    assert text.count("sum of ranks") == 4


def deepspeed_python() -> str:
    """Return the interpreter that has DeepSpeed."""
    needed("deepspeed")
    return str(Path(str(shutil.which("deepspeed"))).with_name("python"))


ZERO = str(PROGRAMS / "deepspeed_zero.py")


@pytest.mark.slow  # it compiles an operation of its own first
@pytest.mark.timeout(LIMIT + 30)
def test_deepspeed_trains_over_ssh_with_its_environment_file(lab: Lab) -> None:
    python = deepspeed_python()
    needed("pdsh")
    text = over_ssh(lab, printed(lab, "deepspeed", python, "--env", "WORD=plain", "--", ZERO))
    rows = tables(text)
    assert places(rows) == PLACES
    assert [row["argument"] for row in rows] == [0, 1, 0, 1]
    assert {(row["WORD"], row["NCCL_DEBUG"]) for row in rows} == {("plain", "WARN")}
    assert len(re.findall(r"\bsteps\b", text)) == 4


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 30)
def test_deepspeed_trains_without_ssh_where_values_are_odd(lab: Lab) -> None:
    words = ("--env", f"WORD={ODD}", "--", ZERO)
    printed(lab, "deepspeed", deepspeed_python(), *words)
    text = on_every_host(lab, {name: ["bash", SCRIPT, name] for name in ("n1", "n2")})
    rows = tables(text)
    assert places(rows) == PLACES
    assert {(row["WORD"], row["NODE_RANK"]) for row in rows} == {(ODD, "0"), (ODD, "1")}
    assert len(re.findall(r"\bsteps\b", text)) == 4
