"""The part of the agent that tries ports: it listens where a job would, and dials where others listen."""

import errno
import os
import select
import struct
import time

from clusterprep.remote.agent.light import socket
from clusterprep.remote.agent.readers import names, paths, read_file

IP_MTU_DISCOVER, IP_PMTUDISC_DO, TCP_INFO = 10, 2, 11  # linux/in.h, linux/tcp.h
KEPT = 256  # connections that a listening port holds at most
SWIFT = 25  # short waits before the loop goes on


def listen(agent, request):
    """Operation listen: hold one free port of each span [first, last] until unlisten, so that others can dial it.

    What connects is kept open and not read: its kernel acknowledges, and that is all that a dialer looks at.
    """
    return {"ports": [_hold(agent, first, last) for first, last in request["spans"]]}


def _hold(agent, first, last):
    for port in range(first, last + 1):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", port))
            sock.listen(1024)
        except OSError as error:
            sock.close()
            trouble = error
            continue
        sock.setblocking(False)
        _holding.append((sock, []))
        if accept not in agent.polls:
            agent.polls.append(accept)
        return port
    in_use = trouble.errno == errno.EADDRINUSE
    owner = _owner(first) if first == last else None
    return {"no": "in_use" if in_use else "denied", "why": trouble.strerror, "owner": owner}


# Sockets that listen, each with the descriptors of what connected.
_holding = []  # type: list[tuple[object, list[int]]]


def accept(now):
    """Take what has connected, and let the oldest go where they become many."""
    for sock, taken in _holding:
        try:
            while True:
                taken.append(sock._accept()[0])  # noqa: SLF001 - light.socket has no other
                if len(taken) > KEPT:
                    os.close(taken.pop(0))
        except OSError:  # nobody is waiting
            continue


def unlisten(agent, request):
    """Operation unlisten: give all ports back."""
    if accept in agent.polls:
        agent.polls.remove(accept)
    while _holding:
        sock, taken = _holding.pop()
        sock.close()
        for fd in taken:
            os.close(fd)
    return {}


def _owner(port):
    inodes = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_file(path).splitlines()[1:] if os.path.exists(path) else []:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add("socket:[%s]" % fields[9])
    for pid in filter(str.isdigit, names("/proc")):
        if any(target in inodes for target in open_files(pid)):
            return {"pid": int(pid), "name": read_file("/proc/%s/comm" % pid).strip()}
    return None


def open_files(pid):
    """What the descriptors of a process lead to; nothing for one that is gone or somebody else's."""
    found = []
    for link in paths("/proc/%s/fd/*" % pid):
        try:
            found.append(os.readlink(link))
        except OSError:
            continue
    return found


def dial(agent, request):
    """Operation dial: {"targets": [[address, port], …], "limit": s, "sizes": [bytes, …]} → {"dials": [row, …]}.

    Over each connection one full-size packet is sent, which Linux never lets be fragmented. A row is [word, round trip
    in µs, size of that packet in bytes, whether it was acknowledged, the path's MTU as the kernel then knows it]. With
    `sizes` each target is dialled once for each of them, the packet being at most so large.
    """
    wanted = [
        [address, port, size]
        for address, port in request["targets"]
        for size in request.get("sizes") or [0]
    ]
    rows = [None] * len(wanted)
    left = {}
    end = time.monotonic() + request["limit"]
    for index, (address, port, size) in enumerate(wanted):
        try:
            left[index] = Call(address, port, size)
        except OSError as error:
            rows[index] = [_dial_word(error.errno or 0)]

    def poll(now):
        for index, call in list(left.items()):
            row = call.step(now > end)
            if row is not None:
                rows[index] = row
                call.sock.close()
                del left[index]
        if not left:
            agent.polls.remove(poll)
            agent.answer(request, dials=rows)

    agent.polls.append(poll)
    # Neighbours answer within a millisecond: waiting here for a moment saves turns of the loop.
    for _ in range(SWIFT):
        if left:
            select.select([], [call.sock for call in left.values() if not call.sent], [], 0.002)
            accept(0.0)
            if poll in agent.polls:
                poll(time.monotonic())


class Call(object):
    """One connection to a listener: connecting, one packet, its acknowledgement."""

    def __init__(self, address, port, size):
        self.target, self.size, self.sent, self.packet = (address, port), size, False, 0
        self.sock = socket.socket(
            socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM
        )
        self.sock.setblocking(False)
        if ":" not in address:
            self.sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        self.sock.connect_ex(self.target)

    def step(self, late):
        """The row of this call once it is known, else None."""
        if not self.sent:
            word = _dial_word(self.sock.connect_ex(self.target))
            if word != "ok":
                return [word or "timed_out"] if word or late else None
            self._send()
        info = self.sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 192)
        unacked, pmtu, rtt = struct.unpack_from("=I32xI4xI", info, 24)
        if unacked and not late:
            return None
        if len(info) >= 152:
            rtt = struct.unpack_from("=I", info, 148)[0] or rtt
        return ["ok", rtt, self.packet, not unacked, pmtu]

    def _send(self):
        info = self.sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 192)
        headers = 52 if bytearray(info)[5] & 1 else 40  # IPv4 and TCP, with time stamps or without
        full = struct.unpack_from("=I", info, 16)[0]
        count = max(1, min(full, self.size - headers) if self.size else full)
        self.packet = count + headers
        self.sent = True
        try:
            self.sock.send(b"\0" * count)
        except OSError:  # reset meanwhile: what was reached is an answer
            pass


def _dial_word(code):
    if code in (0, errno.EISCONN):
        return "ok"
    if code in (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK):
        return None
    return {
        errno.ECONNREFUSED: "refused",
        errno.ETIMEDOUT: "timed_out",
        errno.EHOSTUNREACH: "no_route",
        errno.ENETUNREACH: "no_route",
    }.get(code, "error %s" % errno.errorcode.get(code, code))


def install(agent):
    """Register the operations of this part."""
    agent.ops.update(listen=listen, unlisten=unlisten, dial=dial)
