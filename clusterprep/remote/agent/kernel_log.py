"""The lines of the kernel's log that could matter, read from /dev/kmsg without waiting for more."""

import errno
import os
import time

from clusterprep.remote.agent.readers import NoAnswer, offer

PATH = "/dev/kmsg"
KEPT = 200  # different lines that are sent to the controller, the newest of them
LINE = 1000  # characters of one
BEFORE = 100  # characters before the word, of a line that is longer
# Two lines are of one kind if they name the same device first and this many characters agree, from
# the word on.
ALIKE = 31
MAX_BYTES = 64 << 20  # of a whole log; the largest ring that a kernel can be given has 32 MiB
RECORD = 16 << 10  # bytes; one record of the kernel has 8 KiB at most
PIECE = 1 << 20  # bytes of the log that are searched at once


def read_kernel_log(words, rules):
    """Return the kernel's lines that hold one of the words.

    {"now": seconds since boot, "first": [number, seconds] of the oldest record that the ring
    still has, "records": [[number, seconds, level, count, seconds of the first, text], …], "cut":
    {word: lines left out}}. Lines of one kind are one record, the newest, with their count; `rules`
    say of some words what makes a kind, see Kinds.
    """
    first, kinds = None, Kinds(words, rules)
    encoded = encode(words)
    for piece in _pieces():
        if first is None:
            first = _first_record(piece)
        for line in lines_with(piece, encoded):
            record = _record(line)
            if record is None:
                continue
            priority, number, seconds, text = record
            word = first_in(text, words)
            if word is None:
                continue
            facility, level = priority >> 3, priority & 7
            if facility == 0:  # the kernel's own: other lines were written by a process
                kinds.add(
                    word,
                    number,
                    seconds,
                    level,
                    text,
                )
    if first is None:
        raise NoAnswer("garbled", "%s holds no record" % PATH)
    return {
        "now": now(),
        "first": first,
        "records": kinds.records(),
        "cut": kinds.cut,
    }


def _first_record(piece):
    """Return [number, seconds] of the first record in a piece of the log, None without one."""
    for line in piece.split(b"\n"):
        record = _record(line)
        if record is not None:
            return [record[1], record[2]]
    return None


def _record(line):
    """Return priority, number, seconds and text of a line; None for one that begins no record.

    KEY=value lines of a record begin with a space.
    """
    head, _, text = line.decode("utf-8", "replace").partition(";")
    fields = head.split(",")
    if len(fields) < 3 or not fields[0].isdigit():
        return None
    return int(fields[0]), int(fields[1]), int(fields[2]) / 1e6, text


class Kinds(object):
    """Records of one kind put together, the newest of each, KEPT of them at most.

    A rule is [word, pattern, grave]. Lines with this word are of one kind if the groups of the
    pattern agree, and those that match `grave` are dropped last. Where no rule or pattern applies,
    lines are of one kind if they name the same device first and go on alike from the word.
    """

    def __init__(self, words, rules):
        self.cut = {}
        self._rules = dict((word, (pattern, grave)) for word, pattern, grave in rules)
        self._by_word = dict((word, {}) for word in words)
        self._grave = set()

    def add(self, word, number, seconds, level, text):
        kind, is_grave = self._kind(word, text)
        (self._grave.add if is_grave else self._grave.discard)(kind)
        kinds = self._by_word[word]
        # Removed and added again at the end: the order is that of the newest.
        before = kinds.pop(kind, None)
        count, since = 1, seconds
        if before:
            count, since = before[3] + 1, before[4]
        shown = _around(text, text.find(word))
        kinds[kind] = [number, seconds, level, count, since, shown]
        if sum(map(len, self._by_word.values())) > KEPT:
            self._drop_one()

    def _kind(self, word, text):
        """Return what makes a line's kind, and whether it is grave."""
        start = text.find(word)
        if word in self._rules:
            # Here and not above: few nodes have such a line, and `re` takes longer than this read.
            import re

            pattern, grave = self._rules[word]
            part = _around(text, start)
            match = re.search(pattern, part)
            if match:
                return match.groups(""), bool(grave and re.search(grave, part))
        return _device(text) + text[start : start + ALIKE], False

    def _drop_one(self):
        """Drop the oldest record of the word that has most, a grave one last; count its lines."""
        lesser = {}
        for word, kinds in self._by_word.items():
            lesser[word] = [kind for kind in kinds if kind not in self._grave]
        if not any(lesser.values()):
            lesser = self._by_word
        word = max(lesser, key=lambda word: len(lesser[word]))
        kinds = self._by_word[word]
        oldest = next(iter(lesser[word]))
        dropped = kinds.pop(oldest)
        self.cut[word] = self.cut.get(word, 0) + dropped[3]

    def records(self):
        records = []
        for kinds in self._by_word.values():
            records.extend(kinds.values())
        return sorted(records)


def _around(text, start):
    """Return a line, the part around a word of a long one."""
    if len(text) <= LINE:
        return text
    return text[max(0, start - BEFORE) :][:LINE]


def _device(text):
    """Return «nvme nvme3: » of «nvme nvme3: I/O 12 QID 3 timeout», "" where no device is named."""
    driver, _, rest = text.partition(" ")
    name = rest.partition(" ")[0]
    has_digit = any(character.isdigit() for character in name)
    if name.endswith(":") and has_digit:
        return "%s %s " % (driver, name)
    return ""


def encode(words):
    """Return the words as bytes."""
    return [word.encode("utf-8") for word in words]


def first_in(line, words):
    """Return the first of the words that a line holds, None if it holds none."""
    for word in words:
        if word in line:
            return word
    return None


def lines_with(piece, words):
    """Return the lines of some whole lines that hold one of the words, in their order.

    Each word is sought in all lines at once: to seek 60 words in each of 2,000 lines took a node
    16 ms, and this takes 2.
    """
    ends = {}
    for word in words:
        at = piece.find(word)
        while at >= 0:
            start = piece.rfind(b"\n", 0, at) + 1
            end = piece.find(b"\n", at)
            if end < 0:
                end = len(piece)
            ends[start] = end
            at = piece.find(word, end)
    return [piece[start : ends[start]] for start in sorted(ends)]


def _pieces():
    """Yield the log in pieces of whole lines, of some PIECE bytes each."""
    begun = []  # bytes that have been read and not been yielded
    size = 0
    for data in _blocks():
        begun.append(data)
        size += len(data)
        if size >= PIECE:
            whole, _, rest = b"".join(begun).rpartition(b"\n")
            yield whole
            begun = [rest]
            size = len(rest)
    # What has no end of a line may be the beginning of one.
    yield b"".join(begun).rpartition(b"\n")[0]


def _blocks():
    """Yield all bytes of the log.

    A device gives one record for each read, a file in its place gives pieces.
    """
    fd = os.open(PATH, os.O_RDONLY | os.O_NONBLOCK)
    total = 0
    try:
        while True:
            try:
                data = os.read(fd, RECORD)
            except OSError as error:
                # Overwritten before it was read: the next read continues with the oldest record.
                if error.errno == errno.EPIPE:
                    continue
                if error.errno == errno.EAGAIN:
                    break
                raise
            if not data:
                break
            total += len(data)
            if total > MAX_BYTES:  # the newest lines come last
                raise NoAnswer("truncated", "%s has more than %d bytes" % (PATH, MAX_BYTES))
            yield data
    finally:
        os.close(fd)


def now():
    """Return the seconds since boot, by the clock that the log uses."""
    try:
        with open("/proc/uptime", "rb") as source:
            return float(source.read().split()[0])
    except (OSError, ValueError, IndexError):
        return time.monotonic()


def install(agent):
    """Register the readers of this part."""
    offer({"kernel_log": read_kernel_log}, lane="files")
