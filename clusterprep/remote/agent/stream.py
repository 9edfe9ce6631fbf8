"""The part of the agent that measures the way to another node: small round trips, and a few megabytes each way.

One node serves in a child of its own, which ends with the agent; the other dials it as a read of the kind `stream`.
On one connection: a token, pings that come back, then frames of data, first from the dialer and then to it. How fast
they went is told twice. The receiver takes the time, which is all that a kernel before 4.10 can tell. The sender's
kernel knows how long data was under way and for how much of that the receiver had no room for it: on a busy machine,
where processes wait for their turn, this tells the network's share from theirs. Both are what the network did at
least, so the greater one holds.
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
CONNECT_LIMIT = 3.0  # seconds; a dropped SYN is repeated after one and three
PING = 64  # bytes
FASTEST = 1e13  # bytes per second
PINGS_LIMIT = 3.0  # seconds that all pings together may take
FRAME = 1 << 16  # bytes, the first of which says whether more follow
JIFFY = 0.01  # seconds; the kernel counts such times in ticks of at most so long
DATA_LIMIT = 1.0  # seconds that data flows in one direction
STILL = 4.0  # seconds without a byte after which a connection is given up
BUFFER = 1 << 19  # bytes that the kernel may hold for a sender: a slow way is not waited for long


class Server(object):
    """The child that serves, and how it is ended."""

    pid = None
    leash = None

    def start(self, agent, request):
        """Operation serve: {"token": 32 characters} → {"port": number}."""
        self.end()
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("", 0))
        listener.listen(64)
        watched, self.leash = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
                    signal.signal(
                        number, signal.SIG_IGN if number == signal.SIGCHLD else signal.SIG_DFL
                    )
                os.close(self.leash)
                for fd in (0, 1, 2):
                    os.dup2(os.open("/dev/null", os.O_RDWR), fd)
                serve_all(listener, watched, request["token"].encode("ascii"))
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
        if self.pid is not None:
            os.close(self.leash)
            kill_group(self.pid)
            self.pid = None


def serve_all(listener, watched, token):
    """Serve each connection in a process of its own, until the agent's end of `watched` is closed."""
    while not select.select([listener, watched], [], [], None)[0].count(watched):
        fd = listener._accept()[0]  # noqa: SLF001 - light.socket has no other
        if os.fork() == 0:
            try:
                signal.alarm(int(CONNECT_LIMIT + PINGS_LIMIT + 2 * (DATA_LIMIT + STILL)))
                Talk(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd)).serve(token)
            except OSError:
                pass
            finally:
                os._exit(0)
        os.close(fd)
    os.kill(0, signal.SIGKILL)  # the group: this one, and those that still serve


class Talk(object):
    """One side of a connection."""

    def __init__(self, sock):
        self.sock = sock
        sock.settimeout(STILL)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)

    def take(self, count):
        data = b""
        while len(data) < count:
            piece = self.sock.recv(count - len(data))
            if not piece:
                raise OSError(0, "the other end closed the connection")
            data += piece
        return data

    def serve(self, token):
        if self.take(len(token)) != token:
            return
        while True:
            ping = self.take(PING)
            if ping[:1] == b"d":
                break
            self.sock.sendall(ping)
        resent = self.resent()
        rate = self.receive()
        self.sock.sendall(b"k" + struct.pack("!dI", rate, resent))
        self.sock.sendall(struct.pack("!d", self.send(struct.unpack("!Q", ping[1:9])[0])))

    def info(self):
        """struct tcp_info of linux/tcp.h, as far as this kernel has it."""
        return self.sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 192)

    def resent(self):
        """Segments that this side's kernel has sent once more (tcpi_total_retrans)."""
        return struct.unpack_from("=I", self.info(), 100)[0]

    def under_way(self):
        """Seconds that data was under way and the receiver had room (tcpi_busy_time, tcpi_rwnd_limited), or None."""
        info = self.info()
        if len(info) < 184:
            return None
        busy, full = struct.unpack_from("=QQ", info, 168)
        return (busy - full) / 1e6

    def receive(self):
        """Bytes per second of the frames that come, counted from the end of the first to the end of the last."""
        more = self.take(FRAME)[:1]
        began, count = time.monotonic(), 0
        while more == b"+":
            more = self.take(FRAME)[:1]
            count += FRAME
        return count / max(time.monotonic() - began, 1e-9)

    def send(self, size):
        """Frames of `size` bytes in all, fewer where they take longer than DATA_LIMIT; two at least.

        The answer is bytes per second by this side's kernel, 0 where it does not tell. The receiver says with one byte
        that all has come.
        """
        more, last = b"+" + b"\0" * (FRAME - 1), b"." + b"\0" * (FRAME - 1)
        end, before, count = time.monotonic() + DATA_LIMIT, self.under_way(), FRAME
        for _ in range(max(1, size // FRAME - 1)):
            self.sock.sendall(more)
            count += FRAME
            if time.monotonic() > end:
                break
        self.sock.sendall(last)
        self.take(1)
        after = self.under_way()
        return (
            0.0 if before is None or after is None else count / (max(0.0, after - before) + JIFFY)
        )

    def pings(self, count):
        """Round trips in seconds, as many as PINGS_LIMIT allows."""
        found, end = [], time.monotonic() + PINGS_LIMIT
        while len(found) < count and time.monotonic() < end:
            began = time.monotonic()
            self.sock.sendall(b"p" * PING)
            self.take(PING)
            found.append(time.monotonic() - began)
        return found


# By the number of answers that there are: none, connect, those of pings, out.
DOING = ("connecting", "small messages", "", "", "", "data to it", "data from it")


def possible(rate):
    """What the other side says of its rate, and 0.0 where no network is so fast: it may not be one of us."""
    return rate if 0.0 <= rate < FASTEST else 0.0


def read_stream(address, port, token, pings, size):
    """{"connect", "rtt" (median), "worst": s, "pings", "resent": numbers of both sides, "out", "back": bytes/s}."""
    sock, found = socket.socket(socket.AF_INET, socket.SOCK_STREAM), {}
    sock.settimeout(CONNECT_LIMIT)
    began = time.monotonic()
    try:
        sock.connect((address, port))
        found["connect"] = time.monotonic() - began
        talk = Talk(sock)
        sock.sendall(token.encode("ascii"))
        trips = sorted(talk.pings(pings))
        found.update(
            rtt=trips[len(trips) // 2], worst=trips[-1], pings=len(trips), resent=talk.resent()
        )
        sock.sendall(b"d" + struct.pack("!Q", size) + b"\0" * (PING - 9))
        own = talk.send(size)
        theirs, lost = struct.unpack("!dI", talk.take(12))
        found["resent"] += lost
        found["out"] = max(own, possible(theirs))
        own = talk.receive()
        sock.sendall(b"k")
        found["back"] = max(own, possible(struct.unpack("!d", talk.take(8))[0]))
    except OSError as error:
        late = isinstance(error, socket.timeout) or error.errno == errno.ETIMEDOUT
        doing = DOING[min(len(found), len(DOING) - 1)]
        raise NoAnswer(
            "timed_out" if late else "refused", "%s: %s" % (doing, error.strerror or error)
        )
    finally:
        sock.close()
    return found


def install(agent):
    """Register the operations of this part, and its kind of read, in a child of its own."""
    server = Server()
    agent.ops.update(serve=server.start, unserve=server.stop)
    offer({"stream": read_stream})
