"""`bundle` of recorded runs: the archive, its exit codes, and what is refused."""

from __future__ import annotations

import json
import os
import re
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.cli.commands.record import line_of
from clusterprep.history.runs import Runs, packed
from clusterprep.model import LaunchResult
from tests.history.fleets import FLEETS, NAMES
from tests.support.command import asked, report_schema

INVENTORY = """\
cluster: test
ssh: {user: bwayne}
nodes:
- {name: "n[1-8]", address: "10.0.0.[1-8]"}   # of Bruce Wayne
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an inventory, whose runs are recorded; the last one launched a job."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    inventory = tmp_path / "cluster.yaml"
    inventory.write_text(INVENTORY)
    os.utime(inventory, (0, 0))
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "rank-0-n1.log").write_text("n1: WANDB_API_KEY=canary-1 as bwayne\n")
    runs = Runs(tmp_path / "state" / "clusterprep")
    for make in FLEETS:
        report = make()
        launch = LaunchResult("fail", "direct", 8, 1, "10.0.0.1:29500", logs=str(logs))
        report = replace(report, launch=launch if make is FLEETS[-1] else None)
        runs.record(packed(report, line_of(report, "cluster.yaml")))
    return tmp_path


def members(path: Path) -> dict[str, str]:
    """Return the files of an archive by name, without the folder that all are in."""
    texts = {}
    with tarfile.open(path) as opened:
        for entry in opened:
            body = opened.extractfile(entry)
            assert body is not None
            texts[entry.name.partition("/")[2]] = body.read().decode()
    return texts


def test_a_run_with_its_inventory_and_the_logs_of_its_job(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = asked(capsys, "bundle", "last", "--format", "json")
    told = json.loads(out)
    report_schema().validate(told)
    assert (code, told["command"], told["verdict"]) == (0, "bundle", "pass")
    (path,) = folder.glob("*.tar.gz")
    assert path.name == f"clusterprep-bundle-test-{NAMES[-1]}.tar.gz"
    assert path.name in told["notices"][0]
    files = members(path)
    assert files["inventory.yaml"] == INVENTORY
    assert files["logs/rank-0-n1.log"] == "n1: WANDB_API_KEY=<redacted>\n"
    assert json.loads(files["report.json"])["run"] == NAMES[-1]
    assert "This is an earlier run" in files["index.html"]
    assert "as it is now</td>" in files["index.html"]


def test_names_are_replaced_and_logs_added(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = folder / "bwayne.out"
    log.write_text("n2 at 10.0.0.2 died, says bwayne\n")
    words = ("last", "--redact", "--log", str(log), "--output", "b.tar.gz")
    code, out, err = asked(capsys, "bundle", *words)
    assert (code, err) == (0, "")
    assert "look at it before you post it" in " ".join(out.split())
    files = members(folder / "b.tar.gz")
    assert "inventory.json" in files
    for name, text in files.items():
        assert "bwayne" not in f"{name} {text}".lower(), name
        assert "10.0.0." not in text, name
    assert re.fullmatch(r"host-2 at addr-\d died, says user-1\n", files["logs/user-1.out"])


def test_of_a_long_log_the_end_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = folder / "long.out"
    log.write_text(f"the beginning\n{'x' * (9 << 20)}\nthe end\n")
    assert asked(capsys, "bundle", "last", "--log", "long.out", "--output", "b.tgz")[0] == 0
    files = members(folder / "b.tgz")
    assert files["logs/long.out"].endswith("x\nthe end\n")
    assert "the beginning" not in files["logs/long.out"]
    assert "the last 8.0 MiB of 9.0 MiB" in files["index.html"]


def test_an_inventory_that_is_of_other_nodes_now(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inventory = folder / "cluster.yaml"
    inventory.write_text(INVENTORY.replace("8]", "7]"))
    assert asked(capsys, "bundle", NAMES[0], "--output", "b.tgz")[0] == 0
    assert "cluster.yaml is of other nodes now" in members(folder / "b.tgz")["index.html"]
    inventory.chmod(0o666)
    asked(capsys, "bundle", NAMES[0], "--output", "b.tgz")
    assert "cluster.yaml is not read" in members(folder / "b.tgz")["index.html"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("never",), "no run is recorded as 'never'"),
        (("last", "--limit", "n1"), "--limit is about nodes; an earlier RUN asks none"),
        (("last", "--output", "b.zip"), "end with .tar.gz or .tgz"),
        (("last", "--output", "none/b.tar.gz"), "there is no folder"),
        (("last", "--log", "none.log"), "No such file"),
        ((), "give an INVENTORY"),
    ],
)
def test_what_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    code, _, err = asked(capsys, "bundle", *words)
    assert code == 2
    assert told in err
    assert not list(folder.glob("*.t*gz"))
