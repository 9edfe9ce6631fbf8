"""Finds what ranks did while others waited for them: work, fewer batches, another collective."""

from __future__ import annotations

import re
from collections import defaultdict

from msgspec import Struct

from clusterprep.jobs.diagnose.model import LogFile, LogLine
from clusterprep.jobs.diagnose.prefixes import line_of

WORK_NEEDLES = (
    "tokeniz",
    "examples/s",
    "ba/s]",
    "num_proc",
    "preprocess",
    "saving ",
    "saved ",
    "checkpoint",
    "train split",
    "building ",
    "evaluat",
)
DATA_NEEDLES = (" batches", " samples", "stopiteration", "iterabledataset", "exhausted inputs")
CALL_NEEDLES = ('distributed_c10d.py", line', "closed by peer", "reset by peer")

_PREPARING = re.compile(
    r"tokeniz|examples/s|\bba/s\]|map \(num_proc|preprocess"
    r"|sav(?:ing|ed) (?:[a-z]+ ){0,3}(?:checkpoint|model|state|weights|optimizer|video|shard)"
    r"|checkpoint.{0,30}(?:sav|writ)"
    r"|generating (?:train|validation|test) split|building (?:the )?(?:index|dataset|cache)",
    re.IGNORECASE,
)
# «47%|████ | 1695000/3634744 [30:09<33:25, 967.30 examples/s]»
_BAR = re.compile(
    r"(?P<percent>\d{1,3})%\|[^\[\]]*(?:\[(?P<elapsed>(?:\d+:)?\d{1,2}:\d\d)<)?", re.IGNORECASE
)
_TRACEBACK = re.compile(r"\]\s*(?:\[\w+\]: ?)?Traceback \(most recent call last\)")
_DIGITS = re.compile(r"\d+")
_RANK_IN_WORDS = re.compile(r"\brank[ :]*(\d{1,5})\b", re.IGNORECASE)
_COUNT = re.compile(
    r"\b(?P<count>\d{1,12}) (?P<what>batches|samples)\b(?! ?(?:/|per))", re.IGNORECASE
)
_END_OF_DATA = re.compile(
    r"\bStopIteration\b|exhausted inputs|Length of IterableDataset .* was reported to be",
    re.IGNORECASE,
)
_CALL = re.compile(
    r"distributed_c10d\.py\", line \d+, in (?P<op>all_reduce|broadcast|all_gather\w*"
    r"|reduce_scatter\w*|barrier|all_to_all\w*|gather|scatter|reduce|send|recv"
    r"|broadcast_object_list)$"
)
# The limits at which work that is too long is cut: those of torch by default, in seconds.
_DEFAULT_LIMITS = (600, 1800)
_LEEWAY = 60  # seconds that pass between the start of the wait and that of the work
_CLOSE = 60  # lines of a file within which work before a time-out is taken to be the last work


# ---------------------------------------------------------------- work


class Work(Struct, frozen=True):
    """A line about work that others may have waited for. `rank` does it, if the line tells.

    `is_unfinished`: the line is a progress bar below 100 %. `lasted`: the bar shows that the work
    took as long as the others waited.
    """

    line: LogLine
    rank: int | None
    is_unfinished: bool
    lasted: bool


def work_before(
    log: LogFile, line: LogLine, waited: float | None, present: set[int]
) -> Work | None:
    """Return work that was going on when the time-out in `line` fired, None if none is shown.

    `waited` is the limit in seconds. Ranks that timed out themselves (`present`) did no work.
    """
    found: Work | None = None
    for candidate in log.lines_with(*WORK_NEEDLES):
        work = _work(candidate, waited, present)
        if work is None or not _is_near(log, work, line, waited):
            continue
        if found is None or work.lasted >= found.lasted:
            found = work
    return found


def _work(line: LogLine, waited: float | None, present: set[int]) -> Work | None:
    """Return the work that a line tells of; none if it is done, or of a rank that waited.

    The whole text is searched: a progress bar is taken for a prefix of what was written behind it.
    """
    if not _PREPARING.search(line.text):
        return None
    bar = _last_bar(line.text)
    if bar is None:
        rank = _rank_of(line)
        if rank is not None and rank in present:
            return None
        return Work(line, rank, is_unfinished=False, lasted=False)
    if int(bar["percent"]) >= 100:
        return None
    # What is written behind a bar is of another rank; what stands before it is of the bar's own.
    rank = line_of(line.file, line.number, line.text[: bar.start()]).rank
    lasted = waited is not None and _seconds(bar["elapsed"]) + _LEEWAY >= waited
    return Work(line, rank, is_unfinished=True, lasted=lasted)


def _last_bar(text: str) -> re.Match[str] | None:
    """Return the last of the states of a progress bar in a line: a bar is written many times."""
    bars = list(_BAR.finditer(text))
    return bars[-1] if bars else None


def _is_near(log: LogFile, work: Work, line: LogLine, waited: float | None) -> bool:
    """Whether work was told while the others waited, or shortly before in its file."""
    if work.lasted:
        return True
    told = work.line
    if told.time is not None and line.time is not None and waited is not None:
        return line.time - waited - _LEEWAY <= told.time <= line.time
    end = line.number
    if told.file != line.file:
        end = log.files.get(told.file, told.number)
    return told.number <= end <= told.number + _CLOSE


def _seconds(clock: str | None) -> int:
    """Return the seconds of «1:02:03» or «02:03», 0 if no clock is told."""
    seconds = 0
    if clock is None:
        return seconds
    for part in clock.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds


def cut_off_work(log: LogFile) -> LogLine | None:
    """Return a progress bar that a traceback cuts off when a usual limit passes."""
    for line in log.lines_with("examples/s", "ba/s]", "tokeniz"):
        bar = _last_bar(line.text)
        if bar is None or not _TRACEBACK.search(line.text):
            continue
        elapsed = _seconds(bar["elapsed"])
        if any(abs(elapsed - limit) <= _LEEWAY for limit in _DEFAULT_LIMITS):
            return line
    return None


# ---------------------------------------------------------------- data


_Counts = dict[int, tuple[int, LogLine]]  # by rank: how many, and the line that tells it


class UnevenData(Struct, frozen=True):
    """Lines that show that ranks have different numbers of batches. `ranks` have the fewest."""

    line: LogLine
    ranks: tuple[int, ...]
    note: str


def uneven_data(log: LogFile) -> UnevenData | None:
    """Return what shows that ranks have different amounts of data, None if nothing does."""
    # By wording: what is counted has to be the same on all ranks.
    counts: dict[str, _Counts] = defaultdict(dict)
    for line in log.lines_with(" batches", " samples"):
        match = _COUNT.search(line.text)
        rank = _rank_of(line)
        if match is None or rank is None:
            continue
        wording = _DIGITS.sub("", line.message)
        counts[wording].setdefault(rank, (int(match["count"]), line))
    for told in counts.values():
        if len({count for count, _ in told.values()}) > 1:
            return _fewest(told)
    for line in log.lines_with("stopiteration", "exhausted inputs", "iterabledataset"):
        if _END_OF_DATA.search(line.message):
            rank = line.rank
            ranks = () if rank is None else (rank,)
            return UnevenData(line, ranks, "the data of a rank had come to its end")
    return None


def _rank_of(line: LogLine) -> int | None:
    if line.rank is not None:
        return line.rank
    match = _RANK_IN_WORDS.search(line.text)
    return int(match[1]) if match else None


def _fewest(told: _Counts) -> UnevenData:
    """Return the ranks that have the fewest, and a note that compares one with one of the most."""
    ranks_by_count: dict[int, list[int]] = {}
    for rank in sorted(told):
        count, _ = told[rank]
        ranks_by_count.setdefault(count, []).append(rank)
    fewest = min(ranks_by_count)
    most = max(ranks_by_count)
    ranks = ranks_by_count[fewest]
    other = ranks_by_count[most][0]
    _, line = told[ranks[0]]
    match = _COUNT.search(line.text)
    what = match["what"].lower() if match else "batches"
    note = f"rank {ranks[0]} has {fewest:,} {what} and rank {other} has {most:,}"
    return UnevenData(line, tuple(ranks), note)


# ---------------------------------------------------------------- calls


def calls(log: LogFile, ranks: set[int]) -> dict[int, str]:
    """Return the call of torch.distributed in which the traceback of each rank ends."""
    found: dict[int, str] = {}
    for line in log.lines_with("distributed_c10d.py"):
        match = _CALL.search(line.message)
        if match and line.rank in ranks:
            found[line.rank] = match["op"]
    return found


def is_call_of(call: str, op: str) -> bool:
    """Whether a function of torch.distributed is the operation: `all_gather` is ALLGATHER."""
    name = call.replace("_", "").upper()
    plain = op.strip("_").replace("_BASE", "").replace("_", "")
    if plain == "ALLREDUCE" and name == "BARRIER":
        return True  # torch's NCCL barrier is an all-reduce
    return name.startswith(plain) or plain.startswith(name)
