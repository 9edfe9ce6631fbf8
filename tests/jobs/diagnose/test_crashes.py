"""Jobs that their own program ended: which rank, which line, and what only follows from it."""

from __future__ import annotations

import pytest

from clusterprep.jobs.diagnose.model import Diagnosis
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose, needles
from clusterprep.jobs.diagnose.sources import TABLE
from tests.jobs.diagnose.crashes import PUBLIC, Seen


def told(text: str) -> Diagnosis:
    """The diagnosis of what reading keeps of a log."""
    wanted = needles()
    rows = text.splitlines()
    lines = [
        line_of("train.log", number, row, number)
        for number, row in enumerate(rows, 1)
        if any(needle in row.encode().translate(TABLE) for needle in wanted)
    ]
    return diagnose(lines, {"train.log": len(rows)})


@pytest.mark.parametrize("seen", PUBLIC, ids=lambda seen: seen.name)
def test_what_people_saw(seen: Seen) -> None:
    found = told(seen.log)
    top = found.causes[0]
    assert top.cause.name == seen.cause
    assert top.culprit in seen.culprits
    assert seen.said in top.message
    assert found.code == 1
