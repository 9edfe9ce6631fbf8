"""A session that ends before the agent's first word: what it means, and what is not known."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from clusterprep.errors import Unreached
from clusterprep.model import Node
from clusterprep.transports import Channel
from clusterprep.transports.link import open_link
from clusterprep.transports.local import LocalChannel

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

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("exit 3", "the session ended without a word"),
        ("sleep 0.2; exit 0", "the session ended without a word"),
        ("echo 'Could not find platform independent libraries' >&2; exit 1", "platform independent libraries"),
        ("echo clusterprep-no-python", "no python3 was found"),
    ],
)
def test_a_node_that_lets_us_in_and_starts_no_python_refuses_us(command: str, words: str) -> None:
    with pytest.raises(Unreached, match=words) as error:
        open_link(Ends(command), NODE, ["look"], lambda node: None)
    assert (error.value.reason, error.value.answered) == ("no_python", True)


def test_a_connection_that_broke_says_nothing_about_python() -> None:
    with pytest.raises(Unreached) as error:
        open_link(Ends("exit 0", alive=False), NODE, ["look"], lambda node: None)
    assert (error.value.reason, error.value.answered) == ("hung", False)
