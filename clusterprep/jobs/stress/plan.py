"""Which processes load a node, and in which rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from clusterprep.model import Node
from clusterprep.model.runtimes import in_request
from clusterprep.remote.agent.stress import IMPORT_LIMIT, LIMITS

# Tests that all GPUs run at the same time, as in training: heat and power are then those of a job.
TOGETHER = ("liveness", "gemm", "copy", "chain")
# One GPU after the other: side by side they would share the memory and the switches of the host.
ALONE = ("host_copy",)
STREAM = ("stream",)  # of a process without a GPU
PAIRS = ("pairs",)  # of a process that sees all GPUs
MARGIN = 10.0  # seconds for a report to arrive


class Seat(Struct, frozen=True):
    """One process: its number, the tests that it runs, and the GPUs that it sees, by NVML's index.

    Without a GPU it loads the processor.
    """

    number: int
    tests: Literal["device", "stream", "pairs"]
    gpus: tuple[int, ...]


class Round(Struct, frozen=True):
    """Tests that run at the same time, by the number of the process, and seconds until all end."""

    tests: Mapping[int, tuple[str, ...]]
    limit: float


class StressPlan(Struct, frozen=True):
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
            **in_request(self.node.runtime),
        }

    def _environment(self, seat: Seat) -> dict[str, str]:
        """Return which GPUs a process sees: by PCI address, as NVML numbers them."""
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, seat.gpus)),
        }

    def tasks(self, part: Round) -> list[dict[str, Any]]:
        """Return what each process does in a round, in the order of `request`."""
        tasks = []
        for seat in self.seats:
            names = part.tests.get(seat.number, ())
            tasks.append({"rank": seat.number, "tests": list(names), "gpu": bool(seat.gpus)})
        return tasks


def plan_stress(node: Node, gpus: Sequence[int]) -> StressPlan:
    """Return the processes and rounds of a node with these GPUs."""
    seats = _device_seats(gpus)
    together = {seat.number: TOGETHER for seat in seats}
    rounds = [Round(together, _limit(TOGETHER) + IMPORT_LIMIT)]
    for seat in seats:
        rounds.append(_round_of_one(seat, ALONE))
    host = Seat(len(seats), "stream", ())
    seats.append(host)
    rounds.append(_round_of_one(host, STREAM))
    if len(gpus) > 1:
        pairs = Seat(len(seats), "pairs", tuple(gpus))
        seats.append(pairs)
        rounds.append(_round_of_one(pairs, PAIRS))
    return StressPlan(node, tuple(gpus), tuple(seats), tuple(rounds))


def _device_seats(gpus: Sequence[int]) -> list[Seat]:
    """Return a process for each GPU; on a node without GPUs one that sees none."""
    if not gpus:
        return [Seat(0, "device", ())]
    return [Seat(number, "device", (gpu,)) for number, gpu in enumerate(gpus)]


def _round_of_one(seat: Seat, tests: tuple[str, ...]) -> Round:
    return Round({seat.number: tests}, _limit(tests))


def _limit(tests: Sequence[str]) -> float:
    """Return the seconds that these tests take at most, with the binding of the device."""
    return sum(LIMITS[name] for name in tests) + LIMITS["liveness"] + MARGIN
