"""One command about one inventory, with all that its stages need of the world."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timezone

from clusterprep.changes.playbook.steps import Step
from clusterprep.history.given import AppliedEnvironments
from clusterprep.history.runs import Runs
from clusterprep.model import ChangeRow, Inventory
from clusterprep.remote.transports import Transport
from clusterprep.remote.transports.link import Password
from clusterprep.runtime.budget import Budget
from clusterprep.runtime.deadline import Deadline
from clusterprep.runtime.lazy_dataclass import dataclass
from clusterprep.survey.fanout import Fanout, Watch
from clusterprep.survey.settings import RunSettings


@dataclass(frozen=True)
class Invocation:
    """One command about one inventory: what it needs of the world, and its name."""

    settings: RunSettings
    inventory: Inventory
    steps: tuple[Step, ...]
    transports: Mapping[str, Transport]
    password: Password
    watch: Watch
    deadline: Deadline
    confirm: Callable[[Sequence[ChangeRow]], bool]
    given: AppliedEnvironments
    runs: Runs
    run: str
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    clock: float = field(default_factory=time.monotonic)
    notices: list[str] = field(default_factory=list)
    budget: Budget | None = None

    def fanout(self) -> Fanout:
        return Fanout(
            self.inventory,
            self.transports,
            self.settings.forks,
            self.password,
            self.watch,
            self.budget,
        )


def new_run_name(now: datetime) -> str:
    """20261121-093000-4f2a: the last part is the share of the second, so that names sort by time to 15 µs."""
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond * 65536 // 1_000_000:04x}"
