"""The first look of a watch compares counters with what recorded runs saw of a node."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from clusterprep.cli.commands import watch
from clusterprep.cli.commands.session import Invocation
from clusterprep.errors import Interrupted
from clusterprep.facts.counters import Earlier
from clusterprep.history.applied import AppliedEnvironments
from clusterprep.history.runs import Runs, packed
from clusterprep.model import Inventory, Node, NodeSnapshot, Report
from clusterprep.model.history import RecordedRun
from clusterprep.remote.transports.local import LocalTransport
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey.selection import Selection
from clusterprep.survey.settings import RunSettings
from tests.support.commands import Quiet

AGO = 700.0  # seconds; a sample of less than ten minutes ago tells no rate
NODE = "n1"


def record(runs: Runs) -> None:
    """Write a run of this machine in its present boot to the history."""
    started = f"{datetime.now(timezone.utc) - timedelta(seconds=AGO):%Y-%m-%dT%H:%M:%SZ}"
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    facts = {
        "host.boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "host.uptime": uptime - AGO,
        "ib.counters": {},
    }
    rows = (NodeSnapshot(NODE, "", True, facts=facts),)
    report = Report("check", "r", "test", started, 1.0, "pass", 0, rows)
    line = RecordedRun("r", "check", "test", "", started, 1.0, "pass", 0, 1, 1, 0, 0, 0)
    runs.record(packed(report, line))


def first_look(folder: Path) -> watch.Look:
    """Watch this machine for one look."""
    deadline = Deadline()
    invocation = Invocation(
        settings=RunSettings("watch", selection=Selection(only=("ib.counters",))),
        inventory=Inventory("test", (Node(NODE, "127.0.0.1", 0, transport="local"),)),
        steps=(),
        transports={"local": LocalTransport()},
        password=lambda node: None,
        watch=Quiet(),
        deadline=deadline,
        confirm=lambda rows: True,
        applied=AppliedEnvironments(folder),
        runs=Runs(folder),
        run="20261121-090000-0000",
    )
    looks: list[watch.Look] = []

    def tell(look: watch.Look) -> None:
        looks.append(look)
        deadline.stop(Interrupted("enough"))

    with deadline, pytest.raises(Interrupted):
        watch.run(
            invocation,
            60.0,
            watch.plan_watch(invocation),
            tell,
        )
    (look,) = looks
    return look


def test_counters_are_compared_with_the_newest_run(tmp_path: Path) -> None:
    record(Runs(tmp_path))
    earlier = first_look(tmp_path).fleet.fact(NODE, "counters.earlier")
    assert isinstance(earlier, Earlier)
    assert earlier.recent.seconds >= AGO


def test_without_a_run_what_they_were_is_not_known(tmp_path: Path) -> None:
    assert first_look(tmp_path).fleet.fact(NODE, "counters.earlier") is None
