"""What all tests share: the lab's fixtures, and markers on what uses them and on what holds something to seconds."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["tests.lab.fixtures"]

LAB_FIXTURES = frozenset({"lab1", "lab4", "lab8", "slurm4", "make_lab"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the lab, so that `-m 'not lab'` leaves it out without anybody having to remember; and seconds."""
    for item in items:
        if LAB_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("lab")
        if looks_at_the_clock(item.path):
            item.add_marker("timed")


@functools.cache
def looks_at_the_clock(module: Path) -> bool:
    return "time.monotonic()" in module.read_text(encoding="utf-8")


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the commands of the tests remember is none of the user's history."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
