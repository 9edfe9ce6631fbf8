"""A link that takes its time.

Frames between a host and the bridge go through a process that holds them for a while.

This kernel has no netem. The host's cable is taken out of the bridge, and a program with a raw
socket at each end carries every frame after a delay, checksums left to be filled in and oversized
segments included (PACKET_VNET_HDR).
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.support.lab import processes, wires
from tests.support.lab.faults.fault import Fault
from tests.support.lab.layout import HOST_ENVIRONMENT, Layout
from tests.support.lab.rooms import Host, state_of

if TYPE_CHECKING:
    from tests.support.lab.lab import Lab

_CARRY = r"""
import collections, json, os, select, socket, struct, sys, time
SOL_PACKET, PACKET_VNET_HDR, ETH_P_ALL, OUTGOING = 263, 15, 3, 4
def end(name):
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    sock.bind((name, 0))
    return sock
def note(frame, talks):
    # Of TCP to and from port 22: how often the one who connected speaks after an answer; what is
    # sent again does not count.
    if frame[22:24] != b"\x08\x00" or frame[33] != 6:
        return
    ip = 24
    tcp = ip + (frame[ip] & 15) * 4
    source, target, sequence = struct.unpack_from("!HHI", frame, tcp)
    size = struct.unpack_from("!H", frame, ip + 2)[0] - (tcp - ip) - (frame[tcp + 12] >> 4) * 4
    host = socket.inet_ntoa(frame[ip + 12 : ip + 16] if source == 22 else frame[ip + 16 : ip + 20])
    name = host, target if source == 22 else source
    if target == 22 and frame[tcp + 13] & 2:  # SYN: what began earlier is not looked at
        talks[name] = {"turns": 0, "last": 22, "heard": {}}
    talk = talks.get(name)
    if size <= 0 or 22 not in (source, target) or talk is None:
        return
    known = talk["heard"].get(source == 22)
    after = sequence + size & 0xFFFFFFFF
    behind = known is not None and (sequence + size - known) & 0xFFFFFFFF >= 1 << 31
    if behind or known == after:
        return
    talk["heard"][source == 22] = after
    talk["turns"] += source != 22 and talk["last"] == 22
    talk["last"] = source if source == 22 else 0
one, other, delay = end(sys.argv[1]), end(sys.argv[2]), float(sys.argv[3])
across = {one: other, other: one}
held, talks = collections.deque(), {}
print(flush=True)
while True:
    wait = max(0.0, held[0][0] - time.monotonic()) if held else None
    for sock in select.select([one, other, 0], [], [], wait)[0]:
        if sock == 0:
            if not os.read(0, 64):
                sys.exit()
            rows = [[host, talk["turns"]] for (host, _), talk in talks.items()]
            print(json.dumps(rows), flush=True)
            talks.clear()
            continue
        frame, (_, _, kind, *_) = sock.recvfrom(1 << 17)
        if kind != OUTGOING:
            held.append((time.monotonic() + delay, across[sock], frame))
            note(frame, talks)
    while held and held[0][0] <= time.monotonic():
        _, sock, frame = held.popleft()
        try:
            sock.send(frame)
        except OSError:
            pass
"""


class Distance(Fault):
    """A way that takes its time, and knows how often each SSH connection went to and fro on it."""

    def __init__(self, undo: Callable[[], object], carrier: subprocess.Popen[str]) -> None:
        super().__init__(undo)
        self._carrier = carrier

    def turns(self) -> dict[str, list[int]]:
        """By address: how often the client spoke after an answer, per connection.

        Counted since the last call.
        """
        assert self._carrier.stdin
        assert self._carrier.stdout
        self._carrier.stdin.write("?\n")
        self._carrier.stdin.flush()
        found: dict[str, list[int]] = {}
        for host, turns in json.loads(self._carrier.stdout.readline()):
            found.setdefault(host, []).append(turns)
        return found


def far_away(host: Host, milliseconds: float) -> Fault:
    """Everything to and from a host comes so much later, each way."""
    return _distance(host.layout, f"v{host.index}", milliseconds)


def far_controller(lab: Lab, milliseconds: float) -> Distance:
    """Everything between the controller and all hosts comes so much later, each way."""
    return _distance(lab.layout, "controller", milliseconds)


def _distance(layout: Layout, port: str, milliseconds: float) -> Distance:
    tag = uuid.uuid4().hex[:6]
    near, far = f"x{tag}", f"y{tag}"
    there = ["nsenter", f"--net=/proc/{state_of(layout).supervisor}/ns/net", "--"]
    _batch(
        there,
        f"link add {near} mtu {wires.BRIDGE_MTU} up type veth "
        f"peer name {far} mtu {wires.BRIDGE_MTU}",
        f"link set {far} master {wires.BRIDGE} up",
        f"link set {port} nomaster",
    )
    argv = [*there, sys.executable, "-c", _CARRY, port, near, str(milliseconds / 1000)]
    pipe = subprocess.PIPE
    carrier = processes.popen(argv, env=HOST_ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=pipe)

    def undo() -> None:
        processes.kill_group(carrier)
        carrier.communicate()
        _batch(there, f"link del {near}", f"link set {port} master {wires.BRIDGE}")

    fault = Distance(undo, carrier)
    if carrier.stdout is None or carrier.stdout.readline() == "":
        fault.undo()
        message = f"the frames of {port} cannot be held"
        raise RuntimeError(message)
    return fault


def _batch(there: list[str], *commands: str) -> None:
    text = "\n".join([*commands, ""])
    processes.run(
        [*there, "ip", "-batch", "-"], timeout=30, check=True, env=HOST_ENVIRONMENT, input=text
    )
