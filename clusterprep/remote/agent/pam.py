"""The variables that PAM gives to the sessions of sshd and to the jobs of cron: read from files.

pam_env(8) runs as root, so its files are read with the rights of this process, before it becomes
the job's user.
"""

import os

from clusterprep.remote.agent.launched import LETTERS, kept, text_of, wanted
from clusterprep.remote.agent.readers import NoAnswer, matching_paths, read_command

ENVIRONMENT = "/etc/environment"  # what pam_env reads if it is not told another file
SSHD_CONFIG = "/etc/ssh/sshd_config"
SERVICES = ("/etc/pam.d/", "/usr/lib/pam.d/")  # pam.d(5): the first that has a file counts
# The daemons of cron, by the name of their PAM service.
CRON = (("cron", "/usr/sbin/cron"), ("crond", "/usr/sbin/crond"))
CRONTABS = "/etc/crontab", "/etc/cron.d/*"
SPOOLS = "/var/spool/cron/crontabs/", "/var/spool/cron/"
MOST_INCLUDES = 16  # as deep as sshd and PAM follow files that name files


class Sources(object):
    """The files from which a service takes variables.

    `files` are [path, text], the text None where this process may not read it. `why` says why
    /etc/environment is not among them. `known` tells whether the service's own files could be read.
    """

    def __init__(self, files=(), why="", known=True):
        self.files = list(files)
        self.why = why
        self.known = known

    def texts(self):
        """Return [path, text] of the files that could be read."""
        return [row for row in self.files if row[1] is not None]

    def closed(self):
        """Return the first file that only root may read; None if all could be read."""
        for path, text in self.files:
            if text is None and os.path.exists(path):
                return path
        return None

    def variables(self):
        """Return what all files together set; a later file replaces what an earlier one set."""
        variables = {}
        for _, text in self.texts():
            variables.update(parse_environment(text))
        return variables

    def reads(self):
        """Return [whether /etc/environment is read, None where that is not known, and why not]."""
        if not self.known:
            return [None, self.why]
        return [any(path == ENVIRONMENT for path, _ in self.files), self.why]


def parse_environment(text):
    """Return the variables of an environment file as pam_env reads them.

    After pam_env.c of Linux-PAM 1.5: a # ends the value, also within quotes, and of the quotes
    around a value the last one goes only where nothing stands behind it.
    """
    variables = {}
    for line in _joined(text):
        assignment = line.lstrip(" \t")
        if assignment.startswith("export "):
            assignment = assignment[7:]
        name, sign, value = assignment.partition("=")
        if not name or not set(name) <= LETTERS:
            continue
        if not sign:
            variables.pop(name, None)
            continue
        if value[:1] in ("'", '"') and value:
            value = value[1:]
            if value.endswith(("'", '"')):
                value = value[:-1]
        variables[name] = value
    return variables


def _joined(text):
    """Yield the lines without comments; one that ends with a backslash is joined with the next.

    Empty lines and comments in between do not end it, but the end of the file loses it.
    """
    pending = ""
    for line in text.split("\n"):
        if not line.strip(" \t") or line.lstrip(" \t").startswith("#"):
            continue
        before, comment, _ = line.partition("#")
        stripped = before.rstrip(" \t")
        if stripped.endswith("\\") and not comment:
            pending += stripped[:-1]
            continue
        yield pending + before
        pending = ""


# ---------------------------------------------------------------- services


def of_sshd():
    """Return the Sources of sshd's sessions."""
    uses_pam = _uses_pam()
    if uses_pam is None:
        # Distributions ship sshd with PAM, so a file that is closed to this process is taken so.
        sources = of_service("sshd")
        return Sources(sources.files, "%s cannot be read" % SSHD_CONFIG, False)
    if not uses_pam:
        return Sources((), "UsePAM is not yes in %s" % SSHD_CONFIG)
    return of_service("sshd")


def of_service(name):
    """Return the Sources of a service of PAM."""
    lines = _lines_of_service(name, 0)
    if lines is None:
        return Sources([[ENVIRONMENT, text_of(ENVIRONMENT)]], "%s is not readable" % name, False)
    paths = []
    for words in lines:
        path = _env_file(words)
        if path is not None:
            paths.append(path)
    why = "" if ENVIRONMENT in paths else "no pam_env.so in /etc/pam.d/%s reads it" % name
    return Sources([[path, text_of(path)] for path in paths], why)


def _env_file(words):
    """Return the file that a line of a service makes pam_env read; None if it makes it read none.

    `words` are those of the line behind its type.
    """
    for index, word in enumerate(words):
        if os.path.basename(word) == "pam_env.so":
            arguments = words[index + 1 :]
            break
    else:
        return None
    path = ENVIRONMENT
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "readenv" and value == "0":
            return None
        if key == "envfile":
            path = value
    return path


def _rules(text):
    """Return the words of each rule of a PAM file, which a backslash continues in the next line."""
    rules = []
    for line in text.replace("\\\n", " ").splitlines():
        words = line.partition("#")[0].split()
        if len(words) >= 2:
            rules.append(words)
    return rules


def _lines_of_service(name, depth, kind=None):
    """Return the words of a service's lines that set up sessions, included ones in their place.

    pam_env works in `session` and, by pam_setcred(3), in `auth`. None where a file is not readable.
    `kind` is the only type that counts.
    """
    path = _first_existing([folder + name for folder in SERVICES])
    text = None if path is None else text_of(path)
    if text is None:
        return None if path is not None or depth == 0 else []
    lines = []
    for words in _rules(text):
        included, of_kind = _included(words)
        if included is None:
            if _counts(words[0].lstrip("-"), kind):
                lines.append(words[1:])
        elif depth < MOST_INCLUDES and (of_kind is None or _counts(of_kind, kind)):
            more = _lines_of_service(included, depth + 1, of_kind or kind)
            if more is None:
                return None
            lines += more
    return lines


def _counts(of_kind, kind):
    """Return whether lines of a type set up sessions, and are of `kind` if that is not None."""
    return of_kind in ("session", "auth") and kind in (None, of_kind)


def _included(words):
    """Return the service that a line takes in, and the type of lines that it takes (None: all)."""
    if words[0] == "@include":
        return os.path.basename(words[1]), None
    if words[1] in ("include", "substack") and len(words) > 2:
        return os.path.basename(words[2]), words[0].lstrip("-")
    return None, None


def _uses_pam():
    """Return whether sshd's configuration has PAM for its sessions, None where it is not known."""
    try:
        return _pam_setting(SSHD_CONFIG, 0) == "yes"
    except OSError:
        return None


def _pam_setting(path, depth):
    """Return the first UsePAM of a configuration of sshd and what it includes; None without one.

    Raises OSError for a file that this process may not read. Behind Match the keyword is not
    allowed.
    """
    with open(path, "rb") as source:
        lines = source.read().decode("utf-8", "replace").splitlines()
    for line in lines:
        words = line.replace("=", " ", 1).replace('"', " ").split()
        keyword = words[0].lower() if words else ""
        if keyword == "match":
            return None
        if keyword == "usepam" and len(words) > 1:
            return words[1].lower()
        if keyword == "include" and depth < MOST_INCLUDES:
            for pattern in words[1:]:
                for included in _globbed(os.path.join("/etc/ssh", pattern)):
                    setting = _pam_setting(included, depth + 1)
                    if setting is not None:
                        return setting
    return None


def _globbed(pattern):
    """Return the paths that a pattern of sshd matches, sorted."""
    folder, name = os.path.split(pattern)
    if "*" not in name:
        return matching_paths(pattern)
    start, _, end = name.partition("*")
    paths = []
    for path in matching_paths(folder + "/*"):
        found = os.path.basename(path)
        if found.startswith(start) and found.endswith(end):
            paths.append(path)
    return paths


def _first_existing(paths):
    for path in paths:
        if os.path.exists(path):
            return path
    return None


# ---------------------------------------------------------------- cron


def of_cron():
    """Return the Sources of cron's jobs; None if there is no cron."""
    for service, program in CRON:
        if not os.path.exists(program):
            continue
        if os.path.basename(os.path.realpath(program)).startswith("busybox"):
            return Sources((), "busybox's crond does not use PAM")
        return of_service(service)
    return None


def crontabs(user):
    """Return the lines of the crontabs of a user and of the system that set variables.

    They are [path, [[number, line]]], with names of those that matter alone. A user who may not
    read the own file gets it from crontab(1).
    """
    texts = []
    for pattern in CRONTABS:
        for path in matching_paths(pattern):
            if os.path.isfile(path):
                texts.append([path, text_of(path) or ""])
    if os.geteuid() == 0:
        for folder in SPOOLS:
            path = folder + user
            if os.path.isfile(path):
                texts.append([path, text_of(path) or ""])
    else:
        texts.append([SPOOLS[0] + user, _own_crontab()])
    rows = []
    for path, text in texts:
        lines = _settings(text)
        if lines:
            rows.append([path, lines])
    return rows


def _own_crontab():
    """Return the crontab of the user of this process, "" if there is none."""
    try:
        answer = read_command("crontab", "-l")
    except NoAnswer:
        return ""
    return answer["out"] if answer["code"] == 0 else ""


def _settings(text):
    """Return the lines of a crontab that set a variable that matters, as [number, NAME=value].

    crontab(5): blanks may stand around the =, and a value may be within quotes.
    """
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        name, sign, value = line.strip().partition("=")
        name = name.strip().strip("\"'")
        if sign and name and set(name) <= LETTERS and wanted(name):
            lines.append([number, "%s=%s" % (name, value.strip())])
    return lines


def job_of_cron(sources, rows):
    """Return what a job of cron gets, as ["ok", {name: value}], or ["no", reason, why]."""
    if sources.closed():
        return ["no", "denied", "%s is for root alone" % sources.closed()]
    variables = sources.variables()
    for _, lines in rows:
        for _, line in lines:
            name, _, value = line.partition("=")
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            variables[name] = value
    return ["ok", kept(variables)]
