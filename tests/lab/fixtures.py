"""The lab as pytest fixtures: without the means for it a test is skipped, but under CI it fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.lab.lab import Lab, why_not
from tests.lab.slurm import Slurm, why_no_slurm


def require_lab(*, slurm: bool = False) -> None:
    """Skip the calling test where no lab can run; CI promises one, so there it is a failure."""
    reason = why_not() or (why_no_slurm() if slurm else None)
    if reason and os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def lab4() -> Iterator[Lab]:
    """Four hosts for all tests of a module, each of which leaves them as it found them."""
    require_lab()
    with Lab(4) as lab:
        yield lab


@pytest.fixture(scope="module")
def slurm4() -> Iterator[Slurm]:
    """Slurm over four hosts, for all tests of a module, each of which leaves it with idle nodes."""
    require_lab(slurm=True)
    with Lab(4, slurm=True) as lab, Slurm(lab) as slurm:
        yield slurm


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """Start labs as a test wants them; they take the arguments of ``Lab`` and end with the test."""
    require_lab()
    labs: list[Lab] = []

    def start(n: int = 4, *, chrony: bool = False) -> Lab:
        lab = Lab(n, chrony=chrony)
        lab.start(owner=os.getpid())
        labs.append(lab)
        return lab

    yield start
    for lab in reversed(labs):
        lab.stop()
