"""The program of the stress tier on the processor: exact sums, and an end that nothing delays."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from clusterprep.remote.agent import stress

SLEEP = """
import time
from clusterprep.remote.agent import stress
stress.limit(0.2)
time.sleep(30)
"""


def test_a_test_is_ended_at_its_limit_by_the_kernel() -> None:
    ended = subprocess.run([sys.executable, "-c", SLEEP], timeout=20, check=False)
    assert ended.returncode == -signal.SIGALRM


def test_arrays_of_the_memory_test_are_larger_than_caches_and_small_beside_memory() -> None:
    size = 8 * stress.stream_elements()
    assert 32 * stress.MIB <= size <= 1024 * stress.MIB


@pytest.mark.torch
def test_the_checksum_of_a_chain_is_that_of_exact_sums() -> None:
    """64-bit numbers take other kernels and have other rounding: only exact sums are equal."""
    torch = pytest.importorskip("torch")
    checksums = set()
    for kind in (torch.float32, torch.float64):
        device = stress.HostDevice(torch)
        device.type = kind
        checksums.add(stress.Tests(torch, device)._chain_once())
    assert len(checksums) == 1


@pytest.mark.torch
def test_one_wrong_entry_changes_the_checksum() -> None:
    torch = pytest.importorskip("torch")
    tests = stress.Tests(torch, stress.HostDevice(torch))
    right = tests._chain_once()

    class WrongOnce:
        """A torch whose first product has one wrong entry."""

        def __init__(self) -> None:
            self.products = 0

        def __getattr__(self, name: str) -> object:
            return getattr(torch, name)

        def mm(self, left: object, right: object) -> object:
            product = torch.mm(left, right)
            if self.products == 0:
                product[17, 4] += 1
            self.products += 1
            return product

    tests.torch = WrongOnce()
    assert tests._chain_once() != right
