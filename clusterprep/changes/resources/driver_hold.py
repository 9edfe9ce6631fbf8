"""The packages of the NVIDIA driver, kept at their version: no upgrade takes the driver away."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from clusterprep.changes.package_managers import apt
from clusterprep.changes.resources import NoPlan, Params, Part, PlanContext, StepResource
from clusterprep.facts import Fact
from clusterprep.facts.packages import DRIVER, DriverPackages
from clusterprep.model import Absent, Inventory
from clusterprep.model.operations import RunCommand, StepAction
from clusterprep.remedies import shell_line


def facts(params: Params, inventory: Inventory) -> tuple[Fact, ...]:
    return (DRIVER,)


def parts(params: Params, inventory: Inventory) -> tuple[Part, ...]:
    return (("driver_hold", ""),)


def plan(params: Params, context: PlanContext) -> Iterable[StepAction]:
    packages: DriverPackages | Absent = context.facts[DRIVER.name]
    operations: tuple[RunCommand, ...] = ()
    diff = ""
    if isinstance(packages, Absent):
        if packages.reason != "not_applicable":
            raise NoPlan(packages.reason, packages.detail)
    elif packages.loose:
        if packages.manager != "apt":
            cure = shell_line("dnf versionlock add {names}", names=packages.loose)
            raise NoPlan("cannot", f"packages of {packages.manager} are held by hand: {cure}")
        operations = (_hold(packages.loose),)
        diff = "\n".join(f"hold {name}" for name in packages.loose)
    yield StepAction(
        context.node.name,
        "driver_hold",
        "NVIDIA driver",
        "update",
        operations,
        diff,
    )


def _hold(names: tuple[str, ...]) -> RunCommand:
    return replace(apt.hold(names), undo=(apt.release(names),))


RESOURCE = StepResource("driver_hold", plan, facts=facts, parts=parts, inapplicable=True)
