"""The lines of the kernel's log that the journal has: those that the ring has lost, earlier boots.

The newest are read first and the reading is bounded, so what is missing is the oldest, and the
answer says since when nothing is missing.
"""

import errno
import os
import select
import time

from clusterprep.remote.agent.kernel_log import (
    PATH,
    RECORD,
    Kinds,
    encode,
    first_in,
    lines_with,
    now,
)
from clusterprep.remote.agent.light import loads, signal
from clusterprep.remote.agent.readers import MAX_TEXT, NoAnswer, offer, read_file, start

# Journals of 64 MiB are read in two seconds; a kernel that writes more than that in a week has its
# newest lines read.
SECONDS = 4.0
MAX_BYTES = 64 << 20
MATCHES = 20000  # lines with a word
WAIT = 0.1  # seconds between two looks at the clock
FOLDERS = ("/var/log/journal", "/run/log/journal")  # of systemd-journald.service(8)
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# By _TRANSPORT and not by -k, which means this boot alone.
KERNEL = "_TRANSPORT=kernel"
FIELDS = "MESSAGE,PRIORITY,SYSLOG_FACILITY,_SOURCE_MONOTONIC_TIMESTAMP"
# What journalctl says to users that may not read the system's journal.
NO_RIGHT = ("insufficient permissions", "not seeing messages", "Permission denied")


def read_kernel_journal(days, words, rules):
    """Return the kernel's lines of the last days in the journal that hold one of the words.

    {"now": seconds of the clock, "up": seconds since boot, "from": seconds since this boot from
    which on no line is missing (0 or below: none is missing), "lines": how many of this boot there
    were, "records": [[is of this boot, seconds of the clock, seconds since its boot, level, count,
    seconds of the clock of the first, text], …], "cut": {word: lines left out}}. Lines of this boot
    that the ring has too are counted and not returned.
    """
    clock, up = time.time(), now()
    oldest = days * 86400
    reading = Reading(words)
    begin = up - oldest
    # By the time since boot: the clock may have been set since.
    begin = max(begin, reading.uptime(_first_entry()))
    reading.run(_command("--reverse", "--since=@%d" % (clock - oldest), KERNEL))
    if reading.is_cut:
        begin = max(begin, reading.uptime(reading.last))
    return {
        "now": clock,
        "up": up,
        "from": begin,
        "lines": reading.lines,
        "records": reading.records(rules),
        "cut": reading.cut,
    }


def _command(*more):
    fields = "--output-fields=" + FIELDS
    return ["journalctl", "--no-pager", "--system", "--output=json", fields] + list(more)


def _first_entry():
    """Return the journal's first entry.

    Raise NoAnswer if there is no journal, or if this user may not read it.
    """
    if _has_no_journal():  # what journalctl would say, which costs 7 ms to start
        raise NoAnswer("missing_tool", "the journal is empty")
    lines = Lines(_command())
    try:
        for piece in lines.pieces():
            return loads(piece.partition(b"\n")[0].decode("utf-8", "replace"))
    finally:
        lines.close()
    if any(words in lines.errors for words in NO_RIGHT):
        raise NoAnswer("denied", "only root and the groups adm and systemd-journal may read it")
    why = lines.errors.strip().split("\n")[0]
    if "output-fields" in why:  # systemd before 236 of 2017
        raise NoAnswer("missing_tool", "journalctl is too old to print single fields")
    raise NoAnswer("missing_tool", why or "the journal is empty")


def _has_no_journal(*_):
    """Return whether no machine has a folder with a journal here."""
    for folder in FOLDERS:
        try:
            if os.listdir(folder):
                return False
        except OSError as error:
            if error.errno != errno.ENOENT:
                return False
    return True


class Reading(object):
    """Reads what journalctl prints, the newest line first, and keeps the lines with a word."""

    def __init__(self, words):
        self.lines = 0  # of this boot
        self.last = None  # the last entry that was read, the oldest of them
        self.is_cut = False
        self.cut = {}
        self._words = words
        self._found = []
        self._boot = read_file(BOOT_ID).strip().replace("-", "")
        self._ring_begins = _ring_begins()

    def run(self, argv):
        """Read to the end, or until it is enough."""
        # Only lines with a word are parsed. A message that is no text is a list of its bytes, of
        # which no word can be seen.
        encoded = encode(self._words) + [b'"MESSAGE":[']
        of_boot = b'"_BOOT_ID":"%s"' % self._boot.encode("ascii")
        end = time.time() + SECONDS
        total = 0
        line = b""
        lines = Lines(argv, end)
        try:
            for piece in lines.pieces():
                total += len(piece)
                self.lines += piece.count(of_boot)
                for match in lines_with(piece, encoded):
                    self._add(loads(match.decode("utf-8", "replace")))
                line = piece[piece.rfind(b"\n") + 1 :]
                if total > MAX_BYTES or len(self._found) >= MATCHES:
                    self.is_cut = True
                    break
        finally:
            lines.close()
        self.is_cut = self.is_cut or lines.is_late
        if line:
            self.last = loads(line.decode("utf-8", "replace"))

    def uptime(self, entry):
        """Return the seconds from this boot to an entry, 0 for one of an earlier boot or none."""
        if entry is None or entry["_BOOT_ID"] != self._boot:
            return 0.0
        # When the kernel wrote it; the other is when journald received it.
        monotonic = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry["__MONOTONIC_TIMESTAMP"]
        return int(monotonic) / 1e6

    def _add(self, entry):
        """Keep an entry if it is the kernel's own, has a word, and is not in the ring too."""
        text = entry.get("MESSAGE")
        if isinstance(text, list):
            text = bytearray(text).decode("utf-8", "replace")
        if not text or entry.get("SYSLOG_FACILITY", "0") != "0":
            return
        word = first_in(text, self._words)
        if word is None:
            return
        is_this_boot = entry["_BOOT_ID"] == self._boot
        uptime = self.uptime(entry)
        in_ring = self._ring_begins is not None and uptime >= self._ring_begins
        if is_this_boot and in_ring:
            return
        clock = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        level = int(entry.get("PRIORITY", "6"))
        self._found.append((is_this_boot, clock, uptime, level, word, text))

    def records(self, rules):
        """Return the lines by kind, this boot's apart from those of earlier boots."""
        rows = []
        for wanted in (False, True):
            kinds = Kinds(self._words, rules)
            uptimes = {}
            for is_this_boot, clock, uptime, level, word, text in reversed(self._found):
                if is_this_boot is wanted:
                    uptimes[clock] = uptime
                    kinds.add(word, len(uptimes), clock, level, text)
            for _, clock, level, count, since, text in kinds.records():
                rows.append([wanted, clock, uptimes[clock], level, count, since, text])
            self.cut = kinds.cut  # of this boot, which comes last
        return rows


def _ring_begins():
    """Return the seconds since boot of the oldest record that the ring has, None if not known."""
    try:
        fd = os.open(PATH, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        head = os.read(fd, RECORD).partition(b";")[0]
        return int(head.split(b",")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(fd)


def _entries_of(lines):
    """Return those of some lines that are entries, and not «-- No entries --»."""
    if lines.startswith(b"{") and lines.count(b"\n{") == lines.count(b"\n"):
        return lines
    return b"\n".join(line for line in lines.split(b"\n") if line.startswith(b"{"))


class Lines(object):
    """The lines that a command prints, until its end or until `end`; `close` ends the command."""

    def __init__(self, argv, end=None):
        self.errors = ""
        self.is_late = False
        self._end = end or time.time() + SECONDS
        self._pid, self._out, self._err = start(argv)

    def pieces(self):
        """Yield the entries in pieces of whole lines, as they come."""
        rest = b""
        reading = {self._out, self._err}
        while self._out in reading:
            readable = select.select(list(reading), [], [], WAIT)[0]
            if time.time() > self._end:
                self.is_late = True
                return
            for fd in readable:
                data = os.read(fd, 1 << 16)
                if not data:
                    reading.discard(fd)
                elif fd == self._err:
                    self.errors = (self.errors + data.decode("utf-8", "replace"))[:MAX_TEXT]
                else:
                    lines, _, rest = (rest + data).rpartition(b"\n")
                    piece = _entries_of(lines)
                    if piece:
                        yield piece

    def close(self):
        """End the command, and keep what it still says about errors."""
        os.close(self._out)
        try:
            os.kill(self._pid, signal.SIGKILL)
        except OSError:
            pass
        os.waitpid(self._pid, 0)
        self.errors += os.read(self._err, 1 << 16).decode("utf-8", "replace")
        os.close(self._err)


def install(agent):
    """Register the reader of this part, in a child of its own, as it may take seconds."""
    offer({"kernel_journal": read_kernel_journal}, instant=_has_no_journal)
