"""A job over gloo on four real hosts: who holds it up is named in five seconds, and it goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from clusterprep.inventory.schema import schema_path
from tests.jobs.live.running import FOLDER, Job, has_file
from tests.support.command import CLI
from tests.support.lab import Host, Lab, faults
from tests.support.patience import eventually

pytestmark = [pytest.mark.hosts, pytest.mark.torch]
AT_ONCE = 5.0  # seconds for the answer
SETTLE = 2.5  # seconds after a fault until it is looked at


@pytest.fixture(scope="module")
def job(lab4: Lab) -> Iterator[Job]:
    """The job on four hosts, which goes on when it is first used."""
    started = Job(lab4)
    started.start()
    try:
        assert started.moves()
        yield started
    finally:
        for rank in started.ranks:
            rank.kill()
            rank.wait()


@dataclass(frozen=True)
class Told:
    """What the command said, and how long it took."""

    code: int
    document: dict[str, Any]
    seconds: float

    @property
    def first(self) -> tuple[str, str | None]:
        """Name and culprit of the first cause."""
        cause = self.document["causes"][0]
        return cause["cause"], cause["culprit"]


def diagnose(job: Job) -> Told:
    """Ask what holds the job up; the answer fits the schema, and nothing is left on a host."""
    before = [traces(host) for host in job.lab.hosts]
    argv = [*CLI, "diagnose", "--live", str(job.lab.inventory()), "--format", "json"]
    began = time.monotonic()
    run = job.lab.controller.run(argv, check=False, timeout=60)
    seconds = time.monotonic() - began
    assert run.stdout, run.stderr
    document = json.loads(run.stdout)
    Draft202012Validator(json.loads(schema_path("diagnosis").read_text())).validate(document)
    assert eventually(lambda: [traces(host) for host in job.lab.hosts] == before, 5)
    print(f"{seconds:.1f} s, code {run.returncode}, {json.dumps(document['causes'])[:300]}")
    return Told(run.returncode, document, seconds)


def traces(host: Host) -> tuple[list[str], list[str]]:
    """Processes of a host but sshd's own, and the files of its temporary folders."""
    shown = host.run(["ps", "-eo", "comm,args", "--no-headers"]).stdout.splitlines()
    processes = [line for line in shown if not line.startswith(("ps", "sshd"))]
    return sorted(processes), host.run(["ls", "-A", "/tmp", "/dev/shm"]).stdout.split()


def named(job: Job, cause: str, culprit: str) -> None:
    told = diagnose(job)
    assert (told.code, told.document["live"]["state"]) == (1, "stuck")
    assert told.first == (cause, culprit)
    assert told.document["causes"][0]["confidence"] >= 0.9
    assert told.seconds < AT_ONCE


def test_a_job_that_moves(job: Job) -> None:
    told = diagnose(job)
    assert (told.code, told.document["live"]["state"], told.document["causes"]) == (0, "moving", [])
    (row,) = told.document["live"]["jobs"]
    assert [(rank["rank"], rank["node"]) for rank in row["ranks"]] == [
        (0, "n1"),
        (1, "n2"),
        (2, "n3"),
        (3, "n4"),
    ]
    assert told.seconds < AT_ONCE


def test_a_rank_that_is_stopped(job: Job) -> None:
    host = job.lab.host("n3")
    host.run(["kill", "-STOP", job.pid(host)])
    time.sleep(SETTLE)
    named(job, "rank_stopped", "rank 2 on n3")
    host.run(["kill", "-CONT", job.pid(host)])
    assert job.moves()


def test_a_rank_in_its_data_loader(job: Job) -> None:
    host = job.lab.host("n2")
    job.tell(host, "load")
    time.sleep(SETTLE)
    named(job, "rank_elsewhere", "rank 1 on n2")
    host.write(f"{FOLDER}/pipe", "a sample")
    assert job.moves()


def test_a_pair_of_hosts_without_packets(job: Job) -> None:
    with faults.drop_pair(job.lab.host("n2"), job.lab.host("n3")):
        time.sleep(SETTLE)
        named(job, "link_cut", "link n2 - n3")
    assert job.moves()


def test_the_job_ends_well_after_all_this(job: Job) -> None:
    job.tell(job.lab.host("n1"), "end")
    # By a file, for nsenter, through which it runs, stopped itself when its rank was stopped.
    assert eventually(lambda: all(has_file(host, "ended") for host in job.lab.hosts), 60)


def test_a_rank_in_another_collective(lab4: Lab) -> None:
    """In a job of its own, because no job survives that."""
    for host in lab4.hosts:
        host.run(["rm", "-rf", FOLDER])
    again = Job(lab4)
    again.start()
    try:
        assert again.moves()
        again.tell(lab4.host("n4"), "other")
        time.sleep(SETTLE)
        named(again, "rank_in_other_collective", "rank 3 on n4")
    finally:
        for rank in again.ranks:
            rank.kill()
            rank.wait()
