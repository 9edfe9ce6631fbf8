"""The part of the agent that puts copied files in place, and says which files there are to fetch.

The bytes themselves come and go by SFTP, as the user who logged in. Operations:

* `copy_look` {path, sha, size, mode, user, group}: `same`, or `stage`, an empty file to be
  written, and `action`, which is create if there is no such file yet
* `copy_place` {}: what was written there becomes the file, all of it or nothing; `action`. Where
  the answer is no and has `placed`, the new file is there and its folder could not be synced
* `fetch_look` {path, known}: `files` of a pattern, each with `name`, `mode`, `size`, `sha` and
  `from`, which is where it can be read; a file whose sum is `known` is not made readable

Without sudo the stage lies beside the file. Under sudo the user may not write there, so it lies in
a folder of the user's, and root copies it: the sum is taken of the bytes that root writes. What is
staged is removed when the agent ends, and what an earlier one had to leave is removed by the next.
"""

import errno
import fcntl
import glob
import grp
import hashlib
import os
import pwd
import stat
import tempfile
import threading

from clusterprep.remote.agent.disk import (
    NO_ROOM,
    Stop,
    guarded,
    refuse_pinned,
    refuse_shared,
    sync_folder,
)
from clusterprep.remote.agent.places import foreign_links, opened

PIECE = 1 << 20  # bytes
PREFIX = ".clusterprep-copy-"
SHARED = "/var/tmp"  # noqa: S108 - folders in it are private; /tmp may be memory
STAGED = "file"  # the name of the file in such a folder
MOST_FILES = 1000  # of one pattern
MOST_MADE = 64 << 20  # bytes of a file that the kernel makes while it is read


class Place(object):
    """The file that is being copied: where its bytes come, and where they belong."""

    def __init__(self, request):
        self.path = request["path"]
        self.sha = request["sha"]
        self.size = request["size"]
        self.mode = request["mode"]
        self.owner = owner_of(request.get("user"), request.get("group"))
        self.stage = None
        self.lock = None  # a descriptor of the stage, whose lock says that it is in use


class Copying(object):
    """The operations, and what they have staged."""

    def __init__(self):
        self.place = None
        self.folders = []  # that were made for the user, with their descriptors

    def look(self, agent, request):
        return Background(agent, request, self._look)

    def put(self, agent, request):
        return Background(agent, request, self._put)

    def fetch(self, agent, request):
        return Background(agent, request, self._fetch)

    def _look(self, agent, request):
        place = Place(request)
        state = self._checked(place.path)
        if state is not None and place.owner == (None, None):
            place.owner = (state.st_uid, state.st_gid)
        if state is not None and self._is_same(place, state):
            return {"same": True}
        forget_left(os.path.dirname(place.path), PREFIX + os.path.basename(place.path) + "-")
        require_room(os.path.dirname(place.path), place.size)
        self.place = place
        if login_user() is None:
            name = PREFIX + os.path.basename(place.path) + "-"
            place.lock, place.stage = tempfile.mkstemp("", name, os.path.dirname(place.path))
            fcntl.flock(place.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            require_room(SHARED, place.size)
            folder, place.lock = self._private_folder()
            place.stage = os.path.join(folder, STAGED)
        return {"stage": place.stage, "action": action_of(state)}

    def _checked(self, path):
        """Return the state of the file that is there, None if there is none. Raises Stop."""
        folder = os.path.dirname(path)
        refuse_shared(path, "/")
        if not os.path.isdir(folder):
            raise Stop("missing", "there is no folder %s" % folder)
        try:
            fd, state = opened(path)
        except ValueError as error:
            raise Stop("not_a_file", str(error))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            if error.errno in (errno.EACCES, errno.EPERM):  # may be replaced all the same
                return os.lstat(path)
            raise
        os.close(fd)
        refuse_pinned(path)
        return state

    def _is_same(self, place, state):
        uid, gid = place.owner
        if uid not in (None, state.st_uid) or gid not in (None, state.st_gid):
            return False
        if stat.S_IMODE(state.st_mode) != place.mode:
            return False
        try:
            return sum_of(place.path) == place.sha
        except OSError:
            return False

    def _private_folder(self):
        """Return a new folder of the user who logged in, and a descriptor of it.

        It is locked before it is the user's: what is theirs and not locked is removed as left.
        """
        uid, gid = reading_user()
        forget_left(SHARED, PREFIX, uid)
        folder = tempfile.mkdtemp("", PREFIX, SHARED)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self.folders.append((folder, fd))
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchown(fd, uid, gid)
        return folder, fd

    def _put(self, agent, request):
        place = self.place
        if place is None:
            raise Stop("failed", "nothing was staged")
        state = self._checked(place.path)  # again, as some time has passed
        beside = place.stage
        if login_user() is not None:
            beside = self._copied(place)
        try:
            self._finish(place, beside)
            os.rename(beside, place.path)
        except BaseException:
            remove(beside)
            raise
        try:
            sync_folder(os.path.dirname(place.path))
        except OSError as error:
            return {"no": "failed", "why": str(error), "placed": True}
        self.end()
        return {"action": action_of(state)}

    def _copied(self, place):
        """Copy what the user staged to a file of root's beside the place. Returns its name."""
        source = os.open(STAGED, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place.lock)
        with os.fdopen(source, "rb") as staged:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise Stop("not_a_file", "%s is no file" % place.stage)
            name = PREFIX + os.path.basename(place.path) + "-"
            fd, beside = tempfile.mkstemp("", name, os.path.dirname(place.path))
            try:
                with os.fdopen(fd, "wb") as sink:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    for data in pieces(staged):
                        sink.write(data)
            except BaseException:
                remove(beside)
                raise
        return beside

    def _finish(self, place, beside):
        """Give a complete file its owner and mode, and have it on disk. Raises Stop if it is not.

        The sum is that of the bytes as they are on this node.
        """
        if sum_of(beside) != place.sha:
            left = place.size - os.stat(beside).st_size
            require_room(os.path.dirname(beside), left)
            raise Stop("garbled", "what arrived is not what was sent; was the file changed?")
        fd = os.open(beside, os.O_RDWR | os.O_NOFOLLOW)
        try:
            uid, gid = place.owner
            if (uid, gid) != (None, None):
                os.fchown(fd, -1 if uid is None else uid, -1 if gid is None else gid)
            os.fchmod(fd, place.mode)  # after the owner, which takes setuid away
            os.fsync(fd)
        finally:
            os.close(fd)

    def _fetch(self, agent, request):
        paths = sorted(glob.glob(request["path"]))
        if not paths and not glob.has_magic(request["path"]):
            paths = [request["path"]]
        if len(paths) > MOST_FILES:
            raise Stop("truncated", "more than %d files" % MOST_FILES)
        found = [path for path in paths if len(paths) == 1 or os.path.isfile(path)]
        if paths and not found:
            raise Stop("not_a_file", "what matches are folders and no files")
        return {"files": [self._readable(path, request.get("known", {})) for path in found]}

    def _readable(self, path, known):
        """Return what a file is called, its mode and size, its sum, and where it can be read."""
        with os.fdopen(open_to_read(path), "rb") as file:
            state = os.fstat(file.fileno())
            row = {"name": path, "mode": stat.S_IMODE(state.st_mode), "from": path}
            row["size"], row["sha"] = measured(file, state.st_size)  # a log may grow meanwhile
            file.seek(0)
            if row["size"] != state.st_size or (row["size"] == 0 and file.read(1)):
                # A file of /proc or /sys: its size says nothing, and its bytes may change.
                row["from"] = self._copy_for_user(file, MOST_MADE + 1)
                with open(row["from"], "rb") as copy:
                    row["size"], row["sha"] = measured(copy, MOST_MADE + 1)
                if row["size"] > MOST_MADE:
                    why = "%s has more than %d MiB, which are made while it is read"
                    raise Stop("truncated", why % (path, MOST_MADE >> 20))
            elif known.get(path) != row["sha"] and login_user() is not None:
                row["from"] = self._copy_for_user(file, row["size"])
        return row

    def _copy_for_user(self, file, size):
        """Copy at most `size` bytes to where the user who logged in can read them."""
        folder, fd = self._private_folder()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        copy = os.open(STAGED, flags, 0o600, dir_fd=fd)
        with os.fdopen(copy, "wb") as sink:
            os.fchown(copy, *reading_user())
            file.seek(0)
            for data in pieces(file, size):
                sink.write(data)
        return os.path.join(folder, STAGED)

    def end(self):
        """Remove what is staged."""
        place, self.place = self.place, None
        if place is not None and login_user() is None:
            remove(place.stage)
            os.close(place.lock)
        for folder, fd in self.folders:
            empty(folder, fd)
            os.close(fd)
        self.folders = []


class Background(object):
    """A request that may take minutes, in a thread: the loop has to give signs of life."""

    def __init__(self, agent, request, work):
        self._agent = agent
        self._request = request
        self._answer = None
        self._work = guarded(work)
        agent.polls.append(self._poll)
        thread = threading.Thread(target=self._run)
        thread.daemon = True
        thread.start()

    def _run(self):
        try:
            self._answer = self._work(self._agent, self._request)
        except Exception as error:  # noqa: BLE001 - the answer has to come
            why = "%s: %s" % (type(error).__name__, error)
            self._answer = {"no": "agent_error", "why": why}

    def _poll(self, now):
        if self._answer is not None:
            self._agent.polls.remove(self._poll)
            self._agent.answer(self._request, **self._answer)


def open_to_read(path):
    """Return a descriptor of a regular file that is to be fetched. Raises Stop or OSError.

    A link of another user leads to files of that user alone: root may read what that user
    may not. What is no file is not opened, as that may already do something.
    """
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            raise Stop("not_a_file", "%s is not a regular file" % path)
        place, links = foreign_links(path)
        if not os.path.samestat(os.lstat(place), state):
            raise Stop("changed", "%s was replaced while it was looked at" % path)
        user = login_user()
        for link, uid in links:
            if uid != state.st_uid and (user is None or uid != user[0]):
                why = "%s is a link of user %d to a file of user %d: it is not followed"
                raise Stop("denied", why % (link, uid, state.st_uid))
        try:
            return os.open("/proc/self/fd/%d" % handle, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path)
    finally:
        os.close(handle)


def login_user():
    """Return user and group that logged in, where sudo made root of them, else None."""
    uid = os.environ.get("SUDO_UID", "0")
    if os.geteuid() != 0 or uid == "0":
        return None
    return int(uid), int(os.environ.get("SUDO_GID", "0"))


def reading_user():
    """Return user and group as which SFTP reads: those that logged in."""
    return login_user() or (os.geteuid(), os.getegid())


def action_of(state):
    """Return what a new file does to a place, whose state is None where there is no file."""
    return "create" if state is None else "update"


def require_room(folder, size):
    """Raise Stop if a file system has not that many bytes left for this user."""
    room = os.statvfs(folder)
    if room.f_blocks == 0:  # it does not say
        return
    blocks = room.f_bfree if os.geteuid() == 0 else room.f_bavail
    free = blocks * room.f_frsize
    if free < size:
        why = "%s: %s (%d bytes are free, and %d are to be written)"
        raise Stop("no_space", why % (folder, os.strerror(NO_ROOM[0]), free, size))


def measured(file, size):
    """Return how many of the first `size` bytes of a file there are, and their SHA-256."""
    total = hashlib.sha256()
    count = 0
    for data in pieces(file, size):
        total.update(data)
        count += len(data)
    return count, total.hexdigest()


def owner_of(user, group):
    """Return the numbers of a user and a group, None for what is not given. Raises Stop."""
    uid = gid = None
    try:
        if user is not None:
            uid = int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
    except KeyError:
        raise Stop("failed", "there is no user %s" % user)
    try:
        if group is not None:
            gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise Stop("failed", "there is no group %s" % group)
    return uid, gid


def pieces(source, size=None):
    """Yield the bytes of a file, at most `size` of them."""
    while size is None or size > 0:
        data = source.read(PIECE if size is None else min(PIECE, size))
        if not data:
            return
        if size is not None:
            size -= len(data)
        yield data


def sum_of(path):
    """Return the SHA-256 of a file."""
    total = hashlib.sha256()
    with open(path, "rb") as source:
        for data in pieces(source):
            total.update(data)
    return total.hexdigest()


def forget_left(folder, prefix, uid=None):
    """Remove what agents had to leave that were killed: of `uid`, or of this user."""
    owner = os.geteuid() if uid is None else uid
    for name in os.listdir(folder):
        if name.startswith(prefix):
            try:
                _forget(os.path.join(folder, name), owner)
            except OSError:  # it is in use, or gone
                pass


def _forget(path, owner):
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        state = os.fstat(fd)
        if state.st_uid != owner:
            return
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISDIR(state.st_mode):
            empty(path, fd)
        elif stat.S_ISREG(state.st_mode):
            os.unlink(path)
    finally:
        os.close(fd)


def empty(folder, fd):
    """Remove a folder of a user's and the one file in it, without following a link of theirs."""
    try:
        os.unlink(STAGED, dir_fd=fd)
    except OSError:
        pass
    try:
        os.rmdir(folder)
    except OSError:
        pass


def remove(path):
    try:
        os.unlink(path)
    except OSError:
        pass


def install(agent):
    copying = Copying()

    def later(operation):
        def begin(agent, request):
            operation(agent, request)  # answers by itself

        return begin

    agent.ops["copy_look"] = later(copying.look)
    agent.ops["copy_place"] = later(copying.put)
    agent.ops["fetch_look"] = later(copying.fetch)
    agent.endings.append(copying.end)
