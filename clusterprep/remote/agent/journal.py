"""The reading half of the journal: which runs a node remembers, how far each came, and who is writing now."""

import errno
import fcntl
import os

from clusterprep.remote.agent.light import loads
from clusterprep.remote.agent.readers import offer, read_file

LOCKS = "/proc/locks"
MOST = 100  # runs; the writing part keeps twenty


def read_journal(folder):
    """{"runs": [[run, cluster, state], …] oldest first, "holder": what the lock says while it is held, else null}."""
    runs = list(_runs(os.path.join(folder, "runs")))
    holder = _holder(os.path.join(folder, "lock"))
    if holder is None and not all(state in ("done", "undone") for _, _, state in runs):
        runs = list(
            _runs(os.path.join(folder, "runs"))
        )  # the run may just have been settled, and have let go
    return {"runs": runs, "holder": holder}


def _runs(folder):
    for name in sorted(_there(os.listdir, folder) or [])[-MOST:]:
        text = _there(read_file, os.path.join(folder, name, "manifest.json"))
        if text is not None:  # without a manifest a run had not begun
            manifest = loads(text)
            yield [manifest["run"], manifest["cluster"], manifest["state"]]


def _there(read, path):
    """None for what is not there; no permission is another answer."""
    try:
        return read(path)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def _holder(path):
    try:
        fd = _there(
            lambda path: os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC),
            path,
        )
    except OSError as error:
        if error.errno != errno.EACCES:
            raise
        return "another run" if _is_listed(os.lstat(path).st_ino) else None
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as source:
        try:
            fcntl.flock(
                source.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB
            )  # for an instant: closing lets it go
        except OSError:
            return source.read(200).decode("utf-8", "replace").strip() or "another run"
    return None


def _is_listed(inode):
    """Whether the kernel, which tells everybody, knows of a lock on this file of root's.

    «4: FLOCK  ADVISORY  WRITE 715 fe:00:525141 0 EOF». The device may be another than that of stat, as on btrfs.
    """
    rows = [line.split() for line in read_file(LOCKS).splitlines()]
    return any("FLOCK" in row and row[-3].endswith(":%d" % inode) for row in rows if len(row) >= 8)


def install(agent):
    """Offer the read."""
    offer({"journal": read_journal}, lane="files")
