"""What container engines give to every container by their own configuration: read from files."""

import os

from clusterprep.remote.agent.launched import lines_of, text_of, wanted
from clusterprep.remote.agent.light import loads
from clusterprep.remote.agent.readers import matching_paths

PODMAN = ("/usr/bin/podman", "/usr/local/bin/podman")
ENROOT = ("/usr/bin/enroot", "/usr/local/bin/enroot")
DOCKER = ("/usr/bin/docker", "/usr/local/bin/docker")
# containers.conf(5): a later file replaces the lists of an earlier one.
CONTAINERS_CONF = (
    "/usr/share/containers/containers.conf",
    "/etc/containers/containers.conf",
    "/etc/containers/containers.conf.d/*",
)
OWN_CONF = (
    "/.config/containers/containers.conf",
    "/.config/containers/containers.conf.d/*",
)
ENVIRON = "/etc/enroot/environ.d/*"
OWN_ENVIRON = "/.config/enroot/environ.d/*"
ASSIGNED = r"\s*env\s*=\s*\["
# What stands in a list of TOML: text in double or single quotes, a comment, an attribute, the end.
LIST_PART = r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|\{[^}]*\}|\]'


def podman(home):
    """Return what podman gives to every container, as rows [path, [[line, NAME='value']]].

    None if there is no podman.
    """
    if not any(map(os.path.exists, PODMAN)):
        return None
    home = home.rstrip("/")
    rows = []
    for path in conf_files(CONTAINERS_CONF) + conf_files([home + name for name in OWN_CONF]):
        found = env_list(text_of(path) or "")
        if found is not None:
            entries, appends = found
            rows = (rows if appends else []) + [[path, _settings(entries)]]
    return rows


def conf_files(patterns):
    """Return the configuration files that match, in the order in which podman reads them."""
    return [path for pattern in patterns for path in matching_paths(pattern) if _is_conf(path)]


def _is_conf(path):
    return path.endswith(".conf") and os.path.isfile(path)


def env_list(text):
    """Return the entries of `env` in [containers], and whether they are added to earlier ones.

    The entries are [line, text]. None if the file does not set the list.
    """
    if "env" not in text:
        return None
    import re  # seldom needed, and it takes longer to import than all else here

    section, offset = "", 0
    for line in text.splitlines(True):
        if line.lstrip().startswith("["):
            section = line.partition("#")[0].strip().strip("[] ")
        match = re.match(ASSIGNED, line) if "env" in line else None
        if section == "containers" and match:
            parts = re.compile(LIST_PART).finditer(text, offset + match.end())
            return _entries(parts, text)
        offset += len(line)
    return None


def _entries(parts, text):
    """Return what `env_list` does, of the parts behind the bracket that opens a list of `text`."""
    entries, appends = [], False
    for match in parts:
        part = match.group()
        if part == "]":
            break
        if part[0] == "{":
            appends = "true" in part
        elif part[0] != "#":
            entries.append([text.count("\n", 0, match.start()) + 1, _unquoted(part)])
    return entries, appends


def _unquoted(part):
    """Return the text of a string of TOML, whose escapes are those of JSON but for a few."""
    if part[0] == '"':
        try:
            return str(loads(part))
        except ValueError:
            pass
    return part[1:-1]


def _settings(entries):
    """Return the entries that matter as [line, NAME='value'], quoted as for a shell."""
    lines = []
    for number, entry in entries:
        name, sign, value = entry.partition("=")
        if sign and wanted(name):
            lines.append([number, "%s='%s'" % (name, value.replace("'", "'\\''"))])
    return lines


def enroot(home):
    """Return what enroot gives to every container, as rows [path, lines]; None without enroot."""
    if not any(map(os.path.exists, ENROOT)):
        return None
    rows = []
    for path in matching_paths(ENVIRON) + matching_paths(home.rstrip("/") + OWN_ENVIRON):
        if path.endswith(".env"):
            lines = lines_of(text_of(path) or "")
            if lines:
                rows.append([path, lines])
    return rows


def docker():
    """Return the rows of what docker gives to every container, which is nothing of this kind.

    None if there is no docker.
    """
    return [] if any(map(os.path.exists, DOCKER)) else None


def read_container_defaults(root=""):
    """Return {path: the line} of the system's files of podman that set `env`, whatever it holds.

    `root` stands before all paths.
    """
    lines = {}
    for path in conf_files([root.rstrip("/") + name for name in CONTAINERS_CONF]):
        found = env_list(text_of(path) or "")
        if found is not None:
            entries, _ = found
            lines[path] = entries[0][0] if entries else 0
    return lines
