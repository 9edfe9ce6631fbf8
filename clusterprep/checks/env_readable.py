"""Files of the environment that the job's user cannot read: the job gets nothing of them."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed, passed, unknown
from clusterprep.facts.readable import Readable, Refusal
from clusterprep.model import Node, Severity
from clusterprep.model.fixes import Fix, fix_of, wanted_state
from clusterprep.remedies import Remedy, noted, sentence, shell_line

# Permission bits that give every user what is needed of a file or of a folder on the way to it.
BITS = {"read": 0o444, "run": 0o555, "list": 0o555}
ENTER = 0o111
ETC = "/etc/"
CONF = "/etc/nccl.conf"
# What a job loses, by who reads the file.
LOST = {
    "target": "a job of {user} gets nothing that apply writes there",
    "nccl": "NCCL in a job of {user} takes nothing of it",
    "slurm": "Slurm's tasks of {user} get nothing that it prints",
    "shell": "shells of {user} set nothing of it",
}


def judge(context: CheckContext, node: Node, readable: Readable) -> Iterable[Outcome]:
    """Judge each file that the job's user was refused; say that there is none otherwise."""
    is_good = True
    for refusal in readable.refusals:
        if refusal.matters is False:
            continue
        is_good = False
        yield _outcome(node, readable.user, refusal)
    if is_good:
        user = readable.user
        yield passed(node, f"{user} can read every file that the environment comes from")


def _outcome(node: Node, user: str, refusal: Refusal) -> Outcome:
    what = _describe(user, refusal)
    seen = _seen(refusal)
    wanted = f"{user} can {refusal.need} {refusal.path}"
    cure = _remedy(user, refusal)
    if refusal.matters is None:
        message = f"{what}; whether it sets anything for jobs is not known"
        reason = "the file cannot be read by the login either"
        return unknown(
            node,
            message,
            reason,
            seen,
            wanted,
            cure,
            severity="warning",
        )
    lost = LOST[refusal.use].format(user=user)
    severity: Severity | None = None if refusal.use == "target" else "warning"
    return failed(
        node,
        f"{what}, so {lost}",
        seen,
        wanted,
        cure,
        severity,
        _fix(refusal),
    )


def _fix(refusal: Refusal) -> Fix | None:
    """Return what opens a file that apply wrote, which holds no secret; None for any other."""
    if refusal.use != "target" or refusal.mode is None or refusal.at != refusal.path:
        return None
    opened = wanted_state(
        "command",
        run=("chmod", "0644", refusal.at),
        # Ends with 1 where the file is not for all to read.
        unless=("find", refusal.at, "-prune", "!", "-perm", "-0004", "-exec", "false", "{}", "+"),
        undo=("chmod", f"{refusal.mode:04o}", refusal.at),
    )
    return fix_of(opened)


def _describe(user: str, refusal: Refusal) -> str:
    """Return who cannot do what: «alice cannot read /etc/nccl.conf»."""
    deed = f"{user} cannot {refusal.need} {refusal.path}"
    if not refusal.at:
        return f"{deed} ({refusal.why})"
    if refusal.at != refusal.path and refusal.folder:
        return f"{deed}, because {user} cannot enter {refusal.at}"
    return deed


def _seen(refusal: Refusal) -> str:
    """Return the mode and the owners of what refuses: «/etc/nccl.conf 0600 root:root»."""
    if refusal.mode is None:
        return f"{refusal.at or refusal.path}: {refusal.why}"
    acl = " with an access control list" if refusal.acl else ""
    place = refusal.at or refusal.path
    return f"{place} {refusal.mode:04o} {refusal.owner}:{refusal.group}{acl}"


def _needed(refusal: Refusal) -> tuple[int, str]:
    """Return the permission bits that are needed of what refuses, and setfacl's letters for them.

    On a folder that is on the way to a file only the right to enter is needed.
    """
    if refusal.need == "list":
        return BITS["list"], "rx"
    if refusal.folder:
        return ENTER, "x"
    return BITS[refusal.need], "rx" if refusal.need == "run" else "r"


def _is_named_by_user(refusal: Refusal) -> bool:
    """Return whether the job's user may have chosen this path, which can be any file of root's."""
    path = posixpath.normpath(refusal.path)
    if refusal.use == "nccl":
        return path != CONF
    return refusal.use == "shell" and not f"{path}/".startswith(ETC)


def _remedy(user: str, refusal: Refusal) -> Remedy:
    """Return what opens the file to the user, and as few others as the place allows."""
    if not refusal.at:
        return sentence("look after the file {path}: {why}", path=refusal.path, why=refusal.why)
    if _is_named_by_user(refusal):
        return sentence(
            "have the start-up files of {user}, or NCCL_CONF_FILE, name a file that {user} can "
            "read: that they name {path} is no reason to open {at}",
            user=user,
            path=refusal.path,
            at=refusal.at,
        )
    bits, letters = _needed(refusal)
    is_mode_enough = refusal.mode is not None and refusal.mode & bits == bits
    if is_mode_enough and not refusal.acl:
        return sentence(
            "the mode of {at} lets {user} in: look for a security module such as SELinux, or a "
            "file server, that does not",
            at=refusal.at,
            user=user,
        )
    # Elsewhere than in /etc a mode may be meant: of homes, and of what is shared.
    is_private = refusal.folder and not f"{refusal.at}/".startswith(ETC)
    if is_mode_enough or is_private:
        entry = f"u:{user}:{letters}"
        return shell_line("setfacl -m {entry} {at}", entry=entry, at=refusal.at)
    if refusal.folder:
        mode = "a+rx" if refusal.need == "list" else "a+x"
        return shell_line("chmod {mode} {at}", mode=mode, at=refusal.at)
    mode = "0755" if refusal.need == "run" else "0644"
    line = shell_line("chmod {mode} {at}", mode=mode, at=refusal.at)
    if refusal.use == "target":
        return line
    return noted(line, "if it holds no secret")


_PROOF = Refusal(CONF, "read", "target", "Permission denied", CONF)

CHECK = Check(
    "env.readable",
    facts=("env.readable",),
    judge=each(judge, "env.readable"),
    severity="error",
    grade="an error for a file that apply writes, else a warning",
    title="Files that the job's user can read",
    why="A file that root alone can read sets nothing in a job of another user: NCCL, shells and "
    "Slurm leave it out without a word, and the job runs on defaults.",
    how="As the job's user: opens the files of `env_targets`, NCCL's own files, TaskProlog and the "
    "start-up files of its shell, with every folder on the way. Start-up files that set nothing "
    "for jobs do not count. /etc/environment and EnvironmentFile= of units are read by root.",
    remedy=shell_line("chmod 0644 FILE   # and chmod a+x FOLDER for a folder on the way"),
    proof=Proof(
        "env.readable",
        lambda readable: replace(
            readable, refusals=(replace(_PROOF, mode=0o600, owner="root", group="root"),)
        ),
    ),
)
