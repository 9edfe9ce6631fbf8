"""The process that owns a lab.

All that the lab runs is its child, and the kernel ends the children with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.lab import kernel, node, processes, timekeeper, wires
from tests.support.lab.layout import (
    CONTROLLER_ADDRESS,
    CONTROLLER_IPV6,
    IPV6_PREFIX_LENGTH,
    POWER,
    PREFIX_LENGTH,
    READY,
    RESET,
    Family,
    HostSpec,
    Layout,
    Spec,
    State,
)

# Hosts that come to life at the same time; more only wait for each other in the kernel.
TOGETHER = 32
START_LIMIT = 60.0


class Supervisor:
    """Makes the network, starts the hosts, watches over them and clears everything away."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.spec = Spec.load(layout.spec)
        self.pids: dict[str, int] = {}
        self.own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.controller_net: int | None = None
        self.resets = 0

    def start(self) -> None:
        """Everything up to hosts that accept connections."""
        self._make_home()
        self.controller_net = _make_network(self.spec.ipv6)
        if self.spec.chrony:
            self._start_time_source(self.controller_net)
        for first in range(0, len(self.spec.hosts), TOGETHER):
            self._start_hosts(self.spec.hosts[first : first + TOGETHER])
        self._write_known_hosts()
        self._save_state()

    def _make_home(self) -> None:
        self.layout.key.parent.mkdir(parents=True, mode=0o700)
        node.make_key(self.layout.key, "controller")
        (self.layout.key.parent / "config").touch()

    def _start_time_source(self, net: int) -> None:
        command = timekeeper.source_command(self.layout)
        with kernel.in_net(net):
            # There are no threads that a function before exec could get into trouble with.
            subprocess.Popen(command, stdout=sys.stderr, preexec_fn=kernel.die_with_parent)  # noqa: PLW1509

    def _start_hosts(self, hosts: Sequence[HostSpec], *, again: bool = False) -> None:
        lines = {
            host.name: self._fork_host(node.Birth(host, self.spec, self.layout, again))
            for host in hosts
        }
        for host in hosts:
            self._heed(host, lines[host.name])
        wires.batch(
            command
            for host in hosts
            for command in wires.cable_commands(f"v{host.index}", self.pids[host.name], host.index)
        )
        for line in lines.values():
            with line:
                line.sendall(node.CABLED)
        self._await_sshd(hosts)

    def _fork_host(self, birth: node.Birth) -> socket.socket:
        """Fork process 1 of a host and return the line to it."""
        birth.folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        kernel.unshare(kernel.CLONE_NEWPID)  # for the next child, not for this process
        pid = os.fork()
        if pid == 0:
            kernel.die_with_parent()
            ours.close()
            node.live(birth, theirs)
        theirs.close()
        kernel.setns(self.own_pid_namespace, kernel.CLONE_NEWPID)
        self.pids[birth.host.name] = pid
        return ours

    def _heed(self, host: HostSpec, line: socket.socket) -> None:
        """Wait until the host has a network namespace that a cable can be led to."""
        line.settimeout(START_LIMIT)
        if line.recv(1) != node.UNSHARED:
            raise RuntimeError(self._trouble(host, "ended"))

    def _await_sshd(self, hosts: Sequence[HostSpec]) -> None:
        deadline = time.monotonic() + START_LIMIT
        for host in hosts:
            pid_file = Path(f"/proc/{self.pids[host.name]}/root/run/sshd.pid")
            while not pid_file.exists():
                self._check_born(host, deadline)
                time.sleep(0.005)

    def _check_born(self, host: HostSpec, deadline: float) -> None:
        gone, _ = os.waitpid(self.pids[host.name], os.WNOHANG)
        if gone or time.monotonic() > deadline:
            raise RuntimeError(self._trouble(host, "ended" if gone else "is not ready"))

    def _trouble(self, host: HostSpec, what: str) -> str:
        log = (self.layout.host(host.name) / "sshd.log").read_text(errors="replace")
        return f"host {host.name} {what}: {log.strip()}"

    def _write_known_hosts(self) -> None:
        lines = []
        for host in self.spec.hosts:
            public = self.layout.host(host.name) / "upper" / f"{node.HOST_KEY}.pub"
            kind, key, *_ = public.read_text().split()
            names = ",".join((host.name, *host.addresses))
            lines.append(f"{names} {kind} {key}\n")
        self.layout.known_hosts.write_text("".join(lines))

    def _save_state(self) -> None:
        if self.controller_net is not None:
            State(os.getpid(), self.controller_net, self.pids, self.resets).save(self.layout.state)

    def listen(self) -> int:
        """Keep signals from now on, until `watch` reads them from the descriptor that is returned.

        Before the lab is said to be ready: a RESET that comes earlier would end this
        process.
        """
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, POWER, RESET):
            signal.signal(number, lambda *_: None)
        return woken

    def watch(self, woken: int) -> None:
        """Wait for the end of the owner or for a signal.

        Rebooted hosts are restarted, on POWER all that are down; on RESET everything is made anew.
        """
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        if self.spec.owner is not None:
            poll.register(os.pidfd_open(self.spec.owner), select.POLLIN)
        self._reap()
        while all(fd == woken for fd, _ in poll.poll()):
            told = set(os.read(woken, 4096))
            if {signal.SIGTERM, signal.SIGINT} & told:
                return
            self._reap()
            if RESET in told:
                self._reset()
            if POWER in told:
                self._power_on()

    def _reap(self) -> None:
        """Collect ended children; reboot(2) in a host ends its process 1 with SIGHUP."""
        names = {pid: name for name, pid in self.pids.items()}
        for pid, status in _ended_children():
            name = names.get(pid)
            if name is None:
                continue
            del self.pids[name]
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGHUP:
                self._start_again(name)
            self._save_state()

    def _power_on(self) -> None:
        for host in self.spec.hosts:
            if host.name not in self.pids:
                self._start_again(host.name)
        self._save_state()

    def _reset(self) -> None:
        """Make hosts, networks and HOME as at the start; only this process stays.

        A host comes to life in less time than it takes to find out what was done to it, and nothing
        that was done outlives its namespaces and its folder.
        """
        self.end()
        if self.controller_net is not None:
            os.close(self.controller_net)
        self.pids.clear()
        self._clear_folder()
        self.resets += 1
        self.start()

    def _clear_folder(self) -> None:
        own = (self.layout.lock, self.layout.spec, self.layout.state, self.layout.log)
        for entry in self.layout.folder.iterdir():
            if entry in own:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def _start_again(self, name: str) -> None:
        host = next(host for host in self.spec.hosts if host.name == name)
        with contextlib.suppress(subprocess.CalledProcessError):
            wires.batch(
                [f"link del v{host.index}"]
            )  # the old namespace may not have let go of it yet
        try:
            self._start_hosts([host], again=True)
        except (RuntimeError, OSError):
            traceback.print_exc()  # the host stays down; the others are not to suffer for it
            self.pids.pop(name, None)

    def end(self) -> None:
        """Kill the hosts and what was started on the controller."""
        visitors = [] if self.controller_net is None else _processes_in(self.controller_net)
        for pid in (*self.pids.values(), *visitors):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()


def _make_network(ipv6: Family | None) -> int:
    """Enter a new namespace for the bridge, and lay a cable to another for the controller.

    The controller has the addresses that hosts have: IPv4, ``ipv6`` "only", or "dual".
    Return the descriptor of the controller's namespace.
    """
    kernel.unshare(kernel.CLONE_NEWNET)
    wires.quieten_ipv6()
    wires.raise_interface("lo")
    controller = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    kernel.unshare(kernel.CLONE_NEWNET)
    wires.quieten_ipv6()
    wires.raise_interface("lo")
    cable = wires.cable_commands("controller", f"/proc/{os.getpid()}/fd/{controller}", 0)
    wires.batch([*wires.bridge_commands(), *cable])
    with kernel.in_net(controller):
        ipv4 = None if ipv6 == "only" else CONTROLLER_ADDRESS
        wires.raise_interface(wires.INTERFACE, ipv4, PREFIX_LENGTH)
        if ipv6:
            wires.add_ipv6(wires.INTERFACE, CONTROLLER_IPV6, IPV6_PREFIX_LENGTH)
    return controller


def _ended_children() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def _processes_in(net: int) -> list[int]:
    """Return the processes in the network namespace behind a descriptor, which are the lab's."""
    wanted, found = os.fstat(net).st_ino, []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if (entry / "ns/net").stat().st_ino == wanted:
                    found.append(int(entry.name))
    return found


def main(folder: str, lock: str) -> int:
    """Run the lab described in ``folder``; the inherited descriptor ``lock`` says for how long."""
    os.set_inheritable(int(lock), False)
    processes.default_limits()
    supervisor = Supervisor(Layout(Path(folder)))
    try:
        supervisor.start()
        signals = supervisor.listen()
        print(READY, flush=True)  # this line is what the starter waits for
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        supervisor.watch(signals)
    finally:
        supervisor.end()
    # After an error the folder stays until the next lab starts, for what it has to say.
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
