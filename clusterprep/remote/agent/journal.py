"""The reading half of the journal: the runs of a node, their states, and the run in progress."""

import errno
import fcntl
import os
import stat

from clusterprep.remote.agent.light import loads
from clusterprep.remote.agent.readers import NoAnswer, offer, read_file

LOCKS = "/proc/locks"
MOST = 1000  # runs; the writing part keeps some forty
STATES = ("staged", "committed", "done", "undone")


def read_journal(folder):
    """Return the runs, oldest first, and what the lock says while a run holds it.

    {"runs": [[run, cluster, state, number, nodes, node, batch], …], "holder": text, or null if the
    lock is free}. `nodes` names all nodes of the run, folded; `node` is the name of this one among
    them. `batch` is there for a run in batches, of which `nodes` are then one. "damaged" is there
    if runs cannot be rolled back: [[run, why], …].
    """
    runs_folder = os.path.join(folder, "runs")
    runs, damaged = _runs(runs_folder)
    holder = _holder(os.path.join(folder, "lock"))
    if holder is None and not _all_settled(runs):
        # Read again: a run may have been settled, and its lock released, since the first look.
        runs, damaged = _runs(runs_folder)
    journal = {
        "runs": runs,
        "holder": holder,
    }
    if damaged:
        journal["damaged"] = damaged
    return journal


def _all_settled(runs):
    for row in runs:
        if row[2] not in ("done", "undone"):
            return False
    return True


def _runs(folder):
    """Return the rows of the runs, and [run, why] of those that are damaged."""
    names = _unless_missing(os.listdir, folder) or []
    if len(names) > MOST:
        raise ValueError("%s has more than %d runs" % (folder, MOST))
    rows = []
    damaged = []
    for name in sorted(names):
        path = os.path.join(folder, name, "manifest.json")
        try:
            row = _unless_missing(_read_run, path)
        except _DAMAGE as error:
            damaged.append([name, "%s cannot be read: %s" % (path, _described(error))])
            continue
        if row is not None:  # without a manifest a run had not begun
            rows.append(row)
    return sorted(rows, key=_order), damaged


# What is raised for a manifest that says nothing. Permission is no part of it: others may read it.
_DAMAGE = (NoAnswer, ValueError, LookupError, TypeError, AttributeError, IsADirectoryError)


def _described(error):
    if isinstance(error, NoAnswer):
        return error.why
    if isinstance(error, KeyError):
        return "it has no %s" % error
    return getattr(error, "strerror", None) or str(error)


def _read_run(path):
    """Return the row of a run. Raises one of _DAMAGE if it could not be rolled back."""
    _refuse_foreign(path)
    text = read_file(path)
    if not text.strip():
        raise ValueError("it is empty")
    manifest = loads(text)
    row = _row(manifest)
    if not isinstance(row[3], int):
        raise TypeError("%r is no number of a run" % (row[3],))
    folder, run = os.path.dirname(path), row[0]
    if run != os.path.basename(folder):
        raise ValueError("it is of run %s" % run)
    if row[2] not in STATES:
        raise ValueError("%r is no state of a run" % (row[2],))
    for entry in manifest["files"]:
        for key in ("backup", "after", "attributes"):
            name = entry.get(key)
            if name and not os.path.exists(os.path.join(folder, name)):
                raise ValueError("its file %s is missing" % name)
    return row


def _refuse_foreign(path):
    """Raise ValueError if others than the owner of the journal could have written a manifest."""
    state = os.lstat(path)
    owners = (0, os.geteuid(), os.lstat(os.path.dirname(path)).st_uid)
    if state.st_uid not in owners or state.st_mode & 0o022:
        raise ValueError(
            "it belongs to user %d, mode %04o: others could have written it"
            % (state.st_uid, stat.S_IMODE(state.st_mode))
        )


def _row(manifest):
    """Return a run as it is reported. Older releases did not note number, nodes and node."""
    row = [manifest["run"], manifest["cluster"], manifest["state"]]
    row += [
        manifest.get("number", 0),
        manifest.get("nodes", ""),
        manifest.get("node", ""),
    ]
    if manifest.get("batch"):
        row.append(manifest["batch"])
    return row


def _order(row):
    """Return the sort key of a run: its number, then its name."""
    return row[3], row[0]


def _unless_missing(read, path):
    """Return what `read` returns, None if the path does not exist. Other errors are raised."""
    try:
        return read(path)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def _open_lock(path):
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _holder(path):
    try:
        fd = _unless_missing(_open_lock, path)
    except OSError as error:
        if error.errno != errno.EACCES:
            raise
        inode = os.lstat(path).st_ino
        return "another run" if _is_listed(inode) else None
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as source:
        try:
            # Held for an instant: closing the file releases it.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = source.read(200).decode("utf-8", "replace")
            return text.strip() or "another run"
    return None


def _is_listed(inode):
    """Return whether the kernel lists a lock on this file of root's. All users may read the list.

    «4: FLOCK  ADVISORY  WRITE 715 fe:00:525141 0 EOF». Only the inode is compared: the device may
    be another than that of stat, as on btrfs.
    """
    for line in read_file(LOCKS).splitlines():
        fields = line.split()
        if len(fields) < 8 or "FLOCK" not in fields:
            continue
        if fields[-3].endswith(":%d" % inode):
            return True
    return False


def install(agent):
    """Offer the read."""
    offer({"journal": read_journal}, lane="files")
