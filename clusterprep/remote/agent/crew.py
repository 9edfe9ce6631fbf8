"""The processes of a job in one container: a keeper inside starts them, and the agent speaks to it.

All ranks of a node share a container, as they do where torchrun starts them in one: they have one
/dev/shm, one set of devices and one network. The keeper is the container's first process. It gets
argument lists and environments through its standard input, so that no variable shows in a list of
processes, and hands reports and output on through its standard output. When standard input ends,
because the agent stops the job or is dead, the keeper kills all of them and ends, and the engine
removes the container.
"""

import json
import os
import signal
import socket
import subprocess
import time

from clusterprep.remote.agent.containers import DAEMONS, command, last_message, new_name, problem
from clusterprep.remote.agent.light import readable
from clusterprep.remote.agent.processes import MARK, descendants, exit_code, read_process

START_LIMIT = 60.0  # seconds until a container runs; the first start of an image may unpack it
REMOVAL = 10.0  # seconds that an engine gets to remove a container that has ended
MOST_ERRORS = 65536  # bytes of the client's messages that are kept, the last ones
CHUNK = 1 << 16

# Runs in the job's python inside: reads nine digits and so many bytes of source, and runs them.
BOOT = (
    "'clusterprep-keeper'\n"
    "import os,sys\n"
    "sys.path[:]=[p for p in sys.path if p]\n"
    "def take(n):\n"
    " s=b''\n"
    " while len(s)<n: s+=os.read(0,n-len(s)) or sys.exit(1)\n"
    " return s\n"
    "exec(compile(take(int(take(9))),'clusterprep-keeper','exec'),{})"
)
# Lines of JSON both ways. In: {n, argv, env, folders, channel} starts process n, {n, data} goes to
# its channel, {n, signal} to it and its group. Out: {n, pid, folder} or {n, errno, why}, then
# {n, stream, data} of "out", "err" and "channel", at last {n, code} as Popen tells it. Bytes travel
# as text of the same numbers. Lines begin with a nonce: an image's start-up files may print.
KEEPER = r"""
import json, os, select, signal, socket, subprocess, sys
out = os.dup(1)
os.dup2(2, 1)
nonce, mark = sys.argv[1], sys.argv[2]
children, ends, watched, unsent = {}, {}, {}, {}
def tell(**fields):
    line = ("\n" + nonce + json.dumps(fields) + "\n").encode("ascii")
    while line:
        line = line[os.write(out, line):]
def end():
    # Also what left its group; in a container without processes of its own only what has the mark.
    entry = ("CLUSTERPREP_TRIAL=" + mark).encode("ascii")
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open("/proc/%s/environ" % name, "rb") as source:
                    if entry in source.read().split(b"\0"):
                        os.kill(int(name), signal.SIGKILL)
            except OSError:
                pass
    os._exit(0)
def start(order):
    n, env = order["n"], dict(os.environ)
    env.update(order["env"])
    folder = os.getcwd()
    for path in order["folders"]:
        try:
            os.chdir(path)
        except OSError:
            continue
        folder = os.getcwd()
        break
    argv, kept, channel = list(order["argv"]), (), None
    if order["channel"]:
        channel, theirs = socket.socketpair()
        argv.append(str(theirs.fileno()))
        kept = (theirs.fileno(),)
    try:
        child = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, pass_fds=kept, start_new_session=True, close_fds=True,
        )
    except OSError as error:
        tell(n=n, errno=error.errno, why="%s: %s" % (argv[0], error.strerror))
        return
    children[n] = child
    watched[child.stdout.fileno()] = (n, "out", child.stdout)
    watched[child.stderr.fileno()] = (n, "err", child.stderr)
    if channel is not None:
        theirs.close()
        channel.setblocking(False)
        ends[n], unsent[n] = channel, b""
        watched[channel.fileno()] = (n, "channel", channel)
    tell(n=n, pid=child.pid, folder=folder)
def obey(line):
    order = json.loads(line.decode("ascii"))
    n = order["n"]
    if "argv" in order:
        start(order)
    elif "data" in order and n in ends:
        unsent[n] += order["data"].encode("latin-1")
    elif "signal" in order and n in children and children[n].returncode is None:
        try:
            os.killpg(children[n].pid, order["signal"])
            if order["signal"] == signal.SIGTERM:
                os.killpg(children[n].pid, signal.SIGCONT)
        except OSError:
            pass
def feed():
    for n in list(unsent):
        try:
            while unsent[n]:
                unsent[n] = unsent[n][ends[n].send(unsent[n]):]
        except BlockingIOError:
            pass
        except OSError:
            unsent[n] = b""
def pass_on(fd):
    n, stream, source = watched[fd]
    try:
        data = os.read(fd, 1 << 16)
    except BlockingIOError:
        return
    except OSError:
        data = b""
    tell(n=n, stream=stream, data=data.decode("latin-1"))
    if not data:
        del watched[fd]
        if stream == "channel":
            del ends[n], unsent[n]
        source.close()
def reap():
    # A process that ended is told when its output has; a descendant may hold that for a while.
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        for n, child in children.items():
            if child.pid == pid and child.returncode is None:
                ended = os.WIFSIGNALED(status)
                child.returncode = -os.WTERMSIG(status) if ended else os.WEXITSTATUS(status)
                for fd in [fd for fd in watched if watched[fd][0] == n]:
                    if select.select([fd], [], [], 0)[0]:
                        pass_on(fd)
                tell(n=n, code=child.returncode)
tell(n=-1, pid=os.getpid())
rest = b""
while True:
    writable = [ends[n] for n in unsent if unsent[n]]
    readable, _, _ = select.select([0] + list(watched), writable, [], 0.05)
    feed()
    if 0 in readable:
        data = os.read(0, 1 << 16)
        if not data:
            end()
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        for line in lines:
            obey(line)
    for fd in readable:
        if fd in watched:
            pass_on(fd)
    reap()
"""


class InsideProcess(object):
    """A process in the container, as far as the agent uses a Popen.

    `pid` is its number on the host, or 0 where the agent does not see it; `returncode` is None
    until it has ended and all that it wrote was taken.
    """

    is_inside = True

    def __init__(self, crew, number):
        self._crew, self._number = crew, number
        self.pid, self.returncode = 0, None
        self._code = None
        self._ends = {}  # stream -> our end of a pipe, or of the channel
        self._waiting = {}  # stream -> bytes that were not taken yet

    def open(self, stream, fd):
        os.set_blocking(fd, False)
        self._ends[stream], self._waiting[stream] = fd, b""

    def hear(self, stream, data):
        if stream in self._ends:
            self._waiting[stream] += data

    def end(self, code):
        if self._code is None:
            self._code = code

    def is_ending(self):
        return self._code is not None

    def feed(self):
        """Hand on what it wrote; note its end once all of that was taken."""
        for stream, fd in list(self._ends.items()):
            if self._feed(stream, fd) and self._code is not None:
                self._crew.agent.unwatch(fd)
                os.close(fd)
                del self._ends[stream]
        if self._code is not None and not self._ends:
            self.returncode = self._code

    def _feed(self, stream, fd):
        try:
            while self._waiting[stream]:
                sent = os.write(fd, self._waiting[stream][:CHUNK])
                self._waiting[stream] = self._waiting[stream][sent:]
        except BlockingIOError:
            return False
        except OSError:
            self._waiting[stream] = b""
        return True

    def poll(self):
        return self.returncode

    def signal(self, number):
        self._crew.send({"n": self._number, "signal": number})


class Crew(object):
    """One container with a keeper, and the processes in it.

    `container` and `python` are the job's. `when_known(problem)` is called once: with None when all
    processes of `start` run, else with (reason, why).
    """

    removal = REMOVAL

    def __init__(self, agent, container, python, mark, when_known):
        self.agent, self._container, self.mark = agent, container, mark
        self._when_known = when_known
        self._nonce = new_name()
        self.name = new_name()
        self._began = time.monotonic()
        self._processes = {}
        self._awaited = 0  # processes of which it is not known whether they run
        self._heard, self._errors, self._unsent = b"", b"", b""
        self.folder = None
        self.keeper_pid = None
        self._closed_at = None
        source = KEEPER.encode("ascii")
        self._send_bytes(b"%09d" % len(source) + source)
        argv = [python, "-c", BOOT, self._nonce, mark]
        self._argv = command(container, argv, values={MARK: mark}, name=self.name)
        self.client = None
        self.remover = None  # the engine's client that removes the container, see `insist`
        self._start_client = None  # starts a command as the user whose container it is

    def begin(self, popen, env, account):
        """Start the engine's client. Raises OSError or SubprocessError if that fails."""
        self._start_client = lambda argv, **streams: popen(account, argv, env, **streams)
        self._given, given = socket.socketpair()
        self._out, out = os.pipe()
        self._err, err = os.pipe()
        try:
            self.client = self._start_client(self._argv, stdin=given, stdout=out, stderr=err)
        except BaseException:
            os.close(self._out)
            os.close(self._err)
            self._given.close()
            raise
        finally:
            given.close()
            os.close(out)
            os.close(err)
        self._given.setblocking(False)
        self.agent.watch(self._out, self._hear)
        self.agent.watch(self._err, self._hear_error)

    # ------------------------------------------------------------ to the keeper

    def start(self, argv, env, folders=(), streams=None, channel=None):
        """Have a process started; return it as an InsideProcess.

        `streams` are our ends of pipes by the name of the stream, `channel` one end of a socket
        pair whose other end reads and writes what the process does on its channel.
        """
        number = len(self._processes)
        process = InsideProcess(self, number)
        for stream, fd in (streams or {}).items():
            process.open(stream, fd)
        if channel is not None:
            process.open("channel", channel)
            self.agent.watch(channel, lambda data: self._pass_on(number, data))
        self._processes[number] = process
        self._awaited += 1
        env = dict(env)
        env[MARK] = self.mark
        order = {"n": number, "argv": list(argv), "env": env, "folders": list(folders)}
        self.send(dict(order, channel=channel is not None))
        return process

    def _pass_on(self, number, data):
        if data:
            self.send({"n": number, "data": data.decode("latin-1")})

    def send(self, order):
        self._send_bytes(json.dumps(readable(order)).encode("ascii") + b"\n")

    def _send_bytes(self, data):
        self._unsent += data

    def feed(self, now):
        """Send what waits, hand on what came, and notice the end of the client."""
        if self.client is None:
            return
        try:
            while self._unsent and self._closed_at is None:
                sent = self._given.send(self._unsent[:CHUNK])
                self._unsent = self._unsent[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""
        for process in self._processes.values():
            process.feed()
        code = exit_code(self.client)
        if code is not None:
            self._note_end(code)
        elif self._awaited and now - self._began > START_LIMIT:
            self._know(("hung", "the container did not start within %g s" % START_LIMIT))

    def _note_end(self, code):
        """Take the end of the client for that of all processes that have not ended."""
        if self._awaited:
            text = self._errors.decode("utf-8", "replace")
            found = problem(self._container, code, text)
            if found is None:
                why = last_message(text) or "the container ended with %s" % code
                found = ("no_python" if "No such file" in why else "not_started", why)
            self._know(found)
        if code > 128:
            code = 128 - code  # of the container's first process, which a signal ended
        for process in self._processes.values():
            if not process.is_ending():
                process.end(code or -signal.SIGKILL)
                process.feed()

    # ------------------------------------------------------------ from the keeper

    def _hear(self, data):
        lines = (self._heard + data).split(b"\n")
        self._heard = lines.pop()
        start = self._nonce.encode("ascii")
        for line in lines:
            if line.startswith(start):
                self._take(json.loads(line[len(start) :].decode("ascii")))

    def _hear_error(self, data):
        self._errors = (self._errors + data)[-MOST_ERRORS:]

    def _take(self, told):
        number = told["n"]
        if number == -1:
            self.keeper_pid = told["pid"]
            return
        process = self._processes[number]
        if "stream" in told:
            process.hear(told["stream"], told["data"].encode("latin-1"))
        elif "code" in told:
            process.end(told["code"])
        elif "why" in told:
            reason = "no_python" if told["errno"] == 2 else "denied"
            process.end(127)
            self._know((reason, "%s (in the container)" % told["why"]))
        else:
            self.folder = self.folder or told["folder"]
            process.pid = self._host_pid(told["pid"])
            self._awaited -= 1
            if not self._awaited:
                self._know(None)
        process.feed()

    def _know(self, why):
        if self._when_known is not None:
            self._awaited = 0
            when_known, self._when_known = self._when_known, None
            when_known(why)

    def _host_pid(self, pid_inside):
        """Return the number on this host of a process that has another one inside; 0: not seen."""
        for pid, _ in descendants(self.mark, ()):
            for line in read_process(pid, "status").split(b"\n"):
                if line.startswith(b"NSpid:") and int(line.split()[-1]) == pid_inside:
                    return pid
        return 0

    # ------------------------------------------------------------ the end

    def end(self):
        """Have the container ended. Returns the client's number in a list while it still runs."""
        if self.client is None:
            return []
        if self._closed_at is None:
            self._closed_at = time.monotonic()
            self._given.close()  # the keeper then ends all, and the engine removes the container
        if exit_code(self.client) is not None:
            return []
        return [self.client.pid]

    def insist(self):
        """Have the engine remove a container that did not end by itself.

        It is asked as the user: an engine without a daemon knows the user's own containers alone.
        """
        engine = self._container["engine"]
        if engine not in DAEMONS:
            return
        argv = [engine, "rm", "--force", self.name]
        try:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            self.remover = self._start_client(argv, **quiet)
        except (OSError, subprocess.SubprocessError):
            pass  # what is left of it ends with its client

    def close(self):
        """Forget the container; its client has ended, or is left to `insist`."""
        if self.client is None:
            return
        if exit_code(self.client) is None:
            self.insist()
            self.client.kill()
        self.client.poll()
        for fd in (self._out, self._err):
            self.agent.unwatch(fd)
            os.close(fd)
        for process in self._processes.values():
            process.end(-signal.SIGKILL)
            process.feed()
