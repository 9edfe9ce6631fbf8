"""The part of the agent that runs ranks: it starts them as the job's user, watches them and leaves none behind.

What decides who is to blame is known to the kernel and not to the job: how a process ended and when, whether it is
stopped, whether it is stuck in a driver. Ranks report on a socket of their own, apart from what they print.

Operations: `start` {python, user, source, ranks: [{rank, env}], config, leash}, `go` {tasks}, `part` {}, `hold` {},
`sockets` {}, `stop` {grace}. A task per rank, in the order of the start: {rank, world, address, port, steps, timeout}.
Ranks that are done with one and have parted may be given another, under another number.
Events: {"rank": 3, "what": "exit", "mono": …, "wall": …, …}, both times by this node's clocks.
"""

import errno
import json
import os
import pwd
import signal
import socket
import subprocess
import time

from clusterprep.remote.nccl_lines import Output
from clusterprep.remote.processes import MARK, descendants, drain, process_stat, read_process, send_signal, signal_name
from clusterprep.remote.sockets import look as look_at_sockets

MAX_LINE = 16384  # bytes of one report of a rank
MAX_REPORTS = 10000  # of one rank; more is not our program
MAX_SOURCE = 65536  # bytes; more is not our program
LOOK = 0.5  # seconds between looks at the state of the processes
PATIENCE = 2.0  # seconds that killed processes get to disappear before they are called stuck
LEASH = 6.0  # seconds without a sign of the controller, which comes every second; then the ranks are ended
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Runs in the job's python: reads nine digits and so many bytes of source from the socket, and runs them. The empty
# entry of sys.path is the working folder, where a file of the user's could be taken for a module of Python's. The
# string at its head is what `ps` and `pgrep -f` show.
BOOT = (
    "'clusterprep-rank %d'\n"
    "import os,sys\n"
    "sys.path[:]=[p for p in sys.path if p]\n"
    "f=int(sys.argv[1]);s=b''\n"
    "n=int(os.read(f,9))\n"
    "while len(s)<n: s+=os.read(f,n-len(s)) or sys.exit(1)\n"
    "exec(compile(s,'clusterprep-rank','exec'),{'__name__':'clusterprep.rank','FD':f})"
)


class Rank(object):
    """One started rank: its process, what it printed last, what it said, how it ended."""

    def __init__(self, trial, number, process, reports, output):
        self.trial, self.number, self.process = trial, number, process
        self.pid = process.pid  # that of the Python itself, also where the job's python is a wrapper that forks
        self.reports, self.output = reports, output
        self.printed, self._line, self._unsent = Output(), b"", b""
        self.state, self._in_wait, self._count = "", 0, 0
        self.silent_since = None  # when the socket closed: the moment of its end, to the millisecond
        self.ended = False

    def hear_report(self, data):
        if not data:
            self.silent_since = time.monotonic()
            return
        lines = (self._line + data).split(b"\n")
        self._line = lines.pop()[:MAX_LINE]
        for line in lines:
            self._pass_on(line)

    def _pass_on(self, line):
        self._count += 1
        try:
            said = json.loads(line[:MAX_LINE].decode("ascii"))
            what, moment = str(said.pop("what")), said.pop("t", None)
        except (ValueError, KeyError, AttributeError, TypeError):
            return
        if self._count > MAX_REPORTS:
            return
        if what == "started" and process_stat(said.get("pid") or 0)[1] == self.process.pid:
            self.pid = said["pid"]
        self.trial.tell(what, self.number, moment, said=said)

    def say(self, words):
        """Send something to the rank, as much of it at once as it takes: nobody here may wait for it."""
        self._unsent += words
        self.feed()

    def feed(self):
        try:
            while self._unsent:
                self._unsent = self._unsent[self.reports.send(self._unsent, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            pass  # it is read as the rank comes along
        except OSError:
            self._unsent = b""  # it is gone; how it ended says more

    def look(self, now):
        """Notice the end of the process, or a change between running, stopped and stuck."""
        if self.ended:
            return
        code = self.process.poll()
        if code is not None:
            self._end(code, now)
            return
        if not self.trial.stopping:
            self._look_at_state()

    def _end(self, code, now):
        self.ended = True
        drain(self.output, self.printed.hear)
        self.tell_of_nccl()
        number = -code if code < 0 else code - 128  # a shell in between says 128 + signal
        body = {"signal": number, "name": signal_name(number)} if 0 < number < 65 else {"code": code}
        body.update(output=self.printed.tail.decode("utf-8", "replace"), asked=self.trial.stopping)
        closed = self.silent_since or now
        self.trial.tell("exit", self.number, closed if now - closed < 1.0 else now, said=body)

    def tell_of_nccl(self):
        """How NCCL said that it connects; told once, when no more can come."""
        self.printed.end()
        if self.printed.lines:
            self.trial.tell("nccl", self.number, said={"lines": self.printed.lines, "cut": self.printed.cut})

    def _look_at_state(self):
        letter = process_stat(self.pid)[0]
        self._in_wait = self._in_wait + 1 if letter == "D" else 0
        state = {"T": "stopped", "t": "traced"}.get(letter, "")
        if self._in_wait > 1:  # reading a file shows D for a moment, too
            state = "stuck"
        if state != self.state:
            self.state = state
            where = read_process(self.pid, "wchan").decode("ascii") if state == "stuck" else ""
            self.trial.tell("state", self.number, said={"state": state, "where": where})


class Trial(object):
    """All ranks of this node, from `start` to `stop`."""

    def __init__(self, agent, mark, leash):
        self.agent, self.mark, self.leash = agent, mark, leash
        self.ranks = []
        self.stopping = False
        self.held = self._looked = time.monotonic()
        self._asked = None  # the request of `stop` that waits for its answer
        self._until = 0.0

    def tell(self, what, rank, moment=None, said=None):
        now = time.monotonic()
        moment = moment if isinstance(moment, float) else now
        body = {"rank": rank, "what": what, "mono": moment, "wall": time.time() - (now - moment)}
        self.agent.emit(dict(said or {}, **body))

    def add(self, number, process, reports, output):
        rank = Rank(self, number, process, reports, output)
        self.ranks.append(rank)
        self.agent.watch(output, rank.printed.hear)
        self.agent.watch(reports.fileno(), rank.hear_report)
        self.tell("spawned", number, said={"pid": process.pid})
        return rank

    def poll(self, now):
        """One turn of the agent's loop."""
        for rank in self.ranks:
            rank.feed()
        ending = any(rank.silent_since is not None and not rank.ended for rank in self.ranks)
        if ending or self.stopping or now - self._looked >= LOOK:
            self._looked = now
            for rank in self.ranks:
                rank.look(now)
        if now - self.held > self.leash and not self.stopping:
            self.begin_stop(now)
        if self.stopping:
            self._go_on_stopping(now)

    def begin_stop(self, now, request=None, grace=0.0):
        """Ranks that were asked to end get `grace` seconds; then, and at once without grace, all are killed."""
        self.stopping, self._asked = True, request
        self._kill_at = now + grace
        self._until = self._kill_at + PATIENCE
        if grace:
            for rank in self.ranks:
                rank.say(b"end\n")

    def _go_on_stopping(self, now):
        if now < self._kill_at and not all(rank.ended for rank in self.ranks):
            return
        left = self.kill()
        if left and now < self._until:
            return
        self.close()
        if self._asked is not None:
            self.agent.answer(self._asked, left=left)

    def kill(self):
        """Kill every process of every rank, reap what ended; the pids that are still there."""
        for rank in self.ranks:
            send_signal(os.killpg, rank.process.pid)
        pids = descendants(self.mark, [rank.process.pid for rank in self.ranks])
        for pid in pids:
            send_signal(os.kill, pid)
        # A process whose first thread has ended shows as a zombie while others still run; only its parent knows better.
        ours = {rank.process.pid for rank in self.ranks}
        left = [rank.process.pid for rank in self.ranks if rank.process.poll() is None]
        return left + [pid for pid in pids if pid not in ours and process_stat(pid)[0] not in "ZX"]

    def end(self):
        """Used when the agent itself ends: kill, and wait a little for the processes to be gone."""
        until = time.monotonic() + PATIENCE
        while self.ranks and self.kill() and time.monotonic() < until:
            time.sleep(0.02)

    def close(self):
        for rank in self.ranks:
            rank.look(time.monotonic())
            if not rank.ended:
                rank.tell_of_nccl()
            self.agent.unwatch(rank.output)
            self.agent.unwatch(rank.reports.fileno())
            os.close(rank.output)
            rank.reports.close()
        self.ranks = []
        self.agent.polls.remove(self.poll)
        self.agent.endings.remove(self.end)


# ---------------------------------------------------------------- the start


class Account(object):
    """Whom the ranks run as, looked up before any fork."""

    def __init__(self, user):
        mine = os.geteuid()
        if user is None and mine == 0:
            user = os.environ.get("SUDO_USER")  # who logged in, also where sudo made the agent root
        entry = pwd.getpwnam(user) if user is not None else pwd.getpwuid(mine)
        if mine not in (0, entry.pw_uid):
            raise PermissionError(errno.EPERM, "only root can start ranks as %s" % user)
        self.name, self.uid, self.gid = entry.pw_name, entry.pw_uid, entry.pw_gid
        self.home, self.shell = entry.pw_dir, entry.pw_shell or "/bin/sh"
        self.changes = self.uid != mine

    def enter(self):
        """In the child: become the user, in the home folder where there is one."""
        if self.changes:
            os.initgroups(self.name, self.gid)
            os.setgid(self.gid)
            os.setuid(self.uid)
        try:
            os.chdir(self.home)
        except OSError:
            pass


def environment(account, python, given, mark):
    """Nothing of the agent's own environment: a rank sees what is declared, and what every login has."""
    env = dict(HOME=account.home, USER=account.name, LOGNAME=account.name, SHELL=account.shell, LANG="C.UTF-8")
    env.update(PATH="%s:%s" % (os.path.dirname(python), PATH), PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1")
    env.update(given)
    env[MARK] = mark
    return env


def spawn(trial, account, request, entry):
    """Start one rank; raises OSError or SubprocessError when the kernel refuses."""
    ours, theirs = socket.socketpair()
    output, printed = os.pipe()
    source = request["source"].encode("utf-8") + b"\nmain(FD)\n"
    config = json.dumps(request["config"]).encode("ascii") + b"\n"
    try:
        process = subprocess.Popen(  # the agent has one thread, so that preexec_fn is safe
            [request["python"], "-c", BOOT % entry["rank"], str(theirs.fileno())],
            env=environment(account, request["python"], entry["env"], trial.mark),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            cwd="/",
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            preexec_fn=_prepare(account),  # noqa: PLW1509
        )
    except BaseException:
        ours.close()
        os.close(output)
        raise
    finally:
        theirs.close()
        os.close(printed)
    trial.add(entry["rank"], process, ours, output).say(b"%09d" % len(source) + source + config)


def _prepare(account):
    import ctypes

    prctl, agent = ctypes.CDLL(None).prctl, os.getpid()

    def prepare():
        account.enter()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the change of user would have cleared it
        if os.getppid() != agent:
            os._exit(1)

    return prepare


class Ranks(object):
    """The operations of this part, and the one trial that can run at a time."""

    def __init__(self):
        self._trial = None

    def start(self, agent, request):
        if self._running():
            return {"no": "busy", "why": "ranks of an earlier trial are still running"}
        if len(request["source"]) > MAX_SOURCE:
            return {"no": "agent_error", "why": "the program of the ranks has more than %d bytes" % MAX_SOURCE}
        mark = "%d.%s" % (os.getpid(), agent.nonce.decode("ascii"))
        trial = self._trial = Trial(agent, mark, request.get("leash", LEASH))
        agent.polls.append(trial.poll)
        agent.endings.append(trial.end)
        try:
            account = Account(request["user"])
            for entry in request["ranks"]:
                spawn(trial, account, request, entry)
        except (OSError, KeyError, ImportError, subprocess.SubprocessError) as error:
            trial.begin_stop(time.monotonic())  # those that did start
            return refusal(error, request)
        return {"pids": [rank.process.pid for rank in trial.ranks]}

    def _running(self):
        return self._trial is not None and bool(self._trial.ranks)

    def go(self, agent, request):
        ranks = self._trial.ranks if self._trial else []
        for rank, task in zip(ranks, request["tasks"]):
            rank.number = task["rank"]
            rank.say(json.dumps(task).encode("ascii") + b"\n")
        return {"left": sum(not rank.ended for rank in ranks)}

    def part(self, agent, request):
        for rank in self._trial.ranks if self._trial else ():
            rank.say(b"part\n")
        return {}

    def hold(self, agent, request):
        if self._trial:
            self._trial.held = time.monotonic()
        return {}

    def sockets(self, agent, request):
        return look_at_sockets({rank.number: rank.pid for rank in (self._trial.ranks if self._trial else ())})

    def stop(self, agent, request):
        if not self._running():
            return {"left": []}
        self._trial.begin_stop(time.monotonic(), request, request.get("grace", 0.0))
        return None


def refusal(error, request):
    """Why no rank runs here, in words of the contract where it has one."""
    if isinstance(error, KeyError):
        return {"no": "no_user", "why": "there is no user %s" % request["user"]}
    if isinstance(error, ImportError):
        return {"no": "missing_tool", "why": "the agent's Python has no ctypes: %s" % error}
    code = getattr(error, "errno", None)
    reason = {errno.ENOENT: "missing_tool", errno.EACCES: "denied", errno.EPERM: "denied"}.get(code, "agent_error")
    return {"no": reason, "why": "%s: %s" % (request["python"], getattr(error, "strerror", None) or error)}


def install(agent):
    ranks = Ranks()
    agent.ops.update(
        start=ranks.start, go=ranks.go, part=ranks.part, hold=ranks.hold, sockets=ranks.sockets, stop=ranks.stop
    )
