"""Samples under load: what the child says of GPUs, and how many of them the agent keeps."""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterprep.facts.gpu_health import EccErrors
from clusterprep.facts.nvlink import LinkErrors
from clusterprep.jobs.load.samples import GpuSample, GpuTotals, parse_samples
from clusterprep.model import Absent
from clusterprep.remote.agent import load_samples
from tests.support import nvml

pytestmark = pytest.mark.machine

ASK = """
import json, sys, time
from clusterprep.remote.agent import load_samples
from clusterprep.remote.agent.loop import Agent

class Answers(Agent):
    def answer(self, request, **body):
        json.dump(body, sys.stdout)
        self.leave()

import os
_, out = os.pipe()
agent = Answers("x", os.dup(0), out)
samplings = load_samples.Samplings()
samplings.sample(agent, {"interval": 0.2})
end = time.monotonic() + float(sys.argv[1])
def poll(now):
    if now > end:
        agent.polls.remove(poll)
        samplings.sampled(agent, {"id": 1})
agent.polls.append(poll)
agent.run()
"""


def sampled(folder: Path, seconds: float, **changes: Any) -> Any:
    """What the agent answers after so many seconds on a machine with this library."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    asked = [sys.executable, "-c", ASK, str(seconds)]
    with subprocess.Popen(
        asked, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        for moment, change in changes.get("then", ()):
            time.sleep(moment)
            change()
        assert process.stdout is not None
        return json.loads(process.stdout.read())


def describe(folder: Path, *gpus: dict[str, Any]) -> None:
    """Another description in the place of the one that the library has read."""
    new = folder / "new"
    new.write_text(nvml.description(gpus))
    new.replace(folder / nvml.DESCRIBED)


def test_what_changes_meanwhile_is_in_the_samples(tmp_path: Path) -> None:
    at_work = {
        "utilization": 97,
        "throttle": 4,
        "temperature": 61,
        "power": 480,
        "clock": {"graphics": 1980, "sm": 1980, "memory": 2619},
    }
    nvml.build(tmp_path, [{"count": 2}, {"index": 1, **at_work}])

    def change() -> None:
        links = {"replay": {3: 7}, "recovery": {3: 1}, "crc": 0}
        errors = {"link_errors": links, "ecc_volatile_uncorrected": 2}
        describe(tmp_path, {"count": 2}, {"index": 1, **at_work, **errors, "pcie_replays": 9})

    found = parse_samples(sampled(tmp_path, 1.5, then=[(1.0, change)]))
    assert found.why is None
    assert found.gpus[1].model == "NVIDIA H100 80GB HBM3"
    assert (found.gpus[1].clock_max, found.gpus[1].slowdown) == (1980, 89)
    assert found.of_gpu(1)[0] == GpuSample(97, 0, 1980, 2619, 4, 61, 480_000)
    assert found.first is not None
    assert found.last is not None
    assert found.first.facts["gpu.ecc"][1] == EccErrors(0, None, None)
    assert found.last.facts["gpu.ecc"][1] == EccErrors(2, None, None)
    assert (found.first.replays, found.last.replays) == ({0: 0, 1: 0}, {0: 0, 1: 9})
    assert on_links(found.first, 1) == {}
    assert on_links(found.last, 0) == {}
    assert on_links(found.last, 1) == {"link 3 replay": 7, "link 3 recovery": 1}
    moments = [sample.seconds for sample in found.samples]
    assert moments == sorted(moments)
    assert 4 <= len(moments) <= 12


def on_links(totals: GpuTotals, index: int) -> dict[str, int]:
    """The errors of a GPU's links that are not 0."""
    counted = totals.facts["nvlink.errors"][index]
    assert isinstance(counted, LinkErrors)
    assert len(counted.links) == 18
    errors = {}
    for link, kinds in counted.links.items():
        for kind, count in kinds.items():
            if count:
                errors[f"link {link} {kind}"] = count
    return errors


def test_errors_of_nvlink_5_grow(tmp_path: Path) -> None:
    boards = {"count": 2, "model": "b200"}
    nvml.build(tmp_path, [boards])
    healthy = nvml.MODELS["b200"]["link_errors"]

    def change() -> None:
        worse = {**healthy, "received": {16: 40}, "effective": {16: 2}}
        describe(tmp_path, boards, {"index": 1, "link_errors": worse})

    found = parse_samples(sampled(tmp_path, 1.5, then=[(1.0, change)]))
    assert found.first is not None
    assert found.last is not None
    assert on_links(found.first, 1) == {}
    assert on_links(found.last, 1) == {"link 16 received": 40, "link 16 effective": 2}
    counters = found.last.facts["gpu.counters"]["GPU-00000000-0000-4000-8000-000000000001"]
    assert counters["link 16 received"] == 40


def test_the_temperature_of_a_library_without_the_older_function(tmp_path: Path) -> None:
    nvml.build(tmp_path, [{"count": 1, "temperature": 61}], without=["nvmlDeviceGetTemperature"])
    found = parse_samples(sampled(tmp_path, 0.3))
    assert found.of_gpu(0)[0].temperature == 61


def test_the_answer_is_small(tmp_path: Path) -> None:
    """Eight GPUs with their links, each of which has errors, and a sample each second."""
    errors = {kind: dict.fromkeys(range(17), 7) for kind in nvml.MODELS["b200"]["link_errors"]}
    nvml.build(tmp_path, [{"count": 8, "model": "b200", "link_errors": errors}])
    answer = sampled(tmp_path, 0.3)
    assert len(json.dumps(answer["totals"])) < 24_000
    assert len(json.dumps(answer["samples"][0]["gpus"])) < 500


def test_a_driver_that_hangs_is_said_and_left(tmp_path: Path) -> None:
    nvml.build(tmp_path, [{"count": 2, "hangs": ["nvmlDeviceGetPowerUsage"]}])
    began = time.monotonic()
    found = parse_samples(sampled(tmp_path, 0.5))
    assert found.why is not None
    assert found.why.reason == "hung"
    assert time.monotonic() - began < load_samples.END_LIMIT + 3


@pytest.mark.parametrize(
    ("code", "reason"), [(9, "no_driver"), (18, "driver_library_mismatch"), (4, "denied")]
)
def test_a_driver_that_refuses_is_said(tmp_path: Path, code: int, reason: str) -> None:
    nvml.build(tmp_path, [{"count": 2}], init=code)
    found = parse_samples(sampled(tmp_path, 0.3))
    assert found.why is not None
    assert (found.why.reason, found.gpus) == (reason, {})
    assert found.samples, "links are sampled all the same"


def test_a_gpu_that_is_lost_hides_nothing_of_the_others(tmp_path: Path) -> None:
    nvml.build(tmp_path, [{"count": 2}, {"index": 0, "lost": "handle"}])
    found = parse_samples(sampled(tmp_path, 0.3))
    assert set(found.gpus) == {1}


# ---------------------------------------------------------------- the agent's side


class FakeAgent:
    """As much of an agent as a sampling needs."""

    def __init__(self) -> None:
        self.polls: list[Callable[[float], None]] = []
        self.endings: list[Callable[[], None]] = []
        self.answers: list[dict[str, Any]] = []

    def watch(self, fd: int, callback: Callable[[bytes], None]) -> None: ...
    def unwatch(self, fd: int) -> None: ...
    def answer(self, request: Any, **body: Any) -> None:
        self.answers.append(body)


@pytest.fixture
def sampling() -> Iterator[load_samples.Sampling]:
    made = load_samples.Sampling(FakeAgent(), 60.0)
    yield made
    made.close()


def test_of_many_samples_few_are_kept_with_the_last(sampling: load_samples.Sampling) -> None:
    for second in range(1000):
        line = json.dumps({"t": float(second), "links": {}, "gpus": {}})
        sampling._hear(line.encode() + b"\n")
    sampling._request = {}
    sampling._finish()
    (answer,) = sampling.agent.answers
    moments = [sample["t"] for sample in answer["samples"]]
    assert len(moments) <= load_samples.MOST + 1
    assert moments[-1] == 999.0
    gaps = {later - earlier for earlier, later in itertools.pairwise(moments[:-1])}
    assert gaps <= {16.0, 32.0}


def test_the_child_ends_with_the_sampling(sampling: load_samples.Sampling) -> None:
    pid = sampling._pid
    sampling.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nothing_waits_for_a_child_that_ended() -> None:
    agent = FakeAgent()
    sampling = load_samples.Sampling(agent, 60.0)
    os.kill(sampling._pid, 9)
    select.select([sampling._fd], [], [], 5)
    sampling._hear(b"")
    sampling.end({})
    found = parse_samples(agent.answers[0])
    assert found.why == Absent("garbled", "the sampling process ended early")


def link(speed: str) -> dict[str, str]:
    """The files of a link in /sys."""
    return {
        "current_link_width": "16",
        "max_link_width": "16",
        "current_link_speed": speed,
        "max_link_speed": "32.0 GT/s PCIe",
    }


def test_links_are_sent_when_they_change_and_known_in_every_sample() -> None:
    slow, fast = "2.5 GT/s PCIe", "32.0 GT/s PCIe"
    taken = [
        {"t": float(second), "gpus": {}, "links": {"0000:18:00.0": link(speed)}}
        for second, speed in enumerate((slow, fast, fast, slow))
    ]
    sent = load_samples.without_repetition(taken)
    assert [len(sample["links"]) for sample in sent] == [1, 1, 0, 1]
    found = parse_samples({"described": {}, "why": None, "totals": [], "samples": sent})
    assert [sample.links["0000:18:00.0"].speed for sample in found.samples] == [2.5, 32, 32, 2.5]
