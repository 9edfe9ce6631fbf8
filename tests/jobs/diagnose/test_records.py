"""Dumps of the flight recorder, NCCL RAS and Python stacks are read like logs."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clusterprep.errors import InputError
from clusterprep.jobs.diagnose.command import diagnose
from clusterprep.jobs.diagnose.model import DiagnosedCause, Diagnosis
from clusterprep.jobs.diagnose.records import pickled
from clusterprep.jobs.diagnose.records.file_names import ranks_of
from tests.jobs.diagnose import schedules

RECORDED = Path(__file__).with_name("recorded") / "dumps"
FLOW = "rank_desync_control_flow"


def diagnosed(*names: object) -> Diagnosis:
    diagnosis, _ = diagnose([str(name) for name in names])
    return diagnosis


def first(*names: object) -> DiagnosedCause:
    return diagnosed(*names).causes[0]


def recorded(pattern: str) -> list[Path]:
    return sorted(RECORDED.glob(pattern))


# ---------------------------------------------------------------- dumps of real jobs


@pytest.mark.parametrize(
    ("files", "cause", "culprit", "confidence"),
    [
        pytest.param("loads-[0-9].pkl", FLOW, "rank 2", 0.75, id="behind"),
        pytest.param("loads-[0-9].json", FLOW, "rank 2", 0.75, id="behind-json"),
        pytest.param("leaves-[0-9].pkl", FLOW, "rank 1", 0.75, id="left"),
        pytest.param("evaluates-[0-9].pkl", FLOW, "rank 1", 0.95, id="another-collective"),
        pytest.param("first-[0-9].pkl", FLOW, "rank 0", 0.95, id="a-barrier-of-one"),
        pytest.param("crossed-[0-9].pkl", FLOW, "ranks 0 and 1", 0.95, id="crossed"),
        pytest.param(
            "loads-spy-?.txt", "slow_work_exceeds_timeout", "rank 2", 0.75, id="spy-loads"
        ),
        pytest.param(
            "loads-spy-?.json", "slow_work_exceeds_timeout", "rank 2", 0.75, id="spy-json"
        ),
        pytest.param(
            "loads-fault-*", "slow_work_exceeds_timeout", "rank 2", 0.75, id="fault-handler"
        ),
        pytest.param("evaluates-fault-*", FLOW, "rank 1", 0.75, id="fault-another-collective"),
    ],
)
def test_records_of_real_jobs(files: str, cause: str, culprit: str, confidence: float) -> None:
    found = first(*recorded(files))
    assert (found.cause.name, found.culprit, found.confidence) == (cause, culprit, confidence)


@pytest.mark.torch
def test_a_job_that_hangs_now_and_dumps(tmp_path: Path) -> None:
    source = Path(__file__).with_name("jobs") / "recorder.py"
    script = tmp_path / "train.py"  # in its own folder are modules named as Python's own
    script.write_text(source.read_text())
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    argv = [*launcher, str(script), "crossed", str(tmp_path)]
    subprocess.run(argv, capture_output=True, check=False, timeout=120)
    for pattern in ("crossed-?.pkl", "crossed-?.json"):
        assert first(*sorted(tmp_path.glob(pattern))).culprit == "ranks 0 and 1"


def test_what_the_rank_did_is_told_with_the_line_of_the_program() -> None:
    found = first(*recorded("loads-[0-9].pkl"))
    assert "ranks 0, 1, 3 wait in ALLREDUCE #6 at train.py:48 for rank 2" in found.message
    texts = [line.text for line in found.lines]
    assert texts[0].startswith("rank 2: last called ALLREDUCE #5")


def test_a_stack_says_why_the_rank_of_the_dump_is_behind() -> None:
    found = first(*recorded("loads-[0-9].pkl"), *recorded("loads-spy-?.txt"))
    assert found.cause.name == "slow_work_exceeds_timeout"
    assert found.culprit == "rank 2"
    assert "rank 2 loads data at train.py:28" in found.message


def test_a_job_that_ended_well_has_no_cause() -> None:
    assert diagnosed(*recorded("healthy-[0-9].pkl")).causes == ()


def test_a_part_of_the_dumps_is_enough() -> None:
    files = [path for path in recorded("loads-[0-9].pkl") if "-1." not in path.name]
    assert first(*files).culprit == "rank 2"


def test_one_dump_alone_blames_no_rank() -> None:
    assert diagnosed(RECORDED / "loads-0.pkl").causes == ()


# ---------------------------------------------------------------- simulated jobs

FAULTS = ("behind", "another operation", "another size", "another type", "one more")
VERSIONS = ("2.0", "2.3", "2.4", "2.5", "2.7", "2.9", "2.10")


def planted(seed: int, fault: str) -> tuple[schedules.Job, int] | None:
    """Return a job with a fault and the rank that has it; None if the job has no place for it."""
    job = schedules.healthy(seed)
    draw = random.Random(seed + 1)
    rank = draw.randrange(len(job.calls))
    places = schedules.world_calls(job, rank)
    if not places or len(job.calls) < 3:
        return None
    schedules.plant(job, fault, rank, draw.choice(places))
    job.run()
    return job, rank


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str, tmp_path: Path) -> None:
    seen = 0
    for seed in range(40):
        play = planted(seed, fault)
        if play is None:
            continue
        job, rank = play
        folder = tmp_path / str(seed)
        folder.mkdir()
        version = VERSIONS[seed % len(VERSIONS)]
        files = schedules.write(job, folder, version, as_json=seed % 3 == 0)
        found = first(*files)
        assert found.culprit == f"rank {rank}", (seed, found.message)
        assert found.cause.name in {FLOW, "collective_mismatch"}
        assert found.confidence >= 0.7
        seen += 1
    assert seen > 20


def test_healthy_jobs_have_no_cause(tmp_path: Path) -> None:
    for seed in range(60):
        job = schedules.healthy(seed)
        job.run()
        folder = tmp_path / str(seed)
        folder.mkdir()
        files = schedules.write(job, folder, VERSIONS[seed % len(VERSIONS)], kept=5)
        assert diagnosed(*files).causes == ()


def test_calls_that_are_under_way_are_no_fault(tmp_path: Path) -> None:
    for seed in range(30):
        play = planted(seed, "behind")
        if play is not None:
            folder = tmp_path / str(seed)
            folder.mkdir()
            assert diagnosed(*schedules.write(play[0], folder, after=1.0)).causes == ()


def test_a_file_with_a_time_from_elsewhere_is_compared(tmp_path: Path) -> None:
    job, rank = next(filter(None, (planted(seed, "behind") for seed in range(9))))
    assert first(*schedules.write(job, tmp_path, after=-1e6)).culprit == f"rank {rank}"


def test_the_log_of_a_job_names_the_same_rank_as_its_dumps(tmp_path: Path) -> None:
    for seed in range(40):
        play = planted(seed, "behind")
        if play is None or len(play[0].groups) > 1:
            continue
        job, rank = play
        folder = tmp_path / str(seed)
        folder.mkdir()
        log = folder / "train.log"
        log.write_text(f"world_size={len(job.calls)}\n" + schedules.log(job))
        files = schedules.write(job, folder)
        assert first(*files).culprit == f"rank {rank}"
        assert first(log).culprit == f"rank {rank}"
        assert first(log, *files).culprit == f"rank {rank}"


@pytest.mark.parametrize(
    "names",
    ["nccl_trace_rank_{}", "comm_lib_trace_rank_{}", "fr-{}.bin", "{}/trace.pkl", "job-77-w{}.x"],
)
def test_names_of_files_do_not_matter(names: str, tmp_path: Path) -> None:
    job, rank = next(filter(None, (planted(seed, "behind") for seed in range(9))))
    for number in job.calls:
        (tmp_path / str(number)).mkdir()
    assert first(*schedules.write(job, tmp_path, names=names)).culprit == f"rank {rank}"


def test_a_file_that_does_not_tell_its_rank_is_blamed_by_its_name(tmp_path: Path) -> None:
    job = schedules.healthy(3)
    schedules.plant(job, "behind", 1, schedules.world_calls(job, 1)[0])
    job.run()
    files = schedules.write(job, tmp_path)
    (tmp_path / "nccl_trace_rank_0").rename(tmp_path / "this")
    (tmp_path / "nccl_trace_rank_1").rename(tmp_path / "that")
    diagnosis = diagnosed(tmp_path / "this", tmp_path / "that", *files[2:])
    assert (diagnosis.causes[0].culprit or "").endswith("that")
    assert "name it rank3.pkl" in diagnosis.notices[0]


def test_ranks_without_a_dump_are_named_below_one_half(tmp_path: Path) -> None:
    job = schedules.healthy(4)
    rank = len(job.calls) - 1
    schedules.plant(job, "behind", rank, schedules.world_calls(job, rank)[0])
    job.run()
    found = first(*schedules.write(job, tmp_path, without=[rank]))
    assert found.culprit == f"rank {rank}"
    assert found.confidence < 0.5


def test_a_recorder_that_overwrote_its_first_calls_is_compared_by_the_rest(tmp_path: Path) -> None:
    job, rank = next(filter(None, (planted(seed, "behind") for seed in range(9))))
    assert first(*schedules.write(job, tmp_path, kept=4)).culprit == f"rank {rank}"


def test_half_of_a_coalesced_group_is_no_other_operation(tmp_path: Path) -> None:
    for rank in range(2):
        entries = []
        for record, seq in ((0, 1), (1, 1), (2, 2)):
            entries.append(
                {
                    "record_id": record,
                    "process_group": ("0", "default_pg"),
                    "profiling_name": "nccl:_all_gather_base",
                    "collective_seq_id": seq,
                    "p2p_seq_id": 0,
                    "is_p2p": False,
                    "input_sizes": [[8]],
                    "output_sizes": [[16]],
                    "state": "completed",
                }
            )
        dump = {"version": "2.10", "entries": entries[rank:], "pg_config": {}}
        (tmp_path / f"rank{rank}.pkl").write_bytes(pickle.dumps(dump, 2))
    assert diagnosed(*sorted(tmp_path.glob("*.pkl"))).causes == ()


def test_the_chain_of_waiting_ranks_is_followed_to_its_end(tmp_path: Path) -> None:
    """Rank 3 is absent from a pair; rank 2 waits for it there, and all others for rank 2."""
    everyone = schedules.Call("0", "all_reduce", 4096, 40)
    pair = schedules.Call("2", "all_reduce", 4096, 41)
    other = schedules.Call("1", "all_reduce", 4096, 41)
    calls = {
        0: [everyone, other, everyone],
        1: [everyone, other, everyone],
        2: [everyone, pair, everyone],
        3: [everyone],
    }
    job = schedules.Job({"0": (0, 1, 2, 3), "1": (0, 1), "2": (2, 3)}, calls)
    job.run()
    found = first(*schedules.write(job, tmp_path))
    assert found.culprit == "rank 3"


def peers(
    tmp_path: Path, rows: dict[int, list[tuple[str, str]]], *, together: bool = False
) -> list[Path]:
    """Write dumps with sends and receives, each a name and a state; together in one group."""
    files: list[Path] = []
    for rank, calls in rows.items():
        entries = []
        for number, (name, state) in enumerate(calls):
            entries.append(
                {
                    "record_id": number,
                    "pg_id": 1,
                    "process_group": ("1", "pipeline"),
                    "profiling_name": f"nccl:{name}",
                    "collective_seq_id": 0,
                    "p2p_seq_id": 1 if together else number + 1,
                    "is_p2p": True,
                    "input_sizes": [[8]],
                    "output_sizes": [[8]],
                    "input_dtypes": ["Float"],
                    "output_dtypes": ["Float"],
                    "state": state,
                    "time_created_ns": 1_000_000_000,
                    "timeout_ms": 600_000,
                    "frames": [],
                }
            )
        config = {"1": {"name": "1", "desc": "pipeline", "ranks": "[0, 1, 2]"}}
        path = tmp_path / f"rank{rank}.pkl"
        path.write_bytes(
            pickle.dumps({"version": "2.10", "entries": entries, "pg_config": config}, 2)
        )
        files.append(path)
    return files


def test_a_receive_without_its_send_blames_the_sender(tmp_path: Path) -> None:
    rows = {
        0: [("send 0->1", "completed")],
        1: [("recv 1<-0", "completed"), ("recv 1<-0", "started")],
        2: [("recv 2<-1", "started")],
    }
    assert first(*peers(tmp_path, rows)).culprit == "rank 0"


def test_calls_of_a_coalesced_group_have_its_state(tmp_path: Path) -> None:
    rows = {
        0: [("send 0->1", "scheduled"), ("coalesced", "completed")],
        1: [("coalesced", "completed")],  # the recorder overwrote what stood before
        2: [],
    }
    assert diagnosed(*peers(tmp_path, rows, together=True)).causes == ()
    stuck = {
        0: [("send 0->1", "scheduled"), ("coalesced", "started")],
        1: [("send 1->2", "completed")],
        2: [],
    }
    assert first(*peers(tmp_path, stuck, together=True)).culprit == "rank 1"


def test_pairs_under_way_blame_none(tmp_path: Path) -> None:
    rows = {0: [("send 0->1", "started")], 1: [("recv 1<-0", "started")], 2: []}
    assert diagnosed(*peers(tmp_path, rows)).causes == ()


# ---------------------------------------------------------------- hostile and damaged files


class Runs:
    """A value whose pickle calls something when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_call_something_is_refused(protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    path = tmp_path / "nccl_trace_rank_0"
    dump = {"version": "2.10", "entries": [Runs(target)]}
    path.write_bytes(pickle.dumps(dump, protocol=protocol))
    with pytest.raises(InputError) as caught:
        diagnosed(path)
    (problem,) = caught.value.problems
    assert problem.file == str(path)
    assert "GLOBAL at byte" in problem.message
    assert problem.hint
    assert not target.exists()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x80\x02]" + b"2" + b"\x86" * 3 + b".", id="too-few-values"),
        pytest.param(b"\x80\x02" + b"(" * 10_000 + b".", id="deep"),
        pytest.param(b"\x80\x02r\xff\xff\xff\x7f.", id="far-memo-of-nothing"),
        pytest.param(b"\x80\x02}r\xff\xff\xff\x7fh\x00.", id="far-memo"),
        pytest.param(b"\x80\x02\x8e" + b"\xff" * 8 + b".", id="size-of-bytes"),
        pytest.param(b"\x80\x02\x8b\xff\xff\xff\x7f.", id="size-of-number"),
        pytest.param(b"\x80\x02})2\x86" + b"2\x86" * 200 + b"K\x01s.", id="costly-key"),
        pytest.param(b"\x80\x02L" + b"9" * 100_000 + b"\n.", id="long-number"),
        pytest.param(b"\x80\x02.", id="nothing"),
        pytest.param(b"\x80\x02\xff.", id="unknown-operation"),
        pytest.param(b"\x80\x63}.", id="unknown-protocol"),
    ],
)
def test_a_hostile_pickle_costs_nothing(data: bytes) -> None:
    started = time.monotonic()
    with pytest.raises(pickled.PickleError):
        pickled.loads(data)
    assert time.monotonic() - started < 1


def test_lists_that_double_sixty_times_stay_shared(tmp_path: Path) -> None:
    value: list[Any] = ["ha"]
    for _ in range(60):
        value = [value, value]
    entry = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 1, "frames": value}
    path = tmp_path / "rank0.pkl"
    path.write_bytes(pickle.dumps({"version": "2.10", "entries": [entry], "pg_config": value}, 2))
    assert diagnosed(path).causes == ()


def test_every_cut_of_a_dump_is_refused() -> None:
    data = (RECORDED / "loads-0.pkl").read_bytes()
    for end in range(len(data)):
        with pytest.raises(pickled.PickleError):
            pickled.loads(data[:end])


def test_a_spoilt_dump_is_refused_or_read(tmp_path: Path) -> None:
    data = (RECORDED / "loads-0.pkl").read_bytes()
    draw = random.Random(5)
    path = tmp_path / "rank0"
    for _ in range(400):
        spoilt = bytearray(data)
        for _ in range(draw.randint(1, 6)):
            spoilt[draw.randrange(2, len(spoilt))] = draw.randrange(256)
        path.write_bytes(spoilt)
        with contextlib.suppress(InputError):
            diagnosed(path, RECORDED / "loads-1.pkl", RECORDED / "loads-2.pkl")


def test_plain_values_are_read_as_pickle_reads_them() -> None:
    value = {"a": [1, -1, 2**70, True, None, 1.5, (), (1,), (1, 2, 3, 4)], "b": {"ü": "x" * 300}}
    for protocol in range(6):
        data = pickle.dumps([value, value["a"]], protocol=protocol)
        assert pickled.loads(data) == [value, value["a"]]


def test_a_checkpoint_is_no_dump(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pkl"
    path.write_bytes(pickle.dumps({"model": [1, 2]}, 2))
    with pytest.raises(InputError, match="no dump of a flight recorder"):
        diagnosed(path)


def test_a_cut_json_dump_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text((RECORDED / "loads-0.json").read_text()[:900])
    with pytest.raises(InputError, match="no complete JSON"):
        diagnosed(path)


def test_a_json_log_stays_a_log(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    row = {"level": "error", "message": "CUDA out of memory. Tried to allocate 2.00 GiB"}
    path.write_text("".join(json.dumps({**row, "profiling_name": ""}) + "\n" for _ in range(3)))
    assert first(path).cause.name == "rank_gpu_oom"


def test_packed_dumps_are_read(tmp_path: Path) -> None:
    files: list[Path] = []
    for source in recorded("loads-[0-9].pkl"):
        path = tmp_path / f"{source.name}.gz"
        path.write_bytes(gzip.compress(source.read_bytes()))
        files.append(path)
    assert first(*files).culprit == "rank 2"


def test_a_missing_file_is_told_as_before(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        diagnosed(tmp_path / "nccl_trace_rank_0")


def test_the_later_dump_of_a_rank_counts(tmp_path: Path) -> None:
    files = recorded("loads-[0-9].pkl")
    older = tmp_path / "old-rank_2.pkl"
    value = pickled.loads((RECORDED / "loads-2.pkl").read_bytes())
    assert isinstance(value, dict)
    older.write_bytes(pickle.dumps({**value, "entries": value["entries"][:3]}, 2))
    renamed: list[Path] = []
    for rank, source in enumerate(files):
        path = tmp_path / f"rank_{rank}.pkl"
        path.write_bytes(source.read_bytes())
        renamed.append(path)
    diagnosis = diagnosed(older, *renamed)
    assert "the later one counts" in diagnosis.notices[0]
    assert "ALLREDUCE #5" in diagnosis.causes[0].message


def test_two_thousand_calls_of_16_ranks_take_seconds(tmp_path: Path) -> None:
    call = schedules.Call("0", "all_reduce", 4096, 40)
    job = schedules.Job({"0": tuple(range(16))}, {rank: [call] * 2_000 for rank in range(16)})
    job.entered = {rank: 1_999 if rank == 9 else 2_000 for rank in range(16)}
    job.ended = {rank: set(range(1_999)) for rank in range(16)}
    job.number = lambda rank, index: index + 1  # type: ignore[method-assign]
    files = schedules.write(job, tmp_path)
    started = time.process_time()
    assert first(*files).culprit == "rank 9"
    assert time.process_time() - started < 15


# ---------------------------------------------------------------- names


def test_ranks_of_names() -> None:
    assert ranks_of(["a/rank_12", "Rank3.txt"]) == {"a/rank_12": 12, "Rank3.txt": 3}
    assert ranks_of(["n1-w0.bin", "n1-w1.bin"], [0, 1]) == {"n1-w0.bin": 0, "n1-w1.bin": 1}
    assert ranks_of(["x-41772.bin", "x-41990.bin"], [0, 1]) == {}
    assert ranks_of(["only-3.bin"], [0, 1]) == {}


# ---------------------------------------------------------------- NCCL RAS

RAS_HEAD = """\
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
RAS_BEHIND = (
    RAS_HEAD
    + """\
    0         1         2         4         8         8   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 641
  1 ranks have launched up to operation 640
  Rank 5 -- GPU 1 managed by process 4242 on node 10.9.0.8

"""
)
RAS_ONE_BEHIND = RAS_BEHIND.replace(
    """\
  1 ranks have launched up to operation 640
  Rank 5 -- GPU 1 managed""",
    """\
  Rank 5 has launched up to operation 640 -- GPU 1 managed""",
)
RAS_GONE = (
    RAS_HEAD
    + """\
    0         1         2       3-4         8         7   RUNNING  INCOMPLETE

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 4242 on node 10.9.0.8 managing GPU 1

#0-0 (fa93daea854b060b) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 5 -- GPU 1 managed by process 4242 on node 10.9.0.8

Warnings
========

"""
)
RAS_OLD_GONE = RAS_GONE.replace(
    "  Rank 5 -- GPU 1 managed by process 4242 on node 10.9.0.8\n", "  The missing rank: 5\n"
)
RAS_ERROR = (
    RAS_HEAD
    + """\
    0         1         2         4         8         8   RUNNING  ERROR

Errors
======

#0-0 (fa93daea854b060b) ERROR
  Asynchronous errors on 3 ranks
  2 ranks reported Remote process error
  Rank 0 -- GPU 0 managed by process 4240 on node 10.9.0.7
  Rank 1 -- GPU 1 managed by process 4241 on node 10.9.0.7
  Rank 5 reported Unhandled CUDA error -- GPU 1 managed by process 4242 on node 10.9.0.8

Warnings
========

"""
)


@pytest.mark.parametrize(
    ("text", "cause", "confidence"),
    [
        pytest.param(RAS_BEHIND, FLOW, 0.45, id="one-look"),
        pytest.param(RAS_ONE_BEHIND, FLOW, 0.45, id="one-look-one-line"),
        pytest.param(RAS_BEHIND * 2, FLOW, 0.75, id="two-looks"),
        pytest.param(RAS_ONE_BEHIND * 2, FLOW, 0.75, id="two-looks-one-line"),
        pytest.param(RAS_GONE, FLOW, 0.45, id="dead"),
        pytest.param(RAS_OLD_GONE, FLOW, 0.45, id="dead-2.24"),
    ],
)
def test_ras_names_the_rank(text: str, cause: str, confidence: float, tmp_path: Path) -> None:
    path = tmp_path / "ras.txt"
    path.write_text(text)
    found = first(path)
    assert (found.cause.name, found.confidence) == (cause, confidence)
    assert "5" in (found.culprit or "")
    from_stdin, _ = diagnose(["-"], stdin=io.BytesIO(text.encode()))
    assert from_stdin.causes[0].culprit == found.culprit


def test_the_error_of_a_rank_comes_before_those_of_its_peers(tmp_path: Path) -> None:
    path = tmp_path / "ras.txt"
    path.write_text(RAS_ERROR)
    culprits = {found.cause.name: found.culprit for found in diagnosed(path).causes}
    assert culprits["gpu_hardware_fault"] == "rank 5"


def test_a_time_out_in_the_log_proves_what_ras_shows(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    timeout = (
        "[rank0]:[E603 17:48:01.0 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=641, OpType=ALLREDUCE, NumelIn=8652160, "
        "NumelOut=8652160, Timeout(ms)=600000) ran for 600068 milliseconds before timing out.\n"
    )
    path.write_text(RAS_BEHIND + timeout)
    assert first(path).culprit == "rank 5"


def test_counts_that_move_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "ras.txt"
    later = RAS_BEHIND.replace("641", "700").replace("640", "699")
    path.write_text(RAS_BEHIND + later)
    assert diagnosed(path).causes == ()


def test_a_healthy_job_of_ras_has_no_cause(tmp_path: Path) -> None:
    path = tmp_path / "ras.txt"
    row = "    0         1         2         4         8         8   RUNNING      OK\n"
    path.write_text(RAS_HEAD + row + "\nErrors\n======\n\nWarnings\n========\n")
    assert diagnosed(path).causes == ()


def ras_document(counts: dict[int, int], missing: dict[int, bool], size: int = 4) -> dict[str, Any]:
    """Return what `ncclras -f json` prints, with the AllReduce count of each rank."""
    ranks = []
    for rank, count in counts.items():
        ranks.append(
            {
                "rank": rank,
                "host": "10.9.0.7",
                "pid": 4000 + rank,
                "cuda_dev": rank,
                "nvml_dev": rank,
                "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
                "collective_counts": {"AllReduce": count, "Broadcast": 3},
            }
        )
    gone = []
    for rank, is_dead in missing.items():
        status = {"unresponsive": not is_dead, "considered_dead": is_dead}
        gone.append({"rank": rank, "host": "10.9.0.8", "pid": 4000 + rank, "status": status})
    communicator = {
        "hash": "0xfa93",
        "size": size,
        "ranks_count": len(ranks),
        "missing_ranks_count": len(gone),
        "ranks": ranks,
        "missing_ranks": gone,
    }
    return {
        "nccl_version": "2.29.2",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2031-03-04 12:00:00",
        "communicators_count": 1,
        "communicators": [communicator],
        "ras": {"collection_time_sec": 0.1, "timeouts_count": 0},
    }


def test_ranks_that_are_no_ranks_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "ras.txt"
    row = "  Rank 1057455228 -- [process information not found]\n"
    path.write_text(RAS_GONE.replace("Warnings\n", f"{row}\nWarnings\n"))
    assert first(path).culprit == "rank 5"


def test_ras_in_json(tmp_path: Path) -> None:
    behind = {0: 641, 1: 641, 2: 640, 3: 641}
    looks = [tmp_path / "first.json", tmp_path / "second.json"]
    for look in looks:
        look.write_text(json.dumps(ras_document(behind, {}), indent=2))
    assert (first(looks[0]).culprit, first(looks[0]).confidence) == ("rank 2", 0.45)
    assert (first(*looks).culprit, first(*looks).confidence) == ("rank 2", 0.75)
    gone = tmp_path / "gone.json"
    gone.write_text(json.dumps(ras_document({0: 5, 1: 5, 2: 5}, {3: True})))
    assert first(gone).culprit == "rank 3"
    well = tmp_path / "well.json"
    well.write_text(json.dumps(ras_document(dict.fromkeys(range(4), 9), {})))
    assert diagnosed(well).causes == ()


# ---------------------------------------------------------------- stacks

WAITS = """\
  File "/opt/site-packages/torch/distributed/distributed_c10d.py", line 28 in all_reduce
  File "/opt/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/user/train.py", line 88 in step
  File "/home/user/train.py", line 120 in <module>
"""
SAVES = """\
  File "/opt/site-packages/torch/serialization.py", line 944 in _save
  File "/opt/site-packages/torch/serialization.py", line 652 in save
  File "/home/user/train.py", line 95 in keep
  File "/home/user/train.py", line 120 in <module>
"""
READER = """\
Thread 0x00007f59dffb6c00 (most recent call first):
  File "/usr/local/lib/python3.11/threading.py", line 331 in wait
  File "/usr/local/lib/python3.11/threading.py", line 1002 in _bootstrap

"""


def fault_handler(frames: str, start: str = "") -> str:
    return f"{start}{READER}Current thread 0x00007f5900000000 (most recent call first):\n{frames}"


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("", id="signal"),
        pytest.param("Timeout (0:10:00)!\n", id="dump-traceback-later"),
        pytest.param("Fatal Python error: Aborted\n\n", id="abort"),
    ],
)
def test_a_rank_that_saves_while_the_others_wait(start: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    rows: list[str] = []
    for rank in range(4):
        text = fault_handler(SAVES if rank == 0 else WAITS, start)
        rows += [f"[rank{rank}]: {row}" for row in text.splitlines()]
    log.write_text("\n".join(rows) + "\n")
    found = first(log)
    assert (found.cause.name, found.culprit) == ("slow_work_exceeds_timeout", "rank 0")
    assert "rank 0 saves or loads a checkpoint at train.py:95" in found.message


def test_the_stack_of_a_crash_is_no_whereabouts(tmp_path: Path) -> None:
    for rank in range(4):
        start = "Fatal Python error: Segmentation fault\n\n" if rank == 0 else ""
        text = fault_handler(SAVES if rank == 0 else WAITS, start)
        (tmp_path / f"rank{rank}.log").write_text(text)
    assert "slow_work_exceeds_timeout" not in {
        found.cause.name for found in diagnosed(*sorted(tmp_path.glob("*.log"))).causes
    }


def test_where_ranks_stand_after_an_error_of_the_network_says_little(tmp_path: Path) -> None:
    for rank in range(4):
        text = fault_handler(SAVES if rank == 0 else WAITS, "Fatal Python error: Aborted\n\n")
        error = "ncclRemoteError: A call failed possibly due to a network error\n"
        (tmp_path / f"rank{rank}.log").write_text(error + text)
    names = {found.cause.name for found in diagnosed(*sorted(tmp_path.glob("*.log"))).causes}
    assert "slow_work_exceeds_timeout" not in names


def test_ranks_that_run_in_many_places_are_a_job_that_runs(tmp_path: Path) -> None:
    for rank in range(4):
        frames = WAITS.replace("88", str(60 + rank)) if rank else SAVES
        (tmp_path / f"rank{rank}.log").write_text(fault_handler(frames))
    assert diagnosed(*sorted(tmp_path.glob("*.log"))).causes == ()


def test_all_in_one_collective_blames_none(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text(fault_handler(WAITS))
    assert diagnosed(*sorted(tmp_path.glob("*.log"))).causes == ()


def test_py_spy_of_many_processes_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    parts: list[str] = []
    for rank in range(4):
        text = (RECORDED / f"loads-spy-{rank}.txt").read_text()
        parts.append(f"== rank {rank} ==\n{text}\n")
    path.write_text("".join(parts))
    assert first(path).culprit == "rank 2"
    diagnosis, _ = diagnose(["-"], stdin=io.BytesIO(path.read_bytes()))
    assert diagnosis.causes[0].culprit == "rank 2"


def test_processes_are_named_where_ranks_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    texts = [(RECORDED / f"loads-spy-{rank}.txt").read_text() for rank in range(4)]
    path.write_text("\n".join(texts))
    pid = re.search(r"Process (\d+)", texts[2])
    assert pid
    assert first(path).culprit == f"process {pid[1]}"


def test_a_log_from_standard_input_is_whole(tmp_path: Path) -> None:
    text = "a line\n" * 20_000 + "[rank2]: torch.OutOfMemoryError: CUDA out of memory.\n"
    diagnosis, _ = diagnose(["-"], stdin=io.BytesIO(text.encode()))
    assert diagnosis.causes[0].culprit == "rank 2"
    assert diagnosis.files == {"-": 20_001}
