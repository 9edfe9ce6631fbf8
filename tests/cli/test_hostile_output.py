"""What nodes say reaches a terminal without what acts on it, and a pipe as it is."""

from __future__ import annotations

import io
import os
import pty
import select
import sys
from collections.abc import Callable

import pytest

from clusterprep.cli import output, terminal
from clusterprep.model import ChangeRow

# Sets the clipboard, the title, clears the screen, in 7 and 8 bits; goes back; turns directions.
HOSTILE = "old\x1b]52;c;Y3VybCBldmls\x07\x1b]0;title\x07\x1bc\x9b2J\r\x08\u202e\udc9b\u2028end"
A_MOMENT = 0.3  # seconds in which the kernel passes on what was written
ACTING = "\x1b\x07\x9b\r\x08\u202e\u2028\x00\x7f"


def shown_on_terminal(write: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a terminal gets of what is written to stdout and stderr."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        write()
        stream.flush()
        shown = b""
        while select.select([master], [], [], A_MOMENT)[0]:
            shown += os.read(master, 1 << 16)
    os.close(master)
    # The terminal driver makes \r\n of the ends of lines.
    return shown.decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def has_control(text: str) -> bool:
    return any(letter in ACTING or 0xDC80 <= ord(letter) <= 0xDCFF for letter in text)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda: output.say(f"one\n{HOSTILE}\nthree"), id="say"),
        pytest.param(lambda: output.say_line(f"one\n{HOSTILE}\nthree"), id="say_line"),
        pytest.param(
            lambda: output.write_stdout((output.shown_text(f"one\n\t{HOSTILE}\nthree\n"),)),
            id="shown_text",
        ),
    ],
)
def test_a_terminal_gets_text_alone(
    write: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = shown_on_terminal(write, monkeypatch)
    assert not has_control(shown), repr(shown)
    assert "one" in shown
    assert "three" in shown
    assert "end" in shown


def test_a_node_adds_no_line_to_ours(capsys: pytest.CaptureFixture[str]) -> None:
    output.say_line("n1: a\nclusterprep: all is well\u2028\x85x")
    assert len(capsys.readouterr().err.splitlines()) == 1
    output.say("a\nb\x0bc\u2028d")
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_pipe_gets_every_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    assert output.shown_text("export A='\t\x1b'\n") == "export A='\t\x1b'\n"


def test_the_difference_that_is_approved_shows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    diff = f"-{HOSTILE}\n+new\n"
    row = ChangeRow(("n1",), "file", "/etc/x.conf\x1bc", "edit", "done", diff)
    monkeypatch.setattr("click.confirm", lambda question, err: True)
    shown = shown_on_terminal(lambda: terminal.confirm([row]), monkeypatch)
    assert not has_control(shown), repr(shown)
    assert [line[0] for line in shown.split("\n") if line] == ["e", "-", "+"]
