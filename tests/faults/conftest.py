"""The lab that the faults share, and the table of what was found, at the end of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.row import HOSTS
from tests.faults.seen import Seen
from tests.faults.table import lines
from tests.support import real_nccl
from tests.support.lab import Lab
from tests.support.lab.fixtures import require_lab

SEEN = pytest.StashKey[list[Seen]]()


@pytest.fixture(scope="module")
def lab8() -> Iterator[Lab]:
    """Eight hosts whose clocks follow a source."""
    require_lab()
    with Lab(HOSTS, real_nccl.kept(), chrony=True) as lab:
        lab.wait_time_sync()
        yield lab


@pytest.fixture(scope="session")
def seen_faults(request: pytest.FixtureRequest) -> list[Seen]:
    """What was found so far, for the table."""
    return request.config.stash.setdefault(SEEN, [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the faults that were planted and found."""
    if found := config.stash.get(SEEN, []):
        terminalreporter.section("faults planted and found")
        for line in lines(found):
            terminalreporter.write_line(line)
