"""Logs of every shape: packed, cut off, in other encodings, with long lines, and binary files."""

from __future__ import annotations

import gzip
import io
import random
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from clusterprep.errors import InputError
from clusterprep.jobs.diagnose.forms import LONGEST
from clusterprep.jobs.diagnose.keeping import Budget
from clusterprep.jobs.diagnose.ranking import needles
from clusterprep.jobs.diagnose.sources import BLOCK, Reading, read
from tests.support.operations import operations

BAD = "RuntimeError: CUDA error: invalid device ordinal"
CLI = (sys.executable, "-m", "clusterprep")
# The end of a file is kept whatever it says. Here only what is kept for what it says counts.
NO_TAIL = Budget(tail=0, least_tail=0)


def reading(content: bytes, name: str = "-", budget: Budget = NO_TAIL) -> Reading:
    return read([name], needles(), io.BytesIO(content), budget=budget)


def kept(content: bytes) -> list[tuple[int, str]]:
    return [(row.number, row.text.decode()) for row in reading(content).kept]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(f"one\ntwo\n{BAD}\nfour\n".encode(), id="plain"),
        pytest.param(f"one\ntwo\n{BAD}".encode(), id="no-end"),
        pytest.param(f"one\r\ntwo\r\n{BAD}\r\nfour".encode(), id="crlf"),
        pytest.param(f"one\ntwo\n 1%\r 50%\r100%\r{BAD}\nfour".encode(), id="progress-bar"),
        pytest.param(f"one\ntwo\n\x1b[31m{BAD}\x1b[0m\n".encode(), id="colours"),
        pytest.param(f"one\n\0\0\0\0two\n{BAD}\0\0\n".encode(), id="zero-bytes"),
        pytest.param(f"one\ntwo\n{BAD}\n".encode("utf-8-sig"), id="utf-8-mark"),
        pytest.param(f"one\ntwo\n{BAD}\n".encode("utf-16"), id="utf-16"),
        pytest.param(b"\xfe\xff" + f"one\ntwo\n{BAD}\n".encode("utf-16-be"), id="utf-16-be"),
        pytest.param(f"one\ntwo\n{BAD}\n".encode("utf-32"), id="utf-32"),
        pytest.param(gzip.compress(f"one\ntwo\n{BAD}\n".encode()), id="gzip"),
        pytest.param(
            gzip.compress(b"one\n") + gzip.compress(f"two\n{BAD}\n".encode()), id="gzip-in-two"
        ),
        pytest.param(gzip.compress(f"one\ntwo\n{BAD}\n".encode("utf-16")), id="gzip-utf-16"),
        pytest.param(f"one\ntw\xf6\n{BAD}\n".encode("latin-1"), id="latin-1"),
    ],
)
def test_the_line_is_found_with_its_number(content: bytes) -> None:
    assert kept(content) == [(3, BAD)]


def test_nothing_is_an_empty_log() -> None:
    assert reading(b"").kept == []
    assert reading(b"").lines == {"-": 0}


def test_a_gzip_that_is_cut_off_gives_what_it_has_and_says_so() -> None:
    noise = "".join(f"{random.Random(n).random()}\n" for n in range(20_000))
    packed = gzip.compress(f"{BAD}\n{noise}".encode())
    whole = reading(packed[: len(packed) // 2])
    assert [row.text.decode() for row in whole.kept] == [BAD]
    assert whole.notices == ["-: the gzip file is cut off; what could be read was"]


def test_a_gzip_that_is_damaged_says_so() -> None:
    packed = bytearray(gzip.compress(f"{BAD}\n".encode() * 9))
    packed[30:40] = b"\xff" * 10
    assert "is damaged" in reading(bytes(packed)).notices[0]


def test_a_gzip_bomb_stays_small() -> None:
    packed = gzip.compress(b"a" * (1 << 26)) + gzip.compress(f"\n{BAD}\n".encode())
    tracemalloc.start()
    found = reading(packed)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [row.text.decode() for row in found.kept] == [BAD]
    assert peak < 100 << 20


def test_lines_of_ten_megabytes_are_looked_at_and_cut() -> None:
    tensor = "[" + "0.12345, " * (10 << 16) + "]"
    content = f"first\n{tensor}\n{BAD} {tensor}\n{BAD}\n".encode()
    rows = reading(content).kept
    assert [row.number for row in rows] == [3, 4]
    assert len(rows[0].text) == LONGEST


def test_a_progress_bar_of_ten_megabytes_is_one_line() -> None:
    bar = "\r".join(f"{n}it [{n}<?]" for n in range(400_000))
    assert kept(f"{bar}{BAD}\nnext {BAD}\n".encode())[0][0] == 1
    assert kept(f"{bar}\r{BAD}\nnext {BAD}\n".encode()) == [(1, BAD), (2, f"next {BAD}")]


def test_blocks_may_end_anywhere() -> None:
    line = f"{BAD}\n"
    for before in range(BLOCK - 3 * len(line), BLOCK + 3, 41):
        rows = kept((b"x" * (before - 1) + b"\n") + line.encode() * 3)
        assert [number for number, _ in rows] == [2, 3, 4]
        assert {text for _, text in rows} == {BAD}


def test_lines_of_one_kind_are_kept_so_often_and_then_counted() -> None:
    content = f"n1:7:7 [0] NCCL WARN {BAD}\n".encode() * 5_000
    whole = reading(content, budget=Budget(alike=1_000, tail=0, least_tail=0))
    assert len(whole.kept) == 1_000 + Budget().of_writer
    assert whole.notices == ["3,998 more lines like those kept were only counted"]


def test_a_pipe_that_gives_a_byte_at_a_time(tmp_path: Path) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(1 if size else 0)

    slow = Slow(f"one\n{BAD}\n".encode())
    assert [row.number for row in read(["-"], needles(), slow, budget=NO_TAIL).kept] == [2]


def test_what_is_not_searched_in_full_is_said() -> None:
    long = b"x" * LONGEST + b" NCCL WARN Bootstrap : no socket interface found\n"
    assert not reading(b"y" * (2 * LONGEST) + b"\none\n").notices  # no word of an error is in it
    (said,) = reading(b"one\n" + long).notices
    assert said == "-: reading was cut: lines were searched in their first 4,096 bytes"


def test_text_of_ever_new_words_is_searched_for_common_words() -> None:
    new = b"".join(b"%s%s\n" % (letters(number), b"z" * 80) for number in range(60_000))
    budget = Budget(exact=1 << 20, tail=0, least_tail=0)
    whole = reading(new + f"[rank3]: {BAD}\n".encode(), budget=budget)
    (said,) = whole.notices
    assert "reading was cut" in said
    assert "searched for common words of errors alone" in said
    assert [row.number for row in whole.kept] == [60_001]
    assert not reading(new).notices


def letters(number: int) -> bytes:
    """A word for each number: digits of lines are all alike."""
    return bytes(97 + int(digit) for digit in str(number))


@pytest.mark.parametrize("seed", range(40))
def test_random_bytes_are_no_log(seed: int) -> None:
    content = random.Random(seed).randbytes(random.Random(-seed).randrange(300, 100_000))
    with pytest.raises(InputError, match="is no text"):
        reading(content)


@pytest.mark.parametrize("seed", range(40))
def test_a_log_with_random_bytes_in_it_is_read(seed: int) -> None:
    source = random.Random(seed)
    log = bytearray(f"{BAD}\nhealthy line of a log that goes on and on\n".encode() * 200)
    for _ in range(source.randrange(1, 60)):
        log[source.randrange(len(log))] = source.randrange(256)
    assert len(reading(bytes(log)).kept) > 100


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x7fELF" + bytes(range(256)) * 9, "is no text: a log was expected"),
        (b"PK\x03\x04rest", "unzip -p"),
        (b"\x28\xb5\x2f\xfdrest", "zstd -dc"),
        (b"\xfd7zXZ\x00rest", "xz -dc"),
        (b"BZh91AY", "bzip2 -dc"),
        (b"\0" * 500, "is no text"),
    ],
)
def test_what_is_no_log_is_refused_with_its_name(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.bin") as error:
        read([str(path)], needles())
    assert said in str(error.value)


def test_all_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    with pytest.raises(InputError) as error:
        read([str(tmp_path / "none.log"), str(tmp_path), str(tmp_path / "binary")], needles())
    assert [problem.message for problem in error.value.problems] == [
        "No such file or directory",
        "Is a directory",
        "is no text: a log was expected",
    ]


@pytest.mark.parametrize(
    "content", [b"\x1f\x8b\x08\0\0", b"\xff\xfeA", b"\xff\xfe\0\0A", b"\n" * 9, b"\r" * 9]
)
def test_stumps_do_no_harm(content: bytes) -> None:
    assert reading(content).kept == []


def nccl_line(source: random.Random, n: int) -> str:
    host, pid, thread = (source.randrange(most) for most in (64, 99999, 99999))
    peers = f"{n % 8}[{n % 8}] -> {(n + 1) % 8}[{(n + 1) % 8}]"
    return (
        f"gpu-{host:02}:{pid}:{thread} [{n % 8}] NCCL INFO "
        f"Channel {n % 24:02}/0 : {peers} via P2P/CUMEM"
    )


def step_line(source: random.Random, n: int) -> str:
    time = f"2031-02-{n % 28:02} 14:51:{n % 60:02}"
    return f"[{time}] [INFO] [trainer.py:321] step {n} loss {source.random():.4f}"


def generated(megabytes: int) -> bytes:
    """The log of a job of 64 ranks with NCCL_DEBUG=INFO, and one failure in the middle."""
    source = random.Random(7)
    rows = [nccl_line(source, n) if n % 2 else step_line(source, n) for n in range(20_000)]
    block = ("\n".join(rows) + "\n").encode()
    times = (megabytes << 20) // len(block)
    return block * (times // 2) + f"[rank3]: {BAD}\n".encode() + block * (times - times // 2)


# Operations at most for a line of a known form. It was 0.6 when this was written; a loop takes two.
A_LINE = 1


def test_lines_of_a_form_that_was_seen_before_are_looked_at_in_no_loop(tmp_path: Path) -> None:
    """Lines are not looked at one by one. benchmarks/diagnose.py has megabytes a second."""

    def work(megabytes: int) -> tuple[int, int]:
        path = tmp_path / "train.log"
        path.write_bytes(generated(megabytes))
        found: list[Reading] = []
        count = operations(lambda: found.append(read([str(path)], needles(), budget=NO_TAIL)))
        assert [row.text.decode() for row in found[0].kept] == [f"[rank3]: {BAD}"]
        return count, found[0].lines[str(path)]

    (few, lines), (many, more) = work(10), work(20)
    assert many - few < A_LINE * (more - lines)


# Runs the command and writes its peak of memory. A process begins with the peak of the one that
# forked it, which would be that of pytest.
MEASURED = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "clusterprep", "diagnose", "--format", "json", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""


# Half a minute is promised. It takes 7 s, and 14 s if other programs use two cores as much.
@pytest.mark.clock
@pytest.mark.slow
def test_a_gigabyte_in_half_a_minute_and_200_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    with path.open("wb") as sink:
        for _ in range(20):
            sink.write(generated(51))
    started = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True
    )
    assert time.monotonic() - started < 30
    assert BAD in ran.stdout
    assert int(ran.stderr.split()[-1]) < 200 << 10  # behind the notices
