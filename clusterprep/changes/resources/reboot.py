"""A reboot, where a newer kernel is installed than runs, or the distribution asks for one."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.changes.resources import NoPlan, Params, PlanContext, StepResource, time_limit
from clusterprep.facts import Fact
from clusterprep.facts.host import KERNEL
from clusterprep.facts.kernel import INSTALLED, newest_waiting
from clusterprep.model import Inventory, Read
from clusterprep.model.operations import Reboot, StepAction

LIMIT = 900.0  # seconds; servers with terabytes of memory take ten minutes to test it
# Files that packages of Debian and Ubuntu write.
MARKS = ("/run/reboot-required", "/var/run/reboot-required")
COMMAND = ("systemctl", "reboot")
REQUIRED = Fact(
    "reboot:required",
    lambda node, inventory: tuple(Read("file", (path,)) for path in MARKS),
    lambda *texts: any(text is not None for text in texts),
)


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (KERNEL, INSTALLED, REQUIRED)


def wrong(params: Params) -> Iterable[tuple[str, str]]:
    try:
        time_limit(params, LIMIT)
    except ValueError as error:
        yield "limit", str(error)


def reason_to_reboot(context: PlanContext) -> str:
    """Return the reason for a reboot, or an empty text."""
    running = str(context.facts[KERNEL.name])
    newest = newest_waiting(running, context.facts[INSTALLED.name])
    if newest:
        return f"kernel {running} runs, {newest} is installed"
    if context.facts[REQUIRED.name]:
        return "the distribution asks for it"
    if context.notified:
        return "a step asks for it"
    if context.awaits("kernel"):
        return "the kernel of a step before it"
    return ""


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    reason = reason_to_reboot(context)
    if reason:
        _refuse_unreachable(context, reason)
    limit = time_limit(params, LIMIT)
    operations = (Reboot(COMMAND, limit),) if reason else ()
    yield StepAction(
        context.node.name,
        "reboot",
        "the node",
        "reboot",
        operations,
        reason,
    )


def _refuse_unreachable(context: PlanContext, reason: str) -> None:
    """Raise NoPlan unless the node can be reached again over ssh after its reboot."""
    node = context.node
    if node.transport == "ssh":
        return
    place = "inside a job of Slurm"
    if node.transport == "local":
        place = "the machine that this runs on"
    raise NoPlan("cannot", f"{node.name} has to be started anew ({reason}), and is {place}")


RESOURCE = StepResource("reboot", plan, facts=facts, wrong=wrong, texts=True, handles=True)
