"""A client of ssh-agent for many threads.

paramiko's client mixes up answers when two threads ask, and knows one socket only.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from paramiko import Message, PKey, SSHException

ANSWER_LIMIT = 30.0  # seconds; the agent may be asking its owner to confirm
_LIST, _LISTED = 11, 12  # message numbers: draft-ietf-sshm-ssh-agent
_SIGN, _SIGNED = 13, 14
_FLAGS = {"rsa-sha2-256": 2, "rsa-sha2-512": 4}  # SHA-1 unless one of these is set


class SshAgent:
    """One connection to the agent behind a socket. Each request waits for the answer before it."""

    def __init__(self, path: str) -> None:
        self._turn = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_LIMIT)
        self._path = path

    def held(self) -> list[AgentKey]:
        """Return the keys that the agent holds, none if no agent listens on the socket."""
        try:
            self._socket.connect(self._path)
            answer = self._ask(_LIST, _LISTED)
        except (OSError, SSHException):
            return []
        keys = []
        for _ in range(answer.get_int()):
            blob = answer.get_binary()
            comment = answer.get_text()
            keys.append(AgentKey(self, blob, comment))
        return keys

    def sign(self, blob: bytes, data: bytes, flags: int) -> bytes:
        """Return a signature. Raises SSHException if the agent or its owner refuses to sign."""
        request = Message()
        request.add_string(blob)
        request.add_string(data)
        request.add_int(flags)
        try:
            answer = self._ask(_SIGN, _SIGNED, request.asbytes())
        except OSError as error:
            raise SSHException(f"ssh-agent gives no answer: {error}") from error
        return answer.get_binary()

    def close(self) -> None:
        self._socket.close()

    def _ask(self, number: int, expected: int, body: bytes = b"") -> Message:
        """Send a request and return the answer behind its message number.

        Raises SSHException if that is not the expected number.
        """
        header = struct.pack(">IB", len(body) + 1, number)
        with self._turn:
            self._socket.sendall(header + body)
            (length,) = struct.unpack(">I", self._read(4))
            answer = self._read(length)
        if answer[:1] != bytes([expected]):
            raise SSHException("ssh-agent refused to sign")
        return Message(answer[1:])

    def _read(self, size: int) -> bytes:
        """Return exactly `size` bytes. Raises OSError."""
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("ssh-agent has ended")
            data += piece
        return data


class AgentKey(PKey):
    """A key that the agent holds, or a certificate, or a key on a token."""

    public_blob = None  # the blob is the certificate already

    def __init__(self, agent: SshAgent, blob: bytes, comment: str) -> None:
        super().__init__()
        self._agent = agent
        self.blob = blob
        self.comment = comment
        with contextlib.suppress(UnicodeDecodeError):
            self.name = Message(blob).get_text()

    def get_name(self) -> str:
        return self.name

    def asbytes(self) -> bytes:
        return self.blob

    @property
    def _fields(self) -> tuple[object, ...]:
        return (self.blob,)

    def sign_ssh_data(  # type: ignore[override]
        self, data: bytes, algorithm: str | None = None
    ) -> bytes:
        name = algorithm or ""
        flags = _FLAGS.get(name.removesuffix("-cert-v01@openssh.com"), 0)
        return self._agent.sign(self.blob, data, flags)
