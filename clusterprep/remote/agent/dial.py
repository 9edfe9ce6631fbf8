"""The part of the agent that tries ports: it listens where a job would, and connects to others.

One call tries all targets at once, without blocking the agent's loop.
"""

import errno
import fcntl
import os
import select
import struct
import time

from clusterprep.remote.agent.light import socket
from clusterprep.remote.agent.neighbour_table import read_table
from clusterprep.remote.agent.readers import matching_paths, names_in, read_file

IP_MTU_DISCOVER, IP_PMTUDISC_DO, TCP_INFO = 10, 2, 11  # linux/in.h, linux/tcp.h
INFO_SIZE = 192  # bytes of struct tcp_info that are asked for
SIOCOUTQ = 0x5411  # linux/sockios.h: bytes of a socket that its peer has not acknowledged
TCP_CLOSE = 7  # net/tcp_states.h: the connection is gone, as after a reset
LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp
MOST_HELD = 256  # connections that a listening port keeps open at most
SWIFT = 25  # short waits before the loop goes on
IP_RECVERR, IPV6_RECVERR, MSG_ERRQUEUE = 11, 25, 0x2000  # linux/in.h, in6.h, socket.h
ICMP_ORIGINS = (2, 3)  # SO_EE_ORIGIN_ICMP and _ICMP6 of linux/errqueue.h
# Types and codes of ICMP and ICMPv6 that only a filter sends: prohibited, and failed its policy.
PROHIBITED = ((3, 9), (3, 10), (3, 13), (1, 1), (1, 5), (1, 6))
OUTCOMES = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timed_out",
    errno.EHOSTUNREACH: "no_route",
    errno.ENETUNREACH: "no_route",
}


def listen(agent, request):
    """Operation listen: hold one free port of each span [first, last] until unlisten.

    With `ipv6` the ports are free in both families, as those of torch's store have to be.
    A connection is kept open and never read: its kernel acknowledges, and the dialer looks at
    nothing else.
    """
    ports = []
    for first, last in request["spans"]:
        ports.append(_hold(agent, first, last, request.get("ipv6")))
    return {"ports": ports}


def _hold(agent, first, last, is_ipv6):
    """Listen on the first free port. Returns its number, or why all ports failed."""
    for port in range(first, last + 1):
        sock = any_address(is_ipv6)
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
    reason = "in_use" if trouble.errno == errno.EADDRINUSE else "denied"
    owner = _owner(first) if first == last else None
    return {
        "no": reason,
        "why": trouble.strerror,
        "owner": owner,
    }


def any_address(is_ipv6):
    """Return a socket of TCP for a listener: of both families, or of IPv4 alone."""
    if not is_ipv6:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return sock


# Sockets that listen, each with the descriptors of its connections.
_holding = []  # type: list[tuple[object, list[int]]]


def accept(now):
    """Accept all waiting connections, and close the oldest where they become many.

    The agent's loop calls it in every turn, with a time that is not used.
    """
    for sock, connections in _holding:
        try:
            while True:
                fd, _ = sock._accept()  # noqa: SLF001 - light.socket has no other
                connections.append(fd)
                if len(connections) > MOST_HELD:
                    os.close(connections.pop(0))
        except OSError:  # no connection is waiting
            continue


def unlisten(agent, request):
    """Operation unlisten: give all ports back."""
    if accept in agent.polls:
        agent.polls.remove(accept)
    while _holding:
        sock, connections = _holding.pop()
        sock.close()
        for fd in connections:
            os.close(fd)
    return {}


def _owner(port):
    """Return {"pid", "name"} of the process that listens on a port; None if it cannot be known."""
    links = _listening_links("/proc/net/tcp", port) | _listening_links("/proc/net/tcp6", port)
    for pid in names_in("/proc"):
        if pid.isdigit() and not links.isdisjoint(open_files(pid)):
            name = read_file("/proc/%s/comm" % pid).strip()
            return {
                "pid": int(pid),
                "name": name,
            }
    return None


def _listening_links(path, port):
    """Return the links in /proc/PID/fd of the sockets that listen on a port."""
    links = set()
    if not os.path.exists(path):
        return links
    for line in read_file(path).splitlines()[1:]:
        fields = line.split()
        _, local_port = fields[1].rsplit(":", 1)
        if fields[3] == LISTENING and int(local_port, 16) == port:
            links.add("socket:[%s]" % fields[9])
    return links


def open_files(pid):
    """Return what the descriptors of a process link to.

    Empty for a process that has ended or that belongs to another user.
    """
    targets = []
    for link in matching_paths("/proc/%s/fd/*" % pid):
        try:
            targets.append(os.readlink(link))
        except OSError:
            continue
    return targets


def dial(agent, request):
    """Operation dial: connect to all targets. The answer is {"dials": [row, …], "neighbours": …}.

    {"targets": [[address, port], …], "limit": s, "sizes": [bytes, …]}. Over each connection one
    full-size packet is sent, which Linux never lets be fragmented. A row is [outcome, round trip
    in µs, size of that packet in bytes or 0 if none was measured, whether it was acknowledged, the
    path's MTU as the kernel then knows it]. With `sizes` each target is dialled once for each of
    them, the packet being at most so large; 0 stands for a full-size one. With `silent` nothing is
    sent over a connection, which is closed at once, and a refusal by a filter, which is no answer
    of the target's TCP, is "rejected" where the kernel tells it. `neighbours` is the
    kernel's table of neighbours of their family afterwards, in which `refused` counts since the
    request came; None where the kernel does not say.
    """
    Dialing(agent, request).begin()


def _family_of(targets):
    """Return the family of the targets, which are all of one: that of the job."""
    is_ipv6 = any(":" in address for address, _ in targets)
    return socket.AF_INET6 if is_ipv6 else socket.AF_INET


class Dialing(object):
    """All calls of one request, until each of them has its row."""

    def __init__(self, agent, request):
        self.agent, self.request = agent, request
        self.end = time.monotonic() + request["limit"]
        self.family = _family_of(request["targets"])
        self.table = read_table(self.family)
        self.rows = []
        self.calls = {}  # by index of their rows
        sizes = request.get("sizes") or [0]
        for address, port in request["targets"]:
            for size in sizes:
                self._call(address, port, size)

    def _call(self, address, port, size):
        """Begin to connect, or note at once why that is impossible."""
        index = len(self.rows)
        self.rows.append(None)
        try:
            self.calls[index] = Call(address, port, size, self.request.get("silent"))
        except OSError as error:
            self.rows[index] = [_outcome(error.errno or 0)]

    def begin(self):
        """Have the agent's loop look at all connections until each has an outcome."""
        self.agent.polls.append(self.poll)
        # Neighbours answer within a millisecond: waiting here for a moment saves turns of the loop.
        for _ in range(SWIFT):
            if not self.calls:
                break
            connecting = [call.sock for call in self.calls.values() if not call.sent]
            select.select([], connecting, [], 0.002)
            accept(0.0)
            self.poll(time.monotonic())

    def poll(self, now):
        """Note the outcomes that have come, and answer the request with the last of them."""
        for index, call in list(self.calls.items()):
            row = call.step(now > self.end)
            if row is not None:
                self.rows[index] = row
                call.sock.close()
                del self.calls[index]
        if not self.calls:
            self.agent.polls.remove(self.poll)
            self.agent.answer(self.request, dials=self.rows, neighbours=self._table_now())

    def _table_now(self):
        """Return the table of neighbours, with the number of refusals since the request came."""
        now = read_table(self.family)
        if now is None or self.table is None:
            return None
        now["refused"] -= self.table["refused"]
        return now


class Call(object):
    """One connection to a listener: connecting, one packet, its acknowledgement."""

    def __init__(self, address, port, size, silent):
        self.target, self.size, self.sent, self.packet = (address, port), size, False, 0
        self.silent = silent
        self.is_ipv6 = ":" in address
        family = socket.AF_INET6 if self.is_ipv6 else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        if not self.is_ipv6:  # TCP over IPv6 is never fragmented
            self.sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        if silent and self.is_ipv6:
            self.sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
        elif silent:
            self.sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        self.sock.connect_ex(self.target)

    def step(self, late):
        """Return the row of this call once it is known, else None."""
        if not self.sent:
            outcome = _outcome(self.sock.connect_ex(self.target))
            if outcome is None:
                return ["timed_out"] if late else None
            if outcome != "ok":
                return ["rejected" if self._is_rejected(outcome) else outcome]
            if self.silent:
                return ["ok", 0, 0, False, 0]
            self._send()
        info = self._tcp_info()
        waiting = self._unacknowledged()
        is_closed = bytearray(info)[0] == TCP_CLOSE
        if waiting and not is_closed and not late:
            return None
        if waiting and is_closed:
            # The peer closed it. Whether the packet got there cannot be told.
            self.packet = 0
        return self._measured(info, is_carried=self.packet > 0 and not waiting)

    def _measured(self, info, is_carried):
        """Return the row of a connection, by the kernel's tcp_info of it."""
        pmtu, rtt = struct.unpack_from("=I4xI", info, 60)
        if len(info) >= 152:  # tcpi_min_rtt, since Linux 4.6
            (least_rtt,) = struct.unpack_from("=I", info, 148)
            rtt = least_rtt or rtt
        return ["ok", rtt, self.packet, is_carried, pmtu]

    def _is_rejected(self, outcome):
        """Return whether a filter has answered in the place of the target, as far as it is known.

        The target's own TCP refuses with a reset. That a refusal came by ICMP is known where the
        kernel queues the message for a connection that is being made: Linux does so since 6.2.
        """
        if not self.silent:
            return False
        try:
            _, messages, _, _ = self.sock.recvmsg(512, 512, MSG_ERRQUEUE)
        except OSError:  # nothing is queued
            return False
        for _, _, data in messages:
            if len(data) < 8:
                continue
            _, origin, kind, code = struct.unpack_from("=IBBB", data)
            if origin in ICMP_ORIGINS:
                return outcome == "refused" or (kind, code) in PROHIBITED
        return False

    def _send(self):
        info = self._tcp_info()
        has_timestamps = bytearray(info)[5] & 1
        headers = 60 if self.is_ipv6 else 40  # with those of TCP
        if has_timestamps:
            headers += 12
        (count,) = struct.unpack_from("=I", info, 16)  # tcpi_snd_mss
        if self.size:
            count = min(count, self.size - headers)
        count = max(1, count)
        self.sent = True
        try:
            queued = self.sock.send(b"\0" * count)
        except OSError:  # reset meanwhile: that it was reached is an answer
            return
        self.packet = queued + headers

    def _unacknowledged(self):
        """Return how many bytes the peer has not acknowledged, sent or not.

        tcpi_unacked counts only what left this node. A packet that its own interface drops, as a
        veth does when the port at its other end is smaller, is not among that.
        """
        answer = fcntl.ioctl(self.sock.fileno(), SIOCOUTQ, b"\0" * 4)
        (count,) = struct.unpack("=i", answer)
        return count

    def _tcp_info(self):
        return self.sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, INFO_SIZE)


def _outcome(code):
    """Return what an error number of connect says; None while it goes on."""
    if code in (0, errno.EISCONN):
        return "ok"
    if code in (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK):
        return None
    unusual = "error %s" % errno.errorcode.get(code, code)
    return OUTCOMES.get(code, unusual)


def install(agent):
    """Register the operations of this part."""
    agent.ops.update(listen=listen, unlisten=unlisten, dial=dial)
