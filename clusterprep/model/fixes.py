"""What would cure a finding, as data: states of the playbook's resources, and no code. Pure.

A check says it beside its remedy; `clusterprep fix` makes steps of it. The remedy is for people,
and stays true where nothing here applies.

    fix_of(wanted_state("limits", memlock="unlimited"))
    fix_of(wanted_state("package", name="chrony"), wanted_state("clock"))
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class WantedState(Struct, frozen=True):
    """A resource of playbooks with its parameters, as pairs of name and value."""

    resource: str
    params: tuple[tuple[str, Any], ...] = ()


class Fix(Struct, frozen=True):
    """The states that cure a finding on each of its nodes, in the order in which they are made.

    With `everywhere` all nodes get them: what must be equal in a job is never written on some.
    """

    states: tuple[WantedState, ...]
    everywhere: bool = False


def wanted_state(resource: str, /, **params: Any) -> WantedState:
    """Return a state of a resource."""
    return WantedState(resource, tuple(params.items()))


def fix_of(*states: WantedState, everywhere: bool = False) -> Fix:
    """Return the fix that consists of these states."""
    return Fix(states, everywhere)
