"""How launchers, schedulers and container runtimes say that they started nothing."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from clusterprep.jobs.diagnose.model import DiagnosedCause, Diagnosis
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose

NAME = "processes_not_started"


def told(*texts: str) -> Diagnosis:
    lines = [line_of("job.log", number, text, number) for number, text in enumerate(texts, 1)]
    return diagnose(lines, {"job.log": len(texts)})


def first(*texts: str) -> DiagnosedCause:
    return told(*texts).causes[0]


@pytest.mark.parametrize(
    ("line", "culprit", "confidence"),
    [
        (
            "RuntimeError: Using hostfile at hostfile but host=192.168.3.100 was not reachable via ssh.",
            "host 192.168.3.100",
            0.95,
        ),
        ("ssh: connect to host gpu-7 port 22: Connection refused", "host gpu-7", 0.75),
        ("root@gpu-7: Permission denied (publickey,password).", "host gpu-7", 0.75),
        ("Permission denied (publickey,password).", None, 0.75),
        ("Host key verification failed.", None, 0.75),
        ("ORTE was unable to reliably start one or more daemons.", None, 0.75),
        ("bash: orted: command not found", None, 0.75),
        (
            "srun: error: Task launch for 23.0 failed on node hpc: Job prolog failed",
            "host hpc",
            0.95,
        ),
        (
            "srun: error: Unable to create step for job 4711: Invalid generic resource (gres) specification",
            None,
            0.95,
        ),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", None, 0.95),
        (
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
            None,
            0.95,
        ),
        ("slurmstepd: error: pyxis: failed to import docker image", None, 0.95),
        ("      Reason:       ImagePullBackOff", None, 0.75),
    ],
)
def test_nothing_was_started(line: str, culprit: str | None, confidence: float) -> None:
    found = first(line)
    assert (found.cause.name, found.culprit, found.confidence) == (NAME, culprit, confidence)


def test_the_reason_of_the_scheduler_is_told() -> None:
    found = first(
        "srun: error: Task launch for 23.0 failed on node hpc: Job prolog failed",
        "srun: error: Application launch failed: Job prolog failed",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "srun: error: Timed out waiting for job step to complete",
    )
    assert found.message.endswith("Slurm started no task on hpc: Job prolog failed.")


def test_a_step_that_is_refused_as_its_job_ends_follows_from_the_end() -> None:
    line = (
        "srun: error: Unable to create step for job 4711: Job/step already completing or completed"
    )
    assert not told(line).causes


def test_a_name_that_does_not_resolve_is_why_nothing_was_started() -> None:
    found = told(
        "ssh: Could not resolve hostname localhost:4: Name or service not known",
        "ORTE was unable to reliably start one or more daemons.",
    )
    assert [one.cause.name for one in found.causes] == ["hostname_unresolvable", NAME]
    assert found.causes[0].culprit == "name localhost:4"


UNPLACED = "  Warning  FailedScheduling  40s (x2 over 40s)  default-scheduler  0/2 nodes are available: 1 Insufficient nvidia.com/gpu."
UNPULLED = '  Warning  Failed  10s (x3 over 60s)  kubelet  Failed to pull image "registry.example/train:v3": rpc error: code = NotFound'
UNMOUNTED = '  Warning  FailedMount  5s  kubelet  MountVolume.SetUp failed for volume "data" : mount failed: exit status 32'
STARTED = "  Normal   Started  8s  kubelet  Started container pytorch"


@pytest.mark.parametrize(
    ("event", "note"),
    [
        (
            UNPLACED,
            "Kubernetes found no node for a pod: 0/2 nodes are available: 1 Insufficient nvidia.com/gpu.",
        ),
        (UNPULLED, "Kubernetes could not pull the image registry.example/train:v3."),
        (
            UNMOUNTED,
            'Kubernetes could not prepare a pod: MountVolume.SetUp failed for volume "data" : mount failed: exit status 32.',
        ),
    ],
)
def test_an_event_keeps_a_pod_from_its_start_until_a_later_one(event: str, note: str) -> None:
    found = first(event)
    assert found.cause.name == NAME
    assert found.message.endswith(note)
    assert not told(event, STARTED).causes
    assert told(STARTED, event).causes


def test_a_pod_that_was_placed_may_lack_its_image_all_the_same() -> None:
    placed = (
        "  Normal   Scheduled  6s  default-scheduler  Successfully assigned default/train-0 to n1"
    )
    assert not told(UNPLACED, placed).causes
    assert told(UNPULLED, placed).causes
