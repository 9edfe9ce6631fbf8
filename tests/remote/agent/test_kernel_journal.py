"""The reader of the journal, on journals that systemd-journal-remote wrote."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from clusterprep.facts.kernel_log import DAYS, PHRASES, parse_log
from clusterprep.model import Absent
from tests.machines.play import needs_chroot
from tests.support import journals
from tests.support.journals import OTHER_BOOT, Entry, uptime
from tests.support.kernel_lines import RULES

pytestmark = [
    pytest.mark.machine,
    needs_chroot,
    pytest.mark.skipif(shutil.which("journalctl") is None, reason="there is no journalctl"),
]
needs_writer = pytest.mark.skipif(
    journals.journal_remote() is None,
    reason="journals are written by systemd-journal-remote, which is a package of its own",
)
ARGUMENTS = (DAYS, PHRASES, RULES)
DAY = 86400.0
FALLEN = "NVRM: Xid (PCI:0000:2a:00): 79, GPU has fallen off the bus."
DOUBLE_BIT = (
    "NVRM: Xid (PCI:0000:2b:00): 48, pid=1, name=python3, An uncorrectable double bit error"
)
HARMLESS = "usb 1-1: a line that does not matter"


def told(folder: Path, entries: list[Entry], ring: str = "") -> Any:
    journals.write(folder / "journal", entries)
    status, value = journals.read(folder, ARGUMENTS, ring)
    assert status == "ok", value
    return value


@needs_writer
def test_lines_of_this_boot_and_of_earlier_ones_come_home_apart(tmp_path: Path) -> None:
    value = told(
        tmp_path,
        [
            Entry("Linux version 6.8.0", 30 * DAY, OTHER_BOOT),
            Entry(FALLEN, 8 * DAY, OTHER_BOOT),  # too long ago
            Entry(FALLEN, 2 * DAY, OTHER_BOOT),
            Entry(HARMLESS, 5.0),
            Entry(DOUBLE_BIT, 4.0),
            Entry(DOUBLE_BIT, 3.0),
        ],
    )
    before, mine = value["records"]
    assert (before[0], before[3:5], before[6]) == (False, [4, 1], FALLEN)
    assert (mine[0], mine[3:5], mine[6]) == (True, [4, 2], DOUBLE_BIT)
    assert value["now"] - before[1] == pytest.approx(2 * DAY, abs=30)
    assert mine[2] == pytest.approx(uptime() - 3, abs=30)
    assert mine[1] - mine[5] == pytest.approx(1.0, abs=0.1)
    assert value["lines"] == 3
    assert value["from"] <= 0


@needs_writer
def test_a_journal_that_begins_in_this_boot_says_since_when_it_tells(tmp_path: Path) -> None:
    value = told(tmp_path, [Entry(HARMLESS, 60.0), Entry(HARMLESS, 5.0)])
    assert value["from"] == pytest.approx(uptime() - 60, abs=30)


@needs_writer
def test_what_the_ring_has_too_is_counted_and_not_sent_again(tmp_path: Path) -> None:
    begins = int((uptime() - 10) * 1e6)
    value = told(
        tmp_path,
        [Entry(FALLEN, 20.0), Entry(DOUBLE_BIT, 5.0)],
        f"6,7000,{begins},-;the oldest\n",
    )
    assert [row[6] for row in value["records"]] == [FALLEN]
    assert value["lines"] == 2


@needs_writer
def test_lines_of_processes_and_of_other_parts_of_the_journal_do_not_count(tmp_path: Path) -> None:
    value = told(
        tmp_path,
        [
            Entry(FALLEN, 5.0, more=(("SYSLOG_FACILITY", "3"),)),
            Entry(FALLEN, 4.0, more=(("_TRANSPORT", "syslog"),)),
        ],
    )
    assert value["records"] == []
    assert value["lines"] == 1


@needs_writer
def test_a_message_that_is_no_text_is_read_all_the_same(tmp_path: Path) -> None:
    """Journalctl prints such a message as a list of its bytes."""
    value = told(tmp_path, [Entry(f"{FALLEN} \x01", 5.0)])
    assert [row[6] for row in value["records"]] == [f"{FALLEN} \x01"]


@needs_writer
def test_the_log_of_a_real_journal_covers_what_the_ring_lost(tmp_path: Path) -> None:
    begins = int((uptime() - 10) * 1e6)
    ring = {"now": uptime(), "first": [7000, begins / 1e6], "records": [], "cut": {}}
    entries = [Entry(HARMLESS, uptime() + DAY, OTHER_BOOT), Entry(FALLEN, 20.0)]
    journal = told(tmp_path, entries, f"6,7000,{begins},-;the oldest\n")
    log = parse_log(ring, journal)
    assert not isinstance(log, Absent)
    assert (log.whole, [record.text for record in log.records]) == (True, [FALLEN])


@needs_writer
@pytest.mark.slow
def test_a_long_journal_is_read_from_its_end_and_within_its_time(tmp_path: Path) -> None:
    entries = [
        Entry(f"{HARMLESS} {number}", 3 * DAY - number, OTHER_BOOT) for number in range(200000)
    ]
    entries.append(Entry(FALLEN, 5.0))
    start = time.monotonic()
    value = told(tmp_path, entries)
    assert time.monotonic() - start < 60
    assert [row[6] for row in value["records"]] == [FALLEN]
    assert value["from"] <= 0, "what was not read is of an earlier boot"


def test_a_machine_without_a_journal_says_so(tmp_path: Path) -> None:
    status, reason, why = journals.read(tmp_path, ARGUMENTS)
    assert (status, reason) == ("no", "missing_tool")
    assert "journal" in why


@needs_writer
@pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to become another user")
def test_who_may_not_read_the_journal_is_told(tmp_path: Path) -> None:
    journals.write(tmp_path / "journal", [Entry(FALLEN, 5.0)])
    for path in (tmp_path / "journal").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o640)
    (tmp_path / "journal").chmod(0o755)
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    status, reason, why = journals.read(tmp_path, ARGUMENTS, user=nobody)
    assert (status, reason) == ("no", "denied")
    assert "systemd-journal" in why
