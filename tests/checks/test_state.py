"""Journals that are settled, that were cut off, and that a run works on."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.journal import DamagedRun, Journal, JournalEntry
from tests.support.fleet import absent, findings, fleet, same, told

R1, R2 = "20261121-093000-4f2a", "20261121-101500-0001"
HOLDER = f"run {R2} of cluster demo, since 2026-11-21 10:15:00 +0000"


def journal(*states: str, holder: str | None = None) -> Journal:
    return Journal(
        tuple(
            JournalEntry(run, "demo", state) for run, state in zip((R1, R2), states, strict=False)
        ),
        holder,
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(journal(), "pass", id="never-written-to"),
        pytest.param(journal("done", "undone"), "pass", id="settled"),
        pytest.param(journal("done", "done", holder=HOLDER), "pass", id="a-run-has-the-lock"),
        pytest.param(journal("done", "staged"), "fail error", id="staged"),
        pytest.param(journal("committed", "done"), "fail error", id="committed-before-another"),
        pytest.param(journal("lost"), "fail error", id="the-node-was-lost"),
        pytest.param(journal("done", "committed", holder=HOLDER), "pass", id="at-work"),
        pytest.param(
            journal("committed", "staged", holder=HOLDER), "skip busy", id="another-is-at-work"
        ),
        pytest.param(absent("denied"), "unknown error denied", id="denied"),
        pytest.param(absent("hung"), "unknown error hung", id="hung"),
        pytest.param(absent("garbled"), "unknown error garbled", id="garbled"),
    ],
)
def test_a_run_that_was_cut_off_is_told(found: Any, expected: str) -> None:
    assert told(fleet(**same("state.journal", found)), "state.journal") == {"n1": expected}


def test_a_damaged_record_is_told_with_its_file_and_the_one_command_that_mends_it() -> None:
    """Also where another run was cut off: the first command that mends anything is named alone."""
    empty = DamagedRun(R1, f"/var/lib/clusterprep/runs/{R1}/manifest.json cannot be read: …")
    for others in ((), journal("committed").entries):
        found = Journal(others, None, (empty,))
        (bad,) = findings(fleet(**same("state.journal", found)), "state.journal")
        assert (bad.verdict, bad.severity, bad.seen) == ("fail", "error", empty.why)
        assert bad.remedy.endswith(" --force")
        assert bad.remedy.note.startswith("moves the record aside")
        assert "apply" not in bad.remedy


def test_the_run_and_the_way_out_are_named() -> None:
    (bad,) = findings(fleet(**same("state.journal", journal("done", "committed"))), "state.journal")
    assert bad.seen == f"run {R2} of cluster demo is committed"
    assert not bad.remedy.is_command
    assert "inventory of cluster demo" in bad.remedy


def test_the_run_is_named_so_that_a_second_paste_undoes_no_other() -> None:
    """Once it is settled, a rollback without a name would undo the run before it."""
    found = Journal((JournalEntry(R1, "test", "done"), JournalEntry(R2, "test", "committed")))
    (bad,) = findings(fleet(**same("state.journal", found)), "state.journal")
    assert bad.remedy.is_command
    assert bad.remedy.endswith(f" --run {R2}")
    assert bad.remedy.startswith("clusterprep rollback ")
