"""Operations as the agent does them, in a folder of its own: in their order, noted before, and undone in reverse."""

from __future__ import annotations

import base64
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.deeds import Operation, Run, Value, Write, wire
from clusterprep.model import Node
from clusterprep.remote.boot import parts_for
from clusterprep.transports.link import Frame, Link, open_link
from clusterprep.transports.local import LocalTransport

RUN = "20261122-000000-0001"


class Steps:
    """An agent whose root is a folder, and that has begun a run there."""

    def __init__(self, link: Link, root: Path) -> None:
        self.link, self.root = link, root
        self.body = {"root": str(root), "run": RUN, "cluster": "test", "undoes": None, "files": []}
        for op in ("lock", "stage", "commit"):
            assert "no" not in self.ask(op)

    def ask(self, op: str, **more: Any) -> Frame:
        return self.link.request(op, 30, **{**self.body, **more})

    def perform(self, *operations: Operation) -> Frame:
        words = dict.fromkeys(("step", "resource", "target", "action", "diff"), "x")
        return self.ask("perform", deeds=[{"place": 0, "operations": list(map(wire, operations)), **words}])

    def states(self) -> list[list[str]]:
        return [row[-1] for row in self.ask("deeds")["deeds"]]

    def read(self, name: str) -> bytes | None:
        path = self.root / name
        return path.read_bytes() if path.exists() else None

    def touch(self, name: str, **more: Any) -> Run:
        """Writes a file, and its undo says so in another one."""
        undo = Run(("sh", "-c", f"echo {name} >> {self.root}/undone; rm -f {self.root}/{name}"))
        return Run(("touch", f"{self.root}/{name}"), undo=(undo,), **more)

    def fails(self, **more: Any) -> Run:
        undo = (Run(("sh", "-c", f"echo failed >> {self.root}/undone")),)
        return Run(("sh", "-c", "seq 1 10000; echo last; exit 7"), undo=undo, **more)


@pytest.fixture
def steps(tmp_path: Path) -> Iterator[Steps]:
    parts = (*parts_for(()), "act", "steps")
    link = open_link(LocalTransport(), Node("n1", "n1", 0, transport="local"), parts, lambda node: None)
    try:
        yield Steps(link, tmp_path)
    finally:
        link.close()


def test_files_and_commands_are_done_in_order_and_undone_in_reverse(steps: Steps) -> None:
    (steps.root / "old").write_bytes(b"old\n")
    (steps.root / "old").chmod(0o640)
    (steps.root / "gone").write_bytes(b"gone\n")
    done = steps.perform(
        steps.touch("a"),
        Write("/old", b"old\n", b"new\n"),
        Write("/made/here/new", None, b"x", 0o600),
        Write("/gone", b"gone\n", None),
        steps.touch("b"),
    )
    assert "no" not in done, done
    assert [steps.read(name) for name in ("a", "old", "made/here/new", "gone", "b")] == [b"", b"new\n", b"x", None, b""]
    assert (steps.root / "old").stat().st_mode & 0o777 == 0o640
    assert (steps.root / "made/here/new").stat().st_mode & 0o777 == 0o600
    assert steps.states() == [["done"] * 5]
    assert steps.ask("take_back") == {"id": steps.link._asked, "undone": [0], "kept": []}
    assert [steps.read(name) for name in ("a", "old", "made", "gone", "b")] == [None, b"old\n", None, b"gone\n", None]
    assert (steps.root / "old").stat().st_mode & 0o777 == 0o640
    assert steps.read("undone") == b"b\na\n"
    assert steps.ask("take_back")["undone"] == []
    assert steps.read("undone") == b"b\na\n"


@pytest.mark.parametrize(("halfway", "undone"), [(True, b"failed\na\n"), (False, b"a\n")])
def test_a_failure_ends_it_and_says_what_the_command_said_last(steps: Steps, halfway: bool, undone: bytes) -> None:
    failed = steps.perform(steps.touch("a"), steps.fails(halfway=halfway), steps.touch("never"))
    assert (failed["no"], failed["deed"], failed["code"]) == ("failed", 0, 7)
    assert failed["said"].splitlines() == [*map(str, range(9982, 10001)), "last"]
    assert steps.read("never") is None
    assert steps.states() == [["done", "begun"]] or steps.states() == [["done", "begun", None]]
    steps.ask("take_back", half=True)
    assert steps.read("undone") == undone


def test_what_is_whole_stays_where_only_halves_are_undone(steps: Steps) -> None:
    steps.perform(steps.touch("a"))
    assert steps.ask("take_back", half=True)["undone"] == []
    assert steps.read("a") == b""


def test_commands_for_afterwards_are_run_when_all_else_is_back(steps: Steps) -> None:
    show = Run(("sh", "-c", f"cat {steps.root}/conf >> {steps.root}/seen"))
    (steps.root / "conf").write_bytes(b"old\n")
    steps.perform(Write("/conf", b"old\n", b"new\n"), Run(show.argv, again=(show,)))
    assert steps.read("seen") == b"new\n"
    steps.ask("take_back")
    assert steps.states() == [["undone", "again"]]
    steps.ask("take_back", again=True)
    assert steps.read("seen") == b"new\nold\n"
    assert steps.states() == [["undone", "undone"]]


def test_what_nothing_takes_back_is_said(steps: Steps) -> None:
    steps.perform(steps.touch("a"), Run(("true",)))
    assert steps.ask("take_back")["kept"] == [0]
    assert steps.states() == [["undone", "kept"]]


def test_a_file_that_is_another_one_stops_and_is_not_taken_back_either(steps: Steps) -> None:
    (steps.root / "f").write_bytes(b"edited\n")
    found = steps.perform(Write("/f", b"old\n", b"new\n"))
    assert (found["no"], base64.b64decode(found["current"])) == ("changed", b"edited\n")
    (steps.root / "f").write_bytes(b"old\n")
    assert "no" not in steps.perform(Write("/f", b"old\n", b"new\n"))
    (steps.root / "f").write_bytes(b"edited\n")
    assert steps.ask("take_back")["no"] == "changed"
    assert steps.read("f") == b"edited\n"
    assert "no" not in steps.ask("take_back", force=True)
    assert steps.read("f") == b"old\n"


def test_a_value_of_the_kernel_is_set_and_taken_back(steps: Steps) -> None:
    """Its path is not below the root; here it is that of a file."""
    place = steps.root / "some"
    place.write_bytes(b"1 2\n")
    refused = steps.perform(Value(str(place), b"1\t3\n", b"1\t4\n"))
    assert (refused["no"], base64.b64decode(refused["current"])) == ("changed", b"1 2\n")
    assert place.read_bytes() == b"1 2\n"
    assert "no" not in steps.perform(Value(str(place), b"1\t2\n", b"3 4\n"))
    assert place.read_bytes().strip() == b"3 4"
    assert "no" not in steps.ask("take_back")
    assert place.read_bytes().strip() == b"1 2"


def test_a_link_in_place_of_a_file_is_not_followed(steps: Steps, tmp_path: Path) -> None:
    (tmp_path / "aim").write_bytes(b"aim\n")
    (tmp_path / "f").symlink_to(tmp_path / "aim")
    assert steps.perform(Write("/f", None, b"new\n"))["no"] == "not_a_file"
    assert steps.read("aim") == b"aim\n"


def test_a_program_that_is_not_there_and_an_undo_that_fails(steps: Steps) -> None:
    assert "No such file" in steps.perform(Run(("no-such-program", "x")))["why"]
    assert "no" not in steps.perform(Run(("true",), undo=(Run(("false",)),)))
    assert "false: it ended with 1" in steps.ask("take_back")["why"]
    assert steps.ask("take_back")["no"] == "failed"  # and is tried again
    assert steps.ask("take_back", force=True)["kept"] == [1, 0]
    assert "no" not in steps.ask("take_back")


def test_an_undo_that_fails_does_not_keep_others_from_theirs_where_it_goes_on(steps: Steps) -> None:
    steps.perform(steps.touch("a"), Run(("true",), undo=(Run(("false",)),)))
    steps.perform(steps.touch("b"))
    found = steps.ask("take_back", go_on=True)
    assert (found["no"], found["deed"], found["undone"]) == ("failed", 0, [1])
    assert [steps.read(name) for name in ("a", "b")] == [None, None]
    assert steps.states() == [["undone", "done"], ["undone"]]


def test_what_a_command_leaves_in_the_background_goes_on_and_holds_nobody_up(steps: Steps) -> None:
    script = f"{{ sleep 0.3; touch {steps.root}/later; }} & exit 0"
    assert "no" not in steps.perform(Run(("sh", "-c", script)))
    assert "no" not in steps.perform(Run(("sh", "-c", f"until [ -e {steps.root}/later ]; do sleep 0.05; done")))


def test_the_environment_of_a_command_and_the_codes_that_it_may_end_with(steps: Steps) -> None:
    script = "import json, os; print(json.dumps([os.environ[w] for w in ('A', 'LC_ALL')] + [os.getcwd()])); exit(5)"
    into = f'{shlex.quote(sys.executable)} -c "$0" > {steps.root}/said'
    assert "no" not in steps.perform(Run(("sh", "-c", into, script), codes=(0, 5), env=(("A", "1"),)))
    assert json.loads(steps.read("said") or b"") == ["1", "C.UTF-8", "/"]


def test_the_journal_is_for_root_alone_and_no_shell_reads_words(steps: Steps) -> None:
    steps.perform(Run(("touch", f"{steps.root}/a; touch b $(touch c)")))
    assert steps.read("a; touch b $(touch c)") == b""
    journal = steps.root / "var/lib/clusterprep/runs" / RUN / "steps.json"
    assert journal.stat().st_mode & 0o777 == 0o600
