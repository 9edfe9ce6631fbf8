"""The reading part of the agent: it answers read requests and cannot write.

Reads run in lanes beside the loop: a thread for plain files, one for the resolver, and a child
process for each read that runs code of others. A stuck driver call or a stale mount costs its own
limit only.

Reads that start the user's shells share one child: start-up files may cost a node most of a look.
NCCL is then asked in the environments that these shells gave.
"""

import errno
import os
import time
from _thread import start_new_thread as start_thread

from clusterprep.remote.agent.light import dumps, loads, signal
from clusterprep.remote.agent.readers import INSTANT, LANES, READERS, NoAnswer

THREADED = ("files", "names", "waits")  # lanes in which no code of others runs
WIDE = 32  # lanes over which reads are spread after one of them has hung
LINGER = 0.5  # seconds that killed children get to disappear before they are called stuck
BLINK = 0.02  # the same while other reads wait for their turn
FOREVER = 1e9  # seconds
MAX_ANSWERS = 3 << 20  # bytes of all answers of one look as JSON; the controller takes 4 MiB
MAX_VALUES = 150000  # values in them; the controller takes 200,000
HURRY = 0.2  # of the time for all reads that one may hold up the others of its lane
LATE = "the budget ended"  # the reason of an answer that the command has no time to wait for
ERRNO_REASONS = {errno.ENOENT: "missing", errno.EACCES: "denied", errno.EPERM: "denied"}


def answer(kind, args):
    """Answer one read: ["ok", value] or ["no", reason, details]."""
    try:
        return ["ok", READERS[kind](*args)]
    except NoAnswer as no:
        return ["no", no.reason, no.why]
    except KeyError:
        return ["no", "unknown_read", str(kind)]
    except OSError as error:
        reason = ERRNO_REASONS.get(error.errno, "garbled")
        subject = error.filename or kind
        return ["no", reason, "%s: %s" % (subject, error.strerror)]
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to this read alone
        return ["no", "garbled", "%s: %s" % (type(error).__name__, error)]


class ReadLane(object):
    """Reads that run one after the other beside the loop, each an (index, (kind, args, limit)).

    A read over its limit is given up, and `spread` gets the rest. Where time is short, the rest is
    spread after `hurry` seconds already, and the read under way goes on `alone`. A subclass says
    how a lane starts (`launch`) and how it is stopped (`stop`).
    """

    alone = False

    def __init__(self, agent, reads, done, spread, hurry):
        self.agent = agent
        self.reads = list(reads)
        self.done = done  # called as done(index, answer)
        self.spread = spread  # called as spread(type of the lane, reads)
        self.hurry = hurry
        self.killed = []  # children that were killed and not gone within their time
        self._start()

    def _start(self):
        self.fd, sink = os.pipe()
        self.buffer = b""
        self.launch(sink)
        self._restart_clock()
        self.agent.watch(self.fd, self._receive)

    def _restart_clock(self):
        now = time.monotonic()
        self.deadline = now + self._limit()
        self.turn = now + self.hurry

    def _limit(self):
        """Return the seconds for the read under way, or for the end of the lane after the last."""
        if not self.reads:
            return LINGER
        _, (_, _, limit) = self.reads[0]
        return limit

    def _receive(self, data):
        lines = (self.buffer + data).split(b"\n")
        self.buffer = lines.pop()
        for line in lines:
            index, value = loads(line.decode("ascii"))
            self._finish(index, value)
        if self.alone and not self.reads:
            self._drop(BLINK)
        elif not data:
            self._end("garbled", "the reading process ended early")

    def _finish(self, index, value):
        remaining = [read for read in self.reads if read[0] != index]
        if len(remaining) == len(self.reads):
            return  # another lane has this read now
        self.reads = remaining
        self.done(index, value)
        self._restart_clock()

    def poll(self, now):
        """Give up the read under way when its limit has passed; in a hurry, no other waits."""
        if self.fd is None:
            return
        if now > self.deadline:
            self.agent.unwatch(self.fd)
            self._end("hung", "no answer within %g s" % self._limit())
        elif now > self.turn and len(self.reads) > 1:
            rest = self.reads[1:]
            self.reads = self.reads[:1]
            self.alone = True
            self.spread(type(self), rest)

    def leave(self, why):
        """Give up all remaining reads at once: the command has no more time."""
        if self.fd is None:
            return
        self._drop(0)
        reads, self.reads = self.reads, []
        for index, _ in reads:
            self.done(index, ["no", LATE, why])

    def _drop(self, seconds):
        """Receive no more answers, and stop what runs."""
        self.agent.unwatch(self.fd)
        os.close(self.fd)
        self.fd = None
        self.stop(seconds)

    def _end(self, reason, why):
        os.close(self.fd)
        self.fd = None
        self.stop(BLINK if reason == "hung" else LINGER)
        if self.reads:
            index, _ = self.reads.pop(0)
            self.done(index, ["no", reason, why])
        if not self.reads:
            return
        if reason == "hung":
            self.spread(type(self), self.reads)
        else:
            self._start()


def within_limits(answers):
    """Return the answers, in place of each one that is too much the reason `truncated`."""
    if len(dumps(answers)) < min(MAX_ANSWERS, 2 * MAX_VALUES):
        return answers
    bytes_left = MAX_ANSWERS
    values_left = MAX_VALUES
    fitting = []
    for each in answers:
        given = each
        size = len(dumps(given))
        values = count_values(given)
        if size > bytes_left or values > values_left:
            why = "%d bytes and %d values are more than one look brings" % (size, values)
            given = ["no", "truncated", why]
            size = values = 0
        bytes_left -= size
        values_left -= values
        fitting.append(given)
    return fitting


def count_values(value):
    """Return how many values and keys a value of JSON has, itself included."""
    count = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        count += 1
        if isinstance(one, dict):
            count += len(one)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return count


def answer_all(reads, sink):
    """Write the answer of every read to the pipe, one line each."""
    for index, (kind, args, _) in reads:
        line = dumps([index, answer(kind, args)])
        os.write(sink, line.encode("ascii") + b"\n")


class ThreadLane(ReadLane):
    """Reads of files and names, in a thread, which costs a twentieth of a child process.

    A child takes a node 1 to 2 ms before it reads anything. A stuck thread is left alone and dies
    with the agent.

    Its answers are taken when it has ended, or when the loop next looks at all lanes: to wake the
    loop for each of 70 answers took a node as long as to read them.
    """

    answers = None  # what this lane's thread has read and the loop has not taken

    def launch(self, sink):
        self.answers = []
        start_thread(self._run, (list(self.reads), self.answers, sink))

    def _run(self, reads, answers, sink):
        try:
            for index, (kind, args, _) in reads:
                if self.answers is not answers:  # the lane was given up meanwhile
                    break
                answers.append((index, answer(kind, args)))
        finally:
            os.close(sink)

    def _receive(self, data):
        self._take()
        if not data:
            self._end("garbled", "the reading thread ended early")

    def _take(self):
        while self.answers:
            index, value = self.answers.pop(0)
            self._finish(index, value)

    def poll(self, now):
        if self.fd is None:
            return
        self._take()
        if self.alone and not self.reads:
            self._drop(0)
        else:
            ReadLane.poll(self, now)

    def leave(self, why):
        self._take()
        ReadLane.leave(self, why)

    def stop(self, seconds):
        self.answers = None


class ChildLane(ReadLane):
    """All other reads: drivers, interpreters and tools, in a process group killed as a whole."""

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
    """Wait for killed children; return those that remain, which are stuck in the kernel."""
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
    """Poll every lane; a lane may add others meanwhile."""
    for lane in list(lanes):
        lane.poll(now)


def leave_all(lanes, why):
    """Give up the remaining reads of every lane."""
    for lane in list(lanes):
        lane.leave(why)


def end_all(lanes):
    """Kill what still runs, then wait for all of it together: a stuck child delays no other."""
    killed = []
    for lane in lanes:
        lane.stop(0)
        killed += lane.killed
    reap(killed, LINGER)


def instant(kind, args, limit):
    """Return whether a read cannot wait for anything, so that it needs no child."""
    return kind in INSTANT and INSTANT[kind](*args)


def grouped(reads):
    """Return (class of the lane, its reads) for every lane: a shared one, or one for a read.

    Lanes with children come first: a process that has threads should not fork.
    """
    lanes = {}
    for index, read in reads:
        name = LANES.get(read[0], index)
        lanes.setdefault(name, []).append((index, read))
    groups = []
    for name, group in lanes.items():
        lane_class = ThreadLane if name in THREADED else ChildLane
        groups.append((lane_class, group))
    return sorted(groups, key=lambda lane: lane[0] is ThreadLane)


def look(agent, request):
    """Operation look: {"reads": [[kind, args, limit], …]} → {"answers": [answer, …]} in this order.

    With {"within": seconds} it answers by then: the remaining reads are given up all at once, and
    no read has waited long for its turn behind another.
    """
    within = request.get("within", FOREVER)
    ends = time.monotonic() + within
    hurry = within * HURRY
    reads = list(enumerate(request["reads"]))
    answers = [None] * len(reads)
    open_reads = set(range(len(reads)))
    lanes = []

    def done(index, value):
        answers[index] = value
        open_reads.discard(index)
        if not open_reads:
            agent.polls.remove(poll)
            agent.answer(request, answers=within_limits(answers))

    def poll(now):
        poll_all(lanes, now)
        if now > ends:
            why = "no answer within %.1f s, which is what the budget left for it" % within
            leave_all(lanes, why)

    def spread(lane_class, rest):
        # What hangs seldom hangs alone: behind a stuck read the others no longer share one lane.
        for start in range(min(WIDE, len(rest))):
            lanes.append(
                lane_class(
                    agent,
                    rest[start::WIDE],
                    done,
                    spread,
                    hurry,
                )
            )

    agent.polls.append(poll)
    instant_reads = [read for read in reads if instant(*read[1])]
    for index, (kind, args, _) in instant_reads:
        done(index, answer(kind, args))
    slow_reads = [read for read in reads if read[0] in open_reads]
    for lane_class, group in grouped(slow_reads):
        lanes.append(
            lane_class(
                agent,
                group,
                done,
                spread,
                hurry,
            )
        )
    agent.endings.append(lambda: end_all(lanes))
    if not reads:
        done(-1, None)


def install(agent):
    """Register the operation of this part."""
    agent.ops["look"] = look
