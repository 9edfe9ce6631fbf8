"""What launchers, loggers and kernels put in front, one after the other, and what it tells."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.jobs.diagnose.prefixes import line_of, lines_of
from clusterprep.jobs.diagnose.sources import KeptLine

SAID = "something went wrong"


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        ("", {}),
        ("[rank3]: ", {"rank": 3}),
        ("[rank: 3] ", {"rank": 3}),
        ("[Rank 3] ", {"rank": 3}),
        ("[1,0]<stderr>:", {"rank": 0}),
        ("[1,12]:", {"rank": 12}),
        ("[default7]:", {"local": 7}),
        ("[trainer0|0]:", {"local": 0}),
        ("3: ", {"rank": 3}),
        ("  12: ", {"rank": 12}),
        ("(Worker pid=71, ip=10.0.0.4) ", {"host": "10.0.0.4", "pid": 71}),
        ("(RayTrainWorker pid=71) ", {"pid": 71}),
        ("worker-1: ", {"host": "worker-1"}),
        ("10.0.0.4: ", {"host": "10.0.0.4"}),
        ("n4: ", {"host": "n4"}),
        ("[W304 17:41:12.735149131 ProcessGroupNCCL.cpp:4561] ", {"level": "W", "source": "c10d"}),
        ("[E ProcessGroupNCCL.cpp:563] ", {"level": "E", "source": "c10d"}),
        ("[W socket.cpp:436] [c10d] ", {"level": "W", "source": "c10d"}),
        (
            "E1121 21:13:01.000000 92 torch/distributed/elastic/multiprocessing/api.py:882] ",
            {"level": "E"},
        ),
        (
            (
                "[rank2]:[E1121 21:13:01.1 ProcessGroupNCCL.cpp:1] "
                "[PG ID 0 PG GUID 0(default_pg) Rank 2] "
            ),
            {"rank": 2},
        ),
        ("[PG 3 Rank 2] ", {"rank": 2}),
        (
            "n1:12:34 [5] NCCL INFO ",
            {"host": "n1", "gpu": 5, "level": "INFO", "source": "nccl", "pid": 12},
        ),
        (
            "n1:12:34 [5] misc/socket.cc:533 NCCL WARN ",
            {"host": "n1", "gpu": 5, "level": "WARN", "source": "nccl"},
        ),
        (
            "[2031-05-13 10:31:50] n1.example:12:34 [5] ibvwrap.c:262 NCCL WARN ",
            {"host": "n1.example", "gpu": 5},
        ),
        ("[5] include/shm.h:28 NCCL WARN ", {"gpu": 5, "host": None, "level": "WARN"}),
        ("n1:12:34 [0] misc/ibvwrap.cu:269 WARN ", {"host": "n1", "level": "WARN"}),
        ("2026-11-21T09:30:00.123456789Z stderr F ", {"host": None}),
        ("[2031-02-24 14:51:04 TP14] ", {}),
        ("[2031-02-24 14:51:04,123] [ERROR] ", {"level": "ERROR"}),
        ("ERROR:torch.distributed.elastic.multiprocessing.api:", {"level": "ERROR"}),
        ("[  123.456789] ", {"source": "kernel"}),
        ("Mar  4 12:00:00 n3 kernel: [  12.123456] ", {"host": "n3", "source": "kernel"}),
        ("[Tue Mar  4 12:00:00 2031] ", {}),
        (
            "3: [default1]:[rank5]:[W304 17:41:12.1 ProcessGroupNCCL.cpp:1] ",
            {"rank": 3, "local": 1},
        ),
        ("  what():  [Rank 7] ", {"rank": 7}),
        ("Map:  61%|######    | 1221/2000 [29:58<19:07, 0.68 examples/s]", {"rank": None}),
        (
            "100%|#########| 31/31 [00:00<00:00, 871.35it/s][rank3]:[E ProcessGroupNCCL.cpp:475] ",
            {"rank": 3},
        ),
        (
            "Tue Mar  4 12:00:00 2031[1,3]<stdout>:n1:12:34 [5] NCCL INFO ",
            {"rank": 3, "host": "n1"},
        ),
        ("Tue Mar  4 12:00:00 2031[3]<stderr>:", {"rank": 3}),
        ("[1943394930.000000] [n1:12:0]  ", {"host": "n1", "pid": 12, "source": ""}),
        ("[n1:12 :0:34] ", {"host": "n1", "pid": 12}),
        ("[155] n1:12:34 [5] NCCL INFO ", {"host": "n1", "gpu": 5}),
        ("Loading: 0it [00:00, ?it/s]WARNING:torch.distributed.run:", {"level": "WARNING"}),
    ],
)
def test_a_prefix_is_taken_off_and_read(prefix: str, told: dict[str, Any]) -> None:
    line = line_of("train.log", 1, f"{prefix}{SAID}")
    assert line.message == SAID
    assert line.text == f"{prefix}{SAID}".rstrip()
    assert {name: getattr(line, name) for name in told} == told


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: no",
        "torch.distributed.DistBackendError: no",
        "eth0: link is down",
        "cuda:0: no",
        "python3: can't open file",
        "Error: Could not map",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "mlx5_0: no",
        "[0]: no",
    ],
)
def test_what_only_looks_like_a_prefix_stays(text: str) -> None:
    line = line_of("train.log", 1, text)
    assert line.message == text
    assert (line.host, line.rank) == (None, None)


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        ("rank3.log", 3),
        ("logs/rank_12.err", 12),
        ("rank-0", 0),
        ("frank3.log", None),
        ("n1.log", None),
    ],
)
def test_a_file_may_be_called_after_its_rank(file: str, rank: int | None) -> None:
    assert line_of(file, 1, SAID).rank == rank
    assert line_of(file, 1, f"[rank7]: {SAID}").rank == 7


def test_a_process_is_known_by_the_rank_it_told_once() -> None:
    rows = [
        KeptLine(
            "log",
            1,
            b"n1:9:11 [3] NCCL INFO comm 0x55a rank 11 nranks 16 cudaDev 3 busId 86000 "
            b"- Init START",
        ),
        KeptLine(
            "log", 2, b"n1:9:12 [3] include/alloc.h:208 NCCL WARN Cuda failure 'out of memory'"
        ),
        KeptLine(
            "log", 3, b"n2:9:12 [3] include/alloc.h:208 NCCL WARN Cuda failure 'out of memory'"
        ),
    ]
    assert [line.rank for line in lines_of(rows)] == [11, 11, None]


def test_times_of_different_loggers_can_be_compared() -> None:
    texts = (
        "[rank0]:[E304 17:41:12.500000000 ProcessGroupNCCL.cpp:563] a",
        "2031-03-04T17:41:12.600000Z b",
        "[2031-03-04 17:41:13] c",
        "Mar  4 17:41:14 n3 kernel: d",
        "[Tue Mar  4 17:41:15 2031] e",
        "E0305 00:00:00.000000 92 torch/distributed/run.py:7] f",
    )
    times = [line_of("log", n, text).time for n, text in enumerate(texts)]
    assert None not in times
    assert times == sorted(times, key=float)  # type: ignore[arg-type]
    assert line_of("log", 1, "[   12.345678] uptime is no time of day").time is None


def test_a_progress_bar_alone_is_left_as_it_is() -> None:
    bar = "Map:  61%|######    | 1221/2000 [29:58<19:07, 0.68 examples/s]"
    assert line_of("train.log", 1, bar).message == bar
