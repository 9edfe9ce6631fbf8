"""What nodes are asked about running jobs, and what their answers mean. Parsing is pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterprep.facts import Fact, Needs
from clusterprep.jobs.live.model import Frame, Look, NodeLook, Process, Socket, Task
from clusterprep.model import Inventory, Node, Read
from clusterprep.remote.untrusted import as_list, require_integer, require_number, require_text

GAP = 1.2  # seconds between the two looks
LIMIT = 8.0  # seconds for all of it
LONGEST = 300  # characters of one text of a node
LONGEST_ANSWER = 1 << 17  # of NCCL's RAS
MOST_RANKS = 64  # of one node, as the agent sends
MOST_SOCKETS = 2048
MOST_TASKS = 64
MOST_FRAMES = 100
MOST_PORT = 65535
LONGEST_STATE = 2
_SPY_FRAME = re.compile(r"^ {4}(\S.*?) \((.+?):(\d+)\)\s*$")
_SPY_THREAD = re.compile(r'^Thread \S+ \(.*?\)(?:: "(.*)")?')


def parse_look(answer: Any) -> NodeLook:
    """Return what a node tells. Raises ValueError, KeyError or TypeError for anything else."""
    processes = tuple(_process(row) for row in as_list(answer["ranks"])[:MOST_RANKS])
    sockets = tuple(_socket(row) for row in as_list(answer["sockets"])[:MOST_SOCKETS])
    others = frozenset(_end(row) for row in as_list(answer["others"])[:MOST_SOCKETS])
    ras = answer["ras"]
    return NodeLook(
        seconds=require_number(answer["seconds"]),
        hz=require_integer(answer["hz"], 1),
        processes=processes,
        sockets=sockets,
        others=others,
        hidden=require_integer(answer["hidden"]),
        more=require_integer(answer["more"]),
        cut=bool(answer["cut"]),
        ras=None if ras is None else require_text(ras, LONGEST_ANSWER),
    )


def _process(row: Mapping[str, Any]) -> Process:
    first, second = as_list(row["looks"])
    job = row["job"]
    pairs = [(_text(name), _text(value)) for name, value in sorted(job.items())]
    gpus = tuple(require_integer(gpu) for gpu in as_list(row["gpus"])[:MOST_TASKS])
    return Process(
        pid=require_integer(row["pid"], 1),
        comm=_text(row["comm"]),
        rank=_number(row["rank"]),
        size=_number(row["size"]),
        local=_number(row["local"]),
        job=tuple(pairs),
        gpus=gpus,
        first=None if first is None else _look(first),
        second=None if second is None else _look(second),
        started=require_integer(row["started"]),
        above=_pids(row["launchers"]),
        below=_pids(row["children"]),
    )


def _pids(value: Any) -> tuple[int, ...]:
    return tuple(require_integer(pid, 1) for pid in as_list(value)[:MOST_TASKS])


def _number(text: Any) -> int | None:
    """Return the number of a variable, None where it is not set or no number."""
    if not isinstance(text, str) or not text.isdecimal() or len(text) > 9:
        return None
    return int(text)


def _text(value: Any) -> str:
    return require_text(value, LONGEST)


def _look(row: Mapping[str, Any]) -> Look:
    main = row["main"]
    io = row["io"]
    blocked = tuple(_task(task) for task in as_list(row["blocked"])[:MOST_TASKS])
    children = tuple(_task(task) for task in as_list(row["children"])[:MOST_TASKS])
    frames = [_frame(frame) for frame in as_list(row.get("stack"))[:MOST_FRAMES]]
    if not frames and row.get("text"):
        frames = spy_frames(require_text(row["text"], LONGEST_ANSWER))
    return Look(
        state=require_text(row["state"], LONGEST_STATE),
        ticks=require_integer(row["ticks"]),
        threads=require_integer(row["threads"]),
        main=None if main is None else _task(main),
        blocked=blocked,
        io=None if io is None else (require_integer(io[0]), require_integer(io[1])),
        children=children,
        stack=tuple(frames),
        no_stack=_text(row.get("no_stack", "")),
    )


def _task(row: Mapping[str, Any]) -> Task:
    switches = row["switches"]
    call, files = row["call"]
    return Task(
        tid=require_integer(row["tid"]),
        comm=_text(row["comm"]),
        state=require_text(row["state"], LONGEST_STATE),
        ticks=require_integer(row["ticks"]),
        switches=None if switches is None else require_integer(switches),
        wchan="" if row["wchan"] == "0" else _text(row["wchan"]),
        call=_text(call),
        files=tuple(_text(name) for name in as_list(files)[:MOST_TASKS]),
        kernel=tuple(_text(name) for name in as_list(row["kernel"])[:MOST_TASKS]),
    )


def _frame(row: Any) -> Frame:
    function, path, line = row
    return Frame(_text(function), _text(path), require_integer(line))


def spy_frames(text: str) -> list[Frame]:
    """Return the frames of the main thread of what `py-spy dump` prints, innermost first.

    Threads begin with «Thread 4711 (idle): "MainThread"», frames are «    function (file:line)».
    """
    frames: list[Frame] = []
    is_main = False
    for line in text.splitlines():
        thread = _SPY_THREAD.match(line)
        if thread is not None:
            is_main = thread[1] == "MainThread"
        frame = _SPY_FRAME.match(line)
        if frame is not None and is_main and len(frames) < MOST_FRAMES:
            frames.append(Frame(frame[1][:LONGEST], frame[2][:LONGEST], int(frame[3])))
    return frames


def _socket(row: Mapping[str, Any]) -> Socket:
    return Socket(
        pid=require_integer(row["pid"], 1),
        of_rank=bool(row["rank"]),
        state=require_integer(row["state"]),
        address=_text(row["address"]),
        port=_port(row["port"]),
        peer=_text(row["peer"]),
        peer_port=_port(row["peer_port"]),
        sendq=require_integer(row["sendq"]),
        recvq=require_integer(row["recvq"]),
        again=require_integer(row["again"]),
        probing=bool(row["probing"]),
        received_ago=_counted(row["received_ago"]),
        passed=_counted(row["passed"]),
        resent=_counted(row["resent"]),
        segments=_counted(row["segments"]),
        old=bool(row["old"]),
        held=bool(row["held"]),
    )


def _end(row: Any) -> tuple[str, int, str, int]:
    address, port, peer, peer_port = row
    return _text(address), _port(port), _text(peer), _port(peer_port)


def _port(value: Any) -> int:
    return require_integer(value, 0, MOST_PORT)


def _counted(value: Any) -> int | None:
    return None if value is None else require_integer(value)


def _reads(node: Node, inventory: Inventory) -> tuple[Read, ...]:
    return (Read("job", (GAP,), LIMIT),)


NEEDS = Needs("root", "root alone sees what processes of other users do", partly=True)
RANKS = Fact("job.ranks", _reads, parse_look, needs=NEEDS, moves=True)
