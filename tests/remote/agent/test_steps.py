"""Operations as the agent does them, in a folder of its own.

In their order, noted before, and undone in reverse.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import itertools
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterprep.model import Node
from clusterprep.model.operations import Operation, OperationValue, Reboot, RunCommand, Write, wire
from clusterprep.remote.agent import act, disk
from clusterprep.remote.agent import steps as steps_of
from clusterprep.remote.agent.act import kept_name
from clusterprep.remote.bootstrap import parts_for
from clusterprep.remote.transports.link import Frame, Link, open_link
from clusterprep.remote.transports.local import LocalTransport
from tests.support.full_disks import attributes, fill, mounted
from tests.support.system_calls import Cut, noted, out_of_order, path_of, tree_of

RUN = "20261122-000000-0001"


class Steps:
    """An agent whose root is a folder, and that has begun a run there."""

    def __init__(self, link: Link, root: Path) -> None:
        self.link, self.root = link, root
        self.body = {"root": str(root), "run": RUN, "cluster": "test", "undoes": None, "files": []}
        self.body.update(number=1, node="n1", nodes="n1")
        for op in ("lock", "stage", "commit"):
            assert "no" not in self.ask(op)

    def ask(self, op: str, **more: Any) -> Frame:
        return self.link.request(op, 30, **{**self.body, **more})

    def perform(self, *operations: Operation) -> Frame:
        words = dict.fromkeys(("step", "resource", "target", "action", "diff"), "x")
        return self.ask(
            "perform",
            deeds=[{"place": 0, "operations": list(map(wire, operations)), **words}],
        )

    def states(self) -> list[list[str]]:
        return [row[-1] for row in self.ask("deeds")["deeds"]]

    def read(self, name: str) -> bytes | None:
        path = self.root / name
        return path.read_bytes() if path.exists() else None

    def touch(self, name: str, **more: Any) -> RunCommand:
        """Writes a file, and its undo says so in another one."""
        undo = RunCommand(
            ("sh", "-c", f"echo {name} >> {self.root}/undone; rm -f {self.root}/{name}")
        )
        return RunCommand(("touch", f"{self.root}/{name}"), undo=(undo,), **more)

    def fails(self, **more: Any) -> RunCommand:
        undo = (RunCommand(("sh", "-c", f"echo failed >> {self.root}/undone")),)
        return RunCommand(("sh", "-c", "seq 1 10000; echo last; exit 7"), undo=undo, **more)


@pytest.fixture
def steps(tmp_path: Path) -> Iterator[Steps]:
    parts = (*parts_for(()), "act", "steps")
    link = open_link(
        LocalTransport(), Node("n1", "n1", 0, transport="local"), parts, lambda node: None
    )
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
    assert [steps.read(name) for name in ("a", "old", "made/here/new", "gone", "b")] == [
        b"",
        b"new\n",
        b"x",
        None,
        b"",
    ]
    assert (steps.root / "old").stat().st_mode & 0o777 == 0o640
    assert (steps.root / "made/here/new").stat().st_mode & 0o777 == 0o600
    assert steps.states() == [["done"] * 5]
    assert steps.ask("take_back") == {"id": steps.link._asked, "undone": [0], "kept": []}
    assert [steps.read(name) for name in ("a", "old", "made", "gone", "b")] == [
        None,
        b"old\n",
        None,
        b"gone\n",
        None,
    ]
    assert (steps.root / "old").stat().st_mode & 0o777 == 0o640
    assert steps.read("undone") == b"b\na\n"
    assert steps.ask("take_back")["undone"] == []
    assert steps.read("undone") == b"b\na\n"


@pytest.mark.parametrize(("halfway", "undone"), [(True, b"failed\na\n"), (False, b"a\n")])
def test_a_failure_ends_it_and_says_what_the_command_said_last(
    steps: Steps, halfway: bool, undone: bytes
) -> None:
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
    show = RunCommand(("sh", "-c", f"cat {steps.root}/conf >> {steps.root}/seen"))
    (steps.root / "conf").write_bytes(b"old\n")
    steps.perform(Write("/conf", b"old\n", b"new\n"), RunCommand(show.argv, again=(show,)))
    assert steps.read("seen") == b"new\n"
    steps.ask("take_back")
    assert steps.states() == [["undone", "again"]]
    steps.ask("take_back", again=True)
    assert steps.read("seen") == b"new\nold\n"
    assert steps.states() == [["undone", "undone"]]


def test_what_nothing_takes_back_is_said(steps: Steps) -> None:
    steps.perform(steps.touch("a"), RunCommand(("true",)))
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
    refused = steps.perform(OperationValue(str(place), b"1\t3\n", b"1\t4\n"))
    assert (refused["no"], base64.b64decode(refused["current"])) == ("changed", b"1 2\n")
    assert place.read_bytes() == b"1 2\n"
    assert "no" not in steps.perform(OperationValue(str(place), b"1\t2\n", b"3 4\n"))
    assert place.read_bytes().strip() == b"3 4"
    assert "no" not in steps.ask("take_back")
    assert place.read_bytes().strip() == b"1 2"


def test_a_link_in_place_of_a_file_is_not_followed(steps: Steps, tmp_path: Path) -> None:
    (tmp_path / "aim").write_bytes(b"aim\n")
    (tmp_path / "f").symlink_to(tmp_path / "aim")
    assert steps.perform(Write("/f", None, b"new\n"))["no"] == "not_a_file"
    assert steps.read("aim") == b"aim\n"


def test_a_program_that_is_not_there_and_an_undo_that_fails(steps: Steps) -> None:
    assert "No such file" in steps.perform(RunCommand(("no-such-program", "x")))["why"]
    assert "no" not in steps.perform(RunCommand(("true",), undo=(RunCommand(("false",)),)))
    assert "false: exit code 1" in steps.ask("take_back")["why"]
    assert steps.ask("take_back")["no"] == "failed"  # and is tried again
    assert steps.ask("take_back", force=True)["kept"] == [1, 0]
    assert "no" not in steps.ask("take_back")


def test_an_undo_that_fails_does_not_keep_others_from_theirs_where_it_goes_on(steps: Steps) -> None:
    steps.perform(steps.touch("a"), RunCommand(("true",), undo=(RunCommand(("false",)),)))
    steps.perform(steps.touch("b"))
    found = steps.ask("take_back", go_on=True)
    assert (found["no"], found["deed"], found["undone"]) == ("failed", 0, [1])
    assert [steps.read(name) for name in ("a", "b")] == [None, None]
    assert steps.states() == [["undone", "done"], ["undone"]]


def test_what_a_command_leaves_in_the_background_goes_on_and_holds_nobody_up(steps: Steps) -> None:
    script = f"{{ sleep 0.3; touch {steps.root}/later; }} & exit 0"
    assert "no" not in steps.perform(RunCommand(("sh", "-c", script)))
    assert "no" not in steps.perform(
        RunCommand(("sh", "-c", f"until [ -e {steps.root}/later ]; do sleep 0.05; done"))
    )


def test_the_environment_of_a_command_and_the_codes_that_it_may_end_with(steps: Steps) -> None:
    script = "import json, os; values = [os.environ['A'], os.environ['LC_ALL'], os.getcwd()]; "
    script += "print(json.dumps(values)); exit(5)"
    into = f'{shlex.quote(sys.executable)} -c "$0" > {steps.root}/said'
    assert "no" not in steps.perform(
        RunCommand(("sh", "-c", into, script), codes=(0, 5), env=(("A", "1"),))
    )
    assert json.loads(steps.read("said") or b"") == ["1", "C.UTF-8", "/"]


def test_the_journal_is_for_root_alone_and_no_shell_reads_words(steps: Steps) -> None:
    steps.perform(RunCommand(("touch", f"{steps.root}/a; touch b $(touch c)")))
    assert steps.read("a; touch b $(touch c)") == b""
    journal = steps.root / "var/lib/clusterprep/runs" / RUN / "steps.json"
    assert journal.stat().st_mode & 0o777 == 0o600


# ---------------------------------------------------------------- in this process: calls cut off

NAMES = ("step", "resource", "target", "action", "diff")


def step_action(*operations: Operation, **more: Any) -> dict[str, Any]:
    return {
        "place": 0,
        **dict.fromkeys(NAMES, "x"),
        "operations": list(map(wire, operations)),
        **more,
    }


def command(
    name: str, undo: tuple[str, ...] | None = None, again: tuple[str, ...] = (), **more: Any
) -> RunCommand:
    """A command of one word, as those are that undo it."""
    back = None if undo is None else tuple(RunCommand((word,)) for word in undo)
    return RunCommand(
        (name,), undo=back, again=tuple(RunCommand((word,)) for word in again), **more
    )


class Here:
    """A root folder with a run that was committed.

    Commands are not run: `ran` has them, each ends with a code.
    """

    def __init__(self, root: Path) -> None:
        for folder in (root, root / "etc"):
            folder.mkdir(exist_ok=True)
        for name, text, mode in (
            ("etc/old", "old\n", 0o640),
            ("etc/gone", "it\n", 0o604),
            ("value", "1\n", 0o644),
        ):
            (root / name).write_text(text)
            (root / name).chmod(mode)
        self.root = root
        self.body = {"root": str(root), "run": RUN, "cluster": "test", "undoes": None, "files": []}
        self.body.update(number=1, node="n1", nodes="n1")
        with noted():
            act.stage(None, self.body)
            act.commit(None, self.body)
        self.before = tree_of(root)
        self.codes: dict[str, int] = {}
        self.ran: list[str] = []
        self.told: list[list[list[str]]] = []  # the states on disk while each of them ran

    def ask(self, operation: Callable[..., Any], **more: Any) -> dict[str, Any]:
        task = operation({**self.body, **more})
        try:
            run = next(task)
            while True:
                (name,) = run["argv"]
                self.ran.append(name)
                self.told.append(self.states())
                code = self.codes.get(name, 0)
                run = task.send(SimpleNamespace(ended=(code, ""), tail=lambda: "said"))
        except StopIteration as end:
            return end.value or {}
        except disk.Stop as stop:
            return dict(stop.body)

    def perform(self, *step_actions: dict[str, Any]) -> dict[str, Any]:
        return self.ask(steps_of.perform, deeds=list(step_actions))

    def take_back(self, **more: Any) -> dict[str, Any]:
        self.ran.clear()
        return self.ask(steps_of.take_back, **more)

    def states(self) -> list[list[str]]:
        path = self.root / "var/lib/clusterprep/runs" / RUN / "steps.json"
        found = json.loads(path.read_text()) if path.exists() else []
        return [[operation.get("state") for operation in row["operations"]] for row in found]

    def all_kinds(self) -> list[dict[str, Any]]:
        return [
            step_action(Write("/etc/old", b"old\n", b"new\n"), command("one", ("not one",))),
            step_action(
                Write("/etc/made/here/new", None, b"x", 0o600),
                Write("/etc/gone", b"it\n", None),
                OperationValue(f"{self.root}/value", b"1\n", b"2\n"),
                command("two", ("not two", "nor two")),
            ),
        ]


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def test_each_operation_is_on_disk_as_begun_before_it_is_done(here: Here) -> None:
    with noted() as calls:
        assert here.perform(*here.all_kinds()) == {}
        assert (here.ran, here.states()) == (["one", "two"], [["done"] * 2, ["done"] * 4])
        assert here.told == [[["done", "begun"]], [["done"] * 2, ["done"] * 3 + ["begun"]]]
        assert here.take_back() == {"undone": [1, 0], "kept": []}
    assert here.ran == ["not two", "nor two", "not one"]
    assert here.told[2:] == [
        [["done", "done"], ["done"] * 4],
        [["done", "done"], ["done"] * 4],
        [["done", "done"], ["undone"] * 4],
    ]
    assert out_of_order(calls, ("steps.json",)) == []
    assert tree_of(here.root) == here.before
    renamed = [Path(call.path).name for call in calls.made if call.name == "rename"]
    assert [name for name in renamed if name != "steps.json"] == ["old", "new", "gone", "old"]


def test_deeds_that_are_killed_at_any_call_are_taken_back(tmp_path: Path) -> None:
    back = ["not two", "nor two", "not one"]
    for number in itertools.count():
        here = Here(tmp_path / str(number))
        with noted(number, Cut()) as calls:
            here.perform(*here.all_kinds())
        begun = len(here.ran)
        with noted():
            assert "no" not in here.take_back()
        assert tree_of(here.root) == here.before, (number, calls.made[-1])
        # What was noted and not begun is taken back like what was begun: it cannot be known which
        # it was.
        assert here.ran in (back, back[2:], [])[: 3 - begun], number
        assert {state for row in here.states() for state in row} <= {"undone", None}
        assert here.take_back() == {"undone": [], "kept": []}
        assert here.ran == []
        if not calls.ended:
            break
    assert number > 50


def test_an_undo_of_deeds_that_is_killed_at_any_call_is_gone_on_with(tmp_path: Path) -> None:
    for number in itertools.count():
        here = Here(tmp_path / str(number))
        with noted():
            here.perform(*here.all_kinds())
        with noted(number, Cut()) as calls:
            here.take_back()
        with noted():
            here.take_back()
        assert tree_of(here.root) == here.before, (number, calls.made[-1])
        assert here.states() == [["undone"] * 2, ["undone"] * 4]
        if not calls.ended:
            break
    assert number > 30


def test_a_call_that_is_refused_ends_it_and_what_was_done_can_be_taken_back(tmp_path: Path) -> None:
    for number in itertools.count():
        here = Here(tmp_path / str(number))
        full = OSError(errno.ENOSPC, "No space left on device", "f")
        try:
            with noted(number, full) as calls:
                answer = here.perform(*here.all_kinds())
        except OSError:
            pass
        else:
            of_value = answer.get("why", "").startswith(f"{here.root}/value does not take")
            # The journal has room of its own on a full disk.
            of_journal = calls.ended and f"/{RUN}" in calls.made[number].path
            assert of_value or of_journal or not calls.ended
        with noted():
            assert "no" not in here.take_back()
        assert tree_of(here.root) == here.before, (number, calls.made[number:][:1])
        if not calls.ended:
            break


@pytest.mark.parametrize("state", ["staged", "done", "undone"])
def test_deeds_are_done_in_a_run_that_is_committed_and_in_no_other(
    tmp_path: Path, state: str
) -> None:
    here = Here(tmp_path)
    folder = tmp_path / "var/lib/clusterprep/runs" / RUN
    act.write_manifest(str(folder), dict(act.read_manifest(str(folder)), state=state))
    assert here.perform(step_action(command("one"))) == {
        "no": "failed",
        "why": f"run {RUN} is {state}",
    }
    assert (here.ran, here.states()) == ([], [])


def test_a_failure_names_its_deed_and_ends_all_that_would_follow(here: Here) -> None:
    here.codes = {"two": 7}
    answer = here.perform(*here.all_kinds(), step_action(command("three")))
    assert answer == {
        "no": "failed",
        "why": "two: exit code 7",
        "said": "said",
        "code": 7,
        "deed": 1,
    }
    assert (here.ran, here.states()) == (["one", "two"], [["done"] * 2, ["done"] * 3 + ["begun"]])
    here.codes = {}
    assert here.perform(step_action(command("four"), place=3)) == {}, (
        "what is done later comes behind it"
    )
    assert here.states()[2:] == [["done"]]
    rows = steps_of.list_step_actions(None, here.body)["deeds"]
    assert rows[2] == [3, *["x"] * 5, ["done"]]
    assert [row[-1] for row in rows] == here.states()


@pytest.mark.parametrize("codes", [(0,), (0, 7), (7,)])
def test_a_command_ends_well_with_its_codes_and_a_reboot_with_none_but_0(
    here: Here, codes: tuple[int, ...]
) -> None:
    for code in (0, 7):
        here.codes = {"it": code}
        assert ("no" in here.perform(step_action(RunCommand(("it",), codes=codes)))) == (
            code not in codes
        )
        assert ("no" in here.perform(step_action(Reboot(("it",))))) == (code != 0)


@pytest.mark.parametrize(
    "operation",
    [
        Write("/etc/old", b"else\n", b"new\n"),
        Write("/etc/old", None, b"new\n"),
        Write("/etc/none", b"old\n", b"new\n"),
        Write("/etc/none", b"", b"new\n"),
    ],
)
def test_what_is_not_as_it_was_planned_against_is_neither_written_nor_noted(
    here: Here, operation: Write
) -> None:
    answer = here.perform(step_action(command("one"), operation))
    assert (answer["no"], answer["path"], answer["deed"]) == ("changed", operation.path, 0)
    assert "since it was planned" in answer["why"]
    assert (tree_of(here.root), here.states()) == (here.before, [["done", None]])
    assert here.take_back(half=True) == {"undone": [], "kept": [0]}


def test_a_file_that_chattr_would_protect_is_not_noted(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ioctl(fd: int, *_: object) -> bytes:
        asked.append(path_of(fd))
        return b"\x10\0\0\0\0\0\0\x10"

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert (
        here.perform(
            step_action(
                Write("/etc/new", None, b"x"), OperationValue(f"{here.root}/value", b"1\n", b"2\n")
            )
        )
        == {}
    )
    assert asked == []
    assert here.perform(step_action(Write("/etc/old", b"old\n", b"new\n")))["no"] == "immutable"
    assert (asked, here.states()) == ([f"{here.root}/etc/old"], [["done", "done"]])


@pytest.mark.parametrize("folder", ["etc", "var/lib/clusterprep", "var/lib/clusterprep/runs"])
def test_nothing_is_done_or_taken_back_where_others_can_change_a_folder(
    here: Here, folder: str
) -> None:
    write = step_action(Write("/etc/old", b"old\n", b"new\n"))
    (here.root / folder).chmod(0o777)
    assert here.perform(write)["no"] == "not_ours"
    (here.root / folder).chmod(0o755)
    assert (tree_of(here.root), here.states()) == (here.before, [])
    assert here.perform(write) == {}
    after = tree_of(here.root)
    (here.root / folder).chmod(0o777)
    assert here.take_back()["no"] == "not_ours"
    (here.root / folder).chmod(0o755)
    assert (tree_of(here.root), here.states()) == (after, [["done"]])


def test_steps_that_others_can_write_are_not_believed(here: Here) -> None:
    here.perform(step_action(command("one", ("not one",))))
    (here.root / "var/lib/clusterprep/runs" / RUN / "steps.json").chmod(0o622)
    assert here.take_back()["no"] == "not_ours"
    assert here.ran == []
    assert steps_of.list_step_actions(None, here.body)["no"] == "not_ours"
    assert steps_of.list_step_actions(None, {**here.body, "run": "../.."})["no"] == "failed"
    assert steps_of.list_step_actions(None, {**here.body, "run": "none"}) == {"deeds": []}


# Of an operation: whether it failed in the middle, the commands of its undo, and how it is left.
LEFT: dict[str, tuple[Operation, bool, list[str], str]] = {
    "nothing-takes-it-back": (command("it"), False, [], "kept"),
    "nothing-has-to": (command("it", ()), False, [], "undone"),
    "an-undo": (command("it", ("u", "v")), False, ["u", "v"], "undone"),
    "an-undo-of-a-half": (command("it", ("u",)), True, ["u"], "undone"),
    "no-undo-of-a-half": (command("it", ("u",), halfway=False), True, [], "kept"),
    "an-undo-of-all-alone": (command("it", ("u",), halfway=False), False, ["u"], "undone"),
    "again": (command("it", None, ("a",)), False, [], "again"),
    "an-undo-and-again": (command("it", ("u",), ("a",)), False, ["u"], "again"),
    "again-of-a-half": (command("it", None, ("a",)), True, [], "again"),
    "not-again-of-a-half": (command("it", None, ("a",), halfway=False), True, [], "kept"),
    "a-reboot": (Reboot(("it",)), False, [], "kept"),
    "a-reboot-that-failed": (Reboot(("it",)), True, [], "kept"),
}


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("force", [False, True])
def test_how_an_operation_is_left_by_its_undo(here: Here, name: str, force: bool) -> None:
    operation, fails, undo, left = LEFT[name]
    here.codes = {"it": int(fails)}
    here.perform(step_action(operation))
    assert here.states() == [["begun" if fails else "done"]]
    answer = here.take_back(force=force)
    assert (here.ran, here.states()) == (undo, [[left]])
    assert answer == {"undone": [0] * (left != "kept"), "kept": [0] * (left == "kept")}
    assert here.take_back(again=True) == {"undone": [], "kept": []}
    assert here.ran == ["a"] * (left == "again")
    assert here.states() == [["undone" if left == "again" else left]]


@pytest.mark.parametrize(
    ("more", "answer", "ran", "states"),
    [
        ({}, {"deed": 2, "undone": [], "kept": []}, ["u2"], ["done", "done", "done", "done"]),
        (
            {"go_on": True},
            {"deed": 2, "undone": [1], "kept": []},
            ["u2", "u1", "u0"],
            ["done", "undone", "done"],
        ),
        (
            {"force": True},
            {"deed": 2, "undone": [1], "kept": [2, 0]},
            ["u2", "u1", "u0"],
            ["kept", "undone", "kept"],
        ),
    ],
)
def test_an_undo_that_fails_ends_it_or_is_given_up(
    here: Here, more: dict[str, Any], answer: dict[str, Any], ran: list[str], states: list[str]
) -> None:
    """The first that failed is named, which is the last that was done."""
    here.codes = {"u2": 3, "u0": 4}
    here.perform(*(step_action(command(f"it{number}", (f"u{number}",))) for number in range(3)))
    found = here.take_back(**more)
    assert found == {
        "no": "failed",
        "why": "u2: exit code 3",
        "said": "said",
        "code": 3,
        **answer,
    }
    assert (here.ran, [state for row in here.states() for state in row]) == (ran, states[:3])
    here.codes = {}
    assert "no" not in here.take_back()
    assert {state for row in here.states() for state in row} <= {"undone", "kept"}


def test_an_undo_that_fails_within_a_deed_leaves_what_was_before_it_there(here: Here) -> None:
    here.codes = {"v": 3}
    here.perform(
        step_action(command("one", ("u",)), command("two", ("v", "w")), command("three", ("x",)))
    )
    assert here.take_back()["no"] == "failed"
    assert (here.ran, here.states()) == (["x", "v"], [["done", "done", "undone"]])
    assert here.take_back(go_on=True)["undone"] == []
    assert (here.ran, here.states()) == (["v", "u"], [["undone", "done", "undone"]])


@pytest.mark.parametrize(
    ("fails", "ran"), [(None, []), ("two", ["not two", "not one"]), ("one", ["not one"])]
)
def test_only_where_a_deed_was_cut_in_the_middle_halves_are_undone(
    here: Here, fails: str | None, ran: list[str]
) -> None:
    here.codes = {fails: 1} if fails else {}
    here.perform(step_action(command("one", ("not one",)), command("two", ("not two",))))
    here.take_back(half=True)
    assert here.ran == ran
    assert here.take_back(half=True) == {"undone": [], "kept": []}
    assert here.ran == []


def test_what_is_run_again_goes_on_where_it_failed(here: Here) -> None:
    here.perform(
        step_action(command("one", None, ("a", "b"))), step_action(command("two", None, ("c",)))
    )
    here.codes = {"b": 2}
    answer = here.take_back(again=True)
    assert answer == {
        "no": "failed",
        "why": "b: exit code 2",
        "said": "said",
        "code": 2,
        "undone": [1, 0],
        "kept": [],
    }
    assert (here.ran, here.states()) == (["a", "b"], [["again"], ["again"]])
    assert here.take_back(half=True)["undone"] == [], "what is left to be run again is whole"
    here.codes = {"c": 2}
    assert here.take_back(again=True)["why"] == "c: exit code 2"
    assert (here.ran, here.states()) == (["a", "b", "c"], [["undone"], ["again"]])
    here.codes = {}
    assert "no" not in here.take_back(again=True)
    assert (here.ran, here.states()) == (["c"], [["undone"], ["undone"]])


def test_a_file_that_has_its_old_bytes_gets_its_old_mode_too(here: Here) -> None:
    here.perform(
        step_action(Write("/etc/old", b"old\n", b"new\n"), Write("/etc/gone", b"it\n", None))
    )
    for name, text in (("old", "old\n"), ("gone", "it\n")):
        (here.root / "etc" / name).write_text(text)
        (here.root / "etc" / name).chmod(0o666)
    assert here.take_back() == {"undone": [0], "kept": []}
    assert tree_of(here.root) == here.before


def test_what_is_as_it_was_already_is_not_written_again(here: Here) -> None:
    here.perform(
        step_action(Write("/etc/old", b"old\n", b"new\n"), Write("/etc/a/new", None, b"x"))
    )
    old = here.root / "etc/old"
    old.write_text("old\n")
    (here.root / "etc/a/new").unlink()
    with noted() as calls:
        assert here.take_back() == {"undone": [0], "kept": []}
    renamed = {Path(call.path).name for call in calls.made if call.name in ("rename", "unlink")}
    assert renamed == {"steps.json", kept_name("old", RUN)}
    assert tree_of(here.root) == here.before


@pytest.mark.machine
def test_what_a_file_has_besides_bytes_stays_with_it_and_comes_back(here: Here) -> None:
    place = here.root / "etc/old"
    os.setxattr(place, "user.origin", b"puppet")
    seen = []
    here.perform(
        step_action(
            Write("/etc/old", b"old\n", b"new\n"),
            Write("/etc/old", b"new\n", b"newer\n"),
        )
    )
    seen.append((place.read_bytes(), attributes(place)))
    os.removexattr(place, "user.origin")
    assert here.take_back() == {"undone": [0], "kept": []}
    seen.append((place.read_bytes(), attributes(place)))
    assert seen == [
        (b"newer\n", {"user.origin": b"puppet"}),
        (b"old\n", {"user.origin": b"puppet"}),
    ]
    assert tree_of(here.root) == here.before


@pytest.mark.parametrize("last", ["settle", "take_back", "force"])
def test_old_files_stay_beside_new_ones_until_the_run_is_final(here: Here, last: str) -> None:
    here.perform(
        step_action(
            Write("/etc/old", b"old\n", b"new\n"),
            Write("/etc/old", b"new\n", b"newer\n"),
            Write("/etc/gone", b"it\n", None),
        )
    )
    beside = {path.name for path in (here.root / "etc").glob(".*")}
    first = kept_name("old", RUN)
    assert beside == {first, f"{first}-2", kept_name("gone", RUN)}
    if last == "settle":
        assert act.settle(None, here.body) == {}
    else:
        (here.root / "etc/old").write_text("mine\n")
        here.take_back(force=last == "force", go_on=True)
    left = {path.name for path in (here.root / "etc").glob(".*")}
    assert left == ({first, f"{first}-2"} if last == "take_back" else set())


@pytest.mark.machine
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_steps_are_taken_back_on_a_full_disk(tmp_path: Path, kind: str) -> None:
    with mounted(kind, tmp_path / "small") as small:
        here = Here(small / "node")
        place = here.root / "etc/old"
        place.write_bytes(b"x" * 300_000)
        before = tree_of(here.root)
        here.perform(
            step_action(Write("/etc/old", b"x" * 300_000, b"new\n")),
            step_action(Write("/etc/gone", b"it\n", None), Write("/etc/a/new", None, b"x")),
        )
        fill(small)
        assert here.take_back() == {"undone": [1, 0], "kept": []}
        assert act.undo(None, {**here.body, "undo": RUN}) == {}
        assert tree_of(here.root) == before
        assert here.states() == [["undone"], ["undone"] * 2]


@pytest.mark.parametrize("mine", [b"mine\n", None])
def test_what_others_wrote_meanwhile_is_replaced_by_force_alone(
    here: Here, mine: bytes | None
) -> None:
    here.perform(
        step_action(Write("/etc/old", b"old\n", b"new\n"), Write("/etc/a/new", None, b"x"))
    )
    for name in ("etc/old", "etc/a/new"):
        (here.root / name).write_bytes(mine) if mine else (here.root / name).unlink()
    answer = here.take_back()
    assert (answer["no"], answer["deed"]) == ("changed", 0)
    path, after = ("/etc/a/new", b"x") if mine else ("/etc/old", b"new\n")
    assert (answer["path"], base64.b64decode(answer["after"])) == (path, after)
    assert answer["current"] == (mine and disk.encoded(mine))
    assert "after it was written" in answer["why"]
    assert here.take_back(force=True) == {"undone": [0], "kept": []}
    assert tree_of(here.root) == here.before


def test_a_folder_that_others_use_by_now_is_left(here: Here) -> None:
    here.perform(step_action(Write("/etc/a/b/new", None, b"x")))
    (here.root / "etc/a/theirs").touch()
    assert here.take_back() == {"undone": [0], "kept": []}
    assert [path.name for path in (here.root / "etc/a").iterdir()] == ["theirs"]


def test_a_file_that_was_made_has_its_mode_and_one_that_was_replaced_its_own(here: Here) -> None:
    here.perform(
        step_action(
            Write("/etc/old", b"old\n", b"new\n", 0o600), Write("/etc/new", None, b"x", 0o604)
        )
    )
    modes = [(here.root / "etc" / name).stat().st_mode & 0o777 for name in ("old", "new")]
    assert modes == [0o640, 0o604]


def test_the_agent_knows_these_operations_and_ends_what_runs_with_itself() -> None:
    agent = SimpleNamespace(endings=[], ops={})
    steps_of.install(agent)
    assert sorted(agent.ops) == ["deeds", "halt", "perform", "take_back"]
    assert len(agent.endings) == 1
    assert agent.ops["halt"](agent, {}) == {}
