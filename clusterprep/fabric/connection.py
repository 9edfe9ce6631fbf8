"""A Fabric connection to a node of the inventory: our login and our rules about host keys."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import fabric
from invoke.exceptions import AuthFailure, Failure, ResponseNotAccepted
from invoke.watchers import StreamWatcher
from paramiko import SSHConfig

from clusterprep.errors import Unreached
from clusterprep.fabric.runner import NodeRunner, SessionChannel
from clusterprep.model import Node
from clusterprep.remote.transports import Transport
from clusterprep.remote.transports.link import Password
from clusterprep.remote.transports.ssh import SshTransport
from clusterprep.remote.transports.ssh_connection import SshConnection
from clusterprep.remote.transports.sudo import SudoPassword

SSH_PORT = 22
MOST_BEFORE = 1 << 16  # characters in which sudo's prompts are looked for; all else comes behind


class NodeConfig(fabric.Config):
    """Fabric's settings with our runner. ssh_config is read by our own reader, by its rules."""

    @staticmethod
    def global_defaults() -> dict[str, Any]:
        defaults: dict[str, Any] = fabric.Config.global_defaults()
        defaults["runners"]["remote"] = NodeRunner
        return defaults


def new_config() -> NodeConfig:
    """Return Fabric's settings as a fabfile would see them, but for ssh_config."""
    return NodeConfig(ssh_config=SSHConfig())


class PasswordOnce(StreamWatcher):
    """Answers the first prompt with the password. A second one means that it was not accepted."""

    def __init__(self, prompt: str, password: str) -> None:
        super().__init__()
        self._prompt = prompt
        self._password = password
        self._lock = threading.Lock()  # stdout and stderr have a thread each
        self._answered = False

    def submit(self, stream: str) -> Iterable[str]:
        """Return what is to be written, now that a stream has this text from its beginning."""
        count = stream.count(self._prompt, 0, MOST_BEFORE)
        if count > 1:
            raise ResponseNotAccepted("sudo asked again for the password")
        with self._lock:
            if not count or self._answered:
                return []
            self._answered = True
        return [f"{self._password}\n"]


class NodeConnection(fabric.Connection):
    """A connection to a node as the inventory describes it. `host` is the name of the node.

    It is made when it is first used, and raises Unreached if that fails. The password of sudo is
    that of the command (-K), given to one node first; Fabric's own `sudo.password` works too.
    """

    # Fabric takes attributes that a class does not have for settings, and makes all settings anew
    # where one is set. Its own class does not have this one; the settings are shared by threads.
    inline_ssh_env: bool | None = None
    node: Node
    _ssh: SshTransport
    _password: Password
    _opened: SshConnection | None = None
    _another: SshConnection | None = None

    def __init__(
        self, node: Node, ssh: SshTransport, password: Password, config: fabric.Config
    ) -> None:
        self._set(node=node, _ssh=ssh, _password=password)
        user, port = _login(node, ssh)
        super().__init__(
            node.name,
            user=user,
            port=port,
            config=config,
            gateway=False,
            forward_agent=False,
            connect_timeout=max(1, round(node.ssh.connect_timeout)),
        )

    def derive_shorthand(self, host_string: str) -> dict[str, Any]:
        """Return the name as the host: names of an inventory hold no user and no port."""
        return {"user": None, "host": host_string, "port": None}

    def open(self) -> None:
        """Log in, unless that was done. Raises Unreached."""
        self._ready()

    def _ready(self) -> SshConnection:
        if self._opened is not None and self.is_connected:
            return self._opened
        opened = self._ssh.connect(self.node)
        self._opened = opened
        self.transport = opened.transport
        self.client._transport = opened.transport  # noqa: SLF001 - where Fabric's SFTP looks
        return opened

    def open_another(self) -> SshConnection:
        """Return a second connection, for an sshd that allows one session on each.

        Raises Unreached.
        """
        another = self._another
        if another is None or not another.alive:
            another = self._ssh.connect(self.node)
            self._another = another
        return another

    def close(self) -> None:
        """End the connections at once, and with them all that runs through. Never raises."""
        for opened in (self._opened, self._another):
            if opened is not None:
                opened.close()
        self._sftp = None

    @property
    def opened(self) -> SshConnection:
        """The connection below. Raises Unreached if it cannot be made."""
        return self._ready()

    @property
    def opened_alive(self) -> bool:
        """Whether the connection has been made and has not ended."""
        return self._opened is not None and self._opened.alive

    def sudo(self, command: str, **kwargs: Any) -> Any:
        """Run a command under sudo, as Fabric does.

        The password of the command is first tried by itself, so that a wrong one is given to one
        node and to no other. Raises Unreached("sudo_refused").
        """
        if self.config.run.in_stream is None and not (sys.stdin and sys.stdin.isatty()):
            # At the end of our stdin Fabric would close that of sudo, which then gets no password.
            kwargs.setdefault("in_stream", False)
        secret = self._password(self.node)
        if secret is None or "password" in kwargs or self.config.sudo.password is not None:
            return super().sudo(command, **kwargs)
        secret.refuse_again(self.node)
        ready = os.urandom(8).hex()
        session = SessionChannel(self, self.opened.transport.open_session())
        session.converse(f"/bin/echo {ready}", ready, secret)
        session.close()
        return self._run_under_sudo(secret, command, kwargs)

    def _run_under_sudo(self, secret: SudoPassword, command: str, given: dict[str, Any]) -> Any:
        """Run a command under sudo as Invoke's Context does, but say the password only once.

        Invoke answers every «[sudo] password:» that a command prints, and with it any program that
        another user wrote. This prompt is a new one each time, and with -k sudo always asks first.
        """
        prompt = os.urandom(8).hex()
        user = given.pop("user", self.config.sudo.user)
        words = [f"sudo -k -S -p {prompt}"]
        if given.get("env"):
            words.append(f"--preserve-env='{','.join(given['env'])}'")
        if user is not None:
            words.append(f"-H -u {user}")
        words.append(self._prefix_commands(command))
        watchers = given.pop("watchers", list(self.config.run.watchers))
        watchers.append(PasswordOnce(prompt, secret.text))
        try:
            return self._remote_runner().run(" ".join(words), watchers=watchers, **given)
        except Failure as failure:
            if isinstance(failure.reason, ResponseNotAccepted):
                raise AuthFailure(result=failure.result, prompt=prompt) from None
            raise


def ssh_of(transports: Mapping[str, Transport]) -> SshTransport:
    """Return the transport that logs in over SSH, of those of a command."""
    ssh = transports["ssh"]
    if not isinstance(ssh, SshTransport):
        raise TypeError(f"{type(ssh).__name__} does not log in over SSH")
    return ssh


def _login(node: Node, ssh: SshTransport) -> tuple[str | None, int]:
    """Return user and port as far as they are known before the node is reached."""
    try:
        route = ssh.route(node)
    except Unreached:  # told by `open`
        return node.ssh.user, node.ssh.port or SSH_PORT
    return route.user, route.port
