"""A node that sends bombs costs itself its place, and the controller next to no memory."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.bombs import BOMBS, FLEET, VICTIM

MOST = 1.5  # times the memory of a look without the hostile node


@functools.cache
def looked(bomb: str) -> dict[str, Any]:
    """Look at a recorded fleet in a process of its own, whose peak of memory is its own too."""
    argv = [sys.executable, "-m", "tests.support.bombs", bomb]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=True)
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_loses_its_node_and_takes_no_memory(bomb: str) -> None:
    without = looked("")
    seen = looked(bomb)
    assert seen["peak"] <= MOST * without["peak"]
    reasons = dict.fromkeys(without["reasons"])
    reasons[f"n{VICTIM + 1}"] = "garbled"
    assert seen["reasons"] == reasons, FLEET
