"""Jobs that their own program ended: which rank, which line, and what only follows from it."""

# ruff: noqa: E501 - lines of logs are as long as they are

from __future__ import annotations

from pathlib import Path

import pytest

from clusterprep.jobs.diagnose.command import diagnose as diagnose_files
from clusterprep.jobs.diagnose.forms import TABLE
from clusterprep.jobs.diagnose.model import Diagnosis
from clusterprep.jobs.diagnose.prefixes import line_of
from clusterprep.jobs.diagnose.ranking import diagnose, needles
from tests.jobs.diagnose.crashes import LATER, PUBLIC, Seen, summary


def told(text: str) -> Diagnosis:
    """The diagnosis of what reading keeps of a log."""
    wanted = (*needles(), b'", line 0')  # tracebacks are kept whole
    rows = text.splitlines()
    lines = [
        line_of("train.log", number, row, number)
        for number, row in enumerate(rows, 1)
        if any(needle in row.encode().translate(TABLE) for needle in wanted)
    ]
    return diagnose(lines, {"train.log": len(rows)})


@pytest.mark.parametrize("seen", PUBLIC, ids=lambda seen: seen.name)
def test_what_people_saw(seen: Seen) -> None:
    found = told(seen.log)
    top = found.causes[0]
    assert top.cause.name == seen.cause
    assert top.culprit in seen.culprits
    assert seen.said in top.message
    assert found.code == 1


def of_files(**texts: str) -> Diagnosis:
    """The diagnosis of several files, `rank0="…"` being rank0.log."""
    lines = []
    counts = {}
    for name, text in texts.items():
        rows = text.splitlines()
        counts[f"{name}.log"] = len(rows)
        for number, row in enumerate(rows, 1):
            lines.append(line_of(f"{name}.log", number, row, len(lines)))
    return diagnose(lines, counts)


def names(found: Diagnosis) -> list[str]:
    return [one.cause.name for one in found.causes]


KEY_ERROR = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/u/train.py", line 9, in <module>
[rank3]:     main()
[rank3]:   File "/home/u/data.py", line 40, in load
[rank3]:     return row["pixels"]
[rank3]: KeyError: 'pixels'"""
TIMEOUT = (
    "[rank{rank}]:[E304 12:10:00.000000000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=40000, OpType=ALLREDUCE, NumelIn=100000, "
    "NumelOut=100000, Timeout(ms)=600000) ran for 600068 milliseconds before timing out."
)
TIMEOUTS = "\n".join(TIMEOUT.format(rank=rank) for rank in (0, 1, 2))
STEPS = "\n".join(f"step {number}: loss 2.{number}" for number in range(2000))


def test_a_rank_that_raised_outranks_the_timeouts_of_the_others() -> None:
    found = told(f"{KEY_ERROR}\n{TIMEOUTS}\n{summary(3, 1)}")
    top = found.causes[0]
    assert (top.cause.name, top.culprit, top.confidence) == ("program", "rank 3", 0.95)
    assert "KeyError of rank 3 at data.py:40: 'pixels'" in top.message


def test_the_files_of_ranks_may_be_read_in_any_order() -> None:
    bare = KEY_ERROR.replace("[rank3]: ", "")
    timeouts = {f"rank{rank}": TIMEOUT.format(rank=rank) for rank in (0, 1, 2)}
    top = of_files(**timeouts, rank3=bare).causes[0]
    assert (top.cause.name, top.culprit) == ("program", "rank 3")


def test_what_a_rank_raises_after_its_own_timeout_is_no_first_failure() -> None:
    found = told(f"{TIMEOUTS}\n{TIMEOUT.format(rank=3)}\n{KEY_ERROR}")
    assert names(found)[0] != "program" or found.causes[0].confidence < 0.5


def test_what_a_rank_raised_that_did_not_time_out_is_the_answer_wherever_it_stands() -> None:
    top = told(f"{TIMEOUTS}\n{KEY_ERROR}").causes[0]
    assert (top.cause.name, top.culprit) == ("program", "rank 3")


def test_an_exception_is_found_among_those_of_a_thousand_ranks(tmp_path: Path) -> None:
    """Of so many tracebacks not all lines are kept. The prefix is torch's of uncaught exceptions."""
    gone = KEY_ERROR.replace(
        "KeyError: 'pixels'",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote "
        "process exited or there was a network error, NCCL version 2.21.5",
    )
    texts = [gone.replace("rank3", f"rank{rank}") for rank in range(2000)]
    texts[1777] = KEY_ERROR.replace("rank3", "rank1777")
    path = tmp_path / "job.log"
    path.write_text("\n".join(texts))
    found, _ = diagnose_files([str(path)])
    top = found.causes[0]
    assert (top.cause.name, top.culprit) == ("program", "rank 1777")


def test_an_exception_after_which_the_program_goes_on_is_no_failure() -> None:
    found = told(f"{STEPS}\n{KEY_ERROR.replace('[rank3]: ', '')}\n{STEPS}")
    assert found.causes == ()
    assert any("KeyError" in line.message for line in found.unexplained)


def test_an_exception_long_before_the_end_is_no_answer() -> None:
    found = told(f"{KEY_ERROR.replace('[rank3]: ', '')}\n{STEPS}\n{summary(0, 1)}")
    assert all(one.confidence < 0.5 for one in found.causes)


def test_the_root_of_a_chain_is_the_answer_and_the_others_are_shown() -> None:
    found = told("""\
Traceback (most recent call last):
  File "/home/u/config.py", line 5, in load
    return json.loads(text)
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/u/train.py", line 9, in <module>
    main()
RuntimeError: the configuration cannot be read""")
    top = found.causes[0]
    assert "JSONDecodeError at config.py:5" in top.message
    assert len(top.lines) == 2
    assert found.unexplained == ()


def test_the_cause_that_explains_an_exception_is_the_answer() -> None:
    raised = KEY_ERROR.replace(
        "KeyError: 'pixels'", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."
    )
    assert names(told(f"{raised}\n{summary(3, 1)}")) == ["rank_gpu_oom"]


@pytest.mark.parametrize(
    "raised",
    [
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.9.0.7]:4000",
        "RuntimeError: NCCL communicator was aborted on rank 3.",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "torch.distributed.DistStoreError: Socket Timeout",
        "EOFError",
        "RuntimeError: DataLoader worker (pid 12) is killed by signal: Terminated.",
    ],
)
def test_errors_of_peers_are_not_the_programs(raised: str) -> None:
    text = KEY_ERROR.replace("KeyError: 'pixels'", raised)
    assert "program" not in names(told(f"{text}\n{summary(3, 1)}"))


def test_torchruns_error_file_has_the_traceback() -> None:
    found = told("""\
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-03-04_05:06:07
  host      : gpu1
  rank      : 5 (local_rank: 1)
  exitcode  : 1 (pid: 4711)
  error_file: /tmp/torchelastic_ab/none_cd/attempt_0/1/error.json
  traceback : Traceback (most recent call last):
    File "/opt/env/lib/python3.10/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 346, in wrapper
      return f(*args, **kwargs)
    File "/home/u/train.py", line 20, in main
      raise ValueError("no samples")
  ValueError: no samples
============================================================""")
    top = found.causes[0]
    assert (top.cause.name, top.culprit) == ("program", "rank 5")
    assert "train.py:20" in top.message


def test_the_only_rank_is_not_to_blame() -> None:
    raised = KEY_ERROR.replace("[rank3]: ", "")
    assert told(f"{raised}\n{summary(0, 1)}").causes[0].culprit is None
    closing = "W0304 05:06:07.000000 12 api.py:858] Sending process 44 closing signal SIGTERM"
    assert told(f"{raised}\n{closing}\n{summary(2, 1)}").causes[0].culprit == "rank 2"


def test_the_same_exception_of_all_ranks_blames_none() -> None:
    texts = [KEY_ERROR.replace("rank3", f"rank{rank}") for rank in range(4)]
    top = told("\n".join(texts)).causes[0]
    assert (top.cause.name, top.culprit) == ("program", None)


@pytest.mark.parametrize(
    "raised",
    [
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x",
        "urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'",
        "OSError: [Errno 116] Stale file handle",
        "OSError: [Errno 5] Input/output error: '/data/a.parquet'",
        "PermissionError: [Errno 13] Permission denied: '/ckpt'",
        "ModuleNotFoundError: No module named 'flash_attn'",
        "ImportError: /opt/x.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        "omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct",
        "pytorch_lightning.utilities.exceptions.MisconfigurationException: No training batches",
        "AssertionError",
        "soundfile.LibsndfileError: <exception str() failed>",
        "struct.error: unpack requires a buffer of 4 bytes",
        "RuntimeError: Default process group has not been initialized, please make sure to call init_process_group.",
    ],
)
def test_exceptions_of_programs(raised: str) -> None:
    text = KEY_ERROR.replace("KeyError: 'pixels'", raised)
    top = told(f"{text}\n{summary(3, 1)}").causes[0]
    assert (top.cause.name, top.culprit) == ("program", "rank 3")


BARE = KEY_ERROR.replace("[rank3]: ", "")


@pytest.mark.parametrize(
    "before",
    [
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f21>",
        "Error in atexit._run_exitfuncs:",
        "--- Logging error ---",
        "Task exception was never retrieved",
    ],
)
def test_exceptions_that_end_no_process_are_no_failure(before: str) -> None:
    assert told(f"{STEPS}\nTraining finished.\n{before}\n{BARE}").causes == ()


def test_an_exception_of_a_thread_may_be_the_failure() -> None:
    top = told(f"Exception in thread Thread-3 (_pin_memory_loop):\n{BARE}").causes[0]
    assert (top.cause.name, top.confidence) == ("program", 0.45)


def test_a_traceback_that_was_logged_as_a_warning_was_caught() -> None:
    warned = BARE.replace("Traceback", "2031-03-04 12:00:00,123 WARNING Traceback", 1)
    assert told(f"{warned}\nn1:7:7 [0] NCCL INFO Using network Socket").causes == ()


def test_an_error_of_hccl_is_not_the_programs() -> None:
    raised = "RuntimeError: the current working operator name is HcclAllreduce."
    assert "program" not in names(told(BARE.replace("KeyError: 'pixels'", raised)))


def test_prefixes_of_notebooks_that_were_run_are_removed() -> None:
    rows = [f"704.7s\t{1436 + at}\t{row}" for at, row in enumerate(KEY_ERROR.splitlines())]
    top = told("\n".join(rows)).causes[0]
    assert (top.cause.name, top.culprit) == ("program", "rank 3")


@pytest.mark.parametrize("seen", LATER, ids=lambda seen: seen.name)
def test_what_people_saw_later(seen: Seen) -> None:
    found = told(seen.log)
    if seen.cause is None:
        assert found.causes == ()
        assert found.code == 3
        return
    top = found.causes[0]
    assert top.cause.name == seen.cause
    assert top.culprit in seen.culprits
    assert seen.said in top.message


@pytest.mark.parametrize(
    "line",
    [
        "env: UCX_ERROR_SIGNALS=SIGILL,SIGSEGV,SIGBUS,SIGFPE",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "/var/spool/slurmd/job1/slurm_script: line 4: module: command not found",
        "Namespace(error='raise', on_exception='ValueError: x', timeout=900)",
    ],
)
def test_words_of_crashes_in_settings_are_no_crash(line: str) -> None:
    assert told(f"{line}\n{STEPS}\nTraining finished.").causes == ()


def test_a_crash_after_which_the_log_goes_on_for_long_is_no_answer() -> None:
    found = told(f"run.sh: line 3: 71 Segmentation fault (core dumped) python warm_up.py\n{STEPS}")
    assert all(one.confidence < 0.5 for one in found.causes)


def test_of_different_exceptions_the_one_of_torchruns_root_cause_is_the_first() -> None:
    other = KEY_ERROR.replace("rank3", "rank1").replace("KeyError: 'pixels'", "OSError: no data")
    top = told(f"{other}\n{KEY_ERROR}\n{summary(3, 1)}").causes[0]
    assert top.culprit == "rank 3"
    assert "KeyError" in top.message


def test_an_error_file_of_torchrun_is_read_too() -> None:
    text = (
        '{"message": {"message": "ValueError: no samples", "extraInfo": {"py_callstack": '
        '"Traceback (most recent call last):\\n  File \\"train.py\\", line 20\\nValueError: no samples\\n", '
        '"timestamp": "1741064767"}}}'
    )
    top = told(text).causes[0]
    assert top.cause.name == "program"
    assert "ValueError: no samples" in top.message


def test_a_message_below_a_bare_error_is_its_text() -> None:
    found = told(
        "Traceback (most recent call last):\n"
        '  File "model.py", line 264, in predict\n'
        "    x = x.cuda()\n"
        "AssertionError: \n"
        "The NVIDIA driver on your system is too old (found version 10010).\n"
    )
    assert found.causes[0].cause.name == "driver_too_old"


SPAWNED = """\
Traceback (most recent call last):
  File "tools/train_net.py", line 161, in <module>
    launch(main)
  File "/opt/detectron2/engine/launch.py", line 49, in launch
    mp.spawn(main)
Exception:

-- Process 2 terminated with the following error:
Traceback (most recent call last):
  File "/usr/lib/python3/dist-packages/torch/multiprocessing/spawn.py", line 19, in _wrap
    fn(i, *args)
  File "/opt/detectron2/engine/comm.py", line 165, in gather
    {last}
"""


def test_the_exception_of_a_spawned_process_counts_and_not_that_of_its_parent() -> None:
    found = told(SPAWNED.replace("{last}", "x\nKeyError: 'boxes'")).causes[0]
    assert (found.cause.name, found.culprit) == ("program", "process 2")
    assert "KeyError at comm.py:165: 'boxes'" in found.message


def test_a_spawned_process_that_lost_a_peer_is_no_failure_of_its_own() -> None:
    lost = (
        "RuntimeError: [gloo/transport/tcp/pair.cc:575] Connection closed by peer [127.0.1.1]:10482"
    )
    (found,) = told(SPAWNED.replace("{last}", f"x\n{lost}")).causes
    assert (found.cause.name, found.culprit) == ("peer_lost", None)


def test_a_module_that_is_started_and_not_there_is_named() -> None:
    found = told(
        "/opt/env/bin/python: Error while finding module specification for 'torch.distribute.launch' (ModuleNotFoundError: No module named 'torch.distribute')"
    ).causes[0]
    assert "torch.distribute.launch" in found.message


@pytest.mark.parametrize(("code", "culprit"), [(3, "rank 1"), (2, None), (1, None), (127, None)])
def test_an_exit_code_that_only_a_program_chooses_names_the_rank(
    code: int, culprit: str | None
) -> None:
    causes = told(summary(1, code)).causes
    assert [one.cause.name for one in causes] == (["program"] if code in {2, 3} else [])
    assert not causes or causes[0].culprit == culprit


def test_a_library_whose_name_begins_like_a_status_of_the_gpu_is_none() -> None:
    found = told(
        "[rank1]: OSError: libcudnn_ops_infer.so.8: cannot open shared object file: No such file or directory"
    ).causes[0]
    assert found.confidence == 0.95


BOTH = """\
AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'
Failures:
[1]:
  time      : 2031-03-04_05:06:07
  host      : n1
  rank      : 1 (local_rank: 1)
  exitcode  : {other} (pid: 72)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2031-03-04_05:06:07
  host      : n1
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 71)
  error_file: <N/A>"""


@pytest.mark.parametrize(("other", "culprit"), [("-15", "rank 0"), ("1", None)])
def test_the_first_of_torchruns_summary_is_to_blame_unless_another_ended_like_it(
    other: str, culprit: str | None
) -> None:
    head = 'Traceback (most recent call last):\n  File "train.py", line 17, in <module>\n'
    found = told(head + BOTH.replace("{other}", other)).causes[0]
    assert (found.cause.name, found.culprit) == ("program", culprit)


@pytest.mark.parametrize(
    "line",
    [
        "[rank1]: MemoryError",
        "[rank1]: RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 268435456 bytes. Error code 12 (Cannot allocate memory)",
        "[rank1]: RuntimeError: DataLoader timed out after 5 seconds",
    ],
)
def test_memory_of_the_host_and_a_loader_that_waits_are_of_the_rank(line: str) -> None:
    head = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 17, in <module>\n'
    found = told(head + line).causes[0]
    assert (found.cause.name, found.culprit, found.confidence) == ("program", "rank 1", 0.95)


@pytest.mark.parametrize(
    ("code", "cause", "said"),
    [(-24, "external_termination", "ulimit -t"), (-25, "program", "ulimit -f")],
)
def test_a_limit_of_the_shell_that_ends_a_worker_is_told(code: int, cause: str, said: str) -> None:
    found = told(summary(1, code)).causes[0]
    assert found.cause.name == cause
    assert said in found.message


@pytest.mark.parametrize(("code", "count"), [(1, 0), (7, 1), (119, 1), (137, 0)])
def test_a_spawned_process_that_chose_its_exit_code_is_named(code: int, count: int) -> None:
    causes = told(
        f"torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code {code}"
    ).causes
    named = [one.culprit for one in causes if one.cause.name == "program"]
    assert named == ["process 1"] * count


def test_what_the_watchdog_threw_is_no_crash_of_the_program() -> None:
    """torch up to 2.0: github.com/tatsu-lab/stanford_alpaca/issues/207."""
    found = told(
        "terminate called after throwing an instance of 'std::runtime_error'\n"
        "  what():  NCCL error: remote process exited or there was a network error, NCCL version 2.14.3\n"
        "Last error:\n"
        "NET/IB : Got completion from peer 10.9.0.7<39138> with error 12, opcode 0, len 0, vendor err 129\n"
    )
    first = found.causes[0]
    assert (first.cause.name, first.confidence) == ("ib_fabric_unreachable", 0.75)
