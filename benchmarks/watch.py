"""A watch of lab hosts on which things change: what it tells, what a look costs, what it holds.

    nice -n 19 .venv/bin/python benchmarks/watch.py --hosts 16 --minutes 20 --changes 30 --every 10

Changes are drawn from a seed: an interface's MTU, a packet filter, a rendezvous port that is
dropped, a full disk, memory that a job left behind, an Xid in the kernel's log, a node that goes
down and comes back. Each has to be told once within two intervals, when it comes and when it goes,
and nothing else may be told. In the lab it is not known whether memory is left behind, as a host
does not see all processes of its machine: what is unknown is told by the third look.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.command import CLI
from tests.support.lab import Host, Lab, faults
from tests.support.lab.faults import Fault
from tests.support.lab.faults.files import inside

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SMALL = "/tmp"
RENDEZVOUS = 29500  # the port of the lab's inventory
# What the machine that carries the lab brings to all its hosts by itself.
NOT_OF_HOSTS = "lim.,proc.dstate,mem.,irq.,cpu.,disk.,numa.,pcie."
QUIET = "6,0,1000000,-;Linux version 6.8.0-60-generic\n"
XID = "3,{number},{now},-;NVRM: Xid (PCI:0000:2a:00): 79, GPU has fallen off the bus.\n"


@dataclass(frozen=True)
class Kind:
    """A kind of change: how it is made on a host, and the events that have to follow.

    They have to be told within so many intervals.
    """

    make: Callable[[Host], Fault]
    comes: tuple[str, ...]
    goes: tuple[str, ...]
    intervals: int = 2


def _xid(host: Host) -> Fault:
    log = inside(host, "/dev/kmsg")
    number = 900 + log.read_text().count("\n")
    uptime = Path("/proc/uptime").read_text().split()[0]
    with log.open("a") as sink:
        sink.write(XID.format(number=number, now=int(float(uptime) * 1e6)))
    return Fault(lambda: None)


def _power(host: Host) -> Fault:
    faults.power_off(host)

    def undo() -> None:
        faults.power_on(host)
        _prepare(host)

    return Fault(undo)


KINDS = {
    "mtu": Kind(lambda host: faults.mtu(host, 1400), ("new eth.mtu",), ("gone eth.mtu",)),
    "filter": Kind(
        lambda host: faults.drop_ports(host, 20000, 65000),
        ("new net.firewall",),
        ("gone net.firewall",),
    ),
    "disk": Kind(lambda host: faults.filled(host, SMALL), ("new fs.space",), ("gone fs.space",)),
    "rendezvous": Kind(
        lambda host: faults.drop_ports(host, RENDEZVOUS, RENDEZVOUS),
        ("new net.ports",),
        ("gone net.ports",),
    ),
    "memory": Kind(faults.segment, ("new shm.stale",), ("gone shm.stale",), intervals=3),
    "xid": Kind(_xid, ("new gpu.xid",), ()),
    "power": Kind(_power, ("down ssh.reach",), ("back ssh.reach", "booted")),
}


@dataclass
class Expected:
    """An event that has to be told, and when it came about."""

    words: str
    node: str
    at: float
    intervals: int = 2
    told: float | None = None


@dataclass
class Tally:
    """What was expected, and what was told besides."""

    expected: list[Expected] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)

    def hear(self, event: dict[str, Any]) -> None:
        words = f"{event['kind']} {event.get('check', '')}".strip()
        if event["kind"] == "there":
            return
        for node in event["nodes"]:
            waiting = [
                one
                for one in self.expected
                if one.words == words and one.node == node and one.told is None
            ]
            if waiting:
                waiting[0].told = time.monotonic()
            else:
                self.invented.append(f"{words} {node}")


def _prepare(host: Host) -> None:
    faults.resized(host, SMALL, "100m")
    faults.file_over(host, "/dev/kmsg", QUIET)


def main() -> int:
    """Run the watch and print what it told and what it cost; 1 if anything was wrong."""
    given = _words()
    chance = random.Random(given.seed)
    with Lab(given.hosts) as lab:
        for host in lab.hosts:
            _prepare(host)
        inventory = lab.inventory()
        argv = [*CLI, "watch", str(inventory), "--every", f"{given.every}s"]
        argv += ["--format", "jsonl", "--skip", NOT_OF_HOSTS]
        pipe = subprocess.PIPE
        watch = lab.controller.popen(argv, stdout=pipe, stderr=pipe, text=True)
        tally = Tally()
        begun = threading.Event()
        readers = [
            threading.Thread(target=_hear, args=(watch.stdout, tally), daemon=True),
            threading.Thread(target=_errors, args=(watch.stderr, begun), daemon=True),
        ]
        for reader in readers:
            reader.start()
        begun.wait()
        memory = [_memory(watch.pid)]
        started = time.monotonic()
        cpu = _cpu_of_agents(lab)
        controller = _cpu(f"/proc/{watch.pid}")
        _play(lab, given, chance, tally, lambda: memory.append(_memory(watch.pid)))
        elapsed = time.monotonic() - started
        looks = elapsed / given.every
        per_look = (_cpu_of_agents(lab, cpu)) / looks * 1000
        own = (_cpu(f"/proc/{watch.pid}") - controller) / looks * 1000
        watch.send_signal(signal.SIGINT)
        code = watch.wait(60)
        readers[0].join(10)
    return _conclude(given, tally, memory, per_look, own, code)


def _play(
    lab: Lab,
    given: argparse.Namespace,
    chance: random.Random,
    tally: Tally,
    note: Callable[[], None],
) -> None:
    """Make and undo the changes, spread over the time that is given."""
    end = time.monotonic() + given.minutes * 60
    pause = given.minutes * 60 / max(1, given.changes)
    open_faults: list[tuple[float, Fault, str, str]] = []
    following = time.monotonic() + given.every
    xids: set[str] = set()
    made_on: Counter[tuple[str, str]] = Counter()
    made = 0
    while time.monotonic() < end or open_faults:
        now = time.monotonic()
        for row in [row for row in open_faults if row[0] <= now]:
            open_faults.remove(row)
            _, fault, kind, node = row
            fault.undo()
            for words in KINDS[kind].goes:
                tally.expected.append(Expected(words, node, time.monotonic()))
        busy = {row[3] for row in open_faults}
        free = [host for host in lab.hosts if host.name not in busy]
        if made < given.changes and now >= following and len(open_faults) < len(lab.hosts) / 3:
            following += pause
            made += 1
            is_down = any(row[2] == "power" for row in open_faults)
            host, kind = _choice(chance, free, made_on, is_down)
            fault = KINDS[kind].make(host)
            comes = KINDS[kind].comes
            if kind == "xid" and host.name in xids:
                comes = ("log",)
            if kind == "xid":
                xids.add(host.name)
            intervals = KINDS[kind].intervals
            for words in comes:
                tally.expected.append(Expected(words, host.name, time.monotonic(), intervals))
            if kind == "power" and host.name in xids:
                xids.discard(host.name)
                tally.expected.append(Expected("gone gpu.xid", host.name, time.monotonic()))
            undo_at = time.monotonic() + (intervals + 0.5) * given.every
            open_faults.append((undo_at, fault, kind, host.name))
        note()
        time.sleep(min(1.0, given.every / 4))
    time.sleep(3 * given.every)


def _choice(
    chance: random.Random,
    free: list[Host],
    made_on: Counter[tuple[str, str]],
    is_down: bool,
) -> tuple[Host, str]:
    """Return a host and a kind of change; what came three times would be told as unsteady.

    While a host is down no other one is switched off: to start one starts all.
    """
    kinds = [kind for kind in KINDS if kind != "power" or not is_down]
    choices = [(host, kind) for host in free for kind in kinds if made_on[host.name, kind] < 2]
    host, kind = chance.choice(choices)
    made_on[host.name, kind] += 1
    return host, kind


def _hear(stream: Any, tally: Tally) -> None:
    for line in stream:
        event = json.loads(line)
        print(f"  {event['time']} {event['kind']} {event['nodes']} {event.get('check', '')}")
        tally.hear(event)


def _errors(stream: Any, begun: threading.Event) -> None:
    for line in stream:
        print(f"  {line}", end="")
        if "nodes reached" in line:
            begun.set()


def _memory(pid: int) -> int:
    """Return the resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def _cpu(folder: str) -> float:
    """Return the seconds of processor time of a process and of its children that ended."""
    fields = Path(folder, "stat").read_text().rpartition(")")[2].split()
    return sum(int(number) for number in fields[11:15]) / TICKS


Agents = dict[str, tuple[str, float]]


def _cpu_of_agents(lab: Lab, before: Agents | None = None) -> Any:
    """Return the agents with their processor time, or what those of `before` used since, each."""
    agents: Agents = {}
    for host in lab.hosts:
        for pid in host.processes("SB -c")[:1]:
            folder = f"/proc/{host.pid}/root/proc/{pid}"
            agents[host.name] = (folder, _cpu(folder))
    if before is None:
        return agents
    used = [now - before[name][1] for name, (folder, now) in agents.items()
            if before.get(name, ("", 0.0))[0] == folder]  # fmt: skip
    return sum(used) / max(1, len(used))


def _conclude(
    given: argparse.Namespace,
    tally: Tally,
    memory: list[int],
    per_look: float,
    own: float,
    code: int,
) -> int:
    missed = [f"{one.words} {one.node}" for one in tally.expected if one.told is None]
    heard = [(one, one.told - one.at) for one in tally.expected if one.told is not None]
    delays = [delay for _, delay in heard]
    late = []
    for one, delay in heard:
        if delay > one.intervals * given.every:
            late.append(f"{one.words} {one.node} {delay:.1f} s")
    quarter = max(1, len(memory) // 4)
    grown = max(memory[-quarter:]) - max(memory[:quarter])
    later = max(memory[-quarter:]) - max(memory[quarter : 2 * quarter] or memory)
    print(f"{len(tally.expected)} changes; {len(missed)} missed {missed}")
    print(f"{len(tally.invented)} told that were not made {tally.invented}")
    print(
        f"{len(late)} later than they may be {late}; the slowest {max(delays, default=0.0):.1f} s"
    )
    print(f"a look: {per_look:.1f} ms of CPU on a node, {own:.0f} ms here; exit {code}")
    print(
        f"memory here: {memory[0] >> 10} KiB at first, {memory[-1] >> 10} KiB at the end, "
        f"{grown >> 10} KiB more in the last quarter than in the first, "
        f"{later >> 10} KiB more than in the second"
    )
    return 1 if missed or tally.invented or late or code != 130 else 0


def _words() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--hosts", type=int, default=4)
    words.add_argument("--minutes", type=float, default=5.0)
    words.add_argument("--changes", type=int, default=12)
    words.add_argument("--every", type=float, default=10.0)
    words.add_argument("--seed", type=int, default=1)
    return words.parse_args()


if __name__ == "__main__":
    sys.exit(main())
