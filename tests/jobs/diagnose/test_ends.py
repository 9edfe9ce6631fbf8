"""How schedulers, containers and launchers say that a process ended, and what that proves."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

import pytest

from clusterprep.jobs.diagnose.model import Diagnosis
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose
from clusterprep.reports.diagnosis import render


def told(*texts: str) -> Diagnosis:
    lines = [line_of("job.log", number, text, number) for number, text in enumerate(texts, 1)]
    return diagnose(lines, {"job.log": len(texts)})


STEPS = [f"step {number} loss 2.{number}" for number in range(9)]

FROM_OUTSIDE = [
    "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2031-03-04T12:00:00 DUE TO TIME LIMIT ***",
    "slurmstepd: error: *** STEP 4711.0 CANCELLED AT 2031-03-04T12:00:00 DUE TO TIME LIMIT ***",
    "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2031-03-04T12:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
    "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2031-03-04T12:00:00 DUE TO JOB REQUEUE ***",
    "srun: error: *** STEP 4711.0 CANCELLED AT 2031-03-04T12:00:00 DUE TO PREEMPTION ***",
    "scancel: Terminating job 4711",
    "srun: sending Ctrl-C to StepId=4711.0",
    "salloc: Job allocation 4711 has been revoked.",
    "=>> PBS: job killed: walltime 3611 exceeded limit 3600",
    "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
    "TERM_OWNER: job killed by owner.",
    "TERM_PREEMPT: job killed after preemption",
    "Warning  DeadlineExceeded  5s  job-controller  Job was active longer than specified deadline",
    "Message: Pod was terminated in response to imminent node shutdown.",
    "Message: The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi",
    "Reason: Evicted",
    "Preempted in order to admit critical pod",
    "State: TIMEOUT (exit code 0)",
    "JobState=NODE_FAIL Reason=NodeDown Dependency=(null)",
    "State: CANCELLED (exit code 0)",
    "4711.batch        batch  CANCELLED+      0:15",
    "4711         train      PREEMPTED      0:0",
]
OUT_OF_MEMORY = [
    "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.",
    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.",
    "State: OUT_OF_MEMORY (exit code 0)",
    "4711         train      OUT_OF_ME+    0:125",
    "=>> PBS: job killed: mem 34359738kb exceeded limit 33554432kb",
    "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
    "Message: The node was low on resource: memory. Threshold quantity: 100Mi",
    "Last State: Terminated, Reason: OOMKilled, Exit Code: 137",
    "Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB",
    "oom_reaper: reaped process 4711 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
]
KILLED = [
    "[INFO] [launch.py:347:main] Process 4711 exits with return code = -9",
    "srun: error: gpu-07: task 3: Exited with exit code 137",
    "srun: error: gpu-07: task 3: Killed",
    "mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).",
    "=   KILLED BY SIGNAL: 9 (Killed)",
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
    "train-0 exited with code 137",
    "Back-off restarting failed container; Last State: Terminated; Reason: Error; Exit Code: 137",
    "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.",
    "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL",
]
OF_THE_PROGRAM = [
    "srun: error: gpu-07: task 3: Segmentation fault (core dumped)",
    "srun: error: gpu-07: task 3: Exited with exit code 139",
    "mpirun noticed that process rank 3 with PID 7 on node n1 exited on signal 11 (Segmentation fault).",
    "=   KILLED BY SIGNAL: 11 (Segmentation fault)",
    "[INFO] [launch.py:347:main] Process 4711 exits with return code = -11",
    "Process group worker ended with exit status 136",
    "train-0 exited with code 139",
]


@pytest.mark.parametrize("line", FROM_OUTSIDE)
def test_who_ends_a_job_from_outside_says_so(line: str) -> None:
    found = told(*STEPS, line)
    assert [one.cause.name for one in found.causes] == ["external_termination"]
    assert found.causes[0].confidence >= 0.6
    assert found.code == 1


@pytest.mark.parametrize("line", OUT_OF_MEMORY)
def test_memory_that_ran_out_is_told_by_who_knows(line: str) -> None:
    found = told(*STEPS, line).causes[0]
    assert found.cause.name == "host_oom_kill"
    assert found.confidence >= 0.9
    assert "memory ran out" in found.message


@pytest.mark.parametrize("line", KILLED)
def test_a_sigkill_alone_proves_nothing(line: str) -> None:
    found = told(*STEPS, line)
    assert found.causes[0].cause.name == "host_oom_kill"
    assert found.causes[0].confidence < 0.5
    assert "no line says by what" in found.causes[0].message
    assert found.code == 1


@pytest.mark.parametrize("line", OF_THE_PROGRAM)
def test_a_signal_of_its_own_is_the_programs(line: str) -> None:
    found = told(*STEPS, line).causes[0]
    assert found.cause.name == "program"
    assert found.confidence >= 0.9


def test_a_sigkill_with_a_word_of_the_kernel_is_plain() -> None:
    kernel = "Mar  4 12:00:00 n3 kernel: Out of memory: Killed process 4711 (python) total-vm:1kB"
    found = told("srun: error: n3: task 3: Killed", kernel).causes[0]
    assert (found.cause.name, found.confidence, found.culprit) == ("host_oom_kill", 0.95, "host n3")


def test_the_end_of_the_others_is_not_the_end_from_outside() -> None:
    """torchrun ends the other ranks, and Slurm the other tasks, after one has failed."""
    found = told(
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/home/u/train.py", line 9, in <module>',
        "[rank3]: KeyError: 'lr'",
        "W0304 05:06:07.000000 12 api.py:858] Sending process 44 closing signal SIGTERM",
        "srun: error: n1: task 0: Exited with exit code 1",
        "srun: Terminating StepId=4711.0",
        "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2031-03-04T12:00:00 ***",
    ).causes[0]
    assert (found.cause.name, found.culprit) == ("program", "rank 3")


def test_a_job_that_was_ended_raises_what_it_likes_afterwards() -> None:
    found = told(
        *STEPS,
        "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2031-03-04T12:00:00 DUE TO TIME LIMIT ***",
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 9, in <module>',
        "ValueError: I/O operation on closed file",
    ).causes
    assert found[0].cause.name == "external_termination"


@pytest.mark.parametrize(
    "line",
    [
        "Training finished.",
        "{'train_runtime': 3600.1, 'train_samples_per_second': 12.8, 'epoch': 1.0}",
        "`Trainer.fit` stopped: `max_epochs=1` reached.",
        "# Out of bounds values : 0 OK",
        " [after training is done] datetime: 2025-09-02 18:22:10",
        "[2031-03-04 12:00:00,123] [INFO] [launch.py:347:main] Process 4711 exits successfully.",
        "State: COMPLETED (exit code 0)",
    ],
)
def test_only_a_good_end_makes_a_log_with_harmless_lines_a_success(line: str) -> None:
    harmless = "n1:7:7 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin."
    assert told(harmless).code == 3
    lines = line.splitlines()
    assert told(harmless, *lines).code == 0
    assert told(harmless, *lines, "ERROR: the optimizer state failed to load").code == 3
    assert told(harmless, "ERROR: the cache failed to load, it is made anew", *lines).code == 0


@pytest.mark.parametrize(
    "line",
    [
        "Loading checkpoint shards: 100%|##########| 31/31 [01:02<00:00, 8.01it/s]",
        "Running tokenizer on dataset: 100%|##########| 500/500 [01:02<00:00, 8.01 examples/s]",
        "n1:7:7 [0] NCCL INFO comm 0x55 rank 0 nranks 8 cudaDev 0 busId 1000 - Init COMPLETE",
        "Done loading the tokenizer",
        "Initialization completed successfully",
    ],
)
def test_what_stands_before_many_a_hang_is_no_good_end(line: str) -> None:
    harmless = "n1:7:7 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin."
    assert told(harmless, line).code == 3


# ---------------------------------------------------------------- the page


def page_of(*texts: str, file: str = "job.log") -> str:
    lines = [line_of(file, number, text, number) for number, text in enumerate(texts, 1)]
    diagnosis = diagnose(lines, {file: len(texts)})
    return render(diagnosis, "console", color=False, verbose=0, width=100, ascii_only=False)


def test_errors_that_nothing_explains_are_shown_beside_a_cause() -> None:
    shown = page_of(
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "ERROR: the cache of tokens failed to load",
    )
    assert "FATAL    rank_gpu_oom" in shown
    assert "the cache of tokens failed to load" in shown


def test_harmless_lines_without_a_good_end_are_no_pass() -> None:
    harmless = "n1:7:7 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin."
    shown = page_of(harmless)
    assert "UNKNOWN" in shown
    assert "nothing shows that the job ended well" in shown
    assert "PASS" in page_of(harmless, "Training finished.")


def test_of_a_long_name_the_end_is_shown() -> None:
    folder = "/home/somebody/.local/state/clusterprep/launch/20261122-234832-7bd6"
    shown = page_of("[rank2]: ValueError: of its own", file=f"{folder}/rank-2.log")
    assert "7bd6/rank-2.log:1" in shown


# ---------------------------------------------------------------- what follows from an end

WATCHDOG = (
    "[rank{rank}]:[E304 12:10:00.000000000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=40000, OpType=ALLREDUCE, NumelIn=100000, "
    "NumelOut=100000, Timeout(ms)=600000) ran for 600068 milliseconds before timing out."
)
TIMEOUTS = [WATCHDOG.format(rank=rank) for rank in (0, 1, 2)]
SIGKILL = "E0304 12:00:00.000000 12 api.py:874] failed (exitcode: -9) local_rank: 3 (pid: 71) of binary: python"


def test_ranks_wait_for_one_that_was_killed_before() -> None:
    found = told(SIGKILL, *TIMEOUTS).causes
    assert (found[0].cause.name, found[0].culprit) == ("host_oom_kill", "local rank 3")
    assert found[1].confidence < 0.5


def test_a_rank_that_is_killed_after_the_timeouts_explains_none_of_them() -> None:
    late = SIGKILL.replace("12:00:00", "12:20:00")
    assert told(*TIMEOUTS, late).causes[0].cause.name != "host_oom_kill"
    early = told(*TIMEOUTS, SIGKILL).causes[0]  # by its time, wherever it stands
    assert early.cause.name == "host_oom_kill"


def test_the_end_of_one_nodes_launcher_follows_from_the_crash_on_another() -> None:
    ended = "W0304 05:06:08.000000 12 api.py:719] Received 15 death signal, shutting down workers"
    crash = (
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 9, in <module>',
        "KeyError: 'lr'",
    )
    lines = [line_of("node0.log", 1, ended, 0)]
    for number, text in enumerate(crash, 1):
        lines.append(line_of("node1.log", number, text, number))
    names = [one.cause.name for one in diagnose(lines).causes]
    assert names == ["program", "external_termination"]


@pytest.mark.parametrize(
    "end", ["step 8 loss 2.8\nstep 9 loss 2.7", "Terminated", "+ exit 1", "^C", "Job step aborted"]
)
def test_steps_up_to_the_end_are_no_good_end(end: str) -> None:
    """A job that hangs has them too."""
    harmless = "[rank0]: NET/Plugin : No plugin found, using internal implementation"
    assert told(harmless, *STEPS, *end.splitlines()).code == 3


@pytest.mark.parametrize(
    "line",
    [
        "0/9 nodes are available: preemption: 0/9 nodes, No preemption victims found for pod.",
        "The node was terminated unexpectedly: if the node was preempted, had a hardware failure.",
        "This means the task has failed, got preempted, or crashed unexpectedly.",
        "Sequence group 3 is preempted by PreemptionMode.RECOMPUTE mode.",
    ],
)
def test_preemption_as_a_guess_is_none(line: str) -> None:
    assert told(line).causes == ()


def test_memory_that_ran_out_and_was_tried_again_is_not_the_end() -> None:
    found = told(
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has",
        *STEPS,
        *STEPS,
        "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2031-03-04T12:00:00 DUE TO TIME LIMIT ***",
    )
    assert found.causes[0].cause.name == "external_termination"


def test_another_program_that_the_kernel_killed_is_a_hint() -> None:
    found = told("kernel: Out of memory: Killed process 991 (mysqld) total-vm:9000000kB")
    assert [(one.cause.name, one.confidence) for one in found.causes] == [("host_oom_kill", 0.45)]
    assert "mysqld" in found.causes[0].message


def test_what_slurm_ends_after_the_kernel_has_killed_a_task_follows_from_it() -> None:
    found = told(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=8538204.0. Some of the step tasks have been OOM Killed.",
        "srun: error: n2: task 3: Out Of Memory",
        "slurmstepd: error: *** STEP 8538204.0 ON n1 CANCELLED AT 2031-03-04T12:00:00 ***",
        "srun: error: n1: task 0: Terminated",
    )
    confidences = {one.cause.name: one.confidence for one in found.causes}
    assert confidences == {"host_oom_kill": 0.95, "external_termination": 0.27}
    assert not found.unexplained


def test_a_daemon_that_mpirun_lost_is_named_and_not_why() -> None:
    found = told(
        "ORTE has lost communication with a remote daemon.",
        "",
        "  HNP daemon   : [[43015,0],0] on node train-launcher",
        "  Remote daemon: [[43015,0],20] on node train-worker-19",
    ).causes[0]
    assert (found.culprit, found.confidence) == ("host train-worker-19", 0.45)
    assert "may have been ended" in found.message


@pytest.mark.parametrize(
    ("line", "cause", "culprit"),
    [
        pytest.param("srun: error: gpu[03-04]: tasks 16-31: Out Of Memory", "host_oom_kill", "hosts gpu03 and gpu04", id="out-of-memory"),
        pytest.param("srun: error: gpu[03-04]: tasks 16-31: Killed", "host_oom_kill", "hosts gpu03 and gpu04", id="killed"),
        pytest.param("srun: error: gpu03,n[1,7]: tasks 0-2: Killed", "host_oom_kill", "hosts gpu03, n1, n7", id="of-two-names"),
        pytest.param("srun: error: gpu[03-04]: tasks 0,9: Exited with exit code 137", "host_oom_kill", "hosts gpu03 and gpu04", id="137"),
        pytest.param("srun: error: gpu[01-16]: tasks 0-127: Killed", "host_oom_kill", None, id="too-many-to-blame"),
        pytest.param("srun: error: gpu[03-04: tasks 16-31: Killed", "host_oom_kill", "host gpu[03-04", id="cut-off"),
        pytest.param("srun: error: gpu[03-04]: tasks 16-31: Segmentation fault (core dumped)", "program", "hosts gpu03 and gpu04", id="sigsegv"),
        pytest.param("srun: error: gpu-07: task 3: Floating point exception (core dumped)", "program", "host gpu-07", id="sigfpe"),
        pytest.param("srun: error: Node failure on gpu[03-04].", "external_termination", "hosts gpu03 and gpu04", id="node-failure"),
    ],
)  # fmt: skip
def test_the_hosts_that_slurm_folds_are_the_culprits(
    line: str, cause: str, culprit: str | None
) -> None:
    found = told(line).causes[0]
    assert (found.cause.name, found.culprit) == (cause, culprit)


def test_no_check_is_said_to_find_what_a_scheduler_does_later() -> None:
    text = page_of(FROM_OUTSIDE[0])
    assert "external_termination" in text
    assert "before the job starts" not in text


def test_a_list_of_more_hosts_than_are_told_one_by_one_stays_folded() -> None:
    """Two hundred lines of 100,000 hosts each took 4 GB."""
    for hosts, name in (("gpu[1-2]", "hosts gpu1 and gpu2"), ("gpu[1-65]", "host gpu[1-65]")):
        found = told(f"srun: error: {hosts}: tasks 0-64: Out Of Memory").causes[0]
        assert found.culprit == name
