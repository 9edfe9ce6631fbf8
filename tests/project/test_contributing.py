"""The recipe for a check in CONTRIBUTING.md, followed to the letter in a copy of the checkout."""

from __future__ import annotations

import filecmp
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)```\n", re.DOTALL)
LEFT_BY_TOOLS = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info", "shared"
)
# What `make format` renews. All else of a new check is written by hand.
DERIVED = re.compile(
    r"README\.md|docs/(?:\w+/)?[\w-]+\.md|docs/pictures/\w+\.svg|clusterprep/data/.*\.(json|gz)"
)

# A check that reads what no described machine has. Its proof says what a healthy machine has.
PRESSURE = '''\
"""Processes that wait for memory."""

from __future__ import annotations

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed, passed
from clusterprep.facts import Fact, file
from clusterprep.model import Absent, Node
from clusterprep.remedies import shell_line

HEALTHY = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\\n"
MOST = 5.0  # percent of the last minute in which a process waited


def parse_pressure(text: str | None) -> float | Absent:
    """Return avg60 of the line «some avg10=0.00 avg60=0.00 avg300=0.00 total=0»."""
    if text is None:
        return Absent("not_applicable", "this kernel does not measure pressure")
    words = dict(word.split("=") for word in text.splitlines()[0].split()[1:])
    return float(words["avg60"])


def judge(context: CheckContext, node: Node, waiting: float) -> Outcome:
    seen = f"{waiting:g} % of the last minute"
    if waiting <= MOST:
        return passed(node, "no process waits for memory", seen)
    return failed(node, "processes wait for memory", seen, f"at most {MOST:g} %")


PRESSURE = Fact("mem.pressure", file("/proc/pressure/memory"), parse_pressure, moves=True)
CHECK = Check(
    "mem.pressure",
    facts=("mem.pressure",),
    judge=each(judge, "mem.pressure"),
    severity="warning",
    title="Processes that wait for memory",
    why="A node that swaps or reclaims memory is slow, and all ranks wait for it.",
    how="avg60 of /proc/pressure/memory: at most 5 %.",
    remedy=shell_line("ps -eo rss,user,pid,args --sort=-rss | head"),
    proof=Proof(
        "mem.pressure",
        lambda waiting: 40.0,
        machine={"files": {"/proc/pressure/memory": HEALTHY}},
    ),
)
'''
PRESSURE_TEST = '''\
"""Nodes whose processes wait for memory, and those where none does."""

from __future__ import annotations

import pytest

from tests.support.fleet import fleet, learned, same, told


@pytest.mark.parametrize(("waiting", "expected"), [(5.0, "pass"), (5.1, "fail warning")])
def test_few_processes_wait_for_memory(waiting: float, expected: str) -> None:
    assert told(fleet(**same("mem.pressure", waiting)), "mem.pressure") == {"n1": expected}


def test_the_last_minute_counts() -> None:
    text = "some avg10=0.00 avg60=1.25 avg300=0.00 total=0\\nfull avg10=0.00\\n"
    assert learned("mem.pressure", ["ok", text]) == 1.25
    assert learned("mem.pressure", ["ok", "?"]).reason == "garbled"
'''


def recipe() -> dict[str, str]:
    """Return path → text of the files that CONTRIBUTING.md shows."""
    files = dict(FILES.findall((ROOT / "CONTRIBUTING.md").read_text()))
    assert len(files) == 2
    return files


OTHERS = {
    "clusterprep/checks/mem_pressure.py": PRESSURE,
    "tests/checks/test_mem_pressure.py": PRESSURE_TEST,
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The checkout with the files of two new checks, after `make format`."""
    folder = tmp_path_factory.mktemp("contributor") / "checkout"
    shutil.copytree(ROOT, folder, ignore=LEFT_BY_TOOLS)
    # Modes are copied too, and a checkout may be read-only.
    for path in [folder, *folder.rglob("*")]:
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    for name, text in {**recipe(), **OTHERS}.items():
        assert not (ROOT / name).exists(), f"{name} exists: the recipe needs another example"
        (folder / name).write_text(text)
    run(folder, "ruff", "check", "--fix", "--quiet", "--no-cache", *recipe(), *OTHERS)
    run(folder, "ruff", "format", "--quiet", "--no-cache", *recipe(), *OTHERS)
    run(folder, "tests.support.derived")
    yield folder
    shutil.rmtree(folder)


def run(folder: Path, *words: str) -> str:
    """Return what a module prints that is run in the copy, and has to succeed."""
    argv = [sys.executable, "-m", *words]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


def gates() -> list[str]:
    """Return the tests that `make gates` runs."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    match = re.search(r"^GATES = (.*)$", makefile, re.MULTILINE)
    assert match is not None
    return match[1].split()


def test_nothing_is_written_by_hand_but_the_check_and_its_test(copy: Path) -> None:
    written = {*recipe(), *OTHERS}
    for path in copy.rglob("*"):
        name = str(path.relative_to(copy))
        if not path.is_file() or "__pycache__" in name or name in written:
            continue
        is_as_before = (ROOT / name).exists() and filecmp.cmp(path, ROOT / name, shallow=False)
        assert is_as_before or DERIVED.fullmatch(name), f"{name} changes too"


@pytest.mark.machine
@pytest.mark.timeout(300)
def test_the_gates_pass(copy: Path) -> None:
    # In two processes, as `make gates` has several: it is among the last tests that are run.
    words = ("-q", "-n2", "--dist=loadfile", "-p", "no:cacheprovider", "-m", "not hosts")
    run(copy, "pytest", *words, *gates())


def test_the_tests_of_both_checks_pass(copy: Path) -> None:
    names = [name for name in {**recipe(), **OTHERS} if name.startswith("tests/")]
    run(copy, "pytest", "-q", "-p", "no:cacheprovider", *names)


def test_linters_and_types_agree(copy: Path) -> None:
    files = [*recipe(), *OTHERS]
    run(copy, "ruff", "check", "--no-cache", *files)
    run(copy, "ruff", "format", "--no-cache", "--check", *files)
    modules = [name[:-3].replace("/", ".") for name in files if name.startswith("clusterprep/")]
    words = ["--cache-dir=/dev/null", "--follow-imports=silent"]
    run(copy, "mypy", *words, *(f"-m{module}" for module in modules))


def test_the_checks_are_found_without_another_line(copy: Path) -> None:
    shown = run(copy, "clusterprep", "check", "--local", "--only", "mem.", "-v")
    assert "mem.available" in shown
    assert "mem.pressure" in shown
    assert "MemAvailable" in run(copy, "clusterprep", "explain", "mem.available")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_pure_test_passes_with_them(copy: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    match = re.search(r"^PURE := (.*)$", makefile, re.MULTILINE)
    assert match is not None
    words = ("-q", "-p", "no:cacheprovider", "-m", match[1])
    run(copy, "pytest", *words, "--ignore=tests/project/test_contributing.py")
