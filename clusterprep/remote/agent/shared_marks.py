"""Marks in shared folders: a small file that one node writes and that all others wait for.

A child writes or waits, as the job's user, so that a folder that does not answer holds up nothing
else. The child that wrote a mark removes it when it is told to, and also when the agent is gone.

Operations: `mark` {user, path, name, text} -> {} or {"no", "why"}; `see_mark` {user, path, name,
text, seconds} -> {"seconds"} or {"no", "why"}; `unmark` {} -> {"left", "why"}, where "left" is the
path of a mark that could not be removed, empty if there is none. A refused `mark` says that too.
"""

import errno
import os
import select
import time

from clusterprep.remote.agent.light import dumps, loads, signal
from clusterprep.remote.agent.look import kill_group
from clusterprep.remote.agent.readers import NoAnswer, become
from clusterprep.remote.agent.shared import REASONS
from clusterprep.remote.agent.shells import account

WRITE_LIMIT = 5.0  # seconds for writing a mark, and for removing it
PAUSE = 0.02  # seconds between two looks for a mark
# A mark is new, and never one that a link leads to.
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


# ---------------------------------------------------------------- the child


def write_mark(control, tell, place, text):
    """Write a mark, tell so, and remove it once `control` is closed at its other end."""
    fd = os.open(place, CREATE, 0o644)
    try:
        _fill(fd, text)
    except OSError as error:
        tell(dict(_refusal(error), **_remove(place)))
        return
    tell({})
    select.select([control], [], [])
    tell(_remove(place))


def _fill(fd, text):
    try:
        os.write(fd, text)
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(place):
    try:
        os.unlink(place)
    except OSError as error:
        if error.errno != errno.ENOENT:
            return {"left": place, "why": error.strerror or str(error)}
    return {"left": "", "why": ""}


def _refusal(error):
    reason = REASONS.get(error.errno) or errno.errorcode.get(error.errno, "garbled")
    return {"no": reason, "why": error.strerror or str(error)}


def wait_for_mark(tell, place, text, seconds):
    """Tell after how many seconds the mark was read, or what was there instead."""
    began = time.monotonic()
    while True:
        seen = _content(place)
        took = time.monotonic() - began
        if seen == text:
            tell({"seconds": took})
            return
        if took > seconds:
            break
        time.sleep(PAUSE)
    if seen is None:
        tell({"no": "missing", "why": "the mark was not there after %g s" % seconds})
    else:
        tell({"no": "stale", "why": "the mark had other content after %g s" % seconds})


def _content(place):
    """Return the first bytes of a mark, None if there is none."""
    try:
        fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    try:
        return os.read(fd, 256)
    finally:
        os.close(fd)


def _run_child(control, sink, user, work):
    def tell(body):
        os.write(sink, dumps(body).encode("ascii") + b"\n")

    try:
        entry, _ = account(user, False)
        if entry.pw_uid != os.geteuid():
            become(entry.pw_name)
        work(control, tell)
    except NoAnswer as no:
        tell({"no": no.reason, "why": no.why})
    except OSError as error:
        tell(_refusal(error))


# ---------------------------------------------------------------- the agent's side


class MarkChild(object):
    """One child, the request that its next line answers, and what to say if none comes in time."""

    def __init__(self, agent, user, work):
        self._agent = agent
        self._line = b""
        self._request = None
        self._until = 0.0
        self._late = {}
        read_end, control = os.pipe()
        self._fd, sink = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _become_child(read_end, sink, user, work)
        os.close(read_end)
        os.close(sink)
        self._control = control
        agent.watch(self._fd, self._hear)
        agent.polls.append(self._poll)
        agent.endings.append(self._end)

    def expect(self, request, seconds, late):
        """Answer a request with the next line, or with `late` after so many seconds."""
        self._request = request
        self._until = time.monotonic() + seconds
        self._late = late

    def has_ended(self):
        return self._pid is None

    def let_go(self):
        """Have the child remove what it wrote."""
        if self._control is not None:
            os.close(self._control)
            self._control = None

    def _hear(self, data):
        self._line += data
        line, end, rest = self._line.partition(b"\n")
        if end:
            self._line = rest
            self._answer(loads(line.decode("ascii")))
        elif not data:
            self._answer({"no": "garbled", "why": "the child ended without an answer"})
            self.close()

    def _answer(self, body):
        request, self._request = self._request, None
        if request is not None:
            self._agent.answer(request, **body)

    def _poll(self, now):
        if self._request is not None and now > self._until:
            self._answer(self._late)

    def _end(self):
        """Give the child time to remove its mark when the agent ends."""
        if self._pid is None:
            return
        self.let_go()
        select.select([self._fd], [], [], WRITE_LIMIT)
        self.close()

    def close(self):
        """End the child, whatever it does."""
        if self._pid is None:
            return
        self._agent.unwatch(self._fd)
        self._agent.polls.remove(self._poll)
        os.close(self._fd)
        self.let_go()
        kill_group(self._pid)
        self._pid = None


def _become_child(control, sink, user, work):
    try:
        os.setsid()
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)  # it ends with the agent's pipe, and cleans up
        for fd in (0, 1, 2):  # the channel belongs to the agent alone
            os.dup2(os.open("/dev/null", os.O_RDWR), fd)
        _close_others(control, sink)
        _run_child(control, sink, user, work)
    finally:
        os._exit(0)


def _close_others(*kept):
    """Close what was inherited: another child ends once no process has its pipe open."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor of the listing itself


class Marks(object):
    """The operations of this part; a node has one mark at a time."""

    def __init__(self):
        self._mark = None
        self._place = ""

    def mark(self, agent, request):
        if self._mark is not None and not self._mark.has_ended():
            return {"no": "busy", "why": "an earlier mark is not removed yet"}
        place, text = _place(request), request["text"].encode("ascii")

        def work(control, tell):
            write_mark(control, tell, place, text)

        self._mark, self._place = MarkChild(agent, request["user"], work), place
        self._mark.expect(request, WRITE_LIMIT, _hung(WRITE_LIMIT))
        return None

    def see_mark(self, agent, request):
        place, text = _place(request), request["text"].encode("ascii")
        seconds = float(request["seconds"])

        def work(control, tell):
            wait_for_mark(tell, place, text, seconds)

        child = MarkChild(agent, request["user"], work)
        limit = seconds + WRITE_LIMIT
        child.expect(request, limit, _hung(limit))

    def unmark(self, agent, request):
        mark, self._mark = self._mark, None
        if mark is None or mark.has_ended():
            return {"left": "", "why": "there is no mark"}
        late = {"left": self._place, "why": "it was not removed within %g s" % WRITE_LIMIT}
        mark.expect(request, WRITE_LIMIT, late)
        mark.let_go()
        return None


def _place(request):
    name = request["name"]
    if "/" in name or not name.startswith(".clusterprep-"):
        raise ValueError("no name of a mark: %r" % name)
    return os.path.join(request["path"], name)


def _hung(seconds):
    return {"no": "hung", "why": "no answer within %g s" % seconds}


def install(agent):
    """Register the operations of this part."""
    marks = Marks()
    agent.ops.update(mark=marks.mark, see_mark=marks.see_mark, unmark=marks.unmark)
