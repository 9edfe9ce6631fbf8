"""Says where a rank is: in a collective, in a data loader, stopped, blocked in the kernel. Pure.

The Python stack says it best. Where it is not known the call says something: no collective waits in
a sleep or in a read of a file.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from clusterprep.jobs.live.model import Frame, Look, Process, Task

Kind = Literal[
    "gone",
    "stopped",
    "blocked",
    "collective",
    "elsewhere",
    "waiting",  # in a collective or not: a lock, a poll
    "running",
]
STOPPED = ("T", "t")
BUSY = 0.5  # of a processor: a main thread that runs
LEAST_SWITCHES = 5  # times that a thread slept between the looks: it goes on
# What stands in the path of a file, and what a rank does there, the innermost frame first.
_COLLECTIVES = ("/torch/distributed/distributed_c10d.py", "/torch/distributed/rendezvous.py")
_WRAPPERS = ("wrapper", "_exception_logger", "_time_logger", "inner")
_ACTIVITIES = (
    ("/torch/utils/data/", "in a data loader"),
    ("/datasets/", "in a data loader"),
    ("/webdataset/", "in a data loader"),
    ("/nvidia/dali/", "in a data loader"),
    ("/torch/serialization.py", "in saving or loading a checkpoint"),
    ("/torch/distributed/checkpoint/", "in saving or loading a checkpoint"),
    ("/safetensors/", "in saving or loading a checkpoint"),
    ("/torch/_inductor/", "in the compiler"),
    ("/torch/_dynamo/", "in the compiler"),
    ("/triton/", "in the compiler"),
    ("/pdb.py", "in a debugger"),
    ("/bdb.py", "in a debugger"),
    ("/subprocess.py", "in waiting for another program"),
)
# Modules of Python in which nothing but another thread or program is waited for.
_WAITS = (
    "/threading.py",
    "/queue.py",
    "/selectors.py",
    "/socket.py",
    "/ssl.py",
    "/multiprocessing/connection.py",
    "/multiprocessing/queues.py",
    "/multiprocessing/synchronize.py",
    "/multiprocessing/popen_fork.py",
)
# Calls in which no library for collectives waits, and what they are.
_CALLS = {
    "nanosleep": "sleeps",
    "clock_nanosleep": "sleeps",
    "pause": "waits for a signal",
    "wait4": "waits for another program",
    "waitid": "waits for another program",
    "flock": "waits for a lock on",
    "fcntl": "waits for a lock on",
    "fsync": "writes to disk",
    "fdatasync": "writes to disk",
    "read": "reads",
    "pread": "reads",
    "readv": "reads",
    "openat": "opens a file",
    "open": "opens a file",
    "stat": "looks at a file",
    "statx": "looks at a file",
    "write": "writes",
    "pwrite": "writes",
}


class Place(Struct, frozen=True):
    """Where a rank is. `operation` is the collective; `does` says it as a sentence without subject.

    `known`: the Python stack shows it. `goes_on`: something changed between the looks.
    """

    kind: Kind
    does: str
    operation: str = ""
    known: bool = False
    goes_on: bool = False


def place_of(process: Process, hz: int, seconds: float) -> Place:
    """Return where a process is; `seconds` lie between its looks."""
    first, second = process.first, process.second
    if first is None or second is None or second.main is None:
        return Place("gone", "has ended")
    if second.state in STOPPED and first.state in STOPPED:
        why = "a debugger holds it" if second.state == "t" else "a signal stopped it"
        return Place("stopped", f"is stopped: {why}")
    stuck = _blocked_task(first, second)
    if stuck is not None:
        return Place("blocked", _blocked_words(stuck, process.pid))
    goes_on = _goes_on(first, second, hz, seconds)
    busy = is_busy(first, second, hz, seconds)
    if second.stack or first.stack:
        return _by_stack(second, second.stack or first.stack, goes_on, busy)
    return _by_call(second.main, goes_on, busy)


def is_busy(first: Look, second: Look, hz: int, seconds: float) -> bool:
    """Return whether the main thread ran for most of the time between the looks."""
    if first.main is None or second.main is None or seconds <= 0:
        return False
    used = (second.main.ticks - first.main.ticks) / hz
    return used / seconds >= BUSY


def _goes_on(first: Look, second: Look, hz: int, seconds: float) -> bool:
    """Return whether the main thread went on: it slept and woke, has another stack, or reads."""
    if first.main is None or second.main is None:
        return False
    if first.stack and second.stack and first.stack != second.stack:
        return True
    before, after = first.main.switches, second.main.switches
    if before is not None and after is not None and after - before >= LEAST_SWITCHES:
        return True
    in_collective = bool(second.stack) and _operation(second.stack) != ""
    spins = bool(second.stack) and first.stack == second.stack
    return is_busy(first, second, hz, seconds) and not in_collective and not spins


# ---------------------------------------------------------------- blocked in the kernel


def _blocked_task(first: Look, second: Look) -> Task | None:
    """Return a thread, or a child, that was in uninterruptible sleep at both looks."""
    before = {task.tid: task for task in _tasks(first)}
    for task in _tasks(second):
        earlier = before.get(task.tid)
        if task.state != "D" or earlier is None or earlier.state != "D":
            continue
        if (task.ticks, task.switches) == (earlier.ticks, earlier.switches):
            return task
    return None


def _tasks(look: Look) -> list[Task]:
    main = [] if look.main is None else [look.main]
    return [*main, *look.blocked, *look.children]


def _blocked_words(task: Task, pid: int) -> str:
    who = "" if task.tid == pid else f"its {task.comm} ({task.tid}) "
    where = task.kernel[0] if task.kernel else task.wchan
    words = f"{who}waits in the kernel and cannot be interrupted (state D)"
    if where:
        words += f", in {where}"
    if task.files:
        words += f", for {task.files[0]}"
    return words


# ---------------------------------------------------------------- by the stack


def _by_stack(look: Look, stack: tuple[Frame, ...], goes_on: bool, busy: bool) -> Place:
    operation = _operation(stack)
    where = _where(stack)
    if operation:
        return Place("collective", f"waits in {operation}{where}", operation, True, goes_on)
    activity = _activity(stack)
    call = _call_words(look.main) if look.main is not None else ""
    if activity or call:
        parts = [f"is {activity}" if activity else "", call]
        words = " and ".join(part for part in parts if part)
        return Place("elsewhere", f"{words}{where}", "", True, goes_on)
    # A wait for a collective that was begun before looks like any call of C, and so does a GPU's.
    kind: Kind = "running" if busy else "waiting"
    verb = "runs" if busy else "waits"
    if frame_words(stack[0]) not in where:
        verb += f" in {_function(stack[0])}"
    return Place(kind, f"{verb}{where}", "", True, goes_on)


def _operation(stack: tuple[Frame, ...]) -> str:
    """Return the innermost collective of a stack, "" if it is in none."""
    for frame in stack:
        if not any(frame.path.endswith(path) for path in _COLLECTIVES):
            if _is_of_library(frame):
                continue
            return ""
        name = frame.function.rpartition(".")[2]
        if name not in _WRAPPERS and not name.startswith("<"):
            return name.lstrip("_")
    return ""


def _is_of_library(frame: Frame) -> bool:
    return "/torch/" in frame.path and "/torch/utils/data/" not in frame.path


def _activity(stack: tuple[Frame, ...]) -> str:
    """Return what a rank does that is no collective, "" where the stack does not show it."""
    for frame in stack:
        for part, words in _ACTIVITIES:
            if part in frame.path:
                return words
    if stack[0].path.endswith(_WAITS):
        return "in a wait for another thread or program"
    return ""


def _function(frame: Frame) -> str:
    return "its main program" if frame.function == "<module>" else frame.function


def _where(stack: tuple[Frame, ...]) -> str:
    """Return the innermost line of the user's own program, as «, at train.py:57 in step»."""
    for frame in stack:
        if "/site-packages/" in frame.path or "/dist-packages/" in frame.path:
            continue
        if "/lib/python" in frame.path or frame.path.startswith("<"):
            continue
        return f", at {frame_words(frame)}"
    return ""


def frame_words(frame: Frame) -> str:
    """Return a frame as «train.py:57 in step»."""
    file = frame.path.rpartition("/")[2]
    return f"{file}:{frame.line} in {_function(frame)}"


def place_in_program(stack: tuple[Frame, ...]) -> tuple[tuple[str, str], ...]:
    """Return functions and files of a stack: equal for ranks at the same place."""
    return tuple((frame.function, frame.path) for frame in stack)


# ---------------------------------------------------------------- by the call


def _call_words(task: Task) -> str:
    """Return what a call is in which no collective waits; "" for any other."""
    words = _CALLS.get(task.call, "")
    if not words:
        return _poll_words(task)
    of_pipe = task.files and task.files[0] in ("pipe", "socket")
    if task.call in ("read", "readv") and of_pipe:
        return f"waits for a {task.files[0]}" if task.files[0] == "pipe" else ""
    if task.call == "write" and of_pipe:
        return "waits for the reader of a pipe" if task.files[0] == "pipe" else ""
    if task.files and words in ("reads", "writes", "waits for a lock on", "writes to disk"):
        return f"{words} {task.files[0]}"
    return words


def _poll_words(task: Task) -> str:
    if task.call == "poll" and task.files and set(task.files) == {"pipe"}:
        return "waits for a pipe, as for a data loader's worker"
    return ""


def _by_call(task: Task, goes_on: bool, busy: bool) -> Place:
    words = _call_words(task)
    if words:
        return Place("elsewhere", words, goes_on=goes_on)
    if busy:
        return Place("running", "runs on a processor", goes_on=goes_on)
    if task.call:
        return Place("waiting", f"waits ({task.call})", goes_on=goes_on)
    return Place("waiting", "waits", goes_on=goes_on)
