"""A log of a job: diagnose says what it knows, whatever stands there.

May happen: InputError for what is no text. Never: another exception, a report that is not
well-formed, a quoted line that the log does not have, or another diagnosis when it is read a second
time.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

from clusterprep.errors import InputError
from clusterprep.jobs.diagnose.command import diagnose, without_names
from clusterprep.reports.diagnosis import render
from tests.fuzz.files import HERE, placed
from tests.fuzz.wellformed import only_text

ROOM, LONGER = 60_000, 100  # characters of a report: by itself, and per byte that was read


def one(data: bytes) -> None:
    try:
        diagnosis, hosts = diagnose(["-"], stdin=io.BytesIO(data))
    except InputError as error:
        placed(error, "-")
        return
    assert diagnose(["-"], stdin=io.BytesIO(data))[0] == diagnosis
    for told in (diagnosis, without_names(diagnosis, hosts)):
        for fmt in ("json", "console"):
            text = render(told, fmt, color=False, verbose=1, width=80, ascii_only=False)
            only_text(text)
            assert len(text) < ROOM + LONGER * len(data)
            if fmt == "json":
                _quoted(json.loads(text), data.count(b"\n") + 1)


def _quoted(document: dict[str, object], lines: int) -> None:
    causes, rest = document["causes"], document["unexplained"]
    assert isinstance(causes, list)
    assert isinstance(rest, list)
    for file, number, text in [*rest, *(line for cause in causes for line in cause["lines"])]:
        assert file == "-"
        assert 0 < number <= lines
        assert isinstance(text, str)


DICTIONARY = (
    *(
        word.encode()
        for word in (
            "NCCL WARN ",
            "[rank3]: ",
            "n1:71:72 [0] ",
            "Timeout(ms)=600000",
            "SeqNum=",
            "Xid ",
        )
    ),
    *(
        word.encode()
        for word in (
            "Traceback (most recent call last):\n",
            "RuntimeError: ",
            'File "x.py", line 3',
            "NVRM: ",
        )
    ),
    *(
        word.encode()
        for word in (
            "client socket has timed out after ",
            "0: ",
            "\r",
            "\x1b[31m",
            "[2026-11-21 09:30:00]",
        )
    ),
    *(
        word.encode()
        for word in (
            "exitcode: -9",
            "Signal 11 (SIGSEGV)",
            '{"log":"',
            "99999999999999999999",
            "\u2028",
        )
    ),
    b"\x1f\x8b\x08\x00",
    b"\xff\xfe",
)


def seeds() -> Iterator[bytes]:
    for path in sorted((HERE / "jobs" / "diagnose").glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        lines = [row["line"] for row in rows if isinstance(row.get("line"), str)]
        yield from (line.encode() + b"\n" for line in lines)
        yield "\n".join(lines[:20]).encode()
    for path in sorted((HERE / "jobs" / "diagnose" / "recorded").glob("*.log")):
        yield path.read_bytes()[-4096:]
