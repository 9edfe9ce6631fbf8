"""Trials of nodes that are all this machine, over loopback.

It needs no torch, so every test module may import it.
"""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from collections.abc import Sequence
from typing import Any

from clusterprep.jobs.verify.schedule import TrialPlan, plan_trial
from clusterprep.model import Node, VerifySettings

TIMEOUT = 8.0
LARGE = 128 << 20  # bytes; long enough that a fault hits a rank in the middle


def free_port() -> int:
    """Below the ephemeral range.

    No client of another program gets it in between, nor one of ours its own call.
    """
    for port in random.sample(range(20000, 30000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def nodes(*pythons: str) -> tuple[Node, ...]:
    chosen = pythons or (sys.executable, sys.executable)
    return tuple(
        Node(f"n{i + 1}", "127.0.0.1", i, python=python, nproc_per_node=2)
        for i, python in enumerate(chosen)
    )


def plan(of: Sequence[Node], port: int | None = None, **settings: Any) -> TrialPlan:
    env = {node.name: {"GLOO_SOCKET_IFNAME": "lo"} for node in of}
    given = VerifySettings(**{"sizes": (8, 1001, LARGE), "timeout": TIMEOUT, **settings})
    return plan_trial(of, env, ("127.0.0.1", port or free_port()), given, {})
