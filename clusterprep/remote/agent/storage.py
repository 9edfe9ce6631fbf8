"""File systems: whether each answers, how full it is, and what NCCL left in shared memory."""

import errno
import os
import select
import time

from clusterprep.remote.agent.light import dumps, loads, signal
from clusterprep.remote.agent.readers import NoAnswer, names_in, offer

MOUNTS = 64  # mounts of the given types that are tried
FILES = 4096  # segments that are looked at
LONGEST_PATH = 500  # characters: a line fits into PIPE_BUF even if every character is escaped
SHM = "/dev/shm"  # noqa: S108 - only looked at
PREFIX = "nccl-"
QUICK = 0.2  # seconds in which one child answers for all file systems, if none of them is slow
QUICK_BUSY = 0.5  # further seconds for that child, as of BUSY
BUSY = 3.0  # further seconds for a child that waits for a processor and not for a file system
BUSY_STEP = 0.1  # seconds of them that are waited at a time
# The pid namespace that has every process: PROC_PID_INIT_INO of include/linux/proc_ns.h.
HOST_PIDS = "pid:[4026531836]"
ERRNO_REASONS = {errno.ENOENT: "missing", errno.EACCES: "denied", errno.EPERM: "denied"}
MOUNTINFO_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


# ---------------------------------------------------------------- what answers


def read_probe(seconds, *targets, busy=BUSY):
    """Return statvfs of each path, asked in a child.

    One child asks for all, which costs least. What it has no answer to after a moment is asked at
    once, each path in a child of its own, so that dead mounts cost `seconds` together. On a busy
    machine children that wait for a processor get `busy` seconds more.

    A target is a path, «~alice» for a user's home («~» for this user's), or a type of file system,
    of which all mounts are tried; «fuse.» stands for every type that begins so. The answer is
    {"answers": {path: ["ok", state] or ["no", reason, why]}, "left": mounts not tried}.
    """
    paths = []
    types = []
    for target in targets:
        if target[0] in "/~":
            paths.append(target)
        else:
            types.append(target)
    mounts = [path for path in _mounts(types) if path not in paths]
    paths += mounts[:MOUNTS]
    known = {}
    together = [paths] if paths else []
    for path, answer in _ask_children(together, min(QUICK, seconds), min(QUICK_BUSY, busy)):
        known[path] = answer
    apart = [[path] for path in paths if path not in known]
    for path, answer in _ask_children(apart, seconds, busy):
        known[path] = answer
    hung = ["no", "hung", "no answer within %g s" % seconds]
    answers = {}
    for path in paths:
        answers[path] = known.get(path, hung)
    return {
        "answers": answers,
        "left": len(mounts[MOUNTS:]),
    }


def _ask_children(groups, seconds, busy):
    """Return [path, answer] of those that answer in time; each group of paths has a child."""
    end = time.monotonic() + seconds
    source, sink = os.pipe()
    children = []
    for number, paths in enumerate(groups):
        pid = os.fork()
        if pid == 0:
            try:
                for index, path in enumerate(paths):
                    line = dumps([number, index, _state(path)])
                    os.write(sink, line.encode("ascii") + b"\n")
            finally:
                os._exit(0)
        children.append(pid)
    os.close(sink)
    lines = _lines(source, end, end + busy, children)
    os.close(source)
    answers = []
    for line in lines:
        number, index, answer = loads(line.decode("ascii"))
        answers.append((groups[number][index], answer))
        if index + 1 == len(groups[number]):  # the child has no more to do
            os.waitpid(children[number], 0)
            children[number] = None
    for pid in children:
        if pid is not None:
            _kill(pid)
    return answers


def _lines(source, end, last, children):
    """Return the lines that come before all writers are gone or the time is over.

    A line is shorter than PIPE_BUF, so that it is never split.
    """
    data = b""
    while True:
        seconds = max(0.0, end - time.monotonic())
        if select.select([source], [], [], seconds)[0]:
            piece = os.read(source, 1 << 16)
            if not piece:
                break
            data += piece
        elif end < last and any(map(_wants_processor, children)):
            end = min(time.monotonic() + BUSY_STEP, last)
        else:
            break
    return data.split(b"\n")[:-1]


def _wants_processor(pid):
    """Return whether a process waits for nothing but a processor."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as source:
            return source.read().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):
        return False


def _kill(pid):
    """Kill a child, and reap it if it has ended."""
    try:
        os.kill(pid, signal.SIGKILL)
        # A child that the kernel holds is not reaped; it ends with its mount.
        os.waitpid(pid, os.WNOHANG)
    except OSError:
        pass


def _state(target):
    """Return the raw answer about the file system of a path, or of the home of «~user»."""
    try:
        path = _home(target[1:]) if target[0] == "~" else target
        state = os.statvfs(path)
        real_path = os.path.realpath(path)
    except KeyError:
        return ["no", "missing", "no such user"]
    except OSError as error:
        reason = ERRNO_REASONS.get(error.errno)
        reason = reason or errno.errorcode.get(error.errno, "garbled")
        return ["no", reason, error.strerror]
    if len(real_path) > LONGEST_PATH:
        return ["no", "truncated", "its real path has more than %d characters" % LONGEST_PATH]
    unit = state.f_frsize
    sizes = {
        "at": real_path,
        "size": state.f_blocks * unit,
        "used": (state.f_blocks - state.f_bfree) * unit,
        "free": state.f_bavail * unit,
        "inodes": state.f_files,
        "inodes_free": state.f_favail,
    }
    return ["ok", sizes]


def _home(user):
    import pwd

    entry = pwd.getpwnam(user) if user else pwd.getpwuid(os.geteuid())
    return entry.pw_dir


def _mounts(types):
    """Return one mount point of each file system of these types."""
    path_of = {}
    with open("/proc/self/mountinfo", "rb") as source:
        lines = source.read().decode("utf-8", "replace").split("\n")
    for line in lines:
        mount, _, file_system = line.partition(" - ")
        fields = file_system.split(" ")
        if not _is_of_type(fields[0], types):
            continue
        kind, device = fields[0], fields[1]
        mount_fields = mount.split(" ")
        number = mount_fields[2]
        path = mount_fields[4]
        for code, character in MOUNTINFO_ESCAPES:
            path = path.replace(code, character)
        path_of.setdefault((kind, device, number), path)
    return sorted(set(path_of.values()))


def _is_of_type(kind, types):
    for wanted in types:
        if kind == wanted or (wanted.endswith(".") and kind.startswith(wanted)):
            return True
    return False


# ---------------------------------------------------------------- shared memory


def read_shm_segments():
    """Return NCCL's files in /dev/shm, and for each whether a process has it mapped or open.

    {"files": [{path, uid, size, age, held}], "unread": {uid: processes that are not readable},
    "whole": whether every process that could hold one is visible}.
    """
    segments = _segments()
    if not segments:
        return {
            "files": [],
            "unread": {},
            "whole": True,
        }
    held, unread = _holders(set(segments))
    for key, row in segments.items():
        row["held"] = key in held
    sees_all = os.readlink("/proc/self/ns/pid") == HOST_PIDS
    rows = sorted(segments.values(), key=lambda row: row["path"])
    return {
        "files": rows,
        "unread": unread,
        "whole": sees_all,
    }


def _segments():
    """Return the rows of NCCL's files by (device, inode)."""
    rows = {}
    ours = [name for name in names_in(SHM) if name.startswith(PREFIX)]
    if len(ours) > FILES:
        why = "%s has %d segments; no more than %d are looked at" % (SHM, len(ours), FILES)
        raise NoAnswer("truncated", why)
    for name in ours:
        path = os.path.join(SHM, name)
        try:
            state = os.lstat(path)
        except OSError:  # gone meanwhile, as it should be
            continue
        age = time.time() - state.st_mtime
        row = {
            "path": path,
            "uid": state.st_uid,
            "size": state.st_size,
            "age": age,
        }
        rows[state.st_dev, state.st_ino] = row
    return rows


def _holders(wanted):
    """Return which files some process holds, and {uid: processes that are not readable}."""
    held = set()
    unread = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            uid = os.stat("/proc/" + name).st_uid
            held |= _mapped(name) | _opened(name)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                key = str(uid)
                unread[key] = unread.get(key, 0) + 1
        if wanted <= held:
            break
    return held, unread


def _mapped(name):
    """Return (device, inode) of NCCL's files that a process has mapped."""
    files = set()
    prefix = PREFIX.encode("ascii")
    with open("/proc/%s/maps" % name, "rb") as source:
        for line in source:
            if prefix not in line:
                continue
            fields = line.split(None, 5)
            major, minor = fields[3].split(b":")
            device = os.makedev(int(major, 16), int(minor, 16))
            files.add((device, int(fields[4])))
    return files


def _opened(name):
    """Return (device, inode) of NCCL's files that a process has open."""
    files = set()
    folder = "/proc/%s/fd" % name
    for fd in os.listdir(folder):
        path = os.path.join(folder, fd)
        try:
            if PREFIX in os.readlink(path):
                state = os.stat(path)
                files.add((state.st_dev, state.st_ino))
        except OSError:  # closed meanwhile
            continue
    return files


def _has_no_segment():
    """Return whether there is no segment at all, so that no process has to be looked at."""
    return not any(name.startswith(PREFIX) for name in names_in(SHM))


def install(agent):
    """Register the readers of this part."""
    offer({"probe": read_probe})
    offer({"shm_segments": read_shm_segments}, instant=_has_no_segment)
