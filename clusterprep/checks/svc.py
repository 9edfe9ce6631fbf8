"""Services that the inventory requires."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from clusterprep.checks import Check, CheckContext, Outcome, Proof, by_value
from clusterprep.facts.services import parse_units

RUNNING = frozenset({"active", "reloading", "refreshing"})
CURES = {
    "not-found": "systemctl list-unit-files {unit} && systemctl enable --now {unit}   # install it first",
    "masked": "systemctl unmask {unit} && systemctl enable --now {unit}",
    "activating": "systemctl status {unit}   # it starts now, or again and again",
    "failed": "systemctl status {unit}; journalctl -u {unit} -n 50; systemctl restart {unit}",
}


def required(context: CheckContext) -> Iterable[Outcome]:
    """One finding for each unit and state; a node whose units all run passes."""
    states: dict[str, tuple[tuple[str, str], ...]] = context.values("svc.states")
    for unit in dict.fromkeys(name for found in states.values() for name, _ in found):
        mine = {node: dict(found)[unit] for node, found in states.items() if unit in dict(found)}
        for state, nodes in by_value(mine):
            if state not in RUNNING:
                cure = CURES.get(state, "systemctl enable --now {unit}").format(
                    unit=shlex.quote(unit)
                )
                yield Outcome(
                    "fail", nodes, f"{unit} does not run", f"{unit} {state}", f"{unit} active", cure
                )
    for node in context.nodes:
        found = states[node.name]
        if found and all(state in RUNNING for _, state in found):
            names = ", ".join(name for name, _ in found)
            yield Outcome(
                "pass",
                (node.name,),
                "what is required runs",
                names,
                context.wanted(node) or "active",
            )


REQUIRED = Check(
    "svc.required",
    facts=("svc.states",),
    judge=required,
    severity="warning",
    title="Services that must run",
    why="A node without its fabric manager, its time daemon or its Slurm daemon looks healthy until a job needs it.",
    how="`require: {svc.required: [sshd, chronyd]}`: systemctl show of all of them in one call; active passes.",
    remedy="systemctl enable --now UNIT",
    wants=parse_units,
    proof=Proof("svc.states", lambda states: tuple((unit, "failed") for unit, _ in states)),
)
