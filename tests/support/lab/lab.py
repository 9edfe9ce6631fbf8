"""A lab of real hosts on one machine, as its users see it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.lab import processes
from tests.support.lab.layout import (
    BASE,
    BLOCK,
    HOST_ENVIRONMENT,
    PREFIX,
    READY,
    RESET,
    Family,
    Layout,
    Spec,
)
from tests.support.lab.rooms import Controller, Host, state_of
from tests.support.lab.timekeeper import synchronised

REPOSITORY = Path(__file__).resolve().parents[3]
START_LIMIT = 120.0
STOP_LIMIT = 60.0
_TOOLS = {
    "/usr/sbin/sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
}
# A lab that has no lock yet may be one that is just being made.
_YOUNG = 60.0


@functools.cache
def why_not() -> str | None:
    """Why no lab can run here, in one line; None if one can."""
    if os.geteuid() != 0:
        return "the lab needs root, as every host has namespaces of its own"
    for tool, package in _TOOLS.items():
        if shutil.which(tool, path=HOST_ENVIRONMENT["PATH"]) is None:
            return f"the lab needs {tool} (apt install {package})"
    if error := _try_namespaces():
        return (
            f"the lab needs namespaces, and in {BASE} (CLUSTERPREP_LAB_DIR) "
            f"room for overlays: {error}"
        )
    return None


def _try_namespaces() -> str:
    with tempfile.TemporaryDirectory(prefix="clusterprep-trial-", dir=BASE) as folder:
        places = {name: Path(folder, name) for name in ("upper", "work", "root")}
        for place in places.values():
            place.mkdir()
        data = f"lowerdir=/,upperdir={places['upper']},workdir={places['work']},volatile"
        mount = ["mount", "-t", "overlay", "overlay", "-o", data, str(places["root"])]
        flags = ["--mount", "--uts", "--ipc", "--pid", "--net", "--fork"]
        tried = subprocess.run(
            ["unshare", *flags, *mount], capture_output=True, text=True, check=False
        )
        return tried.stderr.strip()


class Lab:
    """Hosts n1, n2, ... and a controller on a network of their own, from ``with`` to its end.

    They have IPv4 addresses, with ``ipv6`` "only" those of IPv6 alone, and with "dual" both.

    ``keep`` names folders that must stay visible on the hosts, read-only, although they lie below
    /tmp or on a file system of their own; the repository and this Python are kept anyway. With
    ``slurm`` the hosts have the machine's Slurm, which ``tests.support.lab.slurm`` starts.
    ``roots`` are root file systems for the first hosts (``tests.support.lab.roots``); the others
    have this machine's.
    """

    def __init__(
        self,
        n: int = 4,
        keep: Sequence[Path] = (),
        *,
        chrony: bool = False,
        slurm: bool = False,
        ipv6: Family | None = None,
        roots: Sequence[Path] = (),
    ) -> None:
        own = (REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))
        self._wanted = (n, tuple(dict.fromkeys((*own, *keep))), chrony, slurm, ipv6)
        self._roots = tuple(roots)
        self._layout: Layout | None = None
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    def attach(cls, folder: Path) -> Lab:
        """A lab that runs already; ``stop`` ends it."""
        spec = Spec.load(Layout(folder).spec)
        lab = cls(
            len(spec.hosts),
            [Path(path) for path in spec.keep],
            chrony=spec.chrony,
            slurm=spec.slurm,
            ipv6=spec.ipv6,
            roots=[Path(host.root) for host in spec.hosts],
        )
        lab._layout = Layout(folder)
        return lab

    def __enter__(self) -> Lab:
        self.start(owner=os.getpid())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, owner: int | None) -> None:
        """Start all hosts. The lab ends with the process ``owner``, or with ``stop`` if None."""
        if reason := why_not():
            raise RuntimeError(reason)
        sweep()
        processes.raise_open_files()  # commands on hosts have the limits of this process
        layout = Layout(Path(tempfile.mkdtemp(prefix=PREFIX, dir=BASE)))
        count, keep, chrony, slurm, ipv6 = self._wanted
        spec = Spec.of(
            count,
            keep,
            chrony=chrony,
            slurm=slurm,
            ipv6=ipv6,
            owner=owner,
            roots=self._roots,
        )
        spec.save(layout.spec)
        self._process = _spawn(layout)
        said = self._process.stdout.readline() if self._process.stdout else ""
        if said.strip() != READY:
            self._process.wait(STOP_LIMIT)
            message = f"the lab did not start: {layout.log.read_text()}"
            raise RuntimeError(message)
        self._layout = layout

    def stop(self) -> None:
        """End everything that the lab started."""
        if self._layout is None:
            return
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            _end(state_of(self._layout).supervisor)
        if self._process is not None:
            with self._process:
                self._process.wait(STOP_LIMIT)
        self._layout = None

    def reset(self) -> None:
        """Bring hosts, networks and HOME to the state in which they were born.

        Raises RuntimeError if that fails.
        """
        before = state_of(self.layout)
        deadline = time.monotonic() + START_LIMIT
        watched = os.pidfd_open(before.supervisor)
        try:
            signal.pidfd_send_signal(watched, RESET)
            while state_of(self.layout).resets == before.resets:
                gone, _, _ = select.select([watched], [], [], 0.01)
                if gone or time.monotonic() > deadline:
                    message = f"the lab cannot be reset: {self.layout.log.read_text()}"
                    raise RuntimeError(message)
        finally:
            os.close(watched)

    @property
    def layout(self) -> Layout:
        """Paths of the running lab."""
        if self._layout is None:
            message = "the lab is not running"
            raise RuntimeError(message)
        return self._layout

    @property
    def owner(self) -> int | None:
        """The process with which the lab ends; None if it was started by hand."""
        return Spec.load(self.layout.spec).owner

    @property
    def folder(self) -> Path:
        """The lab's folder on the machine."""
        return self.layout.folder

    @property
    def home(self) -> Path:
        """HOME of the controller."""
        return self.layout.home

    @property
    def key(self) -> Path:
        """Private key that opens all hosts."""
        return self.layout.key

    @property
    def known_hosts(self) -> Path:
        """Host keys of all hosts."""
        return self.layout.known_hosts

    @property
    def controller(self) -> Controller:
        """The place that the checker runs in."""
        return Controller(self.layout)

    @property
    def supervisor(self) -> int:
        """Process id of the lab's supervisor, whose network namespace has the bridge."""
        return state_of(self.layout).supervisor

    @functools.cached_property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts, n1 first."""
        return tuple(Host(spec, self.layout) for spec in Spec.load(self.layout.spec).hosts)

    def host(self, name: str) -> Host:
        """The host of this name."""
        return next(host for host in self.hosts if host.name == name)

    def ssh(self, host: Host, *command: str, user: str = "root") -> list[str]:
        """Argument list of the OpenSSH client for a command on a host, for ``controller.run``."""
        flags = [word for option in self._ssh_options() for word in ("-o", option)]
        return [
            "ssh",
            "-F",
            "none",
            "-i",
            str(self.key),
            *flags,
            f"{user}@{host.address}",
            *command,
        ]

    def _ssh_options(self) -> tuple[str, ...]:
        strict = (
            f"UserKnownHostsFile={self.known_hosts}",
            "StrictHostKeyChecking=yes",
            "BatchMode=yes",
        )
        # OpenSSH's default key exchange costs 60 ms of processor time per connection on a small
        # machine.
        return (*strict, "KexAlgorithms=curve25519-sha256", "LogLevel=ERROR")

    def wait_time_sync(self, timeout: float = 60) -> None:
        """Wait until the clock of every host follows the lab's time source."""
        deadline = time.monotonic() + timeout
        for host in self.hosts:
            while not synchronised(host.run(["chronyc", "-c", "tracking"], check=False).stdout):
                if time.monotonic() > deadline:
                    message = f"{host.name} does not follow the time source after {timeout:g} s"
                    raise TimeoutError(message)
                time.sleep(0.1)

    def inventory(self, path: Path | None = None, **overrides: Any) -> Path:
        """Write an inventory of all hosts.

        ``overrides`` replace its top-level keys, None removes one.
        """
        target = path or self.folder / "inventory.yaml"
        content = self.inventory_content() | overrides
        kept = {key: value for key, value in content.items() if value is not None}
        # JSON is YAML but for its escapes in pairs, and this way the lab needs no library for it.
        target.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return target

    def inventory_content(self) -> dict[str, Any]:
        """The inventory as plain values, for a test that changes more than top-level keys."""
        ssh = {
            "user": "root",
            "identity_file": str(self.key),
            "known_hosts": str(self.known_hosts),
            "config": str(self.home / ".ssh" / "config"),
        }
        nodes = list(_node_entries(self.hosts))
        return {"cluster": "lab", "ssh": ssh, "python": sys.executable, "nodes": nodes}


def _node_entries(hosts: Sequence[Host]) -> Iterator[dict[str, str]]:
    if ":" in hosts[0].address:  # a range of hexadecimal numbers cannot be written
        for host in hosts:
            yield {"name": host.name, "address": host.address}
        return
    for block in _blocks(hosts):
        yield _node_range(block)


def _blocks(hosts: Sequence[Host]) -> Iterator[Sequence[Host]]:
    for first in range(0, len(hosts), BLOCK):
        yield hosts[first : first + BLOCK]


def _node_range(hosts: Sequence[Host]) -> dict[str, str]:
    """One entry for hosts whose addresses follow each other."""
    if len(hosts) == 1:
        return {"name": hosts[0].name, "address": hosts[0].address}
    network, first = hosts[0].address.rsplit(".", 1)
    last = hosts[-1].address.rsplit(".", 1)[1]
    name = f"n[{hosts[0].index}-{hosts[-1].index}]"
    return {"name": name, "address": f"{network}.[{first}-{last}]"}


def _spawn(layout: Layout) -> subprocess.Popen[str]:
    lock = os.open(layout.lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)  # of the open file, so the supervisor holds it on
    try:
        with layout.log.open("w") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.lab.supervisor",
                    str(layout.folder),
                    str(lock),
                ],
                cwd=REPOSITORY,
                env=os.environ | {"PATH": HOST_ENVIRONMENT["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                pass_fds=(lock,),
                start_new_session=True,
            )
    finally:
        os.close(lock)


def _end(supervisor: int) -> None:
    """Ask a supervisor to end, wait for it, and insist if it does not."""
    watched = os.pidfd_open(supervisor)
    try:
        signal.pidfd_send_signal(watched, signal.SIGTERM)
        if not select.select([watched], [], [], STOP_LIMIT)[0]:
            signal.pidfd_send_signal(watched, signal.SIGKILL)
    finally:
        os.close(watched)


def running() -> list[Path]:
    """Folders of the labs that run on this machine, oldest first."""
    folders = [folder for folder in BASE.glob(f"{PREFIX}*") if _locked(folder)]
    return sorted(folders, key=lambda folder: folder.stat().st_mtime)


def sweep() -> None:
    """Remove the folders of labs whose supervisor was killed; their processes ended with it."""
    for folder in BASE.glob(f"{PREFIX}*"):
        if not _locked(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path) -> bool:
    try:
        with Layout(folder).lock.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):
            return time.time() - folder.stat().st_mtime < _YOUNG
    return False
