"""Who is given sudo's password, and when, by many nodes at once."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from clusterprep.errors import LinkLost, Unreached
from clusterprep.model import Node, SshSettings
from clusterprep.remote.transports.secret_filter import HIDDEN
from clusterprep.remote.transports.sudo import STDERR_SHOWN, SudoPassword, open_with_sudo

NODES = [Node(f"n{number}", f"n{number}", number, SshSettings("alice")) for number in range(1, 33)]
A_MOMENT = 0.02  # seconds
LIMIT = 60.0  # seconds until those that should come together are given up
REFUSAL = Unreached("sudo_refused", "Sorry, try again.")


class Directory:
    """What stands behind the accounts of all nodes.

    How many passwords it was shown, and how many at once.

    After the first it answers when `together` nodes wait for an answer.
    """

    def __init__(
        self, password: SudoPassword, answer: Unreached | None = None, together: int = 1
    ) -> None:
        self.password, self.answer = password, answer
        self.shown, self.at_once, self.most = 0, 0, 0
        self._lock = threading.Lock()
        self._together = threading.Barrier(together)

    def ask(self, node: Node) -> str:
        """What becomes of a node whose sudo asks."""
        try:
            with self.password.turn(node) as secret:
                assert secret == b"open sesame"
                with self._lock:
                    self.shown, self.at_once = self.shown + 1, self.at_once + 1
                    self.most = max(self.most, self.at_once)
                    first = self.shown == 1
                time.sleep(A_MOMENT)  # in which others come, where they are let
                if not first:
                    self._together.wait(LIMIT)
                with self._lock:
                    self.at_once -= 1
                if self.answer is not None:
                    raise self.answer
        except Unreached as error:
            return error.reason
        return "in"

    def ask_all(self, nodes: list[Node]) -> list[str]:
        with ThreadPoolExecutor(len(nodes)) as pool:
            return list(pool.map(self.ask, nodes))


@pytest.fixture
def password() -> SudoPassword:
    return SudoPassword("open sesame")


def test_one_node_tries_and_then_all_at_once(password: SudoPassword) -> None:
    directory = Directory(password, together=31)
    assert directory.ask_all(NODES) == ["in"] * 32
    assert (directory.shown, directory.most) == (32, 31)


def test_a_wrong_password_is_shown_once(password: SudoPassword) -> None:
    directory = Directory(password, REFUSAL)
    assert directory.ask_all(NODES) == ["sudo_refused"] * 32
    assert directory.shown == 1
    with pytest.raises(
        Unreached, match=r"try again\. \(n\d+ was given the password first, and no other"
    ):
        password.refuse_again(replace(NODES[0], name="n99"))


def test_users_are_accounts_of_their_own(password: SudoPassword) -> None:
    directory = Directory(password, REFUSAL)
    bob = [replace(node, name=f"{node.name}b", ssh=SshSettings("bob")) for node in NODES[:8]]
    assert directory.ask_all([*NODES[:8], *bob]) == ["sudo_refused"] * 16
    assert directory.shown == 2


def test_after_it_was_taken_a_refusal_is_that_node_s_own(password: SudoPassword) -> None:
    good, bad = Directory(password), Directory(password, REFUSAL)
    assert (good.ask(NODES[0]), bad.ask(NODES[1]), good.ask(NODES[2])) == (
        "in",
        "sudo_refused",
        "in",
    )
    with pytest.raises(Unreached, match="not tried twice"):
        password.refuse_again(NODES[1])
    assert (bad.ask(NODES[1]), bad.shown) == ("sudo_refused", 1)


def test_nodes_that_give_no_answer_do_not_add_up(password: SudoPassword) -> None:
    """A directory that is down may count what it is shown all the same."""
    directory = Directory(password, LinkLost("hung", "gone"))
    assert directory.ask_all(NODES) == ["hung"] * 32
    assert directory.shown == 2
    with pytest.raises(Unreached, match=r"sudo on n\d+ and n\d+ gave no answer"):
        password.refuse_again(NODES[0])


def test_one_silent_node_stops_no_other(password: SudoPassword) -> None:
    silent, good = Directory(password, LinkLost("hung", "gone")), Directory(password)
    assert silent.ask(NODES[0]) == "hung"
    assert good.ask_all(NODES[1:]) == ["in"] * 31


def test_an_interruption_gives_the_turn_back(password: SudoPassword) -> None:
    with pytest.raises(KeyboardInterrupt), password.turn(NODES[0]):
        raise KeyboardInterrupt
    assert Directory(password).ask(NODES[1]) == "in"


class Talkative:
    """A channel on which a program instead of sudo prints what it is given, and ends."""

    def __init__(self, echo: str) -> None:
        self._echo, self._stderr = echo, b""

    def recv(self, timeout: float) -> bytes:
        if self._stderr:
            return b""
        self._stderr = self._prompt + self._echo.encode()
        raise TimeoutError

    def open(self, node: Node, command: str) -> Talkative:
        (self._prompt,) = [word.encode() for word in re.findall(r"[0-9a-f]{16}", command)[:1]]
        return self

    def stderr(self) -> bytes:
        return self._stderr

    def send(self, data: bytes) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


def test_what_doas_refuses_is_told_with_the_line_that_it_needs(password: SudoPassword) -> None:
    channel = Talkative("doas: Authentication required")
    with pytest.raises(Unreached) as error:
        open_with_sudo(channel, NODES[0], password)  # type: ignore[arg-type]
    assert error.value.message.startswith("doas did not let us in: doas: Authentication required")
    assert "permit nopass" in error.value.remedy


@pytest.mark.parametrize("secret", ["open  sesame", "Z" * 40])
@pytest.mark.parametrize("length", [0, STDERR_SHOWN - 20])
def test_no_part_of_a_password_is_shown(secret: str, length: int) -> None:
    """Not of one with two blanks, and not of one that stands where a long text is cut."""
    channel = Talkative(secret + "x" * length)
    with pytest.raises(Unreached) as error:
        open_with_sudo(channel, NODES[0], SudoPassword(secret))  # type: ignore[arg-type]
    assert HIDDEN in error.value.message
    assert "sesame" not in error.value.message
    assert "Z" not in error.value.message
