"""A channel whose errors and stderr do not show the password of sudo."""

from __future__ import annotations

from typing import TypeVar

from clusterprep.errors import LinkLost, Unreached
from clusterprep.remedies import NO_REMEDY
from clusterprep.remote.transports.protocol import Channel
from clusterprep.remote.transports.secret_filter import SecretFilter

Error = TypeVar("Error", bound=Unreached)


class FilteredChannel:
    """Passes everything on to another channel. See Channel in transports.protocol.

    Stdout passes unchanged: there the frames of the agent are found first (`link`).
    """

    def __init__(self, channel: Channel, secret_filter: SecretFilter) -> None:
        self.peer = channel.peer
        self.near = channel.near
        self._channel = channel
        self._filter = secret_filter

    @property
    def alive(self) -> bool:
        return self._channel.alive

    def send(self, data: bytes) -> None:
        try:
            self._channel.send(data)
        except LinkLost as lost:
            raise without_secret(lost, self._filter) from None

    def recv(self, timeout: float) -> bytes:
        try:
            return self._channel.recv(timeout)
        except LinkLost as lost:
            raise without_secret(lost, self._filter) from None

    def stderr(self) -> bytes:
        return self._filter.data(self._channel.stderr())

    def kill(self) -> None:
        self._channel.kill()

    def close(self) -> None:
        self._channel.close()


def without_secret(error: Error, secret_filter: SecretFilter) -> Error:
    """Return a copy of an error, which may quote a node, without the secret."""
    clean = error.extended("")
    clean.message = secret_filter.text(error.message)
    if secret_filter.text(error.remedy) != error.remedy:
        clean.remedy = NO_REMEDY
    clean.args = (clean.message,)
    return clean
