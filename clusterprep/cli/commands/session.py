"""One command about one inventory: its settings and what its stages need from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone

from msgspec import Struct, field

from clusterprep.changes.playbook.steps import Step
from clusterprep.history.applied import AppliedEnvironments
from clusterprep.history.runs import Runs
from clusterprep.model import ChangeRow, Inventory
from clusterprep.remote.transports import Transport
from clusterprep.remote.transports.link import Password
from clusterprep.runtime.budget import Budget
from clusterprep.runtime.deadline import Deadline
from clusterprep.survey.fanout import Fanout, Watch
from clusterprep.survey.settings import RunSettings


class Invocation(Struct, frozen=True):
    """One run of one command. `run` is its name, `notices` collects sentences for its report.

    `meanwhile` is called once, while the first nodes are logged in to.
    `finished` has those of them that say what became of earlier runs on the nodes. They are said
    also if the command ends with an error.
    """

    settings: RunSettings
    inventory: Inventory
    steps: tuple[Step, ...]
    transports: Mapping[str, Transport]
    password: Password
    watch: Watch
    deadline: Deadline
    confirm: Callable[[Sequence[ChangeRow]], bool]
    applied: AppliedEnvironments
    runs: Runs
    run: str
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    clock: float = field(default_factory=time.monotonic)  # when the command began
    notices: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    budget: Budget | None = None
    meanwhile: Callable[[], object] | None = None

    @property
    def runs_all_reduce(self) -> bool:
        """True if this command ends with the all-reduce, unless a finding blocks it."""
        if self.settings.command == "verify":
            return True
        return self.settings.command == "apply" and self.settings.verify

    @property
    def keeps_known(self) -> bool:
        """Whether what is known is reported when the time limit ends this command.

        A budget ends its stages by itself before that. An acceptance does so at a signal too.
        """
        if self.settings.accept_for is not None:
            return True
        return self.settings.command in ("apply", "fix", "check") and self.budget is None

    @property
    def seconds(self) -> float:
        """Seconds since the command began, to the millisecond."""
        return round(time.monotonic() - self.clock, 3)

    def fanout(self) -> Fanout:
        """Return the connections to all nodes; they are opened when it is asked to survey."""
        fanout = Fanout(
            self.inventory,
            self.transports,
            self.settings.forks,
            self.password,
            self.watch,
            self.budget,
            self.deadline,
        )
        fanout.meanwhile = self.meanwhile
        return fanout


def new_run_name(now: datetime) -> str:
    """Return a name such as 20261121-093000-4f2a.

    The last part is the fraction of the second in 1/65536, so names sort by time to 15 µs.
    """
    fraction = now.microsecond * 65536 // 1_000_000
    return f"{now:%Y%m%d-%H%M%S}-{fraction:04x}"
