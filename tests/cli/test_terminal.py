"""Secrets come from a prompt, the environment or a file descriptor, and stay in none of them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from clusterprep.cli import terminal
from clusterprep.errors import InputError
from clusterprep.model import Node, SshSettings

NODE = Node("n1", "n1", 0)
NAME = terminal.PASSWORD


@pytest.fixture
def opened() -> Callable[[bytes], str]:
    """Makes a pipe with something in it, and gives its number."""

    def pipe(content: bytes) -> str:
        source, sink = os.pipe()
        os.write(sink, content)
        os.close(sink)
        return str(source)

    return pipe


def test_a_secret_of_the_environment_is_taken_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "open sesame")
    assert terminal.take_secret(NAME) == "open sesame"
    assert NAME not in os.environ
    assert terminal.take_secret(NAME) == ""


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"open sesame\n", "open sesame"),
        (b"open sesame", "open sesame"),
        (b"one\r\ntwo\n", "one"),
        (b" a \n", " a "),
    ],
)
def test_the_first_line_of_a_file_descriptor(
    monkeypatch: pytest.MonkeyPatch, opened: Callable[[bytes], str], content: bytes, secret: str
) -> None:
    number = opened(content)
    monkeypatch.setenv(f"{NAME}_FD", number)
    assert terminal.take_secret(NAME) == secret
    assert f"{NAME}_FD" not in os.environ
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(int(number))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("one\ntwo", "not one line"),
        ("x" * 256, "more than 255 bytes"),
        ("x" * 1024, "not one line"),
    ],
    ids=["two lines", "longer than sudo reads", "endless"],
)
def test_what_sudo_would_leave_to_the_agent_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    monkeypatch.setenv(NAME, value)
    with pytest.raises(InputError, match=words):
        terminal.password({})


def test_the_end_of_a_file_s_line_is_none_of_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "open sesame\n")
    assert terminal.take_secret(NAME) == "open sesame"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("three", "CLUSTERPREP_BECOME_PASSWORD_FD: 'three' is not the number of an open file"),
        ("987", "file 987 cannot be read: Bad file descriptor"),
        ("9" * 30, "cannot be read: there is no such number"),
        ("EMPTY", "is empty"),
    ],
)
def test_a_descriptor_that_gives_no_password(
    monkeypatch: pytest.MonkeyPatch, opened: Callable[[bytes], str], number: str, words: str
) -> None:
    monkeypatch.setenv(f"{NAME}_FD", opened(b"\n") if number == "EMPTY" else number)
    with pytest.raises(InputError, match=words):
        terminal.password({})


def test_one_way_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "a")
    monkeypatch.setenv(f"{NAME}_FD", "3")
    with pytest.raises(InputError, match="is given as well"):
        terminal.password({})


def test_without_a_password_there_is_none_for_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "")
    assert terminal.password({"ask_become_pass": False})(NODE) is None


def test_a_password_does_not_print_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "open sesame")
    secret = terminal.password({})(NODE)
    assert secret is not None
    assert "sesame" not in f"{secret} {secret!r} {[secret]}"


def test_a_passphrase_is_tried_once_for_each_key(
    monkeypatch: pytest.MonkeyPatch, opened: Callable[[bytes], str]
) -> None:
    monkeypatch.setenv(f"{terminal.PASSPHRASE}_FD", opened(b"open sesame\n"))
    ask = terminal.passphrases()
    assert [ask("a: "), ask("b: "), ask("a: ")] == [
        "open sesame",
        "open sesame",
        "",
    ]  # and there is no terminal to ask at


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "in the environment"])
def test_no_password_goes_through_slurm(monkeypatch: pytest.MonkeyPatch, typed: bool) -> None:
    """It is refused before anybody types it: srun shows its input to all tasks of a step."""
    monkeypatch.setenv(NAME, "" if typed else "open sesame")
    nodes = [
        Node(f"n{number}", f"n{number}", number, ssh=SshSettings(become=True), transport="slurm")
        for number in (1, 2)
    ]
    with pytest.raises(InputError, match=r"no password for sudo goes to n\[1-2\] through Slurm"):
        terminal.password({"ask_become_pass": typed}, nodes)


@pytest.mark.parametrize(
    ("become", "transport"), [(False, "slurm"), (True, "ssh"), (True, "local")]
)
def test_a_password_that_slurm_does_not_carry_is_taken(
    monkeypatch: pytest.MonkeyPatch, become: bool, transport: str
) -> None:
    monkeypatch.setenv(NAME, "open sesame")
    node = Node("n1", "n1", 0, ssh=SshSettings(become=become), transport=transport)  # type: ignore[arg-type]
    assert terminal.password({}, [node])(node) is not None
