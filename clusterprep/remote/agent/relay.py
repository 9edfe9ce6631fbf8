"""One task of a Slurm step: starts shell lines on its node and carries their bytes through srun.

What comes in on stdin goes to all tasks of the step alike: envelopes `TASKS CHANNEL OP LENGTH`, a newline and that many
bytes, of which this task heeds those that name it. What goes out is lines of at most 1000 bytes, as srun keeps no
longer ones together: `NONCE NUMBER TEXT,` and `NONCE NUMBER TEXT;` for the last line of a record, where the text is
base64 of `KIND CHANNEL ` and bytes.

No child inherits a stream of the task's, or the task would never end. When stdin ends, or nothing comes for
`patience` seconds, every child is asked to end by the end of its own stdin, and ended whole if it does not.
"""

import binascii
import os
import pwd
import select
import sys
import time
import zlib

from clusterprep.remote.agent.light import signal

PATIENCE = 30.0  # seconds without a sign of the controller, which comes every 5 s
WIDTH = 900  # characters of a record in one line
WINDOW = (
    2 << 20
)  # bytes of a child's output that may be under way; the controller grants more as it takes them
BACKLOG = 1 << 18  # bytes that wait for srun; no child is read meanwhile
MAX_HEAD = 1 << 17  # bytes of an envelope's first line
MAX_INPUT = 40 << 20  # bytes that a child may leave unread before it counts as stuck
PIECE = 1 << 16  # bytes of one read
GRACE = 2.0  # seconds for a child to end once its stdin is closed
TICK = 0.1  # seconds between looks at a child that is to end


class RelayedChild(object):
    """One shell line that runs, in a session of its own."""

    def __init__(self, channel, command, env):
        self.channel = channel
        self.waiting = b""  # for its stdin
        self.ending = False  # its stdin is to be closed once that has gone
        self.kill_at = None  # moment at which it is ended
        self.credit = WINDOW
        near, far = zip(*(os.pipe() if n else os.pipe()[::-1] for n in range(3)))
        self.stdin, self.out, self.err = near
        self.pid = os.fork()
        if self.pid == 0:
            become(far, command, env)
        for fd in far:
            os.close(fd)
        for fd in near:
            os.set_blocking(fd, False)

    def close_stdin(self):
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None
        self.waiting = b""

    def write(self):
        """Give it what it takes."""
        try:
            self.waiting = self.waiting[os.write(self.stdin, self.waiting[:PIECE]) :]
        except BlockingIOError:
            return
        except OSError:
            self.close_stdin()
        if self.ending and not self.waiting:
            self.close_stdin()

    def read(self, fd):
        """What it printed; b"" at the end of the stream, None where there is nothing yet."""
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.close(fd)
        return data

    def close(self, fd):
        os.close(fd)
        if fd == self.out:
            self.out = None
        else:
            self.err = None

    def kill(self):
        """End its whole session; whether any of it is left."""
        left = [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if session(pid) == self.pid
        ]
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        return bool(left)


def become(streams, command, env):
    """In the child: the shell, with streams of its own."""
    try:
        os.setsid()
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        for number in (
            signal.SIGPIPE,
            signal.SIGXFSZ,
            signal.SIGTERM,
            signal.SIGHUP,
            signal.SIGINT,
        ):
            signal.signal(number, signal.SIG_DFL)
        os.umask(0o022)
        os.execve("/bin/sh", ["sh", "-c", command], env)  # noqa: S606 - it is a shell
    finally:
        os._exit(127)


def session(pid):
    """Session of a process that runs; 0 when there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as source:
            fields = source.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[3])


def environment():
    """What a login has, and nothing of Slurm's or of the controller's: the same child as over ssh."""
    entry = pwd.getpwuid(os.getuid())
    return {
        "HOME": entry.pw_dir,
        "USER": entry.pw_name,
        "LOGNAME": entry.pw_name,
        "SHELL": entry.pw_shell or "/bin/sh",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }


class Relay(object):
    """The loop of one task."""

    def __init__(self, nonce, task, in_fd=0, out_fd=1, patience=PATIENCE):
        self.nonce, self.task = nonce.encode("ascii"), task
        self.patience = patience
        self.children = {}
        self._in, self._out = in_fd, out_fd
        self._incoming, self._outgoing = bytearray(), b""
        self._body = None  # (heeded, channel, op, bytes that are still to come)
        self._number = 0
        self._heard = time.monotonic()
        self._open = True

    def emit(self, kind, channel, data=b""):
        """Queue one record; long ones are squeezed, and their kind is then a capital."""
        if len(data) > 512:
            kind, data = kind.upper(), zlib.compress(data, 1)
        text = binascii.b2a_base64(("%s %d " % (kind, channel)).encode("ascii") + data)[:-1]
        for at in range(0, len(text), WIDTH):
            end = b"," if at + WIDTH < len(text) else b";"
            self._outgoing += b"%s %d %s%s\n" % (
                self.nonce,
                self._number,
                text[at : at + WIDTH],
                end,
            )
            self._number += 1

    def run(self):
        """Carry bytes until the controller is gone and every child has ended."""
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        try:
            while self._open or self.children:
                self._turn()
            self._flush()
        finally:
            for child in self.children.values():
                child.kill()

    def _turn(self):
        readers = [self._in] if self._open else []
        writers = [self._out] if self._outgoing else []
        sources = {}
        for child in self.children.values():
            if child.waiting:
                writers.append(child.stdin)
            if len(self._outgoing) < BACKLOG:
                sources.update(
                    (fd, child)
                    for fd in (child.out, child.err)
                    if fd is not None and child.credit > 0
                )
        hurry = any(
            child.kill_at is not None or child.out is None for child in self.children.values()
        )
        ready, free, _ = select.select(readers + list(sources), writers, [], TICK if hurry else 1.0)
        for fd in ready:
            if fd == self._in:
                self._hear()
            else:
                self._carry(sources[fd], fd)
        for child in list(self.children.values()):
            if child.stdin in free and child.waiting:
                child.write()
            self._look(child)
        if time.monotonic() - self._heard > self.patience:
            self._leave()
        self._send()

    def _leave(self):
        self._open = False
        for child in self.children.values():
            dismiss(child)

    def _hear(self):
        try:
            data = os.read(self._in, PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave()
            return
        self._heard = time.monotonic()
        self._incoming += data
        while self._open and self._envelope():
            pass

    def _envelope(self):
        """Take one step through what came in; whether there may be another."""
        if self._body is None:
            at = self._incoming.find(b"\n")
            if at < 0:
                if len(self._incoming) > MAX_HEAD:
                    self._leave()
                return False
            tasks, channel, op, length = self._incoming[:at].decode("ascii").split()
            self._body = (named(self.task, tasks), int(channel), op, int(length))
            del self._incoming[: at + 1]
        heeded, channel, op, length = self._body
        if heeded and len(self._incoming) < length:
            return False
        body = bytes(self._incoming[:length])
        del self._incoming[:length]
        if len(body) < length:  # of others, and passed over as it comes
            self._body = (False, channel, op, length - len(body))
            return False
        self._body = None
        if heeded:
            self._serve(channel, op, body)
        return True

    def _serve(self, channel, op, body):
        """open COMMAND, data BYTES, zdata SQUEEZED, grant NUMBER, kill, close."""
        child = self.children.get(channel)
        if op == "open" and child is None:
            try:
                self.children[channel] = RelayedChild(channel, body.decode("utf-8"), environment())
            except (OSError, KeyError) as error:
                self.emit("e", channel, str(error).encode("utf-8"))
                self.emit("x", channel)
        elif child is None:
            return
        elif op in ("data", "zdata"):
            if child.stdin is not None and not child.ending:
                child.waiting += zlib.decompress(body) if op == "zdata" else body
                if len(child.waiting) > MAX_INPUT:
                    dismiss(child)
        elif op == "grant":
            child.credit += int(body)
        elif op == "kill":
            child.kill()
        elif op == "close":
            dismiss(child)

    def _carry(self, child, fd):
        if fd not in (child.out, child.err):
            return  # closed since, with the other stream
        out, data = fd == child.out, child.read(fd)
        if data:
            child.credit -= len(data)
            self.emit("o" if out else "e", child.channel, data)
        elif data is not None and out:
            if child.err is not None:  # its last words, before its end is known
                self._last(child, child.err)
            self.emit("f", child.channel)

    def _look(self, child):
        """Notice its end, and see to it that nothing of it is left."""
        now = time.monotonic()
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if ended:
            child.kill_at = child.kill_at or now
        if child.kill_at is None or now < child.kill_at - (GRACE if ended else 0.0):
            return
        left = (
            child.kill() or not ended
        )  # it is not reaped before, so that its number stays its own
        if not left or now > child.kill_at + GRACE:
            self._forget(child)

    def _forget(self, child):
        os.waitpid(child.pid, os.WNOHANG)
        child.close_stdin()
        for fd in (child.out, child.err):
            if fd is not None:
                self._last(child, fd)
        for fd in (child.out, child.err):  # those that others hold
            if fd is not None:
                child.close(fd)
        self.emit("x", child.channel)
        del self.children[child.channel]

    def _last(self, child, fd):
        """What a pipe holds by now."""
        kind = "o" if fd == child.out else "e"
        for _ in range(WINDOW // PIECE):
            data = child.read(fd)
            if not data:
                return
            self.emit(kind, child.channel, data)

    def _send(self):
        while self._outgoing:
            try:
                sent = os.write(self._out, self._outgoing[:PIECE])
            except BlockingIOError:
                return
            except OSError:
                self._outgoing = b""
                self._leave()
                return
            self._outgoing = self._outgoing[sent:]

    def _flush(self):
        end = time.monotonic() + GRACE
        while self._outgoing and time.monotonic() < end:
            select.select([], [self._out], [], 0.2)
            self._send()


def dismiss(child):
    """Ask a child to end: no more input comes; it has GRACE seconds."""
    if child.kill_at is None:
        child.kill_at = time.monotonic() + GRACE
        child.ending = True
        if not child.waiting:
            child.close_stdin()


def named(task, tasks):
    """Whether an envelope is for this task: `*`, or numbers and ranges such as `0-3,7`."""
    if tasks == "*":
        return True
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        if int(first) <= task <= int(last or first):
            return True
    return False


def _stop(signum, frame):
    raise SystemExit(128 + signum)


def main(nonce):
    """Say where this is, and serve. The call of this function is the last line of what is sent."""
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, _stop)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    relay = Relay(nonce, int(os.environ["SLURM_PROCID"]))
    relay.emit("h", 0, os.environ["SLURMD_NODENAME"].encode("utf-8"))
    relay.run()
    sys.stderr.flush()
    os._exit(0)
