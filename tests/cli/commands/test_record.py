"""What a report gets from earlier runs when it is recorded."""

from __future__ import annotations

from pathlib import Path

from clusterprep.cli.commands.record import recorded
from clusterprep.cli.commands.session import Invocation
from clusterprep.history.applied import AppliedEnvironments
from clusterprep.history.runs import Runs
from clusterprep.model import Inventory, Node
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey.settings import RunSettings
from tests.history.test_blame import BEFORE, TODAY
from tests.support.commands import Quiet


def invocation(folder: Path) -> Invocation:
    return Invocation(
        settings=RunSettings("check"),
        inventory=Inventory("c", (Node("n1", "n1", 0), Node("n2", "n2", 1))),
        steps=(),
        transports={},
        password=lambda node: None,
        watch=Quiet(),
        deadline=Deadline(),
        confirm=lambda rows: True,
        applied=AppliedEnvironments(folder),
        runs=Runs(folder),
        run="r",
    )


def test_what_earlier_runs_tell_of_a_part_is_a_notice_and_is_recorded(tmp_path: Path) -> None:
    command = invocation(tmp_path)
    first = recorded(command, BEFORE)
    assert first.notices == ()
    second = recorded(command, TODAY)
    (notice,) = second.notices
    assert notice.startswith("GPU b in n2 0000:01:00.0 fails gpu.ecc_unc, as it did in n1")
    assert command.runs.report(TODAY.run).notices == second.notices
    assert second.since is not None
