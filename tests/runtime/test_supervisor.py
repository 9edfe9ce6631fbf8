"""Signals reach a command where it looks, and end the process where nothing can be left half done.

Each case is a process of its own, since signals are of the whole process.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.support.patience import LONG, killed_on_failure

# A command that does what its body says. It is told «up» when it may get signals, and tells how the
# main thread left it.
PROGRAM = """
import os, sys, time
from clusterprep.runtime.deadline import COMMAND, Deadline, asking, conclude
from clusterprep.runtime.signals import SignalPipe
from clusterprep.runtime.supervisor import Supervisor
from clusterprep.errors import ClusterprepError

def say(text):
    os.write(1, (text + "\\n").encode())

def command():
    try:
{body}
    except ClusterprepError as error:
        say(f"raised: {{error}}")
        return error.code
    return 0

def give_up(error, shown):
    say(f"left: {{error}}{{' (shown)' if shown else ''}}")
    os._exit(error.code)

os._exit(Supervisor(SignalPipe(), give_up).run(command))
"""
WAIT = "while True: time.sleep(0.05); d.check()"
DEAF = "while True: time.sleep(0.05)"


def program(*lines: str) -> list[str]:
    body = "\n".join(f"        {line}" for line in lines)
    return [sys.executable, "-c", PROGRAM.format(body=body)]


def told(
    lines: list[str], *signals: int, gap: float = 0.0, ignored: int | None = None
) -> tuple[int, list[str], float]:
    """Return the exit code, the lines after «up», and the seconds after the last signal."""
    before = None if ignored is None else signal.signal(ignored, signal.SIG_IGN)
    process = subprocess.Popen(program(*lines), stdout=subprocess.PIPE, text=True)
    if ignored is not None:
        signal.signal(ignored, before)
    assert process.stdout is not None
    with killed_on_failure(process):
        assert process.stdout.readline() == "up\n"
        for number, signum in enumerate(signals):
            time.sleep(gap if number else 0.0)
            process.send_signal(signum)
        began = time.monotonic()
        out = process.stdout.read()
        process.wait(LONG)
    process.stdout.close()
    return process.returncode, out.splitlines(), time.monotonic() - began


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_raised_where_the_command_looks(signum: signal.Signals) -> None:
    code, lines, _ = told(["with Deadline() as d:", "    say('up')", f"    {WAIT}"], signum)
    assert (code, lines) == (130, [f"raised: interrupted by {signum.name}"])


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_ignored_at_the_start_stays_ignored(signum: signal.Signals) -> None:
    lines = ["with Deadline() as d:", "    say('up')", "    time.sleep(0.3)", "    d.check()"]
    assert told(lines, signum, ignored=signum)[:2] == (0, [])


def test_two_signals_of_one_event_do_not_end_a_commit() -> None:
    lines = [
        "with Deadline() as d:",
        "    with d.shield():",
        "        say('up'); time.sleep(0.5); say(f'written {d.patience()}')",
    ]
    code, said, _ = told(lines, signal.SIGTERM, signal.SIGHUP, gap=0.001)
    assert (code, said) == (130, ["written inf", "raised: interrupted by SIGTERM"])


def test_a_late_second_signal_in_a_commit_shortens_its_waits_alone() -> None:
    lines = [
        "with Deadline() as d:",
        "    with d.shield():",
        "        say('up'); time.sleep(2); say(f'written {d.patience() < 6}')",
    ]
    code, said, _ = told(lines, signal.SIGINT, signal.SIGINT, gap=1.2)
    assert (code, said) == (130, ["written True", "raised: interrupted by SIGINT"])


def test_a_command_that_has_written_nothing_and_does_not_look_is_left() -> None:
    code, said, seconds = told(["with Deadline():", "    say('up')", f"    {DEAF}"], signal.SIGINT)
    assert (code, said) == (130, ["left: interrupted by SIGINT"])
    assert seconds < LONG / 4


def test_a_command_that_has_written_is_not_left_at_the_first_signal() -> None:
    lines = [
        "with Deadline() as d:",
        "    with d.shield(): pass",
        "    say('up'); time.sleep(2.5); d.check()",
    ]
    code, said, _ = told(lines, signal.SIGINT, signal.SIGINT, gap=1.2)
    assert (code, said) == (130, ["raised: interrupted by SIGINT"])


def test_a_time_limit_needs_no_command_that_looks() -> None:
    code, said, _ = told(["with Deadline(0.3):", "    say('up')", f"    {DEAF}"])
    assert (code, said) == (3, ["left: --timeout of 0.3 s reached"])


@pytest.mark.parametrize("signals", [(), (signal.SIGINT,)])
def test_results_of_long_work_are_not_given_up_for_being_slow(signals: tuple[int, ...]) -> None:
    lines = [
        f"with Deadline({None if signals else 0.3}) as d:",
        "    d.has_results = True",
        "    say('up'); time.sleep(2)",
        "    try: d.check()",
        "    except ClusterprepError as error: say(f'known at {error}')",
    ]
    code, said, _ = told(lines, *signals)
    ended = "interrupted by SIGINT" if signals else "--timeout of 0.3 s reached"
    assert (code, said) == (0, [f"known at {ended}"])


def test_a_second_signal_gives_up_results_too() -> None:
    lines = ["with Deadline() as d:", "    d.has_results = True", "    say('up')", f"    {DEAF}"]
    code, said, _ = told(lines, signal.SIGINT, signal.SIGINT, gap=1.2)
    assert (code, said) == (130, ["left: interrupted by SIGINT"])


def test_before_a_command_has_begun_it_is_left_at_once() -> None:
    code, said, _ = told(["say('up')", DEAF], signal.SIGTERM)
    assert (code, said) == (130, ["left: interrupted by SIGTERM"])


def test_while_the_user_is_asked_it_is_left_at_once() -> None:
    lines = [
        "with Deadline() as d:",
        "    with d.shield(): pass",
        "    with asking():",
        "        say('up'); time.sleep(600)",
    ]
    code, said, _ = told(lines, signal.SIGINT)
    assert (code, said) == (130, ["left: interrupted by SIGINT"])


def test_after_a_command_has_ended_its_result_is_shown() -> None:
    lines = ["with Deadline(): pass", "say('up'); time.sleep(0.3); say('result')"]
    assert told(lines, signal.SIGINT)[:2] == (0, ["result"])


def test_a_result_that_is_not_taken_is_left() -> None:
    code, said, _ = told(["with Deadline(): pass", "say('up'); time.sleep(600)"], signal.SIGINT)
    shown = ", when all was done and its result was being shown (shown)"
    assert (code, said) == (130, [f"left: interrupted by SIGINT{shown}"])


KNOWN = ["with Deadline() as d:", "    say('up')", "    try:", f"        {WAIT}"]
KNOWN += ["    except ClusterprepError: pass"]


def test_what_was_known_at_a_signal_has_time_to_be_shown() -> None:
    lines = [*KNOWN, "time.sleep(1.6); say('known')"]
    assert told(lines, signal.SIGINT)[:2] == (0, ["known"])


def test_what_was_known_at_a_signal_is_left_after_another_one() -> None:
    code, said, _ = told([*KNOWN, "time.sleep(600)"], signal.SIGINT, signal.SIGINT, gap=1.2)
    unshown = ", and what was known by then was being shown (shown)"
    assert (code, said) == (130, [f"left: interrupted by SIGINT{unshown}"])


def test_an_error_that_is_not_taken_is_not_called_done() -> None:
    lines = [
        "try:",
        "    with Deadline() as d: raise ClusterprepError('no')",
        "except ClusterprepError: pass",
        "say('up'); time.sleep(600)",
    ]
    code, said, _ = told(lines, signal.SIGINT)
    untold = ", while the command was telling which error had ended it (shown)"
    assert (code, said) == (130, [f"left: interrupted by SIGINT{untold}"])


# ---------------------------------------------------------------- the command line

# Sends a signal when `click` is looked for, which is early: before a line of the command has run.
EARLY = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(sys.argv.pop()))
sys.meta_path.insert(0, Finder())
from clusterprep.__main__ import main
main()
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_starts_is_an_interruption_too(signum: signal.Signals) -> None:
    argv = [sys.executable, "-c", EARLY, "check", "--local", "--format", "json", str(int(signum))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    expected = (130, f"clusterprep: interrupted by {signum.name}\n")
    assert (done.returncode, done.stderr) == expected
    assert (report := json.loads(done.stdout))["verdict"] == "interrupted"
    assert report["command"] == "check"


def test_a_signal_before_signals_are_taken_leaves_no_traceback() -> None:
    early = EARLY.replace('"click"', '"clusterprep.runtime.signals"')
    argv = [sys.executable, "-c", early, "check", "--local", str(int(signal.SIGINT))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("command", ["check", "plan", "apply", "rollback", "verify", "env"])
def test_nodes_that_are_silent_hold_up_no_interruption(tmp_path: Path, command: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        inventory = tmp_path / "silent.yaml"
        inventory.write_text(
            f"nodes: [{{name: n1, address: 127.0.0.1}}]\n"
            f"ssh: {{port: {port}, connect_timeout: 60}}\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "clusterprep", command, str(inventory)],
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with killed_on_failure(process):
            connection, _ = silent.accept()
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            out, err = process.communicate(timeout=LONG)
        connection.close()
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "clusterprep: interrupted by SIGINT"
    assert time.monotonic() - began < LONG / 4


def test_a_password_that_is_asked_for_can_be_interrupted_and_the_terminal_shows_again(
    tmp_path: Path,
) -> None:
    inventory = tmp_path / "one.yaml"
    inventory.write_text("nodes: [{name: n1, address: 127.0.0.1}]\nssh: {port: 1}\n")
    process, terminal = pty.fork()
    if process == 0:
        argv = [sys.executable, "-m", "clusterprep", "check", str(inventory), "-K"]
        os.execv(sys.executable, argv)
    seen = b""
    while b"password:" not in seen:
        seen += os.read(terminal, 1024)
    time.sleep(0.2)
    os.write(terminal, b"\x03")
    while b"interrupted" not in seen:
        seen += os.read(terminal, 1024)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 130
    assert b"interrupted by SIGINT" in seen
    assert termios.tcgetattr(terminal)[3] & termios.ECHO
    os.close(terminal)
