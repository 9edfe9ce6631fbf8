"""Logs derived from public threads, labelled: top cause, culprit, and no failure in good logs.

They were made for this project from what people posted; names, addresses and numbers in them are
invented. The rules were written before most of them were looked at: of the second half 17 of 21
causes and 14 of 21 culprits were right at first sight.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

from clusterprep.jobs.diagnose.command import diagnose
from clusterprep.jobs.diagnose.model import Diagnosis

CASES: list[dict[str, Any]] = [
    json.loads(row) for row in Path(__file__).with_name("threads.jsonl").read_text().splitlines()
]


def told(case: dict[str, Any]) -> Diagnosis:
    return diagnose(["-"], stdin=io.BytesIO(case["log"].encode()))[0]


def right_cause(case: dict[str, Any], diagnosis: Diagnosis) -> bool:
    if not diagnosis.causes:
        return False
    first = diagnosis.causes[0]
    if case["severity"] == "benign" and first.severity != "benign":
        return False
    return first.cause.name in {case["cause"], *case["also_acceptable"]}


def right_culprit(case: dict[str, Any], diagnosis: Diagnosis) -> bool:
    """Both name nothing, or they have a name in common: a host, rank, port or device."""
    wanted, got = case["culprit"], diagnosis.causes[0].culprit if diagnosis.causes else None
    if wanted is None or got is None:
        return wanted is got
    return wanted == got or bool(_names(wanted) & _names(got))


def _names(text: str) -> set[str]:
    return {word for word in re.findall(r"[\w.:/-]+", text) if re.search(r"\d|/", word)}


def test_the_top_cause_is_right() -> None:
    wrong = [case["id"] for case in CASES if not right_cause(case, told(case))]
    assert len(CASES) == 41
    assert len(wrong) <= 0.05 * len(CASES), wrong


def test_the_culprit_is_right_or_rightly_nobody() -> None:
    wrong = [case["id"] for case in CASES if not right_culprit(case, told(case))]
    assert len(wrong) <= 0.10 * len(CASES), wrong


def test_nothing_harmless_is_called_a_failure() -> None:
    harmless = [case for case in CASES if case["severity"] == "benign"]
    assert len(harmless) >= 5
    assert [case["id"] for case in harmless if told(case).code not in (0, 3)] == []
