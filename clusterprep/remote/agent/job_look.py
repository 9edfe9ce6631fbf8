"""Looks at the ranks of all jobs that run on this node, and changes nothing.

A rank is a process that a launcher gave a number (RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK, ...) or
that has torch or NCCL loaded. Of several processes with one number, as a rank and its data loaders,
the topmost that has such a library is the rank, and the others are its children.

Two looks show what moves. Of environments the named variables alone leave the node.
"""

import os
import time

from clusterprep.remote.agent.job_stacks import add_from_programs
from clusterprep.remote.agent.light import socket
from clusterprep.remote.agent.processes import read_process
from clusterprep.remote.agent.python_stacks import Unreadable, read_stack
from clusterprep.remote.agent.readers import NoAnswer, offer
from clusterprep.remote.agent.sockets import inodes
from clusterprep.remote.agent.system_calls import call_of
from clusterprep.remote.agent.tcp_diag import network_of, read_sockets, read_sockets_of

# The numbers that launchers give, the surest first: a task of Slurm may be torchrun itself.
NUMBERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
# What tells jobs apart. No value of any other variable is sent.
OF_JOB = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RUN_ID",
    "PMIX_NAMESPACE",
    "RAY_JOB_ID",
)
# What of a process is sent as it was read.
SENT = ("pid", "uid", "gid", "comm", "started", "libraries")
RAS_ADDRESS = "NCCL_RAS_ADDR"
RAS_PORT = 28028  # NCCL's default, src/ras/ras.cc
RAS_SECONDS = 2.0
LIBRARIES = (b"/libnccl", b"/libtorch", b"/libgloo", b"/libmpi.so", b"/libmpi_")
PYTHONS = (b"python", b"pt_main_thread", b"ray::")  # torch renames the main thread from 2.6 on
KERNEL_THREAD = 0x00200000  # PF_KTHREAD of include/linux/sched.h
MOST_RANKS = 64  # of one node
MOST_CHILDREN = 24  # of a rank
MOST_LAUNCHERS = 4  # processes above a rank
MOST_THREADS = 4096  # of a rank that are looked at
MOST_BLOCKED = 8  # threads in D or T that are returned
MOST_SOCKETS = 2048
LONGEST = 200  # characters of a value or a command line


def read_job(seconds):
    """Return the ranks on this node, seen twice with `seconds` in between.

    {"seconds", "hz", "ranks": [rank], "hidden": number of Python processes of others that may not
    be looked at, "more": ranks left out, "sockets": [row], "others": [[address, port, peer, port]]
    of the sockets of all other processes, "cut": whether sockets are left out, "ras": NCCL's own
    answer or None}.
    """
    if not os.path.exists("/proc/1/stat"):
        raise NoAnswer("denied", "/proc does not show the tasks of others here (hidepid)")
    table, hidden = _processes()
    ranks = _ranks(table)
    chosen = ranks[:MOST_RANKS]
    for rank in chosen:
        rank["looks"] = [_state(rank)]
    before, others = _sockets(chosen)
    began = time.monotonic()
    ras = _ras(chosen)
    add_from_programs(chosen, seconds)
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    for rank in chosen:
        rank["looks"].append(_state(rank))
    elapsed = time.monotonic() - began
    after, others_after = _sockets(chosen)
    rows = _joined(before, after)
    others = sorted(set(others + others_after))
    rows.sort(key=_by_importance)
    return {
        "seconds": elapsed,
        "hz": os.sysconf("SC_CLK_TCK"),
        "ranks": chosen,
        "hidden": hidden,
        "more": len(ranks) - len(chosen),
        "sockets": rows[:MOST_SOCKETS],
        "others": [list(end) for end in others[:MOST_SOCKETS]],
        "cut": _is_cut(chosen, rows, others),
        "ras": ras,
    }


# ---------------------------------------------------------------- which processes


def _processes():
    """Return {pid: process} of all that may be a rank or its child, and how many are hidden.

    A process is {"pid", "parent", "started", "comm", "uid", "env", "number", "libraries"}; `number`
    is the index in NUMBERS of what the launcher gave, None if it gave nothing.
    """
    table = {}
    hidden = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        row = _process(int(name))
        if row is None:
            continue
        if row["env"] is None:
            hidden += 1 if row["comm"].startswith(tuple(_text(each) for each in PYTHONS)) else 0
            continue
        table[row["pid"]] = row
    for pid in _own_family(table):
        table[pid]["number"] = None
        table[pid]["libraries"] = False
    return table, hidden


def _process(pid):
    """Return a process that is no thread of the kernel; its `env` is None where it is hidden."""
    stat = _stat("/proc/%d/stat" % pid)
    if stat is None or stat["flags"] & KERNEL_THREAD or stat["state"] in "ZX":
        return None
    row = {"pid": pid}
    row["parent"], row["started"], row["comm"] = stat["parent"], stat["started"], stat["comm"]
    try:
        owner = os.stat("/proc/%d" % pid)
        row["uid"], row["gid"] = owner.st_uid, owner.st_gid
        with open("/proc/%d/environ" % pid, "rb") as source:
            env = _variables(source.read(1 << 20))
    except PermissionError:
        row["env"] = None
        return row
    except OSError:
        return None
    row["env"] = env
    row["number"] = _number(env)
    may_be_python = stat["comm"].startswith(tuple(_text(each) for each in PYTHONS))
    row["libraries"] = False
    if row["number"] is not None or may_be_python:
        row["libraries"] = _has_libraries(pid)
    return row


def _text(data):
    return data.decode("utf-8", "replace")


def _variables(data):
    """Return the variables that count, as far as they are set."""
    wanted = set(OF_JOB)
    wanted.add(RAS_ADDRESS)
    for names in NUMBERS:
        wanted.update(names)
    found = {}
    for entry in data.split(b"\0"):
        name, _, value = entry.partition(b"=")
        name = _text(name)
        if name in wanted:
            found[name] = _text(value)[:LONGEST]
    return found


def _number(env):
    for index, (rank, size, _) in enumerate(NUMBERS):
        if env.get(rank, "").isdigit() and env.get(size, "").isdigit():
            return index
    return None


def _has_libraries(pid):
    try:
        with open("/proc/%d/maps" % pid, "rb") as maps:
            for line in maps:
                if b"/lib" in line and any(library in line for library in LIBRARIES):
                    return True
    except OSError:
        pass
    return False


def _own_family(table):
    """Return the agent's own process and those above it, which are no ranks."""
    family = []
    pid = os.getpid()
    while pid in table and pid not in family:
        family.append(pid)
        pid = table[pid]["parent"]
    return family


def _ranks(table):
    """Return the ranks, ordered by their start."""
    candidates = []
    for row in table.values():
        if row["number"] is not None or row["libraries"]:
            candidates.append(row)
    candidates.sort(key=lambda row: (row["started"], row["pid"]))
    launchers = _launchers(candidates, table)
    tops = {}  # number of a rank, or pid without one -> the rank
    for row in candidates:
        if row["pid"] in launchers:
            continue
        key = _key(row, table)
        best = tops.get(key)
        if best is None or (row["libraries"] and not best["libraries"]):
            tops[key] = row
    ranks = sorted(tops.values(), key=lambda row: (row["started"], row["pid"]))
    return [_described(row, table) for row in ranks]


def _launchers(candidates, table):
    """Return the pids of those that started a rank with a surer number: torchrun under srun."""
    launchers = set()
    for row in candidates:
        if row["number"] is None:
            continue
        for above in _above(row, table):
            number = above["number"]
            weaker = number is None or number > row["number"]
            other = number == row["number"] and _identity(above) != _identity(row)
            if weaker or other:
                launchers.add(above["pid"])
    return launchers


def _key(row, table):
    """Return what a rank and its children have in common: launcher's number, else the topmost."""
    if row["number"] is not None:
        return _identity(row)
    top = row
    for above in _above(row, table):
        if above["number"] is not None:
            return _identity(above)
        if above["libraries"]:
            top = above
    return ("pid", top["pid"])


def _identity(row):
    env = row["env"]
    rank, size, _ = NUMBERS[row["number"]]
    return (env[rank], env[size]) + tuple(env.get(name) for name in OF_JOB)


def _above(row, table):
    """Yield the processes above one, its parent first."""
    visited = set()
    pid = row["parent"]
    while pid in table and pid not in visited:
        visited.add(pid)
        yield table[pid]
        pid = table[pid]["parent"]


def _described(row, table):
    """Return what is sent of a rank besides its looks."""
    pid = row["pid"]
    env = row["env"]
    rank = dict((name, row[name]) for name in SENT)
    rank["rank"], rank["size"], rank["local"] = _numbers(row["number"], env)
    rank["job"] = dict((name, env[name]) for name in OF_JOB if name in env)
    rank["ras"] = env.get(RAS_ADDRESS)
    rank["children"] = _children(pid, table)
    above = [process["pid"] for process in _above(row, table)]
    rank["launchers"] = [launcher for launcher in above if launcher != 1][:MOST_LAUNCHERS]
    rank["gpus"] = _gpus(pid)
    rank["network"] = network_of(pid) != network_of("self")
    return rank


def _numbers(kind, env):
    """Return rank, size and local rank as a launcher of this kind set them, None if it did not."""
    if kind is None:
        return [None, None, None]
    return [env.get(name) if name else None for name in NUMBERS[kind]]


def _children(pid, table):
    """Return the pids of what descends from a process."""
    below = {}
    for row in table.values():
        below.setdefault(row["parent"], []).append(row["pid"])
    found = []
    waiting = [pid]
    while waiting and len(found) < MOST_CHILDREN:
        children = sorted(below.get(waiting.pop(), ()))
        found += children
        waiting += children
    return found[:MOST_CHILDREN]


def _gpus(pid):
    """Return the GPUs whose device files a process has open."""
    folder = "/proc/%d/fd" % pid
    found = set()
    try:
        for name in os.listdir(folder):
            try:
                target = os.readlink("%s/%s" % (folder, name))
            except OSError:
                continue
            digits = target[len("/dev/nvidia") :]
            if target.startswith("/dev/nvidia") and digits.isdigit():
                found.add(int(digits))
    except OSError:
        pass
    return sorted(found)[:64]


# ---------------------------------------------------------------- what they do


def _stat(path):
    """Return what counts of a stat file; None if the process is gone."""
    try:
        with open(path, "rb") as source:
            data = source.read()
    except OSError:
        return None
    comm = data[data.find(b"(") + 1 : data.rfind(b")")]
    fields = data.rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    return {
        "comm": _text(comm)[:32],
        "state": _text(fields[0]),
        "parent": int(fields[1]),
        "flags": int(fields[6]),
        "ticks": int(fields[11]) + int(fields[12]),
        "threads": int(fields[17]),
        "started": int(fields[19]),
    }


def _state(rank):
    """Return one look at a rank; None if it is gone, or another process has its number.

    {"state", "ticks", "threads", "main": task, "blocked": [task], "io", "children": [task],
    "stack" or "no_stack"}. `main` is the thread that the stack is of.
    """
    pid = rank["pid"]
    stat = _stat("/proc/%d/stat" % pid)
    if stat is None or stat["started"] != rank["started"]:
        return None
    look = {"state": stat["state"], "ticks": stat["ticks"], "threads": stat["threads"]}
    tid = None
    try:
        if stat["state"] == "D":  # its memory may be locked, and then who reads it waits as well
            raise Unreadable("it waits in the kernel")
        tid, look["stack"] = read_stack(pid)
    except Unreadable as error:
        look["no_stack"] = str(error)[:LONGEST]
    look["main"] = _task(pid, tid or pid)
    look["blocked"] = _blocked(pid)
    look["io"] = _io(pid)
    look["children"] = []
    for child in rank["children"]:
        task = _task(child, child)
        if task is not None:
            look["children"].append(task)
    return look


def _task(pid, tid):
    """Return what a thread does; None if it is gone."""
    folder = "/proc/%d/task/%d" % (pid, tid)
    stat = _stat(folder + "/stat")
    if stat is None:
        return None
    task = {"tid": tid, "comm": stat["comm"], "state": stat["state"]}
    task["ticks"] = stat["ticks"]
    task["switches"] = _switches(folder)
    task["wchan"] = _text(_content(folder + "/wchan"))[:64].strip()
    task["call"] = call_of(pid, folder)
    task["kernel"] = []
    if stat["state"] == "D":
        task["kernel"] = _kernel_stack(folder)
    return task


def _content(path):
    try:
        with open(path, "rb") as source:
            return source.read(1 << 16)
    except OSError:
        return b""


def _switches(folder):
    """Return how often a thread went to sleep by itself; None where that is not shown."""
    for line in _content(folder + "/status").split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"voluntary_ctxt_switches":
            return int(value)
    return None


def _kernel_stack(folder):
    """Return the innermost functions of the kernel in which a thread waits; root sees them."""
    names = []
    for line in _content(folder + "/stack").split(b"\n")[:8]:
        name = _text(line).partition("] ")[2].partition("+")[0]
        if name:
            names.append(name[:64])
    return names


def _blocked(pid):
    """Return the threads of a process that are in D or T, besides the main thread."""
    found = []
    try:
        names = os.listdir("/proc/%d/task" % pid)
    except OSError:
        return found
    for name in names[:MOST_THREADS]:
        tid = int(name)
        stat = _stat("/proc/%d/task/%d/stat" % (pid, tid))
        if tid != pid and stat is not None and stat["state"] in "DTt":
            found.append(_task(pid, tid))
    return [task for task in found if task is not None][:MOST_BLOCKED]


def _io(pid):
    """Return the bytes that a process has read and written; None where that is not shown."""
    counters = {}
    for line in read_process(pid, "io").split(b"\n"):
        name, _, value = line.partition(b":")
        if name in (b"rchar", b"wchar"):
            counters[_text(name)] = int(value)
    return [counters["rchar"], counters["wchar"]] if len(counters) == 2 else None


# ---------------------------------------------------------------- sockets


def _sockets(ranks):
    """Return the TCP sockets of ranks and of what started them, and the ends of all others.

    The first is {(pid, inode): row}, the second [(address, port, peer, peer_port), ...].
    """
    here = read_sockets()
    found = {}
    for rank in ranks:
        rows = here
        if rank["network"] or here is None:
            rows = read_sockets_of(rank["pid"])
        for pid in [rank["pid"]] + rank["launchers"]:
            for inode in inodes(pid):
                if inode in rows and (pid, inode) not in found:
                    row = dict(rows[inode], pid=pid, rank=pid == rank["pid"])
                    found[pid, inode] = row
    owned = set(inode for _, inode in found)
    others = []
    for inode, row in (here or {}).items():
        if inode not in owned and not _is_loopback(row["peer"]):
            others.append((row["address"], row["port"], row["peer"], row["peer_port"]))
    return found, others


def _is_loopback(address):
    return address.startswith("127.") or address == "::1"


def _is_cut(ranks, rows, others):
    """Return whether sockets are left out, or those of a network that is not the agent's own."""
    if max(len(rows), len(others)) > MOST_SOCKETS or read_sockets() is None:
        return True
    return any(rank["network"] for rank in ranks)


def _joined(before, after):
    """Return rows of both looks: what the second one saw, and how many bytes passed between."""
    rows = []
    for key, row in after.items():
        earlier = before.get(key)
        row["old"] = earlier is not None
        row["held"] = earlier is not None and earlier["sendq"] > 0
        row["passed"] = None
        if earlier is not None and row["acked"] is not None and earlier["acked"] is not None:
            received = row["received"] - earlier["received"]
            row["passed"] = row["acked"] - earlier["acked"] + received
        rows.append(row)
    return rows


def _by_importance(row):
    """Return a key that sorts rows: what is not healthy first, then what leads to other nodes."""
    is_waiting = row["sendq"] or row["again"] or row["state"] != 1
    return (not is_waiting, _is_loopback(row["peer"]), row["pid"], row["port"])


# ---------------------------------------------------------------- NCCL's own answer


def _ras(ranks):
    """Return what NCCL's RAS says of the job whose rank 0 is here; None if nothing listens.

    Rank 0 is asked alone: each question goes to all nodes of the job. The protocol is text, since
    2.24: src/ras/client_support.cc.
    """
    for rank in ranks:
        if rank["rank"] != "0" or not rank["libraries"] or rank["network"]:
            continue
        host, _, port = (rank["ras"] or "").rpartition(":")
        if not port.isdigit():
            host, port = "127.0.0.1", str(RAS_PORT)
        if host in ("", "localhost"):
            host = "127.0.0.1"
        answer = _asked(host.strip("[]"), int(port))
        if answer:
            return answer
    return None


def _asked(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    end = time.monotonic() + RAS_SECONDS
    sock = socket.socket(family, socket.SOCK_STREAM)
    data = b""
    try:
        sock.settimeout(0.3)
        sock.connect((host, port))
        sock.send(b"timeout 1\nverbose status\n")
        while len(data) < MOST_ANSWER and time.monotonic() < end:
            sock.settimeout(max(0.05, end - time.monotonic()))
            piece = sock.recv(1 << 16)
            if not piece:
                break
            data += piece
    except OSError:
        pass
    finally:
        sock.close()
    return _text(data) if b"NCCL" in data else None


MOST_ANSWER = 1 << 17  # bytes of NCCL's answer


def install(agent):
    """Register the kind of read of this part, in a child of its own."""
    offer({"job": read_job})
