"""Resource limits that break RDMA and large jobs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from clusterprep.checks import Check, CheckContext, Outcome, Proof, each
from clusterprep.facts.tasks import Ids, Tasks
from clusterprep.model import Node, Severity
from clusterprep.model.units import format_size, parse_size
from clusterprep.nccl.interfaces import has_rdma, may_have_rdma

FLOOR = 32 << 30  # bytes; what RDMA registration of a large model's buffers takes
FILES = 65536  # the root of NCCL's bootstrap takes a socket from every rank, torch's store another
STACK = (
    8 << 20
)  # bytes; the kernel's default, and what main threads of Python and of its libraries are made for
CROWDED = 0.8  # of what may be started; gpud warns from here


def memlock(context: CheckContext, node: Node, limit: float) -> Outcome:
    wanted = context.wanted(node)
    least = parse_size(wanted) if wanted is not None else FLOOR
    seen = "unlimited" if math.isinf(limit) else format_size(limit)
    text = wanted or f"unlimited or at least {format_size(FLOOR)}"
    if limit >= least:
        return Outcome("pass", (node.name,), "enough memory may be locked", seen, text)
    severity: Severity = "error" if has_rdma(context.fleet, node) else "warning"
    return Outcome(
        "fail", (node.name,), "too little memory may be locked", seen, text, severity=severity
    )


def number_of(what: str) -> Callable[[str], float]:
    """Reads a number, or unlimited. Raises ValueError saying what is expected."""

    def parse(text: str) -> float:
        if text == "unlimited":
            return math.inf
        if not (text.isascii() and text.isdigit()):
            raise ValueError(
                f"expected a number of {what} such as 65536, or unlimited; seen '{text}'"
            )
        return float(text)

    return parse


open_files, processes = number_of("open files"), number_of("processes")


def written(number: float) -> str:
    return "unlimited" if math.isinf(number) else f"{number:.0f}"


def nofile(context: CheckContext, node: Node, limit: float) -> Outcome:
    wanted = context.wanted(node)
    least = FILES if wanted is None else open_files(wanted)
    text = wanted or f"at least {FILES}"
    if limit >= least:
        return Outcome("pass", (node.name,), "enough files may be open", written(limit), text)
    return Outcome("fail", (node.name,), "too few files may be open", written(limit), text)


def stack(context: CheckContext, node: Node, limit: float) -> Outcome:
    """Bounded, and not small; unlimited is as bad as small, for then glibc gives threads 2 MiB."""
    wanted = context.wanted(node)
    seen = "unlimited" if math.isinf(limit) else format_size(limit)
    text = wanted or f"at least {format_size(STACK)}, and not unlimited"
    if wanted is None and math.isinf(limit):
        message = "the stack is unlimited, so that glibc gives every thread 2 MiB"
        return Outcome("fail", (node.name,), message, seen, text)
    if limit >= (STACK if wanted is None else parse_size(wanted)):
        return Outcome("pass", (node.name,), "the stack is large enough", seen, text)
    return Outcome("fail", (node.name,), "the stack is small", seen, text)


def nproc(context: CheckContext, node: Node, limit: float, tasks: Tasks, ids: Ids) -> Outcome:
    """The limit itself where one is required; then how much of it, and of what the kernel allows, is in use."""
    wanted = context.wanted(node)
    if wanted is not None and not limit >= processes(wanted):
        return Outcome(
            "fail", (node.name,), "too few processes are allowed", written(limit), wanted
        )
    if tasks.threads is None:
        return Outcome(
            "unknown", (node.name,), "the job's user is not known on this node", reason="missing"
        )
    uses = [
        ("kernel.pid_max", ids.threads, float(ids.pid_max)),
        ("kernel.threads-max", ids.threads, ids.threads_max),
    ]
    if tasks.uid != 0:  # the kernel does not hold root to it
        uses.insert(0, ("the user's limit of processes", tasks.threads, limit))
    name, used, most = max(uses, key=lambda use: use[1] / use[2] if use[2] else math.inf)
    seen, text = f"{used} of {written(most)} threads ({name})", f"less than {CROWDED:.0%} in use"
    if used < CROWDED * most:
        return Outcome("pass", (node.name,), "there is room for more threads", seen, text)
    cure = None if name.startswith("the") else f"sysctl -w {name}=4194304   # and in /etc/sysctl.d"
    return Outcome("fail", (node.name,), "there is little room for more threads", seen, text, cure)


MEMLOCK = Check(
    "lim.memlock",
    facts=("lim.memlock", "rdma.devices"),
    judge=each(memlock, "lim.memlock"),
    severity="warning",
    title="Locked memory",
    why="RDMA registers its buffers as locked memory; with the usual 8 MiB ibv_reg_mr fails, and NCCL says «unhandled "
    "system error».",
    how="The soft limit of a session of the job's user. An error where an RDMA device is present or declared. "
    "`require: memlock` sets the least.",
    remedy="echo '* - memlock unlimited' > /etc/security/limits.d/90-memlock.conf   # services: LimitMEMLOCK=infinity",
    grave=may_have_rdma,
    wants=parse_size,
    proof=Proof("lim.memlock", lambda _: float(8 << 20)),
)
NOFILE = Check(
    "lim.nofile",
    facts=("lim.nofile",),
    judge=each(nofile, "lim.nofile"),
    severity="warning",
    title="Open files",
    why="A rank opens sockets to many peers, and data loaders open files on top; the first rank takes one from every "
    "rank. With the usual 1024 large jobs end with «Too many open files» when they start, or hours later.",
    how="The soft limit of a session of the job's user, at least 65536 or as `require: {lim.nofile: …}` says.",
    remedy="echo '* - nofile 1048576' > /etc/security/limits.d/90-nofile.conf   # services: LimitNOFILE=1048576",
    wants=open_files,
    proof=Proof("lim.nofile", lambda _: 1024.0),
)
STACKS = Check(
    "lim.stack",
    facts=("lim.stack",),
    judge=each(stack, "lim.stack"),
    severity="warning",
    title="The stack",
    why="The soft limit is also the size of every new thread's stack, and where it is unlimited glibc takes 2 MiB "
    "instead: NCCL's and the data loaders' threads then crash in deep calls. A small one crashes the main thread.",
    how="The soft limit of a session of the job's user: at least 8 MiB and not unlimited, or at least what "
    "`require: {lim.stack: …}` says.",
    remedy="echo '* soft stack 8192' > /etc/security/limits.d/90-stack.conf   # services: LimitSTACK=8M:infinity",
    wants=parse_size,
    proof=Proof("lim.stack", lambda _: math.inf),
)
NPROC = Check(
    "lim.nproc",
    facts=("lim.nproc", "proc.tasks", "proc.ids"),
    judge=each(nproc, "lim.nproc", "proc.tasks", "proc.ids"),
    severity="warning",
    title="Processes and threads",
    why="A rank starts hundreds of threads: NCCL's, OpenMP's, data loaders'. Where no more may be started the job ends "
    "with «Resource temporarily unavailable», or a worker is missing and the others wait for it.",
    how="Threads of the job's user against the soft limit of its session, and all threads of the node against "
    "kernel.pid_max and kernel.threads-max; the limit does not hold root. `require: {lim.nproc: …}` sets the least.",
    remedy="echo '* - nproc unlimited' > /etc/security/limits.d/95-nproc.conf   # after any 20-nproc.conf; "
    "services: LimitNPROC=infinity, TasksMax=infinity",
    wants=processes,
    proof=Proof("proc.ids", lambda ids: replace(ids, threads=ids.pid_max)),
)
