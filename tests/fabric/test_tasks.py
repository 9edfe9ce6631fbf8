"""Tasks of a fabfile: found by their names, their prints by node, their ends as exit codes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context

from clusterprep.errors import InputError
from clusterprep.fabric.printed import kept_of
from clusterprep.fabric.tasks import NodeTask, find_task, prints_by_thread

FABFILE = """\
import sys, threading
from fabric import task
from invoke.exceptions import Exit

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
    ],
)
def test_what_cannot_be_found_is_told(fabfile: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        find_task(text.format(fabfile))


def test_a_file_that_cannot_be_imported_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(InputError, match="ModuleNotFoundError"):
        find_task(f"{tmp_path}/broken.py:x")


def ended(fabfile: Path, name: str) -> tuple[int | None, str, str]:
    """How a task ended on a node, and what it printed there."""
    kept = kept_of("n1", None)
    connection: Any = Context()
    connection._set(kept=kept, host="n1", opened_alive=True)
    connection._set(open=lambda: None, close=lambda: None)
    work = NodeTask(connection, None, find_task(f"{fabfile}:{name}"))
    with prints_by_thread(lambda line: None):
        answer = work.run()
    return answer.exit_code, answer.stdout, answer.stderr


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
