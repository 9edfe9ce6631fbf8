"""Interrupts: spread, all on one CPU, one stream, one queue, at rest, bonds and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from clusterprep.checks.irq import parse_share
from clusterprep.facts.interrupts import InterruptDevice, Interrupts
from tests.support.fleet import LOOPBACK, absent, eth, findings, fleet, told

ADDRESS = "10.0.0.1/16"


def device(
    name: str,
    lines: Mapping[str, Mapping[str, int]],
    irqs: int = 8,
    queues: int = 8,
    gpu: bool = False,
) -> InterruptDevice:
    return InterruptDevice(name, gpu, tuple(str(40 + n) for n in range(irqs)), queues, lines)


def spread(per_line: int, lines: int = 8) -> dict[str, dict[str, int]]:
    """As many interrupts on every line, each line on a CPU of its own."""
    return {str(40 + n): {f"CPU{n}": per_line} for n in range(lines)}


def crowded(per_line: int, lines: int = 8, elsewhere: int = 0) -> dict[str, dict[str, int]]:
    """Every line on CPU0, and some interrupts on another."""
    found: dict[str, dict[str, int]] = {str(40 + n): {"CPU0": per_line} for n in range(lines)}
    return {**found, "99": {"CPU1": elsewhere}} if elsewhere else found


def node(
    *devices: InterruptDevice,
    seconds: float = 0.3,
    interfaces: Any = None,
    **lower: tuple[str, ...],
) -> dict[str, Any]:
    return {
        "irq.counts": Interrupts(seconds, devices, lower),
        "net.interfaces": interfaces
        if interfaces is not None
        else (LOOPBACK, eth("eth0", ADDRESS)),
    }


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(device("eth0", spread(1000)), "pass", id="spread"),
        pytest.param(device("eth0", crowded(1000)), "fail warning", id="all-on-one-cpu"),
        pytest.param(
            device("eth0", crowded(1000, lines=4, elsewhere=1000)),
            "pass",
            id="eighty-percent-is-allowed",
        ),
        pytest.param(
            device("eth0", crowded(1000, lines=4, elsewhere=990)), "fail warning", id="just-over-it"
        ),
        pytest.param(
            device("eth0", crowded(1000, lines=3)), "fail warning", id="three-queues-on-one-cpu"
        ),
        pytest.param(device("eth0", crowded(38)), "fail warning", id="just-busy"),
        pytest.param(device("eth0", crowded(37)), "skip at_rest", id="just-at-rest"),
        pytest.param(device("eth0", {}), "skip at_rest", id="not-one-interrupt"),
        pytest.param(
            device("eth0", {"40": {"CPU0": 9000}}),
            "skip not_applicable",
            id="one-stream-in-one-queue",
        ),
        pytest.param(
            device("eth0", {"40": {"CPU0": 9000}, "41": {"CPU0": 9000}}),
            "skip not_applicable",
            id="one-pair-of-lines",
        ),
        pytest.param(
            device("eth0", crowded(100, lines=8) | {"40": {"CPU0": 90000}}),
            "skip not_applicable",
            id="one-stream-and-a-little-beside-it",
        ),
        pytest.param(
            device("eth0", crowded(9000, lines=3), irqs=3, queues=1),
            "skip not_applicable",
            id="one-queue",
        ),
        pytest.param(
            device("eth0", crowded(9000, lines=1), irqs=1), "skip not_applicable", id="one-line"
        ),
        pytest.param(
            device("eth1", crowded(9000)), "skip not_applicable", id="not-the-interface-of-the-job"
        ),
    ],
)
def test_no_cpu_takes_nearly_all_of_a_busy_interface(seen: InterruptDevice, expected: str) -> None:
    assert told(fleet(n1=node(seen)), "irq.balance") == {"n1": expected}


def gpus(lines: Mapping[str, Mapping[str, int]]) -> list[InterruptDevice]:
    return [
        device(f"0000:{n:02x}:00.0", {irq: lines[irq]}, irqs=1, queues=1, gpu=True)
        for n, irq in enumerate(sorted(lines))
    ]


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        pytest.param(gpus(spread(500)), "pass", id="each-on-its-own-cpu"),
        pytest.param(gpus(crowded(500)), "fail warning", id="eight-gpus-on-one-cpu"),
        pytest.param(gpus(crowded(5)), "skip at_rest", id="at-rest"),
        pytest.param(
            gpus(crowded(5000, lines=1)), "skip not_applicable", id="one-gpu-has-one-line"
        ),
        pytest.param(
            [device("eth0", spread(1000)), *gpus(crowded(500))],
            "fail warning",
            id="the-card-is-fine",
        ),
        pytest.param(
            [device("eth0", crowded(1000)), *gpus(spread(500))],
            "fail warning",
            id="the-gpus-are-fine",
        ),
        pytest.param([device("eth0", {}), *gpus(spread(500))], "pass", id="the-card-is-at-rest"),
    ],
)
def test_gpus_are_judged_together(cards: list[InterruptDevice], expected: str) -> None:
    assert told(fleet(n1=node(*cards)), "irq.balance") == {"n1": expected}


def test_a_bond_is_judged_by_its_cards() -> None:
    bond = eth("bond0", ADDRESS, physical=False)
    cards = (eth("eth0", master="bond0"), eth("eth1", master="bond0"))
    interfaces = (LOOPBACK, bond, *cards)
    good, bad = device("eth0", spread(1000)), device("eth1", crowded(1000))
    lower = {"bond0": ("eth0", "eth1")}
    assert told(fleet(n1=node(good, bad, interfaces=interfaces, **lower)), "irq.balance") == {
        "n1": "fail warning"
    }
    fine = device("eth1", spread(1000))
    assert told(fleet(n1=node(good, fine, interfaces=interfaces, **lower)), "irq.balance") == {
        "n1": "pass"
    }


def test_an_interface_without_a_card_raises_no_interrupts() -> None:
    seen = fleet(n1=node(interfaces=(LOOPBACK, eth("eth0", ADDRESS, physical=False))))
    assert told(seen, "irq.balance") == {"n1": "skip not_applicable"}


def test_without_a_choice_nothing_is_judged() -> None:
    lonely = node(device("eth0", spread(1000)), interfaces=(LOOPBACK,))
    seen = fleet(n1=node(device("eth0", spread(1000))), n2=lonely)
    assert told(seen, "irq.balance") == {"n1": "pass", "n2": "unknown warning eth.iface_choice"}


@pytest.mark.parametrize("reason", ["denied", "hung", "timed_out", "garbled"])
@pytest.mark.parametrize("fact", ["irq.counts", "net.interfaces"])
def test_what_is_missing_is_not_spread(fact: str, reason: str) -> None:
    seen = fleet(n1={**node(device("eth0", spread(1000))), fact: absent(reason)})
    assert told(seen, "irq.balance") == {"n1": f"unknown warning {reason}"}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("40%", "fail error"), ("50%", "pass"), ("100", "pass")],
)
def test_another_share_may_be_required(wanted: str, expected: str) -> None:
    half = {"40": {"CPU0": 500}, "41": {"CPU0": 500}, "42": {"CPU0": 500}, "43": {"CPU1": 1500}}
    seen = fleet(each={"require": {"irq.balance": wanted}}, n1=node(device("eth0", half)))
    assert told(seen, "irq.balance") == {"n1": expected}


def test_the_cpu_the_device_and_its_lines_are_named() -> None:
    (bad,) = findings(fleet(n1=node(device("eth0", crowded(300)))), "irq.balance")
    assert bad.seen == "CPU0 takes 100% of 8000/s of eth0"
    assert bad.wanted == "at most 80% on one CPU"
    assert "smp_affinity_list of 40, 41, 42" in bad.remedy.note


@pytest.mark.parametrize("text", ["0", "101%", "", "most", "0.8"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a percentage"):
        parse_share(text)


def test_a_line_that_gpus_share_counts_once() -> None:
    """Both GPUs tell of the same 200 interrupts, which are fewer than a busy device has."""
    shared = {"40": {"CPU0": 200}}
    gpus = [device(name, shared, irqs=1, queues=1, gpu=True) for name in ("gpu0", "gpu1")]
    assert told(fleet(n1=node(*gpus)), "irq.balance") == {"n1": "skip at_rest"}
