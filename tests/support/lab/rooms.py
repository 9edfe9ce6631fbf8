"""Where commands of a lab run: on a host, in all its namespaces, or on the controller.

The controller has only a network of its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.lab import kernel, processes
from tests.support.lab.layout import HOST_ENVIRONMENT, HostSpec, Layout, State

# What would lead a command on the controller to the real user's keys and settings.
_NOT_FOR_CONTROLLER = (
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
)
# What a command says and how it writes times must not depend on where the tests run.
_LOCALE = ("LANG", "LANGUAGE", "TZ")


@functools.cache
def _state_at(path: Path, _changed: int) -> State:
    return State.load(path)


def state_of(layout: Layout) -> State:
    """The lab as it runs now."""
    return _state_at(layout.state, layout.state.stat().st_mtime_ns)


@dataclass(frozen=True)
class Host:
    """One host of a lab."""

    spec: HostSpec
    layout: Layout = field(repr=False)

    @property
    def name(self) -> str:
        """Its hostname."""
        return self.spec.name

    @property
    def address(self) -> str:
        """Its address on eth0."""
        return self.spec.address

    @property
    def index(self) -> int:
        """Its number, from 1."""
        return self.spec.index

    @property
    def folder(self) -> Path:
        """Its folder on the machine.

        ``upper`` has the files that differ, ``sshd.log`` what sshd said.
        """
        return self.layout.host(self.name)

    @property
    def pid(self) -> int:
        """Its process 1, as the machine counts; another one after a reboot."""
        try:
            return state_of(self.layout).pids[self.name]
        except KeyError:
            message = f"host {self.name} is down"
            raise RuntimeError(message) from None

    def alive(self) -> bool:
        """Whether its process 1 runs."""
        try:
            return Path(f"/proc/{self.pid}/ns/pid").exists()
        except (RuntimeError, FileNotFoundError):
            return False

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        check: bool = True,
        timeout: float = 30,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # subprocess.run's own name
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host, not through ssh."""
        command, full_env = self._entered(argv, user), HOST_ENVIRONMENT | dict(env or {})
        return processes.run(command, check=check, timeout=timeout, env=full_env, input=input)

    def popen(
        self,
        argv: Sequence[str | Path],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a command on the host; ``processes.kill_group`` ends it."""
        return processes.popen(
            self._entered(argv, user), env=HOST_ENVIRONMENT | dict(env or {}), **options
        )

    def _entered(self, argv: Sequence[str | Path], user: str | None) -> list[str | Path]:
        flags = ["--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd"]
        as_user = ["runuser", "--user", user, "--"] if user else []
        return ["nsenter", "--target", str(self.pid), *flags, "--", *as_user, *argv]

    def read(self, path: str | Path) -> str:
        """Text of a file on the host."""
        return self.run(["cat", "--", path]).stdout

    def write(self, path: str | Path, text: str, mode: int | None = None) -> None:
        """Write a file on the host, with its folders."""
        self.run(["mkdir", "-p", "--", Path(path).parent])
        self.run(["sh", "-c", 'cat > "$0"', path], input=text)
        if mode is not None:
            self.run(["chmod", f"{mode:o}", "--", path])

    def processes(self, pattern: str) -> list[int]:
        """Process ids, as the host counts, whose command line matches a regular expression."""
        found = self.run(["pgrep", "--full", "--", pattern], check=False).stdout
        return [int(line) for line in found.split()]


@dataclass(frozen=True)
class Controller:
    """The place of the checker: the machine's files, the lab's network, a HOME of its own."""

    layout: Layout = field(repr=False)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The caller's environment without the way to the real user's keys and settings."""
        left_out = (*_NOT_FOR_CONTROLLER, *_LOCALE)
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in left_out and name[:3] != "LC_"
        }
        own = {"HOME": str(self.layout.home), "LANG": HOST_ENVIRONMENT["LANG"]}
        return kept | own | dict(extra or {})

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        check: bool = False,
        cwd: Path | None = None,
        input: str | None = None,  # subprocess.run's own name
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the controller."""
        command, full_env = self._entered(argv), self.environment(env)
        return processes.run(
            command, check=check, timeout=timeout, env=full_env, input=input, cwd=cwd
        )

    def popen(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command on the controller; its pid is the command's own."""
        return processes.popen(self._entered(argv), env=self.environment(env), **options)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Be on the controller's network for a while: this thread, and what it starts."""
        net = os.open(self._net(), os.O_RDONLY | os.O_CLOEXEC)
        try:
            with kernel.in_net(net):
                yield
        finally:
            os.close(net)

    def _net(self) -> str:
        state = state_of(self.layout)
        return f"/proc/{state.supervisor}/fd/{state.controller_net}"

    def _entered(self, argv: Sequence[str | Path]) -> list[str | Path]:
        return ["nsenter", f"--net={self._net()}", "--", *argv]
