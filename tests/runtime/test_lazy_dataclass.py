"""A dataclass that is made late is the same as one that is made at once."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import threading
from typing import Any

import pytest

from clusterprep.runtime.lazy_dataclass import dataclass
from tests.support.operations import interrupt, operations


def point(make: Any) -> Any:
    """The same class, made in either way."""

    @make(frozen=True)
    class Point:
        x: int
        y: int = 2
        tags: list[str] = dataclasses.field(default_factory=list, compare=False)
        seen: dict[str, int] = dataclasses.field(
            default_factory=dict, init=False, repr=False, compare=False
        )
        fixed: int = dataclasses.field(default=7, init=False)

        def __post_init__(self) -> None:
            self.seen["made"] = self.x

        @property
        def sum(self) -> int:
            return self.x + self.y

    return Point


LATE, PLAIN = point(dataclass), point(dataclasses.dataclass)
EMPTY = dataclass(frozen=True)(type("Empty", (), {}))


@pytest.mark.parametrize("kind", [LATE, PLAIN], ids=["late", "plain"])
def test_values_behave_as_those_of_the_standard_library(kind: Any) -> None:
    one, same, other = kind(1), kind(1, tags=["a"]), kind(x=1, y=3)
    assert (one == same, one == other, hash(one) == hash(same), len({one, same, other})) == (
        True,
        False,
        True,
        2,
    )
    assert (one.sum, one.seen, one.fixed, one.tags is kind(1).tags) == (3, {"made": 1}, 7, False)
    assert repr(one).endswith("Point(x=1, y=2, tags=[], fixed=7)")
    assert dataclasses.replace(one, y=9).sum == 10
    assert [field.name for field in dataclasses.fields(kind)] == ["x", "y", "tags", "seen", "fixed"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.x = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.x
    for wrong in (kind, lambda: kind(1, 2, [], 4), lambda: kind(1, z=1)):
        with pytest.raises(TypeError):
            wrong()
    match one:
        case kind(x, y):
            assert (x, y) == (1, 2)


def test_the_constructor_has_the_same_parameters() -> None:
    LATE(1)
    assert list(inspect.signature(LATE).parameters) == list(inspect.signature(PLAIN).parameters)


def test_a_class_knows_its_fields_before_it_has_values() -> None:
    @dataclass(frozen=True)
    class Base:
        x: int

    @dataclass(frozen=True)
    class Derived(Base):
        y: int = 1

    assert dataclasses.is_dataclass(Derived)
    assert [field.name for field in dataclasses.fields(Derived)] == ["x", "y"]
    assert Derived(3) == Derived(3, 1) != Base(3)
    assert EMPTY() == EMPTY()


def test_threads_that_come_together_all_get_values() -> None:
    """The first value makes the class; other threads wait until it is made."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            kind, wrong = point(dataclass), []
            start = threading.Barrier(4)

            def use(
                kind: Any = kind, start: threading.Barrier = start, wrong: list[Any] = wrong
            ) -> None:
                start.wait()
                try:
                    assert kind(1, 2) == kind(1, 2)
                except Exception as error:  # noqa: BLE001 - told by the main thread
                    wrong.append(error)

            threads = [threading.Thread(target=use) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert wrong == []
    finally:
        sys.setswitchinterval(interval)


def test_what_a_signal_ends_in_the_middle_of_it_is_made_anew() -> None:
    whole = point(dataclass)
    lines = operations(lambda: whole(1))
    for line in range(
        10, lines - 50, 19
    ):  # the last of them may be fewer where something was computed before
        kind = point(dataclass)
        with pytest.raises(KeyboardInterrupt):
            interrupt(lambda kind=kind: kind(1), line)
        assert (kind(1), kind(1).sum, dataclasses.replace(kind(1), y=9).sum) == (
            kind(1, tags=["a"]),
            3,
            10,
        ), line


def test_fields_may_have_any_name() -> None:
    @dataclass(frozen=True)
    class Odd:
        unset: tuple[str, ...] = ()
        put: str = ""
        tags: list[str] = dataclasses.field(default_factory=list)

    odd = Odd(unset=("a",), put="b")
    assert (odd.unset, odd.put, odd.tags) == (("a",), "b", [])
