"""A reboot, where one is needed: a newer kernel is installed than runs, or the distribution says so."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.changes.resources import NoPlan, Params, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.facts.host import KERNEL
from clusterprep.facts.kernel import INSTALLED, newest_waiting
from clusterprep.model import Inventory, Read
from clusterprep.model.operations import Reboot, StepAction
from clusterprep.model.units import parse_duration

LIMIT = 900.0  # seconds; servers with terabytes of memory take ten minutes to test it
MARKS = (
    "/run/reboot-required",
    "/var/run/reboot-required",
)  # written by packages of Debian and Ubuntu
COMMAND = ("systemctl", "reboot")
REQUIRED = Fact(
    "reboot:required",
    lambda node, inventory: tuple(Read("file", (path,)) for path in MARKS),
    lambda *texts: any(text is not None for text in texts),
)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (KERNEL, INSTALLED, REQUIRED)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    if "limit" in params:
        try:
            parse_duration(str(params["limit"]))
        except ValueError as error:
            yield "limit", str(error)


def why(known: PlanContext) -> str:
    """The reason for a reboot, empty without one."""
    running = str(known.facts[KERNEL.name])
    if newest := newest_waiting(running, known.facts[INSTALLED.name]):
        return f"kernel {running} runs, {newest} is installed"
    if known.facts[REQUIRED.name]:
        return "the distribution asks for it"
    if known.notified:
        return "a step asks for it"
    return "the kernel of a step before it" if known.awaits("kernel") else ""


def plan(params: Params, known: PlanContext) -> Iterable[StepAction]:
    reason = why(known)
    if reason and known.node.transport != "ssh":
        place = (
            "the machine that this runs on"
            if known.node.transport == "local"
            else "inside a job of Slurm"
        )
        raise NoPlan(
            "cannot", f"{known.node.name} has to be started anew ({reason}), and is {place}"
        )
    limit = parse_duration(str(params["limit"])) if "limit" in params else LIMIT
    operations = (Reboot(COMMAND, limit),) if reason else ()
    yield StepAction(known.node.name, "reboot", "the node", "reboot", operations, reason)


RESOURCE = StepResource("reboot", plan, facts=facts, wrong=wrong, texts=True, handles=True)
