"""Runs in the history: found by name, deleted in time.

They stay whole whatever happens to the writing process or to the file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterprep.errors import InputError
from clusterprep.history import database, packing
from clusterprep.history.applied import REMEMBERED, AppliedEnvironments
from clusterprep.history.database import NAME, Unusable
from clusterprep.history.runs import LEFT_OUT, Runs, packed
from clusterprep.model import Finding, NodeSnapshot, Report
from clusterprep.model.history import RecordedRun
from tests.support.patience import LONG, eventually

NOW = "2026-11-21T09:30:00Z"


def report(name: str, cluster: str = "c", command: str = "check", facts: int = 3) -> Report:
    nodes = tuple(
        NodeSnapshot(f"n{n}", "", True, facts={"a": f"{n:09}" * 20, "b": n}) for n in range(facts)
    )
    return Report(
        command,
        name,
        cluster,
        NOW,
        1.5,
        "pass",
        0,
        nodes,
        (Finding("a.b", "pass", "error", ("n0",), ""),),
    )


def line(of: Report) -> RecordedRun:
    return RecordedRun(
        of.run,
        of.command,
        of.cluster,
        "i.yaml",
        of.started,
        1.5,
        "pass",
        0,
        len(of.nodes or ()),
        3,
        0,
        0,
        0,
    )


def record(store: Runs, *names: str, **more: Any) -> None:
    for name in names:
        one = report(name, **more)
        store.record(packed(one, line(one)))


def test_what_was_recorded_comes_back(tmp_path: Path) -> None:
    store, first = Runs(tmp_path), report("r1")
    store.record(packed(first, line(first)))
    assert store.whole("r1") == first
    assert store.report("r1", only=()).findings is None
    assert store.facts("r1") == ["a", "b"]
    assert store.column("r1", "b", ["n0", "n1", "n2"]) == {"n0": 0, "n1": 1, "n2": 2}
    (run,) = store.all()
    assert msgspec.structs.replace(run, size=0) == line(first)
    assert store.checks("c", 5) == [(run, frozenset({"a.b"}))]
    assert store.holding("b", "c", NOW, NOW) == ["r1"]
    assert store.holding("b", "other", NOW, NOW) == store.holding("z", "c", NOW, NOW) == []


def test_asking_makes_no_file(tmp_path: Path) -> None:
    assert Runs(tmp_path).all() == []
    with pytest.raises(InputError, match="no run is recorded yet"):
        Runs(tmp_path).named("last")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- by name

NAMES = ("20261121-093000-4f2a", "20261121-093500-0001", "20261122-080000-beef")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("last", NAMES[2]),
        ("last~1", NAMES[1]),
        ("last~2", NAMES[0]),
        (NAMES[0], NAMES[0]),
        ("20261122", NAMES[2]),
        ("20261121-0930", NAMES[0]),
    ],
)
def test_a_run_is_found(tmp_path: Path, text: str, expected: str) -> None:
    store = Runs(tmp_path)
    record(store, *NAMES)
    assert store.named(text).run == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("20261121", "2 runs begin with '20261121' (20261121-093500-0001, 20261121-093000-4f2a)"),
        ("20261121-093000-4f2b", "did you mean 20261121-093000-4f2a"),
        ("yesterday", "the newest are 20261122-080000-beef, 20261121-093500-0001"),
        ("last~3", "only 3 runs are recorded"),
        ("", "no run is recorded as ''"),
    ],
)
def test_a_run_that_is_not_there_is_told_with_those_that_are(
    tmp_path: Path, text: str, words: str
) -> None:
    store = Runs(tmp_path)
    record(store, *NAMES)
    with pytest.raises(InputError) as caught:
        store.named(text)
    assert words in str(caught.value)
    assert caught.value.code == 2


# ---------------------------------------------------------------- what is kept


def test_the_oldest_of_a_command_are_forgotten_and_no_other(tmp_path: Path) -> None:
    store = Runs(tmp_path, kept=4)
    record(store, "r000", command="apply")
    record(store, "r001", cluster="other")
    record(store, *(f"r{number}" for number in range(100, 107)))
    assert [run.run for run in store.all()] == ["r106", "r105", "r104", "r103", "r001", "r000"]
    with contextlib.closing(sqlite3.connect(tmp_path / NAME)) as file:
        assert file.execute("select count(distinct run) from fact").fetchone() == (6,)


def test_all_together_stay_below_a_number_of_bytes(tmp_path: Path) -> None:
    record(Runs(tmp_path), "r1")
    ((run,),) = (Runs(tmp_path).all(),)
    store = Runs(tmp_path, most=3 * run.size + 20)
    record(store, "r2", "r3", "r4", "r5")
    assert [run.run for run in store.all()] == ["r5", "r4", "r3"]
    record(store, "r6", facts=400)
    assert [run.run for run in store.all()] == ["r6"], "the newest stays, however large"


def test_of_a_run_that_is_too_large_the_longest_facts_are_left_out(tmp_path: Path) -> None:
    large = report("r1", facts=400)
    store = Runs(tmp_path)
    store.record(packed(large, line(large), largest=3000))
    assert store.facts("r1") == ["b"]
    assert store.whole("r1").nodes[7].facts == {"a": LEFT_OUT, "b": 7}  # type: ignore[index]
    assert store.column("r1", "a", [node.node for node in large.nodes or ()]) == {}


def with_fact(node: NodeSnapshot, name: str, value: Any) -> NodeSnapshot:
    return msgspec.structs.replace(node, facts={**node.facts, name: value})


def test_a_node_that_sends_without_end_loses_its_own_facts_alone(tmp_path: Path) -> None:
    """What compresses to nothing is bounded as well: it takes its length to read it again."""
    whole = report("r1", facts=4)
    assert whole.nodes is not None
    n0, n1, *others = whole.nodes
    noise = os.urandom(300_000).hex()
    n0 = with_fact(n0, "a", "x" * (packing.LONGEST_VALUE + 1))
    n1 = with_fact(with_fact(n1, "b", noise), "a", "y" * 1000)
    hostile = msgspec.structs.replace(whole, nodes=(n0, n1, *others))
    store = Runs(tmp_path)
    store.record(packed(hostile, line(hostile)))
    assert store.all()[0].size < 400_000
    nodes = store.whole("r1").nodes
    assert nodes is not None
    assert nodes[0].facts == {"a": LEFT_OUT, "b": 0}
    assert nodes[1].facts == {"a": "y" * 1000, "b": noise}
    store.record(packed(hostile, line(hostile), largest=100_000))
    nodes = store.whole("r1").nodes
    assert nodes is not None
    assert nodes[1].facts == {"a": "y" * 1000, "b": LEFT_OUT}
    assert nodes[2].facts == others[0].facts
    assert store.all()[0].size < 10_000


def test_a_report_that_is_too_large_without_its_facts_is_refused() -> None:
    large = msgspec.structs.replace(report("r1"), notices=(os.urandom(50_000).hex(),))
    with pytest.raises(Unusable, match="the report has 0 MiB"):
        packed(large, line(large), largest=10_000)


# ---------------------------------------------------------------- several processes, and their end

WRITER = """
import sys
from pathlib import Path
from tests.history.test_runs import Runs, line, packed, report

# They write without a pause. On a busy machine ten seconds can pass before one has its turn.
store = Runs(Path(sys.argv[1]), patience=60)
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    one = report(f"{sys.argv[2]}{number:04}", cluster=sys.argv[2], facts=int(sys.argv[4]))
    store.record(packed(one, line(one)))
    print(number, flush=True)
"""


def writer(folder: Path, prefix: str, runs: int, facts: int) -> subprocess.Popen[str]:
    """A process that writes runs once it is told to, and says after each that it is written."""
    argv = [sys.executable, "-c", WRITER, str(folder), prefix, str(runs), str(facts)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def writers(folder: Path, *wanted: tuple[str, int, int]) -> Iterator[list[subprocess.Popen[str]]]:
    started = [writer(folder, *one) for one in wanted]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("go\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_two_runs_at_once_are_both_kept(tmp_path: Path) -> None:
    with writers(tmp_path, ("a", 20, 50), ("b", 20, 50)) as both:
        assert [process.wait(LONG) for process in both] == [0, 0]
    names = {run.run for run in Runs(tmp_path).all()}
    assert names == {f"{who}{number:04}" for who in "ab" for number in range(20)}


@pytest.mark.parametrize("after", [0, 3])
def test_a_writer_that_is_killed_leaves_whole_runs(tmp_path: Path, after: int) -> None:
    """Killed while it writes; what it had said is there, and the next one writes on."""
    with writers(tmp_path, ("a", 1000, 300)) as (process,):
        assert process.stdout is not None
        for _ in range(after):
            process.stdout.readline()
        seen = _wait_for_a_write(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait(LONG)
        said = after + len(process.stdout.read().split("\n")[:-1])
    assert seen, "it was writing when it was killed"
    store = Runs(tmp_path)
    record(store, "later")
    found = [run.run for run in store.all("a")]
    assert len(found) in (said, said + 1)
    for name in found:
        assert store.whole(name) == report(name, cluster="a", facts=300)
    with contextlib.closing(sqlite3.connect(tmp_path / NAME)) as file:
        assert file.execute("pragma integrity_check").fetchone() == ("ok",)


def test_controllers_at_once_lose_no_run_and_no_word_of_what_was_written(tmp_path: Path) -> None:
    """Four that write runs, and beside them one that writes what nodes were given, and readers."""
    wanted = [(who, 25, 40) for who in "abcd"]
    applied = AppliedEnvironments(tmp_path)
    with writers(tmp_path, *wanted) as started:
        looks = 0
        while any(process.poll() is None for process in started):
            whole = Runs(tmp_path).all()
            assert len({run.run for run in whole}) == len(whole)
            applied.record_speed("c", "trial", f"r{looks:05}", float(looks))
            looks += 1
        assert [process.wait(LONG) for process in started] == [0] * 4
    assert applied.troubles == []
    assert len(applied.speeds("c", "trial")) == min(looks, REMEMBERED)
    store = Runs(tmp_path)
    names = {run.run for run in store.all()}
    assert names == {f"{who}{number:04}" for who in "abcd" for number in range(25)}
    for name in ("a0000", "d0024"):
        assert store.whole(name) == report(name, cluster=name[0], facts=40)
    with contextlib.closing(sqlite3.connect(tmp_path / NAME)) as file:
        assert file.execute("pragma integrity_check").fetchone() == ("ok",)


def _wait_for_a_write(folder: Path) -> bool:
    """Until a journal shows that a write is under way."""
    return eventually((folder / f"{NAME}-journal").exists, pause=0.0)


# ---------------------------------------------------------------- files that cannot be used


def test_a_file_of_the_first_releases_is_brought_up_to_date(tmp_path: Path) -> None:
    """Its tables are kept, with what they hold."""
    with contextlib.closing(sqlite3.connect(tmp_path / NAME)) as file, file:
        for table in database._GIVEN:
            file.execute(table)
        file.execute("insert into given values ('c', 'n1', 'r0', 'NCCL_ALGO', 'Ring')")
        file.execute("insert into speed values ('c', 't', 'r0', '1.5')")
    assert Runs(tmp_path).all() == []
    assert AppliedEnvironments(tmp_path).last("c") == {"n1": {"NCCL_ALGO": "Ring"}}
    record(Runs(tmp_path), "r1")
    assert [run.run for run in Runs(tmp_path).all()] == ["r1"]
    assert AppliedEnvironments(tmp_path).last("c") == {"n1": {"NCCL_ALGO": "Ring"}}
    assert AppliedEnvironments(tmp_path).speeds("c", "t") == (1.5,)
    with contextlib.closing(sqlite3.connect(tmp_path / NAME)) as file:
        assert file.execute("pragma user_version").fetchone() == (database.VERSION,)


def foreign(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("create table cookies (name text)")


def marked(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("pragma application_id = 17")


def newer(path: Path) -> None:
    record(Runs(path.parent), "r1")
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute(f"pragma user_version = {database.VERSION + 1}")


def cut(path: Path) -> None:
    record(Runs(path.parent), *(f"r{number}" for number in range(20)), facts=300)
    os.truncate(path, path.stat().st_size // 2)


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (foreign, "is a database of another program"),
        (marked, "is a database of another program"),
        (newer, "from a newer clusterprep"),
        (cut, "could not be"),
        (folder, "could not be"),
        (
            lambda path: path.write_bytes(
                b"no database at all, but long enough to look like a page" * 40
            ),
            "mv ",
        ),
    ],
    ids=["foreign", "marked", "newer", "cut", "folder", "text"],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, harm: Any, words: str) -> None:
    harm(tmp_path / NAME)
    before = (tmp_path / NAME).read_bytes() if (tmp_path / NAME).is_file() else b""
    with pytest.raises(Unusable, match=words):
        record(Runs(tmp_path), "new")
    assert not before or (tmp_path / NAME).read_bytes() == before


def test_a_folder_that_cannot_be_looked_into_says_why(tmp_path: Path) -> None:
    """As one that root has made under sudo; a name that no file system takes is refused to root."""
    runs = Runs(tmp_path / ("x" * 300))
    with pytest.raises(Unusable, match="could not be read"):
        runs.all()


def test_a_writer_that_takes_too_long_is_not_waited_for(tmp_path: Path) -> None:
    record(Runs(tmp_path), "r1")
    with contextlib.closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(Unusable, match="locked"):
            record(Runs(tmp_path, patience=0.05), "r2")
        other.execute("rollback")
    record(Runs(tmp_path), "r2")


def test_a_run_that_is_damaged_is_told_and_others_are_read(tmp_path: Path) -> None:
    store = Runs(tmp_path)
    record(store, "r1", "r2")
    with contextlib.closing(sqlite3.connect(tmp_path / NAME)) as file, file:
        file.execute("update run set report = ? where run = 'r1'", (b"garbage",))
        file.execute("update fact set body = ? where run = 'r2' and name = 'b'", (b"garbage",))
    with pytest.raises(Unusable, match=r"run r1 .* cannot be read"):
        store.report("r1")
    assert store.report("r2").run == "r2"
    with pytest.raises(Unusable, match=r"run r2 .* cannot be read"):
        store.whole("r2")
