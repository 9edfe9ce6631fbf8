"""What each way to start a process gives the job's user.

Shells are asked and files are read as that user. Only variables that matter are sent to the
controller, and none that may be a secret.
"""

import os

from clusterprep.remote.agent.container_env import (
    docker,
    enroot,
    podman,
    read_container_defaults,
)
from clusterprep.remote.agent.launched import (
    container,
    lines_of,
    missing_units,
    own_environment,
    printed_by,
    slurm,
    systemd,
    task_prolog,
    text_of,
)
from clusterprep.remote.agent.pam import crontabs, job_of_cron, of_cron, of_sshd
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


def read_environment(user, session, units=()):
    """Return everything as `user` (None: the user who logged in) has it.

    `session` says that this process is an ssh command's. {"user", "sessions": {path: ["ok",
    {name: value}] or ["no", reason, why]}, "files": [[path, [[line, text]]]] in the order in
    which shells read them, "systemd", "slurm", "podman", "enroot" and "docker": likewise or None,
    "container": as a session or None, "cron": {"session": as a session, "files": likewise} or None,
    "pam": {path: [whether /etc/environment is read, why not]}, "conf": {path: lines or None},
    "missing_units": those of `units` that do not exist, "home", "libraries": {folder: [file]}}.
    """
    entry, given = account(user, session)
    outside = Outside(entry)
    answer = as_user(entry, lambda: look(entry, given, outside))
    keep_sessions(user, session, answer["sessions"])
    return dict(
        answer,
        container=container(),
        cron=outside.cron,
        pam=outside.pam(),
        missing_units=missing_units(units),
    )


class Outside(object):
    """What root's own processes read for a user: sshd, cron, systemd and slurmd.

    It is made with the rights of this process, before it becomes the job's user.
    """

    def __init__(self, entry):
        self.sshd = of_sshd()
        self.systemd = systemd()
        self.slurm = slurm()
        self.prolog = task_prolog()
        self.cron_sources = of_cron()
        self.cron = None
        if self.cron_sources is not None:
            rows = crontabs(entry.pw_name)
            self.cron = {
                "session": job_of_cron(self.cron_sources, rows),
                "files": _files(self.cron_sources.texts()) + rows,
            }

    def pam(self):
        """Return {launch path: [whether /etc/environment is read, why not]}."""
        reads = {"ssh command": self.sshd.reads()}
        if self.cron_sources is not None:
            reads["cron"] = self.cron_sources.reads()
        return reads


def look(entry, given, outside):
    """Return what the user sees, and what `outside` has for it.

    `given` is the environment of the session, None if that session is another user's.
    """
    home = entry.pw_dir
    texts = start_up(entry)
    answers = sessions(entry, given, texts, outside.sshd)
    row = {
        "user": entry.pw_name,
        "home": home,
        "sessions": answers,
    }
    environments = []
    for answer in answers.values():
        if answer[0] == "ok":
            environments.append(answer[1])
    row["files"] = _files(outside.sshd.texts() + texts)
    row["systemd"] = None
    if outside.systemd is not None:
        before, after = outside.systemd
        row["systemd"] = before + own_environment(home) + after
    row["slurm"] = None
    if outside.slurm is not None:
        row["slurm"] = outside.slurm + printed_by(outside.prolog)
    row["podman"] = podman(home)
    row["enroot"] = enroot(home)
    row["docker"] = docker()
    row["conf"] = _conf(environments, home)
    row["libraries"] = libraries(environments)
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


def libraries(environments):
    """Return the libraries of LIBRARIES in the folders of LD_LIBRARY_PATH: {folder: [file]}."""
    folders = set()
    for environment in environments:
        folders.update(environment.get("LD_LIBRARY_PATH", "").split(":"))
    folders.discard("")
    found = {}
    if len(folders) > MAX_FOLDERS:
        raise NoAnswer("truncated", "LD_LIBRARY_PATH has more than %d folders" % MAX_FOLDERS)
    for folder in sorted(folders):
        found[folder] = _libraries_in(folder)
    return found


def _libraries_in(folder):
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = [name for name in names if name.startswith(LIBRARIES)]
    if len(found) > MAX_LIBRARIES:
        raise NoAnswer("truncated", "%s has more than %d libraries" % (folder, MAX_LIBRARIES))
    return sorted(found)


def install(agent):
    """Register the kinds of read of this part, in a child for all that starts shells."""
    offer({"environment": read_environment}, lane=LANE)
    offer({"container_defaults": read_container_defaults}, lane="files")
