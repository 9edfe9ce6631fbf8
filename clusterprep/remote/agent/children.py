"""What an agent starts for a job: processes of the job's user, watched until all have ended.

Ranks of a trial (ranks.py) and processes of a launch (job.py) differ in what they run and in what
they report. What they have in common is here: the user that they run as, how their end is
noticed, and that every process that descends from them is ended with them.
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
    exit_code,
    is_alive,
    kill_group,
    process_stat,
    read_process,
    send_signal,
    signal_name,
)

LOOK = 0.5  # seconds between looks at the state of the processes
PATIENCE = 2.0  # seconds that killed processes get to disappear before they are called stuck
# Seconds without a sign of the controller, which comes every second; then all are ended.
LEASH = 15.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STOPPED = {"T": "stopped", "t": "traced"}  # by the state letter in /proc/PID/stat


class Child(object):
    """One started process: whether it runs, and how it ended.

    `group` is the ProcessGroup that it belongs to, `number` its rank, or None.
    """

    def __init__(self, group, number, process):
        self.group, self.number, self.process = group, number, process
        # That of the rank itself, also where the job's python is a wrapper that forks.
        self.pid = process.pid
        self.state, self._in_wait = "", 0
        # When its last output closed: the moment of its end, to the millisecond.
        self.silent_since = None
        self.ended = False

    def look(self, now):
        """Notice the end of the process, or a change between running, stopped and stuck."""
        if self.ended:
            return
        self.pid = self.pid or self.process.pid  # one in a container is known a while later
        code = exit_code(self.process)
        if code is not None:
            self._end(code, now)
            return
        if not self.group.stopping:
            self._look_at_state()

    def _end(self, code, now):
        """Report the end of the process. `code` is Popen's: below 0 the number of a signal."""
        self.ended = True
        self.hear_the_rest()
        number = -code
        if code >= 0:
            number = code - 128  # a shell in between says 128 + signal
        if 0 < number < 65:
            body = {
                "signal": number,
                "name": signal_name(number),
            }
        else:
            body = {"code": code}
        body.update(self.last_words(), asked=self.group.stopping)
        moment = self.silent_since or now
        if now - moment >= 1.0:
            moment = now
        self.group.tell("exit", self.number, moment, fields=body)

    def _look_at_state(self):
        """Report a change between running, stopped, traced and stuck."""
        letter, _ = process_stat(self.pid)
        self._in_wait = self._in_wait + 1 if letter == "D" else 0
        state = STOPPED.get(letter, "")
        if self._in_wait > 1:  # reading a file shows D for a moment, too
            state = "stuck"
        if state == self.state:
            return
        self.state = state
        where = b""
        if state == "stuck":
            where = read_process(self.pid, "wchan")
        body = {
            "state": state,
            "where": where.decode("ascii"),
        }
        self.group.tell("state", self.number, fields=body)

    # What ranks and processes of a launch do differently.

    def feed(self):
        """Send what still waits to be sent to it."""

    def hear_the_rest(self):
        """Read what it has printed before its end."""

    def last_words(self):
        """Return what is reported together with its end."""
        return {}

    def ask_to_end(self):
        """Ask it to end by itself."""

    def close(self):
        """Close what was opened for it."""


class ProcessGroup(object):
    """All children of one start, until the last of them has ended.

    One request to stop waits for that, and is answered then.
    """

    def __init__(self, agent, mark, leash):
        self.agent, self.mark, self.leash = agent, mark, leash
        self.children = []
        self.crew = None  # the container that the children run in, if there is one
        self.stopping = False
        self.held = self._looked = time.monotonic()
        self._asked = None  # the request of `stop` that waits for its answer
        self._until = 0.0
        agent.polls.append(self.poll)
        agent.endings.append(self.end)

    def tell(self, what, rank, moment=None, fields=None):
        """Send an event. `moment` is its time by the monotonic clock, now if it is no number."""
        now = time.monotonic()
        if not isinstance(moment, float):
            moment = now
        event = dict(fields or {}, rank=rank, what=what, mono=moment)
        event["wall"] = time.time() - (now - moment)
        self.agent.emit(event)

    def poll(self, now):
        """Do one turn of the agent's loop."""
        if self.crew is not None:
            self.crew.feed(now)
        for child in self.children:
            child.feed()
        if self.stopping or now - self._looked >= LOOK or self._is_any_ending():
            self._looked = now
            for child in self.children:
                child.look(now)
        if now - self.held > self.leash and not self.stopping:
            self.begin_stop(now)
        if self.stopping:
            self._go_on_stopping(now)

    def _is_any_ending(self):
        """Return whether the output of a child has closed while its end was not seen yet."""
        for child in self.children:
            if child.silent_since is not None and not child.ended:
                return True
        return False

    def begin_stop(self, now, request=None, grace=0.0):
        """Ask all children to end, and kill them after `grace` seconds; at once without grace."""
        self.stopping, self._asked = True, request
        self._kill_at = now + grace
        self._until = self._kill_at + self._patience()
        if grace:
            for child in self.children:
                child.ask_to_end()

    def _go_on_stopping(self, now):
        """Kill what has not ended in its grace; answer when nothing is left, or after PATIENCE."""
        all_ended = all(child.ended for child in self.children)
        if now < self._kill_at and not all_ended:
            return
        remaining = self.kill()
        if remaining and now < self._until:
            return
        self.close()
        if self._asked is not None:
            self.agent.answer(self._asked, left=remaining)

    def kill(self):
        """Kill every process that descends from a child. Returns the pids that still exist.

        Children are not reaped here: their numbers stay their own until `close`.
        """
        own = []
        remaining = []
        if self.crew is not None:
            remaining += self.crew.end()
            self.crew.feed(time.monotonic())
        for child in self.children:
            pid = child.process.pid
            if pid:
                own.append(pid)
                kill_group(pid)
        processes = descendants(self.mark, own)
        for process in processes:
            send_signal(process)
        # A process whose first thread has ended shows as a zombie while others still run. For our
        # own children waitpid knows better.
        for child in self.children:
            if exit_code(child.process) is None:
                remaining.append(child.process.pid)
        for process in processes:
            pid, _ = process
            if pid not in own and is_alive(process):
                remaining.append(pid)
        return remaining

    def end(self):
        """Kill all when the agent itself ends, and wait a little until they are gone."""
        until = time.monotonic() + self._patience()
        while self.children and self.kill() and time.monotonic() < until:
            time.sleep(0.02)

        if self.crew is not None:
            self.crew.close()

    def _patience(self):
        """Return the seconds that killed processes get to disappear, and their container."""
        return PATIENCE if self.crew is None else PATIENCE + self.crew.removal

    def close(self):
        """Report, reap and close what is left of all children, and leave the agent's loop."""
        if self.crew is not None:
            self.crew.close()
        for child in self.children:
            child.look(time.monotonic())
            child.process.poll()
            child.close()
        self.children = []
        self.agent.polls.remove(self.poll)
        self.agent.endings.remove(self.end)


def mark_of(agent):
    """Return what every process that descends from this agent has in its environment."""
    return "%d.%s" % (os.getpid(), agent.nonce.decode("ascii"))


# ---------------------------------------------------------------- the start


class UserAccount(object):
    """The user that the processes run as, looked up before any fork.

    Raises KeyError for an unknown user, PermissionError if only root could become that user.
    """

    def __init__(self, user):
        own = os.geteuid()
        if user is None and own == 0:
            # The user who logged in, also where sudo made the agent root.
            user = os.environ.get("SUDO_USER")
        entry = pwd.getpwuid(own) if user is None else pwd.getpwnam(user)
        if own not in (0, entry.pw_uid):
            raise PermissionError(errno.EPERM, "only root can start ranks as %s" % user)
        self.name, self.uid, self.gid = entry.pw_name, entry.pw_uid, entry.pw_gid
        self.home, self.shell = entry.pw_dir, entry.pw_shell or "/bin/sh"
        self.changes = self.uid != own
        self.folders = (self.home,)  # a process works in the first of them that it can enter
        self.folder_fd = None  # if set, a child writes the name of its folder to it

    def enter(self):
        """Become the user, in the first of the folders that can be entered. Runs in the child."""
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
        if self.folder_fd is not None:
            os.write(self.folder_fd, os.fsencode(os.getcwd()))


def environment(account, python, given, mark):
    """Return the environment of a rank: what every login has, and what is declared in `given`.

    Nothing of the agent's own environment is in it. `python` is None for one that is found in a
    runtime.
    """
    env = {
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
    }
    env["SHELL"] = account.shell
    env["LANG"] = "C.UTF-8"
    env["PATH"] = PATH if python is None else "%s:%s" % (os.path.dirname(python), PATH)
    env["PYTHONUNBUFFERED"] = "1"
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env.update(given)
    env[MARK] = mark
    return env


def crew_of(group, account, request, when_known):
    """Return the Crew of a request whose processes run in a container, None for others.

    `when_known(problem)` is called once it is known whether they run.
    """
    container = (request.get("runtime") or {}).get("container")
    if container is None:
        return None
    from clusterprep.remote.agent.crew import Crew  # sent where a runtime is declared

    group.crew = Crew(group.agent, container, request["python"], group.mark, when_known)
    return group.crew


def environment_inside(given):
    """Return what is set in a container for a process of the job, over what the image sets."""
    env = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env.update(given)
    return env


def client_environment(account):
    """Return the environment of an engine's client."""
    env = environment(account, None, {}, "")
    del env[MARK]  # by it the agent finds what it must kill, and an engine has helpers of its own
    folder = "/run/user/%d" % account.uid
    if os.path.isdir(folder):
        env["XDG_RUNTIME_DIR"] = folder  # where an engine without root keeps its state
    return env


def command_of(account, request, argv, given, mark):
    """Return argv and environment of a process that a request starts, inside its runtime if any.

    All of `given` reaches the process, whatever the runtime sets.
    """
    runtime = request.get("runtime")
    if runtime is None:
        return argv, environment(account, request["python"], given, mark)
    from clusterprep.remote.agent.inside import enter  # sent where a runtime is declared

    env = environment(account, None, given, mark)
    return enter(runtime, argv, env, sorted(given) + [MARK])


def popen(account, argv, env, **streams):
    """Start a process as the user, in a session of its own, with an empty stdin or the given."""
    streams.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen(  # the agent has one thread, so that preexec_fn is safe
        argv,
        env=env,
        cwd="/",
        start_new_session=True,
        preexec_fn=prepare_as(account),  # noqa: PLW1509
        **streams,
    )


def prepare_as(account):
    """Return what a child runs before its program: it becomes the user, and dies with the agent."""
    import ctypes

    prctl, agent = ctypes.CDLL(None).prctl, os.getpid()

    def prepare():
        account.enter()
        # After the change of user, which would have cleared it.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent:
            os._exit(1)

    return prepare


def start_error(error, request):
    """Return the answer that says why no rank runs here, with a reason the controller knows."""
    if isinstance(error, KeyError):
        return {
            "no": "no_user",
            "why": "there is no user %s" % request["user"],
        }
    if isinstance(error, ImportError):
        return {
            "no": "missing_tool",
            "why": "the agent's Python has no ctypes: %s" % error,
        }
    code = getattr(error, "errno", None)
    reasons = {
        errno.ENOENT: "missing_tool",
        errno.EACCES: "denied",
        errno.EPERM: "denied",
    }
    what = getattr(error, "filename", None) or request["python"]
    why = getattr(error, "strerror", None) or error
    return {
        "no": reasons.get(code, "agent_error"),
        "why": "%s: %s" % (what, why),
    }
