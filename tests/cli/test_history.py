"""`history`, `compare` and `report` over runs that were recorded, and what real runs record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from clusterprep.history.runs import Runs, packed
from clusterprep.reports import SUFFIXES, exit_code, render
from tests.history.fleets import FLEETS, NAMES, line, swapped, with_serials
from tests.history.regenerate import comparison
from tests.support.command import CLI, asked, report_schema

HISTORY = "history.sqlite"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with the runs of three fleets."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runs = Runs(tmp_path / "clusterprep")
    for make in FLEETS:
        report = make()
        runs.record(packed(report, line(report)))
    return tmp_path / "clusterprep"


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a command with --format json, which is valid whatever it says."""
    code, out, _ = asked(capsys, *words, "--format", "json")
    document = json.loads(out)
    report_schema().validate(document)
    return code, document


# ---------------------------------------------------------------- recorded fleets


def test_the_list_of_runs(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = answer(capsys, "history")
    assert code == 0
    assert [run["run"] for run in told["runs"]] == list(NAMES[::-1])
    assert [run["verdict"] for run in told["runs"]] == ["unknown", "fail", "pass"]
    assert [run["reached"] for run in told["runs"]] == [4, 8, 8]
    other = answer(capsys, "history", "--cluster", "other")[1]
    said = ["no run of cluster 'other' is recorded, but of test"]
    assert (other["runs"], other["notices"]) == ([], said)
    _, out, _ = asked(capsys, "history", "--cluster", "other")
    assert said[0] in out
    assert "no run is recorded yet" not in out


@pytest.mark.parametrize("make", FLEETS)
def test_a_report_is_rendered_as_it_was_the_first_time(
    state: Path, capsys: pytest.CaptureFixture[str], make: Any
) -> None:
    first = make()
    for fmt in SUFFIXES:
        code, out, _ = asked(capsys, "report", first.run, "--format", fmt)
        assert out == render(first, fmt)
        assert code == (exit_code(first, "nagios") if fmt == "nagios" else 0)


def test_a_run_is_written_to_files_as_any_report(
    state: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = [str(tmp_path / name) for name in ("a.json", "b.txt")]
    asked(capsys, "report", "last", *(word for file in files for word in ("--output", file)))
    last = FLEETS[-1]()
    assert [Path(file).read_text() for file in files] == [
        render(last, "json"),
        render(last, "console", width=100),
    ]


def test_a_run_is_shown_with_where_it_is_from(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["history", "show", "last~2"], ["history", "show", NAMES[0]]):
        code, told = answer(capsys, *words)
        assert (code, told["run"], told["verdict"]) == (0, NAMES[0], "pass")
        assert "from cluster.yaml" in told["notices"][0]
    code, out, _ = asked(capsys, "history", "--format", "json", "show", "last")
    assert (code, json.loads(out)["run"]) == (0, NAMES[2])


@pytest.mark.parametrize(
    ("words", "pair"), [(NAMES[:2], (0, 1)), (NAMES[1:], (1, 2)), (("last~2",), (0, 2))]
)
def test_two_runs_are_compared(
    state: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], pair: tuple[int, int]
) -> None:
    """As two reports that are at hand would be, facts of all nodes included."""
    code, told = answer(capsys, "compare", *words)
    assert code == 0
    found = told["comparison"]
    old, new = (FLEETS[place]() for place in pair)
    assert [row["run"] for row in (found["before"], found["after"])] == [old.run, new.run]
    direct = comparison(old, new)
    assert [(f["fact"], f["before"], f["after"], tuple(f["nodes"])) for f in found["facts"]] == [
        (f.fact, f.before, f.after, f.nodes) for f in direct.facts
    ]
    assert [
        (t["check"], t["verdict"], tuple(t["nodes"])) for t in (*found["new"], *found["fixed"])
    ] == [(t.check, t.verdict, t.nodes) for t in (*direct.new, *direct.fixed)]


def test_parts_that_moved_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the facts that were kept tell them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runs = Runs(tmp_path / "clusterprep")
    for report in (with_serials(), swapped()):
        runs.record(packed(report, line(report)))
    _, told = answer(capsys, "compare", *NAMES[:2])
    direct = comparison(with_serials(), swapped())
    assert told["comparison"]["parts"] == list(to_builtins(direct.parts))
    assert {move.part for move in direct.parts} >= {"GPU-n2-3", "GPU-n4-3", "S64HNE0NEW"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("report", "20261121-093000-0009"), f"did you mean {NAMES[0]}"),
        (("compare", "20261121", "last"), "3 runs begin with '20261121'"),
        (("history", "show", "never"), "no run is recorded as 'never'"),
        (("report", "last", "--format", "jsn"), "did you mean 'json'"),
        (("compare", "last~1", "last", "--output", "x.csv"), "names no report format"),
        (("report",), "Missing argument 'RUN'"),
    ],
)
def test_what_is_wrong_is_told_with_what_would_be_right(
    state: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    code, out, err = asked(capsys, *words)
    assert (code, out) == (2, "")
    assert told in err


def test_errors_are_documents_too(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = answer(capsys, "compare", "never", "last")
    assert (code, told["command"], told["error"]["code"]) == (2, "compare", 2)


def test_a_history_that_cannot_be_read_is_an_error_here(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / HISTORY).write_text("no database")
    code, _, err = asked(capsys, "history")
    assert code == 2
    assert f"mv -n {state / HISTORY} " in err


def test_no_history_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "none"))
    assert asked(capsys, "history")[0] == 0
    assert asked(capsys, "report", "last")[0] == 2
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- real runs of this machine

INVENTORY = """\
cluster: here
transport: local
nodes: [{{name: n1, address: 127.0.0.1, python: {python}}}]
require: {require}
"""


def checked(
    folder: Path, require: str = "{lim.nofile: 1}", *words: str, before: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any], str]:
    """`check` of this machine in a process of its own, with `folder` as its state."""
    inventory = folder / "inventory.yaml"
    inventory.write_text(INVENTORY.format(python=sys.executable, require=require))
    only = ("--only", "host.uptime,lim.nofile", "--format", "json")
    environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
    argv = [*before, *CLI, "check", str(inventory), *only, *words]
    done = subprocess.run(
        argv, capture_output=True, text=True, env=environment, check=False, timeout=60
    )
    document = json.loads(done.stdout)
    report_schema().validate(document)
    return done.returncode, document, done.stderr


def test_what_is_new_and_what_is_fixed_is_said(tmp_path: Path) -> None:
    _, first, _ = checked(tmp_path)
    code, second, _ = checked(tmp_path, "{lim.nofile: 99999999}")
    _, third, _ = checked(tmp_path)
    assert "since" not in first
    assert code == 1
    assert second["since"]["run"] == first["run"]
    assert [(turn["check"], turn["verdict"], turn["nodes"]) for turn in second["since"]["new"]] == [
        ("lim.nofile", "fail", ["n1"])
    ]
    assert [turn["check"] for turn in third["since"]["fixed"]] == ["lim.nofile"]
    runs = Runs(tmp_path / "clusterprep")
    assert [(run.run, run.verdict, run.code) for run in runs.all("here")][:2] == [
        (third["run"], third["verdict"], 0),
        (second["run"], "fail", 1),
    ]
    assert json.loads(render(runs.whole(second["run"]), "json")) == second


def test_under_a_budget_nothing_is_recorded(tmp_path: Path) -> None:
    _, told, _ = checked(tmp_path, "{}", "--budget", "20")
    assert "since" not in told
    assert not (tmp_path / "clusterprep").exists()


def spoiled(path: Path) -> None:
    path.write_bytes(b"no database at all")


def taken(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("harm", [spoiled, taken])
def test_a_check_does_not_fail_for_its_history(tmp_path: Path, harm: Any) -> None:
    path = tmp_path / "clusterprep" / HISTORY
    path.parent.mkdir()
    harm(path)
    code, told, _ = checked(tmp_path)
    assert code == 0
    assert any("this run is not in the history" in notice for notice in told["notices"])


def test_a_check_does_not_fail_where_there_is_no_room(tmp_path: Path) -> None:
    """No file may grow beyond eight kilobytes here."""
    little = ("bash", "-c", 'ulimit -f 8; exec "$@"', "bash")
    code, told, _ = checked(tmp_path, before=little)
    assert code == 0
    assert any("this run is not in the history" in notice for notice in told["notices"])
    assert len(checked(tmp_path)[1].get("notices", ())) == 0
    assert len(Runs(tmp_path / "clusterprep").all()) == 1


# ---------------------------------------------------------------- one check of a run


def test_what_one_check_found_in_a_run(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = answer(capsys, "report", NAMES[1])[1]
    failed = next(finding for finding in whole["findings"] if finding["verdict"] == "fail")
    code, told = answer(capsys, "explain", "--run", NAMES[1], failed["check"])
    assert (code, told["command"], told["run"]) == (0, "explain", NAMES[1])
    assert {finding["check"] for finding in told["findings"]} == {failed["check"]}
    assert failed in told["findings"]
    assert "nodes" not in told


def test_on_the_console_it_is_whole(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = answer(capsys, "report", NAMES[1])[1]
    warnings = [
        finding
        for finding in whole["findings"]
        if (finding["verdict"], finding["severity"]) == ("fail", "warning")
    ]
    _, out, _ = asked(capsys, "explain", "--run", "last~1", warnings[0]["check"])
    assert f"WARN     {warnings[0]['check']}" in out
    assert warnings[0]["message"] in out
    assert out.splitlines()[-1].strip() == f"more: clusterprep explain {warnings[0]['check']}"


def test_a_check_that_the_run_does_not_have(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = asked(capsys, "explain", "--run", "last", "ssh.rech")
    assert (code, out) == (2, "")
    assert "has no finding of 'ssh.rech'" in err
    assert "did you mean 'ssh.reach'?" in err


def test_wrong_input_is_no_run(
    state: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    inventory = tmp_path / "i.yaml"
    tree = tmp_path / "tree"  # in place of this machine's own folders
    tree.mkdir(mode=0o700)
    node = f"{{name: n1, address: 127.0.0.1, transport: local, root: {tree}}}"
    inventory.write_text(f"nodes: [{node}]\n")
    code, _, _ = asked(capsys, "rollback", str(inventory), "--run", "nothing")
    assert code == 2
    assert [run["run"] for run in answer(capsys, "history")[1]["runs"]] == list(NAMES[::-1])
