"""What each way to start a process would give the job's user: shells are asked and files are read as that user.

Only names that matter travel home, and none that may be a secret.
"""

import os

from clusterprep.remote.agent.launched import container, lines_of, slurm, systemd, text_of
from clusterprep.remote.agent.readers import offer
from clusterprep.remote.agent.shells import LANE, account, as_user, keep, sessions, start_up

LIBRARIES = ("libnccl.so", "libcuda.so")


def read_environment(user, session):
    """Everything as `user` (None: who logged in) has it; `session` says that this process is an ssh command's.

    {"user", "sessions": {path: ["ok", {name: value}] or ["no", reason, why]}, "files": [[path, [[line, text]]]] in the
    order in which shells read them, "systemd" and "slurm": likewise or None, "container": as a session or None,
    "conf": {path: lines or None}, "home", "libraries": {folder: [file]}}.
    """
    entry, given = account(user, session)
    first = container()
    found = as_user(entry, lambda: look(entry, given))
    keep(user, session, found["sessions"])
    return dict(found, container=first)


def look(entry, given):
    """All but what root alone may see; `given` is the environment of the session, None where it is not the user's."""
    home = entry.pw_dir
    texts = start_up(entry)
    found = sessions(entry, given, texts)
    values = [answer[1] for answer in found.values() if answer[0] == "ok"]
    named_conf = sorted(
        set(
            value["NCCL_CONF_FILE"]
            for value in values
            if value.get("NCCL_CONF_FILE", "")[:1] == "/"
        )
    )
    conf = {}
    for path in named_conf + [home.rstrip("/") + "/.nccl.conf", "/etc/nccl.conf"]:
        text = text_of(path)
        conf[path] = None if text is None else lines_of(text, "\n")
    folders = set(
        folder
        for value in values
        for folder in value.get("LD_LIBRARY_PATH", "").split(":")
        if folder
    )
    return {
        "user": entry.pw_name,
        "home": home,
        "sessions": found,
        "files": [
            [path, lines]
            for path, lines in ((path, lines_of(text)) for path, text in texts)
            if lines
        ],
        "systemd": systemd(home),
        "slurm": slurm(),
        "conf": conf,
        "libraries": dict((folder, _libraries(folder)) for folder in sorted(folders)[:64]),
    }


def _libraries(folder):
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(LIBRARIES))[:16]
    except OSError:
        return []


def install(agent):
    """Register the kind of read of this part, in a child for all that starts shells."""
    offer({"environment": read_environment}, lane=LANE)
