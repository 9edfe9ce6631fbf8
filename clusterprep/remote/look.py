"""The reading part of the agent: it answers what it is asked and cannot write.

Reads run in child processes, one lane for plain files, one for the resolver, one each for what may hang, so that a
stuck driver call or a stale mount costs its own limit and nothing else.
"""

import errno
import os
import time

from clusterprep.remote.light import dumps, loads, signal
from clusterprep.remote.readers import LANES, NVML, READERS, NoAnswer, has_library, is_own

LINGER = 0.5  # seconds that a killed child gets to disappear before it is called stuck


def answer(kind, args):
    """One read: ["ok", value] or ["no", reason, what was seen]."""
    try:
        return ["ok", READERS[kind](*args)]
    except NoAnswer as no:
        return ["no", no.reason, no.why]
    except KeyError:
        return ["no", "unknown_read", str(kind)]
    except OSError as error:
        reason = {errno.ENOENT: "missing", errno.EACCES: "denied", errno.EPERM: "denied"}.get(error.errno, "garbled")
        return ["no", reason, "%s: %s" % (error.filename or kind, error.strerror)]
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to this read alone
        return ["no", "garbled", "%s: %s" % (type(error).__name__, error)]


class Lane(object):
    """Reads that run one after the other in one child; a read over its limit is given up with its child."""

    def __init__(self, agent, reads, done):
        self.agent, self.reads, self.done = agent, list(reads), done
        self.pid = None
        self.buffer = b""
        self._start()

    def _start(self):
        source, sink = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._child(sink)
        os.close(sink)
        self.fd = source
        self._clock()
        self.agent.watch(source, self._hear)

    def _child(self, sink):
        try:
            os.setsid()
            for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(signum, signal.SIG_DFL)
            for fd in (0, 1, 2):  # the channel belongs to the agent alone
                os.dup2(os.open("/dev/null", os.O_RDWR), fd)
            for index, (kind, args, _) in self.reads:
                os.write(sink, dumps([index, answer(kind, args)]).encode("ascii") + b"\n")
        finally:
            os._exit(0)

    def _clock(self):
        self.deadline = time.monotonic() + (self.reads[0][1][2] if self.reads else LINGER)

    def _hear(self, data):
        lines = (self.buffer + data).split(b"\n")
        self.buffer = lines.pop()
        for line in lines:
            index, value = loads(line.decode("ascii"))
            self.reads = [read for read in self.reads if read[0] != index]
            self.done(index, value)
            self._clock()
        if not data:
            self._end("garbled", "the reading process ended early")

    def poll(self, now):
        """Give up the read under way when its limit has passed."""
        if self.pid is not None and now > self.deadline:
            self.agent.unwatch(self.fd)
            self._end("hung", "no answer within %g s" % (self.reads[0][1][2] if self.reads else LINGER))

    def _end(self, reason, why):
        os.close(self.fd)
        kill_group(self.pid)
        self.pid = None
        self.buffer = b""
        if self.reads:
            index = self.reads.pop(0)[0]
            self.done(index, ["no", reason, why])
        if self.reads:
            self._start()

    def kill(self):
        if self.pid is not None:
            kill_group(self.pid)
            self.pid = None


def kill_group(pid):
    """Kill a child and its group and reap it; one in uninterruptible sleep is left to the kernel."""
    for target in (-pid, pid):
        try:
            os.kill(target, signal.SIGKILL)
        except OSError:
            pass
    end = time.monotonic() + LINGER
    while time.monotonic() < end:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except OSError:
            return
        time.sleep(0.002)


def instant(kind, args, limit):
    """Whether a read cannot wait for anything, so that it needs no child."""
    return (kind == "nvml" and not has_library(NVML)) or (kind == "limits" and is_own(*args))


def grouped(reads):
    """The reads of each lane; a kind without a lane of its own name has one for each read."""
    lanes = {}
    for index, read in reads:
        lanes.setdefault(LANES.get(read[0], index), []).append((index, read))
    return list(lanes.values())


def look(agent, request):
    """Operation look: {"reads": [[kind, args, limit], …]} → {"answers": [answer, …]} in the same order."""
    reads = list(enumerate(request["reads"]))
    answers = [None] * len(reads)
    left = set(index for index, _ in reads)
    lanes = []

    def done(index, value):
        answers[index] = value
        left.discard(index)
        if not left:
            agent.polls.remove(poll)
            agent.answer(request, answers=answers)

    def poll(now):
        for lane in list(lanes):
            lane.poll(now)

    agent.polls.append(poll)
    for index, (kind, args, _) in [read for read in reads if instant(*read[1])]:
        done(index, answer(kind, args))
    for group in grouped([read for read in reads if read[0] in left]):
        lanes.append(Lane(agent, group, done))
    agent.endings.append(lambda: [lane.kill() for lane in lanes])
    if not reads:
        done(-1, None)


def install(agent):
    """Register the operation of this part."""
    agent.ops["look"] = look
