"""`make test-mutants`: which mutants are drawn, how they end, and what the page says of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.alive import EQUIVALENT
from tests.mutants.core import CORE, Module, Part
from tests.mutants.drawing import LEAST, Place, shares, shuffled
from tests.mutants.page import Result, Run, change, found, other_draw, table, text, with_other_draw
from tests.mutants.worker import outcome

ROOT = Path(__file__).resolve().parents[2]
MODULES = [module for part in CORE for module in part.modules]
PARTS = (Part("judge", "a wrong verdict", (Module("a.py", ()), Module("b.py", ()))),)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.path)
def test_what_is_mutated_and_asked_is_there(module: Module) -> None:
    assert [path for path in (module.path, *module.tests) if not (ROOT / path).is_file()] == []
    assert module.tests


def test_no_module_stands_twice() -> None:
    assert [
        path for path, count in Counter(module.path for module in MODULES).items() if count > 1
    ] == []


def test_what_was_said_to_be_equivalent_is_about_lines_that_still_stand() -> None:
    lines = {
        line.strip() for module in MODULES for line in (ROOT / module.path).read_text().splitlines()
    }
    taken = [row[2:] for text in EQUIVALENT for row in text.splitlines() if row.startswith("- ")]
    assert [row for row in taken if row not in lines] == []


@pytest.mark.parametrize(
    ("there", "wanted", "expected"),
    [
        pytest.param({"a": 100, "b": 300}, 40, {"a": 10, "b": 30}, id="in-proportion"),
        pytest.param({"a": 10, "b": 990}, 100, {"a": LEAST, "b": 100 - LEAST}, id="a-few-of-each"),
        pytest.param({"a": 1, "b": 99}, 10, {"a": 1, "b": 9}, id="no-more-than-there-are"),
        pytest.param({"a": 5, "b": 5}, 300, {"a": 5, "b": 5}, id="fewer-than-wanted"),
        pytest.param({"a": 50, "b": 50}, 7, {"a": 4, "b": 3}, id="by-name-where-alike"),
    ],
)
def test_each_module_has_its_share(
    there: dict[str, int], wanted: int, expected: dict[str, int]
) -> None:
    assert shares(there, wanted) == expected


def test_all_that_are_wanted_are_drawn() -> None:
    there = {f"m{number}": 7 * number**2 + 1 for number in range(45)}
    assert sum(shares(there, 300).values()) == 300


def test_a_draw_that_leaves_modules_out_is_refused() -> None:
    with pytest.raises(ValueError, match="5 mutants are too few for 2 modules: 6 at least"):
        shares({"a": 50, "b": 50}, 5)


def test_a_seed_draws_the_same_again_and_another_one_others() -> None:
    places = [Place("a.py", number, 1, "f") for number in range(50)]
    once, again, other = (list(shuffled(places, seed)) for seed in (1, 1, 2))
    assert once == again
    assert once != other
    assert sorted(place.number for place in other) == list(range(50))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(0, "alive", id="all-passed"),
        pytest.param(1 << 8, "killed", id="one-failed"),
        pytest.param(4 << 8, "killed", id="conftest-does-not-import"),
        pytest.param(int(signal.SIGXCPU), "timed out", id="no-end"),
        pytest.param(int(signal.SIGKILL), "timed out", id="no-end-by-the-clock"),
        pytest.param(int(signal.SIGSEGV), "killed", id="crash"),
    ],
)
def test_the_end_of_its_tests_is_that_of_a_mutant(status: int, expected: str) -> None:
    assert outcome(status) == expected


def test_a_change_is_shown_as_a_diff_of_its_lines() -> None:
    assert change("a\n    if b < c:\nd\n", "a\n    if b <= c:\nd\n") == "- if b < c:\n+ if b <= c:"


def results(path: str, *ends: str) -> list[Result]:
    return [
        Result(Place(path, number, 1, "f"), f"- {number}\n+ {path}", end)
        for number, end in enumerate(ends)
    ]


MANY = [
    *results("a.py", "killed", "alive", "timed out"),
    *results("b.py", "killed", "alive", "alive"),
]


def test_timed_out_counts_as_found_and_alive_does_not() -> None:
    assert table(PARTS, {"a.py": 10, "b.py": 20}, MANY).splitlines()[2:] == [
        "| `a.py` | 10 | 3 | 1 | 1 | 1 | 66 % |",
        "| `b.py` | 20 | 3 | 1 | 0 | 2 | 33 % |",
        "| **judge**: a wrong verdict | 30 | 6 | 2 | 1 | 3 | 50 % |",
        "| **all together** | 30 | 6 | 2 | 1 | 3 | 50 % |",
    ]


def test_a_share_is_never_rounded_up() -> None:
    assert found(results("a.py", *["killed"] * 799, *["alive"] * 201)) == "799 of 1000 (79 %)"


def test_the_page_names_the_living_and_why_they_cannot_be_found() -> None:
    run = Run(1, "mutmut 3", {"a.py": 10, "b.py": 20}, MANY)
    page = text(run, PARTS, {"- 1\n+ a.py": "it is the same."}, "")
    assert "by seed 1, made by the rules of mutmut 3: 3 of 6 (50 %) were found." in page
    assert "Of the 3 that are alive 1 are equivalent." in page
    assert "`a.py`, f: equivalent, it is the same.\n\n```diff\n- 1\n+ a.py\n```" in page
    assert "`b.py`, f\n\n```diff\n- 1\n+ b.py\n```" in page


def test_another_draw_renews_its_line_and_nothing_else() -> None:
    one, two = (Run(seed, "mutmut 3", {"a.py": 10, "b.py": 20}, MANY[seed:]) for seed in (1, 2))
    page = text(one, PARTS, {}, "")
    after = with_other_draw(page, two)
    assert other_draw(after) == "Another draw: by seed 2 2 of 4 (50 %) were found."
    assert text(one, PARTS, {}, other_draw(after)) == after
    assert after.replace(other_draw(after), other_draw(page)) == page


FENCED = """
import sys
from pathlib import Path
from tests.mutants.fence import write_only_below
inside, outside = map(Path, sys.argv[1:])
try:
    write_only_below([inside])
except OSError:
    print("no Landlock")
    raise SystemExit
(inside / "a").write_text("a")
(inside / "a").rename(inside / "b")
for write in (lambda: (outside / "a").write_text("a"), lambda: (outside / "there").unlink()):
    try:
        write()
    except PermissionError:
        print("refused")
"""


def test_a_mutant_writes_nothing_outside_its_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "there").touch()
    words = [sys.executable, "-c", FENCED, inside, outside]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.check_output(words, cwd=ROOT, env=env, text=True)
    assert said in ("refused\nrefused\n", "no Landlock\n")
    assert [path.name for path in outside.iterdir()] == ["there"]
