"""Equal answers become one result; others are compared with the most frequent; exit codes."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.cli.exit_codes import copied_code, results_code
from clusterprep.errors import Unreached
from clusterprep.fabric.printed import MOST_KEPT, Kept
from clusterprep.fabric.results import Answer, compared, fold_answers, snapshots
from clusterprep.model import ChangeRow, CommandResult, Node, NodeSnapshot


def answer(out: str = "", code: int | None = 0, **more: Any) -> Answer:
    return Answer(code, out, more.pop("err", ""), more.pop("seconds", 0.1), **more)


def nodes_of(results: tuple[CommandResult, ...]) -> list[tuple[str, ...]]:
    return [result.nodes for result in results]


def test_equal_answers_are_one_and_the_most_frequent_comes_first() -> None:
    answers = {"n1": answer("b"), "n2": answer("a"), "n3": answer("a", seconds=0.7)}
    results = fold_answers(answers)
    assert nodes_of(results) == [("n2", "n3"), ("n1",)]
    assert results[0].seconds == 0.7


@pytest.mark.parametrize(
    "other",
    [
        answer("a", 1),
        answer("a", err="e"),
        answer("a", None, reason="killed"),
        answer("a", left_out=5),
    ],
)
def test_what_differs_in_anything_but_time_stands_alone(other: Answer) -> None:
    assert len(fold_answers({"n1": answer("a"), "n2": other})) == 2


def test_bytes_that_are_no_text_stay_apart() -> None:
    """Two words of Latin-1: they are no UTF-8, and differ."""
    texts = set()
    for data in (b"caf\xe9\n", b"caf\xe8\n", b"caf", b"caf\xc3"):
        kept = Kept()
        kept.feed(data)
        kept.end()
        texts.add(kept.text)
    assert len(texts) == 4


def test_others_are_shown_as_differences() -> None:
    most, other = compared(
        fold_answers({"n1": answer("a\nb\n"), "n2": answer("a\nb\n"), "n3": answer("a\nc\n")})
    )
    assert most.stdout == "a\nb\n"
    assert other.stdout == "@@ -2 +2 @@\n-b\n+c\n"


def test_nodes_that_did_not_finish_are_no_measure() -> None:
    late = {name: answer("", None, reason="timed_out") for name in ("n1", "n2", "n3")}
    results = compared(fold_answers({**late, "n4": answer("a\n"), "n5": answer("b\n")}))
    assert nodes_of(results) == [("n4",), ("n1", "n2", "n3"), ("n5",)]
    assert results[0].stdout == "a\n"
    assert "+b" in results[2].stdout


def test_a_difference_in_the_last_end_of_line_is_not_hidden() -> None:
    _, other = compared(fold_answers({"n1": answer("a\n"), "n2": answer("a")}))
    assert other.stdout != ""


# ---------------------------------------------------------------- what is kept


def test_the_beginning_is_kept_and_the_rest_counted() -> None:
    heard: list[str] = []
    kept = Kept(heard.append)
    for _ in range(10):
        kept.feed(b"x" * (MOST_KEPT // 4))
    kept.end()
    assert kept.text == "x" * MOST_KEPT
    assert kept.left_out == MOST_KEPT // 4 * 6
    assert sum(map(len, heard)) == MOST_KEPT // 4 * 10


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_letters_of_several_bytes_may_come_in_pieces(step: int) -> None:
    data = "Größe: 5 €\n".encode()
    kept = Kept()
    for start in range(0, len(data), step):
        kept.feed(data[start : start + step])
    kept.end()
    assert kept.text == "Größe: 5 €\n"


# ---------------------------------------------------------------- exit codes


def node(reached: bool = True, answered: bool = False) -> NodeSnapshot:
    return NodeSnapshot("n1", "n1", reached=reached, answered=answered)


def result(code: int | None, reason: str | None = None) -> CommandResult:
    return fold_answers({"n1": answer("", code, reason=reason)})[0]


@pytest.mark.parametrize(
    ("results", "nodes", "code"),
    [
        pytest.param([result(0)], [node()], 0, id="all-ended-with-0"),
        pytest.param([result(0), result(7)], [node()], 1, id="one-did-not"),
        pytest.param([result(None, "killed")], [node()], 1, id="killed"),
        pytest.param([result(None, "timed_out")], [node()], 3, id="still-running"),
        pytest.param([result(None, "hung")], [node()], 3, id="lost"),
        pytest.param([result(0)], [node(reached=False)], 3, id="no-answer"),
        pytest.param([result(7)], [node(reached=False)], 1, id="one-failed-one-silent"),
        pytest.param([], [node(reached=False, answered=True)], 1, id="refused-us"),
        pytest.param([], [node(reached=False)], 3, id="nobody-there"),
    ],
)
def test_exit_codes_of_exec(
    results: list[CommandResult], nodes: list[NodeSnapshot], code: int
) -> None:
    assert results_code(results, nodes) == code


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["done", "unchanged"], 0),
        (["done", "failed"], 1),
        (["done", "unanswered"], 3),
        (["failed", "unanswered"], 1),
    ],
)
def test_exit_codes_of_copy_and_fetch(outcomes: list[Any], code: int) -> None:
    rows = [ChangeRow(("n1",), "copy", "/x", "update", outcome) for outcome in outcomes]
    assert copied_code(rows, [node()]) == code


def test_nodes_without_an_answer_are_not_reached() -> None:
    nodes = [Node("n1", "n1", 0), Node("n2", "n2", 0), Node("n3", "n3", 0)]
    seen = snapshots(nodes, {"n1": answer(), "n2": Unreached("denied", "no")})
    assert [(row.reached, row.reason, row.answered) for row in seen] == [
        (True, None, seen[0].answered),
        (False, "denied", True),
        (False, "timed_out", False),
    ]


def test_a_difference_takes_no_time_that_grows_with_the_square_of_an_output() -> None:
    """Lines that repeat are compared with all that equal them: 32 kB of these took 20 s."""
    letters = [str(number) for number in range(110)]
    one = "\n".join(letters[number % 110] for number in range(100_000))
    other = "\n".join(letters[-number % 110] for number in range(100_000))
    first, second = compared(
        fold_answers({"n1": answer(one), "n2": answer(one), "n3": answer(other)})
    )
    assert (first.stdout, second.nodes) == (one, ("n3",))
    assert second.stdout.startswith("\\ 99,999 lines become 99,999: too many of them differ")


def test_a_line_in_a_long_output_is_found() -> None:
    lines = [f"package-{number}" for number in range(30_000)]
    changed = [*lines[:20_000], "other", *lines[20_001:]]
    answers = {"n1": answer("\n".join(lines)), "n2": answer("\n".join(changed))}
    _, second = compared(fold_answers(answers))
    assert second.stdout == "@@ -20001 +20001 @@\n-package-20000\n+other\n"
