"""Servers are started once per module and ended with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterprep.transports.ssh import SshTransport
from tests.transports.sshd import Sshd


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd.start(tmp_path_factory.mktemp("sshd") / "one", kinds=("ed25519", "rsa"))
    yield server
    server.stop()


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> Iterator[SshTransport]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    found = SshTransport()
    yield found
    found.close()
