"""Files that are whole and on disk, or as they were: no reader ever sees a half of one."""

import binascii
import errno
import fcntl
import os
import sys

from clusterprep.remote.agent.places import opened, owned_text, refusal
from clusterprep.remote.agent.readers import encoded

MAX_FILE = 1 << 20
_GET_FLAGS = 0x80086601  # FS_IOC_GETFLAGS of 64-bit Linux; where it is another number the file system refuses it
_PINNED = 0x10 | 0x20  # FS_IMMUTABLE_FL, FS_APPEND_FL


class Stop(Exception):
    """A step that cannot be done, with a word for the controller."""

    def __init__(self, reason, why, **more):
        Exception.__init__(self, why)
        self.body = dict(more, no=reason, why=why)


def guarded(operation):
    """An operation whose failures become answers."""

    def guard(agent, request):
        try:
            return operation(agent, request)
        except Stop as stop:
            return stop.body
        except OSError as error:
            word = {
                errno.ENOSPC: "no_space",
                errno.EROFS: "read_only",
                errno.EACCES: "denied",
                errno.EPERM: "denied",
            }
            return {
                "no": word.get(error.errno, "failed"),
                "why": "%s: %s" % (error.filename, error.strerror),
            }

    return guard


def under(root, path):
    """A path below the node's root."""
    return os.path.join(root, path.lstrip("/"))


def decoded(text):
    return None if text is None else binascii.a2b_base64(text)


def maybe(data):
    return None if data is None else encoded(data)


def current(path):
    """Bytes and state of a regular file, (None, None) where there is none; anything else is refused."""
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
    """Stop where others than root could change the folder of a file, or lead it elsewhere, while it is written."""
    why = refusal(path, root)
    if why:
        raise Stop("not_ours", "%s is not touched: %s" % (path, why))


def own_text(path):
    """The text of a file of our own state, unless somebody else could have written it."""
    try:
        return owned_text(path)
    except ValueError as error:
        raise Stop("not_ours", str(error))


def refuse_pinned(path):
    """Stop where chattr keeps a file as it is: its rename would fail when other nodes have renamed theirs already."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        flags = int.from_bytes(fcntl.ioctl(fd, _GET_FLAGS, b"\0" * 8)[:4], sys.byteorder)
    except OSError:  # a file system without such flags
        flags = 0
    finally:
        os.close(fd)
    if flags & _PINNED:
        raise Stop(
            "immutable",
            "%s may not be changed: lsattr shows i or a, chattr -ia takes it off" % path,
        )


def sync_folder(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path):
    """A folder that everybody may look into, whatever the umask of this session; its parents too."""
    for folder in missing_folders(path):
        os.mkdir(folder)
        os.chmod(folder, 0o755)  # noqa: S103 - as /etc is; what is secret in it has modes of its own
        sync_folder(os.path.dirname(folder))


def missing_folders(path):
    """What does not exist yet of a folder and its parents, outermost first."""
    missing = []
    while not os.path.isdir(path):
        missing.insert(0, path)
        path = os.path.dirname(path)
    return missing


def write_new(path, data, mode, uid, gid):
    """A file that did not exist, complete and on disk when this returns."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as sink:
            sink.write(data)
            sink.flush()
            if (uid, gid) != (os.geteuid(), os.getegid()):
                os.fchown(sink.fileno(), uid, gid)
            os.fchmod(sink.fileno(), mode)
            os.fsync(sink.fileno())
    except BaseException:
        os.unlink(path)
        raise


def keep(folder, name, data):
    """Bytes beside the manifest; null where there is no file."""
    if data is None:
        return None
    write_new(os.path.join(folder, name), data, 0o600, os.geteuid(), os.getegid())
    return name


def kept(folder, name):
    return None if name is None else own_text(os.path.join(folder, name))


def remove_beside(path):
    """Remove what a replacement that was cut off left beside a file. Returns its name, which is free now."""
    beside = "%s.clusterprep-new" % path
    if os.path.lexists(beside):
        os.unlink(beside)
    return beside


def replace_file(path, data, mode, uid, gid):
    """Old bytes or new bytes, never half of them."""
    beside = remove_beside(path)
    write_new(beside, data, mode, uid, gid)
    os.rename(beside, path)
    sync_folder(os.path.dirname(path))


def value_of(path):
    """What the running kernel has at a path of /proc/sys, its columns parted by one blank; None for no such value.

    The kernel parts them by tabs, and takes both.
    """
    data, _ = current(path)
    return None if data is None else data.replace(b"\t", b" ")


def set_value(path, data):
    """Give the running kernel a value, and stop where it did not take exactly this one."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(fd, data, 0)
        finally:
            os.close(fd)
    except OSError as error:
        raise Stop("failed", "%s does not take %r: %s" % (path, shown(data), error.strerror))
    taken = value_of(path)
    if taken != data:
        raise Stop("failed", "%s took %r for %r" % (path, shown(taken), shown(data)))


def shown(data):
    return (data or b"").decode("utf-8", "replace").strip()


def remove_file(path):
    os.unlink(path)
    sync_folder(os.path.dirname(path))
