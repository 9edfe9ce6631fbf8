"""Which CPUs take the interrupts of network cards and GPUs, over a fraction of a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterprep.facts import Fact
from clusterprep.model import Read


@dataclass(frozen=True, slots=True)
class InterruptDevice:
    """A card with its interrupt lines; `lines` has those that moved: line → CPU → interrupts in the window.

    `queues` is how many queues of an interface receive; a GPU counts as one.
    """

    name: str
    gpu: bool
    irqs: tuple[str, ...]
    queues: int
    lines: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Interrupts:
    """What came in within `seconds`. `lower` says on which interfaces a bond, bridge or VLAN stands."""

    seconds: float
    devices: tuple[InterruptDevice, ...]
    lower: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def under(self, name: str) -> tuple[InterruptDevice, ...]:
        """The cards below an interface, itself if it is one."""
        names, seen = [name], []
        for interface in names:  # grows while it is walked; what was seen once is not seen again
            if interface not in seen:
                seen.append(interface)
                names.extend(self.lower.get(interface, ()))
        return tuple(device for device in self.devices if device.name in seen and not device.gpu)

    @property
    def gpus(self) -> tuple[InterruptDevice, ...]:
        return tuple(device for device in self.devices if device.gpu)


def parse_interrupts(answer: dict[str, Any]) -> Interrupts:
    seconds = float(answer["seconds"])
    if not 0 < seconds < 60:
        raise ValueError(f"no window: {seconds} s")
    devices = tuple(_device(row) for row in answer["devices"])
    return Interrupts(
        seconds, devices, {name: tuple(below) for name, below in answer["lower"].items()}
    )


def _device(row: dict[str, Any]) -> InterruptDevice:
    lines = {
        irq: {cpu: int(count) for cpu, count in by_cpu.items()}
        for irq, by_cpu in row["lines"].items()
    }
    return InterruptDevice(
        row["name"], bool(row["gpu"]), tuple(row["irqs"]), int(row["queues"]), lines
    )


INTERRUPTS = Fact("irq.counts", lambda node, inventory: (Read("interrupts"),), parse_interrupts)
