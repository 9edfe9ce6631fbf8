"""Files that are complete and on disk, or as they were: a reader never sees half of one."""

import binascii
import errno
import fcntl
import os
import sys

from clusterprep.remote.agent.places import opened, owned_text, refusal
from clusterprep.remote.agent.readers import encoded

MAX_FILE = 1 << 20  # bytes of a file that is written or kept
MAX_ATTRIBUTES = 1 << 16  # bytes of all extended attributes of a file, with their names
ROOM = 1024  # bytes; the state of a run grows by less than these
ACL = "system.posix_acl_access"
# What the kernel keeps about the bytes of a file, and drops or computes anew when they change.
OF_THE_BYTES = ("security.ima", "security.evm", "security.capability")
# FS_IOC_GETFLAGS of 64-bit Linux; where it is another number the file system refuses it
_GET_FLAGS = 0x80086601
_PINNED = 0x10 | 0x20  # FS_IMMUTABLE_FL, FS_APPEND_FL
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# What link(2) says where a file cannot have a second name: a file system without hard links, a file
# of another user, a name that is too long, too many links.
_NO_LINK = (
    errno.EPERM,
    errno.ENOTSUP,
    errno.ENOSYS,
    errno.ENAMETOOLONG,
    errno.EMLINK,
    errno.EXDEV,
)
_REASONS = {
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
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
            return {"no": _REASONS.get(error.errno, "failed"), "why": error_text(error)}

    return guard


def error_text(error):
    """Return an OSError as «path: why», or why alone if it names no path."""
    why = error.strerror or str(error)
    return "%s: %s" % (error.filename, why) if error.filename else why


class Naming(object):
    """A block whose errors name a path: calls on an open file name none."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if isinstance(error, OSError) and error.filename is None:
            error.filename = self.path


def below_root(root, path):
    """Return a path below the node's root."""
    return os.path.join(root, path.lstrip("/"))


def decoded(text):
    return None if text is None else binascii.a2b_base64(text)


def encoded_or_none(data):
    return None if data is None else encoded(data)


def current(path):
    """Return bytes and state of a regular file, (None, None) if there is none.

    Raises Stop for anything else, and for a file that is too large to be kept: a part of it would
    pass for the whole.
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
        data = source.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise Stop("truncated", "%s has more than %d bytes" % (path, MAX_FILE))
    return data, state


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
        with Naming(path):
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


def write_new(path, data, mode, uid, gid, attributes=None):
    """Write a file that did not exist; it is complete and on disk when this returns.

    `attributes` are its extended attributes as {name: bytes}; without them it has only those that
    the kernel gives by itself, and no access control list.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with Naming(path), os.fdopen(fd, "wb") as sink:
            # While it is empty: an access control list lets others read what is in it.
            if _set_attributes(fd, path, attributes or {}):
                os.fchmod(fd, 0o600)
            sink.write(data)
            sink.flush()
            if (uid, gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, uid, gid)
            os.fchmod(fd, mode)
            os.fsync(fd)
    except BaseException:
        os.unlink(path)
        raise


def attributes_of(path):
    """Return the extended attributes of a file that a new one is to have too, as {name: bytes}.

    Raises Stop if they are too many to be kept.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        attributes = _attributes(fd)
    except OSError as error:
        raise Stop("failed", "extended attributes of %s: %s" % (path, error.strerror))
    finally:
        os.close(fd)
    size = sum(len(name) + len(value) for name, value in attributes.items())
    if size > MAX_ATTRIBUTES:
        why = "%s has %d bytes of extended attributes, and at most %d are kept"
        raise Stop("failed", why % (path, size, MAX_ATTRIBUTES))
    return attributes


def _attributes(fd):
    """Return the extended attributes of an open file; none on a file system without them."""
    try:
        names = os.listxattr(fd)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return {}
    return dict((name, os.getxattr(fd, name)) for name in names if name not in OF_THE_BYTES)


def _set_attributes(fd, path, wanted):
    """Give a new file its extended attributes. Returns whether it has an access control list."""
    present = _attributes(fd)
    if ACL in present and ACL not in wanted:
        os.removexattr(fd, ACL)  # of the folder's default list, which was not planned
    for name, value in sorted(wanted.items()):
        if present.get(name) == value:
            continue
        try:
            os.setxattr(fd, name, value)
        except OSError as error:
            problem = (name, path, error.strerror)
            raise Stop("failed", "%s cannot be given to the new file %s: %s" % problem)
    return ACL in wanted


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


def replace_file(path, data, mode, uid, gid, attributes=None):
    """Replace a file by rename: a reader finds the old bytes or the new ones."""
    beside = remove_leftover(path)
    write_new(
        beside,
        data,
        mode,
        uid,
        gid,
        attributes,
    )
    os.rename(beside, path)
    sync_folder(os.path.dirname(path))


# ---------------------------------------------------------------- on a full disk


def keep_link(path, link):
    """Give a file a second name, under which its bytes stay when another file takes its place.

    Where a file can have one name only there is none, and its bytes are put back from a copy.
    """
    try:
        os.link(path, link)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise


def remove_links(links):
    """Remove second names where they exist, and sync their folders."""
    folders = set()
    for link in links:
        if os.path.lexists(link):
            os.unlink(link)
            folders.add(os.path.dirname(link))
    for folder in sorted(folders):
        sync_folder(folder)


def roomy(text):
    """Return bytes of JSON with blanks behind them, so that later ones fit into the same file."""
    size = (len(text) // ROOM + 2) * ROOM
    return text.ljust(size - 1) + b"\n"


def reserve(path, size, mode):
    """Have a spare file of at least `size` blanks, whose blocks are there on a full disk."""
    if not os.path.lexists(path):
        write_new(
            path,
            b" " * size,
            mode,
            os.geteuid(),
            os.getegid(),
        )
        return
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with Naming(path), os.fdopen(fd, "wb") as sink:
        present = sink.seek(0, os.SEEK_END)
        if present < size:
            sink.write(b" " * (size - present))
            sink.flush()
            os.fsync(fd)


def replace_state(path, text, spare, mode):
    """Replace a file of our own state; on a full disk by the spare one that `reserve` made."""
    try:
        replace_file(
            path,
            roomy(text),
            mode,
            os.geteuid(),
            os.getegid(),
        )
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        try:
            replace_from(spare, path, text)
        except OSError:  # a release that kept no spare file, or it does not do here
            raise error


def replace_from(spare, path, text):
    """Replace a file by a spare one, which needs no room. The file is the next spare one.

    Raises OSError if there is no spare file, or if it is too small.
    """
    fd = os.open(spare, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if len(text) > size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        with Naming(spare):
            os.pwrite(fd, text.ljust(size), 0)
            os.fsync(fd)
    finally:
        os.close(fd)
    next_spare = remove_leftover(spare)
    try:
        os.link(path, next_spare)
    except OSError:  # no room even for a name: then this was the last spare
        next_spare = None
    os.rename(spare, path)
    sync_folder(os.path.dirname(path))
    if next_spare:
        os.rename(next_spare, spare)


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
