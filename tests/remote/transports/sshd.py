"""Real OpenSSH servers on 127.0.0.1, each with a folder, host keys and a port of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from clusterprep.model import Node, SshSettings
from tests.support.patience import LONG, eventually

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")


def require_sshd() -> str:
    """The server's path. Without one, or without root, there is nothing to test here.

    In CI that is a failure.
    """
    if SSHD and os.geteuid() == 0:
        return SSHD
    if os.environ.get("CI"):
        pytest.fail("the SSH tests need root and openssh-server")
    pytest.skip("needs root and openssh-server")


def keygen(*arguments: str | Path) -> str:
    done = subprocess.run(
        ["ssh-keygen", *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return done.stdout


def new_key(path: Path, kind: str = "ed25519", passphrase: str = "", *more: str) -> Path:
    size = ["-b", "2048"] if kind == "rsa" else []
    keygen("-q", "-t", kind, *size, "-N", passphrase, "-C", path.name, "-f", path, *more)
    return path


def public(path: Path) -> str:
    """The first two fields of a key's public half: type and base64."""
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])


def fingerprint(path: Path) -> str:
    """What ssh-keygen prints for a key."""
    return keygen("-lf", f"{path}.pub").split()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def descendants(pid: int) -> list[int]:
    """Children and their children."""
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [each for child in children for each in (child, *descendants(child))]


@dataclass
class Sshd:
    """A running server. `user_key` is the key that it lets in."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    user_key: Path

    @classmethod
    def start(cls, folder: Path, *options: str, kinds: tuple[str, ...] = ("ed25519",)) -> Sshd:
        program = require_sshd()
        folder.mkdir(exist_ok=True)
        Path("/run/sshd").mkdir(exist_ok=True)
        keys = [new_key(folder / f"host_{kind}", kind) for kind in kinds]
        user_key = new_key(folder / "user")
        (folder / "authorized_keys").write_text(public(user_key) + "\n")
        port = free_port()
        config = folder / "sshd_config"
        lines = [*options, *(f"HostKey {key}" for key in keys)]
        lines += [
            f"Port {port}",
            "ListenAddress 127.0.0.1",
            f"AuthorizedKeysFile {folder}/authorized_keys",
        ]
        lines += ["StrictModes no", "UsePAM no", "PidFile none", "PermitRootLogin yes", "UseDNS no"]
        # What this machine's root has in startup files may take long, and write what no test wrote.
        lines += [f"SetEnv HOME={folder}"]
        config.write_text("\n".join(lines) + "\n")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [program, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log
            )
        server = cls(folder, port, process, user_key)
        server._await()
        return server

    def _await(self) -> None:
        eventually(lambda: self.process.poll() is not None or self._listens())
        if self.process.poll() is not None or not self._listens():
            pytest.fail(f"sshd did not start: {self.log()}")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def reload(self) -> None:
        """Read the configuration and its keys anew."""
        seen = self.log().count("Server listening")
        self.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: self.log().count("Server listening") > seen)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(LONG)

    def kill(self) -> None:
        """The server and every session of it, as in a power cut."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait(LONG)

    def host_key(self, kind: str = "ed25519") -> Path:
        return self.folder / f"host_{kind}"

    def known(self, kind: str = "ed25519", name: str | None = None) -> str:
        """A line for known_hosts."""
        return f"{name or f'[127.0.0.1]:{self.port}'} {public(self.host_key(kind))}\n"

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def node(
        self, folder: Path, known: str | None = None, name: str = "n1", **settings: object
    ) -> Node:
        """The server as a node, trusted unless `known` says otherwise.

        `folder` gets its known_hosts.
        """
        known_hosts = folder / "known_hosts"
        if known is None:
            known = self.known()
        if known:
            known_hosts.write_text(known)
        given = SshSettings(
            "root",
            self.port,
            str(self.user_key),
            "/dev/null",
            str(known_hosts),
            connect_timeout=10.0,
        )
        return Node(name, "127.0.0.1", 0, replace(given, **settings))  # type: ignore[arg-type]
