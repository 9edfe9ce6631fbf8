"""Without free descriptors a process blames itself, and refuses before it starts."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterprep.errors import InputError, Unreached
from clusterprep.inventory.local import local_inventory
from clusterprep.model import Node
from clusterprep.survey import open_files
from tests.support.command import report_schema
from tests.support.fleet import healthy

REFUSED = Unreached("auth_refused", "n1 does not let user root in", "ssh-copy-id n1")


@contextmanager
def limited(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def nodes(count: int) -> tuple[Node, ...]:
    return healthy(count).inventory.nodes


@pytest.mark.parametrize(
    ("count", "at_once", "limit", "enough"),
    [
        pytest.param(24, 24, 56, True, id="just-enough"),
        pytest.param(24, 24, 55, False, id="one-too-few"),
        pytest.param(100, 8, 40, True, id="few-at-once"),
    ],
)
def test_what_cannot_work_is_refused(count: int, at_once: int, limit: int, enough: bool) -> None:
    with limited(limit):
        if enough:
            open_files.refuse_too_few(nodes(count), at_once)
            return
        with pytest.raises(InputError, match=f"ulimit -n {count + open_files.LEAST_SPARE}"):
            open_files.refuse_too_few(nodes(count), at_once)


def test_a_node_of_this_machine_takes_three_pipes() -> None:
    with limited(open_files.LEAST_SPARE + 2), pytest.raises(InputError):
        open_files.refuse_too_few(local_inventory().nodes, 1)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_no_free_descriptor_is_this_machines_fault(number: int) -> None:
    own = open_files.own_fault(OSError(number, os.strerror(number)))
    assert own is not None
    assert own.reason == "busy"
    assert not own.answered
    assert "this machine" in own.message
    assert "ulimit -n" in own.remedy


def test_other_errors_are_not() -> None:
    assert open_files.own_fault(OSError(errno.ECONNRESET, "reset")) is None
    assert open_files.own_fault(REFUSED) is None


def test_what_a_node_seems_to_say_while_none_is_free_is_not_believed() -> None:
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
    with limited(max(held) + 2):
        filling = []
        while True:
            try:
                filling.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        own = open_files.own_fault(REFUSED)
        for descriptor in filling:
            os.close(descriptor)
    for descriptor in held:
        os.close(descriptor)
    assert own is not None
    assert own.reason == "busy"
    assert open_files.own_fault(REFUSED) is None


def fleet_file(folder: Path, port: int, count: int) -> Path:
    path = folder / "fleet.yaml"
    rows = [f"{{name: n{number}, address: 127.0.0.{number}}}" for number in range(1, count + 1)]
    path.write_text(
        f"cluster: many\ngpus: 0\nssh: {{port: {port}, connect_timeout: 2}}\n"
        f"nodes: [{', '.join(rows)}]\n"
    )
    return path


def cli(folder: Path, limit: int, *words: str, held: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command that may have `limit` open files, of which `held` are taken already."""
    script = f'ulimit -n {limit}; exec "$@"'
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(held)]
    try:
        return subprocess.run(
            ["bash", "-c", script, "bash", sys.executable, "-m", "clusterprep", *words],
            env={**os.environ, "XDG_STATE_HOME": str(folder)},
            pass_fds=taken,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for descriptor in taken:
            os.close(descriptor)


@pytest.mark.parametrize("command", ["check", "plan", "apply", "rollback", "verify", "env"])
def test_a_command_says_how_many_it_needs_before_it_starts(tmp_path: Path, command: str) -> None:
    done = cli(tmp_path, 40, command, str(fleet_file(tmp_path, 1, 24)))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "24 connections at once take 56 open files" in line
    assert "ulimit -n 56" in line


def test_descriptors_that_others_hold_are_no_fault_of_the_nodes(tmp_path: Path) -> None:
    """Nodes that are silent keep their connections open, until there is no descriptor left."""
    with socket.socket() as silent:
        silent.bind(("0.0.0.0", 0))
        silent.listen(128)
        path = fleet_file(tmp_path, silent.getsockname()[1], 30)
        done = cli(tmp_path, 70, "check", str(path), "--format", "json", held=40)
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    report_schema().validate(report)
    reasons = {node["reason"] for node in report["nodes"]}
    assert "busy" in reasons
    assert reasons <= {"busy", "no_banner", "timed_out"}
    assert {f["verdict"] for f in report["findings"] if f["check"] == "ssh.reach"} == {"unknown"}
