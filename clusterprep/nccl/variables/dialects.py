"""What the file of a target can hold: every reader of the file must get exactly the same value.

nccl.conf: NCCL cuts at 1023 bytes (src/misc/param.cc).

env-file: systemd (src/basic/env-file.c) interprets quotes and backslashes and trims blanks. Some
releases of docker take everything literally, others drop quotes. People also source the file in a
shell, which would run a part of it.

ssh (/etc/environment): pam_env (modules/pam_env/pam_env.c) cuts at a #, drops quotes at both ends,
joins a line that ends with a backslash with the next one, and before Linux-PAM 1.4 reads lines
with a buffer of 1024 bytes. Units of systemd name the file as EnvironmentFile=, and people source
it.

systemd (Environment= of a drop-in): within double quotes only the backslash, the quote and the %
mean something, and all three can be escaped.

container: containers.conf is TOML, where everything can be escaped. enroot (src/common.sh) puts
variables of the host in the place of ${NAME}, drops quotes at both ends, and keeps names that begin
with ENROOT_ for itself.

Task prolog: slurmstepd (task.c) reads a line with a buffer of 4095 bytes and takes the rest of a
longer line for another line.
"""

from __future__ import annotations

import re

from clusterprep.nccl.variables.variables import conf_file_has_effect

# Bytes of a name, and of a value.
NCCL_MOST = 1023
# Bytes of a line: two less than the buffer's end, for the line feed and the zero.
PROLOG_MOST = 4093
# Bytes of a line: Go's scanner gives up at 64 KiB.
DOCKER_MOST = 65534
# Bytes of a line of pam_env: its buffer without the line feed and the zero.
PAM_MOST = 1022
# Bytes of NAME=value: the kernel's MAX_ARG_STRLEN without its zero.
KERNEL_MOST = 131071

# Names that shells keep for themselves: read-only, counted up, or run when a prompt is shown.
SHELLS_OWN = frozenset({
    "_", "BASHOPTS", "BASHPID", "BASH_VERSINFO", "DIRSTACK", "EGID", "EPOCHREALTIME",
    "EPOCHSECONDS", "EUID", "FUNCNAME", "GID", "GROUPS", "HISTCMD", "LINENO", "OPTIND", "PPID",
    "PS0", "PS1", "PS2", "PS3", "PS4", "RANDOM", "SECONDS", "SHELLOPTS", "SHLVL", "SRANDOM",
    "UID", "USERNAME", "argv", "path", "pipestatus", "status",
})  # fmt: skip
# Names that sshd, login and cron set themselves, for each user.
LOGINS_OWN = frozenset({"LOGNAME", "MAIL", "SHELL", "TERM", "USER"})
_BARE_READERS = {
    "env-file": "systemd, docker and shells",
    "ssh": "PAM, systemd and shells",
}
# The foreign ones themselves: a set of all others, up to U+10FFFF, takes 4 ms to compile.
_FOREIGN_TO_BARE = re.compile(r"""[\x00-\x20"$&'()\\`;<>|\x7f]""")
_HOME = re.compile("(?:^|[=:])~")
_QUOTED = re.compile(r"""["'].*["']\s*""")
_NAMES_OF_CHARACTERS = {" ": "a blank", "'": "a quote", '"': "a quote", "\\": "a backslash"}


def refusal(target: str, name: str, value: str) -> str | None:
    """Return why this target cannot hold this value, and what to do; None if it can."""
    if target == "nccl.conf" and not conf_file_has_effect(name):
        return None  # it is not written there
    why = _too_long(target, name, value)
    if why is None:
        why = _reserved_name(target, name)
    if why is None and target in _BARE_READERS:
        why = _not_bare(target, value)
    if why is None and target == "systemd":
        why = _noncharacter(value)
    if why is None and target == "container":
        why = _not_for_enroot(name, value)
    if why is None:
        return None
    return f"{why}, or take {target} out of env_targets"


def _too_long(target: str, name: str, value: str) -> str | None:
    """Return why a value is longer than a reader takes, or None. Lengths are in bytes."""
    setting = len(f"{name}={value}".encode())
    if setting > KERNEL_MOST:
        size = f"{setting} bytes with the name"
        return f"{size}, and with more than {KERNEL_MOST} no program starts; shorten it"
    longest = max(len(name), len(value.encode()))
    if target == "nccl.conf" and longest > NCCL_MOST:
        cut = f"NCCL cuts what is longer than {NCCL_MOST} in {target}"
        return f"{longest} bytes, and {cut}; shorten it"
    line = setting + len("export ")
    if target == "slurm-task-prolog" and line > PROLOG_MOST:
        cut = f"Slurm cuts what is longer than {PROLOG_MOST}"
        return f"a line of {line} bytes, and {cut}; shorten it"
    if target == "ssh" and setting > PAM_MOST:
        cut = f"PAM cuts what is longer than {PAM_MOST}"
        return f"a line of {setting} bytes, and {cut}; shorten it"
    if target == "env-file" and setting > DOCKER_MOST:
        limit = f"docker reads none that is longer than {DOCKER_MOST}"
        return f"a line of {setting} bytes, and {limit}; shorten it"
    return None


def _reserved_name(target: str, name: str) -> str | None:
    """Return why a variable cannot be set by this target, or None."""
    if target == "ssh" and name in LOGINS_OWN:
        return f"every login has a '{name}' of its own; leave it out"
    if target in ("profile.d", "env-file", "ssh") and name in SHELLS_OWN:
        why = f"shells keep '{name}' for themselves"
        return f"{why}, and do not take it from {target}; leave it out"
    if target == "slurm-task-prolog" and name == "SLURM_PROLOG_CPU_MASK":
        return f"Slurm binds tasks to processors by '{name}' when a prolog prints it; leave it out"
    return None


def _not_bare(target: str, value: str) -> str | None:
    """Return why not all readers of a target would read this value, without quotes, alike."""
    readers = _BARE_READERS[target]
    place = _foreign_place(target, value)
    if place is not None:
        sign = _NAMES_OF_CHARACTERS.get(value[place], value[place])
        where = f"(character {place + 1})"
        why = f"{readers} do not all read {sign} {where} in {target} as it is"
        return f"{why}; take it out of the value"
    home = _HOME.search(value)
    if home:
        why = f"a shell makes a home folder of the ~ (character {home.end()}) in {target}"
        return f"{why}; write the folder's path"
    return _noncharacter(value)


def _foreign_place(target: str, value: str) -> int | None:
    """Return the index of the first character that a bare value cannot hold, None without one."""
    foreign = _FOREIGN_TO_BARE.search(value)
    places = [foreign.start()] if foreign else []
    if target == "ssh" and "#" in value:
        places.append(value.index("#"))
    return min(places, default=None)


def _noncharacter(value: str) -> str | None:
    for place, letter in enumerate(value, 1):
        if _is_noncharacter(ord(letter)):
            sign = f"U+{ord(letter):04X} (character {place})"
            return f"systemd takes {sign} for broken UTF-8; take it out of the value"
    return None


def _not_for_enroot(name: str, value: str) -> str | None:
    """Return why enroot would not give this value to a container as it is, or None."""
    if name.startswith("ENROOT_"):
        return f"enroot keeps '{name}' for itself; leave it out"
    if "${" in value:
        place = value.index("${") + 1
        why = f"enroot takes what begins with ${{ (character {place}) for a variable of the node"
        return f"{why}; take it out of the value"
    if _QUOTED.fullmatch(value):
        return "enroot drops the quotes around the value; take them out of the value"
    return None


def _is_noncharacter(code: int) -> bool:
    """Return whether Unicode reserves a code point as a noncharacter."""
    return 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE
