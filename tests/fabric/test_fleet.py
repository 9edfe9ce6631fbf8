"""Work on all nodes at once: the width, --timeout, and nodes that give no answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clusterprep.errors import Interrupted, LinkLost, Unreached
from clusterprep.fabric.execute import ending_of, take_output
from clusterprep.fabric.fleet import Fleet, on_every_node
from clusterprep.fabric.printed import LONGEST, LineSplitter, Screen, kept_of
from clusterprep.model import Node
from clusterprep.remote.transports.secret_filter import SecretFilter
from clusterprep.runtime.deadline import Deadline

NODES = tuple(Node(f"n{number}", f"n{number}", number) for number in range(1, 9))


class Watch:
    def __init__(self) -> None:
        self.steps: dict[str, str] = {}

    def stage(self, name: str, total: int, nodes: Any = ()) -> None:
        pass

    def step(self, node: str, outcome: str, seconds: float | None = None) -> None:
        self.steps[node] = outcome

    def note(self, text: str) -> None:
        pass


class Silent:
    """A transport whose nodes n1 to n4 have sent nothing."""

    def open(self, node: Node, command: str) -> Any:
        raise AssertionError("no work of these tests opens it")

    def unheard(self) -> list[str]:
        return ["n1", "n2", "n3", "n4"]

    def close(self) -> None:
        pass


class Work:
    """Work that returns at once, raises, or takes until it is closed."""

    def __init__(self, outcome: Any = "done", waits: bool = False) -> None:
        self._outcome = outcome
        self._waits = waits
        self.closed = threading.Event()

    def run(self) -> Any:
        if self._waits:
            self.closed.wait(20)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def deadline() -> Iterator[Deadline]:
    with Deadline(0.5) as one:
        yield one


def fleet(deadline: Deadline, forks: int = 8) -> Fleet:
    return Fleet(NODES, {"ssh": Silent()}, lambda node: None, forks, Watch(), deadline)


def test_outcomes_come_by_node_in_the_order_of_the_inventory(deadline: Deadline) -> None:
    one = fleet(deadline)

    def begin(node: Node) -> Work:
        return Work(Unreached("denied", "no") if node.name == "n5" else node.name)

    outcomes, timed_out = on_every_node(one, "run", begin)
    assert (list(outcomes), timed_out) == ([node.name for node in NODES], False)
    assert isinstance(outcomes.pop("n5"), Unreached)
    assert all(name == outcome for name, outcome in outcomes.items())
    assert one.watch.steps["n5"] == "denied"  # type: ignore[attr-defined]


def test_no_more_than_forks_at_once(deadline: Deadline) -> None:
    lock = threading.Lock()
    now: list[int] = [0]
    most: list[int] = [0]

    class Counted(Work):
        def run(self) -> Any:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.02)
            with lock:
                now[0] -= 1

    on_every_node(fleet(deadline, forks=3), "run", lambda node: Counted())
    assert 1 <= most[0] <= 3


def test_timeout_ends_what_is_under_way_and_keeps_what_is_known(deadline: Deadline) -> None:
    begun: list[Work] = []

    def begin(node: Node) -> Work:
        work = Work(f"{node.name} was closed", waits=node.name in ("n2", "n3"))
        begun.append(work)
        return work

    outcomes, timed_out = on_every_node(fleet(deadline), "run", begin)
    assert timed_out
    assert sorted(outcomes) == [node.name for node in NODES]
    assert all(work.closed.is_set() for work in begun)


def test_timeout_begins_nothing_more(deadline: Deadline) -> None:
    begun: list[str] = []

    def begin(node: Node) -> Work:
        begun.append(node.name)
        return Work(waits=True)

    outcomes, timed_out = on_every_node(fleet(deadline, forks=1), "run", begin)
    assert timed_out
    assert begun == ["n1"]
    assert list(outcomes) == ["n1"]


def test_a_signal_ends_everything_and_is_raised() -> None:
    begun: list[Work] = []

    def begin(node: Node) -> Work:
        begun.append(Work(waits=True))
        return begun[-1]

    with Deadline() as deadline:
        threading.Timer(0.3, lambda: deadline.stop(Interrupted(2))).start()
        watched = fleet(deadline)
        with pytest.raises(Interrupted):
            on_every_node(watched, "run", begin)
    assert watched.watch.steps == {}  # type: ignore[attr-defined]
    assert len(begun) == len(NODES)
    assert all(work.closed.is_set() for work in begun)


def test_silent_nodes_do_not_hold_up_the_others() -> None:
    """n1 to n4 occupy all four slots; the others have their turn all the same."""
    done = threading.Event()
    left = {"n5", "n6", "n7", "n8"}

    class Other(Work):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        def run(self) -> Any:
            left.discard(self._name)
            if not left:
                done.set()

    class Stuck(Work):
        def run(self) -> Any:
            assert done.wait(20)

    def begin(node: Node) -> Work:
        return Stuck() if node.name in Silent().unheard() else Other(node.name)

    with Deadline(20.0) as deadline:
        _, timed_out = on_every_node(fleet(deadline, forks=4), "run", begin)
    assert not timed_out


# ---------------------------------------------------------------- what an agent says


@pytest.mark.parametrize(
    ("event", "ending"),
    [
        ({"code": 0}, (0, 0)),
        ({"code": 7, "left_out": 5}, (7, 5)),
        ({"code": -9, "left_out": 0}, (-9, 0)),
    ],
)
def test_how_an_agent_says_that_it_ended(event: dict[str, Any], ending: tuple[int, int]) -> None:
    assert ending_of(event) == ending


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"code": "0"},
        {"code": None},
        {"code": True},
        {"code": 1 << 80},
        {"code": 0, "left_out": -1},
        {"code": 0, "left_out": []},
    ],
)
def test_an_ending_of_another_shape_is_no_success(event: dict[str, Any]) -> None:
    with pytest.raises(LinkLost):
        ending_of(event)


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"stream": "other", "data": "YQ=="},
        {"stream": ["out"], "data": "YQ=="},
        {"stream": "out", "data": 5},
        {"stream": "out", "data": "é"},
        {"stream": "out", "data": "Y"},
    ],
)
def test_output_of_another_shape_is_dropped(event: dict[str, Any]) -> None:
    kept = kept_of("n1", None)
    take_output(kept, event)
    take_output(kept, {"stream": "out", "data": "YQ=="})
    assert kept["out"].text == "a"


# ---------------------------------------------------------------- lines as they come


def lines_of(*texts: str) -> list[str]:
    splitter = LineSplitter()
    lines = [line for text in texts for line in splitter.feed(text)]
    return [*lines, *splitter.end()]


@pytest.mark.parametrize(
    ("texts", "lines"),
    [
        (("a\nb\n",), ["a", "b"]),
        (("a", "b\n", "c"), ["ab", "c"]),
        (("\n\n",), ["", ""]),
        (("x" * (2 * LONGEST + 1),), ["x" * LONGEST, "x" * LONGEST, "x"]),
        (("x" * (LONGEST + 1) + "\n",), ["x" * LONGEST, "x"]),
        (("x" * LONGEST, "x" * LONGEST, "x" * LONGEST), ["x" * LONGEST] * 3),
    ],
)
def test_lines_stay_whole_and_are_bounded(texts: tuple[str, ...], lines: list[str]) -> None:
    assert lines_of(*texts) == lines


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(("it is correct-horse, 1\n",), id="a-line"),
        pytest.param(("it is corr", "ect-horse, 1"), id="in-pieces"),
        pytest.param(("y" * (LONGEST - 5), "correct-", "horse" + "y" * 3 * LONGEST), id="long"),
    ],
)
def test_lines_hold_no_password(texts: tuple[str, ...]) -> None:
    splitter = LineSplitter(SecretFilter("correct-horse").line)
    shown = "".join(line for text in texts for line in splitter.feed(text))
    shown += "".join(splitter.end())
    assert shown == "".join(texts).replace("correct-horse", "<hidden>").replace("\n", "")


def test_a_line_that_ends_as_a_password_begins_stays_whole() -> None:
    assert SecretFilter("correct-horse").line("it is correct") == "it is correct"


def test_the_screen_keeps_nodes_and_streams_apart() -> None:
    shown: list[str] = []
    hear: Callable[[str, str, str], None] = Screen(shown.append).hear
    hear("n1", "out", "be")
    hear("n2", "out", "other\n")
    hear("n1", "err", "problem\n")
    hear("n1", "out", "gun\nre")
    hear("n1", "out", "")
    assert shown == ["n2: other", "n1: problem", "n1: begun", "n1: re"]
