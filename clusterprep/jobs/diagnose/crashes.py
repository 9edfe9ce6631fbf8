"""Finds exceptions of Python that ended a process: of which rank, at which line of the program.

`find(log)` returns the exceptions in the order of the log. Of a chain («During handling of the
above exception …») it is the first one, from which the others follow. `evidence` leaves out what is
no failure of the program: errors of NCCL, stores and peers, exceptions that another cause explains,
and exceptions after which the program went on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from clusterprep.jobs.diagnose import echoes
from clusterprep.jobs.diagnose.endings import Aftermath, Endings
from clusterprep.jobs.diagnose.exits import failed_workers
from clusterprep.jobs.diagnose.model import (
    Culprits,
    Evidence,
    LogFile,
    LogLine,
    Place,
    Weight,
    form_of,
)

CAUSE = "program"
# Words of the first and the last line of a traceback. Names of exceptions that have none of them
# are rare; those that are met in training are listed. Frames need none: tracebacks are kept whole.
NEEDLES = (
    "traceback (most recent",
    "above exception was the direct cause",
    "handling of the above exception",
    "error:",
    "exception:",
    "assertionerror",
    "notimplementederror",
    "stopiteration",
    "memoryerror",
    "brokenprocesspool",
    "timeoutexpired",
    "exception ignored",
    "atexit._run_exitfuncs",
    "--- logging error ---",
    "exception was never retrieved",
    "exception in thread",
    "queue.empty",
)
_LINES = (*NEEDLES, '", line 0')  # words of all lines that are read here
_HEADER = re.compile(r"Traceback \(most recent call last\)", re.IGNORECASE)
_FRAME = re.compile(r'^\s*(?:C \| )?File "(?P<path>[^"]+)", line (?P<line>\d+)')
# What stands above tracebacks that end no process.
_IGNORED = re.compile(
    r"Exception ignored (?:in|while)|Error in atexit\._run_exitfuncs|--- Logging error ---"
    r"|exception was never retrieved",
    re.IGNORECASE,
)
_OF_THREAD = re.compile(r"^Exception in thread \S", re.IGNORECASE)
_CAUGHT_LEVELS = frozenset({"DEBUG", "INFO", "I", "WARN", "WARNING", "W"})
_CHAINED = re.compile(
    r"the above exception was the direct cause|handling of the above exception", re.IGNORECASE
)
# The last line of a traceback: a dotted name, whose last part is that of a class, and a message.
# torchrun's summary indents it.
_RAISED = re.compile(
    r"^(?P<indent> {0,4})(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*|error|timeout|gaierror))"
    r"(?:: ?(?P<text>.*)|\s*)$"
)
_NAMED_AS_ERROR = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Iteration|Failure|Empty|Full|Expired|Pool|error|timeout)$"
)
_IN_LIBRARY = re.compile(
    r"(?:site|dist)-packages/|/lib(?:64)?/python\d|^<frozen|^<string>|/bin/\w+$|[\\/]lib[\\/]"
    r"|^python/ray/"
)
# Exceptions that carry another one, which stands behind them with its own frames.
_WRAPPER = re.compile(
    r"\bCaught \w+ in (?:DataLoader worker|replica|pin memory)"
    r"|RayTaskError|creation task|failed to import on the worker|ProcessRaisedException"
    r"|terminated with the following error",
    re.IGNORECASE,
)
# Below the exception of the parent, which says no more in torch before 1.8: «Exception: ».
_OF_SPAWNED = re.compile(r"^-- Process \d+ terminated with the following error")
_REMOTE = re.compile(r"\bip=(?P<host>[\w.:-]+\w)")
_LAUNCHER = re.compile(
    r"\b(?:ChildFailedError|CalledProcessError|ProcessExitedException|SystemExit|Signal\w*Exception"
    r"|KeyboardInterrupt|GeneratorExit|RayTaskError|RayActorError|ActorDiedError"
    r"|ActorUnavailable\w*|WorkerCrashedError|TrainingFailedError|TuneError|BrokenProcessPool"
    r"|CancelledError)$"
)
# Errors of connections, stores and collectives: another rank failed first, or a cause of its own.
_DISTRIBUTED_TYPE = re.compile(
    r"(?:Dist\w*Error|Rendezvous\w*|BrokenPipeError|Connection(?:Reset|Aborted|Refused)Error"
    r"|EOFError|gaierror|socket\.\w+|HorovodInternalError|N[Cc][Cc][Ll]Error|TimeoutError"
    r"|\w*StoreError|queue\.Empty)$"
)
_DISTRIBUTED_TEXT = re.compile(
    r"\b[NRH]CCL|\bgloo\b|c10d|TCPStore|\bstore\b|process ?group|rendezvous|\bcollective\b"
    r"|socket timeout|timed? ?out|connection (?:was )?(?:reset|closed|refused|aborted|lost)"
    r"|broken pipe|watchdog|init_process_group|MASTER_(?:ADDR|PORT)|address already in use"
    r"|across (?:all )?(?:ranks|processes)|Horovod has been shut down|\bUCX\b|libfabric|\bibv_"
    r"|name or service not known|name resolution|killed by signal: (?:Terminated|Killed|Bus)"
    r"|\[Rank \d+\]|monitoredBarrier",
    re.IGNORECASE,
)
# Connections that have nothing to do with other ranks.
_OF_THE_INTERNET = re.compile(
    r"https?://|HTTPS?Connection|\b(?:urllib3|requests|huggingface_hub|botocore|wandb)\.",
    re.IGNORECASE,
)
# A wait for the workers of the process itself, that load its data.
_OF_THE_LOADER = re.compile(r"^DataLoader timed out after", re.IGNORECASE)
# What the GPU reports later, at another place: the program's own as a rule, a GPU's fault at times.
_OF_THE_GPU = re.compile(
    r"illegal memory access|unspecified launch failure|misaligned address|illegal instruction"
    r"|\bCU(?:BLAS|DNN|SOLVER|SPARSE|FFT)_\w+|DataLoader worker .*exited unexpectedly",
    re.IGNORECASE,
)
# What as often is the driver's, or that of a GPU that another process holds.
_OF_THE_DRIVER = re.compile(
    r"CUDA unknown error|CUDA error: (?:unknown|initialization|system|no kernel image|.*busy or)"
    r"|cudaGetDeviceCount|NVIDIA driver|Driver/library version"
    # Not where torch's DefaultCPUAllocator says it, of the memory of the host: «Error code 12».
    r"|(?<!Error code 12 \()Cannot allocate memory",
    re.IGNORECASE,
)
# What torch.distributed puts before each line of a traceback, for exceptions that nothing caught.
_UNCAUGHT = re.compile(r"\[rank\d+\]: (?=[A-Za-z_])")
_MOST_JUDGED = 200  # exceptions: all ranks of a job raise the same one
_LONGEST_TEXT = 160  # characters of an exception's message that are told


class Crash(Struct, frozen=True):
    """An exception and those that followed from it. `lines` are their last lines, in order."""

    lines: tuple[LogLine, ...]
    kind: str
    text: str
    frame: str = ""  # «train.py:40» of the program, or of a library if no frame is the program's
    has_traceback: bool = True
    host: str | None = None  # that of a Ray worker
    is_of_thread: bool = False  # it ended a thread, and the process may have gone on

    @property
    def line(self) -> LogLine:
        return self.lines[0]

    @property
    def rank(self) -> int | None:
        return self.line.rank

    @property
    def form(self) -> str:
        return form_of(f"{self.kind}: {self.text}")


_StreamKey = tuple[str, int | None, int | None, str | None, int | None]


def _stream_of(line: LogLine) -> _StreamKey:
    """Return what lines of one process have in common, as far as their prefixes tell."""
    return line.file, line.rank, line.local, line.host, line.pid


class _Reader:
    """Reads the tracebacks of one process line by line."""

    def __init__(self) -> None:
        self._open = 0  # tracebacks that have begun and have no last line yet
        self._is_chained = False
        self._is_ignored = False
        self._is_of_thread = False
        self._user_frame = ""
        self._library_frame = ""
        self._host: str | None = None
        self._wrapper: Crash | None = None
        self._crashes: list[Crash] = []

    def crashes(self) -> list[Crash]:
        """Return what was read. A wrapper without the exception that it carries counts itself."""
        self._keep_wrapper()
        return self._crashes

    def read(self, line: LogLine) -> None:
        message = line.message
        if _CHAINED.search(message):
            self._is_chained = True
        elif _IGNORED.search(message):
            self._is_ignored = True
        elif _OF_THREAD.search(message):
            self._is_of_thread = True
        elif _OF_SPAWNED.search(message):
            self._open_spawned()
        elif _HEADER.search(message):
            self._begin()
            self._is_ignored = self._is_ignored or line.level in _CAUGHT_LEVELS
        elif frame := _FRAME.match(message):
            self._note_frame(frame)
        elif raised := _RAISED.match(message):
            self._end(line, raised)

    def _begin(self) -> None:
        self._open += 1
        self._user_frame = ""
        self._library_frame = ""

    def _note_frame(self, frame: re.Match[str]) -> None:
        self._open = max(self._open, 1)
        path = frame["path"]
        name = re.split(r"[\\/]", path)[-1]
        place = f"{name}:{frame['line']}"
        if _IN_LIBRARY.search(path):
            self._library_frame = place
        else:
            self._user_frame = place

    def _end(self, line: LogLine, raised: re.Match[str]) -> None:
        kind = raised["type"]
        text = (raised["text"] or "").strip()
        is_error = bool(_NAMED_AS_ERROR.search(kind))
        is_like_code = raised["text"] is None or bool(raised["indent"])
        if is_like_code and not (is_error and self._open):
            return
        if not is_error and not self._open:
            return
        has_traceback = self._open > 0
        self._open = max(self._open - 1, 0)
        crash = Crash(
            (line,),
            kind,
            text,
            self._user_frame or self._library_frame,
            has_traceback,
            self._host,
            self._is_of_thread,
        )
        is_ignored = self._is_ignored
        self._is_ignored = False
        self._is_of_thread = False
        if is_ignored:
            return
        if _WRAPPER.search(line.message):
            self._open_wrapper(crash)
            return
        self._add(crash)

    def _open_wrapper(self, crash: Crash) -> None:
        self._keep_wrapper()
        remote = _REMOTE.search(crash.line.text)
        self._host = remote["host"] if remote else None
        self._wrapper = crash
        self._open += 1
        self._user_frame = ""
        self._library_frame = ""

    def _open_spawned(self) -> None:
        """Take the last exception for that of a parent, which carries that of its process."""
        if self._wrapper is None and self._crashes and not self._crashes[-1].text:
            self._open_wrapper(self._crashes.pop())
            self._open -= 1  # the traceback of the process has a head of its own

    def _add(self, crash: Crash) -> None:
        wrapper = self._wrapper
        self._wrapper = None
        if wrapper is not None and not crash.has_traceback:
            self._crashes.append(wrapper)
            wrapper = None
        if self._is_chained and self._crashes:
            self._is_chained = False
            self._crashes[-1] = _with_lines(self._crashes[-1], crash.lines)
            return
        self._is_chained = False
        if wrapper is not None:
            crash = _with_lines(crash, wrapper.lines)
        self._crashes.append(crash)
        self._host = None

    def _keep_wrapper(self) -> None:
        if self._wrapper is not None:
            self._crashes.append(self._wrapper)
            self._wrapper = None


def _with_lines(crash: Crash, lines: Sequence[LogLine]) -> Crash:
    return Crash(
        (*crash.lines, *lines),
        crash.kind,
        crash.text,
        crash.frame,
        crash.has_traceback,
        crash.host,
        crash.is_of_thread,
    )


def find(log: LogFile) -> list[Crash]:
    """Return all exceptions of the log, in order. Of a chain it is the first one."""
    readers: dict[_StreamKey, _Reader] = {}
    for line in log.lines_with(*_LINES):
        key = _stream_of(line)
        readers.setdefault(key, _Reader()).read(line)
    crashes: list[Crash] = []
    for reader in readers.values():
        crashes += reader.crashes()
    return sorted(crashes, key=lambda crash: crash.line.order)


# ---------------------------------------------------------------- which of them are failures


class _Judged(Struct, frozen=True):
    """An exception that is a failure of the program, and how plainly the log says so."""

    crash: Crash
    weight: Weight


def evidence(log: LogFile, explained: Collection[Place], endings: Endings) -> Iterator[Evidence]:
    """Yield the exceptions that ended the job.

    `explained` are the places of lines that another cause explains. Only the first exception, and
    those like it on other ranks, speak for the cause. What other ranks raised after it is an echo.
    """
    judged = _judged(log, explained, endings)
    if not judged:
        return
    first = _first(judged, log)
    alike = [one.crash for one in judged if one.crash.form == first.form]
    for one in judged:
        crash = one.crash
        is_first = crash.form == first.form
        yield Evidence(
            CAUSE,
            crash.line,
            one.weight if is_first else Weight.ECHO,
            _culprits(crash, alike, log) if is_first else (),
            note=_note(crash) if is_first else "",
        )
        for line in crash.lines[1:]:
            yield Evidence(CAUSE, line, Weight.ECHO)


def _first(judged: Sequence[_Judged], log: LogFile) -> Crash:
    """Return the first of the plainest exceptions, that of torchrun's first failure if any."""
    weight = max(one.weight for one in judged)
    plainest = [one.crash for one in judged if one.weight == weight]
    firsts = {worker.culprit for worker in failed_workers(log) if worker.is_first}
    for crash in plainest:
        if ("rank", str(crash.rank)) in firsts:
            return crash
    return plainest[0]


def _judged(log: LogFile, explained: Collection[Place], endings: Endings) -> list[_Judged]:
    judged: list[_Judged] = []
    seen: set[tuple[_StreamKey, str]] = set()
    for crash in find(log):
        key = _stream_of(crash.line), crash.form
        if key in seen or len(judged) >= _MOST_JUDGED:
            continue
        seen.add(key)
        if not _is_of_program(crash, explained) or endings.was_survived(crash.lines[-1]):
            continue
        weight = _weight(crash, endings)
        if weight is not None:
            judged.append(_Judged(crash, weight))
    return judged


def _is_of_program(crash: Crash, explained: Collection[Place]) -> bool:
    """Whether it is neither an error of a peer nor explained by another cause."""
    for line in crash.lines:
        if _is_explained(line, explained):
            return False
        raised = _RAISED.match(line.message)
        kind = raised["type"] if raised else ""
        text = (raised["text"] or "") if raised else line.message
        if _is_distributed(kind, text, line):
            return False
    return True


def _is_explained(line: LogLine, explained: Collection[Place]) -> bool:
    """Whether another cause explains the line, or the message that stands below «Error:»."""
    if line.place in explained:
        return True
    has_text_below = line.message.rstrip().endswith(":")
    return has_text_below and (line.file, line.number + 1) in explained


def _is_distributed(kind: str, text: str, line: LogLine) -> bool:
    if _OF_THE_INTERNET.search(line.message) or _WRAPPER.search(line.message):
        return False
    if _OF_THE_LOADER.search(text):
        return False
    meaning = echoes.meaning(line)
    if meaning is not None:
        return not meaning.startswith(echoes.OWN)
    if _LAUNCHER.search(kind) or _DISTRIBUTED_TYPE.search(kind):
        return True
    return bool(_DISTRIBUTED_TEXT.search(text))


def _weight(crash: Crash, endings: Endings) -> Weight | None:
    """Return how plainly the exception is the first failure, None if the program went on."""
    after = Aftermath.ENDED
    if not _UNCAUGHT.search(crash.line.text):
        after = endings.after(crash.lines[-1])
        if after is Aftermath.WENT_ON:
            return None
        if not crash.has_traceback and after is not Aftermath.ENDED:
            return None
    if endings.is_after_trouble(crash.line) or after is Aftermath.UNCLEAR:
        return Weight.SYMPTOM
    return _weight_of_message(crash)


def _weight_of_message(crash: Crash) -> Weight:
    """Return how surely the program is at fault, by what was raised."""
    message = crash.line.message
    if crash.is_of_thread or _OF_THE_DRIVER.search(message):
        return Weight.SYMPTOM
    is_uncaught = crash.has_traceback or _UNCAUGHT.search(crash.line.text)
    if _OF_THE_GPU.search(message) or not is_uncaught:
        return Weight.LIKELY
    return Weight.PLAIN


# ---------------------------------------------------------------- whose, and what is said


def _culprits(crash: Crash, alike: Sequence[Crash], log: LogFile) -> Culprits:
    """Return the rank that raised it. Without one on the line, torchrun's summary may know it."""
    line = crash.line
    if line.rank is not None:
        return (("rank", str(line.rank)),)
    if len(alike) > 1:
        return ()
    if crash.host or line.host:
        return (("host", crash.host or line.host or ""),)
    if line.local is not None:
        return (("local rank", str(line.local)),)
    return _first_of_summary(log)


def _first_of_summary(log: LogFile) -> Culprits:
    """Return the rank that torchrun saw fail first.

    It is () if nodes differ, if there is no other, or if another one ended by itself in that way.
    """
    firsts: set[str] = set()
    failed: set[str] = set()
    ends: Counter[int] = Counter()  # how many ranks ended with an exit code of their own
    for worker in failed_workers(log):
        if worker.culprit is None or worker.culprit[0] != "rank":
            continue
        failed.add(worker.culprit[1])
        if worker.code > 0:
            ends[worker.code] += 1
        if worker.is_first:
            firsts.add(worker.culprit[1])
    if len(firsts) != 1 or max(ends.values(), default=0) > 1:
        return ()
    is_the_only_rank = failed == {"0"} and not log.lines_with("closing signal")
    return () if is_the_only_rank else (("rank", firsts.pop()),)


def _note(crash: Crash) -> str:
    """Return what was raised, by which rank and where: «KeyError of rank 1 at data.py:40: …»."""
    name = crash.kind.rpartition(".")[2]
    name = name[0].upper() + name[1:]
    whose = f" of rank {crash.rank}" if crash.rank is not None else ""
    where = f" at {crash.frame}" if crash.frame else ""
    text = crash.text.rstrip(".")
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}…"
    return f"{name}{whose}{where}: {text}" if text else f"{name}{whose}{where}"
