"""Commands that are answered without being started, where it is known what they would say.

dpkg-query reads its whole list of packages before it answers, which takes a node 8 ms and more.
Whether any of the wanted names is in that list is seen in a tenth of that. Names that other
packages merely mention are left out, which dpkg-query shows as not installed.

timedatectl can say nothing where systemd is not the first process, as in most containers.

Debian's rpm starts eight shells to find its settings, which takes a node 12 ms. Of a file that does
not exist it says only that.

A tool that is asked only because another one may not answer is not started when the other did.
"""

import os

from clusterprep.remote.agent.readers import (
    executable,
    offer,
    read_bytes,
    read_command,
    search_path,
)

STATUS = "/var/lib/dpkg/status"
UPDATES = "/var/lib/dpkg/updates"  # changes of the list that dpkg has not put into it yet
MAX_BYTES = 64 << 20  # of the list; 3,000 packages have 3 MB
PACKAGE = b"\nPackage: "  # before each name in the list
QUERY = ["dpkg-query", "-W", "-f"]  # then a format, and the names
SPECIAL = frozenset("*?[]\\:/ ")  # signs that have a meaning in a pattern, and the architecture
ELSEWHERE = ("DPKG_ADMINDIR", "DPKG_ROOT")  # variables that name another list
# sd_booted(3): this folder is there where systemd is the first process. Without it timedatectl ends
# with this line, after 5 ms.
BOOTED = "/run/systemd/system"
NOT_BOOTED = "System has not been booted with systemd as init system (PID 1). Can't operate.\n"
OWNER = ["env", "HOME=/proc", "rpm", "-qf", "--qf", "%{NAME}"]  # then one file
_ended_well = []  # type: list[list[str]]  # commands of this process that ended with 0


def read_tool(*argv):
    """Return exit code and output of a command, as `read_command` does."""
    words = list(argv)
    found = _known(words) or read_command(*words)
    if found["code"] == 0:
        _ended_well.append(words)
    return found


def read_otherwise(first, words):
    """Return what `read_tool` does, or None where the command `first` has ended with 0.

    `first` is the command of an earlier read in the same lane. Where it hung, this lane is another
    process, which does not know of it.
    """
    if list(first) in _ended_well:
        return None
    return read_tool(*words)


def _known(words):
    """Return the answer of a command of which it is known, else None.

    Raises NoAnswer where the tool is not there.
    """
    names = words[len(QUERY) + 1 :]
    if words[: len(QUERY)] == QUERY and has_none(names):
        executable(words[0], search_path())
        lines = ["dpkg-query: no packages found matching %s\n" % name for name in names]
        return {"code": 1, "out": "", "err": "".join(lines)}
    if words[:1] == ["timedatectl"] and not os.path.isdir(BOOTED):
        executable(words[0], search_path())
        return {"code": 1, "out": "", "err": NOT_BOOTED}
    if words[:-1] == OWNER and not os.path.lexists(words[-1]):
        error = "error: file %s: No such file or directory\n" % words[-1]
        return {"code": 1, "out": "", "err": error}
    return None


def has_none(names):
    """Return whether dpkg's list is known to have no package of these names.

    A name may end with `*`.
    """
    plain = [name[:-1] if name.endswith("*") else name for name in names]
    if not names or any(SPECIAL.intersection(name) or not name for name in plain):
        return False
    if any(variable in os.environ for variable in ELSEWHERE):
        return False
    try:
        if os.listdir(UPDATES):
            return False
        data = read_bytes(STATUS, MAX_BYTES)
    except OSError:
        return False
    # A name that merely begins so is asked for too: dpkg-query tells the difference.
    return len(data) < MAX_BYTES and not _has_package(b"\n" + data, plain)


def _has_package(data, names):
    """Return whether the list has a package whose name begins with one of the names."""
    wanted = tuple(PACKAGE + name.encode("utf-8") for name in names)
    at = data.find(PACKAGE)
    while at >= 0:
        if data.startswith(wanted, at):
            return True
        at = data.find(PACKAGE, at + 1)
    return False


def install(agent):
    """Register the readers of this part, one in place of that which starts every command."""
    offer({"command": read_tool, "otherwise": read_otherwise}, lane="tools")
