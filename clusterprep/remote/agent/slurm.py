"""Slurm's files on this node, as far as they say what the machine is, and what Slurm says of it.

Only the settings of KEYS are sent, with a sum over each whole file: a site's files are long, and
most of them does not matter here.
"""

import os

from clusterprep.remote.agent.readers import NoAnswer, offer, read_file, run

# Where slurm.conf lies. slurmd links the first one to the files that slurmctld gave it; the others
# are what packages and sites build Slurm with.
FOLDERS = (
    "/run/slurm/conf",
    "/etc/slurm",
    "/etc/slurm-llnl",
    "/usr/local/etc/slurm",
    "/usr/local/etc",
    "/opt/slurm/etc",
    "/var/spool/slurmd/conf-cache",
    "/var/spool/slurm/d/conf-cache",
)
NAMES = ("slurm.conf", "gres.conf", "cgroup.conf")
# Settings that are sent, in small letters. All of gres.conf is.
KEYS = frozenset(
    (
        "clustername",
        "nodename",
        "partitionname",
        "enforcepartlimits",
        "grestypes",
        "healthcheckprogram",
        "prolog",
        "epilog",
        "taskprolog",
        "taskepilog",
        "prologflags",
        "proctracktype",
        "propagateresourcelimits",
        "propagateresourcelimitsexcept",
        "selecttype",
        "selecttypeparameters",
        "slurmdparameters",
        "taskplugin",
        "constraindevices",
        "constraincores",
        "constrainramspace",
    )
)
SCRIPTS = ("prolog", "epilog", "taskprolog", "taskepilog", "healthcheckprogram")
MOST_FILES = 64  # of one file with all that it includes
SSHD_PAM = "/etc/pam.d/sshd"
HOST_NAME = "/proc/sys/kernel/hostname"
SCONTROL = ["scontrol", "--oneliner", "show", "node"]


def read_slurm_files(root):
    """Return Slurm's files below `root`; None if there is no slurm.conf.

    {"folder", "files": {name: {"sum": number, "lines": [text, …]}}, "scripts": {path: mode, or None
    where it does not exist}, "pam": whether sshd has pam_slurm_adopt}.
    """
    for folder in FOLDERS:
        path = root.rstrip("/") + folder
        if os.path.exists(path + "/slurm.conf"):
            return _files_of(path, root)
    return None


def _files_of(folder, root):
    files = {}
    scripts = {}
    for name in NAMES:
        lines = _lines(folder, name)
        if lines is None:
            continue
        kept = []
        for line in lines:
            key, _, value = line.partition("=")
            key = key.strip().lower()
            if name == "gres.conf" or key in KEYS:
                kept.append(line)
            if name == "slurm.conf" and key in SCRIPTS:
                path = value.strip().strip('"')
                # A pattern stands for any number of files, and slurmctld sends a relative one.
                if path.startswith("/") and not set(path) & set("*?[, "):
                    scripts[path] = _mode(root.rstrip("/") + path)
        files[name] = {"sum": sum_of(lines), "lines": kept}
    return {
        "folder": folder,
        "files": files,
        "scripts": scripts,
        "pam": _adopts(root),
    }


def sum_of(lines):
    """Return a number that other lines hardly share."""
    import binascii

    text = "\n".join(lines).encode("utf-8", "replace")
    return binascii.crc32(text) & 0xFFFFFFFF


def _lines(folder, name):
    """Return the lines of a file with those that it includes; None if it does not exist.

    Without comments and blank lines, and with continued lines joined, as Slurm reads them
    (src/common/parse_config.c).
    """
    if not os.path.isfile(folder + "/" + name):
        return None
    lines = []
    seen = []
    _add_lines(folder, name, lines, seen)
    return lines


def _add_lines(folder, name, lines, seen):
    path = os.path.join(folder, name)
    if len(seen) >= MOST_FILES:
        raise NoAnswer("truncated", "%s includes more than %d files" % (seen[0], MOST_FILES))
    seen.append(path)
    if not os.path.isfile(path):
        raise NoAnswer("garbled", "%s includes %s, which is no file" % (seen[0], path))
    for line in logical_lines(read_file(path)):
        words = line.split(None, 1)
        if words[0].lower() == "include" and len(words) == 2:
            _add_lines(folder, words[1].strip(), lines, seen)
        else:
            lines.append(line)


def logical_lines(text):
    """Return the lines of a file of Slurm's, without comments and with continued ones joined."""
    lines = []
    begun = ""
    for raw in text.split("\n"):
        line = begun + _without_comment(raw.rstrip("\r"))
        begun = ""
        if line.endswith("\\"):
            begun = line[:-1]
        elif line.strip():
            lines.append(line.strip())
    if begun.strip():
        lines.append(begun.strip())
    return lines


def _without_comment(line):
    """Return a line up to its first `#` that has no backslash before it."""
    start = 0
    while True:
        at = line.find("#", start)
        if at < 0:
            return line
        if at == 0 or line[at - 1] != "\\":
            return line[:at]
        start = at + 1


def _mode(path):
    try:
        return os.stat(path).st_mode & 0o7777
    except OSError:
        return None


def _adopts(root):
    try:
        text = read_file(root.rstrip("/") + SSHD_PAM)
    except (OSError, NoAnswer):
        return False
    return any(
        "pam_slurm_adopt" in line and not line.lstrip().startswith("#") for line in text.split("\n")
    )


def read_slurm_state():
    """Return how scontrol answers for this node, as a command does; None without slurm.conf."""
    if _has_no_conf():
        return None
    name = read_file(HOST_NAME).strip().split(".")[0]
    return run(SCONTROL + [name])


def _has_no_conf():
    """Return whether there is no slurm.conf, so that scontrol is not asked."""
    return not any(os.path.exists(folder + "/slurm.conf") for folder in FOLDERS)


def install(agent):
    """Register the readers of this part; scontrol has a child of its own, as it may wait."""
    offer({"slurm_files": read_slurm_files}, "files")
    offer({"slurm_state": read_slurm_state}, instant=_has_no_conf)
