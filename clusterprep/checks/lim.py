"""Judges the resource limits that break RDMA and large jobs, for each way of launching a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each, failed, passed, unknown
from clusterprep.checks.lim_launches import (
    ENDLESS_STACK,
    Rule,
    other_launches,
    session_failure,
)
from clusterprep.facts.tasks import Ids, Tasks
from clusterprep.model import Node, Severity
from clusterprep.model.fixes import fix_of, wanted_state
from clusterprep.model.units import format_size, parse_size
from clusterprep.nccl.interfaces import has_rdma, may_have_rdma
from clusterprep.nccl.rails import HARDWARE
from clusterprep.remedies import shell_line

UNLIMITED = "unlimited"
FLOOR = 32 << 30  # bytes; what RDMA registration of a large model's buffers takes
MANY_FILES = 1048576  # what `limits` gives, as the playbook of that name does
FILES = 65536  # the root of NCCL's bootstrap takes a socket from every rank, torch's store another
# Bytes; the kernel's default, and what main threads of Python and of its libraries are made for.
STACK = 8 << 20
CROWDED = 0.8  # of what may be started; gpud warns from here


def memlock(context: CheckContext, node: Node, limit: float) -> Iterable[Outcome]:
    """Judge the memory that a process may lock; `limit` in bytes."""
    required = context.wanted(node)
    least = FLOOR if required is None else parse_size(required)
    wanted = required or f"unlimited or at least {format_size(FLOOR)}"
    severity: Severity = "error" if has_rdma(context.fleet, node) else "warning"
    rule = Rule(
        "memlock",
        least,
        wanted,
        "too little memory may be locked",
        "infinity",
        _format_bytes,
        severity,
        limit=required or UNLIMITED,
    )
    if limit >= least:
        yield passed(node, "enough memory may be locked", _format_bytes(limit), wanted)
    else:
        yield session_failure(context, node, rule, limit)
    yield from other_launches(context, node, rule, limit)


def number_of(what: str) -> Callable[[str], float]:
    """Return a parser of a number, or of «unlimited» as infinity.

    The parser raises ValueError for other text.
    """

    def parse(text: str) -> float:
        if text == UNLIMITED:
            return math.inf
        if not (text.isascii() and text.isdigit()):
            expected = f"a number of {what} such as 65536, or unlimited"
            raise ValueError(f"expected {expected}; seen '{text}'")
        return float(text)

    return parse


open_files = number_of("open files")
processes = number_of("processes")


def _format_number(number: float) -> str:
    return UNLIMITED if math.isinf(number) else f"{number:.0f}"


def _format_bytes(number: float) -> str:
    return UNLIMITED if math.isinf(number) else format_size(number)


def nofile(context: CheckContext, node: Node, limit: float) -> Iterable[Outcome]:
    """Judge how many files a process may have open."""
    required = context.wanted(node)
    least = FILES if required is None else open_files(required)
    wanted = required or f"at least {FILES}"
    rule = Rule(
        "nofile",
        least,
        wanted,
        "too few files may be open",
        "1048576",
        _format_number,
        limit=_files_to_set(required),
    )
    if limit >= least:
        yield passed(node, "enough files may be open", _format_number(limit), wanted)
    else:
        yield session_failure(context, node, rule, limit)
    yield from other_launches(context, node, rule, limit)


def _files_to_set(required: str | None) -> str:
    """Return the limit to set, "" for unlimited, with which logins would fail."""
    if required is None:
        return str(MANY_FILES)
    return "" if required == UNLIMITED else required


def stack(context: CheckContext, node: Node, limit: float) -> Iterable[Outcome]:
    """Judge the size of the stack in bytes.

    Unlimited is as bad as small: glibc then gives each new thread 2 MiB.
    """
    required = context.wanted(node)
    least = STACK if required is None else parse_size(required)
    wanted = required or f"at least {format_size(STACK)}, and not unlimited"
    rule = Rule(
        "stack",
        least,
        wanted,
        "the stack is small",
        "8M:infinity",
        _format_bytes,
        endless_is_bad=required is None,
    )
    if required is None and math.isinf(limit):
        yield session_failure(context, node, rule, limit, ENDLESS_STACK)
    elif limit >= least:
        yield passed(node, "the stack is large enough", _format_bytes(limit), wanted)
    else:
        yield session_failure(context, node, rule, limit)
    yield from other_launches(context, node, rule, limit)


class ThreadLimit(Struct, frozen=True):
    """A limit on threads, and how many of them are in use."""

    name: str
    used: int
    maximum: float
    sysctl: bool = True

    @property
    def share(self) -> float:
        """Return the share that is in use; infinite where no thread is allowed."""
        if not self.maximum:
            return math.inf
        return self.used / self.maximum


def nproc(
    context: CheckContext, node: Node, limit: float, tasks: Tasks, ids: Ids
) -> Iterable[Outcome]:
    """Judge the limit where one is required, then how much of each limit on threads is in use."""
    rule = _process_rule(context.wanted(node), tasks)
    if context.wanted(node) is not None and not limit >= rule.least:
        yield session_failure(context, node, rule, limit)
    else:
        yield _threads_in_use(node, limit, tasks, ids)
    yield from other_launches(context, node, rule, limit)


def _process_rule(required: str | None, tasks: Tasks) -> Rule:
    """Return what a limit of processes must be: as required, else room for those that run now.

    The kernel does not hold root to it.
    """
    least, wanted = 0.0, f"less than {CROWDED:.0%} in use"
    if required is not None:
        least, wanted = processes(required), required
    elif tasks.threads and tasks.uid != 0:
        least = tasks.threads / CROWDED
    return Rule(
        "nproc",
        least,
        wanted,
        "too few processes are allowed",
        "infinity",
        _format_number,
        limit=required or UNLIMITED,
    )


def _threads_in_use(node: Node, limit: float, tasks: Tasks, ids: Ids) -> Outcome:
    if tasks.threads is None:
        return unknown(node, "the job's user is not known on this node", "missing")
    limits = []
    if tasks.uid != 0:  # the kernel does not hold root to it
        user_limit = ThreadLimit("the user's limit of processes", tasks.threads, limit, False)
        limits.append(user_limit)
    limits.append(ThreadLimit("kernel.pid_max", ids.threads, float(ids.pid_max)))
    limits.append(ThreadLimit("kernel.threads-max", ids.threads, ids.threads_max))
    fullest = max(limits, key=lambda entry: entry.share)
    most = f"{_format_number(fullest.maximum)} threads ({fullest.name})"
    wanted = f"less than {CROWDED:.0%} in use"
    if fullest.used < CROWDED * fullest.maximum:
        # Not the number itself, which no two nodes have in common.
        in_use = max(1, math.ceil(100 * fullest.share))
        return passed(node, "there is room for more threads", f"up to {in_use}% of {most}", wanted)
    seen = f"{fullest.used} of {most}"
    cure = None
    fix = None
    if fullest.sysctl:
        fix = fix_of(wanted_state("sysctl", **{fullest.name: "4194304"}))
        cure = shell_line("sysctl -w {name}=4194304   # and in /etc/sysctl.d", name=fullest.name)
    return failed(
        node,
        "there is little room for more threads",
        seen,
        wanted,
        cure,
        fix=fix,
    )


MEMLOCK = Check(
    "lim.memlock",
    facts=("lim.memlock", "rdma.devices"),
    uses=("lim.launches",),
    judge=each(memlock, "lim.memlock", parts=(HARDWARE,)),
    severity="warning",
    grade="a warning, an error with RDMA",
    title="Locked memory",
    why="RDMA registers its buffers as locked memory; with the usual 8 MiB ibv_reg_mr fails, and "
    "NCCL says «unhandled system error».",
    how="The soft limit of a session of the job's user, and what other ways of launching give: "
    "slurmd with PropagateResourceLimits, Docker, containerd, CRI-O, Podman, units, login shells, "
    "cron. An error where an RDMA device is present or declared, for sessions, login shells and "
    "Slurm; containers may have IPC_LOCK. `require: memlock` sets the least.",
    remedy=shell_line(
        "printf '%s\\n' '* - memlock unlimited' 'root - memlock unlimited' "
        "> /etc/security/limits.d/90-clusterprep-memlock.conf   # services: LimitMEMLOCK=infinity"
    ),
    grave=may_have_rdma,
    wants=parse_size,
    proof=Proof("lim.memlock", lambda _: float(8 << 20)),
)
NOFILE = Check(
    "lim.nofile",
    facts=("lim.nofile",),
    uses=("lim.launches",),
    judge=each(nofile, "lim.nofile"),
    severity="warning",
    title="Open files",
    why="A rank opens sockets to many peers, and data loaders open files on top; the first rank "
    "takes one from every rank. With the usual 1024 large jobs end with «Too many open files» when "
    "they start, or hours later.",
    how="The soft limit of a session of the job's user and of other ways of launching, as for "
    "lim.memlock: at least 65536, or as `require: {lim.nofile: …}` says.",
    remedy=shell_line(
        "printf '%s\\n' '* - nofile 1048576' 'root - nofile 1048576' "
        "> /etc/security/limits.d/90-clusterprep-nofile.conf   # services: LimitNOFILE=1048576"
    ),
    wants=open_files,
    proof=Proof("lim.nofile", lambda _: 1024.0),
)
STACKS = Check(
    "lim.stack",
    facts=("lim.stack",),
    uses=("lim.launches",),
    judge=each(stack, "lim.stack"),
    severity="warning",
    title="The stack",
    why="The soft limit is also the size of every new thread's stack, and where it is unlimited "
    "glibc takes 2 MiB instead: NCCL's and the data loaders' threads then crash in deep calls. A "
    "small one crashes the main thread.",
    how="The soft limit of a session of the job's user and of other ways of launching, as for "
    "lim.memlock: at least 8 MiB and not unlimited, or at least what `require: {lim.stack: …}` "
    "says.",
    remedy=shell_line(
        "printf '%s\\n' '* soft stack 8192' 'root soft stack 8192' "
        "> /etc/security/limits.d/90-clusterprep-stack.conf   # services: LimitSTACK=8M:infinity"
    ),
    wants=parse_size,
    proof=Proof("lim.stack", lambda _: math.inf),
)
NPROC = Check(
    "lim.nproc",
    facts=("lim.nproc", "proc.tasks", "proc.ids"),
    uses=("lim.launches",),
    judge=each(nproc, "lim.nproc", "proc.tasks", "proc.ids"),
    severity="warning",
    title="Processes and threads",
    why="A rank starts hundreds of threads: NCCL's, OpenMP's, data loaders'. Where no more may be "
    "started the job ends with «Resource temporarily unavailable», or a worker is missing and the "
    "others wait for it.",
    how="Threads of the job's user against the soft limit of its session, and all threads of the "
    "node against kernel.pid_max and kernel.threads-max; the limit does not hold root. Then the "
    "limits of other ways of launching, as for lim.memlock. `require: {lim.nproc: …}` sets the "
    "least.",
    remedy=shell_line(
        "echo '* - nproc unlimited' > /etc/security/limits.d/95-clusterprep-nproc.conf"
        "   # after any 20-nproc.conf; services: LimitNPROC=infinity, TasksMax=infinity"
    ),
    wants=processes,
    proof=Proof("proc.ids", lambda ids: replace(ids, threads=ids.pid_max)),
)
