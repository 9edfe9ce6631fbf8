"""What processes of a launch print, line by line, on the way to the controller.

A job must never wait for somebody's terminal: where lines come faster than the way to the controller takes them, the
rest is left out, and how much that was is said.
"""

import time

LONGEST = 8192  # bytes of one line; longer ones, progress bars above all, go on in pieces
BACKLOG = 4 << 20  # bytes that wait for the controller, of all streams of this node together
AT_ONCE = 256  # lines in one message


class OutputStream(object):
    """One stream of one process: stdout or stderr of a rank, or both of torchrun itself."""

    def __init__(self, company, rank, name):
        self.company, self.rank, self.name = company, rank, name
        self.closed_at = None
        self._rest, self._left_out = b"", 0

    def hear(self, data):
        """More output, empty at its end; it may begin and end within a line."""
        if not data:
            self.closed_at = time.monotonic()
            self.end()
            return
        lines = []
        whole = (self._rest + data).split(b"\n")
        for line in whole[:-1]:
            lines += pieces(line) or [b""]
        rest = pieces(whole[-1]) or [b""]
        self._rest = rest.pop()
        self._pass_on(lines + rest)

    def end(self):
        """Nothing more will come: what is there of a line is one."""
        rest, self._rest = self._rest, b""
        self._pass_on([rest] if rest else [])
        if self._left_out:
            self._tell(())

    def _pass_on(self, lines):
        if self.company.agent.backlog() > BACKLOG:
            self._left_out += len(lines)
            return
        for at in range(0, len(lines), AT_ONCE):
            self._tell(lines[at : at + AT_ONCE])

    def _tell(self, lines):
        texts = [line.decode("utf-8", "replace") for line in lines]
        self.company.tell(
            "lines",
            self.rank,
            said={"stream": self.name, "lines": texts, "left_out": self._left_out},
        )
        self._left_out = 0


def pieces(line):
    """A line as lines of a length that is bearable."""
    return [line[at : at + LONGEST] for at in range(0, len(line), LONGEST)]
