"""Progress on stderr: a line per stage in a file, a moving one on a terminal; never on stdout."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from threading import Thread

import pytest

from clusterprep.reports.live import LiveLine
from clusterprep.reports.progress import Lines, Progress
from clusterprep.reports.progress_display import make_progress

from .situations import FOUR


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_stage_is_one_line_at_its_end() -> None:
    stream, clock = StringIO(), Clock()
    with Lines(stream, clock) as progress:
        progress.stage("look", 4, FOUR)
        clock.now += 0.8
        for name in FOUR:
            assert stream.getvalue() == ""
            progress.step(name, "ok")
    assert stream.getvalue() == "look: 4/4 nodes, 0.8 s\n"


def test_what_went_wrong_is_folded_and_who_is_missing_named() -> None:
    stream, clock = StringIO(), Clock()
    progress = Lines(stream, clock)
    progress.stage("look", 4, FOUR)
    progress.step("n1")
    progress.step("n2", "timed_out")
    progress.step("n3", "timed_out")
    clock.now += 10
    progress.stage("judge", 0)
    progress.close()
    progress.close()
    first, second = stream.getvalue().splitlines()
    assert first == "look: 1/4 nodes, 10.0 s; timed_out: n[2-3]; no answer yet: n4"
    assert second == "judge: 0/0 nodes, 0.0 s"


def test_notes_are_lines_and_harmless() -> None:
    stream = StringIO()
    Lines(stream).note("\x1b[31mrun\n[red]x[/red]")
    assert stream.getvalue() == "note: \N{REPLACEMENT CHARACTER}[31mrun [red]x[/red]\n"


def test_silent_says_nothing() -> None:
    progress = Progress()
    progress.stage("look", 1)
    progress.step("n1")
    progress.note("x")
    progress.close()


def test_the_stream_decides_the_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert type(make_progress(StringIO())) is Lines
    assert type(make_progress(Terminal())) is LiveLine
    assert type(make_progress(Terminal(), quiet=True)) is Progress
    assert type(make_progress(None)) is Progress
    monkeypatch.setenv("TERM", "dumb")
    assert type(make_progress(Terminal())) is Lines


def test_live_draws_who_is_waited_for_and_leaves_the_line() -> None:
    stream, clock = Terminal(), Clock()
    progress = LiveLine(stream, clock)
    progress.stage("look", 4, FOUR)
    for name in FOUR[:3]:
        progress.step(name)
    progress.note("one is slow")
    progress.close()
    text = stream.getvalue()
    assert "waiting for n" in text
    assert "note: one is slow" in text
    assert text.rstrip().endswith("look: 3/4 nodes, 0.0 s; no answer yet: n4")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor is given back


def test_the_slowest_of_those_that_answered_are_named() -> None:
    stream = Terminal()
    progress = Lines(stream, Clock())
    names = tuple(f"n{number}" for number in range(1, 9))
    progress.stage("look", 8, names)
    for name, took in zip(names, (0.5, 0.6, 0.5, 9.25, 0.4, 2.5, 0.5, 30.0), strict=True):
        progress.step(name, "timed_out" if took == 30.0 else "reached", took)
    assert stream.getvalue().endswith("timed_out: n8; slowest: n4 9.2 s, n6 2.5 s\n")
    progress.stage("look", 3, names[:3])
    for name in names[:3]:
        progress.step(name, "reached", 1.9)
    assert "slowest" not in stream.getvalue().splitlines()[-1]


def test_live_counts_what_went_wrong_so_far() -> None:
    stream = Terminal()
    progress = LiveLine(stream, Clock())
    names = tuple(f"n{number:03}" for number in range(1, 513))
    progress.stage("look", 512, names)
    for name in names[:500]:
        progress.step(name, "reached")
    for name in names[500:503]:
        progress.step(name, "timed_out")
    progress.close()
    assert "503/512  3 timed_out  0.0 s  waiting for n[504-512]" in stream.getvalue()


def test_hostile_names_stay_text_on_a_live_line() -> None:
    stream = Terminal()
    progress = LiveLine(stream)
    progress.stage("[red]look", 2, ("\x1b]0;x\x07", "b"))
    progress.step("b", "\x1b[2J")
    progress.close()
    assert "\x1b]0" not in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()
    assert "[red]look" in stream.getvalue()


def test_steps_may_come_from_many_threads() -> None:
    stream = StringIO()
    progress = Lines(stream)
    progress.stage("look", 64)
    threads = [Thread(target=progress.step, args=(f"n{number}", "ok")) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    progress.close()
    assert stream.getvalue().startswith("look: 64/64 nodes")
    assert stream.getvalue().count("\n") == 1


class Gone(Terminal):
    """A terminal whose reader has left."""

    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("variant", [Lines, LiveLine])
def test_a_reader_that_left_does_not_stop_the_run(variant: type[Lines]) -> None:
    with variant(Gone()) as progress:
        progress.stage("write", 2, ("a", "b"))
        progress.step("a")
        progress.note("x")
        progress.step("b")


def test_rich_is_not_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, clusterprep.reports.progress, clusterprep.reports.json_report; "
        "sys.exit('rich' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, timeout=30)
    assert ended.returncode == 0
