"""A session that ends before the agent's first word: what it means, and what is not known."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from clusterprep.errors import Unreached
from clusterprep.model import Node, Read
from clusterprep.remote import bootstrap
from clusterprep.remote.transports.frames import plain
from clusterprep.remote.transports.link import Link, open_link
from clusterprep.remote.transports.local import LocalChannel, LocalTransport
from clusterprep.remote.transports.protocol import Channel
from clusterprep.remote.transports.secret_filter import SecretFilter
from clusterprep.survey.reads import ask_reads

NODE = Node("n1", "n1", 0)


@dataclass
class Ends:
    """A transport whose every command is another one."""

    command: str
    alive: bool = True

    def open(self, node: Node, command: str) -> Channel:
        channel = LocalChannel(self.command)
        channel.alive = self.alive
        return channel

    def unheard(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        pass


SHELL = f"echo {bootstrap.SHELL_RUNS}; "


@pytest.mark.parametrize(
    ("command", "reason", "words"),
    [
        (SHELL + "exit 3", "no_python", "the session ended without a word"),
        (SHELL + "sleep 0.2; exit 0", "no_python", "the session ended without a word"),
        (
            SHELL + "echo 'Could not find platform independent libraries' >&2; exit 1",
            "no_python",
            "^Python did not start: Could not find platform independent libraries$",
        ),
        (SHELL + "echo clusterprep-no-python", "no_python", "no python3 was found"),
        (
            SHELL + "echo 'rbash: line 1: exec: restricted' >&2; exit 126",
            "denied",
            "; it says: rbash: line 1: exec: restricted$",
        ),
        (
            "echo This account is currently not available.; exit 1",
            "denied",
            "^the login shell of the login user does not run our command; it says: This account",
        ),
        ("exit 1", "denied", "; it says nothing$"),
    ],
)
def test_a_node_that_lets_us_in_and_starts_no_python_refuses_us(
    command: str, reason: str, words: str
) -> None:
    with pytest.raises(Unreached, match=words) as error:
        open_link(Ends(command), NODE, ["look"], lambda node: None)
    assert (error.value.reason, error.value.answered) == (reason, True)


def test_a_connection_that_broke_says_nothing_about_python() -> None:
    with pytest.raises(Unreached) as error:
        open_link(Ends("exit 0", alive=False), NODE, ["look"], lambda node: None)
    assert (error.value.reason, error.value.answered) == ("hung", False)


def test_a_python_that_takes_its_time_to_start_is_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clusterprep.remote.transports.link.SILENCE_LIMIT", 0.3)
    link = open_link(Ends(f"sleep 1.5; {bootstrap.command()}"), NODE, ["look"], lambda node: None)
    link.close()


def test_what_is_asked_behind_the_agent_is_answered_in_any_order() -> None:
    numbers: list[int] = []

    def first(link: Link) -> None:
        look = {"reads": [["file", ["/proc/sys/kernel/osrelease"], 5.0]]}
        numbers.extend(link.send_all(("ping", {}), ("look", look), ("no such thing", {})))

    link = open_link(LocalTransport(), NODE, ["look"], lambda node: None, first)
    later = link.send("ping")
    try:
        assert "seen" in link.receive(later, 10)
        assert link.receive(numbers[1], 10)["answers"][0][0] == "ok"
        assert link.receive(numbers[2], 10)["no"] == "agent_error"
        assert "seen" in link.receive(numbers[0], 10)
    finally:
        link.close()


@pytest.mark.parametrize(
    ("secret", "kind"), [("", msgspec.Raw), ("a long password", list)], ids=["none", "a password"]
)
def test_a_look_comes_in_pieces_unless_a_password_is_looked_for(secret: str, kind: type) -> None:
    asked = Read("file", ("/proc/sys/kernel/osrelease",))
    channel = LocalTransport().open(NODE, bootstrap.command())
    link = Link(NODE, channel, "ab12cd34", SecretFilter(secret))
    try:
        channel.send(bootstrap.payload("ab12cd34", ["look"], channel.near))
        link.wait_hello(10)
        (answer,) = ask_reads(link, [asked])
        assert type(answer) is kind
        (value,) = plain({"answers": [answer]})["answers"]
        assert value[0] == "ok"
    finally:
        link.close()


def test_an_answer_that_nobody_asked_for_is_not_kept() -> None:
    link = open_link(LocalTransport(), NODE, ["look"], lambda node: None)
    try:
        for _ in range(3):
            link.receive(link.send("ping"), 10)
        assert (len(link._answers), len(link._awaited)) == (0, 0)
    finally:
        link.close()
