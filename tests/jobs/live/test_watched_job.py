"""A watch that follows a job over gloo on four real hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jobs.live.running import FOLDER, Job
from tests.support.command import CLI
from tests.support.lab import Lab, faults
from tests.support.patience import eventually
from tests.support.watched import PATIENCE, Watch

pytestmark = [pytest.mark.hosts, pytest.mark.torch, pytest.mark.slow]
STANDINGS = ("moving", "stuck", "ended")
BEGINS = 240.0  # seconds; four ranks import torch, on a machine that may be busy


@pytest.fixture(scope="module")
def job(lab4: Lab) -> Iterator[Job]:
    """The job on four hosts, which goes on."""
    for host in lab4.hosts:
        host.run(["rm", "-rf", FOLDER])
    started = Job(lab4)
    started.start()
    try:
        assert eventually(started.has_begun, BEGINS)
        yield started
    finally:
        for rank in started.ranks:
            rank.kill()
            rank.wait()


def test_a_process_of_no_job_is_said_with_the_jobs_that_run(job: Job) -> None:
    argv = ["watch", str(job.lab.inventory()), "--only", "eth.mtu", "--job", "n2:1"]
    run = job.lab.controller.run([*CLI, *argv], check=False, timeout=PATIENCE)
    assert run.returncode == 3
    assert "--job n2:1: no rank of a job" in run.stderr
    assert f"with n1:{job.pid(job.lab.host('n1'))}" in run.stderr


def test_a_job_is_followed_to_its_end(job: Job) -> None:
    host = job.lab.host("n3")
    place = f"n2:{job.pid(job.lab.host('n2'))}"
    with Watch(job.lab, "--only", "eth.mtu", "--job", place) as watch:
        watch.until("moving", "n1")
        host.run(["kill", "-STOP", job.pid(host)])
        stuck = watch.until("stuck", "n1")
        host.run(["kill", "-CONT", job.pid(host)])
        moving = watch.until("moving", "n1")
        with faults.loss(job.lab.host("n2"), 0.05, spare_ssh=True):
            resends = watch.until("resends", "n2")
        job.tell(job.lab.host("n1"), "end")
        watch.until("ended", "n1")
        code = watch.process.wait(PATIENCE)
    assert code == 0
    assert "(rank_stopped, rank 2 on n3)" in stuck["message"]
    assert moving["message"] == "the job moves again"
    assert "n2" in resends["message"]
    assert "segments since the last look" in resends["message"]
    kinds = [event["kind"] for event in watch.told if event["kind"] in STANDINGS]
    assert kinds == ["moving", "stuck", "moving", "ended"]
