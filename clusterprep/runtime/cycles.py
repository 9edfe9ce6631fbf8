"""When Python looks for cycles among the objects of a command.

Nearly all of them live until its end: with Python's own thresholds, looking for cycles among them
took a fifth of the time of a large check.
"""

from __future__ import annotations

import gc

# Modules and what they hold are 90,000 objects, and none of them ends: looking through them at a
# start took 15 ms of 300.
WHILE_STARTING = (200_000, 20, 50)
# What is made for each node may have cycles, and is not to be kept for long.
WHILE_WORKING = (50_000, 20, 50)


def expect_modules() -> None:
    """Look rarely while a command is loaded."""
    gc.set_threshold(*WHILE_STARTING)


def expect_nodes() -> None:
    """Look more often from now on, and not any more through what is there by now."""
    gc.freeze()
    gc.set_threshold(*WHILE_WORKING)
