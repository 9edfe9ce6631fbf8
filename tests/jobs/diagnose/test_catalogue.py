"""Messages in the sources of NCCL, torch and gloo: each is a cause, harmless, or an echo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterprep.jobs.diagnose import echoes
from clusterprep.jobs.diagnose.forms import TABLE
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose, needles

ROWS = [
    json.loads(row) for row in Path(__file__).with_name("catalogue.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_the_message_is_known(row: dict[str, str]) -> None:
    line = line_of("log", 1, row["line"])
    told = diagnose([line]).causes
    assert told or echoes.meaning(line), line.message
    form = row["line"].encode().translate(TABLE)
    assert not told or any(needle in form for needle in needles()), "reading would drop it"


def test_each_message_stands_once() -> None:
    assert len({row["id"] for row in ROWS}) == len(ROWS) == 170


def test_what_says_nothing_is_few_enough_to_be_read_by_people() -> None:
    """A message that no cause knows has its reason in echoes.py. Most messages have a cause."""
    silent = [row["id"] for row in ROWS if not diagnose([line_of("log", 1, row["line"])]).causes]
    assert len(silent) < 60, silent
