"""Commands of steps: children of the agent's loop, one after the other, each watched to its end.

They run in sessions of their own. A daemon that a command starts on purpose goes on running. A
command that passes its limit, or is stopped, is killed with all processes that descend from it.
"""

import os
import signal
import subprocess
import time

from clusterprep.remote.agent.disk import Stop, error_text
from clusterprep.remote.agent.processes import (
    MARK,
    descendants,
    drain,
    exit_code,
    is_alive,
    kill_group,
    send_signal,
    signal_name,
)
from clusterprep.remote.agent.readers import search_path

TAIL, LINES = 4096, 20  # bytes and lines of a command's output that are reported, the last ones
LONGEST = 300  # characters of a command in a message
QUOTED = frozenset(" \t\n'\"\\$;|&")  # an argument with one of these is shown in quotes
PATIENCE = 2.0  # seconds that killed processes get to disappear
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_under_way = []  # type: list[Task]  # at most one


class Command(object):
    """A child that runs, the end of its output, and how it ended.

    `ended` is (exit code, why it was stopped), None while it runs.
    """

    def __init__(self, agent, operation):
        self.agent, self.operation, self.output, self.ended = agent, operation, b"", None
        self.deadline = time.monotonic() + operation["limit"]
        self.mark = "%d.%s" % (os.getpid(), agent.nonce.decode("ascii"))
        self.fd, sink = os.pipe()
        argv = operation["argv"]
        try:
            self.process = subprocess.Popen(
                argv,
                env=environment(operation.get("env") or {}, self.mark),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd="/",
                start_new_session=True,
                # Threads of reads do not hold what it needs.
                preexec_fn=end_with_parent(),  # noqa: PLW1509
            )
        except OSError as error:
            os.close(self.fd)
            raise Stop("failed", "%s: %s" % (shown(argv), error.strerror), said="")
        finally:
            os.close(sink)
        agent.watch(self.fd, self.hear)

    def hear(self, data):
        self.output = (self.output + data)[-TAIL:]

    def poll(self, at):
        """Notice the end, or kill the command if its limit has passed."""
        if self.ended:
            return
        code = exit_code(self.process)
        if code is not None:
            self._end(code, "")
        elif at > self.deadline:
            self.kill("it was not done after %g s" % self.operation["limit"])

    def kill(self, why):
        """End it with every process that descends from it."""
        own = self.process.pid
        until = time.monotonic() + PATIENCE
        while True:
            kill_group(own)  # it is not reaped before its end is noted
            processes = descendants(self.mark, [own])
            for process in processes:
                send_signal(process)
            all_gone = not any(is_alive(process) for process in processes)
            if all_gone or time.monotonic() > until:
                break
            time.sleep(0.02)
        self._end(exit_code(self.process), why)

    def _end(self, code, why):
        self.process.poll()
        self.agent.unwatch(self.fd)
        drain(self.fd, self.hear)
        os.close(self.fd)  # a daemon that it started may hold the other end
        self.ended = (code, why)

    def tail(self):
        """Return the last lines of its output."""
        text = self.output.decode("utf-8", "replace").strip()
        lines = text.split("\n")
        return "\n".join(lines[-LINES:])


def environment(given, mark):
    """Return the session's environment with the folders of tools as PATH, the C locale, `given`."""
    env = dict(os.environ, PATH=":".join(search_path()), LC_ALL="C.UTF-8", LANGUAGE="C")
    env.update(given)
    env[MARK] = mark
    return env


def end_with_parent():
    """Return what a child runs before its program: from then on it dies with the agent."""
    import ctypes

    prctl, agent = ctypes.CDLL(None).prctl, os.getpid()

    def prepare():
        os.umask(0o022)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != agent:
            os._exit(1)

    return prepare


def shown(argv):
    """Return a command for a message, at most LONGEST characters of it."""
    shown_words = []
    for word in argv:
        needs_quotes = not word or not QUOTED.isdisjoint(word)
        shown_words.append(repr(word) if needs_quotes else word)
    line = " ".join(shown_words)
    return line if len(line) <= LONGEST else line[:LONGEST] + "…"


def refuse_failed(operation, command):
    """Raise Stop if a command was stopped, or ended with another code than those expected."""
    code, why = command.ended
    if not why and code in operation["codes"]:
        return
    if not why:
        why = "exit code %s" % code
        if code is not None and code < 0:
            why = "it was ended by %s" % signal_name(-code)
    message = "%s: %s" % (shown(operation["argv"]), why)
    raise Stop("failed", message, said=command.tail(), code=code)


# ---------------------------------------------------------------- tasks


class Task(object):
    """Runs the commands that a generator yields, beside the agent's loop.

    Each command is sent back to the generator once it has ended. What the generator returns, or a
    Stop that it raises, is the answer to the request.
    """

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
        """Start the next command of the operation, or answer the request if there is none."""
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
            self.answer({"no": "failed", "why": error_text(error)})

    def answer(self, body):
        self.command = None
        _under_way.remove(self)
        self.agent.polls.remove(self.poll)
        self.agent.answer(self.request, **body)

    def stop(self):
        """End the command that runs. The answer says that it was stopped."""
        if self.command is not None and not self.command.ended:
            self.command.kill("it was stopped")
            self.poll(time.monotonic())


def stop_all():
    """End the task under way, and answer its request."""
    for task in list(_under_way):
        task.stop()


def end_all():
    """End the command under way without an answer: the agent itself ends."""
    for task in list(_under_way):
        command = task.command
        if command is not None and not command.ended:
            command.kill("the agent ended")


def runs_commands(generator):
    """Return an operation that runs the commands of a generator and answers when all are done."""

    def operation(agent, request):
        if _under_way:
            return {
                "no": "busy",
                "why": "another step is under way",
            }
        Task(agent, request, generator(request))
        return None

    return operation
