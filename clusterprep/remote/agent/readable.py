"""Which files of the environment the job's user cannot read.

Each file is opened as that user, because modes, ACLs, the folders on the way, security modules and
file servers all have a say in it. What refuses is described with the rights of this process.
"""

import errno
import os
import stat

from clusterprep.remote.agent.launched import lines_of, task_prolog, text_of
from clusterprep.remote.agent.pam import of_sshd
from clusterprep.remote.agent.readers import NoAnswer, offer
from clusterprep.remote.agent.shells import LANE, account, as_user, expanded, start_up

MOST_LINKS = 40  # as many as the kernel follows
PROFILES = "/etc/profile.d"
CONF = "/etc/nccl.conf"
ACL = "system.posix_acl_access"
READ, RUN, LIST = "read", "run", "list"  # what a file is needed for


def read_readable(user, named):
    """Return the files that `user` cannot read (None: the user who logged in).

    `named` are [path, need, use] of the files that the controller knows; the others are found here.
    {"user": name, "refused": [{"path", "need": "read", "run" or "list", "use": "target", "nccl",
    "slurm" or "shell", "why": text of the error, "at": the folder or file that refuses, "" where no
    right is missing, "folder": whether that is a folder, "mode", "owner", "group", "acl", "exists"
    and "sets": whether the file exists and sets what matters to a job, None where that is not
    known}]}.
    """
    entry, _ = account(user, False)
    by_pam, prolog = of_sshd().texts(), task_prolog()
    rows = as_user(entry, lambda: refused(entry, named, by_pam, prolog))
    described = []
    for row in rows:
        described.append(dict(row, **describe(row)))
    return {"user": entry.pw_name, "refused": described}


def refused(entry, named, by_pam=(), prolog=None):
    """Return the files that this process cannot read: {"path", "need", "use", "why", "at"}.

    `by_pam` are the files [path, text] that PAM reads as root, `prolog` is the path of TaskProlog.
    """
    home = entry.pw_dir.rstrip("/")
    unread = []
    texts = start_up(entry, unread)
    wanted = [tuple(row) for row in named]
    for path in named_conf_files(list(by_pam) + texts, home) + [home + "/.nccl.conf", CONF]:
        wanted.append((path, READ, "nccl"))
    if prolog is not None:
        wanted.append((prolog, RUN, "slurm"))
    wanted.append((PROFILES, LIST, "shell"))
    for path in unread:
        wanted.append((path, READ, "shell"))
    rows = {}
    for path, need, use in wanted:
        why = refusal(path, need)
        if why is not None and path not in rows:
            code, text = why
            at = blocker(path, need) if code in (errno.EACCES, errno.EPERM) else ""
            rows[path] = {"path": path, "need": need, "use": use, "why": text, "at": at}
    return [rows[path] for path in sorted(rows)]


def named_conf_files(texts, home):
    """Return what start-up files set NCCL_CONF_FILE to, where that is a path without variables."""
    paths = []
    for _, text in texts:
        for line in text.splitlines():
            before, sign, value = line.partition("NCCL_CONF_FILE=")
            if not sign or before.lstrip().startswith("#"):
                continue
            words = value.replace(";", " ").replace('"', " ").replace("'", " ").split()
            path = expanded(words[0], home) if words else ""
            if path.startswith("/") and "$" not in path and path not in paths:
                paths.append(path)
    return paths


def refusal(path, need):
    """Return (errno, text) of the error with which a file cannot be used; None if it can.

    A file that does not exist is no error. It is opened and one byte is read: a file server may
    refuse the second alone. Nothing waits for the other end of a pipe.
    """
    try:
        if need == LIST:
            os.listdir(path)
            allowed = os.access(path, os.X_OK)
        else:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                os.read(fd, 1)
            finally:
                os.close(fd)
            allowed = need == READ or os.access(path, os.X_OK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        return error.errno, os.strerror(error.errno)
    return None if allowed else (errno.EACCES, os.strerror(errno.EACCES))


def blocker(path, need):
    """Return the first folder on the way that this process cannot enter, else the file itself.

    Links are followed as the kernel follows them.
    """
    place, links = "/", 0
    parts = path.strip("/").split("/")
    while parts:
        if not os.access(place, os.X_OK):
            return place
        below = os.path.join(place, parts.pop(0))
        if not os.path.islink(below) or links >= MOST_LINKS:
            place = below
            continue
        links += 1
        target = os.readlink(below)
        if target.startswith("/"):
            place = "/"
        parts = [part for part in target.split("/") if part] + parts
    return place


def describe(row):
    """Return what this process knows of a file that is refused, and of the place that refuses."""
    path = row["path"]
    told = {"folder": False, "mode": None, "owner": None, "group": None, "acl": False}
    place = row["at"] or path
    try:
        state = os.stat(place)
    except OSError:
        pass
    else:
        told["folder"] = stat.S_ISDIR(state.st_mode)
        told["mode"] = stat.S_IMODE(state.st_mode)
        told["owner"], told["group"] = names_of(state)
        told["acl"] = has_acl(place)
    told["exists"] = exists(path)
    told["sets"] = sets_anything(path) if told["exists"] else None
    return told


def names_of(state):
    """Return the names of owner and group, or their numbers as text where they have no names."""
    import grp
    import pwd

    try:
        owner = pwd.getpwuid(state.st_uid).pw_name
    except KeyError:
        owner = str(state.st_uid)
    try:
        group = grp.getgrgid(state.st_gid).gr_name
    except KeyError:
        group = str(state.st_gid)
    return owner, group


def has_acl(path):
    """Return whether more than the mode says who may use a file."""
    try:
        return bool(os.getxattr(path, ACL))
    except (OSError, AttributeError):
        return False


def exists(path):
    """Return whether a file exists; None if this process cannot look."""
    try:
        os.stat(path)
    except OSError as error:
        return False if error.errno in (errno.ENOENT, errno.ENOTDIR) else None
    return True


def sets_anything(path):
    """Return whether a file sets what matters to a job; None if that is not known.

    Only plain files below /etc are read, where root decides what they are: for any other path this
    process may have more rights than the one who chose it.
    """
    place = os.path.realpath(path)
    try:
        if not place.startswith("/etc/") or not stat.S_ISREG(os.lstat(place).st_mode):
            return None
        text = text_of(place)
    except (OSError, NoAnswer):
        return None
    return None if text is None else bool(lines_of(text))


def install(agent):
    """Register the kind of read of this part, beside the others of the job's user."""
    offer({"readable": read_readable}, lane=LANE)
