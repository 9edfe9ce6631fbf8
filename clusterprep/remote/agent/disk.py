"""Files that are complete and on disk, or as they were: a reader never sees half of one."""

import binascii
import errno
import fcntl
import os
import sys

from clusterprep.remote.agent.places import opened, owned_text, refusal
from clusterprep.remote.agent.readers import encoded

MAX_FILE = 1 << 20
# FS_IOC_GETFLAGS of 64-bit Linux; where it is another number the file system refuses it
_GET_FLAGS = 0x80086601
_PINNED = 0x10 | 0x20  # FS_IMMUTABLE_FL, FS_APPEND_FL
_REASONS = {
    errno.ENOSPC: "no_space",
    errno.EROFS: "read_only",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
}


class Stop(Exception):
    """A step that cannot be done. `body` is the answer: `no` is the reason for the controller."""

    def __init__(self, reason, why, **more):
        Exception.__init__(self, why)
        self.body = dict(more, no=reason, why=why)


def guarded(operation):
    """Return the operation with its failures turned into answers."""

    def guard(agent, request):
        try:
            return operation(agent, request)
        except Stop as stop:
            return stop.body
        except OSError as error:
            reason = _REASONS.get(error.errno, "failed")
            return {
                "no": reason,
                "why": "%s: %s" % (error.filename, error.strerror),
            }

    return guard


def below_root(root, path):
    """Return a path below the node's root."""
    return os.path.join(root, path.lstrip("/"))


def decoded(text):
    return None if text is None else binascii.a2b_base64(text)


def encoded_or_none(data):
    return None if data is None else encoded(data)


def current(path):
    """Return bytes and state of a regular file, (None, None) if there is none.

    Raises Stop for anything else. One byte more than MAX_FILE is read, for a caller to notice.
    """
    try:
        fd, state = opened(path)
    except ValueError as error:
        raise Stop("not_a_file", str(error))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None, None
        raise
    with os.fdopen(fd, "rb") as source:
        return source.read(MAX_FILE + 1), state


def refuse_shared(path, root):
    """Raise Stop if users other than root could change or redirect the folder of a file."""
    why = refusal(path, root)
    if why:
        raise Stop("not_ours", "%s is not touched: %s" % (path, why))


def read_own_file(path):
    """Return the bytes of a file of our own state; raise Stop if other users could write it."""
    try:
        return owned_text(path)
    except ValueError as error:
        raise Stop("not_ours", str(error))


def refuse_pinned(path):
    """Raise Stop if chattr has made a file immutable.

    Otherwise its rename would fail when other nodes have renamed their files already.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        answer = fcntl.ioctl(fd, _GET_FLAGS, b"\0" * 8)
        flags = int.from_bytes(answer[:4], sys.byteorder)
    except OSError:  # a file system without such flags
        flags = 0
    finally:
        os.close(fd)
    if flags & _PINNED:
        why = "%s may not be changed: lsattr shows i or a, chattr -ia takes it off" % path
        raise Stop("immutable", why)


def sync_folder(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path):
    """Make a folder and its parents, readable for all users whatever the umask of this session."""
    for folder in missing_folders(path):
        os.mkdir(folder)
        os.chmod(folder, 0o755)  # noqa: S103 - as /etc; secret files in it have modes of their own
        sync_folder(os.path.dirname(folder))


def missing_folders(path):
    """Return which of a folder and its parents do not exist yet, outermost first."""
    missing = []
    while not os.path.isdir(path):
        missing.insert(0, path)
        path = os.path.dirname(path)
    return missing


def write_new(path, data, mode, uid, gid):
    """Write a file that did not exist; it is complete and on disk when this returns."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as sink:
            sink.write(data)
            sink.flush()
            if (uid, gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, uid, gid)
            os.fchmod(fd, mode)
            os.fsync(fd)
    except BaseException:
        os.unlink(path)
        raise


def store_bytes(folder, name, data):
    """Write bytes beside the manifest. Returns the name, or None for data of None: no file."""
    if data is None:
        return None
    path = os.path.join(folder, name)
    write_new(
        path,
        data,
        0o600,
        os.geteuid(),
        os.getegid(),
    )
    return name


def read_stored(folder, name):
    """Return the bytes that store_bytes wrote, by the name that it returned."""
    if name is None:
        return None
    return read_own_file(os.path.join(folder, name))


def remove_leftover(path):
    """Remove what an interrupted replacement left beside a file. Returns its name, now free."""
    beside = "%s.clusterprep-new" % path
    if os.path.lexists(beside):
        os.unlink(beside)
    return beside


def replace_file(path, data, mode, uid, gid):
    """Replace a file by rename: a reader finds the old bytes or the new ones."""
    beside = remove_leftover(path)
    write_new(
        beside,
        data,
        mode,
        uid,
        gid,
    )
    os.rename(beside, path)
    sync_folder(os.path.dirname(path))


def value_of(path):
    """Return the running kernel's value at a path of /proc/sys; None if there is none.

    Columns are separated by one blank here: the kernel prints tabs, and accepts both.
    """
    data, _ = current(path)
    return None if data is None else data.replace(b"\t", b" ")


def set_value(path, data):
    """Set a value of the running kernel; raise Stop if it did not take exactly this one."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(fd, data, 0)
        finally:
            os.close(fd)
    except OSError as error:
        problem = (path, shown(data), error.strerror)
        raise Stop("failed", "%s does not take %r: %s" % problem)
    actual = value_of(path)
    if actual != data:
        difference = (path, shown(actual), shown(data))
        raise Stop("failed", "%s took %r for %r" % difference)


def shown(data):
    return (data or b"").decode("utf-8", "replace").strip()


def remove_file(path):
    os.unlink(path)
    sync_folder(os.path.dirname(path))
