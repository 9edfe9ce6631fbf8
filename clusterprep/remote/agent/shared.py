"""Folders that all nodes should share, as the job's user sees them. Nothing is written.

What is told is enough to see that two nodes look at different folders: the inode, and the numbers
of some entries. Names do not leave the node, and are no more than a checksum of 32 bits there.
"""

import binascii
import errno
import os
import time

from clusterprep.remote.agent.readers import offer
from clusterprep.remote.agent.shells import account, as_user
from clusterprep.remote.agent.side_by_side import run_all

ENTRIES = 10000  # of a folder that are looked at; with more its entries are not told
SKETCH = 32  # entries that are told: those with the smallest checksums
TRIES = 3  # of each time; the shortest counts
CANDIDATES = 8  # files that are considered for the small read
SMALL = 4096  # bytes of the small read
LONGEST = 150  # characters of a text: a line has to fit into PIPE_BUF
REASONS = {errno.ENOENT: "missing", errno.EACCES: "denied", errno.EPERM: "denied"}
ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


def read_shared(user, seconds, *paths):
    """Return {path: ["ok", state] or ["no", reason, why]} as `user` (None: who logged in) sees it.

    See `look_at` for the state. A folder that does not answer costs `seconds`, once.
    """
    entry, _ = account(user, False)
    return as_user(entry, lambda: _all(paths, seconds))


def _all(paths, seconds):
    jobs = [_job(path) for path in paths]
    answers = {}
    for path, (result, step) in zip(paths, run_all(jobs, seconds)):
        why = "%s: no answer within %g s" % (step or "not begun", seconds)
        answers[path] = result or ["no", "hung" if step else "timed_out", why]
    return answers


def _job(path):
    return lambda begin: look_at(path, begin)


def look_at(path, begin):
    """Return ["ok", state] of a folder, or ["no", reason, why].

    The state has "inode", "type", "source", "point" and "mode" (ro, rw) of the mount, "entries"
    (checksums and count, None for more than are looked at), "writable", "size" and "free" in
    bytes, "open" and "read" in seconds (None without a file to read).
    """
    try:
        begin("stat")
        inode = os.stat(path).st_ino
        space = os.statvfs(path)
        begin("list")
        entries, files = _entries(path)
        begin("read")
        opened = _shortest(lambda: os.stat(path) and os.scandir(path).close())
        read = _small_read(files)
        state = _mount_of(os.path.realpath(path))  # behind the look, which may have mounted it
        state.update(
            {
                "inode": inode,
                "entries": entries,
                "writable": os.access(path, os.W_OK | os.X_OK),
                "size": space.f_blocks * space.f_frsize,
                "free": space.f_bavail * space.f_frsize,
                "open": opened,
                "read": read,
            }
        )
    except OSError as error:
        reason = REASONS.get(error.errno) or errno.errorcode.get(error.errno, "garbled")
        return ["no", reason, error.strerror or str(error)]
    return ["ok", state]


def _entries(path):
    """Return the checksums of some entries with the number of all, and paths of some files."""
    rows = []
    with os.scandir(path) as listing:
        for entry in listing:
            if len(rows) == ENTRIES:
                return None, []
            name = os.fsencode(entry.name)
            own = binascii.crc32(name)
            rows.append((own, binascii.crc32(b"%d" % entry.inode(), own), entry))
    rows.sort(key=lambda row: row[:2])
    files = []
    for _, _, entry in rows[:SKETCH]:
        if len(files) < CANDIDATES and entry.is_file(follow_symlinks=False):
            files.append(entry.path)
    sketch = [[own, with_inode] for own, with_inode, _ in rows[:SKETCH]]
    return [len(rows), sketch], files


def _small_read(files):
    """Return the seconds to open a file and read its beginning, None where none can be read.

    A file without blocks may be on tape, and to read it would bring it back.
    """
    for path in files:
        try:
            if os.stat(path).st_blocks:
                return _shortest(lambda: _read(path))  # noqa: B023 - it is called here
        except OSError:
            continue
    return None


def _read(path):
    with open(path, "rb", buffering=0) as source:
        source.read(SMALL)


def _shortest(action):
    times = []
    for _ in range(TRIES):
        began = time.monotonic()
        action()
        times.append(time.monotonic() - began)
    return min(times)


def _mount_of(path):
    """Return type, source, point and mode of the mount that a path lies on."""
    best = None
    with open("/proc/self/mountinfo", "rb") as source:
        lines = source.read().decode("utf-8", "replace").split("\n")
    for line in lines:
        of_mount, sign, of_file_system = line.partition(" - ")
        fields, others = of_mount.split(" "), of_file_system.split(" ")
        if not sign or len(fields) < 6 or len(others) < 3:
            continue
        point = _unescaped(fields[4])
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and (best is None or len(point) >= len(best["point"])):
            options = fields[5].split(",") + others[-1].split(",")
            best = {
                "type": others[0],
                "source": _unescaped(others[1])[:LONGEST],
                "point": point[:LONGEST],
                "mode": "ro" if "ro" in options else "rw",
            }
    if best is None:
        raise OSError(errno.ENOENT, "no mount has %s" % path)
    return best


def _unescaped(text):
    for code, character in ESCAPES:
        text = text.replace(code, character)
    return text


def install(agent):
    """Register the kind of read of this part, in a child of its own."""
    offer({"shared": read_shared})
