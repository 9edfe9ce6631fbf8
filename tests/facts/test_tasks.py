"""Tasks, what may be started, and load, as the agent and /proc tell them."""

from __future__ import annotations

from typing import Any

import pytest

from clusterprep.facts.tasks import Ids, Load, StuckTask, Tasks, Zombie
from clusterprep.model import Inventory, Node, SshSettings
from clusterprep.survey import registry
from tests.support.fleet import learned

ANSWER = {
    "uid": 1000,
    "threads": 37,
    "tasks": 81,
    "stuck": [],
    "more": 0,
    "seconds": 0,
    "zombies": [],
    "more_zombies": 0,
}
ROW = {
    "pid": 4711,
    "comm": "python (x) y",
    "kernel": False,
    "wchan": "rpc_wait_bit_killable",
    "children": 0,
    "age": 9000.0,
    "waited": 400.5,
}
ZOMBIE = {
    "pid": 4712,
    "comm": "python3",
    "parent": 4711,
    "parent_comm": "torchrun",
    "age": 9000.0,
    "waited": None,
}


def test_a_node_at_rest() -> None:
    assert learned("proc.tasks", ["ok", ANSWER]) == Tasks(1000, 37)


def test_a_stuck_task_keeps_its_name_and_where_it_waits() -> None:
    tasks = learned("proc.tasks", ["ok", {**ANSWER, "stuck": [ROW], "more": 3, "seconds": 1.0}])
    assert tasks.stuck == (
        StuckTask(4711, "python (x) y", "rpc_wait_bit_killable", age=9000.0, waited=400.5),
    )
    assert (tasks.more, tasks.seconds) == (3, 1.0)


def test_a_zombie_keeps_its_parent_and_what_is_not_shown_is_none() -> None:
    tasks = learned("proc.tasks", ["ok", {**ANSWER, "zombies": [ZOMBIE], "more_zombies": 2}])
    assert tasks.zombies == (Zombie(4712, "python3", 4711, "torchrun", 9000.0, None),)
    assert tasks.more_zombies == 2


@pytest.mark.parametrize("wchan", ["0", ""])
def test_a_channel_that_is_not_shown_is_none(wchan: str) -> None:
    tasks = learned("proc.tasks", ["ok", {**ANSWER, "stuck": [{**ROW, "wchan": wchan}]}])
    assert tasks.stuck[0].wchan == ""


def test_a_user_who_is_not_there_has_no_threads() -> None:
    assert learned("proc.tasks", ["ok", {**ANSWER, "uid": None, "threads": None}]) == Tasks(
        None, None
    )


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        [],
        {**ANSWER, "tasks": 0},
        {**ANSWER, "threads": -1},
        {**ANSWER, "stuck": [{}]},
        {**ANSWER, "tasks": "x"},
        {**ANSWER, "stuck": [{**ROW, "waited": -1}]},
        {**ANSWER, "stuck": [{**ROW, "age": float("nan")}]},
        {**ANSWER, "zombies": [{}]},
        {**ANSWER, "zombies": None},
    ],
)
def test_no_tasks_at_all_are_no_healthy_node(answer: Any) -> None:
    assert learned("proc.tasks", ["ok", answer]).reason == "garbled"


def test_a_proc_that_hides_others_is_denied() -> None:
    assert learned("proc.tasks", ["no", "denied", "hidepid"]).reason == "denied"


@pytest.mark.parametrize(
    ("node", "user"),
    [
        (Node("n1", "n1", 0, job_user="alice", ssh=SshSettings(user="root")), "alice"),
        (Node("n1", "n1", 0, ssh=SshSettings(user="root")), "root"),
        (Node("n1", "n1", 0), None),
    ],
)
def test_threads_are_those_of_the_jobs_user(node: Node, user: str | None) -> None:
    (read,) = registry.facts()["proc.tasks"].reads(node, Inventory("test", (node,)))
    assert read.args == (user,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("0.26 0.31 0.19 1/90 15082\n", Load(0.26, 0.31, 0.19, 1, 90), id="small"),
        pytest.param(
            "182.40 96.10 44.02 179/5210 991023\n", Load(182.4, 96.1, 44.02, 179, 5210), id="busy"
        ),
    ],
)
def test_load(text: str, expected: Load) -> None:
    assert learned("proc.load", ["ok", text]) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0.26 0.31 0.19",
        "0,26 0,31 0,19 1/90 15082",
        "a b c d e",
        "nan 0 0 1/90 1",
        "-1 0 0 1/9 1",
    ],
)
def test_text_that_is_no_load_is_garbled(text: str) -> None:
    assert learned("proc.load", ["ok", text]).reason == "garbled"


@pytest.mark.parametrize("fact", ["proc.load", "proc.cores"])
def test_a_file_that_is_not_there_is_no_rest(fact: str) -> None:
    assert learned(fact, ["no", "missing", ""]).reason == "garbled"


def test_ids_are_the_kernels_limits_and_all_threads() -> None:
    texts = ("4194304\n", "192730\n", "0.26 0.31 0.19 1/90 15082\n")
    assert learned("proc.ids", *[["ok", text] for text in texts]) == Ids(90, 4194304, 192730)


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("answer", [["ok", ""], ["ok", "many"], ["ok", "0"], ["no", "missing", ""]])
def test_a_limit_that_is_not_understood_is_garbled(at: int, answer: list[str]) -> None:
    answers: list[Any] = [
        ["ok", "4194304\n"],
        ["ok", "192730\n"],
        ["ok", "0.26 0.31 0.19 1/90 15082\n"],
    ]
    answers[at] = answer
    assert learned("proc.ids", *answers).reason == "garbled"


@pytest.mark.parametrize(
    ("text", "cores"), [("0-223\n", 224), ("0\n", 1), ("0-3,8-11\n", 8), ("0,2\n", 2)]
)
def test_cores_are_counted(text: str, cores: int) -> None:
    assert learned("proc.cores", ["ok", text]) == cores


@pytest.mark.parametrize("text", ["", "\n", "all", "3-0", "0-", "0-3,"])
def test_a_list_of_cpus_that_is_cut_is_garbled(text: str) -> None:
    got = learned("proc.cores", ["ok", text])
    assert got.reason == "garbled"
