"""sudo on a node: its prompt is waited for, and a password that one node refuses is given to no other."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Literal

from clusterprep.errors import Unreached
from clusterprep.model import Node
from clusterprep.remote import bootstrap as boot
from clusterprep.remote.transports import Channel, Transport
from clusterprep.runtime.clock import running_seconds

LIMIT = 10.0  # seconds for sudo to ask or to start the command, and as many for its answer to the password
KEPT = 1 << 20  # bytes of banners before Python's first word
MOST_SILENT = 2  # nodes that may give no answer to a password which no node has taken yet

REFUSED = "run it again with --ask-become-pass, or give the user NOPASSWD: ALL in /etc/sudoers.d"
NO_TERMINAL = "put `Defaults:{user} !requiretty` into /etc/sudoers.d on the node"


class SudoPassword:
    """A password for a whole command, which goes to one node alone until a node has taken it.

    All nodes may ask one directory, which locks an account after a few wrong passwords: 64 nodes at once would do that
    with one slip of the finger. So the first node of a user whose sudo asks gets it, the others wait at their prompts,
    and where it is refused nobody else is given it. No node gets it twice after it has refused it.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._news = threading.Condition()
        self._taken: set[str | None] = set()  # users whose password a node has taken
        self._trying: set[str | None] = set()
        self._refusing: set[str] = set()  # nodes
        self._refusals: dict[
            str | None, Unreached
        ] = {}  # what a user's first node said, where it refused
        self._silent: dict[str, str | None] = {}  # node -> user, where it never answered

    def refuse_again(self, node: Node) -> None:
        """Raises Unreached where trying this password on a node could only lock the account."""
        if node.name in self._refusing:
            raise Unreached(
                "sudo_refused",
                "sudo did not take the password before; it is not tried twice",
                REFUSED,
            )
        user = node.ssh.user
        if user in self._taken:
            return
        if user in self._refusals:
            known = self._refusals[user]
            raise Unreached(known.reason, known.message, known.remedy)
        silent = [name for name, its in self._silent.items() if its == user]
        if len(silent) >= MOST_SILENT:
            why = f"sudo on {' and '.join(silent)} gave no answer to the password, so it was not tried here"
            raise Unreached(
                "hung",
                why,
                "what does sudo ask on the nodes: a directory that is down? see its log there",
            )

    @contextlib.contextmanager
    def turn(self, node: Node) -> Iterator[bytes]:
        """The password, once it may be given to this node; what is raised within says how the node took it."""
        user = node.ssh.user
        with self._news:
            self._news.wait_for(lambda: user in self._taken or user not in self._trying)
            self.refuse_again(node)
            first = user not in self._taken
            if first:
                self._trying.add(user)
        try:
            yield self._secret.encode("utf-8", "surrogateescape")
        except Unreached as error:
            with self._news:
                told = self._noted(node, error, first)
            raise told from None
        else:
            with self._news:
                self._taken.add(user)
        finally:
            with self._news:
                if first:
                    self._trying.discard(user)
                self._news.notify_all()

    def hidden(self, text: str) -> str:
        """A text of the node's without the password, which a program in the place of sudo may have printed."""
        return text.replace(self._secret, "…")

    def _noted(self, node: Node, error: Unreached, first: bool) -> Unreached:
        """What the node said, for it and, where it was the first, for all others: equal findings become one."""
        if error.reason != "sudo_refused":
            self._silent[node.name] = node.ssh.user
            return error
        self._refusing.add(node.name)
        if not first:
            return error
        why = f"{node.name} was given the password first, and no other node after that, as it could lock the account"
        cure = (
            f"{error.remedy}; where {node.name} alone has another password, leave it out by --limit"
        )
        found = self._refusals[node.ssh.user] = Unreached(
            error.reason, f"{error.message} ({why})", cure
        )
        return found


def open_with_sudo(transport: Transport, node: Node, password: SudoPassword | None) -> Channel:
    """Start Python under sudo. The password goes out only after sudo's own prompt has been seen. Raises Unreached."""
    if password is not None:
        password.refuse_again(node)
    prompt, ready = os.urandom(8).hex(), os.urandom(8).hex()
    channel = transport.open(
        node, boot.command(become=prompt, ready=ready, password=password is not None)
    )
    try:
        _Talk(node, channel, prompt, ready, password).to_its_end()
    except BaseException:
        # At the end of its input sudo would give PAM an empty answer, and that counts as a wrong password.
        channel.kill()
        channel.close()
        raise
    return channel


class _Talk:
    """What sudo says on one node, up to Python's first word."""

    def __init__(
        self, node: Node, channel: Channel, prompt: str, ready: str, password: SudoPassword | None
    ) -> None:
        self._node, self._channel, self._password = node, channel, password
        self._prompt, self._ready = prompt.encode(), ready.encode()
        self._out = b""

    def to_its_end(self) -> None:
        if self._heard(1) == "ready":
            return
        if self._password is None:  # `sudo -n` never asks: this is another program
            raise self._refused()
        with self._password.turn(self._node) as secret:
            self._channel.send(secret + b"\n")
            if self._heard(2) != "ready":
                raise self._refused()

    def _heard(self, prompts: int) -> Literal["ready", "asked"]:
        """What comes first: Python, or so many prompts. Raises Unreached where sudo ends, or says neither in time."""
        end = running_seconds() + LIMIT
        while True:
            data = self._received()
            self._out = (self._out + (data or b""))[-KEPT:]
            if self._ready in self._out:
                return "ready"
            asked = self._channel.stderr().count(self._prompt) + self._out.count(self._prompt)
            if data == b"" or asked > prompts:
                raise self._refused()
            if asked == prompts:
                return "asked"
            if running_seconds() > end:
                what = "sudo -v   # on the node: what does it wait for?"
                raise Unreached("hung", f"sudo gives no answer: {self._words()}", what)

    def _received(self) -> bytes | None:
        with contextlib.suppress(TimeoutError):
            return self._channel.recv(0.1)
        return None

    def _words(self) -> str:
        text = self._channel.stderr().replace(self._prompt, b"").decode("utf-8", "replace")
        words = " ".join(text.split())[-300:] or "no word"
        return words if self._password is None else self._password.hidden(words)

    def _refused(self) -> Unreached:
        words = self._words()
        remedy = (
            REFUSED
            if "tty" not in words
            else NO_TERMINAL.format(user=self._node.ssh.user or "USER")
        )
        return Unreached("sudo_refused", f"sudo did not let us in: {words}", remedy)
