"""File systems: whether each answers, what is free, and what NCCL left behind in shared memory."""

import errno
import os
import select
import time

from clusterprep.remote.agent.light import dumps, loads, signal
from clusterprep.remote.agent.readers import names, offer

MOUNTS = 64  # mounts of the given types that are tried
FILES = 1000  # segments that are looked at
SHM = "/dev/shm"  # noqa: S108 - only looked at
PREFIX = "nccl-"
BUSY = 3.0  # seconds more for one that never waits for a file system but for a processor
HOST_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO of include/linux/proc_ns.h: the namespace that sees every process


# ---------------------------------------------------------------- what answers


def read_probe(seconds, *words, busy=BUSY):
    """statvfs of each path, each in a child of its own and all at once, so that dead mounts cost `seconds` together.

    On a busy machine those that wait for a processor get `busy` more.

    A word is a path, «~alice» for a user's home («~» for our own), or a type of file system whose mounts are all
    tried; «fuse.» takes every type that begins so. {"answers": {word or path: ["ok", state] or ["no", reason, why]},
    "left": mounts not tried}.
    """
    paths = [word for word in words if word[0] in "/~"]
    mounts = [
        path
        for path in _mounts([word for word in words if word[0] not in "/~"])
        if path not in paths
    ]
    paths += mounts[:MOUNTS]
    answers = dict((path, ["no", "hung", "no answer within %g s" % seconds]) for path in paths)
    for index, answer in _asked(paths, seconds, busy):
        answers[paths[index]] = answer
    return {"answers": answers, "left": len(mounts[MOUNTS:])}


def _asked(paths, seconds, busy):
    end = time.monotonic() + seconds
    source, sink = os.pipe()
    children = []
    for index, path in enumerate(paths):
        pid = os.fork()
        if pid == 0:
            try:
                os.write(sink, dumps([index, _state(path)]).encode("ascii") + b"\n")
            finally:
                os._exit(0)
        children.append(pid)
    os.close(sink)
    answers = [loads(line.decode("ascii")) for line in _until(source, end, end + busy, children)]
    os.close(source)
    for index, _ in answers:
        os.waitpid(children[index], 0)
        children[index] = None
    for pid in children:
        _end(pid)
    return answers


def _until(source, end, last, children):
    """The lines that come before all writers are gone or the time is over; a line is shorter than PIPE_BUF."""
    data = b""
    while True:
        if select.select([source], [], [], max(0.0, end - time.monotonic()))[0]:
            piece = os.read(source, 1 << 16)
            if not piece:
                break
            data += piece
        elif end < last and any(map(_runs, children)):
            end = min(time.monotonic() + 0.1, last)
        else:
            break
    return data.split(b"\n")[:-1]


def _runs(pid):
    """Whether a process wants nothing but a processor."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as source:
            return source.read().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):
        return False


def _end(pid):
    if pid is None:
        return
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(
            pid, os.WNOHANG
        )  # one that the kernel holds stays behind; it ends with its mount
    except OSError:
        pass


def _state(word):
    try:
        path = _home(word[1:]) if word[0] == "~" else word
        state = os.statvfs(path)
        real = os.path.realpath(path)
    except KeyError:
        return ["no", "missing", "no such user"]
    except OSError as error:
        words = {errno.ENOENT: "missing", errno.EACCES: "denied", errno.EPERM: "denied"}
        return [
            "no",
            words.get(error.errno) or errno.errorcode.get(error.errno, "garbled"),
            error.strerror,
        ]
    unit = state.f_frsize
    return [
        "ok",
        {
            "at": real[
                :500
            ],  # a line of ours fits into PIPE_BUF even when every character is escaped
            "size": state.f_blocks * unit,
            "used": (state.f_blocks - state.f_bfree) * unit,
            "free": state.f_bavail * unit,
            "inodes": state.f_files,
            "inodes_free": state.f_favail,
        },
    ]


def _home(user):
    import pwd

    return (pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())).pw_dir


def _mounts(types):
    """One mount point of each file system of these types."""
    found = {}
    with open("/proc/self/mountinfo", "rb") as source:
        lines = source.read().decode("utf-8", "replace").split("\n")
    for line in lines:
        left, _, right = line.partition(" - ")
        right = right.split(" ")
        if any(
            right[0] == word or (word.endswith(".") and right[0].startswith(word)) for word in types
        ):
            path = left.split(" ")[4]
            for code, character in (
                ("\\040", " "),
                ("\\011", "\t"),
                ("\\012", "\n"),
                ("\\134", "\\"),
            ):
                path = path.replace(code, character)
            found.setdefault((right[0], right[1], left.split(" ")[2]), path)
    return sorted(set(found.values()))


# ---------------------------------------------------------------- shared memory


def read_shm_segments():
    """NCCL's files in /dev/shm, and for each whether a process has it mapped or open.

    {"files": [{path, uid, size, age, held}], "unread": {uid: processes that we may not look into}, "whole": whether
    we see every process that could hold one}.
    """
    files = _segments()
    held, unread = _holders(set(files)) if files else (set(), {})
    for key, row in files.items():
        row["held"] = key in held
    whole = not files or os.readlink("/proc/self/ns/pid") == HOST_PIDS
    rows = sorted(files.values(), key=lambda row: row["path"])
    return {"files": rows, "unread": unread, "whole": whole}


def _segments():
    found = {}
    for name in [name for name in names(SHM) if name.startswith(PREFIX)][:FILES]:
        try:
            state = os.lstat(os.path.join(SHM, name))
        except OSError:  # gone meanwhile, as it should be
            continue
        age = time.time() - state.st_mtime
        row = {
            "path": os.path.join(SHM, name),
            "uid": state.st_uid,
            "size": state.st_size,
            "age": age,
        }
        found[(state.st_dev, state.st_ino)] = row
    return found


def _holders(wanted):
    held, unread = set(), {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            uid = os.stat("/proc/" + name).st_uid
            held |= _mapped(name) | _opened(name)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                unread[str(uid)] = unread.get(str(uid), 0) + 1
        if wanted <= held:
            break
    return held, unread


def _mapped(name):
    found = set()
    with open("/proc/%s/maps" % name, "rb") as source:
        for line in source:
            if PREFIX.encode("ascii") in line:
                fields = line.split(None, 5)
                major, minor = fields[3].split(b":")
                found.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
    return found


def _opened(name):
    found = set()
    folder = "/proc/%s/fd" % name
    for fd in os.listdir(folder):
        try:
            if PREFIX in os.readlink(os.path.join(folder, fd)):
                state = os.stat(os.path.join(folder, fd))
                found.add((state.st_dev, state.st_ino))
        except OSError:  # closed meanwhile
            continue
    return found


def _none():
    """Whether there is no segment at all, so that nobody's memory has to be looked at."""
    return not any(name.startswith(PREFIX) for name in names(SHM))


def install(agent):
    """Register the readers of this part."""
    offer({"probe": read_probe})
    offer({"shm_segments": read_shm_segments}, instant=_none)
