"""What `clusterprep init` refuses, and what it says without a host to look at."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.command import CLI, report_schema


def init(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, "init", *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give HOST… or one of --from-ansible, --from-slurm, --from-ssh-config"),
        (("a", "--from-slurm"), "seen HOST and --from-slurm"),
        (("a", "--output", "-", "--format", "json"), "name a file"),
        (("a[1-2",), "bracket"),
        (("--from-ansible", "none.ini"), "there is no such file"),
        (("--from-ssh-config", "gpu*", "--ssh-config", "/dev/null"), "no Host line of /dev/null"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = init(tmp_path, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def test_init_without_scontrol_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # whatever this machine has
    done = init(tmp_path, "--from-slurm")
    assert done.returncode == 2
    assert "no scontrol on this machine" in done.stderr


def test_init_writes_nothing_if_no_host_answers(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening, so no other process does
        port = closed.getsockname()[1]
        done = init(tmp_path, "a=127.0.0.1", "--port", str(port))
    assert done.returncode == 3
    assert "a: refused" in done.stderr
    assert "nothing is written" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_report_of_an_init_is_one_document(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening, so no other process does
        port = closed.getsockname()[1]
        done = init(tmp_path, "a=127.0.0.1", "--port", str(port), "--format", "json")
    told = json.loads(done.stdout)
    report_schema().validate(told)
    assert (done.returncode, told["command"], told["verdict"]) == (3, "init", "unknown")
    assert [node["name"] for node in told["nodes"]] == ["a"]
    assert "nothing is written" in told["notices"][0]


def test_a_mistake_in_an_ansible_inventory_has_its_line_in_every_command(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("[gpu]\na ansible_user='{{ me }}'\n")
    argv = [*CLI, "check", "hosts", "--format", "json"]
    done = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert (error["file"], error["line"]) == ("hosts", 2)
    assert "template" in error["message"]
