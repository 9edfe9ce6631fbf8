"""The lab as pytest fixtures: without the means for it a test is skipped, but under CI it fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from tests.support import real_nccl
from tests.support.lab.lab import Lab, why_not
from tests.support.lab.layout import Family
from tests.support.lab.slurm import Slurm, why_no_slurm

HOSTS = 4


def require_lab(*, slurm: bool = False) -> None:
    """Skip the calling test where no lab can run; CI promises one, so there it is a failure."""
    reason = why_not() or (why_no_slurm() if slurm else None)
    if reason and os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)


class SharedLab:
    """Four hosts that the modules of one test process borrow in turn, each as if they were new."""

    def __init__(self) -> None:
        self._lab: Lab | None = None

    def borrow(self) -> Lab:
        """The lab in the state in which it was born.

        Another one if that cannot be brought about.
        """
        if self._lab is not None:
            with contextlib.suppress(RuntimeError, OSError):
                self._lab.reset()
                return self._lab
            self._lab.stop()
        self._lab = Lab(HOSTS, real_nccl.kept())
        self._lab.start(owner=os.getpid())
        return self._lab

    def stop(self) -> None:
        """End the lab, if there is one."""
        if self._lab is not None:
            self._lab.stop()


class SharedSlurm:
    """Slurm over four hosts that modules of one test process borrow in turn, each as if new."""

    def __init__(self) -> None:
        self._slurm: Slurm | None = None

    def borrow(self) -> Slurm:
        """Slurm with idle nodes on hosts in the state in which they were born."""
        if self._slurm is not None:
            with contextlib.suppress(RuntimeError, OSError):
                self._slurm.reset()
                return self._slurm
            self.stop()
        lab = Lab(HOSTS, slurm=True)
        lab.start(owner=os.getpid())
        self._slurm = Slurm(lab)
        self._slurm.start()
        return self._slurm

    def stop(self) -> None:
        """End Slurm and its hosts, if there are any."""
        if self._slurm is not None:
            self._slurm.stop()
            self._slurm.lab.stop()


@pytest.fixture(scope="session")
def shared_lab() -> Iterator[SharedLab]:
    """The lab of this test process, which starts when a test first borrows it."""
    shared = SharedLab()
    yield shared
    shared.stop()


@pytest.fixture(scope="session")
def shared_slurm() -> Iterator[SharedSlurm]:
    """Slurm of this test process, which starts when a test first borrows it."""
    shared = SharedSlurm()
    yield shared
    shared.stop()


@pytest.fixture(scope="module")
def lab4(shared_lab: SharedLab) -> Lab:
    """Four hosts as new for a module, each test of which leaves them as it found them."""
    require_lab()
    return shared_lab.borrow()


@pytest.fixture(scope="module")
def slurm4(shared_slurm: SharedSlurm) -> Slurm:
    """Slurm over four hosts as new for a module, each test of which leaves it with idle nodes."""
    require_lab(slurm=True)
    return shared_slurm.borrow()


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """Start labs as a test wants them; they take the arguments of ``Lab`` and end with the test."""
    require_lab()
    labs: list[Lab] = []

    def start(n: int = 4, *, chrony: bool = False, ipv6: Family | None = None) -> Lab:
        lab = Lab(n, chrony=chrony, ipv6=ipv6)
        lab.start(owner=os.getpid())
        labs.append(lab)
        return lab

    yield start
    for lab in reversed(labs):
        lab.stop()
