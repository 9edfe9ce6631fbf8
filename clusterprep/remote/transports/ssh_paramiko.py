"""paramiko's transport with some changes.

It keeps the peer's own words, starts no timer, looks less often whether it has an answer, takes no
more than it has granted, and waits for no answer that only says «go on»: that is two round trips
less.
"""

from __future__ import annotations

import threading
from typing import Any

import paramiko
from paramiko.auth_handler import AuthHandler
from paramiko.buffered_pipe import BufferedPipe
from paramiko.common import cMSG_CHANNEL_REQUEST, cMSG_CHANNEL_WINDOW_ADJUST
from paramiko.packet import Packetizer

# Seconds between two looks at whether a connection has ended without setting what is waited for.
# paramiko looks every 0.1 s: of 64 nodes that log in at once that was a tenth of the CPU.
LOOK = 1.0


class NodeTransport(paramiko.Transport):
    """Keeps the texts of the peer. paramiko logs them and raises something general.

    It overrides inner methods of paramiko. If a release renames them, the texts are missing, and a
    test fails.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.farewell = ""  # the text of the peer's disconnect message
        self._refusals: dict[int, str] = {}  # by number of the channel
        self._of_thread = threading.local()

    def negotiate(self) -> None:
        """Greet and agree on keys. Raises what ended the connection."""
        is_done = threading.Event()
        self.start_client(event=is_done)
        self._await(is_done)
        if not self.is_active():
            raise self.get_exception() or paramiko.SSHException("Negotiation failed.")

    def log_in(self, user: str, key: paramiko.PKey) -> list[str]:
        """Log in with a key. Returns and raises what `auth_publickey` does."""
        is_answered = threading.Event()
        handler = PromptAuthHandler(self)
        self.auth_handler = handler
        handler.auth_publickey(user, key, is_answered)
        self._await(is_answered)
        return handler.wait_for_response(is_answered)

    def _await(self, event: threading.Event) -> None:
        """Wait until paramiko's thread sets the event, or has ended."""
        while not event.wait(LOOK) and self.is_active():
            pass

    @property
    def refusal(self) -> str:
        """Why the channel that this thread requested last was not opened. Read once."""
        number = getattr(self._of_thread, "number", -1)
        return self._refusals.pop(number, "")

    def send_signal(self, channel: int, name: str) -> None:
        """Send a signal to the command of a channel (RFC 4254, 6.9), and ask for no reply."""
        request = paramiko.Message()
        request.add_byte(cMSG_CHANNEL_REQUEST)
        request.add_int(channel)
        request.add_string("signal")
        request.add_boolean(False)
        request.add_string(name)
        self._send_user_message(request)  # type: ignore[attr-defined]

    def grant(self, channel: int, count: int) -> None:
        """Allow a channel of the peer to send further bytes (RFC 4254, 5.2)."""
        adjustment = paramiko.Message()
        adjustment.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
        adjustment.add_int(channel)
        adjustment.add_int(count)
        self._send_user_message(adjustment)  # type: ignore[attr-defined]

    def _check_banner(self) -> None:
        """Propose algorithms, then read the peer's greeting: RFC 4253, 5.2, allows this order."""
        self._send_kex_init()
        super()._check_banner()  # type: ignore[misc]

    def _send_kex_init(self) -> None:
        """Propose algorithms, once for each exchange of keys."""
        if self.local_kex_init is None:
            super()._send_kex_init()  # type: ignore[misc]

    def _next_channel(self) -> int:
        number = super()._next_channel()  # type: ignore[misc]
        self._of_thread.number = number
        return int(number)

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        number = message.get_int()
        message.get_int()
        self._refusals[number] = message.get_text()
        message.rewind()
        super()._parse_channel_open_failure(message)  # type: ignore[misc]

    def _parse_debug(self, message: paramiko.Message) -> None:
        """Do nothing: sshd tells the options of a key, and paramiko cleans them byte by byte."""

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.farewell = message.get_text()


class PromptAuthHandler(AuthHandler):
    """Sends the login right behind the request for the service that takes it.

    A peer that refuses the service ends the connection (RFC 4253, 10), so its consent tells nothing
    that the answer to the login does not.
    """

    def _request_auth(self) -> None:
        super()._request_auth()  # type: ignore[misc]
        consent = paramiko.Message()
        consent.add_string("ssh-userauth")
        consent.rewind()
        super()._parse_service_accept(consent)  # type: ignore[misc]

    def _parse_service_accept(self, message: paramiko.Message) -> None:
        """Do nothing: the login was sent before."""


class BoundedBuffer(BufferedPipe):  # type: ignore[type-arg]
    """What has come on a channel and is not read yet: no more than the window that was granted.

    paramiko keeps what a peer sends beyond its window, without a limit.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.overflowed = False

    def feed(self, data: bytes) -> None:
        """Take data of the peer. Data beyond the window end the connection, by SSHException."""
        if len(self) + len(data) > self._most:
            self.overflowed = True
            self.close()  # wakes the thread that waits for data
            raise paramiko.SSHException("the peer sent more than it was allowed to")
        super().feed(data)


class PatientPacketizer(Packetizer):
    """A packetizer without paramiko's timer for the key exchange.

    That is a thread per connection, which keeps the process from ending.
    """

    def start_handshake(self, timeout: float) -> None:
        """Do nothing: the wire has a deadline."""
