"""What a target's file can hold: a value is written only where all who read that file get exactly this value from it.

nccl.conf: NCCL cuts at 1023 bytes (src/misc/param.cc). env-file: systemd (src/basic/env-file.c) takes quotes and
backslashes for its own and trims blanks; docker takes all of it as it is in some releases and drops quotes in others;
and people source the file in a shell, which would run a part of it. The task prolog: slurmstepd (task.c) reads a line
with a buffer of 4095 bytes and takes the rest of a longer one for another line.
"""

from __future__ import annotations

import re

from clusterprep.nccl.variables.variables import nccl_reads

NCCL_MOST = 1023  # bytes of a name, and of a value
PROLOG_MOST = (
    4093  # bytes of a line: two less than the buffer's end, for the line feed and the zero
)
DOCKER_MOST = 65534  # bytes of a line: Go's scanner gives up at 64 KiB
KERNEL_MOST = 131071  # bytes of NAME=value: MAX_ARG_STRLEN without its zero

# Names that shells keep for themselves: read-only, counted up, or run when a prompt is shown.
SHELLS_OWN = frozenset({
    "_", "BASHOPTS", "BASHPID", "BASH_VERSINFO", "DIRSTACK", "EGID", "EPOCHREALTIME", "EPOCHSECONDS", "EUID",
    "FUNCNAME", "GID", "GROUPS", "HISTCMD", "LINENO", "OPTIND", "PPID", "PS0", "PS1", "PS2", "PS3", "PS4", "RANDOM",
    "SECONDS", "SHELLOPTS", "SHLVL", "SRANDOM", "UID", "USERNAME", "argv", "path", "pipestatus", "status",
})  # fmt: skip
_FOREIGN_TO_BARE = re.compile(r"[^A-Za-z0-9_@%+=:,./^?*{}\[\]!#~\x80-\U0010ffff-]")
_HOME = re.compile("(?:^|[=:])~")
_NAMES = {" ": "a blank", "'": "a quote", '"': "a quote", "\\": "a backslash"}


def refusal(target: str, name: str, value: str) -> str | None:
    """Why this target cannot hold this value, and what to do; None where it can."""
    if target == "nccl.conf" and not nccl_reads(name):
        return None  # it is not written there
    why = _too_long(target, name, value) or _name_of_others(target, name)
    if why is None and target == "env-file":
        why = _not_bare(value)
    return why and f"{why}, or take {target} out of env_targets"


def _too_long(target: str, name: str, value: str) -> str | None:
    both = len(f"{name}={value}".encode())
    if both > KERNEL_MOST:
        return f"{both} bytes with the name, and with more than {KERNEL_MOST} no program starts; shorten it"
    longest = max(len(name), len(value.encode()))
    if target == "nccl.conf" and longest > NCCL_MOST:
        return f"{longest} bytes, and NCCL cuts what is longer than {NCCL_MOST} in {target}; shorten it"
    line = both + len("export ")
    if target == "slurm-task-prolog" and line > PROLOG_MOST:
        return (
            f"a line of {line} bytes, and Slurm cuts what is longer than {PROLOG_MOST}; shorten it"
        )
    if target == "env-file" and both > DOCKER_MOST:
        return f"a line of {both} bytes, and docker reads none that is longer than {DOCKER_MOST}; shorten it"
    return None


def _name_of_others(target: str, name: str) -> str | None:
    if target in ("profile.d", "env-file") and name in SHELLS_OWN:
        return (
            f"shells keep '{name}' for themselves, and do not take it from {target}; leave it out"
        )
    if target == "slurm-task-prolog" and name == "SLURM_PROLOG_CPU_MASK":
        return f"Slurm binds tasks to processors by '{name}' when a prolog prints it; leave it out"
    return None


def _not_bare(value: str) -> str | None:
    """Why systemd, docker and a shell would not all read this value as it stands, without quotes."""
    if found := _FOREIGN_TO_BARE.search(value):
        sign = _NAMES.get(found[0], found[0])
        return (
            f"systemd, docker and shells do not all read {sign} (character {found.start() + 1}) in env-file as it is; "
            "take it out of the value"
        )
    if found := _HOME.search(value):
        return f"a shell makes a home folder of the ~ (character {found.end()}) in env-file; write the folder's path"
    for place, letter in enumerate(value, 1):
        if 0xFDD0 <= ord(letter) <= 0xFDEF or ord(letter) & 0xFFFE == 0xFFFE:
            return f"systemd takes U+{ord(letter):04X} (character {place}) for broken UTF-8; take it out of the value"
    return None
