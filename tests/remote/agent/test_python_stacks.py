"""Stacks of other processes from their memory, for every Python that is here."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from clusterprep.remote.agent import python_stacks
from clusterprep.remote.agent.python_stacks import (
    COLLECTIVE,
    WAITING_MAIN,
    Unreadable,
    line_of_locations,
    line_of_ranges,
    line_of_steps,
    read_stack,
    telling,
)

PROGRAM = """
import threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

class Training:
    def step(self):
        number = 1
        print(number, flush=True)
        time.sleep(60)

Training().step()
"""
INTERPRETERS = sorted(
    {
        sys.executable,
        "/usr/bin/python3",
        *map(str, Path(sys.base_prefix).parent.glob("3.*/bin/python")),
    }
)


@pytest.fixture
def running(request: pytest.FixtureRequest) -> Iterator[int]:
    """The pid of a program that sleeps in a method."""
    argv = [request.param, "-c", PROGRAM]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(0.05)  # until it sleeps
        yield process.pid
        process.kill()


def version_of(interpreter: str) -> tuple[int, int]:
    script = "import sys; print(*sys.version_info[:2])"
    shown = subprocess.run([interpreter, "-c", script], capture_output=True, check=True, text=True)
    major, minor = shown.stdout.split()
    return int(major), int(minor)


def known() -> list[str]:
    found = []
    for interpreter in INTERPRETERS:
        if Path(interpreter).exists() and version_of(interpreter) in python_stacks.OFFSETS:
            found.append(interpreter)
    return found


@pytest.mark.parametrize("running", known(), indirect=True)
def test_the_stack_of_a_process_is_read_with_its_lines(running: int) -> None:
    tid, frames = read_stack(running)
    assert tid is None
    names = [(name.rpartition(".")[2], path, line) for name, path, line in frames]
    assert names == [("step", "<string>", 9), ("<module>", "<string>", 11)]


def test_a_program_that_is_no_python_is_unreadable() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with pytest.raises(Unreadable, match="no symbol _PyRuntime"):
                read_stack(process.pid)
        finally:
            process.kill()


def test_a_process_that_is_gone_is_unreadable() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(Unreadable):
        read_stack(process.pid)


class _Memory(python_stacks._Process):
    """A process whose memory is made of numbers."""

    def __init__(self, words: dict[int, int]) -> None:
        self.words = words
        self.at = python_stacks.OFFSETS[3, 11]
        self.version = (3, 11)
        self.pid = 1
        self.runtime = 0x1000

    def bytes_at(self, address: int, size: int) -> bytes:
        return self.words.get(address, 0x2000).to_bytes(8, "little")[:size]


def test_memory_that_is_a_ring_ends() -> None:
    """Every pointer leads to the same place, as memory may look while it changes."""
    with pytest.raises(Unreadable):
        _Memory({}).stacks()


# ---------------------------------------------------------------- threads


MAIN = ["step", "/home/u/train.py", 3]
WAITS = ["all_reduce", "/x" + COLLECTIVE, 1]


@pytest.mark.parametrize(
    ("stacks", "expected"),
    [
        pytest.param([(None, [MAIN])], 0, id="one-thread"),
        pytest.param([(None, [MAIN]), (7, [MAIN, MAIN])], 0, id="the-main-one"),
        pytest.param([(None, [MAIN]), (7, [WAITS, MAIN])], 1, id="autograd-in-a-collective"),
        pytest.param([(None, [WAITS]), (7, [WAITS, MAIN])], 0, id="both-in-a-collective"),
        pytest.param(
            [(None, [["main_loop", "/x" + WAITING_MAIN, 1]]), (7, [MAIN]), (8, [MAIN, MAIN])],
            2,
            id="ray",
        ),
    ],
)
def test_the_most_telling_thread_is_taken(stacks: list[object], expected: int) -> None:
    assert telling(stacks) is stacks[expected]


# ---------------------------------------------------------------- lines


def program() -> CodeType:
    """A function with lines that go back and forth, with long ones and with none."""
    lines = ["def f(a):", *["    # nothing"] * 300, "    for b in a:"]
    lines += ["        if b:", "            g(", "                b,", "            )"]
    lines += ["        try:", "            a = [x for x in b]", "        except (OSError,):"]
    lines += ["            pass", *["    # nothing"] * 200, "    return a"]
    module = compile("\n".join(lines), "f", "exec")
    (code,) = [each for each in module.co_consts if isinstance(each, CodeType)]
    return code


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an earlier format")
def test_lines_are_those_that_python_itself_tells() -> None:
    code = program()
    seen = 0
    for start, end, line in code.co_lines():
        if line is None:
            continue
        for offset in range(start, end, 2):
            found = line_of_locations(code.co_linetable, offset, code.co_firstlineno)
            assert found == line, offset
            seen += 1
    assert seen > 20


def test_lines_before_3_11() -> None:
    """A function of lines 10, 12 and 5, by hand after Objects/lnotab_notes.txt of both."""
    steps = bytes([4, 2, 6, 0xF9])  # from byte 4 on line 12, from byte 10 on line 5
    assert [line_of_steps(steps, at, 10) for at in (0, 3, 4, 9, 10)] == [10, 10, 12, 12, 5]
    ranges = bytes([4, 0, 6, 2, 2, 0xF9, 2, 0x80])
    assert [line_of_ranges(ranges, at, 10) for at in (0, 3, 4, 9, 10)] == [10, 10, 12, 12, 5]


@pytest.mark.parametrize("table", [b"", b"\xff", b"\xf0\x7f\x7f\x7f", bytes(range(256)) * 4])
def test_tables_that_are_spoilt_give_some_line(table: bytes) -> None:
    for line_of in (line_of_locations, line_of_ranges, line_of_steps):
        assert isinstance(line_of(table, 1 << 20, 1), int)
