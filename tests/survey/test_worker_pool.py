"""A pool runs its function for every item, at its width, and replaces threads that are stuck."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from clusterprep.survey.worker_pool import WorkerPool

LIMIT = 10.0  # seconds that a test waits at most


@dataclass(frozen=True)
class Item:
    name: str


def finish(pool: WorkerPool[Item]) -> None:
    while pool.unfinished:
        pool.wait(LIMIT)


@pytest.mark.parametrize("width", [1, 3, 100])
def test_every_item_is_worked_at_once(width: int) -> None:
    done: list[str] = []
    pool = WorkerPool([Item(str(number)) for number in range(10)], lambda i: done.append(i.name))
    pool.start_threads(width)
    finish(pool)
    assert sorted(done) == [str(number) for number in range(10)]
    assert not pool.has_pending


def test_what_the_work_raises_is_raised_to_the_owner() -> None:
    def fail(item: Item) -> None:
        raise ValueError(item.name)

    pool = WorkerPool([Item("a")], fail)
    pool.start_threads(1)
    with pytest.raises(ValueError, match="a"):
        pool.wait(LIMIT)
    assert pool.unfinished == 0


def test_an_item_that_hangs_can_be_replaced() -> None:
    """One thread is stuck at the first item: another one takes the rest, and the first one ends."""
    release = threading.Event()
    threads: dict[str, threading.Thread] = {}

    def work(item: Item) -> None:
        threads[item.name] = threading.current_thread()
        if item.name == "stuck":
            release.wait(LIMIT)

    pool = WorkerPool([Item("stuck"), Item("a"), Item("b")], work)
    pool.start_threads(1)
    pool.wait(0.05)
    assert (pool.unfinished, pool.has_pending) == (3, True)
    pool.replace_threads(["stuck"])
    pool.replace_threads(["stuck"])
    pool.wait(LIMIT)
    pool.wait(LIMIT)
    assert pool.unfinished == 1
    assert threads["a"] is threads["b"] is not threads["stuck"]
    release.set()
    finish(pool)
    threads["stuck"].join(LIMIT)
    assert not threads["stuck"].is_alive()
