"""A link that takes its time: frames between a host and the bridge go through a process that holds them for a while.

This kernel has no netem. The host's cable is taken out of the bridge, and a program with a raw socket at each end
carries every frame after a delay, checksums left to be filled in and oversized segments included (PACKET_VNET_HDR).
"""

from __future__ import annotations

import subprocess
import sys
import uuid

from tests.lab import processes, wires
from tests.lab.faults.fault import Fault
from tests.lab.layout import HOST_ENVIRONMENT
from tests.lab.rooms import Host, state_of

_CARRY = r"""
import collections, select, socket, sys, time
SOL_PACKET, PACKET_VNET_HDR, ETH_P_ALL, OUTGOING = 263, 15, 3, 4
def end(name):
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    sock.bind((name, 0))
    return sock
one, other, delay = end(sys.argv[1]), end(sys.argv[2]), float(sys.argv[3])
across = {one: other, other: one}
held = collections.deque()
print(flush=True)
while True:
    wait = max(0.0, held[0][0] - time.monotonic()) if held else None
    for sock in select.select([one, other], [], [], wait)[0]:
        frame, (_, _, kind, *_) = sock.recvfrom(1 << 17)
        if kind != OUTGOING:
            held.append((time.monotonic() + delay, across[sock], frame))
    while held and held[0][0] <= time.monotonic():
        _, sock, frame = held.popleft()
        try:
            sock.send(frame)
        except OSError:
            pass
"""


def far_away(host: Host, milliseconds: float) -> Fault:
    """Everything to and from a host comes so much later, each way."""
    tag, port = uuid.uuid4().hex[:6], f"v{host.index}"
    near, far = f"x{tag}", f"y{tag}"
    there = ["nsenter", f"--net=/proc/{state_of(host.layout).supervisor}/ns/net", "--"]
    _batch(
        there,
        f"link add {near} mtu {wires.BRIDGE_MTU} up type veth peer name {far} mtu {wires.BRIDGE_MTU}",
        f"link set {far} master {wires.BRIDGE} up",
        f"link set {port} nomaster",
    )
    argv = [*there, sys.executable, "-c", _CARRY, port, near, str(milliseconds / 1000)]
    carrier = processes.popen(argv, env=HOST_ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def undo() -> None:
        processes.kill_group(carrier)
        carrier.communicate()
        _batch(there, f"link del {near}", f"link set {port} master {wires.BRIDGE}")

    fault = Fault(undo)
    if carrier.stdout is None or carrier.stdout.readline() == "":
        fault.undo()
        message = f"the frames of {host.name} cannot be held"
        raise RuntimeError(message)
    return fault


def _batch(there: list[str], *commands: str) -> None:
    text = "\n".join([*commands, ""])
    processes.run([*there, "ip", "-batch", "-"], timeout=30, check=True, env=HOST_ENVIRONMENT, input=text)
