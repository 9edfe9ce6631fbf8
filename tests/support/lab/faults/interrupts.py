"""Interrupts of a card with several queues, which the lab's own interfaces do not raise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from tests.support.lab import processes
from tests.support.lab.faults.fault import Fault, together
from tests.support.lab.faults.files import file_over, sys_tree
from tests.support.lab.rooms import Host

# Rewrites its file in place, with counts that grow by the clock: each look of a reader sees more.
# The fields are of one width, so that no look sees a half-written number's end as another line.
_COUNT = """
import os, sys, time
path, cpus, per_second, *irqs = sys.argv[1:]
descriptor = os.open(path, os.O_WRONLY)
began = time.monotonic()
head = "".join("%11s" % f"CPU{cpu}" for cpu in range(int(cpus)))
first = True
while True:
    count = int(1e6 + (time.monotonic() - began) * int(per_second))
    lines = ["     " + head]
    for irq in irqs:
        counts = [count] + [7] * (int(cpus) - 1)
        lines.append("%4s:" % irq + "".join("%11d" % one for one in counts) + "  PCI-MSI  q")
    os.pwrite(descriptor, "\\n".join([*lines, ""]).encode(), 0)
    if first:
        first = False
        print(flush=True)
    time.sleep(0.02)
"""


def crowded_interrupts(
    host: Host, interface: str, irqs: Sequence[str] = ("101", "102", "103", "104")
) -> Fault:
    """Every queue of a busy card interrupts the first of four CPUs, 8,000 times a second."""
    folder = f"/sys/class/net/{interface}"
    files = {f"{folder}/device/msi_irqs/{irq}": "msix\n" for irq in irqs}
    queues = {f"{folder}/queues/rx-{number}/rps_cpus": "0\n" for number in range(len(irqs))}
    card = sys_tree(host, files | queues)
    counts = file_over(host, "/proc/interrupts", "")
    argv = [sys.executable, "-c", _COUNT, "/proc/interrupts", "4", "8000", *irqs]
    process = host.popen(argv, stdout=subprocess.PIPE)
    if process.stdout is None or process.stdout.readline() == "":
        raise RuntimeError(f"the interrupts of {host.name} cannot be counted")

    def undo() -> None:
        processes.kill_group(process)
        process.communicate()

    return together(card, counts, Fault(undo))
