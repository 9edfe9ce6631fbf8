"""The output of a launch's processes, line by line, on its way to the controller.

A job must never wait for a slow terminal: if lines come faster than the channel to the controller
takes them, the rest is left out, and the number of these lines is reported.
"""

import time

LONGEST = 8192  # bytes of one line; longer ones, progress bars above all, go on in pieces
BACKLOG = 2 << 20  # bytes that wait for the controller, of all streams of this node together
AT_ONCE = 256  # lines in one event
# Bytes of the lines in one event: as JSON a byte has six characters at most, and the controller
# takes no event of more than 256 KiB.
BYTES_AT_ONCE = 32 << 10


class OutputStream(object):
    """One stream of one process: stdout or stderr of a rank, or both of torchrun itself.

    `group` is the ProcessGroup of the launch, `name` what the stream is called in events.
    """

    def __init__(self, group, rank, name):
        self.group = group
        self.rank = rank
        self.name = name
        self.closed_at = None
        self._rest = b""  # the start of a line whose end has not come yet
        self._left_out = 0

    def hear(self, data):
        """Take more output, empty at its end; it may begin and end within a line."""
        if not data:
            self.closed_at = time.monotonic()
            self.end()
            return
        complete = (self._rest + data).split(b"\n")
        last = complete.pop()
        lines = []
        for line in complete:
            lines += pieces(line) or [b""]
        rest = pieces(last) or [b""]
        self._rest = rest.pop()
        self._pass_on(lines + rest)

    def end(self):
        """Finish: no more output comes, so the start of a line is a line."""
        rest, self._rest = self._rest, b""
        self._pass_on([rest] if rest else [])
        if self._left_out:
            self._report(())

    def _pass_on(self, lines):
        """Send lines to the controller, or count them as left out if too much waits for it."""
        if self.group.agent.backlog() > BACKLOG:
            self._left_out += len(lines)
            return
        for event_lines in events_of(lines):
            self._report(event_lines)

    def _report(self, lines):
        """Send lines as one event, with the number of those left out before them."""
        texts = [line.decode("utf-8", "replace") for line in lines]
        report = {
            "stream": self.name,
            "lines": texts,
            "left_out": self._left_out,
        }
        self.group.tell("lines", self.rank, fields=report)
        self._left_out = 0


def events_of(lines):
    """Yield the lines in lists that each fit one event."""
    fitting = []
    size = 0
    for line in lines:
        if fitting and (len(fitting) >= AT_ONCE or size + len(line) > BYTES_AT_ONCE):
            yield fitting
            fitting = []
            size = 0
        fitting.append(line)
        size += len(line)
    if fitting:
        yield fitting


def pieces(line):
    """Return a line as pieces of at most LONGEST bytes; none for an empty line."""
    return [line[start : start + LONGEST] for start in range(0, len(line), LONGEST)]
