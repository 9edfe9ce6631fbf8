"""Lines of many ranks on one screen, and in one file each."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterprep.errors import InputError
from clusterprep.jobs.launch.display import WAIT, Folded, Prefixed, spans, visible
from clusterprep.jobs.launch.logs import KEPT, Logs, forget_old

RANKS = [("n1", 0), ("n1", 1), ("n2", 2)]


def test_every_line_is_behind_its_rank() -> None:
    assert Prefixed().add(("n1", 0), "a", 0.0) == ["[n1 rank 0] a"]
    assert Prefixed().add(("n2", None), "a", 0.0) == ["[n2 torchrun] a"]


def test_equal_lines_of_all_ranks_are_shown_at_once() -> None:
    folded = Folded(3)
    assert [folded.add(source, "step 1", 0.0) for source in RANKS] == [
        [],
        [],
        ["[all ranks] step 1"],
    ]


def test_equal_lines_of_some_ranks_wait_a_moment() -> None:
    folded = Folded(3)
    folded.add(RANKS[0], "a", 0.0)
    folded.add(RANKS[2], "a", 0.1)
    folded.add(RANKS[1], "b", 0.2)
    assert folded.due(WAIT - 0.01) == []
    assert folded.due(WAIT + 0.01) == ["[ranks 0,2] a"]
    assert folded.due(9.0) == ["[n1 rank 1] b"]


def test_lines_of_one_rank_keep_their_order_and_number() -> None:
    folded = Folded(3)
    for text in ("a", "b", "a", "a"):
        folded.add(RANKS[0], text, 0.0)
    folded.add(RANKS[1], "a", 0.0)
    assert folded.due(9.0) == ["[ranks 0-1] a", "[n1 rank 0] b", "[n1 rank 0] a", "[n1 rank 0] a"]


def test_one_rank_is_counted_once_for_equal_lines_of_which_the_first_is_shown() -> None:
    folded = Folded(2)
    folded.add(RANKS[0], "a", 0.0)
    folded.add(RANKS[0], "a", 0.2)
    assert folded.due(0.2 + WAIT / 2) == ["[n1 rank 0] a"]
    assert folded.add(RANKS[0], "a", 0.4) == []
    assert folded.due(9.0) == ["[n1 rank 0] a", "[n1 rank 0] a"]


def test_ranks_that_print_in_different_orders_keep_their_own() -> None:
    folded = Folded(3)
    for rank, text in ((0, "a"), (0, "b"), (1, "b"), (1, "a"), (2, "b")):
        folded.add(RANKS[rank], text, 0.0)
    assert folded.due(9.0) == ["[n1 rank 0] a", "[all ranks] b", "[n1 rank 1] a"]


def test_lines_of_single_ranks_do_not_part_what_all_ranks_print() -> None:
    folded = Folded(3)
    for rank in (0, 1, 2):
        for text in (f"rank {rank} is up", "step 1", "step 2"):
            folded.add(RANKS[rank], text, 0.0)
    assert folded.due(9.0) == [
        "[n1 rank 0] rank 0 is up",
        "[n1 rank 1] rank 1 is up",
        "[n2 rank 2] rank 2 is up",
        "[all ranks] step 1",
        "[all ranks] step 2",
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=40))
def test_every_rank_finds_its_own_lines_in_its_own_order(printed: list[tuple[int, str]]) -> None:
    """The label of each shown line says whose it is: so each rank's lines can be read from it."""
    folded = Folded(4)
    shown: list[str] = []
    for index, (rank, text) in enumerate(printed):
        shown += folded.add(("n1", rank), text, index * WAIT / 5)
    shown += folded.due(0.0, flush=True)
    for rank in range(4):
        own = [text for of_rank, text in printed if of_rank == rank]
        assert [line[-1] for line in shown if rank in ranks_of(line)] == own


def ranks_of(line: str) -> list[int]:
    """The ranks in a label: «[n1 rank 2]», «[ranks 0-1,3]» or «[all ranks]» of four."""
    name = line[1 : line.index("]")]
    if name == "all ranks":
        return [0, 1, 2, 3]
    ranks: list[int] = []
    for part in name.rsplit(" ", 1)[-1].split(","):
        first, _, last = part.partition("-")
        ranks.extend(range(int(first), int(last or first) + 1))
    return ranks


def test_torchrun_does_not_stand_for_a_rank() -> None:
    folded = Folded(2)
    assert folded.add(("n1", None), "a", 0.0) == []
    assert folded.add(RANKS[0], "a", 0.0) == []
    assert folded.add(RANKS[1], "a", 0.0) == ["[all ranks, n1 torchrun] a"]
    folded.add(("n1", None), "b", 0.0)
    folded.add(RANKS[1], "b", 0.0)
    assert folded.due(9.0) == ["[rank 1, n1 torchrun] b"]


def test_the_last_lines_are_shown_too() -> None:
    folded = Folded(3)
    folded.add(("n1", None), "bye", 0.0)
    folded.add(("n2", None), "bye", 0.0)
    assert folded.due(0.0, flush=True) == ["[n[1-2] torchrun] bye"]


def test_spans() -> None:
    assert spans([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def test_a_progress_bar_is_what_it_shows() -> None:
    assert visible(" 1%|\r 50%|\r100%|done\r") == "100%|done"


# ---------------------------------------------------------------- files


def test_a_file_for_each(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run")
    logs.write(("n2", 3), ["a\udcff", "b"])
    logs.write(("n1", None), ["c"])
    assert [path.name for path in logs.close()] == ["rank-3.log", "torchrun-n1.log"]
    assert (tmp_path / "run/rank-3.log").read_text() == "a?\nb\n"
    assert logs.trouble == ""


def test_a_folder_that_cannot_be_made_is_refused_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        Logs(tmp_path / "file/run")


def test_what_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    (tmp_path / "rank-0.log").mkdir()
    logs.write(("n1", 0), ["a"])
    assert "lacks lines" in logs.trouble


def test_old_runs_go_and_nothing_else(tmp_path: Path) -> None:
    for day in range(10, 10 + KEPT + 3):
        (tmp_path / f"202611{day}-120000-00ff").mkdir()
    (tmp_path / "mine").mkdir()
    forget_old(tmp_path)
    assert len(list(tmp_path.iterdir())) == KEPT + 1
    assert not (tmp_path / "20261112-120000-00ff").exists()
    assert (tmp_path / "20261113-120000-00ff").exists()
    forget_old(tmp_path / "absent")
