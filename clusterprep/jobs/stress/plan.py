"""Which processes load a node, and in which rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterprep.model import Node
from clusterprep.remote.agent.stress import IMPORT_LIMIT, LIMITS
from clusterprep.runtime.lazy_dataclass import dataclass

# Tests that all GPUs run at the same time, as in training: heat and power are then those of a job.
TOGETHER = ("liveness", "gemm", "copy", "chain")
# One GPU after the other: side by side they would share the memory and the switches of the host.
ALONE = ("host_copy",)
# Of the host's own process, which sees all GPUs.
HOST = ("stream", "pairs")
MARGIN = 10.0  # seconds for a report to arrive


@dataclass(frozen=True)
class Seat:
    """One process: its number, the GPU that it alone sees (None: the processor), or all of them."""

    number: int
    gpu: int | None
    sees_all: bool = False


@dataclass(frozen=True)
class Round:
    """Tests that run at the same time, by the number of the process, and seconds until all end."""

    tests: Mapping[int, tuple[str, ...]]
    limit: float


@dataclass(frozen=True)
class StressPlan:
    """What is run on one node; `gpus` are NVML's indices, none for the processor."""

    node: Node
    gpus: tuple[int, ...]
    seats: tuple[Seat, ...]
    rounds: tuple[Round, ...]

    def request(self, source: str) -> dict[str, Any]:
        """Return the body of the agent's operation `start`."""
        ranks = [{"rank": seat.number, "env": self._environment(seat)} for seat in self.seats]
        return {
            "python": self.node.python,
            "user": self.node.job_user,
            "source": source,
            "ranks": ranks,
            "config": {},
        }

    def _environment(self, seat: Seat) -> dict[str, str]:
        """Return which GPUs a process sees: by PCI address, as NVML numbers them."""
        indices: Sequence[int] = self.gpus if seat.sees_all else ()
        if seat.gpu is not None:
            indices = (seat.gpu,)
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, indices)),
        }

    def tasks(self, part: Round) -> list[dict[str, Any]]:
        """Return what each process does in a round, in the order of `request`."""
        tasks = []
        for seat in self.seats:
            names = part.tests.get(seat.number, ())
            tasks.append({"rank": seat.number, "tests": list(names), "gpu": bool(self.gpus)})
        return tasks


def plan_stress(node: Node, gpus: Sequence[int]) -> StressPlan:
    """Return the processes and rounds of a node with these GPUs."""
    devices: Sequence[int | None] = tuple(gpus) or (None,)
    seats = [Seat(number, gpu) for number, gpu in enumerate(devices)]
    host = Seat(len(seats), None, sees_all=True)
    together = Round({seat.number: TOGETHER for seat in seats}, _limit(TOGETHER) + IMPORT_LIMIT)
    alone = [Round({seat.number: ALONE}, _limit(ALONE)) for seat in seats]
    tests = HOST if len(gpus) > 1 else HOST[:1]
    last = Round({host.number: tests}, _limit(tests))
    return StressPlan(node, tuple(gpus), (*seats, host), (together, *alone, last))


def _limit(tests: Sequence[str]) -> float:
    """Return the seconds that these tests take at most, with the binding of the device."""
    return sum(LIMITS[name] for name in tests) + LIMITS["liveness"] + MARGIN
