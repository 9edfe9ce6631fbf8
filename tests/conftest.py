"""What all tests share: surroundings, fixtures of the lab, rules for markers, totals of a run."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.support.surroundings",
    "tests.support.lab.fixtures",
    "tests.support.totals",
]

LAB_FIXTURES = frozenset({"lab1", "lab4", "lab8", "slurm4", "make_lab"})

# How long an example takes is a matter of the machine's load; the time limit of a test ends one
# that hangs. And how often one gets too large is a matter of luck.
LUCK = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("any-machine", deadline=None, suppress_health_check=LUCK)
settings.load_profile("any-machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests that use lab hosts and do not carry the marker, which `make test` goes by."""
    unmarked = [
        item.nodeid
        for item in items
        if LAB_FIXTURES & set(getattr(item, "fixturenames", ()))
        and item.get_closest_marker("hosts") is None
    ]
    if unmarked:
        listed = "\n  ".join(unmarked)
        raise pytest.UsageError(
            f"These tests use lab hosts. Mark them with @pytest.mark.hosts:\n  {listed}"
        )
