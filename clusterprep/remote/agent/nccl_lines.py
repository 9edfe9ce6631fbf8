"""Divides a rank's output into NCCL's lines about its connections and the tail of all else.

With NCCL_DEBUG=INFO a rank prints a line for each channel and peer, thousands in a large job. They
would push the traceback of a crash out of the tail, and they repeat each other but for the number
of the channel.
"""

import re

TAIL = 8192  # bytes of a rank's other output that are kept
MOST = 16384  # bytes of NCCL's lines that are kept
LONGEST = 8192  # bytes of one line; NCCL's longest is a list of devices, with 2048

INFO = b"NCCL INFO "
# Host, process, thread and device, and from 2.26 on the time where it is configured (NCCL's
# debug.cc). Letters that stand before the host without a blank are taken for a part of it.
HEAD = re.compile(rb"(?:\[[^\]]{0,40}\] )?[\w.-]*:\d+:\d+ \[-?\d+\] NCCL INFO ")
# Interfaces, devices, networks, variables of the environment, numbers of channels, and peers with
# their transports: lines of bootstrap.cc, init.cc, plugin/net.cc, misc/param.cc, misc/socket.cc and
# transport/*.cc in 2.18 to 2.32.
TELLING = re.compile(
    rb" via |: Using |^Using |^NET/IB : No device|^NCCL_\w+ set |NET plugin"
    rb"|^NVLS multicast|^Failed to bind NVLink SHARP|^\d+ coll channels|libibverbs"
)
CHANNEL = re.compile(rb"^(?:Channel|CollNet|Ring) \d+(?:/\d+)? : ")


class Output(object):
    """The output of one rank so far, in bounded memory.

    `lines` are NCCL's lines, each once; `cut` is how many of them found no room; `tail` is the end
    of all else.
    """

    def __init__(self):
        self.lines = []
        self.cut = 0
        self.tail = b""
        self._rest = b""  # the start of a line whose end has not come yet
        self._known = set()
        self._room = MOST

    def hear(self, data):
        """Take more output; it may begin and end within a line."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        others = [self._without_nccl(line) for line in lines]
        if len(self._rest) > LONGEST:
            others.append(self._rest)
            self._rest = b""
        self._add_to_tail(b"".join(others))

    def end(self):
        """Finish: no more output comes.

        Half a line of NCCL's is dropped, as it could say something wrong; any other half line
        belongs to the tail.
        """
        rest = self._rest
        self._rest = b""
        self._add_to_tail(_before_nccl(rest, rest))

    def _add_to_tail(self, text):
        self.tail = (self.tail + text)[-TAIL:]

    def _without_nccl(self, line):
        """Note NCCL's part of a line and return the rest, which another thread printed."""
        if INFO not in line:
            return line + b"\n"
        message = line.rpartition(INFO)[2].rstrip(b"\r")
        self._note(message)
        return _before_nccl(line, b"")

    def _note(self, message):
        """Keep a message that tells of a connection, once for all channels, while there is room."""
        if not TELLING.search(message):
            return
        key = CHANNEL.sub(b"", message)
        if key in self._known:
            return
        if len(message) > self._room:
            self.cut += 1
            return
        self._known.add(key)
        self._room -= len(message) + 1
        self.lines.append(message.decode("utf-8", "replace"))


def _before_nccl(line, default):
    """Return what stands before NCCL's head in a line; `default` if there is no head."""
    head = HEAD.search(line)
    return line[: head.start()] if head else default
