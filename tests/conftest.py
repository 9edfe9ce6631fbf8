"""What all tests share: their surroundings, the lab's fixtures, the rule for markers, and the totals of a run."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.surroundings", "tests.lab.fixtures", "tests.totals"]

LAB_FIXTURES = frozenset({"lab1", "lab4", "lab8", "slurm4", "make_lab"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests that use lab hosts and do not carry the marker, which `make test` goes by."""
    unmarked = [
        item.nodeid
        for item in items
        if LAB_FIXTURES & set(getattr(item, "fixturenames", ())) and item.get_closest_marker("hosts") is None
    ]
    if unmarked:
        listed = "\n  ".join(unmarked)
        raise pytest.UsageError(f"These tests use lab hosts. Mark them with @pytest.mark.hosts:\n  {listed}")
