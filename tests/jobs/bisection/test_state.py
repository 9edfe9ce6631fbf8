"""Runs are kept so that a bisect goes on, with the same command on the same nodes only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from clusterprep.errors import InputError
from clusterprep.jobs.bisection.evidence import Outcome
from clusterprep.jobs.bisection.files import NAME, RunFolder, earlier
from clusterprep.jobs.bisection.search import Search
from clusterprep.jobs.bisection.state import Measurement, decode, encode, resumed
from tests.jobs.bisection.played import names, played, with_faults

HERE = Measurement(tuple(names(4)), ("train.py", "--steps", "9"), 2)
OUTCOMES = (Outcome("failed", 3.25, "rank 2 on n3 ended with exit code 1"), Outcome("passed", 1.5))


def test_what_is_kept_comes_back() -> None:
    state = decode(encode(HERE, OUTCOMES).encode(), "runs.json")
    assert (state.measurement, state.outcomes) == (HERE, OUTCOMES)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": ("n1", "n2")}, "other nodes: n1 n2 n3 n4"),
        ({"command": ("train.py",)}, "other words of the command: train.py --steps 9"),
        ({"least": 3}, "other --min-nodes: 2"),
        ({"direct": True}, "other --direct: False"),
        ({"variables": ("NCCL_DEBUG",)}, "other variables of --env: none"),
        ({"folder": "/data"}, "other --chdir: None"),
        ({"ranks": {"n1": 8}}, "other ranks per node: none declared"),
    ],
)
def test_runs_of_something_else_are_refused(change: dict[str, Any], words: str) -> None:
    state = decode(encode(HERE, OUTCOMES).encode(), "runs.json")
    with pytest.raises(InputError, match=words):
        resumed(Search(names(4)), state, replace(HERE, **change), "runs.json")


def test_a_search_that_has_ended_takes_no_more() -> None:
    whole = played(4, with_faults([["n3"]]))
    outcomes = [run.outcome for run in whole.runs]
    state = decode(encode(HERE, [*outcomes, *outcomes]).encode(), "runs.json")
    search = Search(names(4))
    resumed(search, state, HERE, "runs.json")
    assert (search.found, search.runs) == (whole.found, whole.runs)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"format": 1}',
        b"\xff",
        encode(HERE, OUTCOMES).replace('"failed"', '"exploded"').encode(),
        encode(HERE, OUTCOMES).replace('"format": 1', '"format": 2').encode(),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match=r"/some/runs\.json: --resume"):
        decode(data, "/some/runs.json")


def test_the_newest_runs_are_the_last(tmp_path: Path) -> None:
    for run in ("20261129-080000-0001", "20261129-090000-0001"):
        RunFolder(tmp_path, run).keep(encode(HERE, OUTCOMES[: 1 + run.count("09")]))
    RunFolder(tmp_path, "20261129-100000-0001")  # it has made none
    state, file = earlier(tmp_path, "last")
    assert file == str(tmp_path / "20261129-090000-0001" / NAME)
    assert earlier(tmp_path, "20261129-080000-0001")[0].outcomes == OUTCOMES[:1]
    assert state.outcomes == OUTCOMES


@pytest.mark.parametrize("name", ["last", "20261129-080000-0001", "", "..", "../../etc"])
def test_a_name_without_runs_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="--resume"):
        earlier(tmp_path, name)


def test_runs_that_cannot_be_kept_are_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "20261129-080000-0001")
    (folder.path / NAME).mkdir()
    folder.keep(encode(HERE, OUTCOMES))
    assert "--resume cannot go on" in folder.trouble
    assert [path.name for path in folder.path.iterdir()] == [NAME]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        RunFolder(tmp_path / "file", "20261129-080000-0001")
