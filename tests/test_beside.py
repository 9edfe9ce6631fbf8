"""`make test` as two runs of pytest: both are shown, either fails it, one report, and a Ctrl-C puts everything away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests import beside
from tests.conftest import looks_at_the_clock

ROOT = Path(__file__).resolve().parents[1]
INI = "[pytest]\nmarkers =\n lab: x\n slow: x\n timed: x\n"
BOTH = """
import os, pytest, time
from pathlib import Path

@pytest.mark.lab
def test_of_hosts(): assert os.nice(0) == {nice}

def test_of_figures(): assert os.nice(0) == min({nice} + 10, 19) and {truth}

@pytest.mark.slow
def test_of_minutes(): assert False
"""
WAITING = """
import os, pytest, time
from pathlib import Path

@pytest.fixture
def held():
    yield
    time.sleep(0.5)
    Path("put away {name}").touch()

{mark}
def test_it(held):
    Path("up {name}").write_text(str(os.getpid()))
    time.sleep(60)
"""


def argv(*words: str) -> list[str]:
    return [sys.executable, "-m", "tests.beside", "-p", "no:cacheprovider", *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}", "PYTEST_ADDOPTS": ""}


def run(folder: Path, *words: str, truth: bool = True) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(INI)
    (folder / "test_both.py").write_text(BOTH.format(nice=os.nice(0), truth=truth))
    return subprocess.run(argv(*words), cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def test_both_are_shown_and_one_report_has_all(tmp_path: Path) -> None:
    done = run(tmp_path, "-v", "--durations=3", "--junitxml=all/report.xml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.index("test_both.py::test_of_hosts PASSED") < done.stdout.index("test_of_figures PASSED")
    assert "test_of_minutes" not in done.stdout
    assert done.stdout.count("slowest 3 durations") == 2
    report = ET.parse(tmp_path / "all/report.xml")  # noqa: S314  # of ours
    cases = sorted(case.get("name") or "" for case in report.iterfind("./testsuite/testcase"))
    assert cases == ["test_of_figures", "test_of_hosts"]


def test_a_failure_of_either_is_the_end_of_both(tmp_path: Path) -> None:
    done = run(tmp_path, truth=False)
    assert done.returncode == 1
    assert "FAILED test_both.py::test_of_figures" in done.stdout
    assert "tests on hosts: exit 0; tests that compute: exit 1" in done.stdout


def test_named_tests_are_one_run_as_by_hand(tmp_path: Path) -> None:
    done = run(tmp_path, "-v", "test_both.py::test_of_hosts")
    assert (done.returncode, done.stdout.count("test session starts")) == (0, 1), done.stdout


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=lambda signum: signum.name)
def test_a_signal_ends_both_and_lets_them_put_everything_away(tmp_path: Path, signum: signal.Signals) -> None:
    (tmp_path / "pytest.ini").write_text(INI)
    for name, mark in (("hosts", "@pytest.mark.lab"), ("figures", "")):
        (tmp_path / f"test_{name}.py").write_text(WAITING.format(name=name, mark=mark))
    with subprocess.Popen(argv(), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while len(up := [path for path in tmp_path.glob("up *") if path.read_text()]) < 2:
            assert time.monotonic() < end, "they did not start"
            time.sleep(0.05)
        process.send_signal(signum)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 2, said
    assert said.count("KeyboardInterrupt") >= 2
    assert sorted(path.name for path in tmp_path.glob("put away *")) == ["put away figures", "put away hosts"]
    assert [path for path in up if Path("/proc", path.read_text()).exists()] == []


@pytest.mark.parametrize(
    ("ends", "code"), [((0, 0), 0), ((0, 1), 1), ((1, 0), 1), ((5, 0), 0), ((5, 5), 5), ((0, -9), 137), ((1, 4), 4)]
)
def test_the_code(ends: tuple[int, int], code: int) -> None:
    assert beside.together(ends) == code


@pytest.mark.parametrize(
    ("words", "one"),
    [
        ([], False),
        (["-x", "-k", "no_such_file_of_this_name", "--junitxml=x.xml"], False),
        (["tests/checks"], True),
        (["tests/test_beside.py::test_the_code"], True),
        (["-m", "slow"], True),
        (["--pdb"], True),
    ],
    ids=str,
)
def test_when_it_is_one_run(words: list[str], one: bool) -> None:
    assert beside.in_one_run(words) is one


def test_who_looks_at_the_clock_is_in_the_row_of_hosts(request: pytest.FixtureRequest) -> None:
    assert looks_at_the_clock(ROOT / "tests/transports/test_ssh.py")
    assert not looks_at_the_clock(ROOT / "tests/test_judge.py")
    assert request.node.get_closest_marker("timed"), "this module does"
