"""One task of a Slurm step: starts shell lines on its node and carries their bytes through srun.

All tasks of the step get the same stdin: envelopes `TASKS CHANNEL OP LENGTH`, a newline and that
many bytes. A task takes those that are for it and skips the others. The output is lines of at most
1000 bytes, as srun splits longer ones: `NONCE NUMBER TEXT,` and `NONCE NUMBER TEXT;` for the last
line of a record, where the text is base64 of `KIND CHANNEL ` and bytes.

No child inherits a stream of the task, or the task would never end. When stdin ends, or nothing
comes for `patience` seconds, the stdin of every child is closed, and a child that does not end then
is killed with its session.
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
# Bytes of a child's output that may be under way; the controller grants more as it takes them.
WINDOW = 2 << 20
BACKLOG = 1 << 18  # bytes that wait for srun; no child is read meanwhile
MAX_HEAD = 1 << 17  # bytes of an envelope's first line
MAX_INPUT = 40 << 20  # bytes that a child may leave unread before it counts as stuck
PIECE = 1 << 16  # bytes of one read
COMPRESSED_FROM = 512  # bytes; longer records are compressed
GRACE = 2.0  # seconds for a child to end once its stdin is closed
TICK = 0.1  # seconds between looks at a child that is to end
END_TICK = 0.01  # seconds between looks at a child whose stdout has ended
# Seconds that the end of a child is kept back. A child that goes on without stdout does not end.
END_DELAY = 0.1
# A step that is cancelled is signalled process by process, so a child may end before this task.
SIGNAL_DELAY = 1.0
FIRST_SIGNAL_CODE, LAST_SIGNAL_CODE = 129, 192  # of a shell: 128 and the number of a signal
IDLE_TICK = 1.0  # seconds between looks at the others


class RelayedChild(object):
    """One shell line that runs, in a session of its own."""

    def __init__(self, channel, command, env):
        self.channel = channel
        self.waiting = b""  # for its stdin
        self.ending = False  # its stdin is to be closed once `waiting` is written
        self.kill_at = None  # when it is killed
        self.was_killed = False  # by this task
        self.stdout_ended_at = None  # while the end of its stdout is to be reported
        self.signalled_at = None  # when it was seen to have been ended by a signal of others
        self.credit = WINDOW
        far_in, self.stdin = os.pipe()
        self.out, far_out = os.pipe()
        self.err, far_err = os.pipe()
        streams = (far_in, far_out, far_err)
        self.pid = os.fork()
        if self.pid == 0:
            become(streams, command, env)
        for fd in streams:
            os.close(fd)
        for fd in (self.stdin, self.out, self.err):
            os.set_blocking(fd, False)

    def close_stdin(self):
        """Close its stdin and drop what waits for it."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None
        self.waiting = b""

    def write(self):
        """Write as much to its stdin as it takes."""
        try:
            sent = os.write(self.stdin, self.waiting[:PIECE])
            self.waiting = self.waiting[sent:]
        except BlockingIOError:
            return
        except OSError:
            self.close_stdin()
        if self.ending and not self.waiting:
            self.close_stdin()

    def read(self, fd):
        """Return output of a stream; b"" at its end, None if there is nothing yet."""
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
        """Close one of its output streams."""
        os.close(fd)
        if fd == self.out:
            self.out = None
        else:
            self.err = None

    def streams(self):
        """Return the descriptors of its output streams that are open."""
        return [fd for fd in (self.out, self.err) if fd is not None]

    def kill(self):
        """Kill its session; return whether there was any process to kill."""
        self.was_killed = True
        found = {}
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            process = session(int(name))
            if process[0] == self.pid:
                found[int(name)] = process
        for pid, process in found.items():
            if session(pid) != process:  # it has ended, and the number may be another's by now
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        return bool(found)


def become(streams, command, env):
    """Turn this child into the shell, with stdin, stdout and stderr of its own."""
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


def ended_by_signal(status):
    """Return whether a signal ended a child, or the command that its shell waited for."""
    if status.si_code != os.CLD_EXITED:
        return True
    return FIRST_SIGNAL_CODE <= status.si_status <= LAST_SIGNAL_CODE


def session(pid):
    """Return session and start of a running process; (0, 0) if there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as source:
            fields = source.read().rpartition(b")")[2].split()
    except OSError:
        return 0, 0
    is_running = fields[0] not in (b"Z", b"X")
    return (int(fields[3]), int(fields[19])) if is_running else (0, 0)


def environment():
    """Return what a login has, and nothing of Slurm's or the controller's: as over ssh."""
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
        self.nonce = nonce.encode("ascii")
        self.task = task
        self.patience = patience
        self.children = {}  # channel -> child
        self._in = in_fd
        self._out = out_fd
        self._incoming = bytearray()
        self._outgoing = b""
        self._body = None  # of an envelope: (is ours, channel, op, bytes that are still to come)
        self._number = 0
        self._received_at = time.monotonic()
        self._open = True

    def emit(self, kind, channel, data=b""):
        """Queue one record; a long one is compressed, and its kind is then a capital letter."""
        if len(data) > COMPRESSED_FROM:
            kind = kind.upper()
            data = zlib.compress(data, 1)
        head = ("%s %d " % (kind, channel)).encode("ascii")
        text = binascii.b2a_base64(head + data)[:-1]
        for start in range(0, len(text), WIDTH):
            end = b"," if start + WIDTH < len(text) else b";"
            line = (self.nonce, self._number, text[start : start + WIDTH], end)
            self._outgoing += b"%s %d %s%s\n" % line
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
        writers += [child.stdin for child in self.children.values() if child.waiting]
        sources = self._readable_streams()
        readable, writable, _ = select.select(
            readers + list(sources), writers, [], self._longest_wait()
        )
        for fd in readable:
            if fd == self._in:
                self._receive()
            else:
                self._carry(sources[fd], fd)
        for child in list(self.children.values()):
            if child.stdin in writable and child.waiting:
                child.write()
            self._look(child)
        if time.monotonic() - self._received_at > self.patience:
            self._leave()
        self._send()

    def _readable_streams(self):
        """Return {descriptor: child} of the output streams that may be read now."""
        if len(self._outgoing) >= BACKLOG:
            return {}
        sources = {}
        for child in self.children.values():
            if child.credit > 0:
                sources.update(dict.fromkeys(child.streams(), child))
        return sources

    def _longest_wait(self):
        wait = IDLE_TICK
        for child in self.children.values():
            if child.stdout_ended_at is not None:
                return END_TICK
            if child.kill_at is not None or child.out is None:
                wait = TICK
        return wait

    def _leave(self):
        """Take no more input and ask every child to end."""
        self._open = False
        for child in self.children.values():
            dismiss(child)

    def _receive(self):
        """Take what came on stdin, and do what its complete envelopes say."""
        try:
            data = os.read(self._in, PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave()
            return
        self._received_at = time.monotonic()
        self._incoming += data
        while self._open and self._envelope():
            pass

    def _envelope(self):
        """Take one step through what came in; return whether there may be another."""
        if self._body is None and not self._take_head():
            return False
        is_ours, channel, op, length = self._body
        if is_ours and len(self._incoming) < length:
            return False
        body = bytes(self._incoming[:length])
        del self._incoming[:length]
        if len(body) < length:  # for other tasks, and skipped as it comes
            self._body = (False, channel, op, length - len(body))
            return False
        self._body = None
        if is_ours:
            self._serve(channel, op, body)
        return True

    def _take_head(self):
        """Take the first line of an envelope; return whether it has come."""
        end = self._incoming.find(b"\n")
        if end < 0:
            if len(self._incoming) > MAX_HEAD:
                self._leave()
            return False
        tasks, channel, op, length = self._incoming[:end].decode("ascii").split()
        self._body = (is_among(self.task, tasks), int(channel), op, int(length))
        del self._incoming[: end + 1]
        return True

    def _serve(self, channel, op, body):
        """Do one of: open COMMAND, data BYTES, zdata COMPRESSED, grant NUMBER, kill, close."""
        child = self.children.get(channel)
        if child is None:
            if op == "open":
                self._start(channel, body.decode("utf-8"))
        elif op == "data":
            self._take_input(child, body)
        elif op == "zdata":
            self._take_input(child, zlib.decompress(body))
        elif op == "grant":
            child.credit += int(body)
        elif op == "kill":
            child.kill()
        elif op == "close":
            dismiss(child)

    def _start(self, channel, command):
        try:
            self.children[channel] = RelayedChild(channel, command, environment())
        except (OSError, KeyError) as error:
            self.emit("e", channel, str(error).encode("utf-8"))
            self.emit("x", channel)

    def _take_input(self, child, data):
        if child.stdin is None or child.ending:
            return
        child.waiting += data
        if len(child.waiting) > MAX_INPUT:
            dismiss(child)

    def _carry(self, child, fd):
        """Pass on what a stream of a child has, or its end."""
        if fd not in (child.out, child.err):
            return  # closed since, with the other stream
        is_stdout = fd == child.out
        data = child.read(fd)
        if data:
            child.credit -= len(data)
            self.emit("o" if is_stdout else "e", child.channel, data)
        elif data is not None and is_stdout:
            if child.err is not None:  # its error messages come before the end of its stdout
                self._carry_rest(child, child.err)
            child.stdout_ended_at = time.monotonic()

    def _look(self, child):
        """Notice the end of a child, and kill what remains of it in time."""
        now = time.monotonic()
        # WNOWAIT: it is not reaped before its session is gone, so that its pid is not reused.
        status = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        has_ended = status is not None
        if has_ended and self._may_be_cancelled(child, status, now):
            return
        self._report_end_of_stdout(child, has_ended, now)
        if has_ended:
            child.kill_at = child.kill_at or now
        if child.kill_at is None:
            return
        first_kill = child.kill_at - GRACE if has_ended else child.kill_at
        if now < first_kill:
            return
        remains = child.kill() or not has_ended
        if not remains or now > child.kill_at + GRACE:
            self._forget(child)

    def _report_end_of_stdout(self, child, has_ended, now):
        """Report the end of a child's stdout, once it is known how the child ended or goes on."""
        if child.stdout_ended_at is None:
            return
        if has_ended or now - child.stdout_ended_at > END_DELAY:
            child.stdout_ended_at = None
            self.emit("f", child.channel)

    def _may_be_cancelled(self, child, status, now):
        """Return whether a child has just been ended by a signal that this task did not send.

        If the step is cancelled, the same signal ends this task in a moment, and srun tells why.
        An end of the child that was reported before would look like one of its own.
        """
        if child.was_killed or child.kill_at is not None or not ended_by_signal(status):
            return False
        child.signalled_at = child.signalled_at or now
        return now - child.signalled_at < SIGNAL_DELAY

    def _forget(self, child):
        """Reap a child that has ended, and report its last output and its end."""
        os.waitpid(child.pid, os.WNOHANG)
        child.close_stdin()
        for fd in child.streams():
            self._carry_rest(child, fd)
        for fd in child.streams():  # those that other processes hold open
            child.close(fd)
        self.emit("x", child.channel)
        del self.children[child.channel]

    def _carry_rest(self, child, fd):
        """Pass on what a pipe holds by now."""
        kind = "o" if fd == child.out else "e"
        for _ in range(WINDOW // PIECE):
            data = child.read(fd)
            if not data:
                return
            self.emit(kind, child.channel, data)

    def _send(self):
        """Write what waits, as far as it is taken now."""
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
    """Ask a child to end: it gets no more input, and has GRACE seconds."""
    if child.kill_at is None:
        child.kill_at = time.monotonic() + GRACE
        child.ending = True
        if not child.waiting:
            child.close_stdin()


def is_among(task, tasks):
    """Return whether a task is among those of an envelope: `*`, or ranges such as `0-3,7`."""
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
    """Report the name of the node, and serve. The call is the last line of what is sent."""
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, _stop)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    task = int(os.environ["SLURM_PROCID"])
    node = os.environ["SLURMD_NODENAME"]
    relay = Relay(nonce, task)
    relay.emit("h", 0, node.encode("utf-8"))
    relay.run()
    sys.stderr.flush()
    os._exit(0)
