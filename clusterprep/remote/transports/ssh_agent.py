"""ssh-agent for many threads: paramiko's client mixes up answers when two threads ask, and knows one socket only."""

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
    """One connection to the agent behind a socket; every question waits for its answer before the next one."""

    def __init__(self, path: str) -> None:
        self._turn = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_LIMIT)
        self._path = path

    def held(self) -> list[AgentKey]:
        """The keys held; none where nobody serves the socket."""
        try:
            self._socket.connect(self._path)
            answer = self._ask(_LIST, _LISTED)
        except (OSError, SSHException):
            return []
        return [
            AgentKey(self, answer.get_binary(), answer.get_text()) for _ in range(answer.get_int())
        ]

    def sign(self, blob: bytes, data: bytes, flags: int) -> bytes:
        """A signature. Raises SSHException where the agent, or its owner, does not want to."""
        question = Message()
        question.add_string(blob)
        question.add_string(data)
        question.add_int(flags)
        try:
            return self._ask(_SIGN, _SIGNED, question.asbytes()).get_binary()
        except OSError as error:
            raise SSHException(f"ssh-agent gives no answer: {error}") from error

    def close(self) -> None:
        self._socket.close()

    def _ask(self, number: int, wanted: int, body: bytes = b"") -> Message:
        with self._turn:
            self._socket.sendall(struct.pack(">IB", len(body) + 1, number) + body)
            answer = self._read(struct.unpack(">I", self._read(4))[0])
        if answer[:1] != bytes([wanted]):
            raise SSHException("ssh-agent refused to sign")
        return Message(answer[1:])

    def _read(self, size: int) -> bytes:
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

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> bytes:  # type: ignore[override]
        flags = _FLAGS.get((algorithm or "").removesuffix("-cert-v01@openssh.com"), 0)
        return self._agent.sign(self.blob, data, flags)
