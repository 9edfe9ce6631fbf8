"""sudo on a node: wait for its prompt, and give a password that one node refuses to no other.

The prompt is a nonce, and the password is sent only after this prompt has come. So sudo reads the
password and Python never does. While the first node tries the password, the others log in, start
sudo and wait at their prompts. That costs a healthy run the time that sudo takes on one node, once,
and no round trip.

After a wrong password sudo asks again, and takes the end of its input for a second wrong password,
which pam_faillock counts. So sudo is ended by SIGKILL. The login user may send it: until sudo
accepts the password, that is still the process's real user. An sshd before OpenSSH 7.9 does not
pass the signal on.

Where a node has doas instead, there is no prompt: see `become_prefix` of bootstrap.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Literal

from clusterprep.errors import Unreached
from clusterprep.model import Node
from clusterprep.remedies import noted, placed, sentence, shell_line
from clusterprep.remote import bootstrap
from clusterprep.remote.transports.login_shell import shell_trouble
from clusterprep.remote.transports.protocol import Channel, Transport
from clusterprep.remote.transports.secret_filter import SecretFilter
from clusterprep.runtime.clock import running_seconds

# Seconds for sudo to ask or to start the command, and as many for its answer to the password.
LIMIT = 10.0
OUTPUT_KEPT = 1 << 20  # bytes of banners before Python's first output
STDERR_SHOWN = 300  # characters of sudo's own text in a message
NO_WORD = "no word"
MOST_SILENT = 2  # nodes that may give no answer to a password which no node has accepted yet

REFUSED = sentence(
    "run it again with --ask-become-pass, or give the user NOPASSWD: ALL in /etc/sudoers.d"
)
# Through Slurm no password is given: see `password` of cli/terminal.py.
REFUSED_THROUGH_SLURM = sentence("give the user NOPASSWD: ALL in /etc/sudoers.d")
NO_TERMINAL = sentence("put `Defaults:USER !requiretty` into /etc/sudoers.d on the node")


DOAS = sentence(
    "put `permit nopass USER` into /etc/doas.conf on the node: doas takes a password from a "
    "terminal alone"
)


class SudoPassword:
    """A password for a whole command, which goes to one node alone until a node has accepted it.

    All nodes may ask one directory, which locks an account after a few wrong passwords: 64 nodes at
    once would do that with one typing error. So the first node of a user whose sudo asks gets it,
    the others wait at their prompts, and if it is refused no other node is given it. No node gets
    it twice after it has refused it.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self.filter = SecretFilter(secret)  # takes the password out of what nodes send
        self._changed = threading.Condition()
        self._accepted: set[str | None] = set()  # users whose password a node has accepted
        self._trying: set[str | None] = set()  # users whose first node has not answered yet
        self._refusing: set[str] = set()  # nodes
        # By user, the error of the first node if it refused the password.
        self._refusals: dict[str | None, Unreached] = {}
        self._silent: dict[str, str | None] = {}  # node -> user, if it never answered

    @property
    def text(self) -> str:
        """The password itself, for those who have had a node accept it by `turn`."""
        return self._secret

    def refuse_again(self, node: Node) -> None:
        """Raise Unreached if trying this password on a node could only lock the account."""
        if node.name in self._refusing:
            message = "sudo did not take the password before; it is not tried twice"
            raise Unreached("sudo_refused", message, REFUSED)
        user = node.ssh.user
        if user in self._accepted:
            return
        if user in self._refusals:
            refusal = self._refusals[user]
            raise Unreached(refusal.reason, refusal.message, refusal.remedy)
        silent = [name for name, its_user in self._silent.items() if its_user == user]
        if len(silent) >= MOST_SILENT:
            names = " and ".join(silent)
            message = f"sudo on {names} gave no answer to the password, so it was not tried here"
            remedy = sentence(
                "what does sudo ask on the nodes: a directory that is down? see its log there"
            )
            raise Unreached("hung", message, remedy)

    @contextlib.contextmanager
    def turn(self, node: Node) -> Iterator[bytes]:
        """Yield the password, once it may be given to this node.

        The body raises Unreached if the node refuses the password or does not answer.
        """
        user = node.ssh.user
        with self._changed:
            self._changed.wait_for(lambda: user in self._accepted or user not in self._trying)
            self.refuse_again(node)
            is_first = user not in self._accepted
            if is_first:
                self._trying.add(user)
        try:
            yield self._secret.encode("utf-8", "surrogateescape")
        except Unreached as error:
            with self._changed:
                noted = self._noted(node, error, is_first)
            raise noted from None
        else:
            with self._changed:
                self._accepted.add(user)
        finally:
            with self._changed:
                if is_first:
                    self._trying.discard(user)
                self._changed.notify_all()

    def _noted(self, node: Node, error: Unreached, is_first: bool) -> Unreached:
        """Note how a node failed. Returns the error to raise.

        After a refusal by the first node all others raise the same error, so that reports fold them
        into one finding.
        """
        if error.reason != "sudo_refused":
            self._silent[node.name] = node.ssh.user
            return error
        self._refusing.add(node.name)
        if not is_first:
            return error
        order = f"{node.name} was given the password first, and no other node after that"
        message = f"{error.message} ({order}, as it could lock the account)"
        remedy = noted(
            error.remedy,
            "where {node} alone has another password, leave it out by --limit",
            node=node.name,
        )
        refusal = Unreached(error.reason, message, remedy)
        self._refusals[node.ssh.user] = refusal
        return refusal


def open_with_sudo(transport: Transport, node: Node, password: SudoPassword | None) -> Channel:
    """Start Python under sudo. The password is sent only after sudo's own prompt has come.

    Raises Unreached.
    """
    if password is not None:
        password.refuse_again(node)
    prompt = os.urandom(8).hex()
    ready = os.urandom(8).hex()
    command = bootstrap.command(become=prompt, ready=ready, password=password is not None)
    channel = transport.open(node, command)
    try:
        SudoDialogue(
            node,
            channel,
            prompt,
            ready,
            password,
        ).run()
    except BaseException:
        # At the end of its input sudo would give PAM an empty answer, which counts as a wrong
        # password.
        channel.kill()
        channel.close()
        raise
    return channel


class SudoDialogue:
    """The dialogue with sudo on one node, up to Python's first output."""

    def __init__(
        self, node: Node, channel: Channel, prompt: str, ready: str, password: SudoPassword | None
    ) -> None:
        self._node = node
        self._channel = channel
        self._password = password
        self._prompt = prompt.encode()
        self._ready = ready.encode()
        self._output = b""

    def run(self) -> None:
        """Return once Python runs. Raises Unreached."""
        if self._wait(prompts=1) == "ready":
            return
        if self._password is None:  # `sudo -n` never asks: this is another program
            raise self._refused()
        with self._password.turn(self._node) as secret:
            self._channel.send(secret + b"\n")
            if self._wait(prompts=2) != "ready":
                raise self._refused()

    def _wait(self, prompts: int) -> Literal["ready", "asked"]:
        """Return what comes first: Python's output, or the given number of prompts in all.

        Raises Unreached if sudo ends, or if neither comes in time.
        """
        end = running_seconds() + LIMIT
        while True:
            data = self._receive()
            if data is not None:
                self._output = (self._output + data)[-OUTPUT_KEPT:]
            if self._ready in self._output:
                return "ready"
            seen = self._prompts_seen()
            if data == b"" and not seen:
                raise self._shell_trouble() or self._refused()
            if data == b"" or seen > prompts:
                raise self._refused()
            if seen == prompts:
                return "asked"
            if running_seconds() > end:
                message = f"sudo gives no answer: {self._stderr() or NO_WORD}"
                raise Unreached(
                    "hung", message, shell_line("sudo -v   # on the node: what does it wait for?")
                )

    def _receive(self) -> bytes | None:
        with contextlib.suppress(TimeoutError):
            return self._channel.recv(0.1)
        return None

    def _prompts_seen(self) -> int:
        on_stderr = self._channel.stderr().count(self._prompt)
        return on_stderr + self._output.count(self._prompt)

    def _stderr(self) -> str:
        """Return the end of stderr for a message, without prompts and without the password."""
        stderr = self._channel.stderr().replace(self._prompt, b"")
        text = stderr.decode("utf-8", "replace")
        # First of all: of a password that is cut, or has two blanks, a part would be shown below.
        if self._password is not None:
            text = self._password.filter.text(text)
        text = " ".join(text.split())
        return text[-STDERR_SHOWN:]

    def _shell_trouble(self) -> Unreached | None:
        """Return the error for a login shell that has not even started sudo, else None."""
        output = self._output.decode("utf-8", "replace")
        return shell_trouble(self._node, output, self._stderr())

    def _refused(self) -> Unreached:
        stderr = self._stderr() or NO_WORD
        remedy = REFUSED_THROUGH_SLURM if self._node.transport == "slurm" else REFUSED
        if "tty" in stderr:
            remedy = placed(NO_TERMINAL, USER=self._node.ssh.user or "USER")
        if stderr.startswith("doas:"):
            remedy = placed(DOAS, USER=self._node.ssh.user or "USER")
            return Unreached("sudo_refused", f"doas did not let us in: {stderr}", remedy)
        return Unreached("sudo_refused", f"sudo did not let us in: {stderr}", remedy)
