"""The CPUs that handle the interrupts of network cards and GPUs, over a fraction of a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from clusterprep.facts import Fact
from clusterprep.facts.parts import read_once, shared_text
from clusterprep.model import Read


class InterruptDevice(Struct, frozen=True, gc=False):
    """A card with its interrupt lines.

    `lines` has those that were active: line → CPU → interrupts in the window. `queues` is the
    number of receive queues of an interface; a GPU counts as one.
    """

    name: str
    gpu: bool
    irqs: tuple[str, ...]
    queues: int
    lines: Mapping[str, Mapping[str, int]]


class Interrupts(Struct, frozen=True):
    """The interrupts of `seconds`.

    `lower` has the interfaces that a bond, bridge or VLAN is built on.
    """

    seconds: float
    devices: tuple[InterruptDevice, ...]
    lower: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def under(self, name: str) -> tuple[InterruptDevice, ...]:
        """Return the cards below an interface, itself if it is one."""
        waiting = [name]
        interfaces = set()
        while waiting:
            interface = waiting.pop()
            if interface not in interfaces:
                interfaces.add(interface)
                waiting.extend(self.lower.get(interface, ()))
        cards = (device for device in self.devices if not device.gpu)
        return tuple(card for card in cards if card.name in interfaces)

    @property
    def gpus(self) -> tuple[InterruptDevice, ...]:
        return tuple(device for device in self.devices if device.gpu)


class _CardRow(Struct):
    """A card as the agent writes it."""

    gpu: bool
    irqs: tuple[str, ...]
    lines: dict[str, dict[str, int]]
    name: str
    queues: int


class _Answer(Struct):
    devices: list[_CardRow]
    lower: dict[str, tuple[str, ...]]
    seconds: float


def parse_interrupts(answer: Any) -> Interrupts:
    """Return the interrupts that each device raised in a window of some seconds."""
    if isinstance(answer, _Answer):
        cards = tuple(map(_card, answer.devices))
        return Interrupts(_require_window(answer.seconds), cards, answer.lower)
    seconds = _require_window(float(answer["seconds"]))
    devices = tuple(_device(row) for row in answer["devices"])
    lower = {}
    for name, below in answer["lower"].items():
        lower[name] = tuple(below)
    return Interrupts(seconds, devices, lower)


def _require_window(seconds: float) -> float:
    if not 0 < seconds < 60:
        raise ValueError(f"no window: {seconds} s")
    return seconds


def _card(row: _CardRow) -> InterruptDevice:
    name = shared_text(row.name)
    return InterruptDevice(name, row.gpu, _irqs(row.irqs), row.queues, row.lines)


def _device(row: dict[str, Any]) -> InterruptDevice:
    lines = {}
    for irq, counts in row["lines"].items():
        lines[shared_text(irq)] = {shared_text(cpu): int(count) for cpu, count in counts.items()}
    irqs = _irqs(row["irqs"])
    queues = int(row["queues"])
    return InterruptDevice(
        name=shared_text(row["name"]), gpu=bool(row["gpu"]), irqs=irqs, queues=queues, lines=lines
    )


@read_once
def _irqs(irqs: Sequence[str]) -> tuple[str, ...]:
    return tuple(irqs)


INTERRUPTS = Fact(
    "irq.counts",
    lambda node, inventory: (Read("interrupts"),),
    parse_interrupts,
    pieces=(_Answer,),
    typed=True,
    moves=True,
)
