"""Public logs that had no part in building `diagnose`: what was reached is held."""

from __future__ import annotations

import functools

import pytest

from tests.jobs.diagnose import public
from tests.jobs.diagnose.public import Answer, PublicCase

CASES = public.cases()
WRONG = 1  # answers that are wrong today, of all; docs/howto/diagnose.md names them


@functools.cache
def answers() -> tuple[tuple[PublicCase, Answer], ...]:
    return tuple(public.today(CASES))


def names(rows: list[tuple[PublicCase, Answer]]) -> list[str]:
    return [f"{case.name} {case.cause}: {given}" for case, given in rows]


def test_no_harmless_log_is_called_a_failure() -> None:
    wrong = [row for row in answers() if row[0].is_harmless and row[1].code == 1]
    assert names(wrong) == []


def test_no_failure_ends_with_0() -> None:
    wrong = [row for row in answers() if row[0].is_failure and row[1].code == 0]
    assert names(wrong) == []


def test_answers_are_right() -> None:
    wrong = [row for row in answers() if row[1].is_given and not public.is_right(*row)]
    assert len(wrong) <= WRONG, names(wrong)


def test_the_page_is_of_today() -> None:
    page = public.PAGE.read_text()
    assert public.renewed(page, public.tables(CASES, answers())) == page


@pytest.mark.parametrize(
    ("part", "whole", "low", "high"),
    [(37, 38, 0.8815, 0.9987), (0, 10, 0.0, 0.2589), (10, 10, 0.7411, 1.0)],
)
def test_the_interval_is_that_of_clopper_and_pearson(
    part: int, whole: int, low: float, high: float
) -> None:
    """The figures are those of R's binom.test at 90 %."""
    assert public.interval(part, whole) == pytest.approx((low, high), abs=0.001)


@pytest.mark.parametrize(
    ("wanted", "given", "right"),
    [
        ("rank 3", "rank 3 on n2", True),
        ("rank 3", "rank 13", False),
        ("host n1", "host n2", False),
        ("link 10.2.0.4 - 10.2.0.5", "peer 10.2.0.5 as seen from 10.2.0.4", True),
        ("ranks 2, 5", "ranks 2 and 5", True),
    ],
)
def test_culprits_are_compared_by_their_names(wanted: str, given: str, right: bool) -> None:
    case = PublicCase(
        "x", "open", "", 2026, True, "program", frozenset(), (wanted,), False, Answer(1), {}
    )
    answer = Answer(1, "program", 0.9, given)
    assert public.has_right_culprit(case, answer) is right
    assert public.has_invented_culprit(case, answer) is not right
