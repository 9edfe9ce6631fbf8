"""The loop on a node: requests come in as JSON lines, answers go out with a nonce and a length.

Parts (look, act, ranks) register their operations through `install(agent)`. The loop never blocks:
what may hang runs in a child. When the channel closes, or the controller sends nothing for
`patience` seconds, everything that was started here is ended and the process exits.
"""

import _frozen_importlib_external as importer
import binascii
import marshal
import os
import select
import sys
import time
import zlib

from clusterprep.remote.agent.light import dumps, loads, native, readable, signal

HEARTBEAT = 1.0  # seconds; SSH and srun stay silent for half a minute and more when a node dies
PATIENCE = 30.0  # seconds without a request or a pulse of the controller
MAX_REQUEST = 32 << 20  # bytes in one request line; a longer one is not from our controller
MAGIC = getattr(importer, "MAGIC_NUMBER", b"")  # the version of compiled code that this Python runs
TICK = 0.2  # seconds; how often polls run while nothing else happens
CHUNK = 1 << 16  # bytes that are read or written at once
FLUSH = 2.0  # seconds to send at the end what is queued


class Agent(object):
    """One conversation with one controller."""

    def __init__(self, nonce, in_fd=0, out_fd=1, patience=PATIENCE):
        self.nonce = nonce.encode("ascii")
        self.ops = {
            "ping": ping,
            "load": load,
        }
        self.polls = []  # called as poll(now) at least every TICK seconds while any is registered
        self.endings = []  # called once, in reverse order, before the process exits
        self.patience = patience
        self.define = None  # makes a module of source text or of compiled code
        self._in = in_fd
        self._out = out_fd
        self._incoming = b""
        self._outgoing = b""
        self._watched = {}
        self._received_at = self._sent_at = time.monotonic()
        self._open = True

    def emit(self, body):
        """Queue one frame for the controller: newline, nonce, length, JSON."""
        payload = dumps(readable(body)).encode("ascii")
        self._outgoing += b"\n%s %d %s\n" % (self.nonce, len(payload), payload)
        self._sent_at = time.monotonic()

    def answer(self, request, **body):
        """Answer a request, at once or later."""
        body["id"] = request["id"]
        self.emit(body)

    def watch(self, fd, callback):
        """Call callback(bytes) whenever fd has data, and callback(b"") once at its end."""
        os.set_blocking(fd, False)
        self._watched[fd] = callback

    def unwatch(self, fd):
        """Call the callback of fd no more."""
        self._watched.pop(fd, None)

    def backlog(self):
        """Return the number of bytes that wait to be sent."""
        return len(self._outgoing)

    def leave(self):
        """End the loop after what is queued has been sent."""
        self._open = False

    def run(self):
        """Serve until the channel closes or the controller has been silent for too long."""
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        try:
            while self._open and not self._out_of_patience():
                self._turn()
            self._flush()
        finally:
            for ending in reversed(self.endings):
                ending()

    def _out_of_patience(self):
        return time.monotonic() - self._received_at > self.patience

    def _turn(self):
        wait = TICK if self.polls else HEARTBEAT / 2
        readers = [self._in] + list(self._watched)
        writers = [self._out] if self._outgoing else []
        readable, _, _ = select.select(readers, writers, [], wait)
        for fd in readable:
            self._read(fd)
        now = time.monotonic()
        for poll in list(self.polls):
            poll(now)
        if now - self._sent_at > HEARTBEAT:
            self.emit({"beat": time.time()})
        self._send()

    def _read(self, fd):
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if fd == self._in:
            self._receive(data)
        elif fd in self._watched:
            callback = self._watched[fd]
            if not data:
                self.unwatch(fd)
            callback(data)

    def _receive(self, data):
        """Take bytes of the controller, and serve the requests that they complete."""
        if not data or len(self._incoming) > MAX_REQUEST:
            self._open = False
            return
        self._received_at = time.monotonic()
        lines = (self._incoming + data).split(b"\n")
        self._incoming = lines.pop()
        for line in lines:
            if line.strip():
                request = native(loads(line.decode("ascii")))
                self._serve(request)

    def _serve(self, request):
        """Do one request, and send its answer unless the operation answers later."""
        op = request.get("op")
        if op == "pulse":
            return
        try:
            if op not in self.ops:
                raise LookupError("unknown operation %r" % (op,))
            operation = self.ops[op]
            body = operation(self, request)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the conversation
            body = {
                "no": "agent_error",
                "why": "%s: %s" % (type(error).__name__, error),
            }
        if body is not None:
            self.answer(request, **body)
            self._send()

    def _send(self):
        """Write what waits, as far as it is taken now."""
        while self._outgoing:
            try:
                sent = os.write(self._out, self._outgoing[:CHUNK])
            except BlockingIOError:
                return
            except OSError:
                self._open = False
                self._outgoing = b""
                return
            self._outgoing = self._outgoing[sent:]

    def _flush(self):
        end = time.monotonic() + FLUSH
        while self._outgoing and time.monotonic() < end:
            select.select([], [self._out], [], 0.2)
            self._send()


def ping(agent, request):
    """Operation ping: two of the four times of a clock comparison, in seconds since the epoch."""
    received = time.time()
    return {
        "seen": received,
        "sent": time.time(),
    }


def load(agent, request):
    """Operation load: take further parts of the agent, which are sent when they are first needed.

    {"modules": [[name, source], …]}, or {"code": …} with the same compiled: marshal, zlib, base64.
    """
    packed = request.get("code")
    if packed:
        data = zlib.decompress(binascii.a2b_base64(packed))
        modules = marshal.loads(data)  # noqa: S302
    else:
        modules = readable(request["modules"])  # programs, and no names of files
    for name, source in modules:
        module = agent.define(name, source)
        introduce(agent, module)
    return {}


def introduce(agent, module):
    """Let a part register its operations; a module that only serves others has none."""
    if hasattr(module, "install"):
        module.install(agent)


def _stop(signum, frame):
    raise SystemExit(128 + signum)


def main(nonce, define, modules, patience=PATIENCE):
    """Say hello and serve. The call of this function is the last line of what is sent.

    `define(name, source)` makes a module of source text or of compiled code; `modules` are those
    that it has made already.
    """
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, _stop)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    agent = Agent(nonce, patience=patience)
    agent.define = define
    for module in modules:
        introduce(agent, module)
    hello = {
        "hello": 1,
        "uid": os.geteuid(),
    }
    hello["python"] = sys.version.split()[0]
    hello["pid"] = os.getpid()
    hello["magic"] = binascii.hexlify(MAGIC).decode("ascii")
    agent.emit(hello)
    agent.run()
    # Nothing remains to be cleaned up, and the interpreter's own end would cost a millisecond.
    os._exit(0)
