"""The journal of runs: read as the agent answers it, and garbled where it could hide one."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.journal import Journal, JournalEntry
from tests.support.fleet import learned

RUN = "20261121-093000-4f2a"


def row(**fields: Any) -> list[Any]:
    return list({"run": RUN, "cluster": "demo", "state": "done", **fields}.values())


def test_runs_come_with_their_states_and_the_holder_of_the_lock() -> None:
    raw = {
        "runs": [row(), row(run="2", state="staged")],
        "holder": "run 2 of cluster demo, since now",
    }
    found = learned("state.journal", ["ok", raw])
    assert found == Journal(
        (JournalEntry(RUN, "demo", "done"), JournalEntry("2", "demo", "staged")), raw["holder"]
    )
    assert found.unsettled == (JournalEntry("2", "demo", "staged"),)
    assert (found.state(RUN), found.state("3")) == ("done", None)


def test_no_run_is_knowledge() -> None:
    assert learned("state.journal", ["ok", {"runs": [], "holder": None}]) == Journal()


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"runs": []},
        {"runs": None, "holder": None},
        {"runs": [row(state="finished")], "holder": None},
        {"runs": [row(state="don")], "holder": None},
        {"runs": [row(run=None)], "holder": None},
        {"runs": [row()[:2]], "holder": None},
        {"runs": [row()], "holder": ""},
        {"runs": [row()], "holder": 1},
    ],
)
def test_what_could_hide_a_run_is_not_known(raw: object) -> None:
    assert learned("state.journal", ["ok", raw]).reason == "garbled"


@pytest.mark.parametrize("reason", ["denied", "hung", "timed_out"])
def test_a_journal_that_was_not_read_is_not_known(reason: str) -> None:
    assert learned("state.journal", ["no", reason, "why"]).reason == reason
