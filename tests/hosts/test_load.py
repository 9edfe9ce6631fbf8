"""What happens on a host while verify runs is named with the host, and its GPU or link."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import nvml
from tests.support.command import Answer, clusterprep
from tests.support.lab import Host, Lab, faults

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
pytest.importorskip("torch")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
KMSG = "/dev/kmsg"
QUIET = "6,0,1000000,-;Linux version 6.8.0-60-generic\n"
XID = (
    "3,900,{now},-;NVRM: Xid (PCI:0000:2a:00): 79, pid='<unknown>', name=<unknown>, "
    "GPU has fallen off the bus.\n"
)
AT_WORK: dict[str, Any] = {
    "utilization": 97,
    "throttle": 0,
    "clock": {"graphics": 1980, "sm": 1980, "memory": 2619},
}
SLOW = {"clock": {"graphics": 600, "sm": 600, "memory": 2619}, "throttle": 4}
WORSE = {"replay": {5: 40}, "recovery": 0, "crc": 0}
SIZES = ["16M"] * 12  # some ten seconds over the lab's bridge


@pytest.fixture(scope="module")
def lab(lab4: Lab) -> Iterator[Lab]:
    """Hosts with two GPUs each that work, and with a log of their own."""
    made = []
    for host in lab4.hosts:
        made.append(faults.gpus(host, [{"count": 2, "model": "h100", **AT_WORK}]))
        made.append(faults.file_over(host, KMSG, QUIET))
    yield lab4
    for fault in reversed(made):
        fault.undo()


def describe(host: Host, *changes: dict[str, Any]) -> None:
    """Replace what the GPUs of a host answer, also to a process that has the library open."""
    folder = Path(f"/proc/{host.pid}/root") / LIBRARIES
    new = folder / "new"
    new.write_text(nvml.description([{"count": 2, "model": "h100", **AT_WORK}, *changes]))
    new.replace(folder / nvml.DESCRIBED)


def verify(lab: Lab, during: Callable[[], None]) -> Answer:
    """A verify, while the ranks of which this happens.

    None of the GPUs is to be used: their library is a stand-in, and torch has no CUDA here.
    """
    ended = threading.Event()

    def change() -> None:
        while not ended.wait(0.1):
            if lab.hosts[0].processes("clusterprep-rank"):
                time.sleep(2.5)  # the first samples are taken
                during()
                return

    thread = threading.Thread(target=change)
    thread.start()
    try:
        settings = {"sizes": SIZES, "timeout": 60}
        inventory = lab.inventory(verify=settings, nproc_per_node=1, gpus={"count": 0})
        return clusterprep(lab, "verify", "--on-busy", inventory=inventory)
    finally:
        ended.set()
        thread.join()


def named(answer: Answer) -> dict[str, tuple[list[str], str]]:
    """What was named meanwhile: nodes and what is seen, by check."""
    return {
        finding["check"]: (finding["nodes"], finding["seen"])
        for finding in answer.report["findings"]
        if finding["message"].startswith("while verify ran") and finding["verdict"] == "fail"
    }


def unknown(answer: Answer) -> list[tuple[str, list[str]]]:
    """What could not be known, by check."""
    return [
        (finding["check"], finding["nodes"])
        for finding in answer.report["findings"]
        if finding["verdict"] == "unknown"
    ]


def test_what_happens_meanwhile_is_named_with_its_host_and_gpu(lab: Lab) -> None:
    """One verify, for each takes ten seconds: three hosts with an event, one whose driver hangs."""

    def change() -> None:
        describe(lab.host("n2"), {"index": 1, **SLOW})
        describe(lab.host("n3"), {"index": 0, "link_errors": WORSE})
        now = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        log = lab.host("n4").read(KMSG)
        lab.host("n4").write(KMSG, log + XID.format(now=now))

    # A query that the survey does not make.
    describe(lab.host("n1"), {"index": 0, "hangs": ["nvmlDeviceGetPowerUsage"]})
    try:
        answer = verify(lab, change)
    finally:
        for host in lab.hosts:
            describe(host)
    seen = named(answer)
    assert set(seen) == {"gpu.clocks", "nvl.errors", "gpu.xid"}
    assert seen["gpu.clocks"] == (
        ["n2"],
        "GPU 1 fell from 1980 to 600 MHz (software power cap)",
    )
    nodes, text = seen["nvl.errors"]
    assert nodes == ["n3"]
    assert text.startswith("GPU 0: link 5 +40 replays in ")
    nodes, text = seen["gpu.xid"]
    assert nodes == ["n4"]
    assert text.startswith("Xid 79 on 0000:2a:00: last ")
    assert unknown(answer) == [
        ("gpu.ecc_corr", ["n1"]),
        ("gpu.ecc_unc", ["n1"]),
        ("gpu.temp", ["n1"]),
        ("gpu.throttle_hw", ["n1"]),
        ("nvl.errors", ["n1"]),
    ]
    assert answer.code == 1
    assert answer.report["verify"]["verdict"] == "pass", "the collectives themselves were fine"
    for host in lab.hosts:
        assert host.processes("clusterprep") == []
