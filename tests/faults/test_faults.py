"""Every fault is found by its check, on its host, and no other host is blamed.

Healthy hosts are blamed for nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import pytest

from clusterprep.remedies import has_placeholder, unpack
from tests.faults import STAGES, row, seen
from tests.faults.__main__ import DOCUMENT
from tests.faults.row import Run, Stage
from tests.support.lab import Lab

RUNS = [
    pytest.param(
        stage,
        run,
        id=f"{stage.name}-{n}",
        marks=[pytest.mark.slow] if any(placed.row.slow for placed in run) else [],
    )
    for stage in STAGES
    for n, run in enumerate(row.runs(stage))
]


@pytest.fixture(scope="module")
def theatre(lab8: Lab) -> Iterator[seen.Theatre]:
    """The lab's hosts, made into what a stage wants."""
    with contextlib.closing(seen.Theatre(lab8)) as made:
        yield made


@pytest.mark.hosts
@pytest.mark.parametrize(("stage", "run"), RUNS)
def test_a_faulty_node_is_blamed_and_no_other(
    stage: Stage, run: Run, theatre: seen.Theatre, seen_faults: list[seen.Seen]
) -> None:
    if reason := stage.missing():
        pytest.skip(reason)
    theatre.set(stage)
    answer = seen.asked(theatre.lab, stage, run)
    wrong = seen.unlike(answer, stage, run)
    assert not wrong, "\n".join([*(f"{p.host}: {p.row.name}" for p in run), "", *wrong])
    remedies = {finding["remedy"] for finding in answer.report["findings"]}
    # As if each was a line to be pasted: the report does not say which are.
    assert not [text for text in remedies if has_placeholder(unpack([text, True, ""]))]
    seen_faults += [seen.found(stage, placed, answer) for placed in run]


def test_nearly_every_fault_is_one_finding() -> None:
    """What the runs on hosts hold each row to: one finding counts, but for the checks `apart`."""
    ill = [one for stage in STAGES for one in stage.rows if one.verdict != "pass"]
    several = [one.name for one in ill if one.apart]
    assert len(several) <= 0.05 * len(ill), several
    for one in ill:
        assert set(one.apart) <= set(one.also), one.name


def test_there_are_as_many_faults_as_promised() -> None:
    ill = [one for stage in STAGES for one in stage.rows if one.verdict != "pass"]
    counts = Counter(one.mechanism for one in ill)
    assert counts["real"] >= 35, counts
    assert counts.total() >= 60, counts
    assert len({one.name for one in ill}) == len(ill)


def test_the_page_of_faults_has_them_all() -> None:
    page = DOCUMENT.read_text().splitlines()
    rows = {
        tuple(cell.strip(" `") for cell in line.split("|")[1:3])
        for line in page
        if line.startswith("|")
    }
    missing = [
        one.name for stage in STAGES for one in stage.rows if (one.name, one.check) not in rows
    ]
    assert not missing, "python -m tests.faults --write"
