"""Lines that the kernel's log has since the look before."""

from __future__ import annotations

from typing import Any

from clusterprep.facts.kernel_log import KernelLog, KernelRecord
from clusterprep.model import Absent
from clusterprep.survey.watch.kernel_news import LONGEST, MOST_LINES, KernelNews


def facts(*numbers: int, boot: str = "b1", text: str = "line") -> dict[str, Any]:
    records = [
        KernelRecord(number, float(number), 3, 1, float(number), f"{text} {number}")
        for number in numbers
    ]
    return {"host.boot_id": boot, "log.records": KernelLog(1e6, 0, 0.0, tuple(records))}


def test_lines_of_the_first_look_are_no_news() -> None:
    news = KernelNews()
    assert news.look("n1", facts(5, 7)) is None
    assert news.look("n1", facts(5, 7)) is None


def test_a_new_line_is_told_once() -> None:
    news = KernelNews()
    news.look("n1", facts(5))
    told = news.look("n1", facts(5, 9))
    assert told is not None
    assert told.lines == ("line 9",)
    assert news.look("n1", facts(5, 9)) is None


def test_a_further_line_of_a_kind_replaces_the_one_before_and_is_told() -> None:
    news = KernelNews()
    news.look("n1", facts(5))
    told = news.look("n1", facts(6))
    assert told is not None
    assert told.lines == ("line 6",)


def test_a_log_without_lines_is_a_first_look_too() -> None:
    news = KernelNews()
    assert news.look("n1", facts()) is None
    assert news.look("n1", facts(1)) is not None


def test_all_lines_of_a_new_boot_are_new() -> None:
    news = KernelNews()
    news.look("n1", facts(500))
    told = news.look("n1", facts(3, boot="b2"))
    assert told is not None
    assert told.lines == ("line 3",)


def test_a_storm_of_lines_is_told_by_its_newest() -> None:
    news = KernelNews()
    news.look("n1", facts())
    told = news.look("n1", facts(*range(1, 101), text="x" * 3000))
    assert told is not None
    assert len(told.lines) == MOST_LINES
    assert told.left_out == 100 - MOST_LINES
    assert max(map(len, told.lines)) == LONGEST


def test_a_log_that_could_not_be_read_is_no_news_and_no_new_beginning() -> None:
    news = KernelNews()
    news.look("n1", facts(5))
    assert news.look("n1", {**facts(), "log.records": Absent("denied")}) is None
    assert news.look("n1", facts(5, 6)) is not None
