"""What a watch tells of one job, from look to look."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.errors import InputError, NotKnown
from clusterprep.facts.kernel_log import KernelLog
from clusterprep.jobs.live.job_watch import JobWatch
from clusterprep.jobs.live.model import Answers, NodeLook
from clusterprep.jobs.live.target import Target, target_of
from clusterprep.survey.watch.changes import Change
from tests.jobs.live.looks import IN_LOADER, four, in_collective, look, rank, task

ADDRESSES = {f"10.0.0.{number}": f"n{number}" for number in range(1, 5)}
RANK_2 = Target("n3", 102)
STOPPED = look(state="T", main=task(state="T", wchan="do_signal_stop"))
LOADING = look(IN_LOADER, main=task("clock_nanosleep"))
BARRIER = look(in_collective("barrier"))
PASSING: dict[str, Any] = {
    f"r{one}_r{other}": {"passed": 1 << 20} for one in range(4) for other in range(4)
}
# All wait alike for less than is needed to call it a hang.
RECENT: dict[str, Any] = {
    f"r{one}_r{other}": {"received_ago": 2000} for one in range(4) for other in range(4)
}
MOVING = four(*map(rank, range(4)), **PASSING)
UNCLEAR = four(*map(rank, range(4)), **RECENT)
NONE = four(None, None, None, None)


def odd(number: int, *looks: Any) -> dict[str, NodeLook]:
    """One rank is elsewhere, the others wait in all_reduce."""
    return four(*[rank(one, *(looks if one == number else ())) for one in range(4)])


class Watched:
    """A watch of a job that is looked at every ten seconds."""

    def __init__(self, target: Target = RANK_2) -> None:
        self.watch = JobWatch(target)
        self.now = 0.0

    def look(self, looks: dict[str, NodeLook], *lost: str) -> tuple[Change, ...]:
        self.now += 10.0
        seen = {name: one for name, one in looks.items() if name not in lost}
        answers = Answers(seen, dict.fromkeys(lost, "timed_out: no answer"), ADDRESSES)
        logs = dict.fromkeys(seen, KernelLog(self.now, 0, 0.0))
        return self.watch.look(self.now, answers, logs)

    def kinds(self, *many: dict[str, NodeLook]) -> list[str]:
        """Return what each of these looks tells, `-` for nothing."""
        told = []
        for looks in many:
            changes = self.look(looks)
            told.append(" ".join(change.kind for change in changes) or "-")
        return told


def test_a_job_that_moves_is_told_once_with_its_nodes() -> None:
    watched = Watched()
    (change,) = watched.look(MOVING)
    assert (change.kind, change.nodes) == ("moving", ("n1", "n2", "n3", "n4"))
    assert "job of 4 ranks" in change.message
    assert watched.kinds(MOVING, MOVING) == ["-", "-"]


def test_a_stopped_rank_is_named_at_once_and_then_it_moves_again() -> None:
    watched = Watched()
    watched.look(MOVING)
    (stuck,) = watched.look(odd(2, STOPPED))
    assert stuck.kind == "stuck"
    assert "(rank_stopped, rank 2 on n3)" in stuck.message
    assert "rank 2 on n3 is stopped" in stuck.lines[0]
    assert stuck.remedy
    assert watched.look(odd(2, STOPPED)) == ()
    (moving,) = watched.look(MOVING)
    assert (moving.kind, moving.message, moving.seconds) == ("moving", "the job moves again", 20.0)


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        pytest.param([odd(1, LOADING), MOVING], ["-", "-"], id="one-slow-step"),
        pytest.param([odd(1, LOADING)] * 3, ["-", "stuck", "-"], id="elsewhere"),
        pytest.param([odd(1, LOADING), odd(2, LOADING), MOVING], ["-", "-", "-"], id="in-turn"),
        pytest.param([odd(n, LOADING) for n in (1, 2, 3)], ["-", "-", "stuck"], id="never-moves"),
        pytest.param([odd(1, LOADING)] * 2 + [odd(2, LOADING)] * 2, ["-", "stuck", "stuck", "-"]),
        pytest.param([odd(1, look(), None), NONE, NONE], ["-", "-", "ended"], id="ends-in-turn"),
        pytest.param([odd(1, look(), None)] * 2, ["-", "stuck"], id="gone"),
        pytest.param([UNCLEAR] * 4, ["-", "-", "unknown", "-"], id="unclear"),
        pytest.param([UNCLEAR, MOVING, UNCLEAR, UNCLEAR], ["-"] * 4, id="unclear-in-between"),
        pytest.param([NONE, MOVING, NONE, NONE], ["-", "-", "-", "ended"], id="started-anew"),
    ],
)
def test_what_is_told_of_a_job_that_moved(
    looks: list[dict[str, NodeLook]], expected: list[str]
) -> None:
    watched = Watched()
    watched.look(MOVING)
    assert watched.kinds(*looks) == expected
    assert watched.watch.ended == ("ended" in expected)


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        pytest.param(odd(1, LOADING), "stuck", id="stuck"),
        pytest.param(UNCLEAR, "unknown", id="unknown"),
    ],
)
def test_the_first_look_tells_what_it_sees(looks: dict[str, NodeLook], expected: str) -> None:
    assert Watched().kinds(looks, looks) == [expected, "-"]


def test_a_node_that_gives_no_answer_does_not_end_the_job() -> None:
    watched = Watched()
    watched.look(MOVING)
    told = [watched.look(NONE, "n3") for _ in range(3)]
    assert [len(changes) for changes in told] == [0, 0, 1]
    assert told[2][0].kind == "unknown"
    assert "n3 gave no answer (timed_out: no answer)" in told[2][0].message
    assert not watched.watch.ended


def test_ranks_on_a_node_without_an_answer_stay_known() -> None:
    """Their job is found again by them although its other ranks have ended meanwhile."""
    watched = Watched(Target("n2", 101))
    watched.look(MOVING)
    only_0 = four(rank(0), None, None, None, **RECENT)
    watched.look(only_0, "n3")
    assert watched.kinds(four(None, None, rank(2), None, **RECENT)) != ["ended"]
    assert not watched.watch.ended


def test_a_process_id_that_another_job_has_now_is_not_the_job() -> None:
    watched = Watched(Target("n1", 100))
    watched.look(MOVING)
    later = four(*[rank(one, pid=200 + one) for one in range(4)])
    assert watched.kinds(later, later) == ["-", "ended"]


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(Target("n2", 90), id="a-launcher"),
        pytest.param(Target("n2", 500), id="a-loader"),
        pytest.param(Target(slurm="77"), id="slurm"),
    ],
)
def test_the_job_is_found_by_what_belongs_to_it(target: Target) -> None:
    job = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "SLURM_JOB_ID": "77"}
    looks = four(*[rank(one, children=[500], job=job) for one in range(4)], **PASSING)
    assert Watched(target).kinds(looks) == ["moving"]


def test_another_job_is_not_followed() -> None:
    other = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29600"}
    with pytest.raises(NotKnown) as raised:
        Watched(Target(slurm="78")).look(four(*[rank(one, job=other) for one in range(4)]))
    message = raised.value.message
    assert "--job slurm:78: no rank of a job of several ranks has that number" in message
    assert "seen: job of 4 ranks, rendezvous 10.0.0.1:29600 with n1:100" in message


def test_a_job_is_waited_for_while_its_node_gives_no_answer() -> None:
    watched = Watched()
    (change,) = watched.look(NONE, "n3")
    assert (change.kind, change.nodes) == ("unknown", ("n3",))
    assert watched.kinds(MOVING) == ["moving"]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        pytest.param("n1:4711", Target("n1", 4711), id="process"),
        pytest.param("slurm:0012", Target(slurm="12"), id="slurm"),
    ],
)
def test_a_target_is_read(text: str, target: Target) -> None:
    assert target_of(text, ["n1"]) == target


@pytest.mark.parametrize("text", ["", "n1", "n1:", ":7", "n1:x", "n1:-7", "n1:٣", "n1:" + "7" * 99])
def test_what_names_no_job_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="neither NODE:PID"):
        target_of(text, ["n1"])


def test_a_node_that_is_not_watched_is_refused() -> None:
    with pytest.raises(InputError, match=r"there is no node 'n9' .*: n1, n2"):
        target_of("n9:7", ["n1", "n2"])
