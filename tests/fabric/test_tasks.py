"""Tasks of a fabfile: found by their names, their prints by node, their ends as exit codes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context

from clusterprep.errors import InputError
from clusterprep.fabric.printed import kept_of
from clusterprep.fabric.results import Answer
from clusterprep.fabric.tasks import NodeTask, find_task, prints_by_thread

FABFILE = """\
import sys, threading
from fabric import task
from invoke.exceptions import Exit, UnexpectedExit
from invoke.runners import Result

@task
def by_node(c):
    print("on", c.host)

@task(name="other-name")
def named(c):
    pass

@task
def leaves(c):
    sys.exit()

@task
def leaves_7(c):
    sys.exit(7)

@task
def leaves_told(c):
    sys.exit("it is broken")

@task
def exits(c):
    raise Exit("enough", code=4)

@task
def returns(c):
    return "a value"

@task
def takes(c, password, ref="main"):
    pass

@task
def is_ended(c):
    raise UnexpectedExit(Result(exited=-1))

@task
def goes_on(c):
    c.close()

@task
def breaks(c):
    raise KeyError("x")

def no_task(c):
    pass
"""


@pytest.fixture
def fabfile(tmp_path: Path) -> Path:
    path = tmp_path / "fabfile.py"
    path.write_text(FABFILE)
    return path


@pytest.mark.parametrize("name", ["by_node", "by-node", "other-name", "other_name"])
def test_a_task_has_both_spellings(fabfile: Path, name: str) -> None:
    assert find_task(f"{fabfile}:{name}").name in ("by_node", "other-name")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "is not FABFILE:NAME"),
        ("{}:", "is not FABFILE:NAME"),
        ("{}:by_nod", "there is no task 'by_nod'"),
        ("{}:no_task", "there is no task 'no_task'"),
        ("{}.none:by_node", "there is no such file"),
        ("{}:takes", "takes more than the connection: missing a required argument: 'password'"),
    ],
)
def test_what_cannot_be_found_is_told(fabfile: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        find_task(text.format(fabfile))


def test_a_file_that_cannot_be_imported_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(InputError, match="ModuleNotFoundError"):
        find_task(f"{tmp_path}/broken.py:x")


@pytest.mark.parametrize(
    "text",
    ["from fabric.api import run\n", "import fabric.contrib.files\n", "print 1\nfrom fabric"],
)
def test_a_fabfile_of_fabric_1_is_told_to_be_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "old.py").write_text(text)
    is_old = "fabric." in text
    with pytest.raises(InputError) as raised:
        find_task(f"{tmp_path}/old.py:x")
    assert ("written for Fabric 1" in str(raised.value)) == is_old


def run(fabfile: Path, name: str, alive: bool = True) -> Answer:
    """How a task ended on a node. One that calls `c.close` is closed as at the time limit."""
    kept = kept_of("n1", None)
    connection: Any = Context()
    connection._set(kept=kept, host="n1", opened_alive=alive, open=lambda: None)
    work = NodeTask(connection, None, find_task(f"{fabfile}:{name}"))
    connection._set(close=lambda: setattr(work, "_closed", True))
    with prints_by_thread(lambda line: None):
        return work.run()


def ended(fabfile: Path, name: str) -> tuple[int | None, str, str]:
    answer = run(fabfile, name)
    return answer.exit_code, answer.stdout, answer.stderr


@pytest.mark.parametrize(
    ("name", "alive", "reason"),
    [
        ("is_ended", True, "killed"),
        ("is_ended", False, "hung"),
        ("goes_on", True, "timed_out"),
    ],
)
def test_a_task_that_could_not_end_has_no_exit_code(
    fabfile: Path, name: str, alive: bool, reason: str
) -> None:
    answer = run(fabfile, name, alive)
    assert (answer.exit_code, answer.reason, answer.stderr) == (None, reason, "")


@pytest.mark.parametrize(
    ("name", "code", "out", "err"),
    [
        ("by_node", 0, "on n1\n", ""),
        ("leaves", 0, "", ""),
        ("leaves_7", 7, "", ""),
        ("leaves_told", 1, "", "it is broken\n"),
        ("exits", 4, "", "enough\n"),
        ("returns", 0, "a value\n", ""),
        ("breaks", 1, "", "KeyError: 'x'\n"),
    ],
)
def test_how_tasks_end(fabfile: Path, name: str, code: int, out: str, err: str) -> None:
    assert ended(fabfile, name) == (code, out, err)


def test_what_other_threads_print_is_shown_in_lines() -> None:
    shown: list[str] = []
    with prints_by_thread(shown.append):
        thread = threading.Thread(target=lambda: print("of a", "thread", end="\nrest"))
        thread.start()
        thread.join()
    assert shown == ["of a thread", "rest"]
