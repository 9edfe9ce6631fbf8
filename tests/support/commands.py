"""The commands apply and rollback over agents without machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from clusterprep.cli.commands import apply, fix, plan, rollback
from clusterprep.cli.commands.session import Invocation
from clusterprep.cli.commands.stages import Trial, plan_survey
from clusterprep.history.applied import AppliedEnvironments
from clusterprep.history.runs import Runs
from clusterprep.model import Report, VerifyResult
from clusterprep.survey.selection import Selection
from clusterprep.survey.settings import RunSettings

if TYPE_CHECKING:
    from clusterprep.changes.playbook.steps import Step
    from clusterprep.survey.fanout import Fanout
    from tests.support.fake_agents import FakeAgents


class Quiet:
    """Progress that is kept for a look."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, name: str, total: int, nodes: Sequence[str] = ()) -> None:
        self.stages.append(name)

    def step(self, node: str, outcome: str, seconds: float | None = None) -> None: ...


@dataclass
class Command:
    """A command of three nodes without machines. `steps` are those of its playbook."""

    agents: FakeAgents
    invocation: Invocation
    trials: list[tuple[str, ...]]

    def apply(self, trial: Callable[..., Trial] | None = None) -> Report:
        query_plan = apply.survey_plan(self.invocation)
        fanout = cast("Fanout", self.agents)
        verify = trial or self._passing_trial
        with self.invocation.deadline:
            return apply.apply_changes(self.invocation, fanout, query_plan, verify)

    def plan(self) -> Report:
        settings = replace(self.invocation.settings, command="plan")
        invocation = replace(self.invocation, settings=settings)
        with invocation.deadline:
            return plan.planned_changes(invocation, cast("Fanout", self.agents))

    def fix(self, *, dry: bool = False) -> Report:
        settings = replace(self.invocation.settings, command="fix")
        invocation = replace(self.invocation, settings=settings, steps=())
        with invocation.deadline:
            return fix.cure(invocation, cast("Fanout", self.agents), dry=dry)

    def rollback(self) -> Report:
        settings = replace(self.invocation.settings, command="rollback")
        invocation = replace(self.invocation, settings=settings)
        query_plan = plan_survey(invocation, only=rollback.CHECKS)
        fanout = cast("Fanout", self.agents)
        with invocation.deadline:
            return rollback.roll_back_changes(invocation, fanout, query_plan)

    def _passing_trial(self, *values: Any) -> Trial:
        fleet = values[2]
        self.trials.append(tuple(node.name for node in fleet.reached))
        return Trial(result("pass"))


def result(verdict: str) -> VerifyResult:
    return VerifyResult(verdict, "gloo", 3, 1, "n1:29500")  # type: ignore[arg-type]


def new_command(
    folder: Path, agents: FakeAgents, steps: tuple[Step, ...], name: str, **settings: Any
) -> Command:
    """Return a command whose run has this name; `folder` keeps what the controller remembers."""
    chosen = {"verify": False, "selection": Selection(only=("ssh.reach",)), **settings}
    invocation = Invocation(
        settings=RunSettings("apply", **chosen),
        inventory=agents.inventory,
        steps=steps,
        transports={},
        password=lambda node: None,
        watch=Quiet(),
        deadline=agents.deadline,
        confirm=lambda rows: True,
        applied=AppliedEnvironments(folder),
        runs=Runs(folder),
        run=name,
        started=datetime(2026, 11, 21, tzinfo=timezone.utc),
    )
    return Command(agents, invocation, [])
