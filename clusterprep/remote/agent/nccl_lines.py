"""Divides what a rank prints: how NCCL says that it connects is kept apart, and the tail is left to all else.

With NCCL_DEBUG=INFO a rank prints a line for each channel and peer, thousands in a large job. They would push the
traceback of a crash out of the tail, and they say the same over and over but for the number of the channel.
"""

import re

TAIL = 8192  # bytes of a rank's other output that are kept
MOST = 16384  # bytes of NCCL's lines that are kept
LONGEST = 8192  # bytes of one line; NCCL's longest is a list of devices, with 2048

INFO = b"NCCL INFO "
# Host, process, thread and device, and from 2.26 on the time where somebody asks for it (NCCL's debug.cc). Letters that
# stand before the host without a blank are taken for a part of it.
HEAD = re.compile(rb"(?:\[[^\]]{0,40}\] )?[\w.-]*:\d+:\d+ \[-?\d+\] NCCL INFO ")
# Interfaces, devices, networks, what was read from the environment, and who reaches whom: lines of bootstrap.cc,
# init.cc, plugin/net.cc, misc/param.cc, misc/socket.cc and transport/*.cc in 2.18 to 2.32.
TELLING = re.compile(
    rb" via |: Using |^Using |^NET/IB : No device|^NCCL_\w+ set |NET plugin|^NVLS multicast|libibverbs"
)
CHANNEL = re.compile(rb"^(?:Channel|CollNet|Ring) \d+(?:/\d+)? : ")


class Output(object):
    """What one rank has printed so far; needs the same little memory however much that is."""

    def __init__(self):
        self.lines, self.cut = (
            [],
            0,
        )  # what NCCL said, each thing once, and how many lines found no room
        self.tail = b""
        self._rest, self._seen, self._room = b"", set(), MOST

    def hear(self, data):
        """More output; it may begin and end within a line."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        others = [self._without(line) for line in lines]
        if len(self._rest) > LONGEST:
            others.append(self._rest)
            self._rest = b""
        self.tail = (self.tail + b"".join(others))[-TAIL:]

    def end(self):
        """Nothing more will come: half a line of NCCL's could say what is not so, any other belongs to the tail."""
        head = HEAD.search(self._rest)
        self.tail = (self.tail + (self._rest[: head.start()] if head else self._rest))[-TAIL:]
        self._rest = b""

    def _without(self, line):
        """What of a line is not NCCL's: its threads write between two pieces of a line of somebody else's."""
        if INFO not in line:
            return line + b"\n"
        self._note(line.rpartition(INFO)[2].rstrip(b"\r"))
        head = HEAD.search(line)
        return line[: head.start()] if head else b""

    def _note(self, words):
        if not TELLING.search(words):
            return
        key = CHANNEL.sub(b"", words)
        if key in self._seen:
            return
        if len(words) > self._room:
            self.cut += 1
            return
        self._seen.add(key)
        self._room -= len(words) + 1
        self.lines.append(words.decode("utf-8", "replace"))
