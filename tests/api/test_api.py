"""The functions of the API: what they return and raise, in any thread, without a word."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from math import nan
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from clusterprep import api
from clusterprep.history import state_folder
from clusterprep.history.runs import Runs
from tests.support.command import asked, report_schema

HERE = "nodes: [{name: n1, address: 127.0.0.1, transport: local}]\n"
ONE = api.Options(only=("kernel.version",))
VARYING = ("run", "started", "seconds", "since")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return an inventory of this machine alone."""
    path = tmp_path / "here.yaml"
    path.write_text(HERE)
    return path


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[tuple[Path, socket.socket]]:
    """Return an inventory of a node that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        path = tmp_path / "silent.yaml"
        port = listener.getsockname()[1]
        path.write_text(
            f"ssh: {{user: root, port: {port}, connect_timeout: 60}}\n"
            "nodes: [{name: n1, address: 127.0.0.1}]\n"
        )
        yield path, listener


def command_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("clusterprep")]


def test_a_check_returns_what_the_command_prints(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = api.check(here, ONE)
    assert capfd.readouterr() == ("", "")
    code, out, _ = asked(capfd, "check", str(here), "--only", *ONE.only, "--format", "json")
    printed = msgspec.json.decode(out)
    content = report.to_dict()
    report_schema().validate(content)
    for name in VARYING:
        printed.pop(name, None)
        content.pop(name, None)
    assert (report.code, content) == (code, printed)


def test_a_report_is_a_frozen_value_with_every_format(here: Path) -> None:
    report = api.check(here, ONE)
    assert isinstance(report, api.Report)
    with pytest.raises(AttributeError):
        report.code = 0  # type: ignore[misc]
    assert msgspec.json.decode(report.to_json()) == report.to_dict()
    assert "<testsuites" in report.render("junit")
    with pytest.raises(api.InputError, match="is not a report format"):
        report.render("pdf")


def test_an_inventory_is_loaded_once_for_several_commands(here: Path) -> None:
    inventory = api.load(here, nproc_per_node=2)
    assert [node.name for node in inventory.nodes] == ["n1"]
    reports = [api.check(inventory, ONE) for _ in range(2)]
    assert [report.inventory for report in reports] == [str(here)] * 2


def test_a_run_is_in_the_history(here: Path) -> None:
    report = api.check(here, ONE)
    assert Runs(state_folder()).named("last").run == report.run


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda path: api.load(path / "none.yaml"), "none.yaml"),
        (lambda path: api.check(path / "none.yaml"), "none.yaml"),
        (lambda path: api.check(path / "here.yaml", api.Options(limit="n2")), "n2"),
        (lambda path: api.check(path / "here.yaml", api.Options(limit="")), "it is empty"),
        (lambda path: api.check(path / "here.yaml", api.Options(only=("tmie.",))), "tmie"),
        (lambda path: api.check(path / "here.yaml", api.Options(playbook="x")), "no such option"),
        (lambda path: api.verify(path / "here.yaml", ONE), "only: verify has no such option"),
        (lambda path: api.plan(path / "here.yaml", api.Options(playbook="sight")), "site"),
        (lambda path: api.fix(path / "here.yaml", api.Options(force=True)), "force: fix has no"),
        (lambda path: api.fix(path / "here.yaml", api.Options(only=("tmie.",))), "tmie"),
        (lambda path: api.rollback(path / "here.yaml", ONE), "only: rollback has no such option"),
        (lambda path: api.launch(path / "here.yaml", []), "command"),
        (lambda path: api.launch(path / "here.yaml", "train.py"), "one by one"),
        (
            lambda path: api.launch(path / "here.yaml", ["a"], api.Options(chdir="b")),
            "begin with /",
        ),
        (
            lambda path: api.launch(path / "here.yaml", ["a"], api.Options(env={"a b": "c"})),
            "letters, digits",
        ),
        (
            lambda path: api.launch(path / "here.yaml", ["a"], api.Options(env={"a": 1})),  # type: ignore[dict-item]
            "Expected `str`",
        ),
        (lambda path: api.check(path / "here.yaml", api.Options(only="time.")), "only"),  # type: ignore[arg-type]
        (lambda path: api.check(path / "here.yaml", api.Options(forks=0)), "forks: 0 is not"),
        (lambda path: api.check(path / "here.yaml", api.Options(forks=4097)), "forks: 4097 is"),
        (lambda path: api.check(path / "here.yaml", api.Options(forks=True)), "got `bool`"),
        (lambda path: api.check(path / "here.yaml", api.Options(timeout=0)), "timeout: 0 is not"),
        (lambda path: api.check(path / "here.yaml", api.Options(timeout=nan)), "timeout: nan is"),
        (
            lambda path: api.check(path / "here.yaml", api.Options(deep=True, stress=True)),
            "leave deep out",
        ),
        (
            lambda path: api.check(path / "here.yaml", api.Options(become_password="x" * 256)),
            "no sudo takes a password",
        ),
    ],
)
def test_wrong_input_is_an_error_that_says_what(
    here: Path, capfd: pytest.CaptureFixture[str], call: Callable[[Path], object], said: str
) -> None:
    with pytest.raises(api.InputError, match=said) as raised:
        call(here.parent)
    assert raised.value.problems
    assert capfd.readouterr() == ("", "")


def test_a_launch_returns_how_each_rank_ended_and_passes_lines_on(
    here: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inventory = api.load(here, nproc_per_node=2)
    lines: list[str] = []
    logs = tmp_path / "logs"
    report = api.launch(
        inventory,
        ["/bin/sh", "-c", 'echo "$WORD $RANK"; exit "$RANK"'],
        api.Options(direct=True, preflight=False, env={"WORD": "rank"}, log_dir=str(logs)),
        on_line=lines.append,
    )
    assert capfd.readouterr() == ("", "")
    assert (report.code, report.verdict) == (1, "fail")
    assert report.launch is not None
    assert {(row.rank, row.code) for row in report.launch.ranks} >= {(1, 1)}
    assert any("rank 1" in line for line in lines)
    assert len(list(logs.iterdir())) >= 2


def test_a_launch_ends_with_its_time(here: Path) -> None:
    options = api.Options(timeout=2, direct=True, preflight=False)
    report = api.launch(here, ["/bin/sleep", "600"], options)
    assert (report.code, report.verdict) == (3, "unknown")
    assert report.launch is not None
    assert report.launch.timed_out


def test_what_a_fix_would_do_is_said_and_nothing_is_done(here: Path) -> None:
    report = api.fix(here, ONE, dry_run=True)
    assert (report.command, report.changes) == ("fix", None)
    assert report.fixes == ()


def test_each_option_is_of_one_function_at_least_and_no_secret_is_shown() -> None:
    taken = {name for names in api._TAKEN.values() for name in names}
    assert taken == set(api.Options.__struct_fields__)
    shown = repr(api.Options(become_password="open", key_passphrase="sesame", env={"A": "open"}))
    assert "env={'A': '…'}" in shown
    assert "open" not in shown
    assert "sesame" not in shown


def test_a_time_limit_ends_a_command_with_what_is_known(
    silent: tuple[Path, socket.socket],
) -> None:
    report = api.check(silent[0], api.Options(timeout=0.3))
    assert (report.code, report.verdict) == (3, "unknown")
    assert report.error is not None
    assert report.error["message"] == "timeout of 0.3 s reached"


def test_commands_run_in_any_thread_and_leave_signals_alone(here: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
    before = [signal.getsignal(number) for number in numbers]
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(api.check(here, ONE).code)) for _ in range(3)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert codes == [0, 0, 0]
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert command_threads() == []


class Enough(Exception):
    """What a handler of a signal raises in this test."""


def test_a_signal_ends_the_command_in_order_and_its_exception_goes_on(
    silent: tuple[Path, socket.socket],
) -> None:
    path, listener = silent
    main = threading.main_thread().ident
    assert main is not None

    def handle(number: int, frame: FrameType | None) -> None:
        raise Enough

    accepted: list[socket.socket] = []

    def interrupt() -> None:
        accepted.append(listener.accept()[0])  # so the command waits for its node
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    try:
        with pytest.raises(Enough):
            api.check(path)
    finally:
        interrupter.join()
        accepted[0].close()
        signal.signal(signal.SIGUSR1, before)
    assert command_threads() == []
    assert Runs(state_folder()).named("last").verdict == "interrupted"


def test_any_other_exception_is_raised_in_the_thread_that_waits(here: Path) -> None:
    def work(invocation: object) -> api.CommandReport:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        api._run("check", here, ONE, work)
    assert command_threads() == []
