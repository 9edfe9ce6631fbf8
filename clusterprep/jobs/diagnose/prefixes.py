"""Removes prefixes of launchers, loggers and kernels, and reads rank, host and time from them.

`line_of("log", 1, "[rank3]: out of memory")` has the rank 3 and the message "out of memory".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from msgspec import Struct, field

from clusterprep.jobs.diagnose.model import LogLine
from clusterprep.jobs.diagnose.sources import KeptLine

_DATE = r"(?:(?P<year>\d{4})-(?P<month>\d\d|[A-Z][a-z]{2})-(?P<day>\d\d))"
_CLOCK = r"(?P<clock>\d\d:\d\d:\d\d(?:[.,]\d+)?)"
_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"

# Prefixes come in layers: these are tried in this order, again and again until none matches.
_PREFIX_PATTERNS = (
    # A progress bar has no end of line, so what is written next stands behind it.
    (
        r"[^\[\]]{0,300}\b\d{1,12}(?:/\d{1,12}|[a-z]{1,9})? "
        r"\[[\d:]{1,12}(?:<[\d:?]{1,12})?, [^\]]{1,80}\]\s*(?=\S)"
    ),
    # Kaggle: seconds and the number of the line
    r"\s*\d{1,9}\.\d{1,3}s\t\d{1,9}\t",
    # mpirun --timestamp-output, horovodrun
    (
        rf"\s*(?:[A-Z][a-z]{{2}}) (?P<month>[A-Z][a-z]{{2}}) +(?P<day>\d\d?) {_CLOCK} \d{{4}}"
        r"(?=\[\d+(?:,\d+)?\]<)"
    ),
    # mpirun --tag-output
    r"\s*\[\d+,(?P<rank>\d+)\](?:<(?:stdout|stderr)>)?:\s?",
    # horovodrun
    r"\s*\[(?P<rank>\d{1,5})\]<(?:stdout|stderr)>:\s?",
    # torch since 2.3; Lightning
    r"\s*(?:[0-9a-f]{8} )?\[rank[:=]? ?(?P<rank>\d+)\]:?(?: \|\|)?\s?",
    # ProcessGroupNCCL up to 2.2, desync reports
    r"\s*\[Rank (?P<rank>\d+)\]:?\s?",
    # ProcessGroupNCCL since 2.3
    r"\s*\[PG(?: ID)? [^\]]*?Rank (?P<rank>\d+)\]\s?",
    # torchrun --tee
    r"\s*\[(?:default|trainer|worker|train|[a-z_]+?)(?P<local>\d+)(?:\|\d+)?\]:\s?",
    # srun --label
    r"\s*(?P<rank>\d{1,5}): ",
    # Ray
    (
        r"\s*\((?P<actor>[A-Za-z_][\w.:-]*)?(?: ?rank=(?P<rank>\d+))?,? ?pid=(?P<pid>\d+)"
        r"(?:, ip=(?P<host>[\w.:-]+))?\)\s?"
    ),
    # date and time of logging modules, and of container logs
    (
        rf"\s*\[?{_DATE}[ T_]{_CLOCK}(?P<zone>Z|[+-]\d\d:?\d\d)?"
        r"(?P<who>(?:,| )[A-Z]+\d+(?: [A-Z]+\d+)*)?\]?[:,]?\s?"
        r"(?:(?:stdout|stderr) [FP] )?(?:- )?"
    ),
    # glog, and the C++ part of torch: [W304 12:00:00.000000000 socket.cpp:697]
    (
        rf"\s*\[?(?P<level>[IWEF])(?P<monthday>\d{{3,4}})? ?{_CLOCK}?\s*(?:(?P<thread>\d+) )?"
        r"(?P<unit>[\w./-]+\.(?:cpp|hpp|h|cc|cu|py)):\d+\]\s?"
    ),
    # syslog
    (
        rf"\s*\[?(?P<month>[A-Z][a-z]{{2}}) +(?P<day>\d\d?) {_CLOCK} (?P<host>[\w.-]+) "
        r"(?P<unit>[\w.-]+?)(?:\[\d+\])?: "
    ),
    # dmesg -T
    (
        r"\s*\[(?:[A-Z][a-z]{2}) (?P<month>[A-Z][a-z]{2}) +"
        rf"(?P<day>\d\d?) {_CLOCK} \d{{4}}\]\s?"
    ),
    # dmesg
    r"\s*(?:<\d>)?\[\s*(?P<uptime>\d{1,9}\.\d{6})\]\s?",
    # NCCL and libraries derived from it
    (
        r"\s*(?:(?:(?P<host>[\w.-]*):)?(?P<pid>\d+):(?P<thread>\d+) )?\[(?P<gpu>\d+)\]\s+"
        r"(?P<unit>[\w./-]+:\d+\s+)?"
        r"(?P<source>NCCL|RCCL|CCOM|HCCL|ENC) (?P<level>WARN|INFO|TRACE|ERROR|VERSION|CALL)\s+"
    ),
    # NCCL up to 2.3, NCCL version lines
    r"\s*(?P<host>[\w.-]+):(?P<pid>\d+):(?P<thread>\d+)\s+\[(?P<gpu>\d+)\]\s+",
    r"\s*(?P<unit>[\w./-]+\.(?:cu|cc|h|c):\d+)\s+(?P<source>NCCL )?(?P<level>WARN|INFO)\s+",
    (
        r"\s*(?P<host>[\w.-]+):(?P<pid>\d+):(?P<thread>\d+)\s+(?P<unit>[\w./-]+:\d+\s+)?"
        r"(?P<source>NCCL) (?P<level>WARN|INFO)\s+"
    ),
    # seconds since 1970, as UCX writes them
    r"\s*\[\d{10}\.\d{6}\]\s+(?=\[[\w.-]+:\d+)",
    # UCX; [12:00:01] is a clock and no host with a pid
    r"\s*\[(?!\d\d:)(?P<host>[\w.-]+):(?P<pid>\d+) ?:\d+(?::\d+)?\]\s+(?=\S)",
    # Python's logging
    rf"\s*\[?{_LEVEL}\]?(?::[\w.]+:|:|\]| -|\s)\s*",
    # C++ exceptions
    r"\s*what\(\):\s+(?=\[)",
    # a box that rich or a terminal drew
    r"\s*[│|] ",
    # numbered lines
    r"\[\d{1,7}\] (?=\[(?:rank|E|W)|[\w.-]+:\d+:\d+ \[)",
    r"\s*\[c10d\]\s?",
    # nccl-tests
    r"\s*(?:\.\. )?(?P<host>[\w.-]+)(?: pid (?P<pid>\d+))?: (?=Test (?:CUDA|NCCL|failure))",
    # programs that collect the output of others
    r"\s*\S{1,64} \[(?:stdout|stderr)\]:? ",
    r"\s*\[(?:stdout|stderr)\]:? ",
    # pdsh, DeepSpeed
    (
        r"\s*(?=[\w.-]{2,64}: )"
        r"(?P<pdsh>(?:\d{1,3}\.){3}\d{1,3}|[a-z][a-z-]*[a-z0-9.-]*\d[a-z0-9.-]*): (?=\S)"
    ),
)
_PREFIXES = tuple(re.compile(pattern) for pattern in _PREFIX_PATTERNS)
_HOST_PREFIX = _PREFIXES[-1]  # that of pdsh
# What is not told apart in lines of one form: digits, and the letters of pointers.
_DIGITS = str.maketrans("123456789", "000000000")
_POINTER = re.compile(r"0x[0-9a-f]+")
_MOST_LAYERS = 12
# What stands before a colon and is no host: interfaces, devices, words of programs.
_NO_HOST = re.compile(
    r"(?:eth|ib|ens|enp|eno|enx|wlan|bond|docker|veth|virbr|br|mlx|team|python|cuda|gpu-?\d+$"
    r"|sm_|libnccl|rank|step|epoch|node0*$|nccl|nvidia-nvswitch)[\w.-]*"
    r"|.*(?:error|exception|warning)",
    re.IGNORECASE,
)
_OWN_RANK = re.compile(r"\bcomm 0x\w+ rank (\d+) nranks \d+")
_RANK_FILE = re.compile(r"\brank[_.-]?(?P<rank>\d{1,5})(?=[._-][^/]*$|$)")
_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_SOURCES = (
    ("ProcessGroup", "c10d"),
    ("socket.cpp", "c10d"),
    ("TCPStore", "c10d"),
    ("torch/distributed", "c10d"),
    ("kernel", "kernel"),
    ("slurm", "slurm"),
)


class _Learned(Struct):
    """Values that the prefixes of one line told. The first one counts, but for `level` the last."""

    values: dict[str, str] = field(default_factory=dict)

    def add(self, groups: dict[str, str | None]) -> None:
        for name, value in groups.items():
            is_new = name == "level" or name not in self.values
            if value and is_new:
                self.values[name] = value

    def number(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None or len(value) > 9:
            return None
        return int(value)

    @property
    def host(self) -> str | None:
        return self.values.get("host") or self.values.get("pdsh")


def lines_of(kept: Sequence[KeptLine]) -> tuple[LogLine, ...]:
    """Return kept lines with their prefixes read.

    NCCL tells the rank of a process once; all lines of that process get it.
    """
    reader = _PrefixReader()
    read: list[tuple[str, _Learned]] = []  # the message of each line, and what its prefixes told
    rank_of_process: dict[_Process, int] = {}
    texts = [row.text.decode("utf-8", "replace").rstrip() for row in kept]
    for text in texts:
        message, learned = reader.read(text)
        read.append((message, learned))
        if " nranks " in message and "pid" in learned.values:
            match = _OWN_RANK.search(message)
            if match:
                rank_of_process[_process(learned)] = int(match[1])
    lines: list[LogLine] = []
    for order, row in enumerate(kept):
        message, learned = read[order]
        rank = _rank(learned, row.file)
        if rank is None and rank_of_process:
            rank = rank_of_process.get(_process(learned))
        line = _line(row.file, row.number, texts[order], message, learned, rank, order)
        lines.append(line)
    return tuple(lines)


_Process = tuple[str | None, int | None, int | None]


def _process(learned: _Learned) -> _Process:
    return learned.host, learned.number("pid"), learned.number("gpu")


def line_of(file: str, number: int, text: str, order: int = 0) -> LogLine:
    """Return one line; its `message` is the text without prefixes."""
    text = text.rstrip()
    message, learned = _PrefixReader().read(text)
    rank = _rank(learned, file)
    return _line(file, number, text, message, learned, rank, order)


def _line(
    file: str,
    number: int,
    text: str,
    message: str,
    learned: _Learned,
    rank: int | None,
    order: int,
) -> LogLine:
    values = learned.values
    return LogLine(
        file,
        number,
        text,
        message,
        order=order,
        level=values.get("level", ""),
        source=_source(values),
        rank=rank,
        local=learned.number("local"),
        host=learned.host,
        gpu=learned.number("gpu"),
        time=_time(values),
        pid=learned.number("pid"),
    )


class _PrefixReader:
    """Reads the prefixes of lines, and remembers which patterns match lines of each form."""

    def __init__(self) -> None:
        self._patterns_of_form: dict[str, tuple[re.Pattern[str], ...]] = {}

    def read(self, text: str) -> tuple[str, _Learned]:
        """Return the message of a line and what its prefixes told."""
        form = _POINTER.sub("0x0", text.translate(_DIGITS))
        patterns = self._patterns_of_form.get(form)
        if patterns is None:
            return self._read_new(text, form)
        learned = _Learned()
        message = text
        for pattern in patterns:
            match = pattern.match(message)
            if match is None or _is_no_host(match):
                return self._read_new(text, form)
            learned.add(match.groupdict())
            message = message[match.end() :]
        return message, learned

    def _read_new(self, text: str, form: str) -> tuple[str, _Learned]:
        """Return the same for a line of a form that may be new, by trying all patterns."""
        learned = _Learned()
        message = text
        patterns: list[re.Pattern[str]] = []
        for _ in range(_MOST_LAYERS):
            match = _first_prefix(message)
            if match is None:
                break
            patterns.append(match.re)
            learned.add(match.groupdict())
            message = message[match.end() :]
        # Whether a word is a host depends on its letters and not on its form alone.
        no_host = _HOST_PREFIX.match(message)
        if no_host is None or not _is_no_host(no_host):
            self._patterns_of_form[form] = tuple(patterns)
        return message, learned


def _first_prefix(message: str) -> re.Match[str] | None:
    """Return the match of the first prefix of a message, or None if it has none."""
    for prefix in _PREFIXES:
        match = prefix.match(message)
        if match is not None and match.end() and not _is_no_host(match):
            return match
    return None


def _is_no_host(match: re.Match[str]) -> bool:
    """Whether what a prefix takes for a host is an interface, a device or a word of a program."""
    if match.re is not _HOST_PREFIX:
        return False
    return _NO_HOST.fullmatch(match["pdsh"]) is not None


def _rank(learned: _Learned, file: str) -> int | None:
    """Return the rank that the line tells, or else the one in the file's name: rank3.log."""
    rank = learned.number("rank")
    if rank is not None:
        return rank
    return _rank_in_name(file)


@functools.lru_cache(maxsize=64)
def _rank_in_name(file: str) -> int | None:
    match = _RANK_FILE.search(file)
    return int(match["rank"]) if match else None


def _source(values: dict[str, str]) -> str:
    if "source" in values:
        return "nccl"
    if "gpu" in values and "host" in values:
        return "nccl"
    if "uptime" in values:
        return "kernel"
    unit = values.get("unit", "")
    for mark, source in _SOURCES:
        if mark in unit:
            return source
    return ""


def _time(values: dict[str, str]) -> float | None:
    """Return seconds in a year of 31-day months.

    None without a day, because then lines of two files cannot be compared.
    """
    clock = values.get("clock")
    month = values.get("month")
    day = values.get("day")
    if monthday := values.get("monthday"):
        month = monthday[:-2]
        day = monthday[-2:]
    if not clock or not month or not day:
        return None
    month_number = _MONTHS.get(month, 0)
    if not month_number and month.isdigit():
        month_number = int(month)
    hours, minutes, seconds = clock.replace(",", ".").split(":")
    days = month_number * 31 + int(day)
    whole_hours = days * 24 + int(hours)
    whole_minutes = whole_hours * 60 + int(minutes)
    return whole_minutes * 60 + float(seconds)
