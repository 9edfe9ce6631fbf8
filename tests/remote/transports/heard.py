"""What a started command says, to its end."""

from __future__ import annotations

from clusterprep.remote.transports.protocol import Channel


def read_all(channel: Channel) -> bytes:
    """Everything that comes until the stream ends."""
    data = b""
    while piece := channel.recv(20):
        data += piece
    return data
