"""What follows from a whole fleet and is asked for again and again is worked out once for each fleet. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from clusterprep.model import Fleet

Value = TypeVar("Value")


def once_per_fleet(function: Callable[[Fleet], Value]) -> Callable[[Fleet], Value]:
    """Keeps the answer of function(fleet) with the fleet; a fleet never changes, and a changed copy starts anew."""
    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def remembered(fleet: Fleet) -> Value:
        if name not in fleet.derived:
            fleet.derived[name] = function(fleet)
        value: Value = fleet.derived[name]
        return value

    return remembered
