"""A verify of the lab's hosts, at a moment of which something happens to them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.command import Answer, finished, started
from tests.support.lab import Host, Lab

TIMEOUT = 10  # seconds; the time limit of verify
LATE = 15  # seconds after it by which the verdict is there
LONG = ["8", *["16M"] * 200]  # far more than can be done before the fault


@dataclass(frozen=True)
class Told:
    """The report, the seconds from the fault to it.

    And those from the moment the last rank had imported torch.
    """

    answer: Answer
    seconds: float

    @property
    def culprits(self) -> list[tuple[str, list[str], int | None]]:
        return [
            (row["kind"], row["nodes"], row["rank"])
            for row in self.answer.report["verify"]["culprits"]
        ]


def ranks(host: Host) -> list[int]:
    return host.processes("clusterprep-rank")


def begun(host: Host) -> bool:
    """Both ranks have been started; they import torch now, which takes seconds."""
    return len(ranks(host)) == 2


def connected(host: Host, least: int = 7) -> bool:
    """Whether the host's ranks have reached the others: they have `least` connections each.

    With one connection a rank has reached the store alone.
    """
    own = ranks(host)
    sockets = host.run(["ss", "-tnpH", "state", "established"]).stdout.splitlines()
    return bool(own) and all(sum(f"pid={pid}," in line for line in sockets) >= least for pid in own)


def verify_during(
    lab: Lab,
    fault: Callable[[], Any],
    when: Callable[[Host], bool] = begun,
    sizes: Sequence[str] = ("8", "1M"),
) -> Told:
    """Four nodes with two ranks each; `fault` comes when it is `when` on every host."""
    settings = {
        "verify": {"sizes": list(sizes), "timeout": TIMEOUT, "backend": "gloo"},
        "nproc_per_node": 2,
    }
    process = started(lab, "verify", inventory=lab.inventory(**settings))
    try:
        wait_for(lambda: all(when(host) for host in lab.hosts), 60)
        fault()
        begin = time.monotonic()
        told = Told(finished(process, timeout=120), time.monotonic() - begin)
        print(json.dumps(told.answer.report["verify"], indent=1))  # shown where a test fails
        return told
    finally:
        process.kill()


def wait_for(condition: Callable[[], bool], limit: float) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)
