"""The reading part of the agent: it answers what it is asked and cannot write.

Reads run in lanes beside the loop: a thread for plain files, one for the resolver, a child process for each thing
that runs code of others. So a stuck driver call or a stale mount costs its own limit and nothing else.
"""

import errno
import os
import time
from _thread import start_new_thread as start_thread

from clusterprep.remote.agent.light import dumps, loads, signal
from clusterprep.remote.agent.readers import INSTANT, LANES, READERS, NoAnswer

THREADED = ("files", "names")  # lanes in which no code of others runs
WIDE = 32  # lanes over which reads are spread after one of them has hung
LINGER = 0.5  # seconds that killed children get to disappear before they are called stuck
BLINK = 0.02  # seconds of it while others wait for their turn
FOREVER = 1e9  # seconds
HURRY = 0.2  # of the time for all reads that one may hold up the others of its lane
LATE = "the budget ended"  # the reason of an answer that the command has no time to wait for


def answer(kind, args):
    """One read: ["ok", value] or ["no", reason, what was seen]."""
    try:
        return ["ok", READERS[kind](*args)]
    except NoAnswer as no:
        return ["no", no.reason, no.why]
    except KeyError:
        return ["no", "unknown_read", str(kind)]
    except OSError as error:
        reason = {errno.ENOENT: "missing", errno.EACCES: "denied", errno.EPERM: "denied"}.get(
            error.errno, "garbled"
        )
        return ["no", reason, "%s: %s" % (error.filename or kind, error.strerror)]
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to this read alone
        return ["no", "garbled", "%s: %s" % (type(error).__name__, error)]


class ReadLane(object):
    """Reads that run one after the other beside the loop. One over its limit is given up, and `spread` the rest.

    Where time is short, the rest is spread after `hurry` seconds already, and the read under way goes on `alone`. A
    kind of lane says how it starts (`launch`) and how it is stopped (`stop`).
    """

    alone = False

    def __init__(self, agent, reads, done, spread, hurry):
        self.agent, self.reads, self.done, self.spread, self.hurry = (
            agent,
            list(reads),
            done,
            spread,
            hurry,
        )
        self.killed = []  # children that had not gone when their time was over
        self._start()

    def _start(self):
        self.fd, sink = os.pipe()
        self.buffer = b""
        self.launch(sink)
        self._clock()
        self.agent.watch(self.fd, self._hear)

    def _clock(self):
        now = time.monotonic()
        self.deadline = now + (self.reads[0][1][2] if self.reads else LINGER)
        self.turn = now + self.hurry

    def _hear(self, data):
        lines = (self.buffer + data).split(b"\n")
        self.buffer = lines.pop()
        for line in lines:
            index, value = loads(line.decode("ascii"))
            if index not in [read[0] for read in self.reads]:
                continue  # another lane has it
            self.reads = [read for read in self.reads if read[0] != index]
            self.done(index, value)
            self._clock()
        if self.alone and not self.reads:
            self._drop(BLINK)
        elif not data:
            self._end("garbled", "the reading process ended early")

    def poll(self, now):
        """Give up the read under way when its limit has passed; in a hurry no other waits for it."""
        if self.fd is None:
            return
        if now > self.deadline:
            self.agent.unwatch(self.fd)
            self._end(
                "hung", "no answer within %g s" % (self.reads[0][1][2] if self.reads else LINGER)
            )
        elif now > self.turn and len(self.reads) > 1:
            rest, self.reads, self.alone = self.reads[1:], self.reads[:1], True
            self.spread(type(self), rest)

    def leave(self, why):
        """Give up all reads that are left, at once: the command has no more time."""
        if self.fd is not None:
            self._drop(0)
            reads, self.reads = self.reads, []
            for index, _ in reads:
                self.done(index, ["no", LATE, why])

    def _drop(self, seconds):
        """Hear no more of what runs, and end it."""
        self.agent.unwatch(self.fd)
        os.close(self.fd)
        self.fd = None
        self.stop(seconds)

    def _end(self, reason, why):
        os.close(self.fd)
        self.fd = None
        self.stop(BLINK if reason == "hung" else LINGER)
        if self.reads:
            index = self.reads.pop(0)[0]
            self.done(index, ["no", reason, why])
        if self.reads and reason == "hung":
            self.spread(type(self), self.reads)
        elif self.reads:
            self._start()


def answer_all(reads, sink):
    """Write the answer of every read to the pipe, one line each."""
    for index, (kind, args, _) in reads:
        os.write(sink, dumps([index, answer(kind, args)]).encode("ascii") + b"\n")


class ThreadLane(ReadLane):
    """Reads of files and names. A thread costs a twentieth of a child; a stuck one is left and dies with the agent."""

    def launch(self, sink):
        start_thread(self._run, (list(self.reads), sink))

    @staticmethod
    def _run(reads, sink):
        try:
            answer_all(reads, sink)
        except OSError:  # given up meanwhile: nobody reads the other end
            pass
        finally:
            os.close(sink)

    def stop(self, seconds):
        pass


class ChildLane(ReadLane):
    """Everything else: drivers, interpreters and tools, in a process group that is killed as a whole."""

    pid = None

    def launch(self, sink):
        self.pid = os.fork()
        if self.pid == 0:
            self._run(sink)
        os.close(sink)

    def _run(self, sink):
        try:
            os.setsid()
            for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(signum, signal.SIG_DFL)
            for fd in (0, 1, 2):  # the channel belongs to the agent alone
                os.dup2(os.open("/dev/null", os.O_RDWR), fd)
            answer_all(self.reads, sink)
        finally:
            os._exit(0)

    def stop(self, seconds):
        if self.pid is not None:
            self.killed += kill_group(self.pid, seconds)
            self.pid = None


def kill_group(pid, seconds=LINGER):
    """Kill a child and its group and reap it, as `reap` does."""
    for target in (-pid, pid):
        try:
            os.kill(target, signal.SIGKILL)
        except OSError:
            pass
    return reap([pid], seconds)


def reap(pids, seconds):
    """Wait for killed children; those that are left are in uninterruptible sleep, which is the kernel's."""
    end = time.monotonic() + seconds
    while True:
        pids = [pid for pid in pids if not _gone(pid)]
        if not pids or time.monotonic() >= end:
            return pids
        time.sleep(0.002)


def _gone(pid):
    try:
        return bool(os.waitpid(pid, os.WNOHANG)[0])
    except OSError:
        return True


def poll_all(lanes, now):
    for lane in list(lanes):
        lane.poll(now)


def leave_all(lanes, why):
    for lane in list(lanes):
        lane.leave(why)


def end_all(lanes):
    """Kill what still runs and wait for all of it together: one that is stuck must not keep the others' turn."""
    for lane in lanes:
        lane.stop(0)
    reap([pid for lane in lanes for pid in lane.killed], LINGER)


def instant(kind, args, limit):
    """Whether a read cannot wait for anything, so that it needs no child."""
    return kind in INSTANT and INSTANT[kind](*args)


def grouped(reads):
    """The kind of lane and the reads of each; a read without a lane of its name has one for itself.

    Children come first: a process that has threads should not fork.
    """
    lanes = {}
    for index, read in reads:
        lanes.setdefault(LANES.get(read[0], index), []).append((index, read))
    kinds = [
        (ThreadLane if name in THREADED else ChildLane, group) for name, group in lanes.items()
    ]
    return sorted(kinds, key=lambda lane: lane[0] is ThreadLane)


def look(agent, request):
    """Operation look: {"reads": [[kind, args, limit], …]} → {"answers": [answer, …]} in the same order.

    With {"within": seconds} it answers by then: reads that have not are given up all at once, and none has waited long
    for its turn behind another.
    """
    within = request.get("within", FOREVER)
    ends = time.monotonic() + within
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
        poll_all(lanes, now)
        if now > ends:
            leave_all(
                lanes, "no answer within %.1f s, which is what the budget left for it" % within
            )

    agent.polls.append(poll)
    for index, (kind, args, _) in [read for read in reads if instant(*read[1])]:
        done(index, answer(kind, args))

    def spread(kind, rest):
        # What hangs seldom hangs alone: behind one stuck read the others no longer wait for each other.
        for start in range(min(WIDE, len(rest))):
            lanes.append(kind(agent, rest[start::WIDE], done, spread, within * HURRY))

    for kind, group in grouped([read for read in reads if read[0] in left]):
        lanes.append(kind(agent, group, done, spread, within * HURRY))
    agent.endings.append(lambda: end_all(lanes))
    if not reads:
        done(-1, None)


def install(agent):
    """Register the operation of this part."""
    agent.ops["look"] = look
