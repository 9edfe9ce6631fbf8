"""The part of the agent that runs a command for `exec` where there is no SSH: locally, in Slurm.

Operation `exec` {argv, stdin}: run the program of clusterprep/fabric/program.py, whose text follows
on its stdin, in base64. Events: {"what": "output", "stream": "out", "data": base64} and {"what":
"ended", "code": 0, "left_out": 0}; a code below 0 is the number of a signal, `left_out` counts
bytes. Its stdin stays open as long as the agent runs: the program ends its process group with it.
"""

import binascii
import os
import subprocess
import threading

from clusterprep.remote.agent.light import signal
from clusterprep.remote.agent.processes import drain, exit_code

PIECE = 32 << 10  # bytes of output in one event
BACKLOG = 2 << 20  # bytes that wait for the controller; what comes then is left out


class Running(object):
    """The command, and its output on its way to the controller."""

    def __init__(self, agent, argv, stdin):
        self._agent = agent
        self._open = {}  # file descriptor -> name of the stream
        self._left_out = 0
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            restore_signals=True,
        )
        for pipe, name in ((self.process.stdout, "out"), (self.process.stderr, "err")):
            self._open[pipe.fileno()] = name
            agent.watch(pipe.fileno(), self._hearer(pipe.fileno()))
        agent.polls.append(self.poll)
        agent.endings.append(self.end)
        # A pipe takes 64 KiB before it is read.
        writer = threading.Thread(target=self._write, args=(stdin,))
        writer.daemon = True
        writer.start()

    def _write(self, data):
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except OSError:  # it has ended already
            pass

    def _hearer(self, fd):
        def hear(data):
            if self._agent.backlog() > BACKLOG:
                self._left_out += len(data)
                return
            for start in range(0, len(data), PIECE):
                self._tell(fd, data[start : start + PIECE])

        return hear

    def _tell(self, fd, data):
        text = binascii.b2a_base64(data).decode("ascii").strip()
        self._agent.emit({"what": "output", "stream": self._open[fd], "data": text})

    def poll(self, now):
        """Notice the end of the command, which may have left its output open to others."""
        code = exit_code(self.process)
        if code is None:
            return
        self._agent.polls.remove(self.poll)
        for fd in self._open:
            drain(fd, self._hearer(fd))
            self._agent.unwatch(fd)
        self.process.poll()
        self._agent.emit({"what": "ended", "code": code, "left_out": self._left_out})

    def end(self):
        """End the command with the agent, if its own watcher has not."""
        if exit_code(self.process) is None:
            try:
                os.killpg(self.process.pid, signal.SIGTERM)
            except OSError:
                pass


def run(agent, request):
    stdin = binascii.a2b_base64(request["stdin"])
    try:
        Running(agent, request["argv"], stdin)
    except OSError as error:
        return {"no": "failed", "why": "%s: %s" % (request["argv"][0], error.strerror)}
    return {}


def install(agent):
    agent.ops["exec"] = run
