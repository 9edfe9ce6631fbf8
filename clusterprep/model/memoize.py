"""Values that follow from a whole fleet are computed once for each fleet. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from clusterprep.model import Fleet, Lasting

Value = TypeVar("Value")


def once_per_fleet(function: Callable[[Fleet], Value]) -> Callable[[Fleet], Value]:
    """Return `function`, which keeps its result with the fleet.

    A fleet never changes. A changed copy of it computes the value again.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def remembered(fleet: Fleet) -> Value:
        if name not in fleet.derived:
            fleet.derived[name] = function(fleet)
        value: Value = fleet.derived[name]
        return value

    return remembered


def once_per_facts(
    *facts: str,
) -> Callable[[Callable[[Fleet], Value]], Callable[[Fleet], Value]]:
    """Return a decorator for a function that looks at these facts of the nodes alone.

    As with `once_per_fleet` its result is kept with the fleet; a copy to which other facts were
    added (`Fleet.with_facts`) has it too.
    """
    looked_at = frozenset(facts)

    def decorated(function: Callable[[Fleet], Value]) -> Callable[[Fleet], Value]:
        name = f"{function.__module__}.{function.__qualname__}"

        @functools.wraps(function)
        def remembered(fleet: Fleet) -> Value:
            if name not in fleet.lasting:
                fleet.lasting[name] = Lasting(function(fleet), looked_at)
            value: Value = fleet.lasting[name].value
            return value

        return remembered

    return decorated
