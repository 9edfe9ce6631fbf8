"""Judges the services that the inventory requires."""

from __future__ import annotations

from collections.abc import Iterable

from clusterprep.checks import (
    Check,
    CheckContext,
    Outcome,
    Proof,
    about_all,
    by_value,
    names_of,
    passed,
)
from clusterprep.facts.services import parse_units
from clusterprep.model.fixes import Fix, fix_of, wanted_state
from clusterprep.remedies import placed, shell_line

RUNNING = frozenset({"active", "reloading", "refreshing"})
ENABLE = shell_line("systemctl enable --now UNIT")
CURES = {
    "not-found": shell_line(
        "systemctl list-unit-files UNIT && systemctl enable --now UNIT   # install it first"
    ),
    "masked": shell_line("systemctl unmask UNIT && systemctl enable --now UNIT"),
    "activating": shell_line("systemctl status UNIT   # it starts now, or again and again"),
    "failed": shell_line("systemctl status UNIT; journalctl -u UNIT -n 50; systemctl start UNIT"),
}
UnitStates = tuple[tuple[str, str], ...]
"""Name and state of each unit, in the order required."""


def required(context: CheckContext) -> Iterable[Outcome]:
    """Yield a failure for each unit and state; a node whose units all run passes."""
    for unit, states in _states_by_unit(context).items():
        for present, names in by_value(states):
            if present not in RUNNING:
                yield _not_running(unit, present, names)
    for nodes in context.alike():
        units: UnitStates = context.value(nodes[0], "svc.states")
        if units and all(present in RUNNING for _, present in units):
            seen = ", ".join(unit for unit, _ in units)
            wanted = context.wanted(nodes[0]) or "active"
            outcome = passed(nodes[0], "what is required runs", seen, wanted)
            yield from about_all(nodes, [outcome])


def _states_by_unit(context: CheckContext) -> dict[str, dict[str, str]]:
    """Return the state of each unit on each node that requires it."""
    states: dict[str, dict[str, str]] = {}
    for nodes in context.alike():
        units: UnitStates = context.value(nodes[0], "svc.states")
        for unit, present in units:
            states.setdefault(unit, {}).update(dict.fromkeys(names_of(nodes), present))
    return states


def _not_running(unit: str, present: str, names: tuple[str, ...]) -> Outcome:
    """Return the failure of a unit on the nodes on which it is in one state."""
    cure = placed(CURES.get(present, ENABLE), UNIT=unit)
    message = f"{unit} does not run"
    seen = f"{unit} {present}"
    wanted = f"{unit} active"
    return Outcome(
        "fail",
        names,
        message,
        seen,
        wanted,
        cure,
        fix=_fix(unit, present),
    )


def _fix(unit: str, present: str) -> Fix | None:
    """Return what starts a unit, None for one that starts already, or again and again."""
    if present == "activating":
        return None
    return fix_of(wanted_state("service", name=unit, enabled=True, running=True))


REQUIRED = Check(
    "svc.required",
    facts=("svc.states",),
    judge=required,
    severity="warning",
    title="Services that must run",
    why="A node without its fabric manager, its time daemon or its Slurm daemon looks healthy "
    "until a job needs it.",
    how="`require: {svc.required: [sshd, chronyd]}`: systemctl show of all of them in one call; "
    "active passes.",
    remedy=ENABLE,
    wants=parse_units,
    proof=Proof("svc.states", lambda states: tuple((unit, "failed") for unit, _ in states)),
)
