"""Commands of steps: children of the agent's loop, each heard to its end, one after the other.

They run in sessions of their own. What they leave running on purpose (a daemon) stays; one that passes its limit, or is
stopped, is killed with all that descends from it.
"""

import os
import signal
import subprocess
import time

from clusterprep.remote.agent.disk import Stop
from clusterprep.remote.agent.processes import (
    MARK,
    descendants,
    drain,
    process_stat,
    send_signal,
    signal_name,
)
from clusterprep.remote.agent.readers import FOLDERS

TAIL, LINES = 4096, 20  # bytes and lines of what a command said that are kept
PATIENCE = 2.0  # seconds that killed processes get to disappear
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_under_way = []  # type: list[Task]  # at most one


class Command(object):
    """A child that runs, what it said last, and how it ended: `ended` is (exit code, why it was stopped)."""

    def __init__(self, agent, operation):
        self.agent, self.operation, self.said, self.ended = agent, operation, b"", None
        self.deadline = time.monotonic() + operation["limit"]
        self.mark = "%d.%s" % (os.getpid(), agent.nonce.decode("ascii"))
        self.fd, sink = os.pipe()
        try:
            self.process = subprocess.Popen(
                operation["argv"],
                env=environment(operation.get("env") or {}, self.mark),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd="/",
                start_new_session=True,
                preexec_fn=end_with_parent(),  # noqa: PLW1509 - threads of reads do not hold what it needs
            )
        except OSError as error:
            os.close(self.fd)
            raise Stop("failed", "%s: %s" % (shown(operation["argv"]), error.strerror), said="")
        finally:
            os.close(sink)
        agent.watch(self.fd, self.hear)

    def hear(self, data):
        self.said = (self.said + data)[-TAIL:]

    def poll(self, at):
        """Notice the end, or bring it about when the limit has passed."""
        if self.ended:
            return
        code = self.process.poll()
        if code is not None:
            self._end(code, "")
        elif at > self.deadline:
            self.kill("it was not done after %g s" % self.operation["limit"])

    def kill(self, why):
        """End it with everything that descends from it."""
        until = time.monotonic() + PATIENCE
        while True:
            pids = [self.process.pid] + descendants(self.mark, [self.process.pid])
            for pid in pids:
                send_signal(os.kill, pid)
            self.process.poll()
            if all(process_stat(pid)[0] in "ZX" for pid in pids) or time.monotonic() > until:
                break
            time.sleep(0.02)
        self._end(self.process.poll(), why)

    def _end(self, code, why):
        self.agent.unwatch(self.fd)
        drain(self.fd, self.hear)
        os.close(self.fd)  # a daemon that it left may hold the other end
        self.ended = (code, why)

    def tail(self):
        """The last lines of what it said."""
        return "\n".join(self.said.decode("utf-8", "replace").strip().split("\n")[-LINES:])


def environment(given, mark):
    """That of the session, with system folders in its PATH and the C locale, and what the operation adds."""
    folders = [folder for folder in os.environ.get("PATH", "").split(":") if folder]
    folders += [folder for folder in FOLDERS if folder not in folders]
    found = dict(os.environ, PATH=":".join(folders), LC_ALL="C.UTF-8", LANGUAGE="C")
    found.update(given)
    found[MARK] = mark
    return found


def end_with_parent():
    import ctypes

    prctl, agent = ctypes.CDLL(None).prctl, os.getpid()

    def prepare():
        os.umask(0o022)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent:
            os._exit(1)

    return prepare


def shown(argv):
    """A command for people, at most 300 letters of it."""
    words = " ".join(
        word if word and not set(word) & set(" \t\n'\"\\$;|&") else repr(word) for word in argv
    )
    return words if len(words) <= 300 else words[:300] + "…"


def refuse_failed(operation, command):
    """Stop where a command did not end as it should."""
    code, why = command.ended
    if not why and code in operation["codes"]:
        return
    how = why or (
        "it was ended by %s" % signal_name(-code)
        if code is not None and code < 0
        else "it ended with %s" % code
    )
    raise Stop("failed", "%s: %s" % (shown(operation["argv"]), how), said=command.tail(), code=code)


# ---------------------------------------------------------------- tasks


class Task(object):
    """A generator of commands that runs beside the loop: each is given back to it once it has ended."""

    def __init__(self, agent, request, steps):
        self.agent, self.request, self.steps, self.command = agent, request, steps, None
        _under_way.append(self)
        agent.polls.append(self.poll)
        self.go_on()

    def poll(self, at):
        if self.command is not None:
            self.command.poll(at)
        while self.command is not None and self.command.ended:
            self.go_on()

    def go_on(self):
        try:
            operation = self.steps.send(self.command)
            self.command = None
            while self.command is None:
                try:
                    self.command = Command(self.agent, operation)
                except Stop as stop:  # it could not even be started
                    operation = self.steps.throw(stop)
        except StopIteration as end:
            self.answer(end.value or {})
        except Stop as stop:
            self.answer(stop.body)
        except OSError as error:
            self.answer({"no": "failed", "why": "%s: %s" % (error.filename, error.strerror)})

    def answer(self, body):
        self.command = None
        _under_way.remove(self)
        self.agent.polls.remove(self.poll)
        self.agent.answer(self.request, **body)

    def stop(self):
        """End what runs. The answer says that it was stopped."""
        if self.command is not None and not self.command.ended:
            self.command.kill("it was stopped")
            self.poll(time.monotonic())


def stop_all():
    """End what is under way; its request is answered."""
    for task in list(_under_way):
        task.stop()


def end_all():
    """The same where the agent itself ends, and answers nobody."""
    for task in list(_under_way):
        if task.command is not None and not task.command.ended:
            task.command.kill("the agent ended")


def started(generator):
    """An operation of the agent that answers when it is through."""

    def operation(agent, request):
        if _under_way:
            return {"no": "busy", "why": "another step is under way"}
        Task(agent, request, generator(request))
        return None

    return operation
