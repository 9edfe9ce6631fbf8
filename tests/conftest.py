"""What all tests share: the lab's fixtures, the rule for markers, and the totals of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest_plugins = ["tests.lab.fixtures", "tests.totals"]

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


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the history of commands that tests run apart from the user's own history."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
