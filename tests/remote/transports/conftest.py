"""Servers are started once per module and ended with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from clusterprep.remote.transports.ssh import SshTransport
from tests.remote.transports.sshd import Sshd


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd.start(tmp_path_factory.mktemp("sshd") / "one", kinds=("ed25519", "rsa"))
    yield server
    server.stop()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SshTransport]]:
    """Makes transports that know nothing yet, and closes them in the end."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with contextlib.ExitStack() as stack:
        yield lambda *given, **options: stack.enter_context(
            contextlib.closing(SshTransport(*given, **options))
        )


@pytest.fixture
def transport(fresh: Callable[..., SshTransport]) -> SshTransport:
    return fresh()
