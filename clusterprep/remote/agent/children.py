"""What an agent starts for a job: as the job's user, watched, and ended with everything that descends from it.

Ranks of a trial (ranks.py) and processes of a launch (job.py) differ in what they run and in what is heard of them. Who
they run as, how their end is noticed and that none of them is left is the same, and here.
"""

import errno
import os
import pwd
import signal
import subprocess
import time

from clusterprep.remote.agent.processes import (
    MARK,
    descendants,
    process_stat,
    read_process,
    send_signal,
    signal_name,
)

LOOK = 0.5  # seconds between looks at the state of the processes
PATIENCE = 2.0  # seconds that killed processes get to disappear before they are called stuck
LEASH = (
    15.0  # seconds without a sign of the controller, which comes every second; then all are ended
)
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Child(object):
    """One started process: whether it runs, and how it ended. `number` is that of its rank, None where it has none."""

    def __init__(self, company, number, process):
        self.company, self.number, self.process = company, number, process
        self.pid = (
            process.pid
        )  # that of the rank itself, also where the job's python is a wrapper that forks
        self.state, self._in_wait = "", 0
        self.silent_since = (
            None  # when its last word closed: the moment of its end, to the millisecond
        )
        self.ended = False

    def look(self, now):
        """Notice the end of the process, or a change between running, stopped and stuck."""
        if self.ended:
            return
        code = self.process.poll()
        if code is not None:
            self._end(code, now)
            return
        if not self.company.stopping:
            self._look_at_state()

    def _end(self, code, now):
        self.ended = True
        self.hear_the_rest()
        number = -code if code < 0 else code - 128  # a shell in between says 128 + signal
        body = (
            {"signal": number, "name": signal_name(number)} if 0 < number < 65 else {"code": code}
        )
        body.update(self.last_words(), asked=self.company.stopping)
        closed = self.silent_since or now
        self.company.tell("exit", self.number, closed if now - closed < 1.0 else now, said=body)

    def _look_at_state(self):
        letter = process_stat(self.pid)[0]
        self._in_wait = self._in_wait + 1 if letter == "D" else 0
        state = {"T": "stopped", "t": "traced"}.get(letter, "")
        if self._in_wait > 1:  # reading a file shows D for a moment, too
            state = "stuck"
        if state != self.state:
            self.state = state
            where = read_process(self.pid, "wchan").decode("ascii") if state == "stuck" else ""
            self.company.tell("state", self.number, said={"state": state, "where": where})

    # What those differ in that are heard in different ways.

    def feed(self):
        """Go on with what is to be said to it."""

    def hear_the_rest(self):
        """What it has printed and nobody has read."""

    def last_words(self):
        """What its end is told with."""
        return {}

    def ask_to_end(self):
        """Ask it to end by itself."""

    def close(self):
        """Give back what was opened for it."""


class Company(object):
    """All children of one start, until the last of them has ended. One request to `stop` waits for that."""

    def __init__(self, agent, mark, leash):
        self.agent, self.mark, self.leash = agent, mark, leash
        self.children = []
        self.stopping = False
        self.held = self._looked = time.monotonic()
        self._asked = None  # the request of `stop` that waits for its answer
        self._until = 0.0
        agent.polls.append(self.poll)
        agent.endings.append(self.end)

    def tell(self, what, rank, moment=None, said=None):
        now = time.monotonic()
        moment = moment if isinstance(moment, float) else now
        body = {"rank": rank, "what": what, "mono": moment, "wall": time.time() - (now - moment)}
        self.agent.emit(dict(said or {}, **body))

    def poll(self, now):
        """One turn of the agent's loop."""
        for child in self.children:
            child.feed()
        ending = any(child.silent_since is not None and not child.ended for child in self.children)
        if ending or self.stopping or now - self._looked >= LOOK:
            self._looked = now
            for child in self.children:
                child.look(now)
        if now - self.held > self.leash and not self.stopping:
            self.begin_stop(now)
        if self.stopping:
            self._go_on_stopping(now)

    def begin_stop(self, now, request=None, grace=0.0):
        """Those that were asked to end get `grace` seconds; then, and at once without grace, all are killed."""
        self.stopping, self._asked = True, request
        self._kill_at = now + grace
        self._until = self._kill_at + PATIENCE
        if grace:
            for child in self.children:
                child.ask_to_end()

    def _go_on_stopping(self, now):
        if now < self._kill_at and not all(child.ended for child in self.children):
            return
        left = self.kill()
        if left and now < self._until:
            return
        self.close()
        if self._asked is not None:
            self.agent.answer(self._asked, left=left)

    def kill(self):
        """Kill every process that descends from a child, reap what ended; the pids that are still there."""
        for child in self.children:
            send_signal(os.killpg, child.process.pid)
        pids = descendants(self.mark, [child.process.pid for child in self.children])
        for pid in pids:
            send_signal(os.kill, pid)
        # A process whose first thread has ended shows as a zombie while others still run; only its parent knows better.
        ours = {child.process.pid for child in self.children}
        left = [child.process.pid for child in self.children if child.process.poll() is None]
        return left + [pid for pid in pids if pid not in ours and process_stat(pid)[0] not in "ZX"]

    def end(self):
        """Used when the agent itself ends: kill, and wait a little for the processes to be gone."""
        until = time.monotonic() + PATIENCE
        while self.children and self.kill() and time.monotonic() < until:
            time.sleep(0.02)

    def close(self):
        for child in self.children:
            child.look(time.monotonic())
            child.close()
        self.children = []
        self.agent.polls.remove(self.poll)
        self.agent.endings.remove(self.end)


def mark_of(agent):
    """What everything that descends from this agent's children carries in its environment."""
    return "%d.%s" % (os.getpid(), agent.nonce.decode("ascii"))


# ---------------------------------------------------------------- the start


class UserAccount(object):
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
        self.folders = (self.home,)  # where its processes work: in the first that there is
        self.told = None  # a descriptor to which a child writes where that is

    def enter(self):
        """In the child: become the user, in the first of the folders that there is, and tell which."""
        if self.changes:
            os.initgroups(self.name, self.gid)
            os.setgid(self.gid)
            os.setuid(self.uid)
        for folder in self.folders:
            try:
                os.chdir(folder)
            except OSError:
                continue
            break
        if self.told is not None:
            os.write(self.told, os.fsencode(os.getcwd()))


def environment(account, python, given, mark):
    """Nothing of the agent's own environment: a rank sees what is declared, and what every login has."""
    env = dict(
        HOME=account.home,
        USER=account.name,
        LOGNAME=account.name,
        SHELL=account.shell,
        LANG="C.UTF-8",
    )
    env.update(
        PATH="%s:%s" % (os.path.dirname(python), PATH),
        PYTHONUNBUFFERED="1",
        PYTHONDONTWRITEBYTECODE="1",
    )
    env.update(given)
    env[MARK] = mark
    return env


def popen(account, argv, env, **streams):
    """Start a process as the user, in a session of its own, without anything to read."""
    return subprocess.Popen(  # the agent has one thread, so that preexec_fn is safe
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        preexec_fn=prepare_as(account),  # noqa: PLW1509
        **streams,
    )


def prepare_as(account):
    import ctypes

    prctl, agent = ctypes.CDLL(None).prctl, os.getpid()

    def prepare():
        account.enter()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the change of user would have cleared it
        if os.getppid() != agent:
            os._exit(1)

    return prepare


def refusal(error, request):
    """Why no rank runs here, in words of the contract where it has one."""
    if isinstance(error, KeyError):
        return {"no": "no_user", "why": "there is no user %s" % request["user"]}
    if isinstance(error, ImportError):
        return {"no": "missing_tool", "why": "the agent's Python has no ctypes: %s" % error}
    code, what = (
        getattr(error, "errno", None),
        getattr(error, "filename", None) or request["python"],
    )
    reason = {errno.ENOENT: "missing_tool", errno.EACCES: "denied", errno.EPERM: "denied"}.get(
        code, "agent_error"
    )
    return {"no": reason, "why": "%s: %s" % (what, getattr(error, "strerror", None) or error)}
