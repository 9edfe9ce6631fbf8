"""A transport to nodes that give no answer."""

from __future__ import annotations

import threading
from collections.abc import Collection

from clusterprep.errors import Unreached
from clusterprep.model import Node
from clusterprep.remote.transports.protocol import Channel


class SilentTransport:
    """A transport whose nodes say nothing until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def open(self, node: Node, command: str) -> Channel:
        self.closed.wait()
        raise Unreached("hung", "the command ended")

    def unheard(self) -> Collection[str]:
        return ()

    def close(self) -> None:
        self.closed.set()
