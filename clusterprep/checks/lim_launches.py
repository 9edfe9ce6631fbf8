"""Judges a limit of every way in which a job may be launched on a node, besides a session."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from msgspec import Struct

from clusterprep.checks import CheckContext, Outcome, failed, passed, unknown
from clusterprep.facts import user_of_job
from clusterprep.facts.launch_limits import CRON, LAUNCHES, LOGIN, Launches, Limit
from clusterprep.model import NOT_ASKED, Absent, Node, Severity
from clusterprep.model.fixes import Fix, WantedState, fix_of
from clusterprep.remedies import Remedy, sentence, shell_line

# Whose limit it is, by the path of a Limit; any other path is a unit of systemd.
JOBS = {
    "slurmd": "tasks of Slurm",
    "docker": "containers that Docker starts without --ulimit",
    "containerd": "containers of containerd",
    "cri-o": "containers of CRI-O",
    "podman": "containers that Podman starts without --ulimit",
    "systemd": "services without a limit of their own",
    "daemons": "jobs of daemons",
    LOGIN: "login shells",
    CRON: "jobs of cron",
}
# Daemons whose limit is that of their unit.
UNITS = {"slurmd": "slurmd", "docker": "containerd", "containerd": "containerd", "cri-o": "crio"}
# Ways by which every job goes that is started so; for the others a job can ask for more, or have
# the right to pass the limit, as containers with IPC_LOCK have.
FIRM = ("slurmd", LOGIN)
ENDLESS_STACK = "the stack is unlimited, so that glibc gives every thread 2 MiB"
# pam_limits reads the files of this folder in the order of their names; the last one wins.
LIMITS_FOLDER = "/etc/security/limits.d/"
LIMITS_FILE = f"{LIMITS_FOLDER}90-clusterprep.conf"  # of the resource `limits`
UNUSED_PAM = sentence(
    "let sshd use PAM: UsePAM yes in sshd_config and pam_limits.so in /etc/pam.d/sshd, and log in "
    "anew"
)


class Rule(Struct, frozen=True):
    """What a limit must be: `least`, and not unlimited where that is `endless_is_bad`.

    `wanted` says it in words, `value` as systemd writes it. `trouble` is what is said of jobs with
    less, such as «too little memory may be locked». `limit` is the value that the resource `limits`
    gives to logins, "" where it would take more than is wanted.
    """

    item: str
    least: float
    wanted: str
    trouble: str
    value: str
    format: Callable[[float], str]
    severity: Severity = "warning"
    endless_is_bad: bool = False
    limit: str = ""


def session_of(node: Node) -> str:
    """Return what the session is whose limits the agent has seen: «an ssh session»."""
    user = user_of_job(node)
    if node.job_user is not None and node.job_user != node.ssh.user:
        return f"a session of {user}"
    if node.transport == "slurm":
        return "a task of Slurm"
    return "an ssh session" if node.transport == "ssh" else "this session"


def session_failure(
    context: CheckContext, node: Node, rule: Rule, value: float, trouble: str = ""
) -> Outcome:
    """Return the failure of a session that has this limit, with what PAM has to do with it."""
    who = session_of(node)
    remedy = None
    login = _login(context, node, rule)
    if login is not None and login.value == value:
        who = f"{who} and login shells"
        remedy = _remedy(rule, login)
    elif login is not None and login.value is not None and not _is_wrong(rule, login, login.value):
        trouble = f"{trouble or rule.trouble}, although {login.source} allows it"
        remedy = UNUSED_PAM
    return failed(
        node,
        f"{who}: {trouble or rule.trouble}",
        rule.format(value),
        rule.wanted,
        remedy,
        severity=rule.severity,
        fix=_fix(rule, login),
    )


def _fix(rule: Rule, login: Limit | None) -> Fix | None:
    """Return what raises the limit of logins, None where a file that is read later sets another."""
    if not rule.limit:
        return None
    if login is not None and login.source.startswith(LIMITS_FOLDER) and login.source > LIMITS_FILE:
        return None
    limits = WantedState("limits", ((rule.item, rule.limit), ("others", "keep")))
    return fix_of(limits)


def _login(context: CheckContext, node: Node, rule: Rule) -> Limit | None:
    """Return what PAM gives to login shells, None where it is not known or PAM sets nothing."""
    launches: Launches | Absent = context.value(node, LAUNCHES.name)
    if isinstance(launches, Absent):
        return None
    for limit in launches[rule.item]:
        if limit.path == LOGIN:
            return limit
    return None


def other_launches(
    context: CheckContext, node: Node, rule: Rule, session: float
) -> Iterable[Outcome]:
    """Yield an outcome for each way of launching whose limit is wrong or unknown, one for the rest.

    Login shells that have the same limit as the `session` are told with it. Yields nothing for a
    node on which there is no other way.
    """
    launches = context.value(node, LAUNCHES.name)
    if launches == NOT_ASKED:
        return
    if isinstance(launches, Absent):
        message = "the limits of other ways of launching a job are not known"
        yield unknown(node, message, launches.reason, launches.detail, rule.wanted)
        return
    good = []
    for limit in launches[rule.item]:
        if limit.value is None:
            yield _not_known(node, rule, limit)
        elif _is_wrong(rule, limit, limit.value):
            if limit.path == LOGIN and limit.value == session:
                continue
            yield _failure(node, rule, limit, limit.value)
        else:
            good.append(_seen(rule, limit, limit.value))
    if good:
        message = "so it is for other ways of launching a job"
        yield passed(node, message, "; ".join(good), rule.wanted)


def _is_wrong(rule: Rule, limit: Limit, value: float) -> bool:
    if rule.endless_is_bad and not limit.ceiling and math.isinf(value):
        return True
    return not value >= rule.least


def _seen(rule: Rule, limit: Limit, value: float) -> str:
    most = "at most " if limit.ceiling and not math.isinf(value) else ""
    return f"{limit.path}: {most}{rule.format(value)} ({limit.source})"


def _who(limit: Limit) -> str:
    return JOBS.get(limit.path, f"processes of {limit.path}")


def _not_known(node: Node, rule: Rule, limit: Limit) -> Outcome:
    message = f"the limit of {_who(limit)} is not known"
    severity = rule.severity if limit.path in FIRM else None
    return unknown(
        node,
        message,
        limit.reason,
        limit.source,
        rule.wanted,
        severity=severity,
    )


def _failure(node: Node, rule: Rule, limit: Limit, value: float) -> Outcome:
    trouble = rule.trouble
    if rule.endless_is_bad and math.isinf(value):
        trouble = ENDLESS_STACK
    return failed(
        node,
        f"{_who(limit)}: {trouble}",
        _seen(rule, limit, value),
        rule.wanted,
        _remedy(rule, limit),
        severity=rule.severity if limit.path in FIRM else "warning",
    )


def _remedy(rule: Rule, limit: Limit) -> Remedy:
    """Return what raises a limit where it is set."""
    if limit.source.startswith("/"):
        return sentence(
            "correct {item} in {file}: {value} is wanted",
            item=rule.item,
            file=limit.source,
            value=rule.value,
        )
    unit = UNITS.get(limit.path)
    if unit is not None:
        return shell_line(
            "systemctl edit {unit}.service   # in [Service]: Limit{key}={value}; it counts from "
            "the next start of that service on",
            unit=unit,
            key=rule.item.upper(),
            value=rule.value,
        )
    if limit.path == CRON:
        return sentence(
            "add pam_limits.so to the file of cron in /etc/pam.d, and {item} to /etc/security",
            item=rule.item,
        )
    return sentence(
        "set Limit{key}={value} in the unit {unit}",
        key=rule.item.upper(),
        value=rule.value,
        unit=limit.path,
    )
