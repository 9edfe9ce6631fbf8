"""What each way to start a process gives the job's user.

Shells are asked and files are read as that user. Only variables that matter are sent to the
controller, and none that may be a secret.
"""

import os

from clusterprep.remote.agent.launched import container, lines_of, slurm, systemd, text_of
from clusterprep.remote.agent.readers import NoAnswer, offer
from clusterprep.remote.agent.shells import (
    LANE,
    account,
    as_user,
    keep_sessions,
    sessions,
    start_up,
)

LIBRARIES = ("libnccl.so", "libcuda.so")
MAX_FOLDERS = 256  # of LD_LIBRARY_PATH that are looked into
MAX_LIBRARIES = 256  # of one folder


def read_environment(user, session):
    """Return everything as `user` (None: the user who logged in) has it.

    `session` says that this process is an ssh command's. {"user", "sessions": {path: ["ok",
    {name: value}] or ["no", reason, why]}, "files": [[path, [[line, text]]]] in the order in
    which shells read them, "systemd" and "slurm": likewise or None, "container": as a session or
    None, "conf": {path: lines or None}, "home", "libraries": {folder: [file]}}.
    """
    entry, given = account(user, session)
    first = container()
    answer = as_user(entry, lambda: look(entry, given))
    keep_sessions(user, session, answer["sessions"])
    return dict(answer, container=first)


def look(entry, given):
    """Return all but what only root may see.

    `given` is the environment of the session, None if that session is another user's.
    """
    home = entry.pw_dir
    texts = start_up(entry)
    answers = sessions(entry, given, texts)
    row = {
        "user": entry.pw_name,
        "home": home,
        "sessions": answers,
    }
    environments = []
    for answer in answers.values():
        if answer[0] == "ok":
            environments.append(answer[1])
    row["files"] = _files(texts)
    row["systemd"] = systemd(home)
    row["slurm"] = slurm()
    row["conf"] = _conf(environments, home)
    row["libraries"] = _libraries(environments)
    return row


def _files(texts):
    """Return the lines of start-up files that set what matters; files without any are left out."""
    rows = []
    for path, text in texts:
        lines = lines_of(text)
        if lines:
            rows.append([path, lines])
    return rows


def _conf(environments, home):
    """Return the lines of every nccl.conf that may be read: {path: lines or None}."""
    named = set()
    for environment in environments:
        path = environment.get("NCCL_CONF_FILE", "")
        if path.startswith("/"):
            named.add(path)
    conf = {}
    for path in sorted(named) + [home.rstrip("/") + "/.nccl.conf", "/etc/nccl.conf"]:
        text = text_of(path)
        conf[path] = None if text is None else lines_of(text, "\n")
    return conf


def _libraries(environments):
    """Return the libraries of LIBRARIES in the folders of LD_LIBRARY_PATH: {folder: [file]}."""
    folders = set()
    for environment in environments:
        folders.update(environment.get("LD_LIBRARY_PATH", "").split(":"))
    folders.discard("")
    libraries = {}
    if len(folders) > MAX_FOLDERS:
        raise NoAnswer("truncated", "LD_LIBRARY_PATH has more than %d folders" % MAX_FOLDERS)
    for folder in sorted(folders):
        libraries[folder] = _libraries_in(folder)
    return libraries


def _libraries_in(folder):
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    libraries = [name for name in names if name.startswith(LIBRARIES)]
    if len(libraries) > MAX_LIBRARIES:
        raise NoAnswer("truncated", "%s has more than %d libraries" % (folder, MAX_LIBRARIES))
    return sorted(libraries)


def install(agent):
    """Register the kind of read of this part, in a child for all that starts shells."""
    offer({"environment": read_environment}, lane=LANE)
