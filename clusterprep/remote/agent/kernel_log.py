"""The kernel's own log: the lines that could matter, from /dev/kmsg, without waiting for new ones."""

import errno
import os
import time

from clusterprep.remote.agent.readers import NoAnswer, offer

PATH = "/dev/kmsg"
KEPT = 200  # different lines that travel home, the newest of them
LINE = 1000  # characters of one
ALIKE = 31  # characters from the word on in which two lines of one kind agree: as far as the code of an Xid
MAX_BYTES = 64 << 20  # of a whole log; the largest ring that a kernel can be given has 32 MiB
RECORD = 16 << 10  # bytes; one record of the kernel has 8 KiB at most


def read_kernel_log(*words):
    """The kernel's lines that hold one of the words.

    {"now": seconds since boot, "first": [number, seconds] of the oldest record that the ring still has,
    "records": [[number, seconds, level, count, seconds of the first, text], …], "cut": {word: lines left out}}.
    Lines that begin alike are one record, the newest, with their count.
    """
    first, found, cut = None, dict((word, {}) for word in words), {}
    sought = [word.encode("utf-8") for word in words]
    for line in _lines():
        for word in (
            sought
        ):  # a plain loop over bytes: a log may have 20,000 lines, and hardly one of them matters
            if word in line:
                break
        else:
            if first is not None:
                continue
        head, _, text = line.decode("utf-8", "replace").partition(";")
        fields = head.split(",")
        if len(fields) < 3 or not fields[0].isdigit():
            continue  # KEY=value lines of a record begin with a space
        number, seconds = int(fields[1]), int(fields[2]) / 1e6
        first = first or [number, seconds]
        mine = [word for word in words if word in text]
        if mine and not int(fields[0]) >> 3:  # the kernel's own: the others some process wrote
            at = text.find(mine[0])
            record = [number, seconds, int(fields[0]) & 7, text[:LINE]]
            _keep(found, cut, mine[0], text[at : at + ALIKE], record)
    if first is None:
        raise NoAnswer("garbled", "%s holds no record" % PATH)
    records = sorted(record for kind in found.values() for record in kind.values())
    return {"now": _now(), "first": first, "records": records, "cut": cut}


def _keep(found, cut, word, alike, record):
    number, seconds, level, text = record
    before = found[word].pop(
        alike, None
    )  # and in again at the end: the order is that of the newest
    count, since = (before[3] + 1, before[4]) if before else (1, seconds)
    found[word][alike] = [number, seconds, level, count, since, text]
    if sum(len(kind) for kind in found.values()) > KEPT:
        longest = max(found, key=lambda word: len(found[word]))
        oldest = min(found[longest], key=lambda alike: found[longest][alike][0])
        cut[longest] = cut.get(longest, 0) + found[longest].pop(oldest)[3]


def _lines():
    """Every line of the log. A device gives one record for each read, a file in its place gives pieces."""
    fd = os.open(PATH, os.O_RDONLY | os.O_NONBLOCK)
    rest, total = b"", 0
    try:
        while total < MAX_BYTES:
            try:
                data = os.read(fd, RECORD)
            except OSError as error:
                if (
                    error.errno == errno.EPIPE
                ):  # overwritten before we came to it; the next read is at what is left
                    continue
                if error.errno == errno.EAGAIN:
                    break
                raise
            if not data:
                break
            total += len(data)
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                yield line
    finally:
        os.close(fd)


def _now():
    """Seconds since boot, by the clock that the log uses."""
    try:
        with open("/proc/uptime", "rb") as source:
            return float(source.read().split()[0])
    except (OSError, ValueError, IndexError):
        return time.monotonic()


def install(agent):
    """Register the readers of this part."""
    offer({"kernel_log": read_kernel_log}, lane="files")
