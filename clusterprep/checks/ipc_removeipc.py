"""Whether logind removes the shared memory of a job when its user logs out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed, passed, skipped
from clusterprep.facts import Fact, user_of_job
from clusterprep.facts.account import Rights, parse_account
from clusterprep.model import Inventory, Node, Read
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.remedies import Remedy, sentence, shell_line

# logind.conf(5): folders in the order of what wins. A drop-in hides those of its name in folders
# that stand behind its own; all that are left are read in the order of their names.
FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
LINGER = "/var/lib/systemd/linger"
LOGIND = "/run/systemd/seats"  # logind makes it when it starts
# Of slurmd while it runs: its process ids, by systemd's slice (cgroup v2, v1) or its own file.
SLURMD = (
    "/sys/fs/cgroup/system.slice/slurmd.service/cgroup.procs",
    "/sys/fs/cgroup/systemd/system.slice/slurmd.service/cgroup.procs",
    "/run/slurmd.pid",
    "/run/slurm/slurmd.pid",
)
# Of systemd as it is released. A distribution that builds it otherwise says so in the comments of
# the file it ships, as Red Hat does: «#RemoveIPC=no».
UPSTREAM = True
YES = ("1", "yes", "y", "true", "t", "on")
NO = ("0", "no", "n", "false", "f", "off")
LAST_SYSTEM_UID = 999  # logind leaves the segments of root and of such users alone


class Logind(Struct, frozen=True):
    """What logind does with segments of a user without sessions.

    `source` is the file that says so, "" for the default. Users in `lingering` keep theirs. `uid`
    is the id of the job's user, None if there is no such user.
    """

    removes: bool
    source: str
    lingering: tuple[str, ...] = ()
    runs: bool = True
    slurmd: bool = False
    uid: int | None = None


def parse_logind(files: Mapping[str, str], account: dict[str, Any] | None) -> Logind:
    """Return what logind was told by its file and the drop-ins, as systemd reads them."""
    user = parse_account(account)
    removes, source = UPSTREAM, ""
    for path in _in_order(files):
        for key, value in _settings(files[path], path):
            if key == "RemoveIPC" and value is not None:
                removes, source = value, path
    return Logind(
        removes=removes,
        source=source,
        lingering=tuple(path.rpartition("/")[2] for path in files if path.startswith(LINGER)),
        runs=LOGIND in _folders(files),
        slurmd=any(files.get(path, "").strip() for path in SLURMD),
        uid=user.uid if user else None,
    )


def _folders(files: Iterable[str]) -> set[str]:
    return {path.rpartition("/")[0] for path in files}


def _in_order(files: Mapping[str, str]) -> list[str]:
    """Return the paths of the settings in the order in which systemd reads them."""
    mains = [f"{folder}/logind.conf" for folder in FOLDERS]
    first = [path for path in mains if path in files][:1]
    drop_ins: dict[str, str] = {}
    for folder in FOLDERS:
        for path in files:
            where, _, name = path.rpartition("/")
            if where == f"{folder}/logind.conf.d" and name.endswith(".conf"):
                drop_ins.setdefault(name, path)
    return [*first, *(path for _, path in sorted(drop_ins.items()))]


def _settings(text: str, path: str) -> Iterable[tuple[str, bool | None]]:
    """Yield key and value of the lines of [Login], the commented defaults of a main file first.

    The value is None where it is no boolean: systemd warns and goes on.
    """
    if path.endswith("/logind.conf"):
        for line in text.splitlines():
            match = re.fullmatch(r"#\s*(RemoveIPC)\s*=\s*(\S+)\s*", line)
            if match:
                yield match[1], _boolean(match[2])
    section = ""
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("["):
            section = line
        elif section == "[Login]" and not line.startswith(("#", ";")):
            key, sign, value = line.partition("=")
            if sign:
                yield key.strip(), _boolean(value.strip())


def _boolean(text: str) -> bool | None:
    if text.lower() in YES:
        return True
    if text.lower() in NO:
        return False
    return None


def judge(context: CheckContext, node: Node, logind: Logind, rights: Rights) -> Outcome:
    """Fail where jobs run outside of login sessions and logind removes what their user has."""
    if not logind.runs:
        return skipped(node, "systemd-logind does not run here", "not_applicable")
    required = context.wanted(node)
    wanted = required or "RemoveIPC=no where jobs outlive a session"
    seen = f"RemoveIPC={'yes' if logind.removes else 'no'}"
    seen = f"{seen} in {logind.source}" if logind.source else f"{seen}, the default"
    if required is not None:
        if _boolean(required) is logind.removes:
            return passed(node, "logind does as required", seen, wanted)
        return _failure(node, "logind does otherwise than required", seen, wanted, logind)
    user = user_of_job(node) or rights.user
    outlives = node.transport == "slurm" or logind.slurmd
    if outlives and not _keeps(logind, user):
        message = (
            f"Slurm's jobs have no login session: when {user} logs out of this node, logind "
            "removes the shared memory of the jobs that run"
        )
        return _failure(node, message, seen, wanted, logind)
    message = (
        _keeps(logind, user)
        or f"shared memory of {user} goes with the last session: start no job in the background"
    )
    return passed(node, message, seen, wanted)


def _keeps(logind: Logind, user: str) -> str:
    """Return why logind keeps what a user has; "" where it does not."""
    if not logind.removes:
        return "logind leaves shared memory alone"
    if logind.uid is not None and logind.uid <= LAST_SYSTEM_UID:
        return f"logind leaves what {user} has alone"
    if user in logind.lingering:
        return f"{user} lingers, so no logout is the last"
    return ""


def _failure(node: Node, message: str, seen: str, wanted: str, logind: Logind) -> Outcome:
    return failed(
        node,
        message,
        seen,
        wanted,
        REMEDY if logind.removes else KEPT,
        fix=KEEP if logind.removes else None,
    )


def parse_wanted(text: str) -> bool:
    """Return what `require: {ipc.removeipc: "no"}` says. Raises ValueError for other text."""
    value = _boolean(text)
    if value is None:
        raise ValueError(f"expected yes or no; seen '{text}'")
    return value


def _reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    mains = [f"{folder}/logind.conf" for folder in FOLDERS]
    drop_ins = [f"{folder}/logind.conf.d/*" for folder in FOLDERS]
    files = Read("files", (*mains, *drop_ins, f"{LINGER}/*", f"{LOGIND}/*", *SLURMD))
    return (files, Read("account", (user_of_job(node),)))


REMEDY: Remedy = shell_line(
    "mkdir -p /etc/systemd/logind.conf.d && printf '[Login]\\nRemoveIPC=no\\n' "
    "> /etc/systemd/logind.conf.d/90-clusterprep-ipc.conf"
    "   # it counts from the next start of systemd-logind on"
)
KEEP = fix_of(
    wanted_state(
        "file",
        path="/etc/systemd/logind.conf.d/90-clusterprep-ipc.conf",
        content="[Login]\nRemoveIPC=no\n",
    )
)
KEPT = sentence("remove RemoveIPC=no from the file named, or what is required from the inventory")
LOGIND_FACT = Fact("ipc.logind", _reads, parse_logind)
CHECK = Check(
    "ipc.removeipc",
    facts=("ipc.logind", "ssh.rights"),
    judge=each(judge, "ipc.logind", "ssh.rights"),
    severity="warning",
    title="Shared memory when the user logs out",
    why="With RemoveIPC=yes logind deletes all shared memory, semaphores and queues of a user when "
    "the last login session ends. A job of Slurm has no such session: it runs until the user "
    "looks at the node by ssh and leaves, and then NCCL and data loaders lose their segments.",
    how="RemoveIPC of logind.conf and its drop-ins in the order in which systemd reads them. It "
    "does not matter for root, system users and users that linger, and fails where slurmd runs or "
    "`transport: slurm` is used; elsewhere it is told. `require: {ipc.removeipc: no}` asks for it.",
    remedy=REMEDY,
    wants=parse_wanted,
    proof=Proof(
        "ipc.logind",
        lambda logind: Logind(True, "/etc/systemd/logind.conf", slurmd=True, uid=1000),
        machine={
            "files": {
                "/run/systemd/seats/seat0": "IS_SEAT0=1\n",
                "/etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\n",
            }
        },
    ),
)
