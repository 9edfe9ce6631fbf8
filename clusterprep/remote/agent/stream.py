"""The part of the agent that measures the network path to another node: latency and rate.

One node serves in a child of its own, which ends with the agent; the other dials it as a read of
the kind `stream`. On one connection there are: a token, pings that come back, then frames of data,
first from the dialer and then to it.

There are two measurements of the rate. The receiver measures the time, which is all that a kernel
before 4.10 offers. The sender's kernel counts how long data was under way and for how much of that
the receiver had no room for it: on a busy machine, where processes wait for their turn, this
separates the network's share from theirs. The network was at least as fast as each of them, so the
greater one is taken.
"""

import errno
import os
import select
import struct
import time

from clusterprep.remote.agent.light import signal, socket
from clusterprep.remote.agent.look import kill_group
from clusterprep.remote.agent.readers import NoAnswer, offer

TCP_INFO = 11  # linux/tcp.h
TCP_INFO_BYTES = 192  # room for all fields that are used
# Offsets in struct tcp_info: tcpi_total_retrans, tcpi_busy_time with tcpi_rwnd_limited behind it.
TOTAL_RETRANS, BUSY_TIME = 100, 168
CONNECT_LIMIT = 3.0  # seconds; a dropped SYN is repeated after one and three
PING = 64  # bytes
FASTEST = 1e13  # bytes per second
PINGS_LIMIT = 3.0  # seconds that all pings together may take
FRAME = 1 << 16  # bytes, the first of which says whether more follow
JIFFY = 0.01  # seconds; the kernel counts such times in ticks of at most so long
DATA_LIMIT = 1.0  # seconds that data flows in one direction
STILL = 4.0  # seconds without a byte after which a connection is given up
MOST_WAITING = 64  # connections that have not said the token; the oldest makes room for a new one
MOST_SERVED = 64  # processes that serve at once; each dialer needs one
LOOK = 1.0  # seconds between looks at connections that wait, and at processes that may have ended
BUFFER = 1 << 19  # bytes that the kernel may hold for a sender: bounds the wait for a slow path


class Server(object):
    """The child that serves other nodes, and how it is ended."""

    pid = None
    leash = None  # the child ends when this descriptor is closed

    def start(self, agent, request):
        """Operation serve: {"token": 32 characters, "ipv6": bool} → {"port": number}."""
        self.end()
        family = socket.AF_INET6 if request.get("ipv6") else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.bind(("", 0))
        listener.listen(64)
        watched, self.leash = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.leash)
                token = request["token"].encode("ascii")
                _detach()
                serve_all(listener, watched, token)
            finally:
                os._exit(0)
        os.close(watched)
        port = listener.getsockname()[1]
        listener.close()
        if self.end not in agent.endings:
            agent.endings.append(self.end)
        return {"port": port}

    def stop(self, agent, request):
        """Operation unserve."""
        self.end()
        return {}

    def end(self):
        """End the child, if there is one."""
        if self.pid is not None:
            os.close(self.leash)
            kill_group(self.pid)
            self.pid = None


def _detach():
    """Leave the agent's session, signal handlers and streams."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    for fd in (0, 1, 2):
        os.dup2(os.open("/dev/null", os.O_RDWR), fd)


def serve_all(listener, watched, token):
    """Serve each peer in a process of its own until the agent closes its end of `watched`."""
    entrance = Entrance(token)
    serving = set()  # pids
    while True:
        waits = [listener, watched] + entrance.sockets()
        readable, _, _ = select.select(waits, [], [], LOOK if entrance.busy() or serving else None)
        if watched in readable:
            break
        reap(serving)
        entrance.expire()
        for sock in readable:
            if sock is listener:
                fd, _ = listener._accept()  # noqa: SLF001 - light.socket has no other
                entrance.admit(fd, listener.family)
            elif entrance.hear(sock):
                if len(serving) < MOST_SERVED:
                    serving.add(serve_one(sock, entrance))
                sock.close()
    os.kill(0, signal.SIGKILL)  # the group: this process, and those that still serve


def reap(pids):
    """Take the processes that have ended out of a set."""
    for pid in list(pids):
        if os.waitpid(pid, os.WNOHANG)[0]:
            pids.discard(pid)


def serve_one(sock, entrance):
    """Serve a peer in a child. Returns its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            entrance.close()  # or they would stay open for as long as this child runs
            signal.alarm(int(PINGS_LIMIT + 2 * (DATA_LIMIT + STILL)))
            Connection(sock).serve()
        except OSError:
            pass
        finally:
            os._exit(0)
    return pid


class Entrance(object):
    """Connections that have not said the whole token yet. They cost a descriptor and no process."""

    def __init__(self, token):
        self._token = token
        self._waiting = []  # [socket, what it has said, when it is given up], the oldest first

    def sockets(self):
        """Return the sockets of these connections."""
        return [entry[0] for entry in self._waiting]

    def busy(self):
        """Return whether there are any."""
        return bool(self._waiting)

    def admit(self, fd, family):
        """Take a new connection. A peer says the token at once, so that the oldest one is none."""
        sock = socket.socket(family, socket.SOCK_STREAM, 0, fd)
        sock.setblocking(False)
        self._waiting.append([sock, b"", time.monotonic() + STILL])
        if len(self._waiting) > MOST_WAITING:
            self._waiting.pop(0)[0].close()

    def expire(self):
        """Close the connections whose time is over."""
        now = time.monotonic()
        while self._waiting and self._waiting[0][2] < now:
            self._waiting.pop(0)[0].close()

    def hear(self, sock):
        """Read more of the token; return whether it is complete and right.

        A connection that is of no use is closed.
        """
        entries = [entry for entry in self._waiting if entry[0] is sock]
        if not entries:
            return False  # closed since
        entry = entries[0]
        try:
            data = sock.recv(len(self._token) - len(entry[1]))
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        entry[1] += data
        if data and len(entry[1]) < len(self._token):
            return False
        self._waiting.remove(entry)
        if entry[1] == self._token:
            return True
        sock.close()
        return False

    def close(self):
        """Close all connections."""
        for sock in self.sockets():
            sock.close()


class Connection(object):
    """One side of a connection."""

    def __init__(self, sock):
        self.sock = sock
        sock.settimeout(STILL)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)

    def take(self, count):
        """Return the next `count` bytes."""
        data = b""
        while len(data) < count:
            piece = self.sock.recv(count - len(data))
            if not piece:
                raise OSError(0, "the other end closed the connection")
            data += piece
        return data

    def serve(self):
        """Answer pings, then receive and send data, for a peer that has said the token."""
        while True:
            ping = self.take(PING)
            if ping[:1] == b"d":
                break
            self.sock.sendall(ping)
        resent = self.resent()
        rate = self.receive()
        self.sock.sendall(b"k" + struct.pack("!dI", rate, resent))
        (size,) = struct.unpack("!Q", ping[1:9])
        rate = self.send(size)
        self.sock.sendall(struct.pack("!d", rate))

    def info(self):
        """Return struct tcp_info of linux/tcp.h, as far as this kernel has it."""
        return self.sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, TCP_INFO_BYTES)

    def resent(self):
        """Return the number of segments that this side's kernel has sent again."""
        return struct.unpack_from("=I", self.info(), TOTAL_RETRANS)[0]

    def under_way(self):
        """Return the seconds that data was under way and the receiver had room.

        None if not counted.
        """
        info = self.info()
        if len(info) < BUSY_TIME + 16:
            return None
        busy, full = struct.unpack_from("=QQ", info, BUSY_TIME)
        return (busy - full) / 1e6

    def receive(self):
        """Take frames until the last one; return their bytes per second.

        The time is from the end of the first frame to the end of the last.
        """
        more = self.take(FRAME)[:1]
        began = time.monotonic()
        count = 0
        while more == b"+":
            more = self.take(FRAME)[:1]
            count += FRAME
        seconds = time.monotonic() - began
        return count / max(seconds, 1e-9)

    def send(self, size):
        """Send two frames or more: `size` bytes in all, or what DATA_LIMIT allows.

        Returns bytes per second by this side's kernel, 0 if it does not count. The receiver
        confirms with one byte that all has come.
        """
        padding = b"\0" * (FRAME - 1)
        more = b"+" + padding
        end = time.monotonic() + DATA_LIMIT
        before = self.under_way()
        count = FRAME
        for _ in range(max(1, size // FRAME - 1)):
            self.sock.sendall(more)
            count += FRAME
            if time.monotonic() > end:
                break
        self.sock.sendall(b"." + padding)
        self.take(1)
        after = self.under_way()
        if before is None or after is None:
            return 0.0
        seconds = max(0.0, after - before) + JIFFY
        return count / seconds

    def pings(self, count):
        """Return round trips in seconds, as many of `count` as PINGS_LIMIT allows."""
        trips = []
        end = time.monotonic() + PINGS_LIMIT
        while len(trips) < count and time.monotonic() < end:
            began = time.monotonic()
            self.sock.sendall(b"p" * PING)
            self.take(PING)
            trips.append(time.monotonic() - began)
        return trips


# What is going on, by the number of values in the answer so far: none, connect, four of pings, out.
DOING = ("connecting", "small messages", "", "", "", "data to it", "data from it")


def possible(rate):
    """Return the rate that the peer reports, or 0.0 for a value that no network reaches."""
    return rate if 0.0 <= rate < FASTEST else 0.0


def read_stream(address, port, token, pings, size):
    """Measure the path to a node that serves.

    Returns {"connect", "rtt" (median), "worst": s, "pings", "resent": segments of both sides,
    "out", "back": bytes/s}.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.settimeout(CONNECT_LIMIT)
    answer = {}
    began = time.monotonic()
    try:
        sock.connect((address, port))
        answer["connect"] = time.monotonic() - began
        _measure(
            Connection(sock),
            token,
            pings,
            size,
            answer,
        )
    except OSError as error:
        is_late = isinstance(error, socket.timeout) or error.errno == errno.ETIMEDOUT
        reason = "timed_out" if is_late else "refused"
        doing = DOING[min(len(answer), len(DOING) - 1)]
        raise NoAnswer(reason, "%s: %s" % (doing, error.strerror or error))
    finally:
        sock.close()
    return answer


def _measure(connection, token, pings, size, answer):
    """Add the measurements of the dialer to the answer."""
    sock = connection.sock
    sock.sendall(token.encode("ascii"))
    trips = sorted(connection.pings(pings))
    resent = connection.resent()
    answer["rtt"] = trips[len(trips) // 2]
    answer["worst"] = trips[-1]
    answer["pings"] = len(trips)
    answer["resent"] = resent
    sock.sendall(b"d" + struct.pack("!Q", size) + b"\0" * (PING - 9))
    own = connection.send(size)
    reported, resent_by_peer = struct.unpack("!dI", connection.take(12))
    answer["resent"] += resent_by_peer
    answer["out"] = max(own, possible(reported))
    own = connection.receive()
    sock.sendall(b"k")
    (reported,) = struct.unpack("!d", connection.take(8))
    answer["back"] = max(own, possible(reported))


def install(agent):
    """Register the operations of this part, and its kind of read, in a child of its own."""
    server = Server()
    agent.ops["serve"] = server.start
    agent.ops["unserve"] = server.stop
    offer({"stream": read_stream})
