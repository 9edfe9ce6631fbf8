"""Logs of thousands of ranks: nothing that matters is lost by their size."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.errors import InputError
from clusterprep.jobs.diagnose.command import diagnose
from clusterprep.jobs.diagnose.forms import TABLE, forms_of
from clusterprep.jobs.diagnose.keeping import Budget
from clusterprep.jobs.diagnose.known import causes
from clusterprep.jobs.diagnose.model import Diagnosis, form_of, kind_of
from clusterprep.jobs.diagnose.plain_signs import is_plain
from clusterprep.jobs.diagnose.prefixes import line_of, lines_of
from clusterprep.jobs.diagnose.ranking import diagnose as judge
from clusterprep.jobs.diagnose.ranking import needles
from clusterprep.jobs.diagnose.sources import KeptLine, Reading, read
from tests.support.large_jobs import OUT_OF_MEMORY, lines_of_rank, steps, timeout, traceback

HERE = Path(__file__).parent
WORLD = 2_048
BAD = 1_777  # the rank that fails
PEER_LEFT = (
    "[rank{}]: torch.distributed.DistBackendError: NCCL error in: "
    "../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a "
    "network error, NCCL version 2.26.2"
)


@cache
def starts() -> tuple[tuple[str, ...], ...]:
    """What each rank prints at the start."""
    return tuple(tuple(lines_of_rank(rank, WORLD)) for rank in range(WORLD))


def start() -> list[str]:
    return [line for lines in starts() for line in lines]


def written(path: Path, lines: Sequence[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def first(diagnosis: Diagnosis) -> tuple[str, str | None]:
    cause = diagnosis.causes[0]
    return cause.cause.name, cause.culprit


# ---------------------------------------------------------------- thousands of ranks

ENDS = {
    "at-the-end": lambda: [*start(), *traceback(BAD)],
    "in-the-middle": lambda: [
        *start(),
        *traceback(BAD),
        *(PEER_LEFT.format(rank) for rank in range(WORLD) if rank != BAD),
        *steps(range(WORLD), 4),
    ],
    "before-all": lambda: [*traceback(BAD), *start()],
}


@pytest.mark.parametrize("end", ENDS)
def test_the_failure_of_one_rank_of_thousands_is_found(tmp_path: Path, end: str) -> None:
    name = written(tmp_path / "job.log", ENDS[end]())
    diagnosis, _ = diagnose([name])
    assert first(diagnosis) == ("rank_gpu_oom", f"rank {BAD}")
    assert diagnosis.code == 1
    assert not any("reading was cut" in notice for notice in diagnosis.notices)


def test_the_failure_is_found_in_one_of_thousands_of_files(tmp_path: Path) -> None:
    names: list[str] = []
    for rank, lines in enumerate(starts()):
        own = [*lines, *traceback(rank)] if rank == BAD else lines
        names.append(written(tmp_path / f"node{rank // 8}.{rank}.log", own))
    diagnosis, _ = diagnose(names)
    assert first(diagnosis) == ("rank_gpu_oom", f"rank {BAD}")
    assert diagnosis.code == 1
    assert len(diagnosis.files) == WORLD


def test_the_failure_is_found_in_a_packed_log(tmp_path: Path) -> None:
    path = tmp_path / "job.log.gz"
    path.write_bytes(gzip.compress("\n".join([*start(), *traceback(BAD)]).encode(), 1))
    assert first(diagnose([str(path)])[0]) == ("rank_gpu_oom", f"rank {BAD}")


def test_the_rank_that_is_missing_among_thousands_is_found(tmp_path: Path) -> None:
    waiting = [timeout(rank) for rank in range(WORLD) if rank != BAD]
    name = written(tmp_path / "job.log", [*start(), *waiting])
    assert diagnose([name])[0].causes[0].culprit == f"rank {BAD}"


# Runs the command and writes its peak of memory. A process begins with the peak of the one that
# forked it, which would be that of pytest.
MEASURED = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "clusterprep", "diagnose", "--format", "json", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""


@pytest.mark.clock
@pytest.mark.slow
@pytest.mark.parametrize("files", [1, WORLD])
def test_thousands_of_ranks_take_five_seconds_and_300_megabytes(tmp_path: Path, files: int) -> None:
    names: list[str] = []
    if files == 1:
        names.append(written(tmp_path / "job.log", ENDS["at-the-end"]()))
    else:
        for rank, lines in enumerate(starts()):
            own = [*lines, *traceback(rank)] if rank == BAD else lines
            names.append(written(tmp_path / f"{rank}.log", own))
    started = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, *names], capture_output=True, text=True, check=True
    )
    assert time.monotonic() - started < 5
    cause = json.loads(ran.stdout)["causes"][0]
    assert (cause["cause"], cause["culprit"]) == ("rank_gpu_oom", f"rank {BAD}")
    assert int(ran.stderr) < 300 << 10


# ---------------------------------------------------------------- tracebacks and ends of files


def reading(lines: Sequence[str], budget: Budget) -> Reading:
    stream = io.BytesIO("\n".join(lines).encode())
    return read(["-"], needles(), stream, is_plain=is_plain, budget=budget)


NO_TAIL = Budget(tail=0, least_tail=0)


def test_a_traceback_is_kept_with_its_exception() -> None:
    lines = [*traceback(3, "ValueError: of the program"), *steps(range(500), 1)]
    kept = [row.text.decode() for row in reading(lines, NO_TAIL).kept]
    assert kept == traceback(3, "ValueError: of the program")


def test_tracebacks_that_ranks_write_at_the_same_time_are_kept_whole() -> None:
    ranks = [traceback(rank, f"{name}: 7") for rank, name in enumerate(("Odd", "Even", "Empty"))]
    mixed = [line for rows in zip(*ranks, strict=True) for line in rows]
    rows = reading([*mixed, *steps(range(900), 1)], NO_TAIL).kept
    for own in ranks:
        assert [row.text.decode() for row in rows if row.text.decode() in own] == own


def test_of_many_tracebacks_the_first_and_the_last_are_whole() -> None:
    lines = [line for rank in range(300) for line in traceback(rank, f"Odd{rank}: 7")]
    kept = {row.text.decode() for row in reading(lines, NO_TAIL).kept}
    assert set(traceback(0, "Odd0: 7")) <= kept
    assert set(traceback(299, "Odd299: 7")) <= kept
    assert len(kept) < 2_500


def test_a_deep_traceback_is_kept_where_it_was_raised() -> None:
    frames = ['  File "a.py", line 3, in f', "    f()"] * 900
    lines = ["Traceback (most recent call last):", *frames, "Recursion: too deep"]
    kept = [row.text.decode() for row in reading(lines, NO_TAIL).kept]
    assert kept[0] == lines[0]
    assert kept[-1] == lines[-1]
    assert len(kept) < 100


def test_the_end_of_every_file_is_kept_whatever_it_says(tmp_path: Path) -> None:
    lines = [f"step {number} of letters {'ab'[number % 2]}" for number in range(3_000)]
    names = [written(tmp_path / name, lines) for name in ("a.log", "b.log")]
    kept = read(names, needles()).kept
    assert [row.number for row in kept if row.file == names[1]] == list(range(2_801, 3_001))


def test_the_ends_of_very_many_files_are_short() -> None:
    assert Budget().tail_of(1) == 200
    assert Budget().tail_of(2_048) == 10


# ---------------------------------------------------------------- budgets


def words(number: int) -> str:
    """A word for each number, as lines that differ only in digits are alike."""
    return str(number).translate(str.maketrans("0123456789", "ghijklmnop"))


SMALL = Budget(alike=50, kinds=20, last=4, tail=0, least_tail=0)


def test_lines_of_one_needle_do_not_displace_those_of_another() -> None:
    noise = [f"retrying {words(number)} once more" for number in range(5_000)]
    whole = reading([*noise, OUT_OF_MEMORY, *noise], SMALL)
    kept = [row.text.decode() for row in whole.kept]
    assert OUT_OF_MEMORY in kept
    assert kept[:20] == noise[:20]
    assert kept[-4:] == noise[-4:]
    assert any("lines with «retrying» are left out" in notice for notice in whole.notices)


def test_a_plain_sign_is_kept_among_lines_with_its_own_needle() -> None:
    sign = causes()["rank_gpu_oom"].signs[0]
    assert is_plain(sign.example.encode())
    noise = [f"{sign.needle} {words(number)}" for number in range(500)]
    noise = [line for line in noise if not is_plain(line.encode())]
    kept = [row.text.decode() for row in reading([*noise, sign.example, *noise], SMALL).kept]
    assert sign.example in kept


@pytest.mark.parametrize("blocks", [1, 30])
def test_new_forms_are_learnt_whatever_was_learnt_before(tmp_path: Path, blocks: int) -> None:
    """Each file is read in a block of its own, before which forms may be forgotten."""
    budget = replace(SMALL, forms=100)
    names = []
    for block in range(blocks):
        lines = [f"error {words(block)} {words(number)}" for number in range(300)]
        names.append(written(tmp_path / f"{block}.log", [*lines, OUT_OF_MEMORY, *lines]))
    kept = read(names, needles(), is_plain=is_plain, budget=budget).kept
    assert sum(row.text.decode() == OUT_OF_MEMORY for row in kept) == blocks


def test_every_rank_has_its_line_of_a_kind_that_is_often() -> None:
    often = [timeout(0)] * 3_000
    others = [timeout(rank) for rank in range(1, 400)]
    kept = {row.text.decode() for row in reading([*often, *others], SMALL).kept}
    assert kept == {timeout(rank) for rank in range(400)}


def test_every_file_has_its_line_of_a_kind_that_is_often(tmp_path: Path) -> None:
    line = "RuntimeError: CUDA error: invalid device ordinal"
    names = [written(tmp_path / f"rank{rank}.log", [line] * 100) for rank in range(30)]
    kept = read(names, needles(), budget=SMALL).kept
    assert {row.file for row in kept} == set(names)


def test_nothing_is_said_to_be_cut_where_nothing_was(tmp_path: Path) -> None:
    name = written(tmp_path / "job.log", [*start()[:4_000], *traceback(3)])
    assert read([name], needles()).notices == []


# ------------------------------------------- whatever the budget, the causes found are the same

NO_LIMIT = 10**9
LIMITLESS = Budget(
    alike=NO_LIMIT,
    vague=NO_LIMIT,
    informing=NO_LIMIT,
    few=NO_LIMIT,
    of_writer=NO_LIMIT,
    writers=NO_LIMIT,
    kinds=NO_LIMIT,
    last=0,
    tail=0,
    least_tail=0,
    frames=NO_LIMIT,
    exact=NO_LIMIT**2,
    forms=NO_LIMIT,
)
TIGHT = Budget(
    alike=60, vague=6, informing=300, few=6, kinds=25, last=4, tail=5, least_tail=5, frames=200
)


def logs() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the lines of every log of a failure that the tests have."""
    for name in ("others.jsonl", "threads.jsonl"):
        for row in (HERE / name).read_text().splitlines():
            case: dict[str, Any] = json.loads(row)
            if "log" in case:
                yield case["id"], case["log"].splitlines()
    for case in json.loads((HERE / "recorded" / "cases.json").read_text()):
        paths = [HERE / "recorded" / file for file in case["files"]]
        yield case["name"], [line for path in paths for line in path.read_text().splitlines()]


LOGS = dict(logs())


@cache
def noise() -> list[str]:
    """Lines of healthy ranks, and lines of ever new words among which are those of needles."""
    source = random.Random(2)
    ranks = [line for lines in starts()[:24] for line in lines]
    usual = ("retrying", "error", "failed", "connection", "timeout", "socket")
    new = [f"{words(source.randrange(10**9))} {usual[n % 6]} {words(n)}" for n in range(300)]
    return [*ranks, *steps(range(24), 1), *new]


def embedded(lines: list[str], way: int) -> list[str]:
    """Return the lines with noise before, behind or between them."""
    if way == 0:
        return [*noise(), *lines]
    if way == 1:
        return [*lines, *noise()]
    rows = iter(noise())
    every = max(1, len(noise()) // (len(lines) + 1))
    mixed: list[str] = []
    for line in lines:
        mixed += [*itertools.islice(rows, every), line]
    return [*mixed, *rows]


def causes_found(lines: Sequence[str], budget: Budget) -> tuple[set[str], int]:
    whole = reading(lines, budget)
    diagnosis = judge(lines_of(whole.kept), whole.lines, whole.notices)
    return {found.cause.name for found in diagnosis.causes}, diagnosis.code


@pytest.mark.parametrize("way", range(3), ids=("before", "behind", "between"))
def test_the_causes_are_those_of_a_reading_without_limits(way: int) -> None:
    """Each log is surrounded by noise in one of three ways, of which this test has a third."""
    differing = []
    for number, (name, lines) in enumerate(LOGS.items()):
        if number % 3 != way:
            continue
        log = embedded(lines, way)
        if causes_found(log, TIGHT) != causes_found(log, LIMITLESS):
            differing.append(name)
    assert differing == []
    assert len(LOGS) > 150


# ---------------------------------------------------------------- forms and kinds


def test_the_kind_of_a_needle_is_in_the_kind_of_every_line_with_it() -> None:
    for cause in causes().values():
        for sign in cause.signs:
            assert kind_of(form_of(sign.needle)) in kind_of(form_of(sign.example)), sign


def test_the_form_of_bytes_is_that_of_text_but_for_pointers() -> None:
    assert forms_of(b"Rank 12 at 0x7fAB12 of 10x\nDB00") == [b"rank 00 at 0x of 00x", b"db00"]
    assert b"Rank 12".translate(TABLE).decode() == form_of("Rank 12")


def test_lines_of_one_kind_differ_in_numbers_and_in_the_process() -> None:
    one, other = (
        f"{host}:{pid}:7 [0] NCCL INFO comm 0x{pid:x} busId {bus} - Init START"
        for host, pid, bus in (("gpu-a1", 4_242, "db000"), ("ip-10-1", 99, "1b000"))
    )
    assert kind_of(form_of(one)) == kind_of(form_of(other))
    assert kind_of(form_of(one)) != kind_of(form_of(one.replace("START", "COMPLETE")))


# ---------------------------------------------------------------- prefixes


def test_prefixes_are_read_the_same_whatever_lines_came_before() -> None:
    rows = [KeptLine(name, 1, text.encode()) for name, lines in LOGS.items() for text in lines]
    together = lines_of(rows)
    for order, (row, line) in enumerate(zip(rows, together, strict=True)):
        alone = line_of(row.file, 1, row.text.decode(), order)
        if line.rank == alone.rank:  # NCCL tells the rank of a process in one of its lines
            assert line == alone
        assert line.message == alone.message


def test_a_word_that_is_no_host_is_told_from_a_host_of_the_same_form() -> None:
    texts = ("node1: done", "node0: done", "node2: done")
    hosts = [line.host for line in lines_of([KeptLine("a", 1, text.encode()) for text in texts])]
    assert hosts == ["node1", None, "node2"]


# ---------------------------------------------------------------- files


def test_a_file_that_is_given_under_two_names_is_read_once(tmp_path: Path) -> None:
    name = written(tmp_path / "job.log", traceback(3))
    link = tmp_path / "link.log"
    link.symlink_to(name)
    whole = read([name, str(link), name], needles())
    assert {row.file for row in whole.kept} == {name}
    assert whole.notices == [f"{link} is the same file as {name}, so it is left"]


def test_an_empty_file_beside_others_does_no_harm(tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.touch()
    diagnosis, _ = diagnose([str(empty), written(tmp_path / "job.log", traceback(3))])
    assert first(diagnosis) == ("rank_gpu_oom", "rank 3")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.touch(0o000)
    with pytest.raises(InputError, match="Permission denied"):
        read([str(path)], needles())


def test_a_line_of_a_hundred_megabytes_takes_little_memory() -> None:
    class Endless(io.RawIOBase):
        left = 100 << 20

        def read(self, size: int = -1) -> bytes:
            size = min(size, self.left)
            self.left -= size
            return b"abc 0.12 " * (size // 9) + b"x" * (size % 9)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    whole = read(["-"], needles(), Endless())  # type: ignore[arg-type]
    assert whole.lines == {"-": 1}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
