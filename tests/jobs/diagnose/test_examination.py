"""Logs of real failures and others, labelled by people who did not write the rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from clusterprep.cli.main import cli
from tests.jobs.diagnose.examination import (
    RECORDED,
    Case,
    Mark,
    marked,
    others,
    recorded,
    same_culprit,
    table,
)

examined = pytest.mark.skipif(
    cli.commands["diagnose"].hidden, reason="`clusterprep diagnose` is not built yet"
)
LEAST = (
    0.95,
    0.90,
)  # shares of causes and culprits that have to be right of what real jobs printed
REACHED = (0.95, 0.90)  # and of the others: what was reached, to be raised with it


def judge(marks: Sequence[Mark], causes: float, culprits: float) -> None:
    shown = table(marks)
    print(shown)
    assert sum(mark.right for mark in marks) >= causes * len(marks), shown
    assert sum(mark.right_culprit for mark in marks) >= culprits * len(marks), shown


@examined
def test_what_real_jobs_printed() -> None:
    judge([marked(case) for case in recorded()], *LEAST)


@examined
def test_what_people_report(tmp_path: Path) -> None:
    judge([marked(case) for case in others(tmp_path)], *REACHED)


@examined
def test_nothing_harmless_is_called_a_failure(tmp_path: Path) -> None:
    harmless = [case for case in [*recorded(), *others(tmp_path)] if case.severity == "benign"]
    assert len(harmless) >= 10
    assert [mark.case.name for mark in map(marked, harmless) if mark.code not in (0, 3)] == []


def names() -> set[str]:
    return {path.name for path in RECORDED.glob("*.log")}


def test_every_recording_belongs_to_a_case_and_every_case_has_its_files() -> None:
    cases: list[Case] = list(recorded())
    assert {path.name for case in cases for path in case.files} == names()
    assert len({case.name for case in cases}) == len(cases) >= 20


def test_the_labels_are_of_the_vocabulary_and_cover_it(tmp_path: Path) -> None:
    """Every cause is known and occurs, and without a known cause nothing is to blame."""
    cases = [*recorded(), *others(tmp_path)]
    assert {case.severity for case in cases} == {"fatal", "degraded", "benign", "unknown"}
    for case in cases:
        assert (case.cause is None) <= (case.culprits[0] is None), case.name
        assert case.cause is not None or case.severity in {"benign", "unknown"}, case.name
    assert len({case.cause for case in cases} - {None}) == 47


def test_a_culprit_is_what_the_text_before_it_shows(tmp_path: Path) -> None:
    """No label names what its log does not contain."""
    for case in [*recorded(), *others(tmp_path)]:
        log = "\n".join([path.name + path.read_text() for path in case.files]).lower()
        for culprit in filter(None, case.culprits):
            word = culprit.split()[-1].lower()
            assert word in log, (case.name, culprit)


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        (None, None, True),
        (None, "rank 3", False),
        ("rank 3", None, False),
        ("rank 3", "rank 3 on host n2", True),
        ("rank 3", "ranks 3, 4", False),
        ("rank 3", "rank 33", False),
        ("ranks 2, 3", "ranks 2 and 3 on device 41000", True),
        ("interface eth7", "interface eth7 of gpu-h14", True),
        ("interface eth7", "interface eth70", False),
        ("host n2", "n2.cluster.local", True),
        ("GPU 0000:5d:00", "GPU 5d:00.0 of a100-n08", True),
        ("GPU 0000:5d:00", "GPU 0000:5e:00", False),
        ("port 29500", "port 29500", True),
    ],
)
def test_which_culprits_are_the_same(wanted: str | None, got: str | None, same: bool) -> None:
    assert same_culprit(wanted, got) is same


def test_logs_of_other_faults_are_short_and_different() -> None:
    rows = [
        json.loads(line)
        for line in Path(__file__).with_name("others.jsonl").read_text().splitlines()
    ]
    assert len({row["id"] for row in rows}) == len(rows) >= 40
    assert all(3 <= len(row["log"].splitlines()) <= 40 for row in rows)
    assert len({row["log"] for row in rows}) == len(rows)
    assert all(row["evidence"] for row in rows)
