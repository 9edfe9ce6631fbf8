"""How workers ended, as torchrun tells it: which failed first, by which signal, and which it ended itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterprep.jobs.diagnose.model import Evidence, LogFile, LogLine, Weight
from clusterprep.runtime.lazy_dataclass import dataclass

_SHORT = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)",
    re.IGNORECASE,
)
_RANK = re.compile(r"^\s*rank +: *(?P<rank>\d+)", re.IGNORECASE)
_EXIT = re.compile(r"^\s*exitcode +: *(?P<code>-?\d+)(?: \(pid: (?P<pid>\d+)\))?", re.IGNORECASE)
_ROOT = re.compile(r"Root Cause \(first observed failure\)", re.IGNORECASE)
_FORCED = re.compile(r"Unable to shutdown process (?P<pid>\d+) .*forcefully exiting", re.IGNORECASE)
_SENT = (-15, -2, -1)  # signals that somebody sends
_CAUSES = {
    -9: ("host_oom_kill", Weight.LIKELY, "by SIGKILL"),
    -7: ("shm_too_small", Weight.LIKELY, "by SIGBUS"),
    -15: ("external_termination", Weight.LIKELY, "by SIGTERM"),
    -2: ("external_termination", Weight.LIKELY, "by SIGINT"),
    -1: ("external_termination", Weight.LIKELY, "by SIGHUP"),
}


@dataclass(frozen=True)
class Ended:
    """One worker that ended badly. `first` where torchrun says that it was the first on its node."""

    line: LogLine
    code: int
    pid: str
    culprit: tuple[str, str] | None
    first: bool


def ended(log: LogFile) -> list[Ended]:
    """Workers that ended badly, without those that torchrun killed because they did not follow its SIGTERM."""
    forced = {
        found["pid"]
        for line in log.saying("forcefully exiting")
        if (found := _FORCED.search(line.said))
    }
    return [one for one in [*_short(log), *_summaries(log)] if one.pid not in forced]


def _short(log: LogFile) -> Iterator[Ended]:
    """The line of the agent that saw a worker fail; it tells the first one alone."""
    for line in log.saying("failed (exitcode"):
        if found := _SHORT.search(line.said):
            yield Ended(
                line, int(found["code"]), found["pid"], ("local rank", found["local"]), first=True
            )


def _summaries(log: LogFile) -> Iterator[Ended]:
    """The blocks of torchrun's summary: rank and exit code stand on lines of their own, the root cause comes last."""
    rank: tuple[str, int, str] | None = None
    root: tuple[str, int] = ("", 0)
    for line in log.saying("rank      :", "exitcode  :", "root cause (first"):
        if _ROOT.search(line.said):
            root = (line.file, line.number)
        elif found := _RANK.match(line.said):
            rank = (line.file, line.number, found["rank"])
        elif found := _EXIT.match(line.said):
            near = rank is not None and rank[0] == line.file and line.number - rank[1] <= 2
            first = not root[0] or (root[0] == line.file and line.number - root[1] <= 6)
            culprit = ("rank", rank[2]) if near and rank else None
            yield Ended(line, int(found["code"]), found["pid"] or "", culprit, first=first)


def judge(log: LogFile) -> Iterator[Evidence]:
    """What the first failures of each node say; who ended by SIGTERM after another failed was only ended after it."""
    rows = [one for one in ended(log) if one.first]
    own = {one.line.file for one in rows if one.code not in _SENT}
    for one in rows:
        if one.code in _SENT and one.line.file in own:
            continue
        name, weight, how = _CAUSES.get(one.code, ("", Weight.ECHO, ""))
        if name:
            culprits = (one.culprit,) if one.culprit else ()
            yield Evidence(name, one.line, weight, culprits, note=f"a worker ended {how}")
