"""Reads Python stacks of several ranks, and says which rank stands elsewhere than the others.

Stacks come from py-spy (`py-spy dump`, text or JSON), which has files of its own, and from Python's
fault handler, which writes into logs: at a signal, at a time limit, or when a process is aborted.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from clusterprep.jobs.diagnose.model import Culprits, Evidence, LogFile, LogLine, Weight
from clusterprep.jobs.diagnose.records.file_names import ranks_of
from clusterprep.jobs.launch.stacks import Frame

# Frames of the fault handler end «line 88 in train»; those of a traceback have a comma before «in».
NEEDLES = (
    "(most recent call first)",
    "line 0 in ",
    "line 00 in ",
    "line 000 in ",
    "line 0000 in ",
    "line 00000 in ",
    "fatal python error",
    "timeout (0:00:00",
    "timeout (00:00:00",
)
_MOST_FRAMES = 300
_MOST_PROCESSES = 4096
_MOST_BLAMED = 8
_SPY_PROCESS = re.compile(r"^\s*Process (?P<pid>\d+): (?P<command>.*)$")
_SPY_THREAD = re.compile(
    r"^\s*Thread (?:0x[0-9A-Fa-f]+|\d+)? ?\((?:idle|active)[\w+]*\)(?:: \"(?P<name>.*)\")?$"
)
_SPY_FRAME = re.compile(r"^\s+(?P<name>\S.*?) \((?P<file>[^()]+?)(?::(?P<line>\d+))?\)$")
_SPY_PYTHON = re.compile(r"^Python v\d")
_SPY_HEAD = re.compile(rb"(?m)^\s*Thread (?:0x[0-9A-Fa-f]+|\d+) \((?:idle|active)")
_SPY_JSON = (b'"thread_id"', b'"owns_gil"', b'"frames"')
_RANK_IN_TEXT = re.compile(r"\brank[ _:=-]*(\d{1,6})\b", re.IGNORECASE)
_RANK_IN_COMMAND = re.compile(r"--(?:local[-_])?rank[= ](\d{1,6})\b")
_FAULT_HEAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FAULT_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.+)$')
_FAULT_START = re.compile(r"^(?:Fatal Python error: (?P<error>.+)|Timeout \([\d:.]+\)!)")
# The abort of NCCL's watchdog and of `launch` at its limit: where the rank stood tells something.
_ABORTED = "Aborted"
_NETWORK_ERRORS = ("ncclremoteerror", "ncclsystemerror", "nccl error", "connection closed by")

_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python\d[\d.]*)/|^<|\.(?:so|cpp|cc|cu)\b"
    r"|^(?:torch|deepspeed|accelerate|transformers|lightning|pytorch_lightning|datasets|megatron"
    r"|ray|numpy|fsspec|tqdm|multiprocessing|concurrent|asyncio|importlib|trl|peft|torchdata"
    r"|webdataset)/"
    r"|^(?:threading|queue|socket|selectors|runpy|contextlib|subprocess|pickle|functools|connection"
    r"|ssl|shutil|tempfile|json)\.py$"
)
_COLLECTIVE = re.compile(
    r"(?:^|/)(?:torch/distributed/(?:distributed_c10d|_functional_collectives|c10d_logger)"
    r"|deepspeed/comm/\w+|horovod/torch/mpi_ops)\.py$"
)
_NO_OPERATION = frozenset(
    {"wrapper", "func_wrapper", "_exception_logger", "log_wrapper", "_fn", "inner", "new_group"}
)
# Where a rank waits for its GPU, or for the backward pass, in which collectives run unseen.
_GPU_WAIT = re.compile(
    r"^(?:.*\.)?(?:synchronize|item|tolist|wait_stream|wait_event|_engine_run_backward|cpu"
    r"|clip_grad_norm_|_reduce_grads|finalize_model_grads)$"
)
_AUTOGRAD = re.compile(
    r"(?:^|/)torch/(?:autograd/(?:graph|__init__)|cuda/__init__|cuda/streams)\.py$"
)
_LOADS = re.compile(
    r"(?:^|/)(?:torch/utils/data/|datasets/|webdataset/|streaming/|torchdata/|tokenizers/"
    r"|megatron/core/datasets/|fsspec/|PIL/)|(?:^|/)\w*(?:dataset|data_loader|dataloader)\w*\.py$"
)
_LOAD_NAMES = re.compile(r"(?:^|\.)(?:__getitem__|tokenize\w*|_next_data|collate_fn|load_dataset)$")
_SAVES = re.compile(
    r"(?:^|/)(?:torch/serialization|torch/distributed/checkpoint/\w+|safetensors/\w+"
    r"|\w*checkpoint\w*)\.py$"
)
_SAVE_NAMES = re.compile(r"(?:^|\.)_?(?:save|load)(?:_\w+)?$")
_ENDS = re.compile(r"(?:^|\.)(?:_exit_function|destroy_process_group|_run_exitfuncs|_shutdown)$")
_DEBUGS = re.compile(r"(?:^|/)(?:pdb|bdb|ipdb/\w+|IPython/.*|debugpy/.*)\.py$")


class ProcessStack(Struct, frozen=True):
    """Where one process stands: the frames of its main thread, innermost first."""

    file: str
    pid: int | None
    rank: int | None
    threads: tuple[tuple[Frame, ...], ...]  # the main thread first
    line: LogLine

    @property
    def frames(self) -> tuple[Frame, ...]:
        return self.threads[0] if self.threads else ()


class Whereabouts(Struct, frozen=True):
    """What a process is doing. `kind` is collective, gpu, data, save, end, debugger or other."""

    kind: str
    operation: str  # such as all_reduce
    place: str  # in the user's program, such as «train.py:88»

    @property
    def is_waiting(self) -> bool:
        return self.kind in {"collective", "gpu"}

    def __str__(self) -> str:
        doing = {
            "collective": f"waits in {self.operation}",
            "gpu": f"waits for its GPU in {self.operation}",
            "data": "loads data",
            "save": "saves or loads a checkpoint",
            "end": "ends",
            "debugger": "stands in a debugger",
            "other": f"runs {self.operation}",
        }[self.kind]
        return f"{doing} at {self.place}" if self.place else doing


# ---------------------------------------------------------------- py-spy


def is_py_spy(head: bytes) -> bool:
    """Return whether a file that begins so has the text of `py-spy dump`."""
    return b"Python v" in head and bool(_SPY_HEAD.search(head))


def is_py_spy_json(head: bytes) -> bool:
    return all(key in head for key in _SPY_JSON)


def are_traces(value: object) -> bool:
    """Return whether a JSON document is the output of `py-spy dump --json`."""
    return isinstance(value, list) and bool(value) and all(_is_trace(row) for row in value)


def _is_trace(row: object) -> bool:
    return isinstance(row, dict) and "frames" in row and "thread_id" in row


class _Thread(Struct, frozen=True):
    name: str
    frames: tuple[Frame, ...]


def of_text(file: str, text: str, first_order: int) -> list[ProcessStack]:
    """Return the processes of the text of `py-spy dump`, of one or of several one after another."""
    reader = _SpyReader()
    for number, row in enumerate(text.splitlines(), 1):
        reader.read(number, row)
    stacks: list[ProcessStack] = []
    for block in reader.blocks[:_MOST_PROCESSES]:
        stacks += block.stack(file, first_order + len(stacks))
    return stacks


class _SpyReader:
    """Reads the text of `py-spy dump` line by line into a block for each process."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self._rank: int | None = None  # told by a line between two processes

    def read(self, number: int, row: str) -> None:
        process = _SPY_PROCESS.match(row)
        if process or (_SPY_PYTHON.match(row) and not self.blocks):
            self._begin(number, process)
        elif thread := _SPY_THREAD.match(row):
            if self.blocks:
                self.blocks[-1].threads.append((thread["name"] or "", []))
        elif self._is_in_thread and (frame := _SPY_FRAME.match(row)):
            self._add(frame)
        elif told := _RANK_IN_TEXT.search(row):
            self._rank = int(told[1])

    @property
    def _is_in_thread(self) -> bool:
        return bool(self.blocks and self.blocks[-1].threads)

    def _begin(self, number: int, process: re.Match[str] | None) -> None:
        """Begin a process; older versions of py-spy do not name the first one."""
        command = process["command"] if process else ""
        told = _RANK_IN_COMMAND.search(command)
        if told and self._rank is None:
            self._rank = int(told[1])
        pid = int(process["pid"]) if process else None
        self.blocks.append(_Block(number, pid, self._rank))
        self._rank = None

    def _add(self, frame: re.Match[str]) -> None:
        _, frames = self.blocks[-1].threads[-1]
        if len(frames) < _MOST_FRAMES:
            line = int(frame["line"] or 0)
            frames.append(Frame(frame["file"], line, frame["name"]))


class _Block:
    """The part of an output that is about one process."""

    def __init__(self, number: int, pid: int | None, rank: int | None) -> None:
        self.number = number
        self.pid = pid
        self.rank = rank
        self.threads: list[tuple[str, list[Frame]]] = []

    def stack(self, file: str, order: int) -> list[ProcessStack]:
        """Return the stack, or an empty list if no thread has frames."""
        threads = [_Thread(name, tuple(frames)) for name, frames in self.threads if frames]
        if not threads:
            return []
        return [_process(file, self.number, self.pid, self.rank, threads, order)]


def of_json(file: str, rows: Any, first_order: int) -> list[ProcessStack]:
    """Return the processes of the output of `py-spy dump --json`."""
    by_pid: dict[int, list[_Thread]] = {}
    commands: dict[int, str] = {}
    for row in rows:
        frames = _frames_of_json(row.get("frames"))
        pid = row.get("pid")
        pid = pid if isinstance(pid, int) else 0
        if frames:
            by_pid.setdefault(pid, []).append(
                _Thread(str(row.get("thread_name") or ""), tuple(frames))
            )
        info = row.get("process_info")
        if isinstance(info, dict):
            commands[pid] = str(info.get("command_line", ""))
    stacks: list[ProcessStack] = []
    for pid, threads in list(by_pid.items())[:_MOST_PROCESSES]:
        match = _RANK_IN_COMMAND.search(commands.get(pid, ""))
        rank = int(match[1]) if match else None
        stacks.append(_process(file, 1, pid or None, rank, threads, first_order + len(stacks)))
    return stacks


def _frames_of_json(told: Any) -> list[Frame]:
    """Return the frames of one thread, without those that have another shape than py-spy's."""
    rows = told[:_MOST_FRAMES] if isinstance(told, list) else []
    frames: list[Frame] = []
    for row in rows:
        if not isinstance(row, dict):
            continue
        name = str(row.get("filename") or row.get("short_filename") or "")
        line = row.get("line")
        number = line if isinstance(line, int) else 0
        frames.append(Frame(name, number, str(row.get("name", ""))))
    return frames


def _process(
    file: str,
    number: int,
    pid: int | None,
    rank: int | None,
    threads: Sequence[_Thread],
    order: int,
) -> ProcessStack:
    """Return a process with its main thread first, and with the line that stands for it."""
    ordered = sorted(threads, key=_is_no_main)
    frames = tuple(thread.frames for thread in ordered)
    line = LogLine(file, number, "", "", order=order, pid=pid)
    if rank is None:
        rank = ranks_of([file]).get(file)
    return _named(ProcessStack(file, pid, rank, frames, line))


def _named(process: ProcessStack) -> ProcessStack:
    """Return a process of py-spy with the line that stands for it."""
    who = f"process {process.pid}" if process.rank is None else f"rank {process.rank}"
    text = f"{who}: {whereabouts(process.threads)}"
    line = replace(process.line, text=text, message=text, rank=process.rank)
    return replace(process, line=line)


def with_ranks(processes: Sequence[ProcessStack]) -> list[ProcessStack]:
    """Return the processes with the ranks that the names of their files tell together."""
    ranks = _ranks_by_file(processes)
    named: list[ProcessStack] = []
    for process in processes:
        rank = ranks.get(process.file)
        is_new = process.rank is None and rank is not None
        named.append(_named(replace(process, rank=rank)) if is_new else process)
    return named


def _ranks_by_file(processes: Sequence[ProcessStack]) -> Mapping[str, int]:
    """Return ranks by file, if each file is of one process."""
    files = dict.fromkeys(process.file for process in processes)
    if len(files) != len(processes) or all(process.rank is not None for process in processes):
        return {}
    return ranks_of(list(files))


def _is_no_main(thread: _Thread) -> int:
    """Return 0 for the main thread, 1 for one that C++ made, 2 for one that Python made."""
    outermost = thread.frames[-1].name.rpartition(".")[2]
    if thread.name == "MainThread" or outermost == "<module>":
        return 0
    return 2 if outermost == "_bootstrap" else 1


# ---------------------------------------------------------------- the fault handler


def processes_of(log: LogFile) -> list[ProcessStack]:
    """Return the stacks that the fault handler wrote into a log, the last of each rank.

    Stacks of a rank that crashed are left out, as the error itself says more. So are those of ranks
    that abort themselves after an error of the network: they may be anywhere then.
    """
    if not log.lines_with("(most recent call first)"):
        return []
    aborts_mean_little = bool(log.lines_with(*_NETWORK_ERRORS))
    dumps: dict[tuple[str, int | None, int | None], _Dump] = {}
    for line in log.lines_with(*NEEDLES):
        key = (line.file, line.rank, line.local)
        dump = dumps.get(key)
        starts = _FAULT_START.match(line.message)
        if starts or dump is None:
            dump = _Dump(line, starts["error"] or "" if starts else "")
            dumps[key] = dump
        dump.read(line)
    stacks: list[ProcessStack] = []
    for dump in dumps.values():
        if not (aborts_mean_little and dump.error):
            stacks += dump.stack()
    return stacks


class _Dump:
    """One dump of the fault handler, line by line."""

    def __init__(self, line: LogLine, error: str) -> None:
        self.line = line
        self.error = error
        self.threads: list[_Thread] = []
        self.frames: list[Frame] = []
        self.lines: dict[Frame, LogLine] = {}

    def read(self, line: LogLine) -> None:
        frame = _FAULT_FRAME.match(line.message)
        if _FAULT_HEAD.match(line.message.lstrip()):
            self._close()
        elif frame and len(self.frames) < _MOST_FRAMES:
            place = Frame(frame["file"], int(frame["line"]), frame["name"])
            self.frames.append(place)
            self.lines[place] = line

    def _close(self) -> None:
        if self.frames:
            self.threads.append(_Thread("", tuple(self.frames)))
        self.frames = []

    def stack(self) -> list[ProcessStack]:
        self._close()
        if not self.threads or (self.error and _ABORTED not in self.error):
            return []
        threads = sorted(self.threads, key=_is_no_main)
        frames = tuple(thread.frames for thread in threads)
        line = self.lines.get(_user_frame(frames[0]) or frames[0][0], self.line)
        rank = line.rank if line.rank is not None else line.local
        return [
            ProcessStack(
                line.file,
                line.pid,
                rank,
                frames,
                line,
            )
        ]


# ---------------------------------------------------------------- where a process stands


def whereabouts(threads: Sequence[Sequence[Frame]]) -> Whereabouts:
    """Return what a process does, by its main thread.

    In the backward pass collectives run in a thread of autograd: then that thread tells.
    """
    main = threads[0]
    place = _place(main)
    found = _of_frames(main, place)
    if found.kind != "gpu":
        return found
    for other in threads[1:]:
        if other and other[-1].name.rpartition(".")[2] != "_bootstrap":
            of_other = _of_frames(other, place)
            if of_other.kind == "collective":
                return of_other
    return found


def _of_frames(frames: Sequence[Frame], place: str) -> Whereabouts:
    """Return what the innermost frames tell. Loading data may save files, so the order counts."""
    operation = ""
    for frame in frames:
        name = frame.name.rpartition(".")[2]
        if _COLLECTIVE.search(frame.file) and name not in _NO_OPERATION:
            operation = name  # the outermost one: what the program called
    if operation and not _ENDS.search(operation):
        return Whereabouts("collective", operation, place)
    for frame in frames:
        name = frame.name.rpartition(".")[2]
        kind = _kind(frame, name)
        if kind:
            return Whereabouts(kind, name, place)
    innermost = frames[0]
    user = _user_frame(frames) or innermost
    return Whereabouts("other", user.name.rpartition(".")[2], place)


def _kind(frame: Frame, name: str) -> str:
    if _DEBUGS.search(frame.file):
        return "debugger"
    if _LOADS.search(frame.file) or _LOAD_NAMES.search(name):
        return "data"
    if _SAVES.search(frame.file) and _SAVE_NAMES.search(name):
        return "save"
    if _ENDS.search(name):
        return "end"
    if _AUTOGRAD.search(frame.file) or _GPU_WAIT.match(name):
        return "gpu"
    return ""


def _user_frame(frames: Iterable[Frame]) -> Frame | None:
    for frame in frames:
        if not _LIBRARY.search(frame.file):
            return frame
    return None


def _place(frames: Sequence[Frame]) -> str:
    frame = _user_frame(frames)
    if frame is None:
        return ""
    return f"{posixpath.basename(frame.file)}:{frame.line}"


# ---------------------------------------------------------------- evidence


def evidence(processes: Sequence[ProcessStack]) -> Iterator[Evidence]:
    """Yield the processes that stand elsewhere while most others wait at one place.

    Nothing is said if fewer than two processes are known, or if as many are elsewhere as wait.
    """
    by_who = _by_rank(processes)
    if len(by_who) < 2:
        return
    where = {who: whereabouts(process.threads) for who, process in by_who.items()}
    waiting = [who for who in where if where[who].is_waiting]
    busy = [who for who in where if not where[who].is_waiting]
    if busy and len(busy) <= len(waiting):
        yield from _busy(busy, waiting, where, by_who)
    elif not busy:
        yield from _apart(where, by_who)


def _by_rank(processes: Sequence[ProcessStack]) -> dict[str, ProcessStack]:
    """Return the last stack of each rank, or of each process where ranks are not told."""
    ranks = _ranks_by_file(processes)
    by_who: dict[str, ProcessStack] = {}
    for process in processes:
        rank = process.rank if process.rank is not None else ranks.get(process.file)
        if rank is not None:
            by_who[f"rank {rank}"] = process
        elif process.pid:
            by_who[f"process {process.pid}"] = process
    return by_who


def _busy(
    busy: Sequence[str],
    waiting: Sequence[str],
    where: Mapping[str, Whereabouts],
    by_who: Mapping[str, ProcessStack],
) -> Iterator[Evidence]:
    """Yield the processes that do something else while the others wait for them."""
    if len({(where[who].operation, where[who].place) for who in waiting}) > 1 + len(busy):
        return  # they wait in many places: this is a job that runs
    kinds = Counter(where[who].kind for who in busy)
    kind, _ = kinds.most_common(1)[0]
    cause = "rank_desync_control_flow"
    if kind in {"data", "save"}:
        cause = "slow_work_exceeds_timeout"
    usual = where[waiting[0]]
    others = "the other waits" if len(waiting) == 1 else "the others wait"
    told = str(usual).partition(" ")[2]
    note = f"{busy[0]} {where[busy[0]]}, {others} {told}"
    for who in [*busy[:4], waiting[0]]:
        yield Evidence(
            cause,
            by_who[who].line,
            Weight.LIKELY,
            _culprits(busy),
            note,
        )


def _apart(
    where: Mapping[str, Whereabouts], by_who: Mapping[str, ProcessStack]
) -> Iterator[Evidence]:
    """Yield the few that wait in another collective, at another line, than the others."""
    at = {
        who: (found.operation, found.place)
        for who, found in where.items()
        if found.kind == "collective"
    }
    if len(at) < len(where) or len(set(at.values())) < 2:
        return
    commonest, count = Counter(at.values()).most_common(1)[0]
    odd = [who for who in at if at[who] != commonest]
    usual = next(who for who in at if at[who] == commonest)
    culprits: Culprits = ()
    if 2 * count > len(at):
        culprits = _culprits(odd)
    elif len(at) == 2:
        names = [who.partition(" ")[2] for who in at]
        culprits = (("ranks", " and ".join(names)),)
    note = f"{odd[0]} {where[odd[0]]}, {usual} {where[usual]}"
    for who in [*odd[:4], usual]:
        yield Evidence(
            "rank_desync_control_flow",
            by_who[who].line,
            Weight.LIKELY,
            culprits,
            note,
        )


def _culprits(who: Sequence[str]) -> Culprits:
    if len(who) > _MOST_BLAMED:
        return ()
    culprits: list[tuple[str, str]] = []
    for name in who:
        kind, _, number = name.partition(" ")
        culprits.append((kind, number))
    return tuple(culprits)
