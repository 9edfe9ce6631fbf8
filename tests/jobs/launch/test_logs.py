"""Logs of ranks have a size, keep their ends and say that lines are missing."""

from __future__ import annotations

from pathlib import Path

from clusterprep.jobs.launch.last_lines import KEPT, KEPT_CHARACTERS, LastLines
from clusterprep.jobs.launch.logs import Logs
from clusterprep.jobs.launch.waiting_lines import MOST, MOST_OF_ALL, MOST_OF_NODE, WaitingLines

QUOTA = 1 << 20  # bytes
SOURCE = ("n1", 0)


def test_a_full_log_keeps_its_end_and_says_what_is_missing(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "logs", QUOTA)
    lines = [f"{number:09d}" for number in range(200_000)]  # ten bytes each, with the newline
    for start in range(0, len(lines), 1000):
        logs.write(SOURCE, lines[start : start + 1000])
    logs.write(("n1", 1), ["the other rank"])
    assert logs.is_full(SOURCE)
    assert not logs.is_full(("n1", 1))
    logs.close()
    written = logs.path(SOURCE).read_text().splitlines()
    begun = QUOTA // 10
    assert written[:begun] == lines[:begun]
    assert written[-KEPT:] == lines[-KEPT:]
    missing = len(lines) - begun - KEPT
    assert written[begun : -KEPT or None] == [
        f"clusterprep: {missing:,} lines are missing here: the log has reached 1 MiB"
    ]
    assert logs.path(SOURCE).stat().st_size < QUOTA + KEPT_CHARACTERS + 100
    assert logs.trouble == f"{logs.folder} lacks lines of 1 log at the limit of 1 MiB: rank-0.log"


def test_a_log_below_its_quota_is_whole(tmp_path: Path) -> None:
    logs = Logs(tmp_path, QUOTA)
    logs.write(SOURCE, ["x" * 9] * (QUOTA // 10))
    logs.close()
    assert not logs.trouble
    assert logs.path(SOURCE).stat().st_size == QUOTA // 10 * 10


def test_last_lines_are_few_and_short() -> None:
    last = LastLines()
    last.extend(str(number) for number in range(1000))
    assert list(last) == [str(number) for number in range(1000 - KEPT, 1000)]
    last.extend(["x" * 8192] * 100)
    assert len(last) == KEPT_CHARACTERS // 8192
    last.extend(["y" * (2 * KEPT_CHARACTERS)])
    assert list(last) == ["y" * (2 * KEPT_CHARACTERS)]


def test_lines_wait_within_bounds_of_their_node_and_of_all() -> None:
    waiting = WaitingLines()
    line = "x" * (MOST_OF_NODE // 4)
    assert [waiting.add("n1", [line]) for _ in range(5)] == [True] * 4 + [False]
    assert waiting.add("n2", [line])
    waiting.take("n1", [line])
    assert waiting.add("n1", [line])
    others = [waiting.add(f"m{number}", [line] * 4) for number in range(20)]
    assert others.count(True) == MOST_OF_ALL // MOST_OF_NODE - 2
    many = WaitingLines()
    assert [many.add("n1", []) for _ in range(MOST + 1)] == [True] * MOST + [False]
