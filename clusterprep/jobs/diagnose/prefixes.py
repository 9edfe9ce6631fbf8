"""Takes off what launchers, loggers and kernels put in front of a message, and learns rank, host and time from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from clusterprep.jobs.diagnose.model import LogLine
from clusterprep.jobs.diagnose.sources import KeptLines

_DATE = r"(?:(?P<year>\d{4})-(?P<month>\d\d|[A-Z][a-z]{2})-(?P<day>\d\d))"
_CLOCK = r"(?P<clock>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"

# In this order, again and again until none fits: prefixes come in layers.
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        # A progress bar has no end of line, so what is written next stands behind it.
        r"[^\[\]]{0,300}\b\d{1,12}(?:/\d{1,12}|[a-z]{1,9})? \[[\d:]{1,12}(?:<[\d:?]{1,12})?, [^\]]{1,80}\]\s*(?=\S)",
        (
            rf"\s*(?:[A-Z][a-z]{{2}}) (?P<month>[A-Z][a-z]{{2}}) +(?P<day>\d\d?) {_CLOCK} \d{{4}}"
            r"(?=\[\d+(?:,\d+)?\]<)"
        ),  # mpirun --timestamp-output, horovodrun
        r"\s*\[\d+,(?P<rank>\d+)\](?:<(?:stdout|stderr)>)?:\s?",  # mpirun --tag-output
        r"\s*\[(?P<rank>\d{1,5})\]<(?:stdout|stderr)>:\s?",  # horovodrun
        r"\s*(?:[0-9a-f]{8} )?\[rank[:=]? ?(?P<rank>\d+)\]:?(?: \|\|)?\s?",  # torch since 2.3; Lightning
        r"\s*\[Rank (?P<rank>\d+)\]:?\s?",  # ProcessGroupNCCL up to 2.2, desync reports
        r"\s*\[PG(?: ID)? [^\]]*?Rank (?P<rank>\d+)\]\s?",  # ProcessGroupNCCL since 2.3
        r"\s*\[(?:default|trainer|worker|train|[a-z_]+?)(?P<local>\d+)(?:\|\d+)?\]:\s?",  # torchrun --tee
        r"\s*(?P<rank>\d{1,5}): ",  # srun --label
        (
            r"\s*\((?P<actor>[A-Za-z_][\w.:-]*)?(?: ?rank=(?P<rank>\d+))?,? ?pid=(?P<pid>\d+)(?:, "
            r"ip=(?P<host>[\w.:-]+))?\)\s?"
        ),
        (
            rf"\s*\[?{_DATE}[ T_]{_CLOCK}(?P<zone>Z|[+-]\d\d:?\d\d)?"
            r"(?P<who>(?:,| )[A-Z]+\d+(?: [A-Z]+\d+)*)?\]?[:,]?\s?"
            r"(?:(?:stdout|stderr) [FP] )?(?:- )?"
        ),
        (
            rf"\s*\[?(?P<level>[IWEF])(?P<monthday>\d{{3,4}})? ?{_CLOCK}?\s*(?:(?P<thread>\d+) )?"
            r"(?P<unit>[\w./-]+\.(?:cpp|hpp|h|cc|cu|py)):\d+\]\s?"
        ),
        (
            rf"\s*\[?(?P<month>[A-Z][a-z]{{2}}) +(?P<day>\d\d?) {_CLOCK} (?P<host>[\w.-]+) "
            rf"(?P<unit>[\w.-]+?)(?:\[\d+\])?: "
        ),
        rf"\s*\[(?:[A-Z][a-z]{{2}}) (?P<month>[A-Z][a-z]{{2}}) +(?P<day>\d\d?) {_CLOCK} \d{{4}}\]\s?",  # dmesg -T
        r"\s*(?:<\d>)?\[\s*(?P<uptime>\d{1,9}\.\d{6})\]\s?",
        (
            r"\s*(?:(?:(?P<host>[\w.-]*):)?(?P<pid>\d+):(?P<thread>\d+) )?\[(?P<gpu>\d+)\]\s+(?P<unit>[\w./-]+:\d+\s+)?"
            r"(?P<source>NCCL|RCCL|CCOM|HCCL|ENC) (?P<level>WARN|INFO|TRACE|ERROR|VERSION|CALL)\s+"
        ),
        (
            r"\s*(?P<host>[\w.-]+):(?P<pid>\d+):(?P<thread>\d+)\s+\[(?P<gpu>\d+)\]"
            r"\s+"
        ),  # NCCL up to 2.3, NCCL version lines
        r"\s*(?P<unit>[\w./-]+\.(?:cu|cc|h|c):\d+)\s+(?P<source>NCCL )?(?P<level>WARN|INFO)\s+",
        (
            r"\s*(?P<host>[\w.-]+):(?P<pid>\d+):(?P<thread>\d+)\s+(?P<unit>[\w./-]+:\d+\s+)?(?P<source>NCCL) "
            r"(?P<level>WARN|INFO)\s+"
        ),
        r"\s*\[\d{10}\.\d{6}\]\s+(?=\[[\w.-]+:\d+)",  # seconds since 1970, as UCX has them
        r"\s*\[(?!\d\d:)(?P<host>[\w.-]+):(?P<pid>\d+) ?:\d+(?::\d+)?\]\s+(?=\S)",  # UCX; [12:00:01] is a clock
        rf"\s*\[?{_LEVEL}\]?(?::[\w.]+:|:|\]| -|\s)\s*",
        r"\s*what\(\):\s+(?=\[)",
        r"\s*[│|] ",  # a box that rich or a terminal drew
        r"\[\d{1,7}\] (?=\[(?:rank|E|W)|[\w.-]+:\d+:\d+ \[)",  # numbered lines
        r"\s*\[c10d\]\s?",
        r"\s*(?:\.\. )?(?P<host>[\w.-]+)(?: pid (?P<pid>\d+))?: (?=Test (?:CUDA|NCCL|failure))",  # nccl-tests
        r"\s*\S{1,64} \[(?:stdout|stderr)\]:? ",
        r"\s*\[(?:stdout|stderr)\]:? ",
        # pdsh, DeepSpeed
        r"\s*(?=[\w.-]{2,64}: )(?P<pdsh>(?:\d{1,3}\.){3}\d{1,3}|[a-z][a-z-]*[a-z0-9.-]*\d[a-z0-9.-]*): (?=\S)",
    )
)
_NO_HOST = re.compile(
    r"(?:eth|ib|ens|enp|eno|enx|wlan|bond|docker|veth|virbr|br|mlx|team|python|cuda|gpu-?\d+$|sm_|libnccl|rank|step|"
    r"epoch|"
    r"node0*$|nccl)[\w.-]*|.*(?:error|exception|warning)",
    re.IGNORECASE,
)
_OWN_RANK = re.compile(r"\bcomm 0x\w+ rank (\d+) nranks \d+")
_RANK_FILE = re.compile(r"\brank[_.-]?(?P<rank>\d{1,5})(?=[._-][^/]*$|$)")
_MONTHS = {
    name: n
    for n, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1
    )
}
_SOURCES = (
    ("ProcessGroup", "c10d"),
    ("socket.cpp", "c10d"),
    ("TCPStore", "c10d"),
    ("torch/distributed", "c10d"),
    ("kernel", "kernel"),
    ("slurm", "slurm"),
)


@dataclass
class _Learned:
    """What the prefixes of one line told; the first to tell it is believed, but for the level."""

    told: dict[str, str] = field(default_factory=dict)

    def add(self, groups: dict[str, str | None]) -> None:
        for name, value in groups.items():
            if value and (name == "level" or name not in self.told):
                self.told[name] = value

    def number(self, name: str) -> int | None:
        value = self.told.get(name)
        return None if value is None or len(value) > 9 else int(value)


def lines_of(kept: Sequence[KeptLines]) -> tuple[LogLine, ...]:
    """Kept lines with their prefixes read; a process that once told its rank is known by it on all its lines."""
    lines = [
        line_of(row.file, row.number, row.text.decode("utf-8", "replace"), n)
        for n, row in enumerate(kept)
    ]
    told = {
        _process(line): int(found[1])
        for line in lines
        if line.pid and (found := _OWN_RANK.search(line.said))
    }
    return tuple(
        replace(line, rank=told.get(_process(line))) if line.rank is None and told else line
        for line in lines
    )


def _process(line: LogLine) -> tuple[str | None, int | None, int | None]:
    return line.host, line.pid, line.gpu


def line_of(file: str, number: int, text: str, order: int = 0) -> LogLine:
    """One line, its prefixes taken off in `said`."""
    learned, said = _Learned(), text.rstrip()
    for _ in range(12):
        rest = _without_one(said, learned)
        if rest is None:
            break
        said = rest
    told = learned.told
    return LogLine(
        file,
        number,
        text.rstrip(),
        said,
        order=order,
        level=told.get("level", ""),
        source=_source(told),
        rank=_rank(learned, file),
        local=learned.number("local"),
        host=told.get("host") or told.get("pdsh"),
        gpu=learned.number("gpu"),
        time=_time(told),
        pid=learned.number("pid"),
    )


def _without_one(said: str, learned: _Learned) -> str | None:
    for prefix in _PREFIXES:
        found = prefix.match(said)
        if found is None or not found.end():
            continue
        groups = found.groupdict()
        if groups.get("pdsh") and _NO_HOST.fullmatch(groups["pdsh"]):
            continue
        learned.add(groups)
        return said[found.end() :]
    return None


def _rank(learned: _Learned, file: str) -> int | None:
    """The rank that the line says, else the one in the file's name: rank3.log."""
    said = learned.number("rank")
    named = _RANK_FILE.search(file) if said is None else None
    return int(named["rank"]) if named else said


def _source(told: dict[str, str]) -> str:
    if "source" in told or ("gpu" in told and "host" in told):
        return "nccl"
    if "uptime" in told:
        return "kernel"
    return next((source for mark, source in _SOURCES if mark in told.get("unit", "")), "")


def _time(told: dict[str, str]) -> float | None:
    """Seconds in a year of 31-day months; None without a day, as then lines of two files cannot be compared."""
    clock = told.get("clock")
    month, day = told.get("month"), told.get("day")
    if monthday := told.get("monthday"):
        month, day = monthday[:-2], monthday[-2:]
    if not clock or not month or not day:
        return None
    number = _MONTHS.get(month) or (int(month) if month.isdigit() else 0)
    hours, minutes, seconds = clock.replace(",", ".").split(":")
    return ((number * 31 + int(day)) * 24 + int(hours)) * 3600 + int(minutes) * 60 + float(seconds)
