"""The guard on four real ranks over loopback.

Who differs, who does not come, and what the same script does without.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]

HOURS = 36_000  # seconds; a limit that no test lives to see

BEGIN = """
import datetime, json, os, signal, sys, time
import torch, torch.distributed as dist
from clusterprep.guard import GuardError, rank_table, same_on_all_ranks, seed_everything
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=LIMIT))
rank = dist.get_rank()
"""

# Rank 2 holds fewer batches than the others: it is at the end of the epoch while they wait for it.
TRAINING = """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.arange(24.0 if rank != 2 else 16.0)), batch_size=4)
GUARD
for (batch,) in loader:
    dist.all_reduce(batch)
dist.barrier()
print("trained")
"""


@dataclass(frozen=True)
class Ended:
    """How the ranks of a script ended."""

    codes: list[int]
    seconds: float
    logs: list[Path]

    def said(self, rank: int) -> str:
        return self.logs[rank].read_text()

    def rows(self, rank: int) -> list[dict[str, Any]]:
        """The JSON lines that a rank printed."""
        assert self.codes[rank] == 0, self.said(rank)
        return [json.loads(line) for line in self.said(rank).splitlines() if line.startswith("{")]


def ranks(folder: Path, script: str, world: int = 4, limit: int = 4) -> Ended:
    """Run a script on ranks whose process group waits `limit` seconds for an absent rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = folder / "script.py"
    path.write_text(BEGIN.replace("LIMIT", str(limit)) + script)
    argv = [
        sys.executable,
        "-m",
        "tests.guard.ranks",
        str(world),
        str(port),
        str(path),
        str(folder),
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return Ended(
        **json.loads(done.stdout), logs=[folder / f"rank{rank}.log" for rank in range(world)]
    )


def test_ranks_with_different_amounts_of_data_are_stopped_at_once(tmp_path: Path) -> None:
    ended = ranks(
        tmp_path,
        TRAINING.replace("GUARD", 'same_on_all_ranks(len(loader), "batches")'),
        limit=HOURS,
    )
    assert ended.codes == [1, 1, 1, 1]
    for rank in range(4):
        message = ended.said(rank).splitlines()[-1]
        assert "'batches' is not the same on all ranks; rank 2 differs from most" in message
        assert re.search(r"rank 2 has 4 .*; ranks 0-1,3 have 6 ", message)
        assert "trained" not in ended.said(rank)


def test_without_the_guard_the_same_script_hangs_and_diagnose_says_why(tmp_path: Path) -> None:
    ended = ranks(tmp_path, TRAINING.replace("GUARD", ""))
    assert ended.seconds >= 4  # the limit of its process group; by default that is half an hour
    assert any(ended.codes)
    argv = [
        sys.executable,
        "-m",
        "clusterprep",
        "diagnose",
        *map(str, ended.logs),
        "--format",
        "json",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    first = json.loads(done.stdout)["causes"][0]
    assert first["cause"] == "rank_desync_control_flow"
    assert first["culprit"] == "rank 2"


MANY = """
import collections, dataclasses, decimal, enum, hashlib

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

@dataclasses.dataclass
class Settings:
    rate: float
    names: list

class Node:
    pass

def answer(name, value, **more):
    try:
        row = {"same": same_on_all_ranks(value, name, **more) is value}
    except GuardError as error:
        row = {"message": str(error), "ranks": error.ranks, "values": error.values}
    print(json.dumps({"name": name, **row}), flush=True)

circle = Node()
circle.self = circle
word = "".join(["a", "b"]) if rank else "ab"  # equal, and not one object: their pickles differ
alike = {
    "set": {f"name {n}" for n in (range(50) if rank % 2 else range(49, -1, -1))},
    "dict": {"a": 1, "b": [2.5, None]} if rank % 2 else {"b": [2.5, None], "a": 1},
    "ab": [word, "ab"],
    "object": Settings(0.1, ["x", b"y"]),
    "enum": Colour.RED,
    "decimal": decimal.Decimal("1.5"),
    "ordered": collections.OrderedDict(a=1),
    "counter": collections.Counter("hello"),
    "circle": circle,
    "function": json.dumps,
    "type": dict,
    "nan": float("nan"),
    "tensor": torch.arange(6).reshape(2, 3).t(),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "empty": torch.empty(0, 4),
    "scalar": torch.tensor(2.5),
    "sparse": torch.eye(3).to_sparse(),
    "range": range(3),
    "module": (torch.manual_seed(1), torch.nn.Linear(3, 2))[1].state_dict(),
    "many": list(range(300_000)),
}
for name, value in alike.items():
    answer(name, value)

odd = rank == 1
unlike = {
    "int": 5 if odd else 4,
    "kind": 4.0 if odd else 4,
    "bool": True if odd else 1,
    "text": "a\\0b" if odd else "a\\0c",
    "nested": {"a": [(1, {2: "x" if odd else "y"})]},
    "set": {1, 2} if odd else {1, 3},
    "object": Settings(0.2 if odd else 0.1, []),
    "enum": Colour.RED if odd else Colour.BLUE,
    "split": [["a", "b"], []] if odd else [["a"], ["b"]],
    "shape": torch.zeros(2, 3) if odd else torch.zeros(3, 2),
    "dtype": torch.zeros(2) if odd else torch.zeros(2, dtype=torch.int32),
    "last": torch.cat([torch.zeros(10**6), torch.tensor([1.0 if odd else 0.0])]),
    "circle": [circle, circle] if odd else [circle, Node()],
}
for name, value in unlike.items():
    answer("not " + name, value)

answer("all differ", rank)
answer("two and two", rank % 2)
pair = dist.new_group([1, 3])
answer("pair", rank if rank in (1, 3) else 0, group=pair)
answer("left" if rank < 3 else "right", 1)
answer("", "x" * 10_000 + str(odd))
rate = {"rate": 0.1} if rank else {"rate": 0.2, "extra": 1}
answer("arguments", {f"option{n}": n for n in range(100)} | rate)
if rank == 3:
    time.sleep(1.5)
answer("late", 1, limit=1.0)
answer("after", 1)
table = rank_table()
print(json.dumps({"name": "table", "rows": table, "text": str(table)}))
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Four ranks that meet many times and go on each time."""
    return ranks(tmp_path_factory.mktemp("many"), MANY)


def named(ended: Ended, name: str) -> list[Any]:
    return [
        next((row for row in ended.rows(rank) if row["name"] == name), None) for rank in range(4)
    ]


def test_what_is_alike_passes_whatever_its_bytes_are(many: Ended) -> None:
    same = [row for row in many.rows(0) if "same" in row and row["name"] not in ("after", "pair")]
    assert len(same) == 20
    for rank in range(4):
        failed = [row for row in many.rows(rank)[:20] if not row.get("same")]
        assert failed == []


def test_what_differs_is_found_and_the_odd_rank_named_everywhere(many: Ended) -> None:
    for rank in range(4):
        rows = [row for row in many.rows(rank) if row["name"].startswith("not ")]
        assert len(rows) == 13
        assert [row["name"] for row in rows if row.get("ranks") != [1]] == []


def test_without_a_majority_all_are_named(many: Ended) -> None:
    for row in (*named(many, "all differ"), *named(many, "two and two")):
        assert row["ranks"] == [0, 1, 2, 3]
    message = named(many, "two and two")[3]["message"]
    assert "ranks 0,2 have 0 " in message
    assert "ranks 1,3 have 1 " in message


def test_values_come_with_the_error_and_are_short(many: Ended) -> None:
    assert named(many, "not int")[2]["values"] == {"0": "4", "1": "5", "2": "4", "3": "4"}
    assert len(named(many, "")[0]["message"]) < 1000


def test_of_dictionaries_the_keys_that_differ_are_told(many: Ended) -> None:
    for row in named(many, "arguments"):
        assert row["ranks"] == [0]
        assert row["message"].endswith("; they differ at rate, extra")


def test_a_group_is_asked_alone_and_by_the_ranks_of_the_job(many: Ended) -> None:
    rows = named(many, "pair")
    assert [row.get("same") for row in rows] == [True, None, True, None]
    assert rows[1]["ranks"] == [1, 3]
    assert "rank 3 has 3" in rows[1]["message"]


def test_ranks_at_different_guards_are_out_of_step(many: Ended) -> None:
    for row in (*named(many, "left")[:3], *named(many, "right")[3:]):
        assert row["ranks"] == [3]
        assert "ranks 0-2 at 'left'; rank 3 at 'right'" in row["message"]


def test_a_rank_that_comes_too_late_to_a_guard_is_named(many: Ended) -> None:
    for row in named(many, "late"):
        assert row["ranks"] == [3]
        assert "rank 3 did not come to the guard 'late' within 1 s of ranks 0-2" in row["message"]
    assert all(row["same"] for row in named(many, "after"))


def test_the_table_of_ranks_is_the_same_everywhere(many: Ended) -> None:
    tables = [row["rows"] for row in named(many, "table")]
    assert all(table == tables[0] for table in tables)
    assert [(row["rank"], row["local_rank"], row["device"]) for row in tables[0]] == [
        (n, n, "cpu") for n in range(4)
    ]
    assert {row["node"] for row in tables[0]} == {os.uname().nodename}
    assert len({row["pid"] for row in tables[0]}) == 4
    assert "local_rank" in named(many, "table")[1]["text"].splitlines()[0]


def test_a_store_that_stands_still_hangs_no_other(tmp_path: Path) -> None:
    script = """
host = rank_table()[0]["pid"]
if rank == 0:
    os.kill(host, signal.SIGSTOP)
try:
    same_on_all_ranks(1, "still", limit=0.5)
except GuardError as error:
    print(json.dumps({"message": str(error)}), flush=True)
os.kill(host, signal.SIGKILL)
"""
    ended = ranks(tmp_path, script, world=2)
    assert ended.codes == [-9, 0]
    (row,) = ended.rows(1)
    assert "stands still" in row["message"]


def test_a_dead_rank_that_held_the_store_hangs_no_other(tmp_path: Path) -> None:
    """The store is gone too. All ranks say that, and none can say which rank is missing."""
    script = """
dist.barrier()  # in torch 2.0 the others may still be on their way into the group
if rank == 0:
    os._exit(9)
try:
    same_on_all_ranks(1, "gone", limit=1.0)
except GuardError as error:
    print(json.dumps({"message": str(error)}), flush=True)
os._exit(0)
"""
    ended = ranks(tmp_path, script, world=3)
    assert ended.codes == [9, 0, 0]
    for rank in (1, 2):
        (row,) = ended.rows(rank)
        assert "the store of torch.distributed" in row["message"]


ALONE = """
import json, os, random, sys, warnings
warnings.simplefilter("error")
import clusterprep.guard as guard
print(json.dumps([name for name in sys.modules if name.startswith("clusterprep")]))
assert guard.same_on_all_ranks([1], "x") == [1]
(row,) = guard.rank_table()
assert (row["rank"], row["pid"]) == (0, os.getpid())
import numpy, torch
def drawn():
    return random.random(), float(numpy.random.rand()), float(torch.rand(1))
assert guard.seed_everything(7) == 7
first = drawn()
assert guard.seed_everything() == 7
assert drawn() == first
guard.seed_everything(8)
assert len({*drawn(), *first}) == 6
os.environ["CLUSTERPREP_SEED"] = "seven"
for wrong in (guard.seed_everything, lambda: guard.same_on_all_ranks(sys)):
    try:
        wrong()
    except (guard.GuardError, TypeError) as error:
        print(json.dumps(str(error)))
os.environ["WORLD_SIZE"] = "2"
try:
    guard.same_on_all_ranks(1)
except guard.GuardError as error:
    print(json.dumps(str(error)))
"""


def test_one_process_alone_and_its_seeds() -> None:
    env = {**os.environ, "CLUSTERPREP_SEED": "7", "PYTHONHASHSEED": "0"}
    argv = [sys.executable, "-c", ALONE]
    done = subprocess.run(
        argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    modules, seed, module, early = map(json.loads, done.stdout.splitlines())
    assert modules == [
        "clusterprep",
        "clusterprep.guard",
    ]  # nothing else of ours comes into the user's process
    assert "'seven'" in seed
    assert "CLUSTERPREP_SEED" in seed
    assert "cannot be pickled" in module
    assert "init_process_group" in early


def test_unset_hash_seeds_are_told() -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    argv = [
        sys.executable,
        "-c",
        "from clusterprep.guard import seed_everything; seed_everything(1)",
    ]
    done = subprocess.run(
        argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert "set PYTHONHASHSEED before Python starts" in done.stderr
